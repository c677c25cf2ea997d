//! One queue pair: what waits to be sent, what the device is sending, and how much the peer has made room for.
//!
//! Short puts and signals travel as messages, which the peer's progress places: one packet brings data and signal, the
//! order is that of the messages, and whoever sleeps is woken by their completion. Measured with rdma-core's own tools
//! over Soft-RoCE, a message takes as long as a write. Longer parts are written by the device straight to where they
//! belong; the message with the signal follows them on the same queue pair, and its completion says that they are there.
//!
//! **Room.** The peer posts receive requests for [`CREDITS`] messages of this rank, and each message says how many of the
//! other's were taken; so no message comes where there is no request. One that says nothing else is beyond that number.
//!
//! **Order.** A write may overtake messages that wait to be placed. One that would overlap such a message goes as
//! messages itself; from another device's memory, which no processor reads, it waits for the peer's word instead.
#![allow(unsafe_code)] // memory lent by Link::put

mod exported;
mod receiving;

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::adapter::Adapter;
use super::keys::{FIRST, Keys};
use super::memory::Device;
use super::post::{BATCH, Batch, Source, Target};
use super::sys::{Memory, QueuePair};
use super::wire::{self, HEAD, MESSAGE, Message, PAYLOAD, What};
use crate::link::{Part, Signal};
use crate::{Error, Region, sys};

/// Messages that a peer may send before some of them were taken.
pub const CREDITS: u32 = 128;
/// Messages up to this many bytes are sent inline where the device can.
pub const INLINE: usize = 256;
/// Bytes of one write: what is pipelined, and what comes in between others.
const PIECE: u64 = 1 << 20;
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

/// A long part on its way.
#[derive(Debug)]
struct Write {
    from: *const u8,
    len: u64,
    at: u64,
    done: u64,
    ticket: u64,
    /// The registration of the caller's own memory.
    memory: Option<Arc<Memory>>,
    /// It goes as messages.
    chopped: bool,
    /// Its memory cannot be registered: it is copied piece by piece.
    staged: bool,
    /// Another device's, which the processor cannot read: it is written from there or not at all.
    exported: bool,
    /// The peer was asked to tell what it has placed.
    waits: bool,
    /// Where `from` points, if it is a copy.
    own: Option<Box<[u8]>>,
}

impl Write {
    fn of(part: &Part, at: u64) -> Write {
        Write {
            from: part.ptr,
            len: part.len as u64,
            at,
            done: 0,
            ticket: 0,
            memory: None,
            chopped: false,
            staged: false,
            exported: false,
            waits: false,
            own: None,
        }
    }
}

// SAFETY: lent memory is only read, and its owner keeps it unchanged until it was sent, on whichever thread.
unsafe impl Send for Write {}

/// A work request that the device has.
#[derive(Debug, Default)]
struct Posted {
    id: u64,
    slot: Option<u32>,
    stage: Option<u32>,
    _memory: Option<Arc<Memory>>,
    /// The put that is flushed with it; 0: none.
    ticket: u64,
}

/// Memory for the messages of a batch that are sent inline.
type Scratch = [MaybeUninit<[u8; INLINE]>; BATCH];

/// One queue pair.
#[derive(Debug)]
pub struct Queue {
    /// There until this is dropped.
    pair: Option<QueuePair>,
    adapter: Arc<Adapter>,
    region: Arc<Region>,
    ops: VecDeque<Op>,
    /// Of the messages among them, the bytes.
    bytes: VecDeque<u8>,
    /// Messages that go before all others.
    urgent: VecDeque<Box<[u8]>>,
    posted: VecDeque<Posted>,
    next: u64,
    unsignalled: usize,
    /// Messages sent, of these the ones that the peer has taken, and messages of the peer that were taken and told of.
    sent: u32,
    credited: u32,
    taken: u32,
    told: u32,
    /// The peer wants to be told.
    asked: bool,
    /// Puts that lend memory, and of these the ones that were flushed.
    lent: u64,
    flushed: u64,
    /// Messages whose payload may not be in its place yet: number, offset, bytes.
    unplaced: VecDeque<(u32, u64, u64)>,
    keys: Keys,
    /// What of [`Device::forgotten`] was seen.
    forgotten: u64,
    /// Whether the way was found open.
    pub probed: bool,
    /// This rank leaves.
    leaving: bool,
    /// A message is to tell when the peer has it, and all before it; when the last such one was sent.
    fence: bool,
    fenced: Instant,
}

