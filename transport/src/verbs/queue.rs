//! What two ranks send each other: what waits for it, what the devices are sending, and how much the peer has made room for.
//!
//! Short puts and signals travel as messages, which the peer's progress places: one packet brings data and signal, the
//! order is that of the messages, and whoever sleeps is woken by their completion. Measured with rdma-core's own tools
//! over Soft-RoCE, a message takes as long as a write. Longer parts are written by the device straight to where they
//! belong; the message with the signal follows them on the same queue pair, and its completion says that they are there.
//!
//! **Rails.** Two ranks have a queue pair for each of their rails. Messages go on the first, whose order is theirs at no
//! cost. A write goes where the fewest bytes are on their way, a long one in parts of which each does; a message follows it
//! there that says that it is in its place. Messages are numbered over all rails, and taken by number, so that a signal is
//! seen after all that was put before it, whichever rail is slow.
//!
//! **Room.** The peer posts receive requests for [`CREDITS`] messages of this rank, and each message says how many of the
//! other's were taken; so no message comes where there is no request. One that says nothing else is beyond that number.
//!
//! **Order.** A write may overtake messages that wait to be placed. One that would overlap such a message goes as
//! messages itself; from another device's memory, which no processor reads, it waits for the peer's word instead. One that
//! would overlap another write goes on the same rail, or waits.
#![allow(unsafe_code)] // memory lent by Link::put

mod exported;
mod lane;
mod receiving;
mod writing;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::keys::Keys;
use super::post::{Batch, Source, Target};
use super::wire::{self, HEAD, Message, PAYLOAD, What};
use crate::link::{Part, Signal};
use crate::{Error, Region};
pub use lane::{At, Lane};
use lane::{Out, Place, Posted, Tickets};
use writing::Write;

/// Messages that a peer may send before some of them were taken.
pub const CREDITS: u32 = 128;
/// Messages up to this many bytes are sent inline where the device can.
pub const INLINE: usize = 256;
/// Messages that are on their way at most, whoever leaves: their numbers are told apart.
const MESSAGES: u32 = 1 << 14;
/// Memory of the caller up to this many bytes is copied to registered memory: registering costs more than that.
pub const STAGE: usize = 64 << 10;
/// How often it is seen whether a peer that is waited for is there.
const BEAT: Duration = Duration::from_secs(1);
/// What stands for the write that tries whether the way is open.
pub const PROBE: u64 = (1 << 62) - 1;

/// Why a queue pair cannot go on.
#[derive(Debug)]
pub enum Fault {
    /// This rank's system refused something.
    Here(Error),
    /// The peer sent what nobody may send.
    Protocol(String),
    /// This rank would write where it may not.
    Outside(String),
    /// The connection is broken.
    Broken(String),
}

impl From<Error> for Fault {
    fn from(e: Error) -> Fault {
        Fault::Here(e)
    }
}

/// What waits.
#[derive(Debug)]
enum Op {
    /// So many of the bytes that wait.
    Message {
        len: usize,
    },
    Write(Write),
}

/// What two ranks send each other.
#[derive(Debug)]
pub struct Queue {
    /// The rails, at least one.
    lanes: Vec<Lane>,
    region: Arc<Region>,
    ops: VecDeque<Op>,
    /// Of the messages among them, the bytes.
    bytes: VecDeque<u8>,
    /// Messages that go before all others.
    urgent: VecDeque<Box<[u8]>>,
    next: u64,
    /// Messages sent, of these the ones that the peer has taken, and messages of the peer that were taken and told of.
    sent: u32,
    credited: u32,
    taken: u32,
    told: u32,
    /// The peer wants to be told.
    asked: bool,
    /// Puts that lend memory.
    tickets: Tickets,
    /// Messages whose payload may not be in its place yet: number, offset, bytes.
    unplaced: VecDeque<(u32, u64, u64)>,
    keys: Keys,
    /// What of [`Device::forgotten`](super::memory::Device::forgotten) was seen, of all rails.
    forgotten: u64,
    /// Messages that came before the way counted as open, and on which rail.
    before: Vec<(At, Box<[u8]>)>,
    /// This rank leaves.
    leaving: bool,
    /// When it was last seen whether the peer's devices answer.
    fenced: Instant,
}

impl Queue {
    /// Of these rails.
    pub fn new(lanes: Vec<Lane>, region: Arc<Region>) -> Queue {
        let forgotten = lanes.iter().map(|lane| lane.device().forgotten()).sum();
        Queue {
            lanes,
            region,
            ops: VecDeque::new(),
            bytes: VecDeque::new(),
            urgent: VecDeque::new(),
            next: 1,
            sent: 0,
            credited: 0,
            taken: 0,
            told: 0,
            asked: false,
            tickets: Tickets::default(),
            unplaced: VecDeque::new(),
            keys: Keys::default(),
            forgotten,
            before: Vec::new(),
            leaving: false,
            fenced: Instant::now(),
        }
    }

