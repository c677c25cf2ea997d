//! A word that tells whether a rank sleeps, and the agreement by which nobody sleeps through what was written for it:
//! lock-free.
//!
//! A rank that is about to sleep says so, looks once more whether what it waits for is there, and sleeps. A peer writes,
//! then looks at the word. A full fence on both sides, between the write and the look, makes sure that one of the two sees
//! the other.

use crate::atomics::{AtomicU32, Ordering, fence};

pub const AWAKE: u32 = 0;
/// It sleeps on the word itself.
pub const ASLEEP: u32 = 1;
/// It sleeps in `poll`, with a socket that wakes it.
pub const IN_POLL: u32 = 2;

/// Whether the rank may sleep; called after writing what it may wait for.
#[inline]
pub fn may_sleep(word: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    word.load(Ordering::Relaxed) != AWAKE
}

/// How it sleeps; whoever is told wakes it, nobody else is.
pub fn to_be_woken(word: &AtomicU32) -> u32 {
    word.swap(AWAKE, Ordering::SeqCst)
}

/// Sleeps in this way, unless `ready` turns out to hold.
pub fn announce(word: &AtomicU32, how: u32, ready: impl FnOnce() -> bool, sleep: impl FnOnce()) {
    word.store(how, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    if !ready() {
        sleep();
    }
    word.store(AWAKE, Ordering::SeqCst);
}
