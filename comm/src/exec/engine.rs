//! A communicator's channels, scratch memory and plans: performs calls, and tells the peers when one fails.
#![allow(unsafe_code)] // hands the caller's buffers to the runner

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nd_transport::{Abilities, Endpoint, Part, Signal, Step, Window};

use super::channel::Channel;
use super::layout::{self, DROPPED, FAILURE, LANES, P2P_LANE, REPORTED, WENT_ON};
use super::memory::{LaneMemory, copy};
use super::peers::{REACHING, Stance, everyone, failure, listen, reports, settle, stance, told};
use super::plans::Plans;
use super::report::Report;
use super::run::{Failure, Runner, Segment};
use super::stamp::Stamp;
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
    /// Which collective, and how much.
    pub collective: Collective,
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

/// Does something when it is dropped.
struct Closing<F: Fn()>(F);

impl<F: Fn()> Drop for Closing<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// How long a rank that gives up waits for its report to leave.
const TELLING: Duration = Duration::from_millis(500);

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
    sequence: u32,
    failed: Option<String>,
    /// The peers that were told that others go on without them.
    left_behind: Vec<usize>,
    timeout: Duration,
    aborted: Arc<AtomicBool>,
    recorder: Arc<Recorder>,
}

impl Engine {
    /// On an endpoint; `inboxes` tells where each rank's inboxes begin in its region (`inbox` is this rank's).
    pub(crate) fn new(
        endpoint: Endpoint,
        inbox: Window,
        inboxes: &[u64],
        chooser: Chooser,
        timeout: Duration,
        aborted: Arc<AtomicBool>,
        recorder: Arc<Recorder>,
    ) -> Engine {
        let me = endpoint.rank();
        let channel = |peer: usize, lane: usize| {
            let link = endpoint.link(peer)?;
            let own = endpoint.region().at(inbox.offset() + layout::lane(peer, lane), layout::LANE);
            // SAFETY: the inbox window lives as long as the engine, and with it all its channels.
            let own = unsafe { LaneMemory::new(own) };
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
        Engine {
            channels: (0..endpoint.world_size()).map(channels).collect(),
            inbox: Some(inbox),
            scratch: Vec::new(),
            runner: Runner::default(),
            segments: Vec::new(),
            plans: Plans::new(me, layout, Tuner::new(chooser, machines)),
            sequence: 0,
            failed: None,
            left_behind: Vec::new(),
            timeout,
            aborted,
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

    /// How long a call may wait, from the next one on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// No call works any more, for this reason; the peers are told, unless they were told of a failure before.
    pub fn retire(&mut self, why: &Error) {
        self.fail(why);
    }

    /// What each peer has last said of itself, after all that has arrived.
    pub fn stances(&self) -> Vec<Stance> {
        // What is lost is seen below.
        let _ = self.endpoint.progress();
        (0..self.channels.len()).map(|peer| stance(&self.endpoint, &self.channels, peer)).collect()
    }

    /// Tells these peers that others of the group go on without them, as far as they can be reached within a moment.
    pub fn leave_behind(&mut self, peers: &[usize]) {
        let until = Instant::now() + TELLING;
        for &peer in peers {
            let Some([first, ..]) = self.channels.get(peer).and_then(Option::as_ref) else { continue };
            let (link, at) = (first.link(), first.remote() + FAILURE);
            if link.connected() || (Instant::now() < until && link.reach(REACHING).is_ok_and(|there| there)) {
                let _ = link.signal(Signal { at, value: WENT_ON });
                self.left_behind.push(peer);
            }
        }
        let _ = self.endpoint.progress();
    }

    fn rank(&self) -> usize {
        self.endpoint.rank()
    }

    /// Performs calls, all at the same time. Collectives run in their order in one of a few lanes.
    ///
    /// # Safety
    /// The buffers of the calls are valid for their counts, nobody else uses them meanwhile, and they overlap only
    /// as their `alias` says.
    pub unsafe fn perform(&mut self, calls: &[Call]) -> Result<()> {
        let rank = self.rank();
        if let Some(why) = &self.failed {
            return Err(Error::Failed { rank, why: why.clone() });
        }
        let mut segments = std::mem::take(&mut self.segments);
        // SAFETY: the caller's promise.
        let result = unsafe { self.perform_with(calls, &mut segments) };
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
    unsafe fn perform_with(&mut self, calls: &[Call], segments: &mut Vec<Segment>) -> Result<()> {
        // Once memory was detached, buffers may have other places than they had.
        if self.plans.repeat(calls, segments) && !self.endpoint.region().any_detached() {
            for (call, segment) in calls.iter().zip(&mut *segments) {
                segment.stamp.sequence = self.number(call);
            }
            // SAFETY: the caller's promise.
            return unsafe { self.run(calls, segments) };
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
        unsafe { self.run(calls, segments) }
    }

    /// The number of the next call; sends and receives have none.
    #[inline]
    fn number(&mut self, call: &Call) -> u32 {
        if call.collective == Collective::SendRecv {
            return 0;
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
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
            collective: call.collective as u8 | variable,
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
    unsafe fn run(&mut self, calls: &[Call], segments: &[Segment]) -> Result<()> {
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
        let Engine { endpoint, channels, runner, .. } = self;
        let runner = std::cell::RefCell::new(runner);
        let channels = std::cell::RefCell::new(channels);
        let (aborted, timeout, recorder) = (&self.aborted, self.timeout, &self.recorder);
        let look = || {
            // SAFETY: the segments are those that were prepared; their memory by the caller's promise.
            let step = unsafe { runner.borrow_mut().step(segments, &mut channels.borrow_mut()) };
            if let Ok(Step::Idle) = step {
                recorder.idle();
            }
            step
        };
        let tick = || {
            if aborted.load(Ordering::Relaxed) {
                let why = "the communicator was dropped or shrunk".into();
                return Err(Error::Failed { rank: endpoint.rank(), why }.into());
            }
            let awaited = runner.borrow().awaited(segments);
            recorder.waits(&awaited, runner.borrow().heard(segments));
            Ok(reports(endpoint, &channels.borrow(), &awaited)?)
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
            recorder.waits(&runner.borrow().awaited(segments), runner.borrow().heard(segments));
            drop(closing);
        }
        let done = waited.map_err(|e| match e {
            // A peer that failed and left is lost too; its own words say more.
            Failure::Transport(e) => {
                told(endpoint, &channels.borrow()).unwrap_or_else(|| failure(endpoint, Failure::Transport(e)))
            }
            e => failure(endpoint, e),
        })?;
        if done {
            self.recorder.done(segments.len());
            return Ok(());
        }
        let awaited = runner.borrow().awaited(segments);
        let call = segments.first().map(|s| s.stamp.to_string()).unwrap_or_default();
        let rank = self.rank();
        let timed_out = |waiting| Error::Timeout { rank, call: call.clone(), after: timeout, waiting };
        let error = timed_out(everyone(&self.endpoint, &awaited));
        // Whoever waits for this rank learns whom it waits for; the time of those who wait for others in turn is up too.
        self.fail(&error);
        Err(timed_out(listen(&self.endpoint, &self.channels, &awaited)))
    }

    /// Tells the peers that this rank gives up, and why, in the words of whoever found out first.
    fn fail(&mut self, error: &Error) {
        // Wrong arguments are found before anything is sent.
        if matches!(error, Error::InvalidArgument { .. } | Error::Config { .. } | Error::Failed { .. })
            && self.failed.is_none()
            && !self.aborted.load(Ordering::Relaxed)
        {
            return;
        }
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(error.to_string());
        self.endpoint.give_up();
        let report = match error {
            Error::Mismatch { rank, ours, peer, theirs } => {
                Report::Mismatch { rank: *rank, ours: *ours, peer: *peer, theirs: *theirs }
            }
            Error::Transport { source: nd_transport::Error::PeerLost { rank, .. }, .. } => {
                Report::Failed { culprit: *rank, why: error.to_string() }
            }
            Error::PeerFailed { culprit, why, .. } => Report::Failed { culprit: *culprit, why: why.clone() },
            _ => Report::Failed { culprit: self.rank(), why: error.to_string() },
        };
        self.tell(&report);
    }

    /// Reports to every peer that can be reached within [`TELLING`]; the others find out by themselves.
    fn tell(&mut self, report: &Report) {
        let bytes = report.encode();
        let mut told = Vec::new();
        let until = Instant::now() + TELLING;
        let leaving = matches!(report, Report::Left);
        for channels in self.channels.iter().flatten() {
            let (link, at) = (channels[0].link(), channels[0].remote() + FAILURE);
            // Nobody connects to everybody in order to leave: whoever still waits for this rank finds out when it
            // tries to reach it, see `reports`.
            let reached = link.connected()
                || (!leaving && Instant::now() < until && link.reach(REACHING).is_ok_and(|there| there));
            if !reached {
                continue;
            }
            // SAFETY: the report is short and copied by the link.
            let put = unsafe { link.put(&[Part::of(&bytes)], at + 8, Some(Signal { at, value: REPORTED })) };
            told.extend(put.ok().map(|ticket| (link, ticket)));
        }
        let look = || {
            told.retain(|(link, ticket)| !link.flushed(*ticket));
            Ok::<_, nd_transport::Error>(if told.is_empty() { Step::Done } else { Step::Idle })
        };
        let left = until.saturating_duration_since(Instant::now());
        let _ = self.endpoint.wait(left, look, || Ok(()));
    }
}

impl Engine {
    /// After a failure: whoever is to go on with others need not wait for this rank.
    fn tell_dropped(&mut self) {
        for (peer, channels) in self.channels.iter().enumerate() {
            if let Some([first, ..]) = channels
                && first.link().connected()
                && !self.left_behind.contains(&peer)
            {
                let _ = first.link().signal(Signal { at: first.remote() + FAILURE, value: DROPPED });
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        match self.failed {
            None => self.tell(&Report::Left),
            Some(_) => self.tell_dropped(),
        }
        // Peers that map the inbox report there that they leave, whenever that is, unless they are no more.
        if let Some(inbox) = self.inbox.take() {
            let reports = self.channels.iter().enumerate().filter_map(|(peer, channels)| {
                let [first, ..] = channels.as_ref()?;
                let maps = first.link().abilities().contains(Abilities::MAP);
                let said = first.own().word(FAILURE).load(Ordering::Acquire) > 0;
                let will = maps && (said || self.endpoint.ended(peer).is_none());
                will.then(|| inbox.offset() + layout::lane(peer, 0) + FAILURE)
            });
            let reports = reports.collect();
            inbox.leave(reports);
        }
    }
}
