//! A link to one peer: the vocabulary.
#![allow(unsafe_code)] // declares unsafe methods

use std::fmt;
use std::ptr::NonNull;
use std::time::Duration;

use crate::Result;

bitflags::bitflags! {
    /// What a link can do beyond put and signal.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Abilities: u32 {
        /// [`Link::map`] gives the peer's region as plain memory.
        const MAP = 1;
        /// [`Link::read`] reads any memory of the peer, by the peer's own address.
        const READ = 2;
        /// [`Link::land`] lets the peer put into any memory of this rank.
        const LAND = 4;
        /// [`Link::put`] and [`Link::land`] take memory of other devices that was
        /// [registered](crate::Endpoint::register_dma_buf). Certain once the link is [`ready`](Link::ready).
        const DMA_BUF = 8;
    }
}

/// The kinds of link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// Threads of one process.
    Local,
    /// Processes of one host.
    Shm,
    /// Any hosts.
    Tcp,
    /// Hosts with InfiniBand or RoCE.
    Verbs,
}

impl Transport {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Local => "local",
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
            Transport::Verbs => "verbs",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a link costs, before anything was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// From a put's start to the signal's sight, µs.
    pub latency_us: f64,
    /// One direction, GB/s (1e9 B/s).
    pub bandwidth: f64,
}

/// Raises the 64-bit counter at offset `at` (a multiple of 8) of the peer's region to `value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Where.
    pub at: u64,
    /// To what.
    pub value: u64,
}

/// Local memory that is being put.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// First byte.
    pub ptr: *const u8,
    /// Bytes.
    pub len: usize,
}

impl Part {
    /// The memory of a slice.
    pub fn of(bytes: &[u8]) -> Part {
        Part { ptr: bytes.as_ptr(), len: bytes.len() }
    }
}

/// Stands for a put; see [`Link::flushed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ticket(pub u64);

/// This rank's way to one peer. Puts and signals of one link take effect at the peer in the order of the calls.
pub trait Link: Send + Sync + fmt::Debug {
    /// The peer's rank.
    fn peer(&self) -> usize;

    /// Which kind it is.
    fn transport(&self) -> Transport;

    /// What it can do beyond put and signal.
    fn abilities(&self) -> Abilities;

    /// What it costs.
    fn cost(&self) -> Cost;

    /// Starts to write `parts`, one after the other, to offset `at` of the peer's region, then raises `signal`.
    /// Never blocks once the link is [`ready`](Link::ready); may wait for a connection, and for the endpoint's next
    /// progress, which reports that there will be none. The peer accepts only what lies inside one of its windows.
    ///
    /// # Safety
    /// Parts longer than [`INLINE_PART`] bytes stay valid and unchanged until [`Link::flushed`] says so of the
    /// ticket, or [`Endpoint::let_go`](crate::Endpoint::let_go) was called, or the link's endpoint is dropped; shorter ones may
    /// be reused at once. Memory of [another device](crate::Endpoint::register_dma_buf) stays so whatever its length, and is
    /// put only where the link [takes it](Abilities::DMA_BUF).
    unsafe fn put(&self, parts: &[Part], at: u64, signal: Option<Signal>) -> Result<Ticket>;

    /// Whether a put is taken, or refused, at once. Where the two have to meet before they know by which way anything goes,
    /// this has them do so and is false until then; whoever puts or [lands](Link::land) nevertheless waits for that.
    fn ready(&self) -> bool {
        true
    }

    /// Whether a put needs no connection to be made first.
    fn connected(&self) -> bool {
        true
    }

    /// Has a connection made, where that is still to be done, and waits for it so long at most; whether there is one, and an
    /// error if the peer is not there.
    fn reach(&self, _within: Duration) -> Result<bool> {
        Ok(true)
    }

    /// Puts a copy of `bytes`, with a signal, when the peer connects, if it ever does: for a rank that gives up and cannot
    /// reach the peer. Nothing where no connection is needed.
    fn leave_word(&self, _bytes: &[u8], _at: u64, _signal: Signal) {}

    /// Raises a counter at the peer, after all earlier puts.
    fn signal(&self, signal: Signal) -> Result<()>;

    /// Whether the memory of this put may be reused.
    fn flushed(&self, ticket: Ticket) -> bool;

    /// The peer's region from offset `at`, `len` bytes, as plain memory ([`Abilities::MAP`]); none outside it.
    fn map(&self, at: u64, len: u64) -> Option<NonNull<u8>>;

    /// Copies `len` bytes from the peer's own address `from` ([`Abilities::READ`]).
    ///
    /// # Safety
    /// `to` is valid for `len` bytes, and the peer keeps `from` unchanged meanwhile.
    unsafe fn read(&self, from: u64, to: *mut u8, len: usize) -> Result<()>;

    /// Lets the peer put into memory that is in no window ([`Abilities::LAND`]), until it is withdrawn: the offset by which
    /// the peer's puts name it. No two of a link are ever the same.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes until [`Link::withdraw`], and nobody reads it before the signal of the
    /// put that fills it.
    unsafe fn land(&self, _to: *mut u8, _len: u64) -> Option<u64> {
        None
    }

    /// What [`Link::land`] gave is written no more; what the peer still puts there is thrown away.
    fn withdraw(&self, _at: u64) {}

    /// Wakes the peer if it sleeps, after this rank wrote to mapped memory by itself.
    fn wake(&self);

    /// In a sentence: why this link, and between which addresses.
    fn describe(&self) -> String;
}

/// Parts up to this many bytes are copied by [`Link::put`] where it cannot write them at once.
pub const INLINE_PART: usize = 256;
