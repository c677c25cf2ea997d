//! The loop that runs plans.
//!
//! Everything that can go on at the same time is a [`Thread`]: a lane of a plan, or, in a group, several lanes one
//! after the other. Nothing here blocks: [`Runner::step`] moves what can move, and whoever calls it waits in between.
#![allow(unsafe_code)] // lends the caller's buffers to channels

use std::collections::VecDeque;
use std::sync::Arc;

use nd_transport::Step;

use super::channel::{Body, Channel, Open};
use super::combine::{FoldState, FoldTask};
use super::grants::{Grant, LAND_FROM};
use super::layout::LANES;
use super::plan::{Op, Operand, Place, Plan, Ready};
use super::sending::{Pending, Sent};
use super::stamp::Stamp;

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
    /// A peer sent something in an earlier call that this rank did not expect there.
    LeftOver {
        /// The peer.
        peer: usize,
        /// This rank's call.
        ours: Stamp,
        /// The peer's earlier one.
        theirs: Stamp,
        /// Bytes of what it sent first.
        bytes: u64,
    },
    /// A peer has finished a call of which this rank still waits for a message, or has one for it.
    Unmatched {
        /// The peer.
        peer: usize,
        /// This rank's call.
        ours: Stamp,
        /// Bytes of the message.
        bytes: u64,
        /// Whether this rank sends it.
        sends: bool,
    },
    /// A peer's time is up.
    TimeUp,
    /// A peer has given up, so that what it lent may have changed.
    GivenUp {
        /// The peer.
        peer: usize,
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
    pub(super) fn ptr(&self, place: Place, elements: u64) -> *mut u8 {
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
    opened: Vec<Opened>,
    /// The peers that have the result which is sent to them next.
    stored: Vec<usize>,
    fold: FoldState,
}

/// A message without which a run cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Awaited {
    /// Who sends or receives it.
    pub peer: usize,
    /// Of which segment it is.
    pub segment: usize,
    /// In which lane of the channels it is.
    pub lane: usize,
    /// Its bytes.
    pub bytes: u64,
    /// Whether this rank sends it.
    pub sends: bool,
}

