//! What the queue pairs of an endpoint share on one device: completions, receive requests, memory for messages.
#![allow(unsafe_code)] // memory that a device writes

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::memory::{Block, Device, Pieces};
use super::post::receive;
use super::queue::{CREDITS, STAGE};
use super::sys::{Completions, QueuePair, SharedReceives};
use super::wire::MESSAGE;
use crate::{Error, Region, Result};

/// Work requests that a queue pair has room for, where the device allows it.
const DEPTH: u32 = 128;
/// The least that a queue pair can do with.
const DEPTH_MIN: u32 = 16;
/// Receive requests for all peers together, at most: with more peers they are fewer than all may use at once, and who finds
/// none tries again.
const RECEIVES: u32 = 4096;
/// The least: what a few peers that leave send at the end finds room although this rank does nothing.
const RECEIVES_MIN: u32 = 512;
/// Buffers of messages that were taken are given back to the device so many at once.
const REPOSTED: u32 = 16;
/// Messages that are too long to be sent inline, at a time.
const SLOTS: u32 = 64;
/// Pieces of plain memory that are being sent, at a time.
const STAGES: u32 = 16;
/// Bytes that are sent inline where the device can.
const INLINE: u32 = super::queue::INLINE as u32;
/// The longest packet, and so the longest probe.
pub const PROBE: usize = 4096;
/// Peers that try the way to this rank at a time, each to a place of its own.
const TRIALS: u32 = 16;
/// What probes are written from.
const FROM: u32 = 0;
/// Where they are written to that have no place of their own, and are not looked at.
const ANYWHERE: u32 = 1;
/// The first place of one's own.
const PLACES: u32 = 2;

/// Receive requests for so many peers.
fn receives_for(peers: u32) -> u32 {
    peers.saturating_mul(CREDITS + 2).saturating_add(REPOSTED).clamp(RECEIVES_MIN, RECEIVES)
}

/// Bytes that an adapter for so many peers registers.
pub fn memory(peers: usize) -> u64 {
    let receives = receives_for(u32::try_from(peers).unwrap_or(u32::MAX));
    let [receives, slots, stages, pages] = [receives, SLOTS, STAGES, PLACES + TRIALS].map(u64::from);
    (receives + slots) * MESSAGE as u64 + stages * STAGE as u64 + pages * PROBE as u64
}

/// What an endpoint has on one device.
#[derive(Debug)]
pub struct Adapter {
    /// The device.
    pub device: Arc<Device>,
    /// What the device has done.
    pub completions: Arc<Completions>,
    receives: Arc<SharedReceives>,
    /// Memory of the receive requests.
    incoming: Block,
    /// Memory for messages.
    pub slots: Pieces,
    stages: OnceLock<Pieces>,
    /// Pages: what probes are written from, and where peers write theirs.
    probe: Block,
    /// Of these, the ones that no peer writes to at present.
    places: Mutex<Vec<u32>>,
    /// Work requests that each queue pair has room for.
    pub depth: usize,
    /// How many buffers that were taken wait to be given back together, which takes a call that no message has to wait for.
    pub reposted: usize,
    /// Ports that went down, and did not come up again.
    down: Mutex<Vec<u32>>,
}

impl Adapter {
    /// For so many peers.
    pub fn new(device: &Arc<Device>, peers: usize) -> Result<Adapter> {
        let name = device.context().name();
        let failed = |what: &str, needed: u32| {
            let what = format!("{what} of {needed} entries on RDMA device {name}");
            move |e: std::io::Error| match e.raw_os_error() {
                // What the device shares with the process is locked as well.
                Some(libc::ENOMEM) => super::memory::refused(name, needed as usize * 64, e),
                _ => Error::system(what, e),
            }
        };
        let peers = u32::try_from(peers).unwrap_or(u32::MAX).max(1);
        let limits = device.limits;
        let receives = receives_for(peers).min(limits.receives).max(1);
        let depth = (limits.completions.saturating_sub(receives) / peers).min(DEPTH).min(limits.queue_pair);
        if depth < DEPTH_MIN {
            return Err(Error::Limit {
                what: format!("completions of {peers} peers on RDMA device {name}"),
                needed: format!("{} entries", receives.saturating_add(peers.saturating_mul(DEPTH_MIN))),
                limit: format!("{} entries of a queue", limits.completions),
                remedy: "use fewer ranks per job, or ND_TRANSPORT=tcp".into(),
            });
        }
        let room = receives + peers * depth;
        let adapter = Adapter {
            completions: Completions::new(device.context(), room)
                .map_err(failed("a completion queue", room))?,
            receives: SharedReceives::new(device.domain(), receives)
                .map_err(failed("a shared receive queue", receives))?,
            incoming: Block::new(device, receives, MESSAGE)?,
            slots: Pieces::new(device, SLOTS, MESSAGE)?,
            stages: OnceLock::new(),
            probe: Block::new(device, PLACES + TRIALS, PROBE)?,
            places: Mutex::new((PLACES..PLACES + TRIALS).collect()),
            depth: depth as usize,
            reposted: (receives / 8).clamp(1, REPOSTED) as usize,
            device: device.clone(),
            down: Mutex::default(),
        };
        let pattern: Vec<u8> = pattern().take(PROBE).collect();
        // SAFETY: a page that nobody has yet.
        unsafe { crate::sys::copy(pattern.as_ptr(), adapter.probe.at(FROM), PROBE) };
        adapter.post(0..receives).map_err(|e| {
            Error::system(format!("posting {receives} receive requests on RDMA device {name}"), e)
        })?;
        Ok(adapter)
    }

