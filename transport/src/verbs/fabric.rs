//! All queue pairs of an endpoint: what the devices have done, and how pairs of ranks come to be joined.
#![allow(unsafe_code)] // reads receive buffers

mod joining;
mod rail;
mod status;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use libibverbs_sys::bindings::*;

use super::adapter::{Adapter, RECEIVED};
use super::queue::{At, Fault, Queue};
use super::sys::{Care, Event};
use crate::{Error, Region, Result};
pub use rail::Rail;
use rail::summary;
use status::cause;

/// Completions taken off at once.
const POLL: usize = 32;
/// How often that is done before others have their turn, though a peer never stops sending.
const POLLS: usize = 16;

/// So many looks at the completions for one at what the devices tell of themselves: nothing else shows it to a rank that is
/// never idle.
const LOOKS: u32 = 4096;

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
    /// By which ports; at least one.
    pub rails: Vec<Rail>,
    state: Mutex<State>,
    /// Puts that lent memory and are flushed.
    flushed: AtomicU64,
    /// Something waits to be posted.
    waiting: AtomicBool,
    path: OnceLock<String>,
    /// How often that was attempted.
    attempts: AtomicU64,
}

impl Pair {
    /// With a peer that was not met yet.
    pub fn new(peer: usize, host: String, rails: Vec<Rail>) -> Pair {
        Pair {
            peer,
            host,
            rails,
            state: Mutex::new(State::Apart),
            flushed: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
            path: OnceLock::new(),
            attempts: AtomicU64::new(0),
        }
    }

    /// How far the two have come.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Between which ports, once joined.
    pub fn path(&self) -> Option<&String> {
        self.path.get()
    }

    /// Between which ports they are to be joined.
    pub fn rails_in_words(&self) -> String {
        summary(&self.rails.iter().collect::<Vec<_>>())
    }

    /// Whether the memory of a put may be reused.
    pub fn is_flushed(&self, ticket: u64) -> bool {
        self.flushed.load(Ordering::Acquire) >= ticket
    }

    fn lost(&self, cause: &str) -> Error {
        Error::PeerLost { rank: self.peer, host: self.host.clone(), cause: cause.into() }
    }
}

/// What an endpoint has on its devices, or why not.
pub type Adapters = Vec<Result<Arc<Adapter>, String>>;

/// All queue pairs of an endpoint.
#[derive(Debug)]
pub struct Fabric {
    me: usize,
    /// Verbs or an error.
    strict: bool,
    /// By place; some may not have come about, for a reason.
    adapters: Adapters,
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
}

struct Inbox {
    /// By queue pair.
    routes: HashMap<At, Arc<Pair>>,
    /// Queue pairs that a device has ended and that stand in no route: no more, or not yet.
    strays: Vec<At>,
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
        adapters: Adapters,
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
                    self.fail(&mut self.inbox(), pair, None, fault);
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
        for place in 0..self.adapters.len() {
            moved |= self.collect_from(inbox, place);
        }
        // Last, so that it does not come between a message and who waits for it.
        if !moved && self.stirred.swap(false, Ordering::AcqRel) || inbox.looks.is_multiple_of(LOOKS) {
            self.hear(inbox);
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
            // Whether a port is down explains what did not succeed.
            if inbox.completions[..count].iter().any(|completion| completion.status != IBV_WC_SUCCESS) {
                self.hear(inbox);
            }
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
        let at = (place, completion.qp_num);
        let route = inbox.routes.get(&at).cloned();
        if received {
            inbox.taken[place].push(buffer);
        }
        // Of a queue pair that is no more.
        let Some(pair) = route else { return };
        let mut state = pair.state();
        let (open, queue) = match &mut *state {
            State::Joined(queue) => (true, queue),
            State::Joining(queue) => (false, queue),
            _ => return,
        };
        let done = match completion.status {
            IBV_WC_SUCCESS if received => {
                // SAFETY: complete, and given back after this.
                let message = unsafe { adapter.message(buffer, completion.byte_len) };
                if open { queue.receive(at, message) } else { queue.receive_later(at, message) }
            }
            IBV_WC_SUCCESS => {
                queue.complete(at, completion.wr_id);
                pair.flushed.fetch_max(queue.flushed(), Ordering::AcqRel);
                Ok(())
            }
            status => Err(self.broken(&pair, queue, at, status)),
        };
        if queue.waits() {
            self.set_waiting(&pair, true);
        }
        drop(state);
        if let Err(fault) = done {
            self.fail(inbox, &pair, Some(at), fault);
        }
    }

