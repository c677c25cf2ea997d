//! One rail of two ranks: its queue pair, what the device has of it, and what came on it before its turn.
#![allow(unsafe_code)] // posts work requests

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;

use super::{Fault, INLINE};
use crate::sys;
use crate::verbs::adapter::Adapter;
use crate::verbs::memory::Device;
use crate::verbs::post::{BATCH, Batch};
use crate::verbs::sys::{Memory, QueuePair};
use crate::verbs::wire::MESSAGE;

/// A work request that the device has.
#[derive(Debug, Default)]
pub(super) struct Posted {
    pub id: u64,
    pub slot: Option<u32>,
    pub stage: Option<u32>,
    pub _memory: Option<Arc<Memory>>,
    /// The put that is not flushed before it; 0: none.
    pub ticket: u64,
    /// Of a write: the peer's address of the first byte, and how many.
    pub target: (u64, u64),
}

/// A queue pair: the place of its adapter, and its number there.
pub type At = (usize, u32);

/// One rail.
#[derive(Debug)]
pub struct Lane {
    /// Its place among the rails of the two ranks.
    pub index: usize,
    /// Both ports, for people.
    pub name: String,
    /// Its queue pair.
    pub at: At,
    /// There until this is dropped.
    pair: Option<QueuePair>,
    pub(super) adapter: Arc<Adapter>,
    pub(super) posted: VecDeque<Posted>,
    unsignalled: usize,
    /// Bytes that the device is writing, and all that it was given to write.
    pub(super) outstanding: u64,
    pub(super) carried: u64,
    /// A message is to tell when the peer has it, and all before it.
    pub(super) fence: bool,
    /// Messages whose turn comes when others have come on other rails, and their numbers.
    pub(super) early: VecDeque<(u16, Box<[u8]>)>,
    /// Whether the way was found open.
    pub probed: bool,
    /// Why it is closed, if that was found while it was tried.
    pub closed: Option<Fault>,
}

impl Lane {
    /// Of a queue pair that is joined with its peer's.
    pub fn new(index: usize, name: String, place: usize, pair: QueuePair, adapter: Arc<Adapter>) -> Lane {
        Lane {
            index,
            name,
            at: (place, pair.number()),
            pair: Some(pair),
            adapter,
            posted: VecDeque::new(),
            unsignalled: 0,
            outstanding: 0,
            carried: 0,
            fence: false,
            early: VecDeque::new(),
            probed: false,
            closed: None,
        }
    }

    pub(super) fn pair(&self) -> &QueuePair {
        self.pair.as_ref().expect("it ends with the lane")
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.adapter.device
    }

    /// Whether the device is writing any of these bytes of the peer.
    pub(super) fn writes_to(&self, address: u64, len: u64) -> bool {
        let meets = |&(at, bytes): &(u64, u64)| at < address + len && address < at + bytes;
        self.posted.iter().any(|posted| meets(&posted.target))
    }

    /// Memory for a message of so many bytes, if there is any.
    pub(super) fn place(&self, len: usize, out: &mut Out) -> Option<Place> {
        if len <= INLINE.min(self.pair().inline as usize) {
            let ptr = out.scratch[out.batch.len()].as_mut_ptr().cast();
            return Some(Place { ptr, len, slot: None });
        }
        let slot = self.adapter.slots.take()?;
        Some(Place { ptr: self.adapter.slots.block.at(slot), len, slot: Some(slot) })
    }

    /// Hands a batch of its own to the device; `soon` has its completion told in any case.
    pub(super) fn post(&mut self, mut out: Out, soon: bool) -> Result<(), Fault> {
        self.unsignalled += out.batch.len();
        if out.telling || soon || self.unsignalled >= self.adapter.depth / 4 {
            out.batch.signal();
            self.unsignalled = 0;
        }
        // SAFETY: inline bytes are in `scratch`; all else is kept by `posted`, and lent memory by its owner, until the
        // completion or until the queue pair is dropped.
        unsafe { out.batch.post(self.pair()) }
            .map_err(|e| Fault::Broken(format!("the device took no more work: {e} (on {})", self.name)))
    }

