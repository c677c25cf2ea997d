//! Runs the programs of all ranks on symbolic memory.
//!
//! Lanes are independent and messages of a lane are first in, first out, so the programs form a Kahn network: the
//! values, and whether it stops, do not depend on the order in which lanes get to run. One run covers all timings.

use std::collections::{HashMap, VecDeque};

use super::super::hazards::{Posted, Wait, Waits, hazards};
use super::super::{Collective, Instruction, Program, Shape, Space, Span, Term};
use super::Report;
use super::fault::{At, Blocked, Fault};
use super::symbol::{Memory, Run, Symbols};

/// A message on its way.
struct Message {
    value: Vec<Run>,
    len: u64,
    wide: bool,
    /// Messages in the longest chain that ends with this one.
    chain: u64,
    heard: Vec<bool>,
}

/// Between two ranks, in one lane.
#[derive(Default)]
struct Channel {
    waiting: VecDeque<Message>,
    consumed: u64,
}

/// One lane of one rank.
struct Lane {
    next: usize,
    chain: u64,
    /// Which ranks have entered the barrier, as far as this lane knows; empty in other collectives.
    heard: Vec<bool>,
    /// Messages that may still be unconsumed.
    posted: Posted,
    sent: HashMap<u32, u64>,
    waits: Vec<Waits>,
}

/// All ranks.
pub(super) struct Machine<'a> {
    shapes: &'a [Shape],
    programs: &'a [Program],
    pub(super) symbols: Symbols,
    memories: Vec<[Memory; 4]>,
    lanes: Vec<Vec<Lane>>,
    channels: HashMap<(usize, u32, usize), Channel>,
    report: Report,
}

