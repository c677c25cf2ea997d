//! Between processes of one host: one memory file for all of them, in which each rank has its region.
//!
//! The lowest rank of the host makes the file (it has no name anywhere) and passes it to the others over an
//! abstract Unix socket, whose name and token travelled with the cards. Nothing is left behind by a crash: the file
//! is gone with its last user. Cross-memory attach reads buffers that were not registered.
#![allow(unsafe_code)] // cross-memory attach

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use crate::bell::Bell;
use crate::link::{Abilities, Cost, Link, Part, Signal, Ticket, Transport};
use crate::mapped::Mapped;
use crate::region::{PROBE_ADDRESS, PROBE_NONCE};
use crate::sys;
use crate::{Error, Result};

mod join;
mod words;

pub use join::ShmCard;
pub(crate) use join::{Arena, Limit, Listening, region_len};

/// A link between two processes of one host.
#[derive(Debug)]
pub(crate) struct ShmLink {
    pub peer: usize,
    pub pid: u32,
    pub cross_memory: bool,
    pub mapped: Mapped,
    pub probed: OnceLock<(Abilities, &'static str)>,
}

impl ShmLink {
    /// The same peer, in a smaller group, where it has another number and sleeps on another word.
    pub fn derive(&self, peer: usize, sleep: u64, bell: Bell) -> ShmLink {
        ShmLink {
            peer,
            pid: self.pid,
            cross_memory: self.cross_memory,
            mapped: Mapped { region: self.mapped.region.clone(), sleep, bell },
            probed: self.probed.clone(),
        }
    }

    /// Tries once whether the peer's memory can be read, by a number that only the peer knows.
    fn probe(&self) -> (Abilities, &'static str) {
        if !self.cross_memory {
            return (Abilities::MAP, "plain buffers are copied through shared memory (ND_CMA=0)");
        }
        let region = &self.mapped.region;
        let address = region.counter(PROBE_ADDRESS).load(Ordering::Acquire);
        let nonce = region.counter(PROBE_NONCE).load(Ordering::Acquire);
        let mut found = [0u8; 8];
        // SAFETY: `found` has 8 bytes.
        match unsafe { sys::read_process(self.pid, address, found.as_mut_ptr(), found.len()) } {
            Ok(()) if u64::from_ne_bytes(found) == nonce => {
                (Abilities::MAP | Abilities::READ, "cross-memory attach works")
            }
            Ok(()) => (Abilities::MAP, "no cross-memory attach: it read another process's memory"),
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => (
                Abilities::MAP,
                "no cross-memory attach: not permitted (ptrace_scope, seccomp or another user); plain buffers are \
                 copied through shared memory",
            ),
            Err(_) => (Abilities::MAP, "no cross-memory attach: the system refuses it"),
        }
    }

    fn probed(&self) -> (Abilities, &'static str) {
        *self.probed.get_or_init(|| self.probe())
    }
}

impl Link for ShmLink {
    fn peer(&self) -> usize {
        self.peer
    }

    fn transport(&self) -> Transport {
        Transport::Shm
    }

    fn abilities(&self) -> Abilities {
        self.probed().0
    }

    fn cost(&self) -> Cost {
        Cost { latency_us: 0.2, bandwidth: 10.0 }
    }

    unsafe fn put(&self, parts: &[Part], at: u64, signal: Option<Signal>) -> Result<Ticket> {
        // SAFETY: the caller's promise.
        unsafe { self.mapped.put(parts, at, signal) };
        Ok(Ticket(0))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.mapped.signal(signal);
        Ok(())
    }

    fn flushed(&self, _: Ticket) -> bool {
        true
    }

    fn map(&self, at: u64, len: u64) -> Option<NonNull<u8>> {
        self.mapped.map(at, len)
    }

    unsafe fn read(&self, from: u64, to: *mut u8, len: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { sys::read_process(self.pid, from, to, len) }.map_err(|e| {
            Error::system(format!("reading {len} bytes of rank {} (process {})", self.peer, self.pid), e)
        })
    }

    fn wake(&self) {
        self.mapped.wake();
    }

    fn describe(&self) -> String {
        format!("shm: the same host; {}", self.probed().1)
    }
}
