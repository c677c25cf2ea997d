//! The way to one peer.
#![allow(unsafe_code)] // `Link::put` and `Link::read` are unsafe to call

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::address::Candidate;
use super::connect::{Target, connect};
use super::outgoing::{Gone, Outgoing};
use super::wire::{HEAD, Put};
use crate::secure::Secret;
use crate::{Abilities, Cost, Error, Link, Part, Result, Signal, Ticket, Transport};

/// What the links of one endpoint share.
#[derive(Debug)]
pub struct Common {
    pub me: usize,
    pub registry: Registry,
    pub secret: Secret,
    pub buffer: Option<usize>,
    pub timeout: Duration,
    /// How many links have something waiting.
    pub waiting: AtomicUsize,
    /// How many peers are leaving.
    pub leaving: AtomicUsize,
    pub closed: AtomicBool,
}

/// The way to one peer by TCP.
#[derive(Debug)]
pub struct TcpLink {
    pub(super) common: Arc<Common>,
    pub(super) peer: usize,
    pub(super) host: String,
    pub(super) candidates: Vec<Candidate>,
    pub(super) cost: Cost,
    pub(super) token: Token,
    out: Mutex<Option<Outgoing>>,
    /// Bytes ever put, and of these the ones that the kernel took. A ticket is a position in this stream.
    put: AtomicU64,
    sent: AtomicU64,
    /// Something waits to be sent.
    waiting: AtomicBool,
    /// The kernel would take no more, and the poll did not say otherwise since.
    blocked: AtomicBool,
    /// Seen on our own connection; what the peer sent before may still have to be read from its connection.
    leaving: OnceLock<Gone>,
    /// Nothing more comes from the peer.
    gone: OnceLock<Gone>,
    /// Between which addresses, once connected.
    path: OnceLock<String>,
}

impl TcpLink {
    pub(super) fn new(
        common: Arc<Common>,
        (peer, host): (usize, String),
        candidates: Vec<Candidate>,
        cost: Cost,
        token: Token,
    ) -> TcpLink {
        TcpLink {
            common,
            peer,
            host,
            candidates,
            cost,
            token,
            out: Mutex::new(None),
            put: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            leaving: OnceLock::new(),
            gone: OnceLock::new(),
            path: OnceLock::new(),
        }
    }