    /// What was posted up to that number is done; the next of it.
    pub(super) fn done(&mut self, id: u64) -> Option<Posted> {
        let first = self.posted.pop_front_if(|first| first.id <= id)?;
        self.outstanding -= first.target.1;
        self.give_back(&first);
        Some(first)
    }

    fn give_back(&self, posted: &Posted) {
        posted.slot.into_iter().for_each(|slot| self.adapter.slots.give(slot));
        posted.stage.into_iter().for_each(|stage| self.adapter.give_stage(stage));
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // From here on the device reads nothing of it, so that others may have its memory.
        self.pair = None;
        while let Some(posted) = self.posted.pop_front() {
            self.give_back(&posted);
        }
    }
}

/// Memory for the messages of a batch that are sent inline.
type Scratch = [MaybeUninit<[u8; INLINE]>; BATCH];

/// What is put together for one rail, to be handed to its device with one call.
pub(super) struct Out {
    pub batch: Batch,
    pub scratch: Scratch,
    /// Which rail, if there is anything.
    pub lane: usize,
    /// Something waits for its completion.
    pub telling: bool,
}

impl Out {
    pub fn new() -> Out {
        let scratch = [const { MaybeUninit::uninit() }; BATCH];
        Out { batch: Batch::new(), scratch, lane: 0, telling: false }
    }

    /// Whether something for that rail may be added.
    pub fn takes(&self, lane: usize) -> bool {
        !self.batch.is_full() && (self.batch.len() == 0 || self.lane == lane)
    }
}

/// Where a message is put together.
pub(super) struct Place {
    pub ptr: *mut u8,
    pub len: usize,
    pub slot: Option<u32>,
}

impl Place {
    pub fn copy(&self, first: &[u8], second: &[u8]) {
        assert_eq!(first.len() + second.len(), self.len);
        debug_assert!(self.len <= MESSAGE);
        // SAFETY: the place is this message's alone and has room.
        unsafe {
            sys::copy(first.as_ptr(), self.ptr, first.len());
            sys::copy(second.as_ptr(), self.ptr.add(first.len()), second.len());
        }
    }
}

/// Which puts that lend memory are flushed.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    lent: u64,
    flushed: u64,
    /// Of each that is lent and not flushed: what still uses its memory.
    users: VecDeque<u32>,
}

impl Tickets {
    /// The last one lent, which is how many there were.
    pub fn lent(&self) -> u64 {
        self.lent
    }

    /// So many are flushed, in their order.
    pub fn flushed(&self) -> u64 {
        self.flushed
    }

    /// One more, whose memory has so many users.
    pub fn lend(&mut self, users: u32) -> u64 {
        self.lent += 1;
        self.users.push_back(users);
        self.lent
    }

    fn users(&mut self, ticket: u64) -> Option<&mut u32> {
        let place = ticket.checked_sub(self.flushed + 1)?;
        self.users.get_mut(place as usize)
    }

    /// Its memory has one more user.
    pub fn hold(&mut self, ticket: u64) {
        if let Some(users) = self.users(ticket) {
            *users += 1;
        }
    }

    /// It has one less; of no put (0), nothing happens.
    pub fn release(&mut self, ticket: u64) {
        if let Some(users) = self.users(ticket) {
            *users = users.saturating_sub(1);
        }
        while self.users.pop_front_if(|users| *users == 0).is_some() {
            self.flushed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_are_flushed_in_their_order_however_they_end() {
        let mut tickets = Tickets::default();
        let (first, second, third) = (tickets.lend(2), tickets.lend(1), tickets.lend(1));
        assert_eq!((first, second, third, tickets.lent()), (1, 2, 3, 3));
        tickets.release(0);
        tickets.release(second);
        tickets.release(first);
        assert_eq!(tickets.flushed(), 0);
        tickets.hold(first);
        tickets.release(first);
        assert_eq!(tickets.flushed(), 0);
        tickets.release(first);
        assert_eq!(tickets.flushed(), 2);
        tickets.release(third);
        assert_eq!((tickets.flushed(), tickets.lend(1)), (3, 4));
    }
}
