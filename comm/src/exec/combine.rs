//! One fold of a plan, as far as its messages have come.
#![allow(unsafe_code)] // reads and writes the caller's buffers and mapped memory

use nd_transport::Step;

use super::channel::Body;
use super::layout::LANES;
use super::memory::copy;
use super::peers::has_given_up;
use super::plan::{Operand, Place};
use super::run::{Channels, Failure, Segment, channel};
use super::stamp::comes_before;
use crate::kernel::{Destination, Kernel, Places, Source, spread};
use crate::schedule::MAX_LANES;

/// What cross-memory attach reads at a time: small enough to be reduced while it is in the cache.
const READ_BYTES: u64 = 128 << 10;

/// From this many bytes on, results that no cache would keep are stored past it.
const STREAM_FROM: u64 = 64 << 10;

/// How far the current fold has come.
#[derive(Debug, Default)]
pub(super) struct FoldState {
    /// Elements done.
    pub(super) done: u64,
    /// Terms whose data for the next elements are known to be there.
    pub(super) ready: usize,
    /// Where the messages' data are.
    pub(super) bodies: Vec<Option<Body>>,
    pub(super) sources: Vec<Source>,
    /// Where else the result is stored, and whose memory that is.
    pub(super) others: Vec<*mut u8>,
    pub(super) claimed: Vec<usize>,
}

// SAFETY: addresses that are used only while a runner steps.
unsafe impl Send for FoldState {}

impl FoldState {
    pub(super) fn reset(&mut self) {
        (self.done, self.ready) = (0, 0);
        self.bodies.clear();
        self.others.clear();
    }
}

/// A fold with the segment it belongs to.
pub(super) struct FoldTask<'a> {
    pub(super) segment: &'a Segment,
    pub(super) dst: Place,
    pub(super) finish: bool,
    pub(super) terms: &'a [Operand],
    pub(super) fold: &'a crate::fold::Fold,
    pub(super) count: u64,
    /// To whom the result is sent next.
    pub(super) sends: &'a [usize],
    /// Whether the sender may put the message where it belongs.
    pub(super) opened: bool,
    /// The first collective call of the run.
    pub(super) oldest: u32,
}

