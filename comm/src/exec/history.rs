//! The last calls that a rank has finished, in its inbox for itself, where peers that map it see them.
#![allow(unsafe_code)] // finds a peer's in mapped memory

use std::sync::atomic::{Ordering, fence};

use nd_transport::Abilities;

use super::called::Called;
use super::layout::{self, HISTORY, LINE};
use super::memory::LaneMemory;
use super::run::Channels;

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

    /// That of a peer, if its memory is mapped.
    pub fn of_peer(channels: &Channels, me: usize, peer: usize) -> Option<History> {
        let [first, ..] = channels[peer].as_ref()?;
        if !first.link().abilities().contains(Abilities::MAP) {
            return None;
        }
        let inboxes = first.remote() - layout::lane(me, 0);
        let lane = first.link().map(inboxes + layout::lane(peer, 0), layout::LANE)?;
        // SAFETY: a lane of mapped memory.
        Some(History(unsafe { LaneMemory::new(lane) }))
    }

    /// One more is done.
    #[inline]
    pub fn push(&self, call: Called) {
        let count = self.0.get(HISTORY) + 1;
        // Whoever reads the entry that is overwritten sees in the counter that it may be: see `find_while_it_grows`.
        fence(Ordering::Release);
        self.0.write(entry(count), call.words());
        self.0.word(HISTORY).store(count, Ordering::Release);
    }

    /// The last one.
    pub fn last(&self) -> Option<Called> {
        Called::from_words(self.0.read(entry(self.0.word(HISTORY).load(Ordering::Acquire))))
    }

    /// The collective call with this number.
    pub fn find(&self, sequence: u32) -> Option<Called> {
        let kept = (0..KEPT).filter_map(|i| Called::from_words(self.0.read(entry(i))));
        kept.into_iter().find(|call| call.stamp.sequence == sequence && sequence > 0)
    }

    /// The same of a peer, which may finish calls meanwhile. The oldest may be overwritten at any time, and does not count.
    pub fn find_while_it_grows(&self, sequence: u32) -> Option<Called> {
        let count = self.0.word(HISTORY).load(Ordering::Acquire);
        let oldest = count.saturating_sub(KEPT - 2).max(1);
        (oldest..=count).rev().find_map(|number| {
            let words = self.0.read(entry(number));
            fence(Ordering::Acquire);
            let stands = self.0.get(HISTORY) < number + KEPT - 1;
            Called::from_words(words).filter(|call| stands && call.stamp.sequence == sequence && sequence > 0)
        })
    }
}

const fn entry(count: u64) -> u64 {
    HISTORY + 8 + count % KEPT * ENTRY
}

const _: () = assert!(HISTORY.is_multiple_of(LINE) && HISTORY + BYTES <= 4096);
