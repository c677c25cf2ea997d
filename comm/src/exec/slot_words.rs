//! The words by which the place of a descriptor, and the slot with its data, change hands: lock-free.
//!
//! The sender fills them and then stores the descriptor's number; the receiver that finds the number there has all of it. It
//! frees places and slots by the number of descriptors that it has consumed; the sender that finds a place's last descriptor
//! among them may fill it again.

use crate::atomics::{AtomicU64, Ordering};

/// What was filled is the descriptor with this number, from 1.
#[inline]
pub fn post(sequence: &AtomicU64, number: u64) {
    sequence.store(number, Ordering::Release);
}

/// Whether the descriptor with this number is there.
#[inline]
pub fn is_posted(sequence: &AtomicU64, number: u64) -> bool {
    sequence.load(Ordering::Acquire) == number
}

/// So many descriptors are consumed; nothing of them is looked at any more.
#[inline]
pub fn free(credit: &AtomicU64, consumed: u64) {
    credit.store(consumed, Ordering::Release);
}

/// How many descriptors are consumed.
#[inline]
pub fn freed(credit: &AtomicU64) -> u64 {
    credit.load(Ordering::Acquire)
}
