//! The loop that runs plans.
//!
//! Everything that can go on at the same time is a [`Thread`]: a lane of a plan, or, in a group, several lanes one
//! after the other. Nothing here blocks: [`Runner::step`] moves what can move, and whoever calls it waits in between.
#![allow(unsafe_code)] // reads and writes the caller's buffers and mapped memory

use std::collections::VecDeque;
use std::sync::Arc;

use nd_transport::{Part, Step, Ticket};

use super::channel::{Body, Channel};
use super::layout::LANES;
use super::memory::copy;
use super::plan::{Grant, Op, Operand, Place, Plan, Ready};
use super::stamp::Stamp;
use crate::kernel::{Destination, Kernel, Source, stream};

/// What cross-memory attach reads at a time: small enough to be reduced while it is in the cache.
const READ_BYTES: u64 = 128 << 10;

/// From this many bytes on, results that no cache would keep are stored past it.
const STREAM_FROM: u64 = 64 << 10;

/// Messages to one peer in one lane for which there is room from the start.
const QUEUED: usize = 64;

/// Why a run failed.
#[derive(Debug)]
pub enum Failure {
    /// Bytes did not move.
    Transport(nd_transport::Error),
    /// A peer is in another call.
    Mismatch {
        /// The peer.
        peer: usize,
        /// This rank's call.
        ours: Stamp,
        /// The peer's.
        theirs: Stamp,
    },
    /// A peer sent a message of another length.
    Length {
        /// The peer.
        peer: usize,
        /// This rank's call.
        ours: Stamp,
        /// Bytes that came.
        got: u64,
        /// Bytes that were expected.
        expected: u64,
    },
    /// Found out otherwise.
    Other(Box<crate::Error>),
}

impl From<crate::Error> for Failure {
    fn from(e: crate::Error) -> Failure {
        Failure::Other(Box::new(e))
    }
}

impl From<nd_transport::Error> for Failure {
    fn from(e: nd_transport::Error) -> Failure {
        Failure::Transport(e)
    }
}

/// The channels to each peer; none to this rank itself.
pub type Channels = [Option<[Channel; LANES]>];

/// A plan with the memory it runs on.
#[derive(Debug, Clone)]
pub struct Segment {
    /// What to do.
    pub plan: Arc<Plan>,
    /// Input, output, scratch, partial: the first byte of each.
    pub memory: [*mut u8; 4],
    /// Their offsets in this rank's region, where they lie in it.
    pub registered: [Option<u64>; 4],
    /// What call it is.
    pub stamp: Stamp,
}

// SAFETY: the memory is used by whoever performs the call, one thread at a time.
unsafe impl Send for Segment {}

impl Segment {
    fn ptr(&self, place: Place, elements: u64) -> *mut u8 {
        let offset = place.offset + elements * self.plan.widths[usize::from(place.wide)];
        self.memory[place.space].wrapping_add(offset as usize)
    }
}

/// A sequence of plan lanes.
#[derive(Debug, Default)]
struct Thread {
    /// Which lane of the channels it uses.
    lane: usize,
    /// Segment and plan lane, in order.
    items: Vec<(usize, usize)>,
    item: usize,
    op: usize,
    /// Ops of the current item whose grants were given.
    granted: usize,
    landings: Vec<Landing>,
    fold: FoldState,
}

/// Memory that a peer was let put into.
#[derive(Debug)]
struct Landing {
    /// The op that waits for the message.
    op: usize,
    peer: usize,
    at: u64,
}

/// How far the current fold has come.
#[derive(Debug, Default)]
struct FoldState {
    /// Elements done.
    done: u64,
    /// Terms whose data for the next elements are known to be there.
    ready: usize,
    /// Where the messages' data are.
    bodies: Vec<Option<Body>>,
    sources: Vec<Source>,
}

