//! The way to one peer.
#![allow(unsafe_code)] // `Link::put` and `Link::read` are unsafe to call

use std::net::{SocketAddr, TcpStream};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::accept::canonical;
use super::address::Candidate;
use super::calls::Callers;
use super::connect::{Connected, Target, connect};
use super::connection::Connection;
use super::landing::Landings;
use super::meeting::{Arrival, Arrivals, Dialled, Meeting, Turn};
use super::outgoing::{Gone, Outgoing};
use super::pacing::Preferred;
use super::rider::Rider;
use super::wire::{HEAD, Put};
use crate::secure::Secret;
use crate::{Abilities, Cost, Error, INLINE_PART, Link, Part, Result, Signal, Stop, Ticket, Transport};

/// What the links of one endpoint share.
#[derive(Debug)]
pub struct Common {
    pub me: usize,
    pub secret: Secret,
    pub buffer: Option<usize>,
    pub preferred: Preferred,
    pub timeout: Duration,
    /// Encrypted records after which a connection changes its key; none: nothing is encrypted.
    pub records_per_key: Option<u64>,
    pub arrivals: Arrivals,
    /// Peers that came to talk.
    pub callers: Callers,
    /// How many links have something waiting.
    pub waiting: AtomicUsize,
    pub closed: AtomicBool,
    pub given_up: AtomicBool,
    /// Ends long attempts to connect.
    pub stop: Stop,
    /// Another way for the payload.
    pub rider: Option<Arc<dyn Rider>>,
    /// How many links have ended.
    pub ends: AtomicUsize,
}

impl Common {
    /// What descriptions of connections say.
    fn sealed(&self) -> &'static str {
        if self.records_per_key.is_some() { " encrypted" } else { "" }
    }
}

/// The way to one peer by TCP.
#[derive(Debug)]
pub struct TcpLink {
    pub(super) common: Arc<Common>,
    pub(super) peer: usize,
    /// The peer's place among those reached by TCP.
    pub(super) slot: usize,
    pub(super) host: String,
    pub(super) candidates: Vec<Candidate>,
    pub(super) cost: Cost,
    pub(super) meeting: Meeting,
    out: Mutex<Option<Outgoing>>,
    /// The caller's memory that the peer may put into.
    landings: Mutex<Landings>,
    /// Bytes ever put, and of these the ones that the kernel took. A ticket is a position in this stream.
    put: AtomicU64,
    sent: AtomicU64,
    /// The position after the last put that had data.
    data: AtomicU64,
    /// Something waits to be sent.
    waiting: AtomicBool,
    /// The kernel would take no more, and the poll did not say otherwise since.
    blocked: AtomicBool,
    /// Nothing more comes from the peer, and nothing goes there.
    gone: OnceLock<Gone>,
    /// Between which addresses, once connected.
    path: OnceLock<String>,
    /// What the peer gets to know when it connects: what, where, and the signal after it.
    words: Mutex<Vec<(Vec<u8>, u64, Signal)>>,
}

impl TcpLink {
    pub(super) fn new(
        common: Arc<Common>,
        slot: usize,
        (peer, host): (usize, String),
        candidates: Vec<Candidate>,
        cost: Cost,
    ) -> TcpLink {
        TcpLink {
            meeting: Meeting::new(common.me, peer),
            common,
            peer,
            slot,
            host,
            candidates,
            cost,
            out: Mutex::new(None),
            landings: Mutex::default(),
            put: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            data: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            gone: OnceLock::new(),
            path: OnceLock::new(),
            words: Mutex::default(),
        }
    }

