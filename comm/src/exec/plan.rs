//! A program, made ready to run: addresses resolved to bytes, messages numbered, waits looked up.

use std::sync::LazyLock;

use crate::fold::Fold;
use crate::kernel::Kernel;
use crate::number::DataType;
use crate::schedule::{Instruction, Program, Shape, Space, Span, Term, hazards};

use super::grants::{Grant, announce, grant};
use super::layout::SLOT_BYTES;

/// What the ranks of a host share and keep in cache, bytes.
static CACHE: LazyLock<u64> = LazyLock::new(nd_transport::last_cache);

/// A place in one of a call's four memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which memory, as an index ([`Space`] as a number).
    pub space: usize,
    /// Offset in bytes.
    pub offset: u64,
    /// Whether elements are of the accumulator type.
    pub wide: bool,
}

/// One instruction, ready to run.
#[derive(Debug, Clone)]
pub enum Op {
    /// Post message number `message`.
    Send {
        /// The receiver.
        peer: usize,
        /// Its number in the plan.
        message: usize,
        /// What is sent.
        src: Place,
        /// Elements.
        count: u64,
    },
    /// Store `terms` (one of them is a copy), combined in the order of `fold`.
    Fold {
        /// Where to.
        dst: Place,
        /// Whether the reduction is complete.
        finish: bool,
        /// The operands.
        terms: Vec<Operand>,
        /// How they are combined.
        fold: Fold,
        /// Elements.
        count: u64,
        /// The peers to which the next ops send the result, all of it: it may be stored there at once.
        sends: Vec<usize>,
    },
}

/// An operand of [`Op::Fold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// Own memory.
    Own(Place),
    /// The next message from a peer.
    From {
        /// The sender.
        peer: usize,
        /// Whether it is in the accumulator type.
        wide: bool,
    },
}

/// An op, and the messages that must have been consumed before it.
#[derive(Debug, Clone)]
pub struct Ready {
    /// What to do.
    pub op: Op,
    /// Numbers of messages.
    pub waits: Vec<usize>,
    /// The peers that may put their messages from now on.
    pub grants: Vec<Grant>,
}

/// A program made ready to run for one element type and operation.
#[derive(Debug)]
pub struct Plan {
    /// The lanes.
    pub lanes: Vec<Vec<Ready>>,
    /// How many messages it sends.
    pub messages: usize,
    /// Bytes of each of the memories: input, output, scratch, partial.
    pub lens: [u64; 4],
    /// Bytes of scratch: of the element type, then (from `partial_at` on) of the accumulator type.
    pub scratch: u64,
    /// Where the accumulator type's scratch begins.
    pub partial_at: u64,
    /// Elements of a chunk: what one slot holds of the wider type, for both sides alike.
    pub chunk: u64,
    /// Bytes of an element, and of an accumulator.
    pub widths: [u64; 2],
    /// The loops, for collectives that reduce.
    pub kernel: Option<Kernel>,
    /// Whether long results are stored past the caches, which could not keep what the ranks of a host work on.
    pub streams: bool,
    /// The number of the algorithm that made the program, from 1, as [`crate::schedule::algorithms`] lists them; 0 for
    /// one message.
    pub algorithm: u8,
}

impl Plan {
    /// From the program of `rank` for `shape`. `kernel` is there for collectives that reduce.
    pub fn new(
        program: &Program,
        shape: &Shape,
        rank: usize,
        data_type: DataType,
        kernel: Option<Kernel>,
        algorithm: u8,
    ) -> Plan {
        let widths = match kernel {
            Some(_) => [data_type.size() as u64, data_type.accumulator().size() as u64],
            None => [data_type.size() as u64; 2],
        };
        let place = |span: Span| {
            let wide = span.space == Space::Partial;
            Place { space: span.space as usize, offset: span.start * widths[usize::from(wide)], wide }
        };
        let waits = hazards(program, shape, rank);
        let mut messages = 0;
        let mut lanes = Vec::with_capacity(program.lanes.len());
        for (instructions, waits) in program.lanes.iter().zip(waits) {
            // The numbers of the messages to each peer in this lane, in order.
            let mut sent: Vec<(u32, usize)> = Vec::new();
            let mut lane = Vec::with_capacity(instructions.len());
            for (instruction, waits) in instructions.iter().zip(waits) {
                let number =
                    |to: u32, nth: u64| sent.iter().filter(|s| s.0 == to).nth(nth as usize).map(|s| s.1);
                let waits = waits.iter().filter_map(|w| number(w.to, w.message)).collect();
                let op = match instruction {
                    Instruction::Send { to, src } => {
                        sent.push((*to, messages));
                        messages += 1;
                        Op::Send {
                            peer: *to as usize,
                            message: messages - 1,
                            src: place(*src),
                            count: src.len,
                        }
                    }
                    Instruction::Recv { from, dst } => Op::Fold {
                        dst: place(*dst),
                        finish: false,
                        terms: vec![Operand::From {
                            peer: *from as usize,
                            wide: dst.space == Space::Partial,
                        }],
                        fold: Fold::identity(),
                        count: dst.len,
                        sends: Vec::new(),
                    },
                    Instruction::RecvReduce { dst, terms, fold, finish } => Op::Fold {
                        dst: place(*dst),
                        finish: *finish,
                        terms: terms
                            .iter()
                            .map(|term| match term {
                                Term::Own(span) => Operand::Own(place(*span)),
                                Term::From { rank, wide } => {
                                    Operand::From { peer: *rank as usize, wide: *wide }
                                }
                            })
                            .collect(),
                        fold: fold.clone(),
                        count: dst.len,
                        sends: Vec::new(),
                    },
                    Instruction::Copy { src, dst } => Op::Fold {
                        dst: place(*dst),
                        finish: false,
                        terms: vec![Operand::Own(place(*src))],
                        fold: Fold::identity(),
                        count: dst.len,
                        sends: Vec::new(),
                    },
                };
                lane.push(Ready { op, waits, grants: Vec::new() });
            }
            announce(&mut lane, instructions);
            let place_of = |span| shape.place(rank, span);
            let same = |a: Span, b: Span| a.len == b.len && place_of(a) == place_of(b);
            grant(&mut lane, instructions, |a, b| shape.overlap(rank, a, b), same, widths);
            lanes.push(lane);
        }
        let partial_at = (program.scratch * widths[0]).next_multiple_of(64);
        let locals = shape.layout.hosts()[shape.layout.host_of(rank)].len() as u64;
        let [input, output] =
            [shape.input_len(rank), shape.output_len(rank)].map(|n| n.saturating_mul(widths[0]));
        let partial = program.partial * widths[1];
        Plan {
            streams: input.saturating_add(output).saturating_mul(locals) > *CACHE,
            lens: [input, output, program.scratch * widths[0], partial],
            lanes,
            messages,
            scratch: partial_at + partial,
            partial_at,
            chunk: SLOT_BYTES / widths[0].max(widths[1]),
            widths,
            kernel,
            algorithm,
        }
    }
}
