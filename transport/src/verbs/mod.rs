//! InfiniBand and RoCE: the device writes straight into the peer's memory.
//!
//! Two ranks that are joined this way have a connection by TCP as well. It proves who both are, and inside its
//! authenticated session they tell each other how their queue pairs are reached and where a probe may be written; the
//! way is tried before it is used. Later the connection says when the peer leaves or is lost, and carries what ranks tell
//! each other once something has failed. Keys of memory travel on the queue pairs. Nothing of this is encrypted or
//! authenticated packet by packet, as RDMA does not do that: whoever can send forged packets on the fabric can write.
//!
//! | file | |
//! |---|---|
//! | `settings` | what a user can set |
//! | `offer` | which ports a rank has, and why not others |
//! | `choice` | which peers are reached by which ports |
//! | `sys`, `post` | the objects and calls of libibverbs |
//! | `memory` | what is registered, and how long |
//! | `exported` | memory of other devices, such as GPUs |
//! | `adapter` | what an endpoint has on one device |
//! | `wire`, `hello` | messages as bytes; pure |
//! | `keys` | by what two ranks write into each other's memory |
//! | `queue` | what two ranks send each other: puts, rails, room, order |
//! | `fabric` | all of them: completions, failures, and how pairs come to be joined |
//! | `link` | the way to one peer |

mod adapter;
mod choice;
mod exported;
mod fabric;
pub mod hello;
mod keys;
mod link;
mod memory;
mod offer;
mod post;
mod queue;
mod settings;
mod sys;
pub mod wire;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::tcp::{Rider, Tcp};
use crate::{Cost, DmaBuf, DmaBufRegistration, Error, Forked, Link, Result};
pub(crate) use choice::{Equipment, Group, joins_all};
pub(crate) use exported::Exports;
pub(crate) use fabric::Fabric;
use fabric::State;
use link::VerbsLink;
pub(crate) use offer::Ports;
pub use offer::{described, offer};
pub use settings::VerbsSettings;

/// How long leaving may take, all peers together, once something has failed.
const FAREWELL: Duration = Duration::from_secs(1);
/// How often it is looked meanwhile whether the peers have everything.
const FAREWELL_TICK: Duration = Duration::from_micros(100);

/// All links of one rank by verbs.
#[derive(Debug)]
pub(crate) struct Verbs {
    links: HashMap<usize, Arc<VerbsLink>>,
    fabric: Arc<Fabric>,
    tcp: Arc<Tcp>,
    /// What of [`Tcp::ends`] was seen.
    ends: AtomicUsize,
    timeout: Duration,
    forked: Forked,
}

impl Verbs {
    /// The links that ride on these connections; `fabric` is their rider.
    pub fn new(fabric: Arc<Fabric>, tcp: Arc<Tcp>, timeout: Duration) -> Result<Verbs> {
        for adapter in fabric.adapters() {
            tcp.watch(adapter.completions.as_fd())?;
            tcp.watch(adapter.device.context().as_fd())?;
        }
        let link = |pair: &Arc<fabric::Pair>| {
            // 25 Gb/s where the kernel does not know.
            let rate: u64 = pair.rails.iter().map(|rail| rail.rate_mbps.unwrap_or(25_000)).sum();
            let link = VerbsLink {
                tcp: tcp.tcp_link(pair.peer),
                // 2 µs: what good cards need for a small message.
                cost: Cost { latency_us: 2.0, bandwidth: rate as f64 / 8000.0 },
                fabric: fabric.clone(),
                pair: pair.clone(),
            };
            (pair.peer, Arc::new(link))
        };
        Ok(Verbs {
            links: fabric.pairs().iter().map(link).collect(),
            fabric,
            tcp,
            ends: AtomicUsize::new(0),
            timeout,
            forked: Forked::here(),
        })
    }

    /// The way to a peer, if it is reached by verbs.
    pub fn link(&self, peer: usize) -> Option<Arc<dyn Link>> {
        self.links.get(&peer).map(|link| link.clone() as Arc<dyn Link>)
    }