impl Queue {
    /// Of a queue pair that is joined with its peer's.
    pub fn new(pair: QueuePair, adapter: Arc<Adapter>, region: Arc<Region>) -> Queue {
        let forgotten = adapter.device.forgotten();
        Queue {
            pair: Some(pair),
            adapter,
            region,
            ops: VecDeque::new(),
            bytes: VecDeque::new(),
            urgent: VecDeque::new(),
            posted: VecDeque::new(),
            next: 1,
            unsignalled: 0,
            sent: 0,
            credited: 0,
            taken: 0,
            told: 0,
            asked: false,
            lent: 0,
            flushed: 0,
            unplaced: VecDeque::new(),
            keys: Keys::default(),
            forgotten,
            probed: false,
            leaving: false,
            fence: false,
            fenced: Instant::now(),
        }
    }

    /// The queue pair.
    pub fn pair(&self) -> &QueuePair {
        self.pair.as_ref().expect("it ends with the queue")
    }

    /// How many of the puts that lend memory are flushed.
    pub fn flushed(&self) -> u64 {
        self.flushed
    }

    /// Whether something waits to be posted.
    pub fn waits(&self) -> bool {
        !self.ops.is_empty() || !self.urgent.is_empty() || self.must_tell() || self.fence
    }

    /// Whether the device has everything, and has said so.
    pub fn is_done(&self) -> bool {
        self.ops.is_empty() && self.urgent.is_empty() && self.posted.is_empty() && !self.fence
    }

    /// Whether data, not just signals, is still on its way.
    pub fn owes(&self) -> bool {
        self.flushed < self.lent || self.ops.iter().any(|op| matches!(op, Op::Message { len } if *len > HEAD))
    }

    /// Whether the peer has room for one more message. Who leaves does not wait to be told so: there is mostly more room
    /// than is known of, and where there is none the device tries again.
    fn has_credit(&self) -> bool {
        self.leaving || self.sent.wrapping_sub(self.credited) < CREDITS
    }

    fn must_tell(&self) -> bool {
        self.asked || self.taken.wrapping_sub(self.told) >= CREDITS / 2
    }

    fn device(&self) -> &Device {
        &self.adapter.device
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
        if Keys::is_device(at) || !self.device().exports().is_empty() {
            // SAFETY: the caller's promise.
            unsafe { self.put_by_device(parts, at, signal)? };
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.put_by_processor(parts, at, signal) };
        }
        Ok(self.lent)
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
                self.lend(Write::of(part, to));
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

    /// Hands to the device what waits, as far as there is room there and at the peer; whether anything was.
    pub fn flush(&mut self) -> Result<bool, Fault> {
        let mut moved = false;
        loop {
            let mut batch = Batch::new();
            let mut scratch: Scratch = [const { MaybeUninit::uninit() }; BATCH];
            let mut telling = false;
            while !batch.is_full() && self.posted.len() < self.adapter.depth {
                if !self.add(&mut batch, &mut scratch, &mut telling)? {
                    break;
                }
            }
            let count = batch.len();
            if count == 0 {
                return Ok(moved);
            }
            self.unsignalled += count;
            if telling || self.leaving || self.unsignalled >= self.adapter.depth / 4 {
                batch.signal();
                self.unsignalled = 0;
            }
            // SAFETY: inline bytes are in `scratch`; all else is kept by `posted`, and lent memory by its owner, until the
            // completion or until the queue pair is dropped.
            unsafe { batch.post(self.pair()) }
                .map_err(|e| Fault::Broken(format!("the device took no more work: {e}")))?;
            moved = true;
        }
    }

    /// Adds the next thing to be done to the batch; false if nothing can be. `telling` is set if something waits for its
    /// completion.
    fn add(&mut self, batch: &mut Batch, scratch: &mut Scratch, telling: &mut bool) -> Result<bool, Fault> {
        let has_credit = self.has_credit();
        if let Some(urgent) = self.urgent.front().filter(|_| has_credit).map(|message| message.len()) {
            let Some(place) = self.place(urgent, batch, scratch) else { return Ok(false) };
            let message = self.urgent.pop_front().unwrap_or_default();
            place.copy(&message, &[]);
            self.send(place, batch, telling, 0);
            return Ok(true);
        }
        match self.ops.front_mut() {
            Some(Op::Message { len }) if has_credit => {
                let len = *len;
                let Some(place) = self.place(len, batch, scratch) else { return Ok(false) };
                let (first, second) = self.bytes.as_slices();
                let split = first.len().min(len);
                place.copy(&first[..split], &second[..len - split]);
                self.bytes.drain(..len);
                self.ops.pop_front();
                self.send(place, batch, telling, 0);
                Ok(true)
            }
            Some(Op::Write(_)) => {
                let Some(Op::Write(mut write)) = self.ops.pop_front() else { return Ok(false) };
                let (advanced, over) = self.write(&mut write, batch, scratch, telling)?;
                if !over {
                    self.ops.push_front(Op::Write(write));
                }
                // What waits for a key has just asked for it.
                let asks = has_credit && !self.urgent.is_empty();
                Ok(advanced || asks || self.count(batch, scratch, telling))
            }
            _ => Ok(self.count(batch, scratch, telling)),
        }
    }

