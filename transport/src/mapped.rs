//! What `local` and `shm` have in common: the peer's region is plain memory here.
#![allow(unsafe_code)] // copies into mapped memory

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::bell::Bell;
use crate::link::{Part, Signal};
use crate::region::Region;
use crate::sys;

/// A peer's region, mapped here.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub region: Arc<Region>,
    /// Where the peer's sleep word is.
    pub sleep: u64,
    pub bell: Bell,
}

impl Mapped {
    /// Writes the parts, raises the signal, wakes the peer.
    ///
    /// # Safety
    /// The parts are valid.
    pub unsafe fn put(&self, parts: &[Part], at: u64, signal: Option<Signal>) {
        let total: u64 = parts.iter().map(|p| p.len as u64).sum();
        let mut to = self.region.at(at, total).as_ptr();
        for part in parts {
            // SAFETY: the caller's promise for `part`; `to` has room for all parts, checked by `at`.
            unsafe {
                sys::copy(part.ptr, to, part.len);
                to = to.add(part.len);
            }
        }
        if let Some(signal) = signal {
            self.signal(signal);
        }
    }

    pub fn signal(&self, signal: Signal) {
        self.region.counter(signal.at).store(signal.value, Ordering::Release);
        self.wake();
    }

    /// None outside the region: peers say where, and may be wrong.
    pub fn map(&self, at: u64, len: u64) -> Option<NonNull<u8>> {
        self.region.within(at, len)
    }

    #[inline]
    pub fn wake(&self) {
        self.bell.ring(self.region.word(self.sleep));
    }
}
