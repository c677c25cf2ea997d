//! All queue pairs of an endpoint: what the devices have done, and how pairs of ranks come to be joined.
#![allow(unsafe_code)] // reads receive buffers

mod joining;
mod status;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use libibverbs_sys::bindings::*;

use super::adapter::{Adapter, RECEIVED};
use super::queue::{Fault, Queue};
use super::sys::{Care, Event};
use crate::{Error, Region, Result};
use status::cause;

/// Completions taken off at once.
const POLL: usize = 32;
/// How often that is done before others have their turn, though a peer never stops sending.
const POLLS: usize = 16;

/// So many looks at the completions for one at what the devices tell of themselves: nothing else shows it to a rank that is
/// never idle.
const LOOKS: u32 = 4096;

/// By which port a rank reaches a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rail {
    /// The place of the device's adapter.
    pub adapter: usize,
    /// The port's number.
    pub port: u8,
    /// The index of its address.
    pub gid_index: u8,
    /// Both ports, for people.
    pub name: String,
}

/// How far two ranks have come.
#[derive(Debug)]
pub enum State {
    /// They have not met.
    Apart,
    /// The way is being tried.
    Joining(Box<Queue>),
    /// They are joined.
    Joined(Box<Queue>),
    /// The way that is being tried is closed, for this reason: what follows from it is not decided yet.
    Closed(String),
    /// Their payload goes by TCP.
    Plain,
    /// They were joined, and are no more.
    Over(String),
}

/// A peer.
#[derive(Debug)]
pub struct Pair {
    /// Its rank.
    pub peer: usize,
    /// Its host, as it named itself.
    pub host: String,
    /// By which ports.
    pub rail: Rail,
    state: Mutex<State>,
    /// Puts that lent memory and are flushed.
    flushed: AtomicU64,
    /// Something waits to be posted.
    waiting: AtomicBool,
    path: OnceLock<String>,
    /// What made an attempt to join them fail before it was over.
    early: Mutex<Option<Error>>,
    /// How often that was attempted.
    attempts: AtomicU64,
}

/// How far two ranks had come whose queue pair ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Was {
    Apart,
    Joining,
    Joined,
}

impl Pair {
    /// With a peer that was not met yet.
    pub fn new(peer: usize, host: String, rail: Rail) -> Pair {
        Pair {
            peer,
            host,
            rail,
            state: Mutex::new(State::Apart),
            flushed: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
            path: OnceLock::new(),
            early: Mutex::default(),
            attempts: AtomicU64::new(0),
        }
    }

    fn early(&self) -> MutexGuard<'_, Option<Error>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far the two have come.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Between which ports, once joined.
    pub fn path(&self) -> Option<&String> {
        self.path.get()
    }

    /// Whether the memory of a put may be reused.
    pub fn is_flushed(&self, ticket: u64) -> bool {
        self.flushed.load(Ordering::Acquire) >= ticket
    }

    fn lost(&self, cause: &str) -> Error {
        Error::PeerLost { rank: self.peer, host: self.host.clone(), cause: cause.into() }
    }
}

/// All queue pairs of an endpoint.
#[derive(Debug)]
pub struct Fabric {
    me: usize,
    /// Verbs or an error.
    strict: bool,
    /// By place; some may not have come about, for a reason.
    adapters: Vec<Result<Arc<Adapter>, String>>,
    pairs: Vec<Arc<Pair>>,
    by_rank: HashMap<usize, Arc<Pair>>,
    region: Arc<Region>,
    care: Care,
    inbox: Mutex<Inbox>,
    /// How many pairs have something waiting.
    waiting: AtomicUsize,
    given_up: AtomicBool,
    /// Something happened to a device, or a completion woke a sleeper.
    stirred: AtomicBool,
    /// Somebody was told that a peer is not reached by verbs.
    warned: AtomicBool,
}

struct Inbox {
    /// By the adapter's place and the number of the queue pair.
    routes: HashMap<(usize, u32), Arc<Pair>>,
    /// Queue pairs that a device has ended and that stand in no route: no more, or not yet.
    strays: Vec<(usize, u32)>,
    completions: Box<[ibv_wc; POLL]>,
    /// Receive buffers to be given back, by the adapter's place.
    taken: Vec<Vec<u32>>,
    /// How often it was looked what the devices have done.
    looks: u32,
    /// The next completion is told of.
    armed: bool,
    /// What of the devices' forgotten windows the pairs know.
    forgotten: u64,
    /// What progress has not reported yet.
    errors: Vec<Error>,
}

