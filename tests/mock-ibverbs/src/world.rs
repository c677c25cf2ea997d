//! All objects, as the library's caller made them, each known by the address of the structure that the caller has.

#![allow(unsafe_code)] // has itself called at the end

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libibverbs_sys::bindings::*;
use rustix::event::{EventfdFlags, eventfd};

use crate::device::{self, Device};
use crate::faults::{Action, Faults};
use crate::pair::Pair;

/// An object: the address of its structure.
pub type Id = usize;

/// An open device.
#[derive(Debug)]
pub struct Context {
    /// Which.
    pub device: usize,
    /// Readable while there are events.
    pub bell: OwnedFd,
    /// What happened: of what kind, and to what.
    pub events: VecDeque<(ibv_event_type, Id)>,
}

/// Registered memory.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Its protection domain.
    pub domain: Id,
    /// Where it is.
    pub host: usize,
    /// By what address peers know the first byte.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// `ibv_access_flags`.
    pub access: u32,
    /// It was mapped for the registration.
    pub mapped: bool,
}

/// A completion channel.
#[derive(Debug)]
pub struct Channel {
    /// Its device.
    pub context: Id,
    /// Readable while there are events.
    pub bell: OwnedFd,
    /// Queues that have something.
    pub events: VecDeque<Id>,
    /// Queues that use it.
    pub queues: usize,
}

/// A completion queue.
#[derive(Debug)]
pub struct Queue {
    /// Its device.
    pub context: Id,
    /// Where it tells.
    pub channel: Id,
    /// Completions that it has room for.
    pub room: usize,
    /// Those it has.
    pub done: VecDeque<Done>,
    /// The next one is told of.
    pub armed: bool,
    /// Events told of, and of these the ones that were acknowledged.
    pub told: u32,
    /// See above.
    pub acknowledged: u32,
    /// Queue pairs that use it.
    pub pairs: usize,
    /// A message that comes again and again: the queue pair that it comes to, and the bytes.
    pub endless: Option<(Id, Vec<u8>)>,
}

/// A completion.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// Of which queue pair.
    pub pair: Id,
    /// With it so many work requests of the send queue have ended; 0: a receive.
    pub retires: u64,
    /// The caller's number.
    pub id: u64,
    /// How it ended.
    pub status: ibv_wc_status,
    /// What it was.
    pub opcode: ibv_wc_opcode,
    /// Bytes that came.
    pub len: u32,
    /// The number of the queue pair.
    pub number: u32,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Receives {
    /// Its protection domain.
    pub domain: Id,
    /// Requests that it has room for.
    pub room: usize,
    /// The caller's number, address, length and key of each.
    pub posted: VecDeque<(u64, ibv_sge)>,
    /// Queue pairs that use it.
    pub pairs: usize,
}

/// Everything.
#[derive(Debug, Default)]
pub struct World {
    /// What fails.
    pub faults: Faults,
    /// The devices.
    pub devices: Vec<Device>,
    /// Ports that went down.
    pub down: HashSet<(usize, u8)>,
    /// Open devices.
    pub contexts: HashMap<Id, Context>,
    /// Protection domains, and the device of each.
    pub domains: HashMap<Id, Id>,
    /// Registered memory.
    pub memories: HashMap<Id, Memory>,
    /// By its key.
    pub keys: HashMap<u32, Id>,
    /// Completion channels.
    pub channels: HashMap<Id, Channel>,
    /// Completion queues.
    pub queues: HashMap<Id, Queue>,
    /// Shared receive queues.
    pub receives: HashMap<Id, Receives>,
    /// Queue pairs.
    pub pairs: HashMap<Id, Pair>,
    /// By number.
    pub numbers: HashMap<u32, Id>,
    /// Queue pairs whose work requests wait for something.
    pub stuck: HashSet<Id>,
    /// A thread moves what is slow.
    pub ticking: bool,
    /// Writes and messages that have arrived.
    pub writes: u64,
    /// See above.
    pub sends: u64,
    /// Bytes that writes of each device carried.
    pub carried: BTreeMap<String, u64>,
    /// Calls that post work, and calls that post receive requests.
    pub posts: u64,
    /// See above.
    pub receive_posts: u64,
    /// What no program may do.
    pub misuse: Vec<String>,
    last_number: u32,
    last_key: u32,
}

/// Everything, to one thread at a time.
pub fn world() -> MutexGuard<'static, World> {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    let new = || {
        // SAFETY: the function is there until the process ends: the library is never closed.
        unsafe { libc::atexit(crate::exports::write_report) };
        let root = std::env::var_os(crate::ROOT).unwrap_or_default();
        let faults = std::env::var(crate::FAULTS).unwrap_or_default();
        let faults = Faults::parse(&faults).unwrap_or_else(|e| {
            eprintln!("mock-ibverbs: {e}");
            std::process::abort()
        });
        Mutex::new(World { faults, devices: device::read(Path::new(&root)), ..World::default() })
    };
    WORLD.get_or_init(new).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor that is readable as often as it was rung.
pub fn bell() -> Result<OwnedFd, i32> {
    eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC).map_err(|e| e.raw_os_error())
}

