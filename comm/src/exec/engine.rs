//! A communicator's channels, scratch memory and plans: performs calls, and tells the peers when one fails.
#![allow(unsafe_code)] // hands the caller's buffers to the runner

mod failing;
mod going;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nd_transport::{Endpoint, Window};

use super::called::Called;
use super::channel::Channel;
use super::ending::Ending;
use super::history::History;
use super::layout::{self, LANES};
use super::memory::{LaneMemory, copy};
use super::peers::was_late;
use super::plans::Plans;
use super::run::{Runner, Segment};
use super::stamp::{Stamp, Within, wire_number};
use super::waiting::Waiting;
use crate::choose::{Chooser, Tuner};
use crate::cost::Calibration;
use crate::cost::hosts::{Cores, Machines};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::number::{DataType, ReduceOp};
use crate::recorder::Recorder;
use crate::schedule::{Alias, Collective, Counts, Layout, Space};
use going::{Going, places};

/// Scratch beyond this many bytes is given back after the call.
const KEPT_SCRATCH: u64 = 64 << 20;

/// One call, its arguments checked.
#[derive(Debug, Clone)]
pub struct Call {
    /// Which collective.
    pub collective: Collective,
    /// What it is part of.
    pub within: Within,
    /// How much.
    pub counts: Counts,
    /// The root; the peer of a send or receive.
    pub root: u32,
    /// In place or not.
    pub alias: Alias,
    /// The element type.
    pub data_type: DataType,
    /// The operation, for collectives that reduce.
    pub op: Option<ReduceOp>,
    /// What the caller gives; null for a receive.
    pub input: *const u8,
    /// What the caller gets; null for a send.
    pub output: *mut u8,
}

// SAFETY: a call is performed by one thread at a time, while its caller waits or has given its buffers away.
unsafe impl Send for Call {}

/// What people know the call by.
#[inline]
fn called(call: &Call, segment: &Segment) -> Called {
    Called { stamp: segment.stamp, peer: call.root, sends: call.output.is_null() }
}

/// A communicator's side of everything below it.
pub struct Engine {
    endpoint: Endpoint,
    channels: Vec<Option<[Channel; LANES]>>,
    /// There until this is dropped.
    inbox: Option<Window>,
    scratch: Vec<Window>,
    runner: Runner,
    segments: Vec<Segment>,
    plans: Plans,
    /// Collective calls so far.
    entered: u64,
    history: History,
    waiting: Waiting,
    failed: Option<String>,
    /// The rank that aborted, if that is how it failed.
    aborted_by: Option<usize>,
    /// The peers that were told that others go on without them.
    left_behind: Vec<usize>,
    ending: Arc<Ending>,
    recorder: Arc<Recorder>,
    /// See [`layout::LATE`].
    late: LaneMemory,
}

impl Engine {
    /// On an endpoint; `inboxes` tells where each rank's inboxes begin in its region (`inbox` is this rank's).
    pub(crate) fn new(
        endpoint: Endpoint,
        inbox: Window,
        inboxes: &[u64],
        chooser: Chooser,
        recorder: Arc<Recorder>,
    ) -> Engine {
        let me = endpoint.rank();
        let own = |peer: usize, lane: usize| {
            let own = endpoint.region().at(inbox.offset() + layout::lane(peer, lane), layout::LANE);
            // SAFETY: the inbox window lives as long as the engine, and with it all its channels.
            unsafe { LaneMemory::new(own) }
        };
        let channel = |peer: usize, lane: usize| {
            let (link, own) = (endpoint.link(peer)?, own(peer, lane));
            Some(Channel::new(link.clone(), own, inboxes[peer] + layout::lane(me, lane), layout::LANE))
        };
        let channels = |peer: usize| {
            let mut lanes = (0..LANES).filter_map(|lane| channel(peer, lane));
            Some([lanes.next()?, lanes.next()?, lanes.next()?])
        };
        let layout = Arc::new(Layout::new(&endpoint.hosts()));
        let machines = Machines {
            layout: layout.clone(),
            transports: endpoint.transports(),
            cores: Cores::of(&layout, |rank| (endpoint.machine(rank), endpoint.cores(rank))),
            costs: chooser.costs.clone().unwrap_or_else(|| Arc::new(Calibration::typical().clone())),
        };
        let channels = (0..endpoint.world_size()).map(channels).collect();
        let (history, late) = (History::new(own(me, 0)), own(me, 1));
        Engine {
            channels,
            history,
            inbox: Some(inbox),
            scratch: Vec::new(),
            runner: Runner::default(),
            segments: Vec::new(),
            plans: Plans::new(me, layout, Tuner::new(chooser, machines)),
            entered: 0,
            waiting: Waiting::default(),
            failed: None,
            aborted_by: None,
            left_behind: Vec::new(),
            ending: Arc::default(),
            recorder,
            late,
            endpoint,
        }
    }