// SAFETY: the context pointers in completions are never followed.
unsafe impl Send for Inbox {}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inbox({} queue pairs)", self.routes.len())
    }
}

impl Fabric {
    /// With these peers.
    pub fn new(
        me: usize,
        strict: bool,
        adapters: Vec<Result<Arc<Adapter>, String>>,
        pairs: Vec<Pair>,
        region: Arc<Region>,
        care: Care,
    ) -> Fabric {
        let pairs: Vec<_> = pairs.into_iter().map(Arc::new).collect();
        // SAFETY: plain numbers, for which zero is valid.
        let completions = Box::new([unsafe { std::mem::zeroed() }; POLL]);
        let forgotten = adapters.iter().flatten().map(|a| a.device.forgotten()).sum();
        let taken = adapters.iter().map(|_| Vec::with_capacity(2 * POLL)).collect();
        Fabric {
            me,
            strict,
            adapters,
            by_rank: pairs.iter().map(|pair| (pair.peer, pair.clone())).collect(),
            pairs,
            region,
            care,
            inbox: Mutex::new(Inbox {
                routes: HashMap::new(),
                strays: Vec::new(),
                completions,
                taken,
                looks: 0,
                armed: false,
                forgotten,
                errors: Vec::new(),
            }),
            waiting: AtomicUsize::new(0),
            given_up: AtomicBool::new(false),
            stirred: AtomicBool::new(false),
            warned: AtomicBool::new(false),
        }
    }

    /// The peers that are to be reached this way.
    pub fn pairs(&self) -> &[Arc<Pair>] {
        &self.pairs
    }

    /// What there is on the devices.
    pub fn adapters(&self) -> impl Iterator<Item = &Arc<Adapter>> {
        self.adapters.iter().flatten()
    }

    /// Whether any of these bytes are another device's, which this rank has registered.
    pub fn is_exported(&self, at: u64, len: u64) -> bool {
        self.adapters().any(|adapter| adapter.device.exports().meet(at, len))
    }

