//! The three words of a grant, and who may write which when: lock-free.
//!
//! The rank that grants offers: place and length first, then the message's number. The one that sends may claim the offer,
//! and says when it has stored. The granting rank may take back what was not claimed. Claiming and taking back both start
//! from the number alone, so that of the two exactly one comes about.

use crate::atomics::{AtomicU64, Ordering};

/// With a message's number: the sender is storing the message.
const CLAIMED: u64 = 1 << 63;

/// A grant, in memory that both ranks map or that is written from afar.
#[derive(Debug, Clone, Copy)]
pub struct GrantWords<'w> {
    /// The message's number; 0: none.
    pub number: &'w AtomicU64,
    /// Where it belongs.
    pub at: &'w AtomicU64,
    /// How long it is.
    pub len: &'w AtomicU64,
}

impl GrantWords<'_> {
    /// Offers that place for the message.
    pub fn offer(&self, message: u64, at: u64, len: u64) {
        self.at.store(at, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.number.store(message, Ordering::Release);
    }

    /// Place and length that were offered for the message, if they were and nobody has claimed them.
    pub fn offered(&self, message: u64) -> Option<(u64, u64)> {
        let there = self.number.load(Ordering::Acquire) == message;
        there.then(|| (self.at.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed)))
    }

    /// Takes the offer; false: it was taken back. Until [`GrantWords::stored`] the place is the claimant's.
    pub fn claim(&self, message: u64) -> bool {
        let claimed = message | CLAIMED;
        self.number.compare_exchange(message, claimed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Nothing more is stored there by who has claimed it.
    pub fn stored(&self) {
        self.number.store(0, Ordering::Release);
    }

    /// Takes the offer back; false as long as somebody is storing there.
    pub fn take_back(&self, message: u64) -> bool {
        let found = self.number.compare_exchange(message, 0, Ordering::AcqRel, Ordering::Acquire);
        found.map_or_else(|found| found != message | CLAIMED, |_| true)
    }
}