/// Memory that a peer was let put into.
#[derive(Debug)]
struct Opened {
    /// The op that waits for the message.
    op: usize,
    peer: usize,
    what: Open,
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
    /// The number of the first collective call of the run.
    oldest: u32,
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
        self.oldest = segments.iter().map(|s| s.stamp.sequence).find(|s| *s > 0).unwrap_or(0);
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
        while self.complete < self.sent.len() && self.sent[self.complete].is_complete(channels) {
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
            if !waits.iter().all(|m| self.sent[first + m].is_complete(channels)) {
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
                    let stored = thread.stored.iter().position(|p| p == peer);
                    let stored = stored.map(|at| thread.stored.swap_remove(at)).is_some();
                    self.post(queue, first + message, segment, (*src, *count, stored), channels)?;
                    moved = true;
                }
                Op::Fold { dst, finish, terms, fold, count, sends } => {
                    let (dst, finish, count) = (*dst, *finish, *count);
                    let opened = thread.opened.iter().any(|opened| opened.op == thread.op);
                    let oldest = self.oldest;
                    let task = FoldTask { segment, dst, finish, terms, fold, count, sends, opened, oldest };
                    let lane = thread.lane;
                    match task.advance(&mut thread.fold, lane, channels, &mut self.staging)? {
                        Step::Done => {
                            moved = true;
                            thread.store_ends(channels);
                            thread.fold.reset();
                            thread.close(channels, |opened, op| opened.op == op);
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
        (src, count, stored): (Place, u64, bool),
        channels: &mut Channels,
    ) -> Result<(), Failure> {
        let registered = segment.registered[src.space].map(|at| at + src.offset);
        let (ptr, width) = (segment.ptr(src, 0), segment.plan.widths[usize::from(src.wide)]);
        let channel = channel(channels, queue);
        let number = channel.begin();
        let body = match stored {
            true => Body::Placed { len: count * width },
            false => channel.route(ptr, registered, count * width),
        };
        let whole = stored || body.remote() || count <= segment.plan.chunk;
        if whole && self.queues[queue].is_empty() && channel.has_room(&body) {
            // SAFETY: the message's memory stays unchanged until it is complete: instructions that write it wait,
            // and a run ends when all messages are complete.
            let ticket = unsafe { channel.post(&segment.stamp, body)? };
            self.sent[message] =
                Sent { queue, posted: true, remote: body.remote(), until: channel.posted(), ticket };
            return Ok(());
        }
        let (stamp, chunk) = (segment.stamp, segment.plan.chunk);
        let pending =
            Pending { message, stamp, ptr, registered, width, count, chunk, done: 0, number, stored };
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

    /// Ends a run that failed: peers put into no memory of its calls any more, but for those who are storing something at
    /// this moment.
    pub fn give_up(&mut self, channels: &mut Channels) -> Vec<Storing> {
        let mut storing = Vec::new();
        for thread in &mut self.threads {
            thread.store_ends(channels);
            let lane = thread.lane;
            storing.extend(thread.opened.iter().filter_map(|opened| match opened.what {
                Open::Mapped { message, at, len } => {
                    Some(Storing { queue: opened.peer * LANES + lane, message, at, len })
                }
                Open::Landing(_) => None,
            }));
            thread.close(channels, |_, _| true);
        }
        storing.retain(|storing| storing.goes_on(channels));
        storing
    }

    /// The number of the first collective call of the run; 0: there is none.
    pub fn oldest(&self) -> u32 {
        self.oldest
    }

    /// The first segment that is not done; the last, if all are.
    pub fn current(&self, segments: &[Segment]) -> usize {
        let running = self.threads[..self.running].iter().filter_map(|t| Some(t.items.get(t.item)?.0)).min();
        let unsent = (self.complete < self.sent.len())
            .then(|| self.first_message.partition_point(|first| *first <= self.complete).saturating_sub(1));
        let last = segments.len().saturating_sub(1);
        running.into_iter().chain(unsent).min().unwrap_or(last).min(last)
    }

    /// The peers that the run cannot go on without at present.
    pub fn awaited(&self, segments: &[Segment], channels: &Channels) -> Vec<usize> {
        let mut peers: Vec<usize> =
            self.messages(segments, channels).iter().map(|awaited| awaited.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// The messages that the run cannot go on without at present.
    pub fn messages(&self, segments: &[Segment], channels: &Channels) -> Vec<Awaited> {
        let mut messages = Vec::new();
        // Not in the order in which they were sent: a slow receiver holds up the count, not the others.
        let sent =
            self.sent.iter().enumerate().skip(self.complete).filter(|(_, sent)| sent.is_awaited(channels));
        let queued = self.active.iter().flat_map(|queue| &self.queues[*queue]);
        let unsent: Vec<usize> = sent.map(|(message, _)| message).chain(queued.map(|p| p.message)).collect();
        for message in unsent {
            let segment = self.first_message.partition_point(|first| *first <= message).saturating_sub(1);
            let plan = &segments[segment].plan;
            let number = message - self.first_message[segment];
            let is_it = |ready: &&Ready| matches!(ready.op, Op::Send { message, .. } if message == number);
            if let Some(Ready { op: Op::Send { peer, count, src, .. }, .. }) =
                plan.lanes.iter().flatten().find(is_it)
            {
                let bytes = count * plan.widths[usize::from(src.wide)];
                let lane = self.sent[message].queue % LANES;
                messages.push(Awaited { peer: *peer, segment, lane, bytes, sends: true });
            }
        }
        for thread in &self.threads[..self.running] {
            let Some(&(segment, lane)) = thread.items.get(thread.item) else { continue };
            let plan = &segments[segment].plan;
            if let Some(Ready { op: Op::Fold { terms, count, .. }, .. }) = plan.lanes[lane].get(thread.op) {
                // Those after the first are looked at only when that has come.
                let (lane, sequence) = (thread.lane, segments[segment].stamp.sequence);
                let next = |peer: usize| channels[peer].as_ref().and_then(|c| c[lane].next());
                let come = |peer: usize| next(peer).is_some_and(|next| next.sequence == sequence);
                messages.extend(terms[thread.fold.ready..].iter().filter_map(|term| match term {
                    Operand::From { peer, wide } if !come(*peer) => {
                        let bytes = count * plan.widths[usize::from(*wide)];
                        Some(Awaited { peer: *peer, segment, lane, bytes, sends: false })
                    }
                    _ => None,
                }));
            }
        }
        messages
    }

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

/// A peer that stores a message in this rank's memory.
#[derive(Debug)]
pub struct Storing {
    queue: usize,
    message: u64,
    /// Where, as an offset in this rank's region.
    pub at: u64,
    /// Bytes.
    pub len: u64,
}

impl Storing {
    /// The peer.
    pub fn peer(&self) -> usize {
        self.queue / LANES
    }

    /// Whether it still does; if it has not begun, it cannot any more.
    pub fn goes_on(&self, channels: &mut Channels) -> bool {
        !channel(channels, self.queue).revoke(self.message)
    }
}

impl Thread {
    fn grant(&mut self, grant: &Grant, segment: &Segment, channels: &mut Channels) -> Result<(), Failure> {
        let Grant { op, peer, ahead, dst, count, returns } = *grant;
        let len = count * segment.plan.widths[usize::from(dst.wide)];
        let channel = channel(channels, peer * LANES + self.lane);
        let given = self.opened.iter().any(|opened| opened.op == op);
        if given || (!channel.maps() && (returns || len < LAND_FROM)) {
            return Ok(());
        }
        let registered = segment.registered[dst.space].map(|at| at + dst.offset);
        // SAFETY: the message's destination is the caller's, nothing reads it before the op that waits for the message,
        // and it is closed when that op is done or the run fails.
        let opened = unsafe { channel.grant(ahead, (segment.ptr(dst, 0), registered), (len, returns))? };
        self.opened.extend(opened.map(|what| Opened { op, peer, what }));
        Ok(())
    }

    /// Closes those of which `which` is true, given the current op.
    #[inline]
    fn close(&mut self, channels: &mut Channels, which: impl Fn(&Opened, usize) -> bool) {
        let (lane, op) = (self.lane, self.op);
        self.opened.retain(|opened| {
            let over = which(opened, op);
            if let (true, Open::Landing(at)) = (over, opened.what) {
                channel(channels, opened.peer * LANES + lane).link().withdraw(at);
            }
            !over
        });
    }

    /// Nothing more is stored in the memory of peers.
    #[inline]
    fn store_ends(&mut self, channels: &mut Channels) {
        for &peer in &self.fold.claimed {
            channel(channels, peer * LANES + self.lane).stored();
        }
        self.stored.append(&mut self.fold.claimed);
    }
}

/// The channel with this number: the peer's, times the lanes, plus the lane.
#[inline]
pub(super) fn channel(channels: &mut Channels, queue: usize) -> &mut Channel {
    let channel = channels[queue / LANES].as_mut().expect("programs send to other ranks only");
    &mut channel[queue % LANES]
}
