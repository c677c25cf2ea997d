//! Short messages between the ranks of an endpoint, beside its links: for ranks that must talk although something of
//! theirs has failed.
//!
//! Every rank listens: on a Unix name that follows from its card where it shares memory with a peer, at the port that
//! answers for its links where it does not. Who has something to say to a peer connects to it, as often as needed, and
//! only talks; the answer comes by a connection of the other's. Sessions are authenticated and encrypted
//! ([`crate::secure`]).
//!
//! | file | |
//! |---|---|
//! | `line` | a stream that ends with the parley |
//! | `courier` | says what is to be said to one peer |
//! | `ear` | hears what peers say |

mod courier;
mod ear;
mod line;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::secure::Secret;
use crate::tcp::Calls;
use crate::{Error, Result};
use courier::Courier;
use ear::Ear;
use line::Ending;

/// What both ends of a conversation on a Unix name agree on.
const CONTEXT: &[u8] = b"nd-parley";

/// What a rank hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A peer says something.
    Said {
        /// Which.
        from: usize,
        /// What.
        message: Vec<u8>,
    },
    /// A peer has left the parley.
    Left {
        /// Which.
        peer: usize,
    },
    /// Nobody listens where a peer was: it has closed the endpoint, or is no more.
    Closed {
        /// Which.
        peer: usize,
    },
    /// The kernel at the other end closed the connection of a peer that had not left: its process is no more.
    Ended {
        /// Which.
        peer: usize,
    },
}

/// How a peer is called.
#[derive(Debug, Clone)]
pub(crate) enum Number {
    /// At an abstract name of this host, where it listens while it is in a parley.
    Name(Vec<u8>),
    /// At the port that answers for its links.
    Port(Arc<Calls>),
}

/// What a parley is made of.
pub(crate) struct Parts {
    pub rank: usize,
    /// Where this rank listens; none: no peer would call there.
    pub name: Option<Vec<u8>>,
    /// How the peers are called; none for the rank itself.
    pub numbers: Vec<Option<Number>>,
    /// Who has called at this rank's port.
    pub calls: Option<Arc<Calls>>,
    pub secret: Secret,
}

/// Short messages between the ranks of an endpoint. Its threads end with it.
#[derive(Debug)]
pub struct Parley {
    rank: usize,
    numbers: Vec<Option<Number>>,
    secret: Secret,
    ending: Arc<Ending>,
    heard: Receiver<Heard>,
    hears: Sender<Heard>,
    couriers: HashMap<usize, Courier>,
    ear: Option<Ear>,
}

impl Parley {
    pub(crate) fn open(parts: Parts) -> Result<Parley> {
        let Parts { rank, name, numbers, calls, secret } = parts;
        let (hears, heard) = channel();
        let ending = Arc::new(Ending::default());
        let listener = name.map(|name| listen(&name)).transpose()?;
        let ear = Ear::open(rank, numbers.len(), listener, calls, secret.clone(), &ending, hears.clone())?;
        Ok(Parley { rank, numbers, secret, ending, heard, hears, couriers: HashMap::new(), ear: Some(ear) })
    }

    /// Says something to a peer, as soon as it listens; never waits.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn say(&mut self, to: usize, message: Vec<u8>) -> Result<()> {
        debug_assert!(!message.is_empty(), "nothing is what is said in parting");
        let Some(Some(number)) = self.numbers.get(to) else { return Ok(()) };
        let courier = match self.couriers.entry(to) {
            std::collections::hash_map::Entry::Occupied(courier) => courier.into_mut(),
            std::collections::hash_map::Entry::Vacant(none) => {
                let (number, secret) = (number.clone(), self.secret.clone());
                let (ending, hears) = (self.ending.clone(), self.hears.clone());
                none.insert(Courier::start(self.rank, to, number, secret, ending, hears)?)
            }
        };
        courier.take(message);
        Ok(())
    }

    /// What was heard next, if it is within `timeout`.
    pub fn hear(&self, timeout: Duration) -> Option<Heard> {
        self.heard.recv_timeout(timeout).ok()
    }
}

impl Drop for Parley {
    fn drop(&mut self) {
        self.ending.begin(Instant::now());
        drop(self.ear.take());
        self.couriers.clear();
    }
}

fn listen(name: &[u8]) -> Result<UnixListener> {
    SocketAddr::from_abstract_name(name)
        .and_then(|address| UnixListener::bind_addr(&address))
        .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
        .map_err(|e| Error::system("listening for the other ranks of this host", e))
}

/// The first message of a conversation: who talks to whom.
fn introduction(from: usize, to: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(from as u64).to_le_bytes());
    bytes[8..].copy_from_slice(&(to as u64).to_le_bytes());
    bytes
}
