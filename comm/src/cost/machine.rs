//! Runs programs in simulated time, event by event.
//!
//! A lane goes through its instructions in order. *Send* takes a little of the lane's time and posts the message.
//! Messages of one channel leave one after the other; a pushed message flows as long as the receiver's window has
//! room or the receiver is waiting for it, a pulled one is there at once. *Receive, reduce, copy* wait for their
//! messages, then work. Work on a long message begins when its first chunk has come, so that only what is left is
//! done after the last. A rank is done when its lanes are and its messages were consumed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::flow::{BundleId, Flows, INSTANT};
use super::program::{ChannelId, Kind, Lane, Op, Path, PathId};

/// A lane: representative, and which of its lanes.
type LaneId = (u32, u32);

/// Simulated ranks.
pub(super) struct Machine<'a> {
    pub flows: Flows,
    paths: &'a [Path],
    /// Bundle, and bytes per µs alone.
    works: &'a [(BundleId, f64)],
    code: &'a [Vec<Lane>],
    states: Vec<Vec<State>>,
    channels: Vec<Channel>,
    /// Time (as bits), order of creation, what.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    created: u64,
    /// Channels in which something may leave. That is decided when all that happens at one moment has happened, so
    /// that nothing depends on the order in which it is simulated.
    due: Vec<ChannelId>,
    now: f64,
    ended: Vec<u64>,
    finished: f64,
    running: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A lane goes on.
    Wake(LaneId),
    /// A message is seen by its receiver.
    Arrive(ChannelId),
    /// The sender of a pulled message learns that it was consumed.
    Credit(ChannelId),
}

#[derive(Debug, Default, Clone, Copy)]
struct State {
    next: usize,
    step: Step,
    /// How many of the waits and then of the messages of the present instruction are known to be through.
    seen: u32,
    /// When the instruction could begin but for its messages, and when these had come.
    since: f64,
    ready: f64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Step {
    /// Comes to the instruction.
    #[default]
    Begin,
    /// Waits until its own messages are consumed.
    Hazard,
    /// Waits for messages of others.
    Wait,
    /// Messages are taken, or the time to post one has passed.
    Taken,
    /// Works.
    Busy,
}

/// Messages of one channel. They are numbered through; each number here counts how far the channel has come.
#[derive(Debug, Default)]
struct Channel {
    /// Those that are not consumed.
    messages: VecDeque<Message>,
    /// Messages that have left, were seen by the receiver, were consumed by it.
    left: u64,
    arrived: u64,
    consumed: u64,
    /// Messages whose memory the sender knows it may write again.
    complete: u64,
    /// Bytes that have left, or are leaving, and are not consumed.
    unconsumed: u64,
    /// Bytes of the transfer under way, and when it began.
    flowing: Option<(u64, f64)>,
    /// Whether it is among [`Machine::due`].
    due: bool,
    /// When the last one arrives.
    latest: f64,
    /// The message that the receiver waits for, and its lane.
    awaited: Option<(u64, LaneId)>,
    /// The message that the sender waits for to be complete, and its lane.
    blocking: Option<(u64, LaneId)>,
}

#[derive(Debug, Clone, Copy)]
struct Message {
    bytes: u64,
    /// Bytes that have left.
    sent: u64,
    path: PathId,
    /// When its first chunk has come.
    first: f64,
}

/// Transfers of messages have the channel's number as token; work has this bit, and its lane.
const WORK: u64 = 1 << 63;

impl<'a> Machine<'a> {
    pub fn new(
        flows: Flows,
        paths: &'a [Path],
        works: &'a [(BundleId, f64)],
        code: &'a [Vec<Lane>],
        channels: usize,
    ) -> Machine<'a> {
        let states: Vec<Vec<State>> = code.iter().map(|lanes| vec![State::default(); lanes.len()]).collect();
        let running = states.iter().map(Vec::len).sum();
        Machine {
            flows,
            paths,
            works,
            code,
            states,
            channels: (0..channels).map(|_| Channel::default()).collect(),
            events: BinaryHeap::new(),
            created: 0,
            due: Vec::new(),
            now: 0.0,
            ended: Vec::new(),
            finished: 0.0,
            running,
        }
    }