    pub(super) fn out(&self) -> MutexGuard<'_, Option<Outgoing>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn landings(&self) -> MutexGuard<'_, Landings> {
        self.landings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the peer has left, if it has.
    pub(crate) fn gone(&self) -> Option<&Gone> {
        self.gone.get()
    }

    /// Whether something waits that the kernel might take.
    pub(super) fn may_flush(&self) -> bool {
        self.waiting.load(Ordering::Acquire) && !self.blocked.load(Ordering::Acquire)
    }

    /// The poll says that the kernel takes bytes again.
    pub(super) fn unblock(&self) {
        self.blocked.store(false, Ordering::Release);
    }

    pub(super) fn lost(&self, cause: &str) -> Error {
        Error::PeerLost { rank: self.peer, host: self.host.clone(), cause: cause.into() }
    }

    /// Sends what waits; whether anything moved.
    pub(super) fn flush(&self) -> bool {
        let mut guard = self.out();
        let Some(out) = guard.as_mut() else { return false };
        match out.flush() {
            Ok((sent, blocked)) => {
                self.sent.fetch_add(sent as u64, Ordering::AcqRel);
                self.blocked.store(blocked, Ordering::Release);
                self.set_waiting(out.waits());
                sent > 0
            }
            Err(e) => {
                out.owes |= self.owes();
                out.fail(&e);
                self.forget();
                true
            }
        }
    }

    /// Ends the connection if memory of a caller, who gets it back now, would still be sent: the peer must not take what it
    /// holds next for the message.
    pub(super) fn let_go(&self) {
        if let Some(out) = self.out().as_mut().filter(|out| out.pending.lends()) {
            out.fail(&std::io::Error::other("this rank gave up in the middle of a message"));
            self.forget();
        }
    }

    /// Nothing more comes from the peer, so nothing more goes there. Gives what to report, once: unless the peer
    /// left in order and nothing waited for it.
    pub(super) fn end(&self, mut gone: Gone) -> Option<Error> {
        let out = self.out().take();
        let owes = self.owes() || out.as_ref().is_some_and(|out| out.owes);
        if let (false, Some((broken, reset))) =
            (gone.orderly, out.and_then(|out| Some((out.broken?, out.reset))))
        {
            gone.cause = format!("{}; {broken}", gone.cause);
            // What was read then is the end that this side made of it.
            gone.ended &= reset;
        }
        let error = (owes || !gone.orderly).then(|| self.lost(&gone.cause));
        let first = self.gone.set(gone).is_ok();
        self.common.ends.fetch_add(1, Ordering::AcqRel);
        self.meeting.end();
        self.forget();
        error.filter(|_| first)
    }

    /// Whether data waits that the kernel did not take.
    fn owes(&self) -> bool {
        self.sent.load(Ordering::Acquire) < self.data.load(Ordering::Acquire)
    }

    /// It left in order.
    fn excused(&self) -> bool {
        self.gone.get().is_some_and(|gone| gone.orderly)
    }

    pub(super) fn forget(&self) {
        self.sent.store(u64::MAX, Ordering::Release);
        self.set_waiting(false);
    }

    fn set_waiting(&self, now: bool) {
        if self.waiting.swap(now, Ordering::AcqRel) != now {
            if now {
                self.common.waiting.fetch_add(1, Ordering::AcqRel);
            } else {
                self.common.waiting.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// A connection: the peer's, if it has come or is about to, or one that this rank opens.
    #[cold]
    fn meet(&self, within: Duration) -> Result<Arc<Connection>> {
        let common = &self.common;
        let until = Instant::now() + within;
        // Whoever gives up still tells others so, in a short time.
        let stop = (within >= common.timeout).then(|| common.stop.flag());
        let unreachable = |why| Error::Unreachable { from: common.me, to: self.peer, why };
        loop {
            match self.meeting.approach(until, stop) {
                Turn::Use(connection) => return Ok(connection),
                Turn::Dial => {}
                Turn::Leave => {
                    if let Some(gone) = self.gone.get() {
                        return Err(self.lost(&gone.cause));
                    }
                    let why = format!("it was about to connect, and did not within {within:?}");
                    return Err(unreachable(why));
                }
            }
            let target =
                Target { from: common.me, to: self.peer, host: &self.host, candidates: &self.candidates };
            match connect(target, common, until, stop) {
                Ok(Connected::Connection(connection, at)) => {
                    self.set_path(&connection.stream, at);
                    common.arrivals.push(Ok(Arrival { slot: self.slot, connection: connection.clone() }));
                    self.meeting.dialled(Dialled::Connection(connection));
                }
                Ok(Connected::Crossed) => self.meeting.dialled(Dialled::Crossed),
                Err(e) => {
                    self.meeting.dialled(Dialled::Failed);
                    // The peer may have reached this rank meanwhile.
                    if !self.meeting.answering() {
                        return Err(e);
                    }
                }
            }
        }
    }

    fn set_path(&self, stream: &TcpStream, at: usize) {
        let candidate = &self.candidates[at];
        let ours = stream.local_addr().map_or_else(|_| "?".into(), |a| a.to_string());
        let via = candidate.via.as_ref().map_or_else(String::new, |v| format!(" ({v})"));
        let sealed = self.common.sealed();
        let _ = self.path.set(format!("tcp{sealed} {ours}{via} -> {}: {}", candidate.to, candidate.reason));
    }

    /// What the peer's connection, which has just been confirmed, is.
    pub(super) fn answered(&self, connection: Arc<Connection>) {
        let address =
            |a: std::io::Result<SocketAddr>| a.map_or_else(|_| "?".into(), |a| canonical(a).to_string());
        let stream = &connection.stream;
        let (ours, theirs) = (address(stream.local_addr()), address(stream.peer_addr()));
        let _ = self.path.set(format!("tcp{} {ours} <- {theirs}: the peer connected", self.common.sealed()));
        self.common.arrivals.push(Ok(Arrival { slot: self.slot, connection: connection.clone() }));
        self.meeting.answered(Some(connection));
        self.say_words();
    }

    /// Sends what was left for the peer, if there is a connection; by whichever thread sees both first.
    fn say_words(&self) {
        if !self.connected() {
            return;
        }
        let words = std::mem::take(&mut *self.words.lock().unwrap_or_else(PoisonError::into_inner));
        for (bytes, at, signal) in &words {
            let parts: Vec<Part> = bytes.chunks(INLINE_PART).map(Part::of).collect();
            // SAFETY: the parts are short enough to be copied.
            let _ = unsafe { self.put(&parts, *at, Some(*signal)) };
        }
        if !words.is_empty() {
            self.flush();
        }
    }

    /// The connection, opened if this is the first use.
    #[inline]
    fn opened<'a>(&self, guard: &'a mut Option<Outgoing>) -> Result<&'a mut Outgoing> {
        self.open(guard, self.common.timeout)
    }

    /// The same; a peer that does not answer within less than the time to connect is not given up.
    fn open<'a>(&self, guard: &'a mut Option<Outgoing>, within: Duration) -> Result<&'a mut Outgoing> {
        if guard.is_none() {
            if let Some(gone) = self.gone.get() {
                return Err(self.lost(&gone.cause));
            }
            if self.common.closed.load(Ordering::Acquire) {
                let why = "this rank has closed its endpoint".into();
                return Err(Error::Unreachable { from: self.common.me, to: self.peer, why });
            }
            let until = Instant::now() + within;
            let connection = self.meet(within).inspect_err(|e| {
                let whole = within >= self.common.timeout;
                let ended_here = whole && self.common.stop.asked();
                if !ended_here && (whole || Instant::now() < until) {
                    let _ = self.gone.set(Gone::lost(e.to_string()));
                }
            })?;
            *guard = Some(Outgoing::new(connection));
        }
        Ok(guard.as_mut().expect("opened above"))
    }