    /// The endpoint below.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Who shares a host with whom.
    pub fn layout(&self) -> &Arc<Layout> {
        self.plans.layout()
    }

    /// How calls are performed.
    pub fn plans(&mut self) -> &mut Plans {
        &mut self.plans
    }

    /// What the program has asked for.
    pub(crate) fn ending(&self) -> &Arc<Ending> {
        &self.ending
    }

    /// So many collective calls were made.
    #[cfg(test)]
    pub fn renumber(&mut self, calls: u64) {
        self.entered = calls;
    }

    fn rank(&self) -> usize {
        self.endpoint.rank()
    }

    /// Performs calls, all at the same time, within `timeout`. Collectives run in their order in one of a few lanes.
    ///
    /// # Safety
    /// The buffers of the calls are valid for their counts, nobody else uses them meanwhile, and they overlap only
    /// as their `alias` says.
    pub unsafe fn perform(&mut self, calls: &[Call], timeout: Duration) -> Result<()> {
        if let Some(error) = self.refusal() {
            return Err(error);
        }
        let mut segments = std::mem::take(&mut self.segments);
        // SAFETY: the caller's promise.
        let result = unsafe { self.perform_with(calls, &mut segments, timeout) };
        self.segments = segments;
        if let Err(e) = &result {
            self.fail(e);
            if self.failed.is_some() {
                self.recorder.failed(e);
            }
        }
        // What waits to be sent may lie there; after a failure it waits no more.
        if result.is_err() || self.scratch.iter().map(Window::len).sum::<u64>() > KEPT_SCRATCH {
            self.segments.clear();
            self.scratch.clear();
        }
        result
    }

    /// # Safety
    /// As for [`Engine::perform`].
    unsafe fn perform_with(
        &mut self,
        calls: &[Call],
        segments: &mut Vec<Segment>,
        timeout: Duration,
    ) -> Result<()> {
        // Once memory was detached, buffers may have other places than they had.
        if self.plans.repeat(calls, segments) && !self.endpoint.region().any_detached() {
            for (call, segment) in calls.iter().zip(&mut *segments) {
                segment.stamp.sequence = self.number(call);
            }
            // SAFETY: the caller's promise.
            return unsafe { self.run(calls, segments, timeout) };
        }
        segments.clear();
        self.plans.begin(calls.len());
        // SAFETY: the caller's promise.
        unsafe { self.messages_to_itself(calls)? };
        for (i, call) in calls.iter().enumerate() {
            // SAFETY: the caller's promise.
            segments.push(unsafe { self.segment(call, i)? });
        }
        // SAFETY: the caller's promise.
        unsafe { self.run(calls, segments, timeout) }
    }

    /// The number of the next call; sends and receives have none.
    #[inline]
    fn number(&mut self, call: &Call) -> u32 {
        if call.collective == Collective::SendRecv {
            return 0;
        }
        self.entered += 1;
        wire_number(self.entered)
    }

    /// Copies what the rank sends to itself; the k-th send belongs to the k-th receive.
    ///
    /// # Safety
    /// As for [`Engine::perform`].
    unsafe fn messages_to_itself(&self, calls: &[Call]) -> Result<()> {
        let rank = self.rank();
        let own = |c: &&Call| c.collective == Collective::SendRecv && c.root as usize == rank;
        let mut sends = calls.iter().filter(own).filter(|c| c.output.is_null());
        let mut receives = calls.iter().filter(own).filter(|c| !c.output.is_null());
        loop {
            let (send, recv) = (sends.next(), receives.next());
            match (send, recv) {
                (None, None) => return Ok(()),
                (Some(s), Some(r)) if s.counts == r.counts && s.data_type == r.data_type => {
                    let len = s.counts.part(0) as usize * s.data_type.size();
                    // SAFETY: the caller's promise: both are valid and do not overlap.
                    unsafe { copy(s.input, r.output, len) };
                }
                _ => {
                    let what = |c: Option<&Call>| match c {
                        Some(c) => format!("{} × {}", c.counts.part(0), c.data_type.name()),
                        None => "nothing".into(),
                    };
                    return Err(Error::InvalidArgument {
                        rank,
                        call: "send/recv",
                        problem: format!("it sends {} to itself and receives {}", what(send), what(recv)),
                        remedy: "put a send and a receive of the same length into one group".into(),
                    });
                }
            }
        }
    }

