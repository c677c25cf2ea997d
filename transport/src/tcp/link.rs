//! The way to one peer.
#![allow(unsafe_code)] // `Link::put` and `Link::read` are unsafe to call

mod dialling;

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::address::Candidate;
use super::calls::Callers;
use super::dialler::Dialler;
use super::landing::Landings;
use super::meeting::{Arrivals, Meeting};
use super::outgoing::{Gone, Outgoing};
use super::pacing::Preferred;
use super::rider::Rider;
use super::sign::Sign;
use super::wire::{HEAD, Put};
use super::{REPEATS, raw};
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
    /// Nothing is put any more.
    pub closed: AtomicBool,
    /// No connection is opened any more.
    pub stopped: AtomicBool,
    pub given_up: AtomicBool,
    /// Opens connections, and for how many links that goes on.
    pub dialler: Dialler,
    pub dialling: AtomicUsize,
    /// Ends what waits for a connection.
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
    /// Itself, for whoever opens its connection.
    own: Weak<TcpLink>,
    pub(super) common: Arc<Common>,
    pub(super) peer: usize,
    /// The peer's place among those reached by TCP.
    pub(super) slot: usize,
    pub(super) host: String,
    pub(super) candidates: Vec<Candidate>,
    pub(super) cost: Cost,
    pub(super) meeting: Meeting,
    out: Mutex<Outgoing>,
    /// The caller's memory that the peer may put into.
    landings: Mutex<Landings>,
    /// Bytes ever put, and of these the ones that the kernel took. A ticket is a position in this stream.
    put: AtomicU64,
    sent: AtomicU64,
    /// The position after the last put that had data.
    data: AtomicU64,
    /// Something waits to be sent.
    waiting: AtomicBool,
    /// The kernel would take no more, and the poll did not say otherwise since; or there is no connection yet.
    blocked: AtomicBool,
    /// Somebody opens a connection, or is about to.
    dialling: AtomicBool,
    /// Why there will be none, until it is reported.
    refusal: Mutex<Option<Error>>,
    /// Nothing more comes from the peer, and nothing goes there.
    gone: OnceLock<Gone>,
    /// Between which addresses, once connected.
    path: OnceLock<String>,
    /// How far the two are that have no connection yet.
    sign: Mutex<Sign>,
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
    ) -> Arc<TcpLink> {
        Arc::new_cyclic(|own| TcpLink {
            own: own.clone(),
            meeting: Meeting::new(common.me, peer),
            common,
            peer,
            slot,
            host,
            candidates,
            cost,
            out: Mutex::default(),
            landings: Mutex::default(),
            put: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            data: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
            // Until there is a connection.
            blocked: AtomicBool::new(true),
            dialling: AtomicBool::new(false),
            refusal: Mutex::default(),
            gone: OnceLock::new(),
            path: OnceLock::new(),
            sign: Mutex::default(),
            words: Mutex::default(),
        })
    }

    pub(super) fn out(&self) -> MutexGuard<'_, Outgoing> {
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
        let out = &mut *guard;
        if !self.joined(out) {
            return false;
        }
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
    /// holds next for the message. Before there is one, what waits is thrown away.
    pub(super) fn let_go(&self) {
        let mut out = self.out();
        if !out.pending.lends() {
            return;
        }
        if out.is_joined() {
            out.fail(&std::io::Error::other("this rank gave up in the middle of a message"));
            self.forget();
        } else {
            // Nothing of it was sent.
            *out = Outgoing::default();
            self.sent.store(self.put.load(Ordering::Relaxed), Ordering::Release);
            self.set_waiting(false);
        }
    }

    /// Nothing more comes from the peer, so nothing more goes there. Gives what to report, once: unless the peer
    /// left in order and nothing waited for it.
    pub(super) fn end(&self, mut gone: Gone) -> Option<Error> {
        let Outgoing { broken, reset, owes, .. } = std::mem::take(&mut *self.out());
        let owes = owes || self.owes();
        if let (false, Some(broken)) = (gone.orderly, broken) {
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

    /// Tells the peer why it is not listened to any more, if that can be.
    pub(super) fn refuse(&self, why: &str) {
        let mut out = self.out();
        if self.joined(&mut out) {
            out.say_refusal(why);
        }
    }

    pub(super) fn set_sign(&self, sign: Sign) {
        *self.sign.lock().unwrap_or_else(PoisonError::into_inner) = sign;
    }

    /// See [`super::Tcp::cut_off`].
    pub(super) fn cut_off(&self) -> bool {
        if let Some(connection) = self.meeting.connection() {
            return raw::info(connection.stream.as_fd()).repeats >= REPEATS;
        }
        let silent = self.sign.lock().unwrap_or_else(PoisonError::into_inner).is_silent();
        silent || self.gone.get().is_some()
    }

    /// For how long the kernel has taken nothing of what waits.
    pub(super) fn stuck(&self) -> Duration {
        // It may take some by now.
        if self.waiting.load(Ordering::Acquire) {
            self.flush();
        }
        self.out().stuck()
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

    /// Has a connection opened beside whoever asks, unless that goes on already.
    #[cold]
    fn ask(&self) -> Result<()> {
        let Some(link) = self.own.upgrade() else { return Ok(()) };
        if self.dialling.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.common.dialling.fetch_add(1, Ordering::AcqRel);
        self.common.dialler.add(link).map_err(|e| {
            self.rest();
            Error::system(format!("starting a thread to connect to rank {}", self.peer), e)
        })
    }

    /// Nobody opens a connection any more.
    fn rest(&self) {
        self.dialling.store(false, Ordering::Release);
        self.common.dialling.fetch_sub(1, Ordering::AcqRel);
    }

    fn refusal(&self) -> MutexGuard<'_, Option<Error>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why there will be no connection, for whoever asks first.
    pub(super) fn take_refusal(&self) -> Option<Error> {
        self.refusal().take()
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

    /// Something is to be sent: by the connection, or once there is one.
    #[inline]
    fn join(&self, out: &mut Outgoing) -> Result<()> {
        if out.is_joined() { Ok(()) } else { self.join_first(out) }
    }

    #[cold]
    fn join_first(&self, out: &mut Outgoing) -> Result<()> {
        if let Some(gone) = self.gone.get() {
            return Err(self.lost(&gone.cause));
        }
        if self.common.closed.load(Ordering::Acquire) {
            let why = "this rank has closed its endpoint".into();
            return Err(Error::Unreachable { from: self.common.me, to: self.peer, why });
        }
        match self.meeting.connection() {
            Some(connection) => out.join(connection),
            None => {
                out.since.get_or_insert_with(Instant::now);
                self.ask()?;
            }
        }
        Ok(())
    }

    /// Waits for a connection, for as long as a start may take, unless this endpoint is to stop: for those who cannot put
    /// anything before.
    pub(crate) fn meet(&self) -> Result<()> {
        let until = Instant::now() + self.common.timeout;
        self.join(&mut self.out())?;
        let enough = || {
            self.common.dialler.hurry();
            self.gone.get().is_some() || self.common.stop.asked()
        };
        if self.meeting.wait(until, enough) {
            return Ok(());
        }
        if let Some(gone) = self.gone.get() {
            return Err(self.take_refusal().unwrap_or_else(|| self.lost(&gone.cause)));
        }
        let why = "there is no connection yet, and this rank is to wait no longer".into();
        Err(Error::Unreachable { from: self.common.me, to: self.peer, why })
    }

    /// Whether there is a connection, or there will be none: else one is opened, as for a put.
    pub(crate) fn met(&self) -> bool {
        self.connected() || self.join(&mut self.out()).is_err() || self.connected()
    }

    /// Whether data waits, and the two have not met.
    pub(super) fn owes_first(&self) -> bool {
        !self.connected() && self.gone.get().is_none() && self.owes()
    }

    /// Whether there is a connection, by which all goes then.
    pub(super) fn joined(&self, out: &mut Outgoing) -> bool {
        if !out.is_joined()
            && let Some(connection) = self.meeting.connection().filter(|_| self.gone.get().is_none())
        {
            out.join(connection);
        }
        out.is_joined()
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
        let out = &mut *guard;
        self.join(out)?;
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
        let gone = || self.gone.get().is_some();
        if self.connected() {
            return Ok(true);
        }
        if !gone() && !self.common.closed.load(Ordering::Acquire) {
            self.ask()?;
            self.common.dialler.hurry();
            if !within.is_zero() && self.meeting.wait(Instant::now() + within, gone) {
                return Ok(true);
            }
        }
        match self.gone.get() {
            None => Ok(false),
            Some(gone) if gone.orderly => Ok(true),
            Some(gone) => Err(self.take_refusal().unwrap_or_else(|| self.lost(&gone.cause))),
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