/// A message that is not wholly posted.
#[derive(Debug)]
struct Pending {
    message: usize,
    stamp: Stamp,
    ptr: *const u8,
    registered: Option<u64>,
    width: u64,
    count: u64,
    chunk: u64,
    done: u64,
    /// Its number among those to the peer in this lane.
    number: u64,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    queue: usize,
    posted: bool,
    /// Whether the receiver reads this rank's memory.
    remote: bool,
    /// The number of descriptors posted up to and including its last.
    until: u64,
    ticket: Ticket,
}

/// Runs segments. Keeps its memory from run to run, so that a run does not allocate.
#[derive(Debug, Default)]
pub struct Runner {
    threads: Vec<Thread>,
    running: usize,
    sent: Vec<Sent>,
    /// Messages before this one are complete.
    complete: usize,
    first_message: Vec<usize>,
    queues: Vec<VecDeque<Pending>>,
    active: Vec<usize>,
    staging: Vec<u8>,
}

// SAFETY: the raw pointers in pending messages are only used while `step` runs, by whoever holds the runner.
unsafe impl Send for Runner {}

impl Runner {
    /// Prepares for `segments`; the lanes of each run in the order and lanes that `place` gives: for a segment's
    /// lane, which thread it joins and which channel lane that thread uses.
    pub fn prepare(
        &mut self,
        segments: &[Segment],
        peers: usize,
        place: impl Fn(usize, usize) -> (usize, usize),
    ) {
        if self.queues.len() != peers * LANES {
            self.queues.resize_with(peers * LANES, || VecDeque::with_capacity(QUEUED));
            self.active.reserve(peers * LANES);
        }
        // Empty after a run that succeeded; after any other there is none.
        debug_assert!(self.active.is_empty());
        self.running = 0;
        self.first_message.clear();
        let mut messages = 0;
        for (s, segment) in segments.iter().enumerate() {
            self.first_message.push(messages);
            messages += segment.plan.messages;
            for lane in 0..segment.plan.lanes.len() {
                let (thread, channel_lane) = place(s, lane);
                while self.running <= thread {
                    if self.threads.len() == self.running {
                        self.threads.push(Thread::default());
                    }
                    let t = &mut self.threads[self.running];
                    (t.item, t.op, t.granted) = (0, 0, 0);
                    t.items.clear();
                    t.fold.reset();
                    self.running += 1;
                }
                self.threads[thread].lane = channel_lane;
                self.threads[thread].items.push((s, lane));
            }
        }
        self.sent.clear();
        self.sent.resize(messages, Sent::default());
        self.complete = 0;
    }

    /// Moves what can move.
    ///
    /// # Safety
    /// The segments are those that were prepared, and their memory is valid for their plans, and only this rank's
    /// runs and its peers' reads touch it.
    pub unsafe fn step(&mut self, segments: &[Segment], channels: &mut Channels) -> Result<Step, Failure> {
        let mut moved = false;
        let mut finished = true;
        for t in 0..self.running {
            moved |= self.advance(t, segments, channels)?;
            finished &= self.threads[t].item == self.threads[t].items.len();
        }
        moved |= self.pump(channels)?;
        while self.complete < self.sent.len() && is_complete(&self.sent[self.complete], channels) {
            self.complete += 1;
            moved = true;
        }
        Ok(match finished && self.complete == self.sent.len() {
            true => Step::Done,
            false if moved => Step::Moved,
            false => Step::Idle,
        })
    }