    /// The plan of a call, with its memory.
    ///
    /// # Safety
    /// As for [`Engine::perform`].
    unsafe fn segment(&mut self, call: &Call, index: usize) -> Result<Segment> {
        let plan = self.plans.of(call, index)?;
        let (mut input, output) = (call.input.cast_mut(), call.output);
        let premultiplies = matches!(call.op, Some(ReduceOp::PreMulSum(_)));
        let input_bytes = plan.lens[Space::Input as usize];
        // In place the input is the caller's to change, but not where it is only an input.
        let only_input = call.alias == Alias::None
            || (call.collective == Collective::Reduce && call.root as usize != self.rank());
        let extra = if premultiplies && only_input { input_bytes } else { 0 };
        let extra_at = plan.scratch.next_multiple_of(64);
        let scratch = self.scratch(index, extra_at + extra)?;
        if let (true, Some(kernel)) = (premultiplies, &plan.kernel) {
            let kernel = Kernel::new(call.data_type, call.op.unwrap_or(ReduceOp::Sum), 1).unwrap_or(*kernel);
            let to = if extra > 0 { scratch.wrapping_add(extra_at as usize) } else { input };
            let count = input_bytes as usize / call.data_type.size();
            // SAFETY: the caller's promise.
            unsafe { kernel.premultiply(input, to, count) };
            input = to;
        }
        let memory = [input, output, scratch, scratch.wrapping_add(plan.partial_at as usize)];
        let region = self.endpoint.region();
        let registered = std::array::from_fn(|i| region.offset_of(memory[i], plan.lens[i] as usize));
        let sequence = self.number(call);
        let stamp = self.stamp(call, sequence, plan.algorithm);
        Ok(Segment { plan, memory, registered, stamp })
    }

    fn stamp(&self, call: &Call, sequence: u32, algorithm: u8) -> Stamp {
        let (count, root, variable) = match &call.counts {
            Counts::Equal(count) => (*count, if call.collective.has_root() { call.root } else { 0 }, 0),
            // The root alone knows all counts of these.
            Counts::PerRank(_) if call.collective.has_root() => (0, call.root, Stamp::VARIABLE),
            Counts::PerRank(counts) => {
                let mixed = counts.iter().fold(0u64, |h, c| (h ^ c).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                (counts.iter().sum(), (mixed >> 32) as u32, Stamp::VARIABLE)
            }
            Counts::Pairwise { .. } => (0, 0, Stamp::VARIABLE),
        };
        Stamp {
            sequence,
            collective: call.collective as u8 | call.within as u8 | variable,
            data_type: if call.collective == Collective::Barrier { 0 } else { call.data_type as u8 },
            op: call.op.map_or(0, ReduceOp::code),
            algorithm,
            count,
            root,
        }
    }

    /// `len` bytes of scratch for the `index`-th call of a group, in registered memory.
    fn scratch(&mut self, index: usize, len: u64) -> Result<*mut u8> {
        if len == 0 {
            return Ok(std::ptr::null_mut());
        }
        let rank = self.rank();
        let region = self.endpoint.region();
        let alloc = |len| region.alloc(len, false).map_err(|source| Error::Transport { rank, source });
        while self.scratch.len() <= index {
            self.scratch.push(alloc(1)?);
        }
        if self.scratch[index].len() < len {
            self.scratch[index] = alloc(len.next_power_of_two())?;
            self.scratch[index].back_by_huge_pages(len);
        }
        Ok(self.scratch[index].ptr().as_ptr())
    }

    /// # Safety
    /// As for [`Engine::perform`].
    unsafe fn run(&mut self, calls: &[Call], segments: &[Segment], timeout: Duration) -> Result<()> {
        self.recorder.enter(calls, segments);
        self.runner.prepare(segments, self.channels.len(), places(calls, segments));
        let going = Going {
            calls,
            segments,
            entered: self.entered,
            history: self.history,
            endpoint: &self.endpoint,
            ending: &self.ending,
            recorder: &self.recorder,
            runner: RefCell::new(&mut self.runner),
            channels: RefCell::new(&mut self.channels),
            waiting: RefCell::new(&mut self.waiting),
            watching: Cell::new(0),
            closed: Cell::new(false),
        };
        // SAFETY: the segments are those that were prepared; their memory by the caller's promise.
        let waited = going.endpoint.wait(timeout, || unsafe { going.step() }, || going.tick());
        going.end(waited, timeout)?;
        drop(going);
        self.recorder.done(segments.len());
        if let (Some(call), Some(segment)) = (calls.last(), segments.last()) {
            self.history.push(called(call, segment));
        }
        if self.late.word(layout::LATE).load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let last = segments.iter().rev().map(|segment| segment.stamp.sequence).find(|&number| number > 0);
        last.and_then(|call| was_late(&self.endpoint, &self.channels, call)).map_or(Ok(()), Err)
    }
}