    /// The rails.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// The rail of a queue pair.
    pub fn lane(&mut self, at: At) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| lane.at == at)
    }

    /// Goes on with the rails of these indices alone, at least one.
    pub fn keep(&mut self, indices: &[usize]) {
        self.lanes.retain(|lane| indices.contains(&lane.index));
        self.forgotten = self.lanes.iter().map(|lane| lane.device().forgotten()).sum();
    }

    /// How many of the puts that lend memory are flushed.
    pub fn flushed(&self) -> u64 {
        self.tickets.flushed()
    }

    /// Whether something waits to be posted.
    pub fn waits(&self) -> bool {
        !self.ops.is_empty() || !self.urgent.is_empty() || self.must_tell() || self.is_fenced()
    }

    fn is_fenced(&self) -> bool {
        self.lanes.iter().any(|lane| lane.fence)
    }

    /// Whether the devices have everything, and have said so.
    pub fn is_done(&self) -> bool {
        let posted = self.lanes.iter().any(|lane| !lane.posted.is_empty());
        self.ops.is_empty() && self.urgent.is_empty() && !posted && !self.is_fenced()
    }

    /// Whether data, not just signals, is still on its way.
    pub fn owes(&self) -> bool {
        let data = |op: &Op| !matches!(op, Op::Message { len } if *len == HEAD);
        self.tickets.flushed() < self.tickets.lent() || self.ops.iter().any(data)
    }

    /// Whether the peer has room for one more message. Who leaves does not wait to be told so: there is mostly more room
    /// than is known of, and where there is none the device tries again.
    fn has_credit(&self) -> bool {
        self.sent.wrapping_sub(self.credited) < if self.leaving { MESSAGES } else { CREDITS }
    }

    fn must_tell(&self) -> bool {
        self.asked || self.taken.wrapping_sub(self.told) >= CREDITS / 2
    }

    /// Adds a put; gives its ticket: the number of puts so far that lend memory.
    ///
    /// # Errors
    /// Memory of another device that is not registered with this one.
    ///
    /// # Safety
    /// As [`crate::Link::put`]: parts longer than [`crate::INLINE_PART`] bytes stay valid until the ticket is flushed or the
    /// queue is dropped.
    pub unsafe fn put(&mut self, parts: &[Part], at: u64, signal: Option<Signal>) -> Result<u64, Error> {
        if Keys::is_device(at) || !self.lanes[0].device().exports().is_empty() {
            // SAFETY: the caller's promise.
            unsafe { self.put_by_device(parts, at, signal)? };
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.put_by_processor(parts, at, signal) };
        }
        Ok(self.tickets.lent())
    }

    /// Adds a put from and to memory that the processors may touch.
    ///
    /// # Safety
    /// As for [`Queue::put`].
    unsafe fn put_by_processor(&mut self, parts: &[Part], at: u64, signal: Option<Signal>) {
        let total: usize = parts.iter().map(|p| p.len).sum();
        if total <= PAYLOAD {
            // SAFETY: the caller's promise.
            unsafe { self.message(parts, at, signal) };
            return;
        }
        let mut to = at;
        for part in parts {
            if part.len <= PAYLOAD {
                // SAFETY: the caller's promise.
                unsafe { self.message(std::slice::from_ref(part), to, None) };
            } else {
                self.lend(part, to, None);
            }
            to += part.len as u64;
        }
        if signal.is_some() {
            // SAFETY: no parts.
            unsafe { self.message(&[], 0, signal) };
        }
    }

    /// # Safety
    /// The parts are valid now.
    unsafe fn message(&mut self, parts: &[Part], at: u64, signal: Option<Signal>) {
        let mut len = HEAD;
        self.bytes.extend(wire::put(at, signal));
        for part in parts.iter().filter(|part| part.len > 0) {
            // SAFETY: valid by the caller's promise, copied here.
            self.bytes.extend(unsafe { std::slice::from_raw_parts(part.ptr, part.len) });
            len += part.len;
        }
        self.ops.push_back(Op::Message { len });
    }

    /// Hands to the devices what waits, as far as there is room there and at the peer; whether anything was.
    pub fn flush(&mut self) -> Result<bool, Fault> {
        let mut moved = false;
        loop {
            let mut out = Out::new();
            while self.add(&mut out)? {}
            if out.batch.len() == 0 {
                return Ok(moved);
            }
            let leaving = self.leaving;
            self.lanes[out.lane].post(out, leaving)?;
            moved = true;
        }
    }

    /// Adds the next thing to be done to the batch; false if nothing can be.
    fn add(&mut self, out: &mut Out) -> Result<bool, Fault> {
        let has_credit = self.has_credit();
        if let Some(urgent) = self.urgent.front().filter(|_| has_credit).map(|message| message.len()) {
            let Some(place) = self.place(0, urgent, out) else { return Ok(false) };
            let message = self.urgent.pop_front().unwrap_or_default();
            place.copy(&message, &[]);
            self.send(place, out, 0);
            return Ok(true);
        }
        match self.ops.front_mut() {
            Some(Op::Message { len }) if has_credit => {
                let len = *len;
                let Some(place) = self.place(0, len, out) else { return Ok(false) };
                let (first, second) = self.bytes.as_slices();
                let split = first.len().min(len);
                place.copy(&first[..split], &second[..len - split]);
                self.bytes.drain(..len);
                self.ops.pop_front();
                self.send(place, out, 0);
                Ok(true)
            }
            Some(Op::Write(_)) => {
                let Some(Op::Write(mut write)) = self.ops.pop_front() else { return Ok(false) };
                let (advanced, over) = self.write(&mut write, out)?;
                if !over {
                    self.ops.push_front(Op::Write(write));
                }
                // What waits for a key has just asked for it.
                let asks = has_credit && !self.urgent.is_empty();
                Ok(advanced || asks || self.count(out))
            }
            _ => Ok(self.count(out)),
        }
    }

    /// Adds a message that says nothing but how many were taken, where that is due or it is to tell when it has come.
    fn count(&mut self, out: &mut Out) -> bool {
        let fenced = |lane: usize| self.lanes[lane].fence;
        let due = if self.must_tell() { Some(0) } else { (0..self.lanes.len()).find(|&lane| fenced(lane)) };
        let Some(lane) = due else { return false };
        let Some(place) = self.place(lane, HEAD, out) else { return false };
        out.telling |= std::mem::take(&mut self.lanes[lane].fence);
        place.copy(&wire::count(), &[]);
        self.send(place, out, 0);
        true
    }

    /// Whether one more work request can be added for that rail.
    fn fits(&self, lane: usize, out: &Out) -> bool {
        out.takes(lane) && self.lanes[lane].posted.len() < self.lanes[lane].adapter.depth
    }

    /// Memory for a message of so many bytes on that rail, if there is any: the batch is that rail's then.
    fn place(&self, lane: usize, len: usize, out: &mut Out) -> Option<Place> {
        if !self.fits(lane, out) {
            return None;
        }
        let place = self.lanes[lane].place(len, out)?;
        out.lane = lane;
        Some(place)
    }

    /// Adds the message there to the batch; the ticket's put is not flushed before it.
    fn send(&mut self, place: Place, out: &mut Out, ticket: u64) {
        // SAFETY: the place is this message's alone, and filled.
        let message = unsafe { std::slice::from_raw_parts_mut(place.ptr, place.len) };
        let counted = !wire::is_count(message);
        if counted {
            self.sent = self.sent.wrapping_add(1);
        }
        wire::stamp(message, self.taken, if counted { self.sent as u16 } else { 0 });
        if out.lane == 0 {
            (self.told, self.asked) = (self.taken, false);
        }
        if let Ok(Message { what: What::Put { at, payload, .. }, .. }) = wire::parse(message)
            && !payload.is_empty()
        {
            self.unplaced.push_back((self.sent, at, payload.len() as u64));
        }
        let lane = &mut self.lanes[out.lane];
        let key = lane.adapter.slots.block.memory().local_key();
        let source = Source { address: place.ptr as u64, len: place.len as u32, key };
        out.telling |= place.slot.is_some();
        out.batch.push(self.next, source, None, place.slot.is_none());
        self.tickets.hold(ticket);
        lane.posted.push_back(Posted { id: self.next, slot: place.slot, ticket, ..Posted::default() });
        self.next += 1;
    }

    /// Writes so many bytes to a place of the peer's that is there for trying the rail of that index.
    pub fn probe(&mut self, index: usize, target: Target, len: u32) -> Result<(), Fault> {
        let Some(lane) = self.lanes.iter().find(|lane| lane.index == index) else { return Ok(()) };
        let (address, key) = lane.adapter.probe_source();
        let mut batch = Batch::new();
        batch.push(PROBE, Source { address, len, key }, Some(target), false);
        batch.signal();
        // SAFETY: from the adapter's own memory, which outlives the queue pair.
        unsafe { batch.post(lane.pair()) }.map_err(|e| Fault::Broken(format!("the device took no work: {e}")))
    }

    /// The device is done with the request of that number on that rail, and all before it.
    pub fn complete(&mut self, at: At, id: u64) {
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.at == at) else { return };
        if id == PROBE {
            lane.probed = true;
            return;
        }
        while let Some(posted) = lane.done(id) {
            self.tickets.release(posted.ticket);
        }
    }

    /// This rank leaves once the peer has what was sent.
    pub fn leave(&mut self) {
        self.leaving = true;
        self.lanes.iter_mut().for_each(|lane| lane.fence = true);
    }

    /// Sees whether the peer's devices still answer, now and then, where nothing else would show it.
    pub fn beat(&mut self) {
        let mut idle = self.lanes.iter_mut().filter(|lane| lane.posted.is_empty()).peekable();
        if self.fenced.elapsed() >= BEAT && idle.peek().is_some() {
            idle.for_each(|lane| lane.fence = true);
            self.fenced = Instant::now();
        }
    }
}