    /// Runs to the end; `watch` sees, for every span of time without a change, its end and the flows. Gives the time
    /// in µs; nothing where a lane waits for ever.
    pub fn run(&mut self, mut watch: impl FnMut(f64, &mut Flows)) -> Option<f64> {
        for rank in 0..self.states.len() {
            for lane in 0..self.states[rank].len() {
                self.go((rank as u32, lane as u32));
            }
        }
        loop {
            while let Some(channel) = self.due.pop() {
                self.pump(channel);
            }
            let event = self.events.peek().map(|Reverse((at, ..))| f64::from_bits(*at));
            let moments = [self.flows.next_end(), event].into_iter().flatten();
            let Some(next) = moments.min_by(f64::total_cmp) else { break };
            watch(next, &mut self.flows);
            self.now = self.now.max(next);
            let mut ended = std::mem::take(&mut self.ended);
            self.flows.advance(self.now, &mut ended);
            for token in ended.drain(..) {
                match token & WORK {
                    0 => self.transferred(token as ChannelId),
                    _ => self.go(((token & !WORK) as u32 >> 8, token as u32 & 0xff)),
                }
            }
            self.ended = ended;
            while let Some(&Reverse((at, _, event))) = self.events.peek() {
                if f64::from_bits(at) > self.now + INSTANT {
                    break;
                }
                self.events.pop();
                match event {
                    Event::Wake(lane) => self.go(lane),
                    Event::Arrive(channel) => self.arrives(channel),
                    Event::Credit(channel) => self.completes(channel),
                }
            }
        }
        let drained = self.channels.iter().all(|c| c.messages.is_empty());
        (self.running == 0 && drained).then_some(self.finished)
    }

    fn at(&mut self, time: f64, event: Event) {
        self.created += 1;
        self.events.push(Reverse((time.to_bits(), self.created, event)));
    }

    /// Moves a lane on as far as it comes.
    fn go(&mut self, id: LaneId) {
        let code = &self.code[id.0 as usize][id.1 as usize];
        let mut state = self.states[id.0 as usize][id.1 as usize];
        while let Some(op) = code.ops.get(state.next) {
            state.step = match state.step {
                Step::Begin => {
                    state.seen = op.waits.0;
                    Step::Hazard
                }
                Step::Hazard => {
                    if !self.is_clear(code, op, &mut state, id) {
                        break;
                    }
                    state.since = self.now;
                    state.seen = op.messages.0;
                    self.expect(code, op, id);
                    Step::Wait
                }
                Step::Wait => {
                    if !self.is_there(code, op, &mut state) {
                        break;
                    }
                    state.ready = self.now;
                    let us = match op.kind {
                        Kind::Send(_, path) => self.paths[path as usize].route.send_us,
                        Kind::Work(_, taking) => taking,
                    };
                    if us > 0.0 {
                        state.step = Step::Taken;
                        self.at(self.now + us, Event::Wake(id));
                        break;
                    }
                    Step::Taken
                }
                Step::Taken => match op.kind {
                    Kind::Work(Some(work), _) => {
                        let (bundle, rate) = self.works[work as usize];
                        let token = WORK | u64::from(id.0) << 8 | u64::from(id.1);
                        self.flows.start(bundle, self.undone(code, op, &state, rate), token);
                        state.step = Step::Busy;
                        break;
                    }
                    Kind::Work(None, _) => Step::Busy,
                    Kind::Send(channel, path) => {
                        let message = Message { bytes: op.bytes, sent: 0, path, first: 0.0 };
                        self.channels[channel as usize].messages.push_back(message);
                        self.is_due(channel);
                        state.next += 1;
                        Step::Begin
                    }
                },
                Step::Busy => {
                    self.consume(code, op);
                    state.next += 1;
                    Step::Begin
                }
            };
        }
        self.states[id.0 as usize][id.1 as usize] = state;
        if state.next == code.ops.len() {
            self.running -= 1;
            self.finished = self.finished.max(self.now);
        }
    }

    /// Whether the messages that the instruction would write over are complete.
    fn is_clear(&mut self, code: &Lane, op: &Op, state: &mut State, id: LaneId) -> bool {
        while state.seen < op.waits.1 {
            let (channel, message) = code.messages[state.seen as usize];
            let channel = &mut self.channels[channel as usize];
            if channel.complete <= message {
                channel.blocking = Some((message, id));
                return false;
            }
            state.seen += 1;
        }
        true
    }

    /// Tells the channels that their messages are waited for.
    fn expect(&mut self, code: &Lane, op: &Op, id: LaneId) {
        for i in op.messages.0..op.messages.1 {
            let (channel, message) = code.messages[i as usize];
            let c = &mut self.channels[channel as usize];
            if c.arrived <= message && c.awaited.is_none() {
                c.awaited = Some((message, id));
                self.is_due(channel);
            }
        }
    }