    /// Connects, if that is still to be done, within the time that a start may take.
    pub(crate) fn ready(&self) -> Result<()> {
        self.opened(&mut self.out()).map(|_| ())
    }

    /// What the endpoint sends its goodbye on, if there is a connection.
    pub(super) fn joined<'a>(&self, guard: &'a mut Option<Outgoing>) -> Option<&'a mut Outgoing> {
        if guard.is_none() {
            *guard = self.meeting.connection().map(Outgoing::new);
        }
        guard.as_mut()
    }
}

impl Link for TcpLink {
    fn peer(&self) -> usize {
        self.peer
    }

    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn abilities(&self) -> Abilities {
        Abilities::LAND
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    unsafe fn put(&self, parts: &[Part], at: u64, signal: Option<Signal>) -> Result<Ticket> {
        let len: usize = parts.iter().map(|p| p.len).sum();
        let head = Put { len: len as u64, at, signal }.encode();
        let mut guard = self.out();
        let out = self.opened(&mut guard)?;
        let end = self.put.load(Ordering::Relaxed) + (HEAD + len) as u64;
        self.put.store(end, Ordering::Relaxed);
        if len > 0 {
            self.data.store(end, Ordering::Release);
        }
        if out.broken.is_some() {
            out.owes |= len > 0;
            return Ok(Ticket(end));
        }
        // SAFETY: the caller's promise is the one that is asked for; a failure and the endpoint's end clear what waits.
        unsafe { out.pending.push(&head, parts) };
        self.set_waiting(true);
        Ok(Ticket(end))
    }

    fn connected(&self) -> bool {
        self.meeting.connection().is_some()
    }

    fn reach(&self, within: Duration) -> Result<bool> {
        let reached = self.open(&mut self.out(), within).map(|_| true);
        match reached {
            Err(_) if self.excused() => Ok(true),
            Err(_) if self.gone.get().is_none() => Ok(false),
            reached => reached,
        }
    }

    fn leave_word(&self, bytes: &[u8], at: u64, signal: Signal) {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        words.push((bytes.to_vec(), at, signal));
        drop(words);
        // The peer may have come meanwhile.
        self.say_words();
    }

    /// A signal to a peer that left in order is nobody's loss: whoever still needs that peer notices by waiting.
    fn signal(&self, signal: Signal) -> Result<()> {
        // SAFETY: no memory is lent.
        match unsafe { self.put(&[], 0, Some(signal)) } {
            Err(Error::PeerLost { .. } | Error::Unreachable { .. }) if self.excused() => Ok(()),
            done => done.map(|_| ()),
        }
    }

    fn flushed(&self, ticket: Ticket) -> bool {
        self.sent.load(Ordering::Acquire) >= ticket.0
    }

    fn map(&self, _at: u64, _len: u64) -> Option<NonNull<u8>> {
        None
    }

    unsafe fn read(&self, _from: u64, _to: *mut u8, _len: usize) -> Result<()> {
        let why = "TCP cannot read a peer's memory (Abilities::READ is not set)".into();
        Err(Error::Unreachable { from: self.common.me, to: self.peer, why })
    }

    unsafe fn land(&self, to: *mut u8, len: u64) -> Option<u64> {
        self.landings().open(NonNull::new(to)?, len)
    }

    fn withdraw(&self, at: u64) {
        self.landings().withdraw(at);
    }

    /// What arrives wakes by itself.
    fn wake(&self) {}

    fn describe(&self) -> String {
        match (self.path.get(), self.candidates.first()) {
            (Some(path), _) => path.clone(),
            (None, Some(first)) => {
                let via = first.via.as_ref().map_or_else(String::new, |v| format!(" {v}"));
                format!("tcp{via} -> {}: {} (first choice, not connected yet)", first.to, first.reason)
            }
            (None, None) => format!("tcp, but rank {} has no address that this host could reach", self.peer),
        }
    }
}
