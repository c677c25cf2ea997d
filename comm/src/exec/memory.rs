//! The raw memory of inboxes and buffers.
#![allow(unsafe_code)] // reads and writes memory that other ranks share

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::grant_words::GrantWords;
use super::layout::{GRANT_AT, GRANT_LEN};

/// A lane of an inbox: this rank's own, or a peer's that is mapped here. Lives as long as the endpoint's mapping,
/// which its owner keeps.
#[derive(Debug, Clone, Copy)]
pub struct LaneMemory(NonNull<u8>);

// SAFETY: a pointer into a shared mapping; all access is by the methods, whose callers keep the protocol.
unsafe impl Send for LaneMemory {}
// SAFETY: as above.
unsafe impl Sync for LaneMemory {}

impl LaneMemory {
    /// # Safety
    /// `ptr` is valid for a whole lane as long as the value or a copy is used, and 8-byte aligned.
    pub unsafe fn new(ptr: NonNull<u8>) -> LaneMemory {
        LaneMemory(ptr)
    }

    /// The 64-bit word at `offset`, a multiple of 8 inside the lane.
    #[inline]
    pub fn word(&self, offset: u64) -> &AtomicU64 {
        debug_assert_eq!(offset % 8, 0);
        // SAFETY: inside the lane (the offsets are those of `layout`), aligned; these words are accessed atomically
        // by whoever may write them at the same time.
        unsafe { self.0.add(offset as usize).cast().as_ref() }
    }

    /// The words of the grant at `offset`.
    #[inline]
    pub fn grant(&self, offset: u64) -> GrantWords<'_> {
        let (at, len) = (self.word(offset + GRANT_AT), self.word(offset + GRANT_LEN));
        GrantWords { number: self.word(offset), at, len }
    }

    /// The address at `offset`.
    #[inline]
    pub fn at(&self, offset: u64) -> *mut u8 {
        // SAFETY: inside the lane (the offsets are those of `layout`).
        unsafe { self.0.add(offset as usize).as_ptr() }
    }

    /// Writes a word that no other rank reads before a later release.
    #[inline]
    pub fn set(&self, offset: u64, value: u64) {
        self.word(offset).store(value, Ordering::Relaxed);
    }

    /// Writes words that others read at any time, and take for words.
    #[inline]
    pub fn write<const N: usize>(&self, offset: u64, words: [u64; N]) {
        (offset..).step_by(8).zip(words).for_each(|(at, word)| self.set(at, word));
    }

    /// Reads what [`LaneMemory::write`] has written.
    pub fn read<const N: usize>(&self, offset: u64) -> [u64; N] {
        std::array::from_fn(|i| self.get(offset + 8 * i as u64))
    }

    /// Reads a word that no other rank writes after an earlier acquire.
    #[inline]
    pub fn get(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::Relaxed)
    }
}

/// Fetches a line that is about to be written, where the processor can; changes nothing.
#[inline]
pub fn prefetch_to_write(at: *const u8) {
    // SAFETY: a hint about an address, which it may not even have; every processor of this architecture takes it.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Copies `len` bytes.
///
/// # Safety
/// Both are valid for `len` bytes and do not overlap.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}