impl FoldTask<'_> {
    fn width(&self, wide: bool) -> u64 {
        self.segment.plan.widths[usize::from(wide)]
    }

    /// Does the next chunk, if all its data are there.
    pub(super) fn advance(
        &self,
        state: &mut FoldState,
        lane: usize,
        channels: &mut Channels,
        staging: &mut Vec<u8>,
    ) -> Result<Step, Failure> {
        if !self.collect(state, lane, channels)? {
            return Ok(Step::Idle);
        }
        if state.done == 0 && !self.sends.is_empty() && !self.plain_copy() {
            self.claim(state, lane, channels);
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
                // It may have changed while it was read: then what was made of it is nobody's result.
                if last && remote && has_given_up(channels, *peer) {
                    return Err(Failure::GivenUp { peer: *peer });
                }
                let channel = channel(channels, peer * LANES + lane);
                if last || !remote {
                    channel.take(found)?;
                    *body = None;
                }
                if last {
                    channel.end();
                    self.leaves_nothing(*peer, lane, channels)?;
                }
            }
        }
        state.ready = 0;
        Ok(if last { Step::Done } else { Step::Moved })
    }

    /// Checks that of the calls before there is nothing in a peer's other lane: what it sent before has come before.
    #[inline]
    fn leaves_nothing(&self, peer: usize, lane: usize, channels: &Channels) -> Result<(), Failure> {
        let Some(lanes) = &channels[peer] else { return Ok(()) };
        for other in lanes[..MAX_LANES].iter().enumerate().filter(|(l, _)| *l != lane).map(|(_, other)| other)
        {
            if let Some((theirs, bytes)) = other.left_over(self.oldest) {
                return Err(Failure::LeftOver { peer, ours: self.segment.stamp, theirs, bytes });
            }
        }
        Ok(())
    }

    /// Looks for the messages' next descriptors; whether all are there.
    fn collect(&self, state: &mut FoldState, lane: usize, channels: &mut Channels) -> Result<bool, Failure> {
        state.bodies.resize(self.terms.len(), None);
        while let Some(term) = self.terms.get(state.ready) {
            if let (Operand::From { peer, .. }, None) = (term, &state.bodies[state.ready]) {
                let ours = self.segment.stamp;
                let channel = channel(channels, peer * LANES + lane);
                match channel.peek(&ours) {
                    Ok(Some(body)) => state.bodies[state.ready] = Some(body),
                    Ok(None) => return Ok(false),
                    // Of a call before this, in which it was not expected.
                    Err(theirs) if comes_before(theirs.sequence, ours.sequence) => {
                        let bytes = channel.peek(&theirs).ok().flatten().map_or(0, |body| body.len());
                        return Err(Failure::LeftOver { peer: *peer, ours, theirs, bytes });
                    }
                    // Of a later call: the peer sent nothing in this one. It is asked what it called instead.
                    Err(theirs) if comes_before(ours.sequence, theirs.sequence) => {
                        return Ok(false);
                    }
                    Err(theirs) => return Err(Failure::Mismatch { peer: *peer, ours, theirs }),
                }
            }
            state.ready += 1;
        }
        Ok(true)
    }

    /// Asks for the memory of those to whom the result is sent next.
    fn claim(&self, state: &mut FoldState, lane: usize, channels: &mut Channels) {
        let len = self.count * self.width(self.dst.wide);
        for &peer in self.sends {
            let of_peer = |term: &Operand| matches!(term, Operand::From { peer: p, .. } if *p == peer);
            let term = self.terms.iter().position(of_peer);
            let term = term.and_then(|at| state.bodies[at]);
            if let Some(to) = channel(channels, peer * LANES + lane).claim(len, term) {
                state.others.push(to);
                state.claimed.push(peer);
            }
        }
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

    /// Whether the messages came in a way and have the lengths that this rank expects.
    fn check(&self, state: &FoldState, n: u64) -> Result<(), Failure> {
        for (term, body) in self.terms.iter().zip(&state.bodies) {
            if let (Operand::From { peer, wide }, Some(body)) = (term, body) {
                if let (Body::Placed { len }, false) = (body, self.opened) {
                    let what = format!("{len} bytes put where nobody let it put them");
                    return Err(nd_transport::Error::Protocol { rank: *peer, what }.into());
                }
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
                        // Opened only for ops that copy.
                        Body::Placed { .. } => dst.cast_const(),
                        Body::Window { offset, .. } => {
                            let lost = || nd_transport::Error::Protocol {
                                rank: *peer,
                                what: format!("{len} bytes at {offset} of a region that cannot be mapped"),
                            };
                            let from = offset.checked_add(at).and_then(|from| link.map(from, len));
                            from.ok_or_else(lost)?.as_ptr().cast_const()
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
                            unsafe { link.read(address.wrapping_add(at), to, len as usize)? };
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
        unsafe { self.store(dst, &mut state.sources, &state.others, state.done, n) };
        Ok(())
    }

    /// Stores the next `n` elements, also where `others` have them after the first `done`.
    ///
    /// # Safety
    /// As for [`Kernel::fold`]; `others` are as long as the whole result.
    unsafe fn store(&self, dst: *mut u8, sources: &mut [Source], others: &[*mut u8], done: u64, n: u64) {
        let width = self.width(self.dst.wide);
        let len = n * width;
        let streams = self.segment.plan.streams && len >= STREAM_FROM;
        if self.plain_copy() {
            let from = sources[0].ptr;
            // SAFETY: the caller's promise.
            unsafe {
                match streams {
                    _ if from == dst.cast_const() => {}
                    true => spread::copy(from, dst, len as usize),
                    false => copy(from, dst, len as usize),
                }
            }
            return;
        }
        let kernel: &Kernel = self.segment.plan.kernel.as_ref().expect("only reductions combine or convert");
        let dst = Destination { ptr: dst, wide: self.dst.wide, finish: self.finish };
        // SAFETY: the caller's promise.
        unsafe {
            if others.is_empty() && !streams {
                return kernel.fold(self.fold, sources, dst, n as usize);
            }
            let places = Places { own: dst, others, behind: (done * width) as usize };
            spread::fold(kernel, self.fold, sources, places, n as usize, streams);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::channel::tests::{LEN, pair};
    use super::super::plan::{Op, Plan};
    use super::super::stamp::Stamp;
    use super::*;
    use crate::number::DataType;
    use crate::schedule::{Alias, Collective, Counts, Instruction, Layout, Program, Shape, Span};

    /// What comes of a message that says that it was put where it belongs.
    fn placed(opened: bool) -> Result<Step, Failure> {
        let pair = pair();
        let [ours, mut theirs] = pair.channels;
        // SAFETY: it names no memory.
        unsafe { theirs.post(&Stamp::default(), Body::Placed { len: LEN }).unwrap() };
        let shape = Shape {
            collective: Collective::SendRecv,
            counts: Counts::Equal(LEN),
            root: 1,
            alias: Alias::None,
            layout: Arc::new(Layout::single_host(2)),
            piece: 1,
        };
        let recv = Instruction::Recv { from: 1, dst: Span::output(0, LEN) };
        let program = Program { lanes: vec![vec![recv]], ..Program::default() };
        let plan = Arc::new(Plan::new(&program, &shape, 0, DataType::U8, None, 0));
        let mut memory = [std::ptr::null_mut(); 4];
        memory[1] = pair.memory[0].ptr().as_ptr();
        let stamp = Stamp::default();
        let segment = Segment { plan: plan.clone(), memory, registered: [None; 4], stamp };
        let Op::Fold { dst, finish, terms, fold, count, sends } = &plan.lanes[0][0].op else {
            panic!("a fold")
        };
        let (dst, finish, count) = (*dst, *finish, *count);
        let oldest = 0;
        let task = FoldTask { segment: &segment, dst, finish, terms, fold, count, sends, opened, oldest };
        let unused = || super::super::channel::tests::pair().channels;
        let [second, third] = unused();
        task.advance(&mut FoldState::default(), 0, &mut [None, Some([ours, second, third])], &mut Vec::new())
    }

    #[test]
    fn what_nobody_opened_cannot_have_been_put_there() {
        assert!(matches!(placed(true), Ok(Step::Done)));
        let refused = placed(false);
        assert!(
            matches!(&refused, Err(Failure::Transport(nd_transport::Error::Protocol { rank: 1, what })) if what.contains("65536 bytes put")),
            "{refused:?}"
        );
    }
}