    /// Moves what can move without waiting; whether something did. Called after the connections were read: what peers
    /// sent before they left is here by then.
    pub fn progress(&self) -> Result<bool> {
        let ends = self.tcp.ends();
        let moved = self.fabric.progress()?;
        if ends != self.ends.load(Ordering::Relaxed) {
            self.ends.store(ends, Ordering::Relaxed);
            self.part()?;
        }
        Ok(moved)
    }

    /// Ends the queue pairs with peers that have left or are lost.
    #[cold]
    fn part(&self) -> Result<()> {
        let mut first = Ok(());
        for link in self.links.values() {
            let Some(gone) = link.tcp.gone() else { continue };
            if let Some(error) = self.fabric.part(&link.pair, gone.orderly, &gone.cause) {
                first = first.and(Err(error));
            }
        }
        first
    }

    /// Hands what was put to the devices, as far as they take it; whether there was anything.
    pub fn flush(&self) -> bool {
        self.fabric.flush()
    }

    /// Whether it may be slept until something can be read; completions that come from now on are told of.
    pub fn arm(&self) -> Result<bool> {
        self.fabric.arm()
    }

    /// Something has failed: what is said from here on goes by TCP.
    pub fn give_up(&self) {
        self.fabric.give_up();
    }

    /// What was put is read no more, and what was granted is written no more.
    pub fn let_go(&self) {
        self.fabric.let_go();
    }

    /// Whether there is a device.
    pub fn has_device(&self) -> bool {
        self.fabric.adapters().next().is_some()
    }

    /// Registers memory of another device with all devices of these links.
    pub fn register(&self, exports: &Arc<Exports>, buf: DmaBuf) -> Result<DmaBufRegistration> {
        exports.add(buf, self.fabric.adapters().map(|adapter| &adapter.device))
    }

    /// Whether a peer is to be reached this way.
    pub fn rides(&self, peer: usize) -> bool {
        self.links.contains_key(&peer)
    }

    /// Why a peer is gone, if it is, in order or not: nothing more comes from it.
    pub fn lost(&self, peer: usize) -> Option<String> {
        let link = self.links.get(&peer)?;
        match &*link.pair.state() {
            State::Joined(_) | State::Joining(_) => None,
            State::Over(cause) if !self.fabric.has_given_up() => Some(cause.clone()),
            _ => self.tcp.lost(peer),
        }
    }

    /// Whether the two write into each other's memory: the devices see to it that all arrives, or say that it does not.
    pub fn joined(&self, peer: usize) -> bool {
        self.links.get(&peer).is_some_and(|link| matches!(&*link.pair.state(), State::Joined(_)))
    }

    /// Why the peer's end is no more, if its own system has said so.
    pub fn ended(&self, peer: usize) -> Option<String> {
        match &*self.links.get(&peer)?.pair.state() {
            State::Joined(_) | State::Joining(_) => None,
            _ => self.tcp.ended(peer),
        }
    }

    /// Leaves in order: the peers have what was sent. The goodbye itself goes by the connections, afterwards.
    fn farewell(&self) {
        let limit = if self.fabric.has_given_up() { FAREWELL } else { self.timeout.max(FAREWELL) };
        let until = Instant::now() + limit;
        for link in self.links.values() {
            if let State::Joined(queue) = &mut *link.pair.state() {
                queue.leave();
                self.fabric.set_waiting(&link.pair, true);
            }
        }
        let done = |link: &Arc<VerbsLink>| match &*link.pair.state() {
            State::Joined(queue) => queue.is_done(),
            _ => true,
        };
        // Peers that leave as well are noticed by their connections, and those that fail by the device.
        while !self.links.values().all(done) && Instant::now() < until {
            let _ = self.tcp.progress();
            if !self.progress().unwrap_or(true) {
                std::thread::sleep(FAREWELL_TICK);
            }
        }
    }
}

impl Drop for Verbs {
    fn drop(&mut self) {
        if !self.forked.since() {
            self.farewell();
            self.fabric.let_go();
        }
    }
}

/// As the rider of connections.
pub(crate) fn rider(fabric: &Option<Arc<Fabric>>) -> Option<Arc<dyn Rider>> {
    fabric.clone().map(|fabric| fabric as Arc<dyn Rider>)
}

/// An error of the choice of ports.
impl From<nd_topology::Error> for Error {
    fn from(e: nd_topology::Error) -> Error {
        Error::Choice(e)
    }
}
