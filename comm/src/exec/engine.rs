//! A communicator's channels, scratch memory and plans: performs calls, and tells the peers when one fails.
#![allow(unsafe_code)] // hands the caller's buffers to the runner

mod failing;

use std::sync::Arc;
use std::time::Duration;

use nd_transport::{Endpoint, Step, Window};

use super::called::Called;
use super::channel::Channel;
use super::ending::Ending;
use super::history::History;
use super::layout::{self, LANES, P2P_LANE};
use super::memory::{LaneMemory, copy};
use super::peers::{failure, reach, reports, settle, told};
use super::plans::Plans;
use super::roll_call;
use super::run::{Failure, Runner, Segment};
use super::stamp::{Stamp, Within, wire_number};
use super::standstill::Whereabouts;
use super::waiting::{Now, Waiting, left_overs};
use crate::choose::{Chooser, Tuner};
use crate::cost::Calibration;
use crate::cost::hosts::{Cores, Machines};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::number::{DataType, ReduceOp};
use crate::recorder::Recorder;
use crate::schedule::{Alias, Collective, Counts, Layout, MAX_LANES, Space};

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

/// Does something when it is dropped.
struct Closing<F: Fn()>(F);

impl<F: Fn()> Drop for Closing<F> {
    fn drop(&mut self) {
        (self.0)();
    }
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
        let history = History::new(own(me, 0));
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
        if result.is_err() || self.scratch.iter().map(Window::len).sum::<u64>() > KEPT_SCRATCH {
            self.segments.clear();
            self.scratch.clear();
        }
        if let Err(e) = &result {
            self.fail(e);
            if self.failed.is_some() {
                self.recorder.failed(e);
            }
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
        }
        Ok(self.scratch[index].ptr().as_ptr())
    }

    /// # Safety
    /// As for [`Engine::perform`].
    unsafe fn run(&mut self, calls: &[Call], segments: &[Segment], timeout: Duration) -> Result<()> {
        // Sends and receives each get a thread of their own, but those with one peer in one direction share it, so
        // that their order is kept.
        let single = |c: &Call| c.collective == Collective::SendRecv;
        let thread = |i: usize| {
            let same = |c: &&Call| {
                single(c) && c.root == calls[i].root && c.output.is_null() == calls[i].output.is_null()
            };
            let first = calls.iter().position(|c| same(&c)).unwrap_or(i);
            MAX_LANES + first
        };
        // By its number, so that calls match whether they are made in a group or one by one.
        let place = |segment: usize, lane: usize| match single(&calls[segment]) {
            true => (thread(segment), P2P_LANE),
            false => {
                let lane = (segments[segment].stamp.sequence as usize + lane) % MAX_LANES;
                (lane, lane)
            }
        };
        self.recorder.enter(calls, segments);
        self.runner.prepare(segments, self.channels.len(), place);
        let history = self.history;
        let entered = self.entered;
        let Engine { endpoint, channels, runner, waiting, .. } = self;
        let runner = std::cell::RefCell::new(runner);
        let channels = std::cell::RefCell::new(channels);
        let (ending, recorder) = (&self.ending, &self.recorder);
        let look = || {
            // SAFETY: the segments are those that were prepared; their memory by the caller's promise.
            let step = unsafe { runner.borrow_mut().step(segments, &mut channels.borrow_mut()) };
            if let Ok(Step::Idle) = step {
                recorder.idle();
            }
            step
        };
        let tick = || {
            if let Some(error) = ending.error(endpoint) {
                return Err(error.into());
            }
            let awaited = runner.borrow().awaited(segments, &channels.borrow());
            recorder.waits(&awaited, runner.borrow().heard(segments));
            reports(endpoint, &channels.borrow(), &awaited)?;
            reach(endpoint, &awaited)?;
            if roll_call::is_called(&channels.borrow()) {
                return Err(Failure::TimeUp);
            }
            let at = runner.borrow().current(segments);
            let to_come = segments[at..].iter().filter(|s| s.stamp.sequence > 0).count() as u64;
            let now = Now {
                segments,
                call: called(&calls[at], &segments[at]),
                finished: entered - to_come,
                history,
                awaited: runner.borrow().messages(segments, &channels.borrow()),
            };
            left_overs(&channels.borrow(), runner.borrow().oldest(), now.call.stamp)?;
            waiting.look(&channels.borrow(), &now)
        };
        // Also if one of them panics.
        let closing = Closing(|| {
            let storing = runner.borrow_mut().give_up(&mut channels.borrow_mut());
            settle(endpoint, &mut channels.borrow_mut(), storing);
        });
        let waited = endpoint.wait(timeout, look, tick);
        if let Ok(true) = waited {
            // A run that is done has closed what it opened.
            std::mem::forget(closing);
        } else {
            let awaited = runner.borrow().awaited(segments, &channels.borrow());
            let heard = runner.borrow().heard(segments);
            recorder.waits(&awaited, heard.clone());
            let after = match waited {
                Ok(_) => Some(timeout),
                Err(Failure::TimeUp) => Some(Duration::ZERO),
                Err(_) => None,
            };
            let mine = after.map(|after| {
                let at = runner.borrow().current(segments);
                let call = called(&calls[at], &segments[at]);
                let mine = roll_call::whereabouts(
                    endpoint,
                    &channels.borrow(),
                    &awaited,
                    heard,
                    (call, wire_number(entered)),
                );
                let mine = Whereabouts { after, finished: history.last(), ..mine };
                // Closing may take a while, for which the others need not wait.
                roll_call::answer(endpoint, &channels.borrow(), &mine);
                mine
            });
            drop(closing);
            if let Some(mine) = mine {
                return Err(roll_call::hold(endpoint, &channels.borrow(), mine));
            }
        }
        let waited = match waited {
            // All have come here, and what they sent before.
            Ok(true) if calls.iter().any(|call| call.collective == Collective::Barrier) => {
                let call = segments.last().map_or(Stamp::default(), |segment| segment.stamp);
                left_overs(&channels.borrow(), runner.borrow().oldest(), call).map(|()| true)
            }
            waited => waited,
        };
        // What was being waited for was ended, which may look like a failure of a peer.
        let ended = if waited.is_err() { ending.error(endpoint) } else { None };
        let done = waited.map_err(|e| match (e, ended) {
            (Failure::Transport(_), Some(ended)) => ended,
            // A peer that failed and left is lost too; its own words say more.
            (e @ (Failure::Transport(_) | Failure::GivenUp { .. }), _) => {
                told(endpoint, &channels.borrow()).unwrap_or_else(|| failure(endpoint, e))
            }
            // Of an earlier call this rank's own is the other side.
            (Failure::LeftOver { peer, ours, theirs, bytes }, _) => {
                let ours = history.find(theirs.sequence).map_or(ours, |own| own.stamp);
                failure(endpoint, Failure::LeftOver { peer, ours, theirs, bytes })
            }
            (e, _) => failure(endpoint, e),
        })?;
        debug_assert!(done, "the time that was up is dealt with above");
        self.recorder.done(segments.len());
        if let (Some(call), Some(segment)) = (calls.last(), segments.last()) {
            self.history.push(called(call, segment));
        }
        Ok(())
    }
}
