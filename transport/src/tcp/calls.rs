//! Connections for talk beside the links: to the port that answers for them.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::accept::{CONFIRMED, CONTEXT, Timed, WELCOME};
use super::connect::open;
use super::identity::Identity;
use super::link::{Common, TcpLink};
use crate::secure::{CLOSED, Session, initiate};
use crate::{Error, Result};

/// How long one address may take.
const PER_ADDRESS: Duration = Duration::from_secs(2);
/// Calls of one peer that wait to be taken: it calls again only when it lost the one before.
const EACH: usize = 4;

/// Peers that called and are not listened to yet.
#[derive(Debug, Default)]
pub struct Callers(Mutex<Vec<(usize, Session<TcpStream>)>>);

impl Callers {
    fn waiting(&self) -> MutexGuard<'_, Vec<(usize, Session<TcpStream>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more; a peer's oldest gives way.
    pub fn add(&self, from: usize, session: Session<TcpStream>) {
        let mut waiting = self.waiting();
        if waiting.iter().filter(|w| w.0 == from).count() >= EACH
            && let Some(oldest) = waiting.iter().position(|w| w.0 == from)
        {
            waiting.remove(oldest);
        }
        waiting.push((from, session));
    }
}

/// What became of a call.
#[derive(Debug)]
pub enum Called {
    /// The peer's port answers.
    Answered(Box<Session<TcpStream>>),
    /// Nobody, or somebody else, listens where it was.
    Closed,
    /// It may answer another time.
    Missed,
}

/// The peers of an endpoint, to call and to be called by.
#[derive(Debug)]
pub struct Calls {
    common: Arc<Common>,
    links: HashMap<usize, Arc<TcpLink>>,
}

impl Calls {
    pub(super) fn new(common: Arc<Common>, links: HashMap<usize, Arc<TcpLink>>) -> Calls {
        Calls { common, links }
    }

    /// Whoever has called, and what they say.
    pub fn take(&self) -> Vec<(usize, Session<TcpStream>)> {
        std::mem::take(&mut *self.common.callers.waiting())
    }

    /// Calls a peer, until `until` or until told to stop.
    pub fn call(&self, to: usize, until: Instant, stop: &AtomicBool) -> Called {
        let Some(link) = self.links.get(&to) else { return Called::Closed };
        let mut closed = !link.candidates.is_empty();
        for candidate in &link.candidates {
            let left = until.saturating_duration_since(Instant::now()).min(PER_ADDRESS);
            if left.is_zero() {
                return Called::Missed;
            }
            match open(candidate, self.common.buffer, left, &|| false) {
                Ok(stream) => match self.introduce(stream, to, until, stop) {
                    Ok(session) => return Called::Answered(Box::new(session)),
                    Err(Error::Refused { why, .. }) => closed &= !why.starts_with(CLOSED),
                    Err(_) => closed = false,
                },
                Err(e) => closed &= e.kind() == ErrorKind::ConnectionRefused,
            }
        }
        if closed { Called::Closed } else { Called::Missed }
    }

    fn introduce(
        &self,
        stream: TcpStream,
        to: usize,
        until: Instant,
        stop: &AtomicBool,
    ) -> Result<Session<TcpStream>> {
        let stop = || stop.load(Ordering::Acquire);
        let timed = Timed { stream, until, stop: &stop };
        let mut session = initiate(timed, &self.common.secret, CONTEXT)?;
        let encrypts = self.common.records_per_key.is_some();
        session.send(&Identity { from: self.common.me, to, encrypts, talks: true }.encode())?;
        let answer = session.receive(256)?;
        if answer != WELCOME {
            let why = String::from_utf8_lossy(&answer).into_owned();
            return Err(Error::Refused { who: "the other side".into(), why });
        }
        // From here on the peer listens, and is taken leave of.
        session.send(CONFIRMED)?;
        Ok(session.map(|timed| timed.stream))
    }
}