    /// A new queue pair.
    pub fn pair(&self) -> std::io::Result<QueuePair> {
        let room = (self.depth as u32 + 1, INLINE);
        QueuePair::new(self.device.domain(), &self.completions, &self.receives, room)
    }

    /// Gives receive buffers to the device.
    pub fn post(&self, buffers: impl Iterator<Item = u32>) -> std::io::Result<()> {
        let (block, key) = (&self.incoming, self.incoming.memory().local_key());
        let buffers = buffers.map(|number| (RECEIVED | u64::from(number), block.at(number) as u64));
        // SAFETY: each is the device's from its post to its completion.
        unsafe { receive(&self.receives, buffers, MESSAGE as u32, key) }
    }

    /// A message that was received.
    ///
    /// # Safety
    /// It is between its completion and its next post.
    pub unsafe fn message(&self, number: u32, len: u32) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { self.incoming.bytes(number, (len as usize).min(MESSAGE)) }
    }

    /// Registers what payload cannot do without: pieces for plain memory, and the windows that peers write to. Where so much
    /// cannot be locked, it is found out before anything relies on this way.
    pub fn reserve(&self, region: &Region) -> Result<()> {
        self.stages()?;
        region.for_exposed(|at, size| self.device.window(region, at, size).map(drop))
    }

    /// Memory for plain memory that is being sent.
    pub fn stages(&self) -> Result<&Pieces> {
        if let Some(stages) = self.stages.get() {
            return Ok(stages);
        }
        let stages = Pieces::new(&self.device, STAGES, STAGE)?;
        Ok(self.stages.get_or_init(|| stages))
    }

    /// Gives a piece of it back.
    pub fn give_stage(&self, stage: u32) {
        if let Some(stages) = self.stages.get() {
            stages.give(stage);
        }
    }

    /// What probes are written from: the address, and this rank's key.
    pub fn probe_source(&self) -> (u64, u32) {
        (self.probe.at(FROM) as u64, self.probe.memory().local_key())
    }

    /// A place where a peer may write its probe.
    pub fn trial(self: &Arc<Adapter>) -> Trial {
        let place = self.places.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(place) = place {
            // SAFETY: a page that nobody else has, nor writes.
            unsafe { self.probe.at(place).write_bytes(0, PROBE) };
        }
        Trial { adapter: self.clone(), place: place.unwrap_or(ANYWHERE) }
    }

    /// A port went down, or came up again.
    pub fn set_down(&self, port: u32, is: bool) {
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        down.retain(|&p| p != port);
        if is {
            down.push(port);
        }
    }

    /// Whether a port is known to be down.
    pub fn is_down(&self, port: u8) -> bool {
        self.down.lock().unwrap_or_else(PoisonError::into_inner).contains(&u32::from(port))
    }
}

/// A place where one peer writes its probe, as long as the two connect. Ends after the queue pair that may write there.
#[derive(Debug)]
pub struct Trial {
    adapter: Arc<Adapter>,
    place: u32,
}

impl Trial {
    /// The address, and the key of peers.
    pub fn target(&self) -> (u64, u32) {
        (self.adapter.probe.at(self.place) as u64, self.adapter.probe.memory().remote_key())
    }

    /// The first of so many bytes that is not what a peer sends; to be asked once it has said that it has come.
    pub fn wrong(&self, len: usize) -> Option<usize> {
        if self.place == ANYWHERE {
            return None;
        }
        // SAFETY: this peer's place alone, which has written it and writes no more.
        let bytes = unsafe { self.adapter.probe.bytes(self.place, len.min(PROBE)) };
        bytes.iter().zip(pattern()).position(|(came, sent)| *came != sent)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if self.place != ANYWHERE {
            self.adapter.places.lock().unwrap_or_else(PoisonError::into_inner).push(self.place);
        }
    }
}

/// The bytes of a probe: none like its neighbours, none zero.
fn pattern() -> impl Iterator<Item = u8> {
    (0..=250u8).cycle().map(|i| i.wrapping_mul(97) % 251 + 1)
}

/// In the number of a completion: of a receive buffer.
pub const RECEIVED: u64 = 1 << 63;