    /// Runs a thread as far as it comes; whether it came any further.
    fn advance(&mut self, t: usize, segments: &[Segment], channels: &mut Channels) -> Result<bool, Failure> {
        let mut moved = false;
        loop {
            let thread = &mut self.threads[t];
            let Some(&(s, lane)) = thread.items.get(thread.item) else { return Ok(moved) };
            let segment = &segments[s];
            let Some(Ready { op, waits, grants }) = segment.plan.lanes[lane].get(thread.op) else {
                (thread.item, thread.op, thread.granted) = (thread.item + 1, 0, 0);
                continue;
            };
            let first = self.first_message[s];
            if !waits.iter().all(|m| is_complete(&self.sent[first + m], channels)) {
                return Ok(moved);
            }
            if thread.granted == thread.op {
                thread.granted += 1;
                for grant in grants {
                    thread.grant(grant, segment, channels)?;
                }
            }
            match op {
                Op::Send { peer, message, src, count } => {
                    let queue = peer * LANES + thread.lane;
                    self.post(queue, first + message, segment, *src, *count, channels)?;
                    moved = true;
                }
                Op::Fold { dst, finish, terms, fold, count } => {
                    let task = FoldTask { segment, dst: *dst, finish: *finish, terms, fold, count: *count };
                    let lane = thread.lane;
                    match task.advance(&mut thread.fold, lane, channels, &mut self.staging)? {
                        Step::Done => {
                            moved = true;
                            thread.fold.reset();
                            thread.withdraw(channels, |landing, op| landing.op == op);
                        }
                        Step::Moved => return Ok(true),
                        Step::Idle => return Ok(moved),
                    }
                }
            }
            self.threads[t].op += 1;
        }
    }

    /// Posts a message, or queues what of it cannot be posted now.
    #[inline]
    fn post(
        &mut self,
        queue: usize,
        message: usize,
        segment: &Segment,
        src: Place,
        count: u64,
        channels: &mut Channels,
    ) -> Result<(), Failure> {
        let registered = segment.registered[src.space].map(|at| at + src.offset);
        let (ptr, width) = (segment.ptr(src, 0), segment.plan.widths[usize::from(src.wide)]);
        let channel = channel(channels, queue);
        let number = channel.begin();
        let body = channel.route(ptr, registered, count * width);
        let whole = body.remote() || count <= segment.plan.chunk;
        if whole && self.queues[queue].is_empty() && channel.has_slot() {
            // SAFETY: the message's memory stays unchanged until it is complete: instructions that write it wait,
            // and a run ends when all messages are complete.
            let ticket = unsafe { channel.post(&segment.stamp, body)? };
            self.sent[message] =
                Sent { queue, posted: true, remote: body.remote(), until: channel.posted(), ticket };
            return Ok(());
        }
        let (stamp, chunk) = (segment.stamp, segment.plan.chunk);
        let pending = Pending { message, stamp, ptr, registered, width, count, chunk, done: 0, number };
        self.queue(queue, pending, channels)
    }

    fn queue(&mut self, queue: usize, mut pending: Pending, channels: &mut Channels) -> Result<(), Failure> {
        self.sent[pending.message].queue = queue;
        let waiting = !self.queues[queue].is_empty();
        if !waiting && pending.push(channel(channels, queue), &mut self.sent[pending.message])? {
            return Ok(());
        }
        if !waiting {
            self.active.push(queue);
        }
        self.queues[queue].push_back(pending);
        Ok(())
    }

    /// Posts what is queued, as far as there are slots.
    fn pump(&mut self, channels: &mut Channels) -> Result<bool, Failure> {
        let mut moved = false;
        let mut i = 0;
        while i < self.active.len() {
            let queue = self.active[i];
            let channel = channel(channels, queue);
            while let Some(front) = self.queues[queue].front_mut() {
                let before = front.done;
                let whole = front.push(channel, &mut self.sent[front.message])?;
                moved |= whole || front.done > before;
                if !whole {
                    break;
                }
                self.queues[queue].pop_front();
            }
            if self.queues[queue].is_empty() {
                self.active.swap_remove(i);
            } else {
                i += 1;
            }
        }
        Ok(moved)
    }

    /// Ends a run that failed: peers put into no memory of its calls any more.
    pub fn give_up(&mut self, channels: &mut Channels) {
        for thread in &mut self.threads {
            thread.withdraw(channels, |_, _| true);
        }
    }