    /// What a completion that is none means.
    #[cold]
    fn broken(&self, pair: &Pair, queue: &mut Queue, at: At, status: ibv_wc_status) -> Fault {
        let rail = queue.lane(at).and_then(|lane| pair.rails.get(lane.index)).unwrap_or(&pair.rails[0]);
        let down = self.adapters[at.0].as_ref().is_ok_and(|adapter| adapter.is_down(rail.port));
        Fault::Broken(cause(status, down, &rail.name))
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
                        Some(pair) => self.given_up(inbox, &pair, (place, number)),
                        None => inbox.strays.push((place, number)),
                    },
                    Event::Other => {}
                }
            }
        }
    }

    /// The device has ended a queue pair.
    fn given_up(&self, inbox: &mut Inbox, pair: &Pair, at: At) {
        let name = match &mut *pair.state() {
            State::Joined(queue) | State::Joining(queue) => queue.lane(at).map(|lane| lane.name.clone()),
            _ => None,
        };
        let why = format!(
            "the device gave up their queue pair on {}, as it does when the peer writes to memory that was taken back; the \
             peer's error may say more",
            name.unwrap_or_default()
        );
        self.fail(inbox, pair, Some(at), Fault::Broken(why));
    }

    fn fail_all(&self, inbox: &mut Inbox, place: usize, why: &str) {
        let of_place = inbox.routes.iter().filter(|(at, _)| at.0 == place);
        let all: Vec<_> = of_place.map(|(at, pair)| (*at, pair.clone())).collect();
        for (at, pair) in all {
            self.fail(inbox, &pair, Some(at), Fault::Broken(why.into()));
        }
    }

    /// A queue pair is of no use any more, and so are the two ranks' others, unless they are still being tried.
    #[cold]
    fn fail(&self, inbox: &mut Inbox, pair: &Pair, at: Option<At>, fault: Fault) {
        if let (State::Joining(queue), Some(at)) = (&mut *pair.state(), at) {
            inbox.routes.remove(&at);
            if let Some(lane) = queue.lane(at) {
                lane.closed.get_or_insert(fault);
            }
            return;
        }
        let (cause, error) = self.told(pair, fault);
        if self.end(inbox, pair, &cause) && !self.has_given_up() {
            inbox.errors.push(error);
        }
    }

    /// What a fault means for the peer, in words and as an error.
    fn told(&self, pair: &Pair, fault: Fault) -> (String, Error) {
        match fault {
            Fault::Broken(cause) => (cause.clone(), pair.lost(&cause)),
            Fault::Protocol(what) => {
                (format!("it broke the protocol: {what}"), Error::Protocol { rank: pair.peer, what })
            }
            Fault::Outside(what) => {
                (format!("this rank broke the protocol: {what}"), Error::Protocol { rank: self.me, what })
            }
            Fault::Here(error) => (error.to_string(), error),
        }
    }

    /// Ends a pair's queue, if it has one; whether the two were joined.
    fn end(&self, inbox: &mut Inbox, pair: &Pair, cause: &str) -> bool {
        let mut state = pair.state();
        let was_joined = matches!(*state, State::Joined(_));
        if let State::Joined(queue) | State::Joining(queue) = &*state {
            for lane in queue.lanes() {
                inbox.routes.remove(&lane.at);
            }
            // The queue pairs end here, and with them all use of memory that was lent.
            *state = if was_joined { State::Over(cause.into()) } else { State::Closed(cause.into()) };
        }
        drop(state);
        self.set_waiting(pair, false);
        pair.flushed.store(u64::MAX, Ordering::Release);
        was_joined
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
        if self.stirred.swap(false, Ordering::AcqRel) {
            self.hear(&mut inbox);
        }
        if !inbox.armed {
            for adapter in self.adapters() {
                adapter.completions.arm().map_err(|e| {
                    let name = adapter.device.context().name();
                    Error::system(format!("asking RDMA device {name} for completion events"), e)
                })?;
            }
            inbox.armed = true;
        }
        // What was armed may have told meanwhile.
        Ok(!self.collect(&mut inbox) && inbox.armed && inbox.errors.is_empty())
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