    /// Adds a message that says nothing but how many were taken, where that is due or it is to tell when it has come.
    fn count(&mut self, batch: &mut Batch, scratch: &mut Scratch, telling: &mut bool) -> bool {
        if !self.must_tell() && !self.fence {
            return false;
        }
        let Some(place) = self.place(HEAD, batch, scratch) else { return false };
        *telling |= std::mem::take(&mut self.fence);
        place.copy(&wire::count(), &[]);
        self.send(place, batch, telling, 0);
        true
    }

    /// Memory for a message of so many bytes, if there is any.
    fn place(&self, len: usize, batch: &Batch, scratch: &mut Scratch) -> Option<Place> {
        if len <= INLINE.min(self.pair().inline as usize) {
            let ptr = scratch[batch.len()].as_mut_ptr().cast();
            return Some(Place { ptr, len, slot: None });
        }
        let slot = self.adapter.slots.take()?;
        Some(Place { ptr: self.adapter.slots.block.at(slot), len, slot: Some(slot) })
    }

    /// Adds the message there to the batch; the ticket's put is flushed with it.
    fn send(&mut self, place: Place, batch: &mut Batch, telling: &mut bool, ticket: u64) {
        // SAFETY: the place is this message's alone, and filled.
        let message = unsafe { std::slice::from_raw_parts_mut(place.ptr, place.len) };
        wire::set_taken(message, self.taken);
        (self.told, self.asked) = (self.taken, false);
        if !wire::is_count(message) {
            self.sent = self.sent.wrapping_add(1);
            if let Ok(Message { what: What::Put { at, payload, .. }, .. }) = wire::parse(message)
                && !payload.is_empty()
            {
                self.unplaced.push_back((self.sent, at, payload.len() as u64));
            }
        }
        let key = self.adapter.slots.block.memory().local_key();
        let source = Source { address: place.ptr as u64, len: place.len as u32, key };
        *telling |= place.slot.is_some();
        batch.push(self.next, source, None, place.slot.is_none());
        self.posted.push_back(Posted { id: self.next, slot: place.slot, ticket, ..Posted::default() });
        self.next += 1;
    }

    /// Adds a piece of a write; whether anything was added or done, and whether that was the last.
    fn write(
        &mut self,
        write: &mut Write,
        batch: &mut Batch,
        scratch: &mut Scratch,
        telling: &mut bool,
    ) -> Result<(bool, bool), Fault> {
        let (to, rest) = (write.at + write.done, write.len - write.done);
        if write.done == 0 && !write.chopped {
            let overlaps = |&(_, at, len): &(u32, u64, u64)| at < write.at + write.len && write.at < at + len;
            write.chopped = self.unplaced.iter().any(overlaps);
            if write.chopped && write.exported {
                // The processor cannot read it, so it waits until the peer says that those before it are in their place.
                write.chopped = false;
                if !std::mem::replace(&mut write.waits, true) {
                    self.urgent.push_back(wire::tell().into());
                }
                return Ok((false, false));
            }
        }
        let last = |n: u64| n == rest;
        // SAFETY: inside what was lent.
        let from = unsafe { write.from.add(write.done as usize) };
        if write.chopped {
            if !self.has_credit() {
                return Ok((false, false));
            }
            let n = rest.min(PAYLOAD as u64);
            let Some(place) = self.place(HEAD + n as usize, batch, scratch) else {
                return Ok((false, false));
            };
            // SAFETY: lent, and unchanged until the ticket is flushed.
            place.copy(&wire::put(to, None), unsafe { std::slice::from_raw_parts(from, n as usize) });
            self.send(place, batch, telling, if last(n) { write.ticket } else { 0 });
            *telling |= last(n);
            write.done += n;
            return Ok((true, last(n)));
        }
        let Some(key) = self.keys.of(write.at, write.len).map_err(Fault::Outside)? else {
            if write.at < FIRST {
                if self.keys.ask(write.at) {
                    self.urgent.push_back(wire::which_key(write.at).into());
                }
                return Ok((false, false));
            }
            // Withdrawn: nobody wants it any more. It is flushed after those before it.
            if self.posted.is_empty() {
                self.flushed = self.flushed.max(write.ticket);
            } else {
                let Some(place) = self.place(HEAD, batch, scratch) else { return Ok((false, false)) };
                place.copy(&wire::count(), &[]);
                self.send(place, batch, telling, write.ticket);
                *telling = true;
            }
            return Ok((true, true));
        };
        let mut posted = Posted { id: self.next, ..Posted::default() };
        let registered = self.registration(write);
        let n = rest.min(if registered.is_some() { PIECE } else { STAGE as u64 });
        let source = match registered {
            Some(memory) => {
                let source = Source { address: from as u64, len: n as u32, key: memory.local_key() };
                posted._memory = Some(memory);
                source
            }
            None => {
                let stages = self.adapter.stages()?;
                let Some(stage) = stages.take() else { return Ok((false, false)) };
                posted.stage = Some(stage);
                // SAFETY: lent memory on one side, a piece that nobody else has on the other.
                unsafe { sys::copy(from, stages.block.at(stage), n as usize) };
                let key = stages.block.memory().local_key();
                Source { address: stages.block.at(stage) as u64, len: n as u32, key }
            }
        };
        let target = Target { address: key.address + (to - key.begins), key: key.key };
        batch.push(self.next, source, Some(target), false);
        if last(n) {
            posted.ticket = write.ticket;
        }
        *telling = true;
        self.posted.push_back(posted);
        self.next += 1;
        write.done += n;
        Ok((true, last(n)))
    }