    /// The peers that the run cannot go on without at present.
    pub fn awaited(&self, segments: &[Segment]) -> Vec<usize> {
        let mut peers: Vec<usize> = self.active.iter().map(|q| q / LANES).collect();
        peers.extend(self.sent[self.complete..].iter().filter(|s| s.posted).map(|s| s.queue / LANES));
        for thread in &self.threads[..self.running] {
            let Some(&(s, lane)) = thread.items.get(thread.item) else { continue };
            if let Some(Ready { op: Op::Fold { terms, .. }, .. }) =
                segments[s].plan.lanes[lane].get(thread.op)
            {
                peers.extend(terms[thread.fold.ready..].iter().filter_map(|term| match term {
                    Operand::From { peer, .. } => Some(*peer),
                    Operand::Own(_) => None,
                }));
            }
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

impl Runner {
    /// The peers from which something has come in this run.
    pub fn heard(&self, segments: &[Segment]) -> Vec<usize> {
        let mut peers = Vec::new();
        for thread in &self.threads[..self.running] {
            for (i, &(s, lane)) in thread.items.iter().enumerate().take(thread.item + 1) {
                let whole = if i < thread.item { usize::MAX } else { thread.op };
                for (o, ready) in
                    segments[s].plan.lanes[lane].iter().enumerate().take(whole.saturating_add(1))
                {
                    let Op::Fold { terms, .. } = &ready.op else { continue };
                    let come = match o < whole || thread.fold.done > 0 {
                        true => terms.len(),
                        false => thread.fold.ready,
                    };
                    peers.extend(terms[..come].iter().filter_map(|term| match term {
                        Operand::From { peer, .. } => Some(*peer),
                        Operand::Own(_) => None,
                    }));
                }
            }
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

impl Thread {
    fn grant(&mut self, grant: &Grant, segment: &Segment, channels: &mut Channels) -> Result<(), Failure> {
        let Grant { op, peer, ahead, dst, count } = *grant;
        let len = count * segment.plan.widths[usize::from(dst.wide)];
        let channel = channel(channels, peer * LANES + self.lane);
        // SAFETY: the message's destination is the caller's, nothing reads it before the op that waits for the message,
        // and it is withdrawn when that op is done or the run fails.
        let landing = unsafe { channel.grant(ahead, segment.ptr(dst, 0), len)? };
        self.landings.extend(landing.map(|at| Landing { op, peer, at }));
        Ok(())
    }

    /// Withdraws those of which `which` is true, given the current op.
    #[inline]
    fn withdraw(&mut self, channels: &mut Channels, which: impl Fn(&Landing, usize) -> bool) {
        let (lane, op) = (self.lane, self.op);
        self.landings.retain(|landing| {
            let over = which(landing, op);
            if over {
                channel(channels, landing.peer * LANES + lane).link().withdraw(landing.at);
            }
            !over
        });
    }
}

#[inline]
fn channel(channels: &mut Channels, queue: usize) -> &mut Channel {
    let channel = channels[queue / LANES].as_mut().expect("programs send to other ranks only");
    &mut channel[queue % LANES]
}

#[inline]
fn is_complete(sent: &Sent, channels: &mut Channels) -> bool {
    sent.posted && {
        let channel = channel(channels, sent.queue);
        match sent.remote {
            true => channel.consumed(sent.until),
            // Written at once.
            false => sent.ticket == Ticket::default() || channel.link().flushed(sent.ticket),
        }
    }
}

impl Pending {
    /// Posts as much as there are slots for; whether that is all.
    fn push(&mut self, channel: &mut Channel, sent: &mut Sent) -> Result<bool, Failure> {
        let body = channel.route(self.ptr, self.registered, self.count * self.width);
        while self.done < self.count {
            if !channel.has_slot() {
                return Ok(false);
            }
            let ptr = self.ptr.wrapping_add((self.done * self.width) as usize);
            if let Some(at) = channel.granted(self.number, self.count * self.width) {
                let len = (self.count - self.done) * self.width;
                let rest = Part { ptr, len: len as usize };
                // SAFETY: as below.
                sent.ticket = unsafe { channel.place(&self.stamp, rest, at + self.done * self.width)? };
                break;
            }
            let (n, body) = if body.remote() {
                (self.count, body)
            } else {
                let n = (self.count - self.done).min(self.chunk);
                (n, Body::Here { ptr, len: n * self.width })
            };
            // SAFETY: the message's memory stays unchanged until it is complete: instructions that write it wait,
            // and a run ends when all messages are complete.
            sent.ticket = unsafe { channel.post(&self.stamp, body)? };
            self.done += n;
        }
        sent.remote = body.remote();
        sent.until = channel.posted();
        sent.posted = true;
        Ok(true)
    }
}

impl FoldState {
    fn reset(&mut self) {
        (self.done, self.ready) = (0, 0);
        self.bodies.clear();
    }
}

/// A fold with the segment it belongs to.
struct FoldTask<'a> {
    segment: &'a Segment,
    dst: Place,
    finish: bool,
    terms: &'a [Operand],
    fold: &'a crate::fold::Fold,
    count: u64,
}

impl FoldTask<'_> {
    fn width(&self, wide: bool) -> u64 {
        self.segment.plan.widths[usize::from(wide)]
    }

    /// Does the next chunk, if all its data are there.
    fn advance(
        &self,
        state: &mut FoldState,
        lane: usize,
        channels: &mut Channels,
        staging: &mut Vec<u8>,
    ) -> Result<Step, Failure> {
        if !self.collect(state, lane, channels)? {
            return Ok(Step::Idle);
        }
        let left = self.count - state.done;
        let here = |b: &Option<Body>| matches!(b, Some(Body::Here { .. }));
        let n = match state.bodies.iter().any(here) {
            true => left.min(self.segment.plan.chunk),
            false => left.min(self.bulk(&state.bodies)),
        };
        self.check(state, n)?;
        self.combine(state, n, channels, staging)?;
        state.done += n;
        let last = state.done == self.count;
        for (term, body) in self.terms.iter().zip(&mut state.bodies) {
            if let (Operand::From { peer, .. }, Some(found)) = (term, &*body) {
                let remote = found.remote();
                let channel = channel(channels, peer * LANES + lane);
                if last || !remote {
                    channel.take(remote)?;
                    *body = None;
                }
                if last {
                    channel.end();
                }
            }
        }
        state.ready = 0;
        Ok(if last { Step::Done } else { Step::Moved })
    }

    /// Looks for the messages' next descriptors; whether all are there.
    fn collect(&self, state: &mut FoldState, lane: usize, channels: &mut Channels) -> Result<bool, Failure> {
        state.bodies.resize(self.terms.len(), None);
        while let Some(term) = self.terms.get(state.ready) {
            if let (Operand::From { peer, .. }, None) = (term, &state.bodies[state.ready]) {
                let ours = self.segment.stamp;
                match channel(channels, peer * LANES + lane).peek(&ours) {
                    Ok(Some(body)) => state.bodies[state.ready] = Some(body),
                    Ok(None) => return Ok(false),
                    Err(theirs) => return Err(Failure::Mismatch { peer: *peer, ours, theirs }),
                }
            }
            state.ready += 1;
        }
        Ok(true)
    }

    /// Elements that can be done at once when nothing comes through slots.
    fn bulk(&self, bodies: &[Option<Body>]) -> u64 {
        let read = bodies.iter().any(|b| matches!(b, Some(Body::Address { .. })));
        if read && !self.plain_copy() { READ_BYTES / self.width(true) } else { u64::MAX }
    }

    /// Whether the result is one message as it is.
    fn plain_copy(&self) -> bool {
        let wide = match self.terms {
            [Operand::Own(place)] => place.wide,
            [Operand::From { wide, .. }] => *wide,
            _ => return false,
        };
        !self.finish && self.fold.ops().len() == 1 && self.width(wide) == self.width(self.dst.wide)
    }

    /// Whether the messages have the lengths that this rank expects.
    fn check(&self, state: &FoldState, n: u64) -> Result<(), Failure> {
        for (term, body) in self.terms.iter().zip(&state.bodies) {
            if let (Operand::From { peer, wide }, Some(body)) = (term, body) {
                let elements = if body.remote() { self.count } else { n };
                let expected = elements * self.width(*wide);
                if body.len() != expected {
                    let (got, ours) = (body.len(), self.segment.stamp);
                    return Err(Failure::Length { peer: *peer, ours, got, expected });
                }
            }
        }
        Ok(())
    }

    /// Combines `n` elements of all terms, whose data are there.
    fn combine(
        &self,
        state: &mut FoldState,
        n: u64,
        channels: &mut Channels,
        staging: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let dst = self.segment.ptr(self.dst, state.done);
        let mut staged = 0;
        state.sources.clear();
        for (term, body) in self.terms.iter().zip(&state.bodies) {
            let (ptr, wide) = match (term, body) {
                (Operand::Own(place), _) => (self.segment.ptr(*place, state.done).cast_const(), place.wide),
                (Operand::From { peer, wide }, Some(body)) => {
                    let at = state.done * self.width(*wide);
                    let len = n * self.width(*wide);
                    let link = channel(channels, peer * LANES).link();
                    let ptr = match body {
                        Body::Here { ptr, .. } => *ptr,
                        // Granted only to ops that copy.
                        Body::Placed { .. } => dst.cast_const(),
                        Body::Window { offset, .. } => {
                            let lost = || nd_transport::Error::Protocol {
                                rank: *peer,
                                what: format!("{len} bytes at {offset} of a region that cannot be mapped"),
                            };
                            link.map(offset + at, len).ok_or_else(lost)?.as_ptr().cast_const()
                        }
                        Body::Address { address, .. } => {
                            let to = if self.plain_copy() {
                                dst
                            } else {
                                let end = staged + len as usize;
                                if staging.len() < self.terms.len() * READ_BYTES as usize {
                                    staging.resize(self.terms.len() * READ_BYTES as usize, 0);
                                }
                                let to = staging[staged..end].as_mut_ptr();
                                staged = end;
                                to
                            };
                            // SAFETY: the destination or the staging has room; the sender keeps its memory unchanged
                            // until the message is taken.
                            unsafe { link.read(address + at, to, len as usize)? };
                            to.cast_const()
                        }
                    };
                    (ptr, *wide)
                }
                (Operand::From { .. }, None) => unreachable!("collected before"),
            };
            state.sources.push(Source { ptr, wide });
        }
        // SAFETY: the sources are readable for `n` elements: own memory by the caller's promise, messages because
        // they have the expected length and stay until taken. The verifier has shown that destinations overlap
        // terms only exactly.
        unsafe { self.store(dst, &mut state.sources, n) };
        Ok(())
    }

    /// # Safety
    /// As for [`Kernel::fold`].
    unsafe fn store(&self, dst: *mut u8, sources: &mut [Source], n: u64) {
        let len = n * self.width(self.dst.wide);
        let streams = self.segment.plan.streams && len >= STREAM_FROM;
        if self.plain_copy() {
            let from = sources[0].ptr;
            // SAFETY: the caller's promise.
            unsafe {
                match streams {
                    _ if from == dst.cast_const() => {}
                    true => stream::copy(from, dst, len as usize),
                    false => copy(from, dst, len as usize),
                }
            }
            return;
        }
        let kernel: &Kernel = self.segment.plan.kernel.as_ref().expect("only reductions combine or convert");
        let dst = Destination { ptr: dst, wide: self.dst.wide, finish: self.finish };
        // SAFETY: the caller's promise.
        unsafe {
            match streams {
                true => stream::fold(kernel, self.fold, sources, dst, n as usize),
                false => kernel.fold(self.fold, sources, dst, n as usize),
            }
        }
    }
}
