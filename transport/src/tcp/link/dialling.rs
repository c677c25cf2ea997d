//! How a link comes to its connection: this rank's attempts, and what it does with one that either side has opened.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::TcpLink;
use crate::tcp::accept::canonical;
use crate::tcp::connect::{Connected, Target, connect};
use crate::tcp::connection::Connection;
use crate::tcp::meeting::{Arrival, Dialled, Turn};
use crate::tcp::outgoing::{Gone, Outgoing};
use crate::tcp::sign::Sign;
use crate::{Error, Link};

/// So long an attempt may go on that is needed no more: cut off in the middle, the peer would tell of it as a stranger's.
const NEEDLESS: Duration = Duration::from_secs(1);

impl TcpLink {
    /// A turn at having a connection: the peer's, if it has come or is about to, or one that this rank opens. False if it
    /// was told to stop before anything came of it.
    pub(in crate::tcp) fn dial(&self, stop: &AtomicBool) -> bool {
        let began = Instant::now();
        while let Some(until) = self.wanted(began) {
            let error = match self.meeting.approach(until, Some(stop)) {
                Turn::Use => break,
                Turn::Dial => match self.try_once(until, stop) {
                    None => continue,
                    Some(e) => e,
                },
                Turn::Leave => {
                    let why = format!("no connection came about within {:?}", self.common.timeout);
                    Error::Unreachable { from: self.common.me, to: self.peer, why }
                }
            };
            if stop.load(Ordering::Acquire) {
                return false;
            }
            let early = Instant::now() < until;
            if early && self.meeting.answering() {
                // The peer has reached this rank meanwhile.
                continue;
            }
            // Whoever merely looks whether the peer is there looks again.
            let overdue = self.out().since.is_some_and(|since| since.elapsed() >= self.common.timeout);
            if early || overdue {
                self.unreached(error);
            }
        }
        self.rest();
        // Something may just have been put.
        let put = self.out().since.is_some();
        if put && self.wanted(Instant::now()).is_some() {
            let _ = self.ask();
        }
        true
    }

    /// Until when a connection is to be had for those who asked at `since` or have put something, if it still is.
    fn wanted(&self, since: Instant) -> Option<Instant> {
        let put = self.out().since;
        let until = put.unwrap_or(since) + self.common.timeout;
        let ended = self.gone.get().is_some() || self.common.stopped.load(Ordering::Acquire);
        (!ended && !self.connected() && (put.is_some() || Instant::now() < until)).then_some(until)
    }

    /// Tries all addresses; why that was in vain, if it was.
    fn try_once(&self, until: Instant, stop: &AtomicBool) -> Option<Error> {
        let target = Target {
            from: self.common.me,
            to: self.peer,
            host: &self.host,
            candidates: &self.candidates,
            meeting: &self.meeting,
            answered: &|stream| self.set_sign(stream.map_or(Sign::Unknown, Sign::of)),
        };
        self.set_sign(Sign::Awaited(Instant::now()));
        let stop = || stop.load(Ordering::SeqCst) || self.meeting.settled_for() >= NEEDLESS;
        let connected = connect(target, &self.common, until, &stop);
        self.set_sign(Sign::Unknown);
        match connected {
            Ok(Connected::Connection(connection, at)) => {
                self.set_path(&connection.stream, at);
                self.meeting.dialled(Dialled::Connection(connection.clone()));
                self.arrived(connection);
                None
            }
            Ok(Connected::Crossed) => {
                self.meeting.dialled(Dialled::Crossed);
                None
            }
            Err(e) => {
                self.meeting.dialled(Dialled::Failed);
                Some(e)
            }
        }
    }

    /// The peer cannot be reached: nothing is sent to it any more, and whoever waits learns why.
    pub(in crate::tcp) fn unreached(&self, error: Error) {
        let mut out = self.out();
        if self.connected() || self.gone.set(Gone::lost(error.to_string())).is_err() {
            return;
        }
        *out = Outgoing::default();
        self.forget();
        // Who has given up wants no more errors.
        if !self.common.given_up.load(Ordering::Acquire) {
            *self.refusal() = Some(error);
        }
        drop(out);
        self.common.arrivals.push(Ok(Arrival { slot: self.slot, connection: None }));
        self.meeting.nudge();
    }

    /// Both sides hold the connection: the endpoint reads from it, and what waits goes by it.
    fn arrived(&self, connection: Arc<Connection>) {
        self.unblock();
        self.common.arrivals.push(Ok(Arrival { slot: self.slot, connection: Some(connection) }));
        self.say_words();
        // Whoever put it may be at something else now.
        if self.may_flush() {
            self.flush();
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
    pub(in crate::tcp) fn answered(&self, connection: Arc<Connection>) {
        let address =
            |a: std::io::Result<SocketAddr>| a.map_or_else(|_| "?".into(), |a| canonical(a).to_string());
        let stream = &connection.stream;
        let (ours, theirs) = (address(stream.local_addr()), address(stream.peer_addr()));
        let _ = self.path.set(format!("tcp{} {ours} <- {theirs}: the peer connected", self.common.sealed()));
        self.meeting.answered(Some(connection.clone()));
        self.arrived(connection);
    }
}
