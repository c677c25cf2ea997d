//! The last calls of a communicator, in memory that is allocated once.
//!
//! Whoever performs calls writes, one thread at a time; anyone may read meanwhile, so that a rank that hangs can be looked
//! at. An entry is a cache line of atomic words. Its number is 0 while it is written, so a reader knows what to trust: a
//! sequence lock (Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012).

use super::clock::Ticks;
use crate::atomics::{AtomicU64, AtomicUsize, Ordering, fence};
use crate::exec::stamp::Stamp;

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its number in the ring, from 1; sends and receives count here too.
    pub number: u64,
    pub stamp: Stamp,
    /// For sends and receives, which have none in their stamp.
    pub peer: u32,
    pub sends: bool,
    /// Of v-variants, whose stamp does not tell.
    pub bytes: u64,
    /// 0: it was short and never waited.
    pub entered: Ticks,
    /// 0: not yet.
    pub done: Ticks,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    number: AtomicU64,
    head: AtomicU64,
    count: AtomicU64,
    /// Root, above it the peer (31 bits) and [`SENDS`].
    ends: AtomicU64,
    bytes: AtomicU64,
    entered: AtomicU64,
    done: AtomicU64,
}

/// The ring.
#[derive(Debug)]
pub(super) struct Ring {
    lines: Box<[Line]>,
    /// The newest entry: number and place.
    newest: AtomicU64,
    at: AtomicUsize,
}

const SENDS: u64 = 1 << 63;

/// A call that begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct New<'s> {
    pub stamp: &'s Stamp,
    pub peer: u32,
    pub sends: bool,
    pub bytes: u64,
}

impl Ring {
    /// Of at least one entry.
    pub fn new(len: usize) -> Ring {
        let lines: Box<[Line]> = (0..len.max(1)).map(|_| Line::default()).collect();
        Ring { at: AtomicUsize::new(lines.len() - 1), lines, newest: AtomicU64::new(0) }
    }

    /// How many calls were put in.
    pub fn newest(&self) -> u64 {
        self.newest.load(Ordering::Relaxed)
    }

    /// Puts a call in, over the oldest; its number is given here.
    #[inline]
    pub fn push(&self, call: New<'_>, entered: Ticks) {
        let number = self.newest() + 1;
        let at = match self.at.load(Ordering::Relaxed) + 1 {
            at if at >= self.lines.len() => 0,
            at => at,
        };
        let line = &self.lines[at];
        line.number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let ends = u64::from(call.stamp.root) | u64::from(call.peer) << 32 & !SENDS;
        line.head.store(call.stamp.head(), Ordering::Relaxed);
        line.count.store(call.stamp.count, Ordering::Relaxed);
        line.ends.store(if call.sends { ends | SENDS } else { ends }, Ordering::Relaxed);
        line.bytes.store(call.bytes, Ordering::Relaxed);
        line.entered.store(entered, Ordering::Relaxed);
        line.done.store(0, Ordering::Relaxed);
        line.number.store(number, Ordering::Release);
        self.at.store(at, Ordering::Relaxed);
        self.newest.store(number, Ordering::Release);
    }

    /// The newest call waits: when it was entered, unless that is known.
    #[inline]
    pub fn waits(&self, now: impl FnOnce() -> Ticks) {
        let entered = &self.lines[self.at.load(Ordering::Relaxed)].entered;
        if entered.load(Ordering::Relaxed) == 0 {
            entered.store(now(), Ordering::Relaxed);
        }
    }

    /// The newest `count` calls are done.
    #[inline]
    pub fn done(&self, count: usize, now: Ticks) {
        let mut at = self.at.load(Ordering::Relaxed);
        for _ in 0..count.min(self.lines.len()) {
            self.lines[at].done.store(now, Ordering::Relaxed);
            at = at.checked_sub(1).unwrap_or(self.lines.len() - 1);
        }
    }

    /// The newest `count` calls, the oldest of them first.
    pub fn last(&self, count: usize) -> impl Iterator<Item = Entry> {
        let (len, at) = (self.lines.len(), self.at.load(Ordering::Relaxed));
        (0..count.min(len)).rev().filter_map(move |back| read(&self.lines[(at + len - back) % len]))
    }

    /// What is in it, the oldest first; without entries that are being written at this moment.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.lines.iter().filter_map(read).collect();
        entries.sort_unstable_by_key(|e| e.number);
        entries
    }
}

fn read(line: &Line) -> Option<Entry> {
    let number = line.number.load(Ordering::Acquire);
    let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let ends = word(&line.ends);
    let entry = Entry {
        number,
        stamp: Stamp::from_wire(word(&line.head), word(&line.count), ends as u32),
        peer: ((ends & !SENDS) >> 32) as u32,
        sends: ends & SENDS != 0,
        bytes: word(&line.bytes),
        entered: word(&line.entered),
        done: word(&line.done),
    };
    fence(Ordering::Acquire);
    (number != 0 && line.number.load(Ordering::Relaxed) == number).then_some(entry)
}