/// Makes it readable once more.
fn ring(bell: &impl AsFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

impl World {
    /// Notes what no program may do.
    pub fn misused(&mut self, what: impl Into<String>) -> i32 {
        self.misuse.push(what.into());
        libc::EINVAL
    }

    /// A number for a queue pair.
    pub fn number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    /// A key for memory; one differs from the next in many bits.
    pub fn key(&mut self) -> u32 {
        self.last_key += 1;
        self.last_key.wrapping_mul(0x9e37_79b1)
    }

    /// The name of an open device.
    pub fn name(&self, context: Id) -> String {
        let device = self.contexts.get(&context).and_then(|context| self.devices.get(context.device));
        device.map(|device| device.name.clone()).unwrap_or_default()
    }

    /// Something is asked of an open device: what else it meets; `Err` if it fails.
    pub fn meet(&mut self, context: Id, place: &str) -> Result<Vec<Action>, i32> {
        let name = self.name(context);
        self.meet_named(&name, context, place, None)
    }

    /// The same of a queue pair.
    pub fn meet_pair(&mut self, pair: Id, place: &str) -> Result<Vec<Action>, i32> {
        let context = self.pairs.get(&pair).map_or(0, |pair| pair.context);
        let name = self.name(context);
        self.meet_named(&name, context, place, Some(pair))
    }

    /// The same of a device that may not be open.
    pub fn meet_named(
        &mut self,
        name: &str,
        context: Id,
        place: &str,
        pair: Option<Id>,
    ) -> Result<Vec<Action>, i32> {
        let met = self.faults.meet(name, place);
        for action in &met {
            match *action {
                Action::Port { up } => self.set_port(name, up),
                Action::DeviceFatal => self.tell(context, IBV_EVENT_DEVICE_FATAL, 0),
                Action::PairFatal => {
                    if let Some(pair) = pair {
                        self.fail(pair);
                        self.tell(context, IBV_EVENT_QP_FATAL, pair);
                    }
                }
                _ => {}
            }
        }
        let failed = met.iter().find_map(|action| match action {
            Action::Fail(errno) => Some(*errno),
            _ => None,
        });
        failed.map_or(Ok(met), Err)
    }

    /// Port 1 of a device goes down or comes up.
    fn set_port(&mut self, name: &str, up: bool) {
        let Some(device) = self.devices.iter().position(|device| device.name == name) else { return };
        let changed = if up { self.down.remove(&(device, 1)) } else { self.down.insert((device, 1)) };
        if !changed {
            return;
        }
        let kind = if up { IBV_EVENT_PORT_ACTIVE } else { IBV_EVENT_PORT_ERR };
        let open: Vec<Id> =
            self.contexts.iter().filter(|(_, c)| c.device == device).map(|(id, _)| *id).collect();
        for context in open {
            self.tell(context, kind, 1);
        }
    }

    /// Something has happened to a device, or to what was made of it.
    pub fn tell(&mut self, context: Id, kind: ibv_event_type, to: Id) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.events.push_back((kind, to));
            ring(&context.bell);
        }
    }

    /// A completion.
    pub fn push(&mut self, queue: Id, done: Done) {
        let Some(to) = self.queues.get_mut(&queue) else { return };
        if to.done.len() >= to.room {
            let (room, context) = (to.room, to.context);
            self.misused(format!("a completion queue of {room} entries overflows"));
            self.tell(context, IBV_EVENT_CQ_ERR, queue);
            return;
        }
        to.done.push_back(done);
        if std::mem::take(&mut to.armed) {
            to.told += 1;
            if let Some(channel) = self.channels.get_mut(&to.channel) {
                channel.events.push_back(queue);
                ring(&channel.bell);
            }
        }
    }

    /// The bytes at a key and an address, if a domain may use them so.
    pub fn reach(&self, domain: Id, key: u32, at: u64, len: u64, access: u32) -> Option<usize> {
        let memory = self.memories.get(self.keys.get(&key)?)?;
        let from = at.checked_sub(memory.address)?;
        let fits = from.checked_add(len)? <= memory.len;
        (fits && memory.domain == domain && memory.access & access == access)
            .then_some(memory.host + from as usize)
    }

    /// What there is, in words.
    pub fn report(&self) -> String {
        let live = [
            ("contexts", self.contexts.len()),
            ("domains", self.domains.len()),
            ("regions", self.memories.len()),
            ("channels", self.channels.len()),
            ("completion queues", self.queues.len()),
            ("receive queues", self.receives.len()),
            ("queue pairs", self.pairs.len()),
        ];
        let left: Vec<_> =
            live.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("left: {n} {what}\n")).collect();
        let misuse: Vec<_> = self.misuse.iter().map(|what| format!("misuse: {what}\n")).collect();
        let World { writes, sends, posts, receive_posts, .. } = self;
        let carried: Vec<_> =
            self.carried.iter().map(|(device, bytes)| format!("bytes by {device}: {bytes}\n")).collect();
        format!(
            "writes: {writes}\nsends: {sends}\nposts: {posts}\nreceive posts: {receive_posts}\n{}{}{}",
            carried.concat(),
            left.concat(),
            misuse.concat()
        )
    }
}
