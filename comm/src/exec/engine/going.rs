//! Calls that go on: their steps, what is looked at beside them, and how they end.
#![allow(unsafe_code)] // passes on the promise about the caller's buffers

use std::cell::{Cell, RefCell};
use std::time::Duration;

use nd_transport::{Endpoint, Step};

use super::{Call, called};
use crate::error::{Error, Result};
use crate::exec::called::Called;
use crate::exec::ending::Ending;
use crate::exec::history::History;
use crate::exec::layout::P2P_LANE;
use crate::exec::peers::{failure, reach, reports, settle, told};
use crate::exec::roll_call;
use crate::exec::run::{Channels, Failure, Runner, Segment};
use crate::exec::stamp::wire_number;
use crate::exec::standstill::Whereabouts;
use crate::exec::waiting::{Now, Waiting, left_overs};
use crate::recorder::Recorder;
use crate::schedule::{Collective, MAX_LANES};

/// Peers whose processes are looked at, of those that nobody waits for, every tenth of a second: each look reads a file.
const WATCHED: usize = 16;

/// Which thread of the runner each lane of a segment joins, and which lane of the channels that thread uses.
///
/// Sends and receives each get a thread of their own, but those with one peer in one direction share it, so that their
/// order is kept. Collectives go by their numbers, so that calls match whether they are made in a group or one by one.
pub(super) fn places<'c>(
    calls: &'c [Call],
    segments: &'c [Segment],
) -> impl Fn(usize, usize) -> (usize, usize) + 'c {
    let single = |call: &Call| call.collective == Collective::SendRecv;
    let thread = move |i: usize| {
        let same = |c: &Call| {
            single(c) && c.root == calls[i].root && c.output.is_null() == calls[i].output.is_null()
        };
        MAX_LANES + calls.iter().position(same).unwrap_or(i)
    };
    move |segment, lane| match single(&calls[segment]) {
        true => (thread(segment), P2P_LANE),
        false => {
            let lane = (segments[segment].stamp.sequence as usize + lane) % MAX_LANES;
            (lane, lane)
        }
    }
}

/// Calls that go on, until they are done or given up: at the latest when this is dropped.
pub(super) struct Going<'e> {
    pub calls: &'e [Call],
    pub segments: &'e [Segment],
    /// Collective calls so far, with these.
    pub entered: u64,
    pub history: History,
    pub endpoint: &'e Endpoint,
    pub ending: &'e Ending,
    pub recorder: &'e Recorder,
    pub runner: RefCell<&'e mut Runner>,
    pub channels: RefCell<&'e mut Channels>,
    pub waiting: RefCell<&'e mut Waiting>,
    /// Who is looked after next.
    pub watching: Cell<usize>,
    /// Whether all that was opened for them is closed.
    pub closed: Cell<bool>,
}