    pub(super) fn out(&self) -> MutexGuard<'_, Option<Outgoing>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn gone(&self) -> Option<&Gone> {
        self.gone.get()
    }

    pub(super) fn leaving(&self) -> Option<&Gone> {
        self.leaving.get()
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
    pub(super) fn flush(&self) -> Result<bool> {
        let mut guard = self.out();
        let Some(out) = guard.as_mut() else { return Ok(false) };
        match out.flush() {
            Ok((sent, blocked)) => {
                self.sent.fetch_add(sent as u64, Ordering::AcqRel);
                self.blocked.store(blocked, Ordering::Release);
                self.set_waiting(!out.pending.is_empty());
                Ok(sent > 0)
            }
            Err(e) => Err(self.failed(&mut guard, &e)),
        }
    }

    /// Looks whether the peer said goodbye or vanished. An error where something still waited for it.
    pub(super) fn listen(&self) -> Result<()> {
        let mut guard = self.out();
        let Some(gone) = guard.as_mut().and_then(Outgoing::listen) else { return Ok(()) };
        let waited = guard.as_ref().is_some_and(|out| !out.pending.is_empty());
        let error = waited.then(|| self.lost(&gone.cause));
        self.leave(&mut guard, gone);
        error.map_or(Ok(()), Err)
    }

    /// Nothing more comes from the peer, so nothing more goes there. Gives what to report, once: unless the peer
    /// left in order and nothing waited for it.
    pub(super) fn end(&self, gone: Gone) -> Option<Error> {
        let mut guard = self.out();
        let waited = guard.as_ref().is_some_and(|out| !out.pending.is_empty());
        let error = (waited || !gone.orderly).then(|| self.lost(&gone.cause));
        self.leave(&mut guard, gone.clone());
        let first = self.gone.set(gone).is_ok();
        if first {
            self.common.leaving.fetch_sub(1, Ordering::AcqRel);
        }
        error.filter(|_| first)
    }

    /// The peer left in order, or it is still to be decided how.
    fn excused(&self) -> bool {
        self.leaving.get().is_some() && self.gone.get().is_none_or(|gone| gone.orderly)
    }

    /// Writing failed: a goodbye may explain it.
    fn failed(&self, guard: &mut Option<Outgoing>, e: &std::io::Error) -> Error {
        let gone = match guard.as_mut().and_then(Outgoing::listen) {
            Some(gone) if gone.orderly => gone,
            _ => Gone::lost(format!("sending to it failed: {e}")),
        };
        let error = self.lost(&gone.cause);
        self.leave(guard, gone);
        error
    }

    /// Closes our connection. Lent memory is not touched from here on.
    fn leave(&self, guard: &mut Option<Outgoing>, gone: Gone) {
        *guard = None;
        if self.leaving.set(gone).is_ok() {
            self.common.leaving.fetch_add(1, Ordering::AcqRel);
        }
        self.forget();
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

    #[cold]
    fn open(&self) -> Result<Outgoing> {
        let common = &self.common;
        let target =
            Target { from: common.me, to: self.peer, host: &self.host, candidates: &self.candidates };
        let (stream, at) = connect(target, &common.secret, common.buffer, common.timeout)?;
        let candidate = &self.candidates[at];
        let ours = stream.local_addr().map_or_else(|_| "?".into(), |a| a.to_string());
        let via = candidate.via.as_ref().map_or_else(String::new, |v| format!(" ({v})"));
        let _ = self.path.set(format!("tcp {ours}{via} -> {}: {}", candidate.to, candidate.reason));
        let mut stream = TcpStream::from_std(stream);
        common
            .registry
            .register(&mut stream, self.token, Interest::READABLE | Interest::WRITABLE)
            .map_err(|e| Error::system("watching a connection", e))?;
        Ok(Outgoing::new(stream))
    }

    /// The connection, opened if this is the first use.
    #[inline]
    fn opened<'a>(&self, guard: &'a mut Option<Outgoing>) -> Result<&'a mut Outgoing> {
        if guard.is_none() {
            if let Some(gone) = self.gone.get().or(self.leaving.get()) {
                return Err(self.lost(&gone.cause));
            }
            if self.common.closed.load(Ordering::Acquire) {
                let why = "this rank has closed its endpoint".into();
                return Err(Error::Unreachable { from: self.common.me, to: self.peer, why });
            }
            *guard = Some(self.open().inspect_err(|e| self.leave(&mut None, Gone::lost(e.to_string())))?);
        }
        Ok(guard.as_mut().expect("opened above"))
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
        Abilities::empty()
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    unsafe fn put(&self, parts: &[Part], at: u64, signal: Option<Signal>) -> Result<Ticket> {
        let len: usize = parts.iter().map(|p| p.len).sum();
        let head = Put { len: len as u64, at, signal }.encode();
        let mut guard = self.out();
        let out = self.opened(&mut guard)?;
        // SAFETY: the caller's promise is the one that is asked for; `leave` and the endpoint's end clear what waits.
        match unsafe { out.pending.put(out.stream.as_fd(), &head, parts) } {
            Ok(sent) => {
                let end = self.put.load(Ordering::Relaxed) + (HEAD + len) as u64;
                self.put.store(end, Ordering::Relaxed);
                self.sent.fetch_add(sent as u64, Ordering::AcqRel);
                if sent < HEAD + len {
                    self.set_waiting(true);
                }
                Ok(Ticket(end))
            }
            Err(e) => Err(self.failed(&mut guard, &e)),
        }
    }

    fn connected(&self) -> bool {
        self.out().is_some()
    }

    fn reach(&self) -> Result<()> {
        let reached = self.opened(&mut self.out()).map(|_| ());
        if self.excused() { Ok(()) } else { reached }
    }

    /// A signal to a peer that left in order is nobody's loss: whoever still needs that peer notices by waiting. As
    /// its goodbye may still be unread, a peer that cannot be reached is left to [`super::Tcp::progress`] to judge.
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
