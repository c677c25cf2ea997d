//! The last calls that a rank has finished, in its inbox for itself, where peers that map it see them.

use super::called::Called;
use super::layout::{HISTORY, LINE};
use super::memory::LaneMemory;

/// Calls that are kept.
pub(super) const KEPT: u64 = 8;
const ENTRY: u64 = 8 * Called::WORDS as u64;
/// Bytes that it takes: a counter, then the calls.
pub(super) const BYTES: u64 = 8 + KEPT * ENTRY;

/// The last calls of one rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct History(LaneMemory);

impl History {
    /// In the first lane of a rank's inbox for itself.
    pub fn new(own: LaneMemory) -> History {
        History(own)
    }

    /// One more is done.
    #[inline]
    pub fn push(&self, call: Called) {
        let count = self.0.get(HISTORY) + 1;
        self.0.write(entry(count), call.words());
        self.0.set(HISTORY, count);
    }

    /// The last one.
    pub fn last(&self) -> Option<Called> {
        Called::from_words(self.0.read(entry(self.0.get(HISTORY))))
    }

    /// The collective call with this number.
    pub fn find(&self, sequence: u32) -> Option<Called> {
        let kept = (0..KEPT).filter_map(|i| Called::from_words(self.0.read(entry(i))));
        kept.into_iter().find(|call| call.stamp.sequence == sequence && sequence > 0)
    }
}

const fn entry(count: u64) -> u64 {
    HISTORY + 8 + count % KEPT * ENTRY
}

const _: () = assert!(HISTORY.is_multiple_of(LINE) && HISTORY + BYTES <= 4096);