impl Going<'_> {
    /// # Safety
    /// The segments are those that the runner was prepared for, and their memory is valid.
    #[inline]
    pub unsafe fn step(&self) -> Result<Step, Failure> {
        // SAFETY: the caller's promise.
        let step = unsafe { self.runner.borrow_mut().step(self.segments, &mut self.channels.borrow_mut()) };
        if let Ok(Step::Idle) = step {
            self.recorder.idle();
        }
        step
    }

    /// Looks at the world, now and then while nothing moves: what was asked for, who failed, who disagrees.
    pub fn tick(&self) -> Result<(), Failure> {
        if let Some(error) = self.ending.error(self.endpoint) {
            return Err(error.into());
        }
        let (runner, channels) = (self.runner.borrow(), self.channels.borrow());
        let awaited = runner.awaited(self.segments, &channels);
        self.recorder.waits(&awaited, runner.heard(self.segments));
        reports(self.endpoint, &channels, &awaited, self.watched(channels.len()))?;
        reach(self.endpoint, &awaited)?;
        if roll_call::is_called(&channels) {
            return Err(Failure::TimeUp);
        }
        let at = runner.current(self.segments);
        let to_come = self.segments[at..].iter().filter(|s| s.stamp.sequence > 0).count() as u64;
        let now = Now {
            rank: self.endpoint.rank(),
            segments: self.segments,
            call: called(&self.calls[at], &self.segments[at]),
            finished: self.entered - to_come,
            history: self.history,
            awaited: runner.messages(self.segments, &channels),
        };
        left_overs(&channels, runner.oldest(), now.call.stamp)?;
        self.waiting.borrow_mut().look(&channels, &now)
    }

    /// Peers to look after although nobody waits for them: a few at each look, in turn.
    fn watched(&self, world_size: usize) -> impl Iterator<Item = usize> {
        let from = self.watching.get();
        let count = WATCHED.min(world_size);
        self.watching.set((from + count) % world_size);
        (from..from + count).map(move |peer| peer % world_size)
    }

    /// What came of them, by what came of waiting for them (true: they are done).
    pub fn end(&self, waited: Result<bool, Failure>, timeout: Duration) -> Result<()> {
        let ended = match waited {
            Ok(true) => {
                // Calls that are done have closed what they opened.
                self.closed.set(true);
                self.nothing_left_over()
            }
            Ok(false) => return Err(self.time_is_up(timeout)),
            Err(Failure::TimeUp) => return Err(self.time_is_up(Duration::ZERO)),
            Err(e) => {
                self.waits();
                self.close();
                Err(e)
            }
        };
        ended.map_err(|e| self.explain(e))
    }

    /// After a barrier all have come here, and what they sent before.
    fn nothing_left_over(&self) -> Result<(), Failure> {
        match self.segments.last() {
            Some(last) if self.calls.iter().any(|call| call.collective == Collective::Barrier) => {
                left_overs(&self.channels.borrow(), self.runner.borrow().oldest(), last.stamp)
            }
            _ => Ok(()),
        }
    }

    /// For whom they wait, and who was heard; the flight recorder knows then.
    fn waits(&self) -> (Vec<usize>, Vec<usize>) {
        let runner = self.runner.borrow();
        let (awaited, heard) =
            (runner.awaited(self.segments, &self.channels.borrow()), runner.heard(self.segments));
        self.recorder.waits(&awaited, heard.clone());
        (awaited, heard)
    }

    /// Finds out with the others who is missing; `after` is zero where another's time was up.
    fn time_is_up(&self, after: Duration) -> Error {
        let (awaited, heard) = self.waits();
        let at = self.runner.borrow().current(self.segments);
        let call: Called = called(&self.calls[at], &self.segments[at]);
        let now = (call, wire_number(self.entered));
        let seen = roll_call::whereabouts(self.endpoint, &self.channels.borrow(), &awaited, heard, now);
        let mine = Whereabouts { after, finished: self.history.last(), ..seen };
        // Closing may take a while, for which the others need not wait.
        roll_call::answer(self.endpoint, &self.channels.borrow(), &mine);
        self.close();
        roll_call::hold(self.endpoint, &self.channels.borrow(), mine)
    }

    /// The error that says most.
    fn explain(&self, broken: Failure) -> Error {
        // What was being waited for was ended, which may look like a failure of a peer.
        match (broken, self.ending.error(self.endpoint)) {
            (Failure::Transport(_), Some(ended)) => ended,
            // A peer that failed and left is lost too; its own words say more.
            (e @ (Failure::Transport(_) | Failure::GivenUp { .. }), _) => {
                told(self.endpoint, &self.channels.borrow()).unwrap_or_else(|| failure(self.endpoint, e))
            }
            // Of an earlier call this rank's own is the other side.
            (Failure::LeftOver { peer, ours, theirs, bytes }, _) => {
                let ours = self.history.find(theirs.sequence).map_or(ours, |own| own.stamp);
                failure(self.endpoint, Failure::LeftOver { peer, ours, theirs, bytes })
            }
            (e, _) => failure(self.endpoint, e),
        }
    }

    fn close(&self) {
        if !self.closed.replace(true) {
            let storing = self.runner.borrow_mut().give_up(&mut self.channels.borrow_mut());
            settle(self.endpoint, &mut self.channels.borrow_mut(), storing);
        }
    }
}

/// Also if one of them panics.
impl Drop for Going<'_> {
    fn drop(&mut self) {
        self.close();
    }
}