impl<'a> Machine<'a> {
    pub(super) fn new(shapes: &'a [Shape], programs: &'a [Program]) -> Machine<'a> {
        let n = shapes.len();
        let mut machine = Machine {
            shapes,
            programs,
            symbols: Symbols::default(),
            memories: (0..n).map(|_| Default::default()).collect(),
            lanes: Vec::with_capacity(n),
            channels: HashMap::new(),
            report: Report { sent: vec![0; n], ..Report::default() },
        };
        for (rank, (shape, program)) in shapes.iter().zip(programs).enumerate() {
            let id = machine.symbols.input(rank as u32);
            let whole = |len| Run { len, id, base: 0 };
            if shape.input_len(rank) > 0 {
                machine.store(rank, Span::input(0, shape.input_len(rank)), &[whole(shape.input_len(rank))]);
            }
            // What a barrier's messages hold does not matter, so its scratch need not be written.
            if shape.collective == Collective::Barrier && program.scratch > 0 {
                machine.store(rank, Span::scratch(0, program.scratch), &[whole(program.scratch)]);
            }
            let heard: Vec<bool> = match shape.collective {
                Collective::Barrier => (0..n).map(|other| other == rank).collect(),
                _ => Vec::new(),
            };
            let lane = |waits| Lane {
                next: 0,
                chain: 0,
                heard: heard.clone(),
                posted: Posted::default(),
                sent: HashMap::new(),
                waits,
            };
            machine.lanes.push(hazards(program, shape, rank).into_iter().map(lane).collect());
        }
        machine
    }

    /// Runs to the end.
    pub(super) fn run(&mut self) -> Result<Report, Fault> {
        let mut ready: VecDeque<(usize, usize)> = self
            .lanes
            .iter()
            .enumerate()
            .flat_map(|(r, lanes)| (0..lanes.len()).map(move |l| (r, l)))
            .collect();
        while let Some((rank, lane)) = ready.pop_front() {
            while self.at(rank, lane).is_some() {
                if self.blocked(rank, lane).is_some() {
                    break;
                }
                self.step(rank, lane, &mut ready)?;
            }
        }
        let stuck: Vec<Blocked> = (0..self.lanes.len())
            .flat_map(|rank| (0..self.lanes[rank].len()).map(move |lane| (rank, lane)))
            .filter_map(|(rank, lane)| self.blocked(rank, lane))
            .collect();
        if !stuck.is_empty() {
            return Err(Fault::Deadlock(stuck));
        }
        let mut left: Vec<_> = self.channels.iter().filter(|(_, c)| !c.waiting.is_empty()).collect();
        left.sort_by_key(|(key, _)| **key);
        if let Some(&(&(from, to, lane), channel)) = left.first() {
            return Err(Fault::Unconsumed { from, to, lane, messages: channel.waiting.len() });
        }
        Ok(self.report.clone())
    }

    /// The values of a span, or its first unwritten element.
    pub(super) fn load(&self, rank: usize, span: Span) -> Result<Vec<Run>, u64> {
        let (space, start) = self.shapes[rank].place(rank, span);
        self.memories[rank][space as usize].read(start, span.len).map_err(|at| at - start + span.start)
    }

    /// A rank that `rank` has not heard of when it ends.
    pub(super) fn not_heard(&self, rank: usize) -> Option<usize> {
        (0..self.shapes.len()).find(|&r| r != rank && !self.lanes[rank].iter().any(|lane| lane.heard[r]))
    }

    fn store(&mut self, rank: usize, span: Span, value: &[Run]) {
        let (space, start) = self.shapes[rank].place(rank, span);
        self.memories[rank][space as usize].write(start, value);
    }

    /// The next instruction of a lane, if it has not ended.
    fn at(&self, rank: usize, lane: usize) -> Option<(At, &'a Instruction)> {
        // A message can name a lane that its receiver does not have.
        let code: &'a [Instruction] = self.programs[rank].lanes.get(lane)?;
        let instruction = self.lanes[rank][lane].next;
        code.get(instruction).map(|next| (At { rank, lane, instruction }, next))
    }

    /// What the next instruction of a lane waits for.
    fn blocked(&self, rank: usize, lane: usize) -> Option<Blocked> {
        let (at, instruction) = self.at(rank, lane)?;
        let mut needed: Vec<u32> = match instruction {
            Instruction::Recv { from, .. } => vec![*from],
            Instruction::RecvReduce { terms, .. } => terms.iter().filter_map(sender).collect(),
            Instruction::Send { .. } | Instruction::Copy { .. } => Vec::new(),
        };
        needed.sort_unstable();
        let here =
            |from: u32| self.channels.get(&(from as usize, rank as u32, lane)).map_or(0, |c| c.waiting.len());
        let missing =
            needed.chunk_by(|a, b| a == b).find(|same| here(same[0]) < same.len()).map(|same| same[0]);
        if let Some(on) = missing {
            return Some(Blocked { at, on, consume: false });
        }
        let waits = &self.lanes[rank][lane].waits[at.instruction];
        let unread = waits.iter().find(|wait| self.consumed(rank, wait.lane, wait.to) <= wait.message);
        unread.map(|wait| Blocked { at, on: wait.to, consume: true })
    }

    fn consumed(&self, rank: usize, lane: usize, to: u32) -> u64 {
        self.channels.get(&(rank, to, lane)).map_or(0, |channel| channel.consumed)
    }

    /// Runs one instruction that is not blocked.
    fn step(&mut self, rank: usize, lane: usize, ready: &mut VecDeque<(usize, usize)>) -> Result<(), Fault> {
        let Some((at, instruction)) = self.at(rank, lane) else { return Ok(()) };
        let own = |machine: &Self, span: Span| {
            let unwritten = |element| Fault::Unwritten { at, space: span.space, element };
            machine.load(rank, span).map_err(unwritten)
        };
        let result = match instruction {
            Instruction::Send { to, src } => {
                let value = own(self, *src)?;
                self.post(rank, lane, *to, *src, value);
                ready.push_back((*to as usize, lane));
                None
            }
            Instruction::Recv { from, dst } => {
                let wide = dst.space == Space::Partial;
                Some((*dst, self.receive(at, *from, dst.len, wide, ready)?))
            }
            Instruction::Copy { src, dst } => Some((*dst, own(self, *src)?)),
            Instruction::RecvReduce { dst, terms, fold, finish } => {
                let mut values = Vec::with_capacity(terms.len());
                for term in terms {
                    values.push(match term {
                        Term::Own(span) => own(self, *span)?,
                        Term::From { rank, wide } => self.receive(at, *rank, dst.len, *wide, ready)?,
                    });
                }
                let mut value = self.symbols.fold(fold, values);
                if *finish {
                    value.iter_mut().for_each(|run| run.id = self.symbols.finish(run.id));
                }
                Some((*dst, value))
            }
        };
        if let Some((dst, mut value)) = result {
            self.unread(at, dst)?;
            if dst.space != Space::Partial {
                value.iter_mut().for_each(|run| run.id = self.symbols.round(run.id));
            }
            self.store(rank, dst, &value);
        }
        self.lanes[rank][lane].next += 1;
        Ok(())
    }

    fn post(&mut self, rank: usize, lane: usize, to: u32, src: Span, value: Vec<Run>) {
        let sender = &mut self.lanes[rank][lane];
        let number = sender.sent.entry(to).or_default();
        let place = self.shapes[rank].place(rank, src);
        sender.posted.add(place, src.len, Wait { lane, to, message: *number });
        *number += 1;
        let wide = src.space == Space::Partial;
        let message =
            Message { value, len: src.len, wide, chain: sender.chain + 1, heard: sender.heard.clone() };
        self.report.messages += 1;
        self.report.sent[rank] += src.len;
        self.report.wide += if wide { src.len } else { 0 };
        self.report.chain = self.report.chain.max(message.chain);
        self.channels.entry((rank, to, lane)).or_default().waiting.push_back(message);
    }

    fn receive(
        &mut self,
        at: At,
        from: u32,
        len: u64,
        wide: bool,
        ready: &mut VecDeque<(usize, usize)>,
    ) -> Result<Vec<Run>, Fault> {
        let channel = self.channels.get_mut(&(from as usize, at.rank as u32, at.lane));
        let (channel, message) = channel
            .and_then(|channel| channel.waiting.pop_front().map(|message| (channel, message)))
            .expect("a lane that is not blocked has its messages");
        channel.consumed += 1;
        if (message.len, message.wide) != (len, wide) {
            let (sent, sent_wide) = (message.len, message.wide);
            return Err(Fault::Message { at, from, expected: len, expected_wide: wide, sent, sent_wide });
        }
        let lane = &mut self.lanes[at.rank][at.lane];
        lane.chain = lane.chain.max(message.chain);
        lane.heard.iter_mut().zip(message.heard).for_each(|(mine, theirs)| *mine |= theirs);
        ready.push_back((from as usize, at.lane));
        Ok(message.value)
    }

    /// That nobody is still reading what is about to be written: checks [`hazards`] itself.
    fn unread(&mut self, at: At, dst: Span) -> Result<(), Fault> {
        let lane = &mut self.lanes[at.rank][at.lane];
        let consumed = |message: &Wait| {
            let channel = self.channels.get(&(at.rank, message.to, at.lane));
            channel.is_some_and(|channel| message.message < channel.consumed)
        };
        let place = self.shapes[at.rank].place(at.rank, dst);
        let hit = lane.posted.overlapping(place, dst.len, consumed).first().map(|wait| wait.to);
        hit.map_or(Ok(()), |to| Err(Fault::Hazard { at, to }))
    }
}

fn sender(term: &Term) -> Option<u32> {
    match term {
        Term::From { rank, .. } => Some(*rank),
        Term::Own(_) => None,
    }
}