    /// This rank.
    pub fn me(&self) -> usize {
        self.me
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has failed: what is said from here on goes by TCP.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// See [`Fabric::give_up`].
    #[inline]
    pub fn has_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Something waits to be posted to this peer.
    #[inline]
    pub fn set_waiting(&self, pair: &Pair, now: bool) {
        if pair.waiting.swap(now, Ordering::AcqRel) != now {
            if now {
                self.waiting.fetch_add(1, Ordering::AcqRel);
            } else {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Hands to the devices what waits; whether there was anything.
    pub fn flush(&self) -> bool {
        let mut moved = false;
        if self.waiting.load(Ordering::Acquire) == 0 {
            return false;
        }
        for pair in self.pairs.iter().filter(|pair| pair.waiting.load(Ordering::Acquire)) {
            let mut state = pair.state();
            let State::Joined(queue) = &mut *state else { continue };
            match queue.flush() {
                Ok(some) => {
                    moved |= some;
                    pair.flushed.fetch_max(queue.flushed(), Ordering::AcqRel);
                    let waits = queue.waits();
                    self.set_waiting(pair, waits);
                }
                Err(fault) => {
                    drop(state);
                    let fault = match fault {
                        Fault::Broken(why) => Fault::Broken(format!("{why} (on {})", pair.rail.name)),
                        other => other,
                    };
                    self.fail(&mut self.inbox(), pair, fault);
                    moved = true;
                }
            }
        }
        moved
    }

    /// Moves what can move without waiting; whether something did. A peer that is lost is an error, once.
    pub fn progress(&self) -> Result<bool> {
        let mut moved = self.flush();
        let mut inbox = self.inbox();
        moved |= self.collect(&mut inbox);
        let error = (!inbox.errors.is_empty()).then(|| inbox.errors.remove(0));
        drop(inbox);
        if moved {
            self.flush();
        }
        error.map_or(Ok(moved), Err)
    }

    /// Takes what the devices have done.
    fn collect(&self, inbox: &mut Inbox) -> bool {
        let mut moved = false;
        inbox.looks = inbox.looks.wrapping_add(1);
        if self.stirred.swap(false, Ordering::AcqRel) || inbox.looks.is_multiple_of(LOOKS) {
            self.hear(inbox);
        }
        for place in 0..self.adapters.len() {
            moved |= self.collect_from(inbox, place);
        }
        let forgotten: u64 = self.adapters().map(|a| a.device.forgotten()).sum();
        if forgotten != inbox.forgotten {
            inbox.forgotten = forgotten;
            for pair in &self.pairs {
                if let State::Joined(queue) = &mut *pair.state() {
                    queue.forget_windows();
                    if queue.waits() {
                        self.set_waiting(pair, true);
                    }
                }
            }
        }
        moved
    }

    fn collect_from(&self, inbox: &mut Inbox, place: usize) -> bool {
        let Ok(adapter) = self.adapters[place].clone() else { return false };
        let mut moved = false;
        for _ in 0..POLLS {
            let count = match adapter.completions.poll(&mut inbox.completions[..]) {
                Ok(0) => return moved,
                Ok(count) => count,
                Err(e) => {
                    let name = adapter.device.context().name();
                    let why =
                        format!("this rank's completion queue on RDMA device {name} cannot be read: {e}");
                    self.fail_all(inbox, place, &why);
                    return true;
                }
            };
            moved = true;
            for i in 0..count {
                let completion = inbox.completions[i];
                self.completed(inbox, place, &adapter, &completion);
            }
            if inbox.taken[place].len() >= adapter.reposted {
                let posted = adapter.post(inbox.taken[place].drain(..));
                if let Err(e) = posted {
                    let name = adapter.device.context().name();
                    let why = format!("this rank's receive queue on RDMA device {name} takes no more: {e}");
                    self.fail_all(inbox, place, &why);
                }
            }
            if count < POLL {
                break;
            }
        }
        moved
    }

    fn completed(&self, inbox: &mut Inbox, place: usize, adapter: &Adapter, completion: &ibv_wc) {
        let received = completion.wr_id & RECEIVED != 0;
        let buffer = (completion.wr_id & !RECEIVED) as u32;
        let route = inbox.routes.get(&(place, completion.qp_num)).cloned();
        if received {
            inbox.taken[place].push(buffer);
        }
        // Of a queue pair that is no more.
        let Some(pair) = route else { return };
        let mut state = pair.state();
        let (State::Joined(queue) | State::Joining(queue)) = &mut *state else { return };
        let done = match completion.status {
            IBV_WC_SUCCESS if received => {
                // SAFETY: complete, and given back after this.
                queue.receive(unsafe { adapter.message(buffer, completion.byte_len) })
            }
            IBV_WC_SUCCESS => {
                queue.complete(completion.wr_id);
                pair.flushed.fetch_max(queue.flushed(), Ordering::AcqRel);
                Ok(())
            }
            status => Err(Fault::Broken(cause(status, adapter.is_down(pair.rail.port), &pair.rail.name))),
        };
        if queue.waits() {
            self.set_waiting(&pair, true);
        }
        drop(state);
        if let Err(fault) = done {
            self.fail(inbox, &pair, fault);
        }
    }

    /// Takes what happened to the devices.
    #[cold]
    fn hear(&self, inbox: &mut Inbox) {
        for (place, adapter) in self.adapters.iter().enumerate() {
            let Ok(adapter) = adapter else { continue };
            if adapter.completions.take_events() {
                inbox.armed = false;
            }
            let device = adapter.device.context();
            while let Some(event) = device.event() {
                match event {
                    Event::Port { port, up } => {
                        adapter.set_down(port, !up);
                        let (name, now) = (device.name(), if up { "up again" } else { "down" });
                        tracing::warn!("rank {}: port {name}:{port} is {now}", self.me);
                    }
                    Event::Fatal => {
                        let name = device.name();
                        let why = format!(
                            "RDMA device {name} of this rank has failed, as it says itself; the kernel's log may say why, \
                             ND_IB_HCA=^{name} does without it"
                        );
                        self.fail_all(inbox, place, &why);
                    }
                    Event::Pair(number) => match inbox.routes.get(&(place, number)).cloned() {
                        Some(pair) => self.given_up(inbox, &pair),
                        None => inbox.strays.push((place, number)),
                    },
                    Event::Other => {}
                }
            }
        }
    }

    /// The device has ended a queue pair.
    fn given_up(&self, inbox: &mut Inbox, pair: &Pair) {
        let why = format!(
            "the device gave up their queue pair on {}, as it does when the peer writes to memory that was taken back; the \
             peer's error may say more",
            pair.rail.name
        );
        self.fail(inbox, pair, Fault::Broken(why));
    }

    fn fail_all(&self, inbox: &mut Inbox, place: usize, why: &str) {
        let all: Vec<_> =
            inbox.routes.iter().filter(|(at, _)| at.0 == place).map(|(_, p)| p.clone()).collect();
        for pair in all {
            self.fail(inbox, &pair, Fault::Broken(why.into()));
        }
    }

    /// The queue pair is of no use any more.
    #[cold]
    fn fail(&self, inbox: &mut Inbox, pair: &Pair, fault: Fault) {
        let (cause, error) = match fault {
            Fault::Broken(cause) => (cause.clone(), pair.lost(&cause)),
            Fault::Protocol(what) => {
                (format!("it broke the protocol: {what}"), Error::Protocol { rank: pair.peer, what })
            }
            Fault::Outside(what) => {
                (format!("this rank broke the protocol: {what}"), Error::Protocol { rank: self.me, what })
            }
            Fault::Here(error) => (error.to_string(), error),
        };
        match self.end(inbox, pair, &cause) {
            Was::Joined if !self.has_given_up() => inbox.errors.push(error),
            Was::Joining => *pair.early() = Some(error),
            _ => {}
        }
    }

    /// Ends a pair's queue, if it has one; how far the two had come.
    fn end(&self, inbox: &mut Inbox, pair: &Pair, cause: &str) -> Was {
        let mut state = pair.state();
        let was = match *state {
            State::Joined(_) => Was::Joined,
            State::Joining(_) => Was::Joining,
            _ => Was::Apart,
        };
        if let State::Joined(queue) | State::Joining(queue) = &*state {
            inbox.routes.remove(&(pair.rail.adapter, queue.pair().number()));
            // The queue pair ends here, and with it all use of memory that was lent.
            *state = match was {
                Was::Joining => State::Closed(cause.into()),
                _ => State::Over(cause.into()),
            };
        }
        drop(state);
        self.set_waiting(pair, false);
        pair.flushed.store(u64::MAX, Ordering::Release);
        was
    }

    /// The peer has left, or is lost, as was seen otherwise; an error if something was still to be sent to it that left in
    /// order.
    pub fn part(&self, pair: &Pair, orderly: bool, cause: &str) -> Option<Error> {
        let mut inbox = self.inbox();
        let owes = matches!(&*pair.state(), State::Joined(queue) if queue.owes());
        self.end(&mut inbox, pair, cause);
        (orderly && owes).then(|| pair.lost(cause))
    }

    /// All memory that was put, or granted, is the caller's again: no queue pair is left.
    pub fn let_go(&self) {
        let mut inbox = self.inbox();
        for pair in &self.pairs {
            self.end(&mut inbox, pair, "this rank gave up");
        }
    }

    /// Asks to be woken by the next completion, unless something is there already, which is then taken; whether it may
    /// be slept now.
    pub fn arm(&self) -> Result<bool> {
        let mut inbox = self.inbox();
        if !inbox.armed {
            for adapter in self.adapters() {
                adapter.completions.arm().map_err(|e| {
                    let name = adapter.device.context().name();
                    Error::system(format!("asking RDMA device {name} for completion events"), e)
                })?;
            }
            inbox.armed = true;
        }
        Ok(!self.collect(&mut inbox) && inbox.errors.is_empty())
    }

    /// Whether `peer`'s payload goes by verbs at present.
    pub fn is_joined(&self, peer: usize) -> bool {
        self.by_rank.get(&peer).is_some_and(|pair| matches!(*pair.state(), State::Joined(_)))
    }
}

/// Bytes of an MTU by its code (InfiniBand Architecture Specification, volume 1, PortInfo:NeighborMTU).
fn bytes_of_mtu(code: u8) -> u32 {
    128 << code.clamp(1, 5)
}

/// An address as people write it: the IPv4 address where it stands for one.
pub fn address(gid: &[u8; 16]) -> String {
    let ip = std::net::Ipv6Addr::from(*gid);
    ip.to_ipv4_mapped().map_or_else(|| ip.to_string(), |v4| v4.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_addresses_are_shown_as_people_know_them() {
        assert_eq!([1, 2, 3, 4, 5].map(bytes_of_mtu), [256, 512, 1024, 2048, 4096]);
        let v4 = std::net::Ipv4Addr::new(10, 77, 0, 1).to_ipv6_mapped().octets();
        assert_eq!(address(&v4), "10.77.0.1");
        let mut link = [0; 16];
        (link[0], link[1], link[15]) = (0xfe, 0x80, 1);
        assert_eq!(address(&link), "fe80::1");
    }
}
