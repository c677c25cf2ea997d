//! The way to one peer.
#![allow(unsafe_code)] // `Link::put` and `Link::read` are unsafe to call

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::fabric::{Fabric, Pair, State};
use crate::tcp::TcpLink;
use crate::{Abilities, Cost, Error, Link, Part, Result, Signal, Ticket, Transport};

/// In a ticket: of a put that went by TCP.
const BY_TCP: u64 = 1 << 63;

/// The way to one peer by verbs. The connection by TCP beside it brings the two queue pairs together, says when the peer
/// is gone, and carries what is to be said once something has failed.
#[derive(Debug)]
pub struct VerbsLink {
    pub(super) fabric: Arc<Fabric>,
    pub(super) pair: Arc<Pair>,
    pub(super) tcp: Arc<TcpLink>,
    pub(super) cost: Cost,
}

/// What a put does.
enum Way {
    Sent(u64),
    Tcp,
    Unmet,
}

impl VerbsLink {
    fn lost(&self, cause: &str) -> Error {
        Error::PeerLost { rank: self.pair.peer, host: self.pair.host.clone(), cause: cause.into() }
    }

    /// It left in order.
    fn excused(&self) -> bool {
        self.tcp.gone().is_some_and(|gone| gone.orderly)
    }

    /// # Safety
    /// As for [`Link::put`].
    unsafe fn post(&self, parts: &[Part], at: u64, signal: Option<Signal>) -> Result<Way> {
        // To a window: TCP knows nothing of memory that a queue pair was granted, to which only calls put, and none begins
        // or goes on after the failure of one.
        if self.fabric.has_given_up() {
            return Ok(Way::Tcp);
        }
        let mut state = self.pair.state();
        match &mut *state {
            State::Joined(queue) => {
                // SAFETY: the caller's promise.
                let ticket = unsafe { queue.put(parts, at, signal)? };
                self.fabric.set_waiting(&self.pair, true);
                Ok(Way::Sent(ticket))
            }
            State::Plain => Ok(Way::Tcp),
            State::Over(cause) => Err(self.lost(cause)),
            State::Apart | State::Joining(_) | State::Closed(_) => Ok(Way::Unmet),
        }
    }

    /// Only the device can read or write memory of other devices.
    fn check_for_tcp(&self, parts: &[Part]) -> Result<()> {
        match parts.iter().find(|part| self.fabric.is_exported(part.ptr as u64, part.len as u64)) {
            None => Ok(()),
            Some(part) => Err(Error::DmaBuf {
                what: format!("{} bytes at {:p} for rank {}", part.len, part.ptr, self.pair.peer),
                why: "the link goes by TCP now, which reads no memory of other devices".into(),
                remedy: "copy through host memory (the link has no Abilities::DMA_BUF)".into(),
            }),
        }
    }

    /// Has the two meet, if they have not.
    #[cold]
    fn meet(&self) -> Result<()> {
        self.tcp.meet()?;
        match &*self.pair.state() {
            State::Apart | State::Joining(_) | State::Closed(_) => {
                Err(self.lost("it connected without agreeing on queue pairs"))
            }
            _ => Ok(()),
        }
    }
}

impl Link for VerbsLink {
    fn peer(&self) -> usize {
        self.pair.peer
    }

    fn transport(&self) -> Transport {
        match &*self.pair.state() {
            State::Plain => Transport::Tcp,
            _ => Transport::Verbs,
        }
    }

    fn abilities(&self) -> Abilities {
        match &*self.pair.state() {
            State::Plain => Abilities::LAND,
            _ => Abilities::LAND | Abilities::DMA_BUF,
        }
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    unsafe fn put(&self, parts: &[Part], at: u64, signal: Option<Signal>) -> Result<Ticket> {
        // SAFETY: the caller's promise.
        let mut way = unsafe { self.post(parts, at, signal)? };
        if let Way::Unmet = way {
            self.meet()?;
            // SAFETY: the caller's promise; nothing was posted before.
            way = unsafe { self.post(parts, at, signal)? };
        }
        match way {
            Way::Sent(ticket) => Ok(Ticket(ticket)),
            Way::Tcp => {
                self.check_for_tcp(parts)?;
                // SAFETY: the caller's promise.
                unsafe { self.tcp.put(parts, at, signal) }.map(|t| Ticket(t.0 | BY_TCP))
            }
            Way::Unmet => Err(self.lost("the two lost each other while they met")),
        }
    }

    fn ready(&self) -> bool {
        let unmet = matches!(&*self.pair.state(), State::Apart | State::Joining(_) | State::Closed(_));
        !unmet || self.fabric.has_given_up() || self.tcp.met()
    }

    fn connected(&self) -> bool {
        self.tcp.connected()
    }

    /// Whoever waits for a peer asks this now and then: that its device still answers is seen meanwhile.
    fn reach(&self, within: Duration) -> Result<bool> {
        let reached = self.tcp.reach(within)?;
        if let State::Joined(queue) = &mut *self.pair.state() {
            queue.beat();
            if queue.waits() {
                self.fabric.set_waiting(&self.pair, true);
            }
        }
        Ok(reached)
    }

    fn leave_word(&self, bytes: &[u8], at: u64, signal: Signal) {
        self.tcp.leave_word(bytes, at, signal);
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
        match ticket.0 & BY_TCP {
            0 => self.pair.is_flushed(ticket.0),
            _ => self.tcp.flushed(Ticket(ticket.0 & !BY_TCP)),
        }
    }

    fn map(&self, _at: u64, _len: u64) -> Option<NonNull<u8>> {
        None
    }

    unsafe fn read(&self, _from: u64, _to: *mut u8, _len: usize) -> Result<()> {
        let why = "a peer's memory is not read by verbs (Abilities::READ is not set)".into();
        Err(Error::Unreachable { from: self.fabric.me(), to: self.pair.peer, why })
    }

    unsafe fn land(&self, to: *mut u8, len: u64) -> Option<u64> {
        let unmet = matches!(&*self.pair.state(), State::Apart | State::Joining(_) | State::Closed(_));
        if unmet && !self.fabric.has_given_up() {
            // Whoever grants something tells the peer so next.
            self.meet().ok()?;
        }
        let mut state = self.pair.state();
        let State::Joined(queue) = &mut *state else {
            // Each way knows the offsets that it gave itself: none is given by TCP where verbs may have given some.
            let plain = matches!(*state, State::Plain) && !self.fabric.is_exported(to as u64, len);
            drop(state);
            // SAFETY: the caller's promise.
            return if plain { unsafe { self.tcp.land(to, len) } } else { None };
        };
        // SAFETY: the caller's promise.
        match unsafe { queue.land(to, len) } {
            Ok(at) => {
                self.fabric.set_waiting(&self.pair, true);
                Some(at)
            }
            Err(e) => {
                // It comes through the inbox instead.
                tracing::debug!("rank {}: {e}", self.fabric.me());
                None
            }
        }
    }

    fn withdraw(&self, at: u64) {
        match &mut *self.pair.state() {
            State::Joined(queue) => {
                queue.withdraw(at);
                if queue.waits() {
                    self.fabric.set_waiting(&self.pair, true);
                }
            }
            State::Plain => self.tcp.withdraw(at),
            // It ended with the queue pair.
            _ => {}
        }
    }

    /// What arrives wakes by itself.
    fn wake(&self) {}

    fn describe(&self) -> String {
        if let State::Plain = &*self.pair.state() {
            return self.tcp.describe();
        }
        match self.pair.path() {
            Some(path) => path.clone(),
            None => format!("verbs {} (not connected yet)", self.pair.rails_in_words()),
        }
    }
}