    fn is_there(&mut self, code: &Lane, op: &Op, state: &mut State) -> bool {
        while state.seen < op.messages.1 {
            let (channel, message) = code.messages[state.seen as usize];
            if self.channels[channel as usize].arrived <= message {
                return false;
            }
            state.seen += 1;
        }
        true
    }

    /// Bytes of work that could not be done while the messages were coming.
    fn undone(&self, code: &Lane, op: &Op, state: &State, rate: f64) -> f64 {
        let (mut begin, mut chunk) = (state.since, 0);
        for i in op.messages.0..op.messages.1 {
            let (channel, message) = code.messages[i as usize];
            let channel = &self.channels[channel as usize];
            let message = channel.messages[(message - channel.consumed) as usize];
            begin = begin.max(message.first);
            chunk = chunk.max(self.paths[message.path as usize].route.chunk);
        }
        let done = (state.ready - begin).max(0.0) * rate;
        (op.bytes as f64 - done).max(op.bytes.min(chunk) as f64)
    }

    fn consume(&mut self, code: &Lane, op: &Op) {
        for i in op.messages.0..op.messages.1 {
            let (channel, _) = code.messages[i as usize];
            let c = &mut self.channels[channel as usize];
            let Some(message) = c.messages.pop_front() else { continue };
            c.consumed += 1;
            let route = &self.paths[message.path as usize].route;
            if route.pull {
                self.at(self.now + route.latency_us, Event::Credit(channel));
            } else {
                c.unconsumed -= message.bytes;
                self.is_due(channel);
            }
        }
    }

    fn is_due(&mut self, channel: ChannelId) {
        if !std::mem::replace(&mut self.channels[channel as usize].due, true) {
            self.due.push(channel);
        }
    }

    /// Lets messages leave that may.
    fn pump(&mut self, channel: ChannelId) {
        self.channels[channel as usize].due = false;
        loop {
            let c = &mut self.channels[channel as usize];
            let next = (c.left - c.consumed) as usize;
            if c.flowing.is_some() || next == c.messages.len() {
                return;
            }
            let awaited = c.awaited.is_some_and(|(message, _)| message == c.left);
            let message = &mut c.messages[next];
            let path = &self.paths[message.path as usize];
            if path.route.pull {
                c.left += 1;
                c.latest = c.latest.max(self.now + path.route.latency_us);
                message.first = c.latest;
                let latest = c.latest;
                self.at(latest, Event::Arrive(channel));
                continue;
            }
            let rest = message.bytes - message.sent;
            let room = path.route.window.saturating_sub(c.unconsumed);
            let part = if awaited { rest } else { rest.min(room) };
            if part > 0 {
                let overhead = if message.sent == 0 { path.route.overhead } else { 0.0 };
                c.unconsumed += part;
                c.flowing = Some((part, self.now));
                self.flows.start(path.bundle, part as f64 + overhead, u64::from(channel));
            }
            return;
        }
    }

    /// A transfer of a message, or of a part of it, has ended.
    fn transferred(&mut self, channel: ChannelId) {
        let c = &mut self.channels[channel as usize];
        let Some((part, began)) = c.flowing.take() else { return };
        let message = &mut c.messages[(c.left - c.consumed) as usize];
        let route = &self.paths[message.path as usize].route;
        if message.sent == 0 {
            let chunk = (route.chunk as f64 / part as f64).min(1.0);
            message.first = began + (self.now - began) * chunk + route.latency_us;
        }
        message.sent += part;
        if message.sent == message.bytes {
            c.left += 1;
            c.latest = c.latest.max(self.now + route.latency_us);
            let latest = c.latest;
            self.at(latest, Event::Arrive(channel));
            self.completes(channel);
        }
        self.is_due(channel);
    }

    fn arrives(&mut self, channel: ChannelId) {
        let c = &mut self.channels[channel as usize];
        c.arrived += 1;
        if let Some((message, lane)) = c.awaited
            && message < c.arrived
        {
            c.awaited = None;
            self.go(lane);
        }
    }

    fn completes(&mut self, channel: ChannelId) {
        self.finished = self.finished.max(self.now);
        let c = &mut self.channels[channel as usize];
        c.complete += 1;
        if let Some((message, lane)) = c.blocking
            && message < c.complete
        {
            c.blocking = None;
            self.go(lane);
        }
    }
}