    /// The registration of what a write sends: its window's, or its own; none where it is short, or cannot be registered.
    fn registration(&self, write: &mut Write) -> Option<Arc<Memory>> {
        if write.staged || write.memory.is_some() {
            return write.memory.clone();
        }
        let window = self
            .region
            .offset_of(write.from, write.len as usize)
            .and_then(|offset| self.region.window(offset, write.len));
        let memory = match window {
            Some((at, size, _)) => self.device().window(&self.region, at, size),
            None if write.len <= STAGE as u64 => return None,
            None => {
                let (from, len) = (write.from.cast_mut(), write.len as usize);
                // SAFETY: lent, so it stays mapped until the put is flushed, until when the registration is kept.
                unsafe { self.device().register(from, len) }.map(Arc::new)
            }
        };
        match memory {
            Ok(memory) => write.memory = Some(memory),
            Err(e) => {
                write.staged = true;
                self.adapter.complain(&e);
            }
        }
        write.memory.clone()
    }

    /// Writes so many bytes to a place of the peer's that is there for trying.
    pub fn probe(&mut self, target: Target, len: u32) -> Result<(), Fault> {
        let (address, key) = self.adapter.probe_source();
        let mut batch = Batch::new();
        batch.push(PROBE, Source { address, len, key }, Some(target), false);
        batch.signal();
        // SAFETY: from the adapter's own memory, which outlives the queue pair.
        unsafe { batch.post(self.pair()) }.map_err(|e| Fault::Broken(format!("the device took no work: {e}")))
    }

    /// The device is done with the request of that number, and all before it.
    pub fn complete(&mut self, id: u64) {
        if id == PROBE {
            self.probed = true;
            return;
        }
        while let Some(first) = self.posted.front().filter(|first| first.id <= id) {
            if let Some(slot) = first.slot {
                self.adapter.slots.give(slot);
            }
            if let Some(stage) = first.stage {
                self.adapter.give_stage(stage);
            }
            self.flushed = self.flushed.max(first.ticket);
            self.posted.pop_front();
        }
    }

    /// This rank leaves once the peer has what was sent.
    pub fn leave(&mut self) {
        (self.leaving, self.fence) = (true, true);
    }

    /// Sees whether the peer's device still answers, now and then, where nothing else would show it.
    pub fn beat(&mut self) {
        if self.posted.is_empty() && self.fenced.elapsed() >= BEAT {
            (self.fence, self.fenced) = (true, Instant::now());
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // From here on the device reads nothing of it, so that others may have its memory.
        self.pair = None;
        for posted in self.posted.drain(..) {
            posted.slot.into_iter().for_each(|slot| self.adapter.slots.give(slot));
            posted.stage.into_iter().for_each(|stage| self.adapter.give_stage(stage));
        }
    }
}

/// Where a message is put together.
struct Place {
    ptr: *mut u8,
    len: usize,
    slot: Option<u32>,
}

impl Place {
    fn copy(&self, first: &[u8], second: &[u8]) {
        assert_eq!(first.len() + second.len(), self.len);
        debug_assert!(self.len <= MESSAGE);
        // SAFETY: the place is this message's alone and has room.
        unsafe {
            sys::copy(first.as_ptr(), self.ptr, first.len());
            sys::copy(second.as_ptr(), self.ptr.add(first.len()), second.len());
        }
    }
}
