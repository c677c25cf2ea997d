//! What can be wrong with a schedule.

use std::fmt;

use super::super::{Space, Span};

/// An instruction of a rank's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// The rank.
    pub rank: usize,
    /// Its lane.
    pub lane: usize,
    /// The number of the instruction in the lane, from 0.
    pub instruction: usize,
}

/// What a lane that cannot go on is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocked {
    /// Who waits.
    pub at: At,
    /// For which rank.
    pub on: u32,
    /// Whether for that rank to consume a message (otherwise: to send one).
    pub consume: bool,
}

/// Why a schedule is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The algorithm does not claim to support this shape.
    #[error("{0} does not support this shape")]
    Unsupported(&'static str),
    /// A shape or a program is missing or too many.
    #[error("{shapes} shapes and {programs} programs for {ranks} ranks: give one of each for every rank")]
    Ranks {
        /// The world size.
        ranks: usize,
        /// The shapes.
        shapes: usize,
        /// The programs.
        programs: usize,
    },
    /// More lanes than executors serve.
    #[error("rank {rank} has {lanes} lanes, at most {} are allowed", super::super::MAX_LANES)]
    TooManyLanes {
        /// The rank.
        rank: usize,
        /// Its lanes.
        lanes: usize,
    },
    /// Empty spans need no instruction.
    #[error("{0}: an empty span")]
    Empty(At),
    /// A span reaches beyond its memory.
    #[error("{at}: {span} reaches beyond the {len} elements of its memory")]
    Bounds {
        /// Where.
        at: At,
        /// What.
        span: Span,
        /// How long the memory is.
        len: u64,
    },
    /// The input is the caller's.
    #[error("{0}: writes the input")]
    WritesInput(At),
    /// A message to or from itself or a rank that does not exist.
    #[error("{at}: rank {peer} is no peer")]
    Peer {
        /// Where.
        at: At,
        /// Who.
        peer: u32,
    },
    /// Lengths of operands or the number of terms do not agree.
    #[error("{0}: operands do not fit each other, their destination or the fold")]
    Operands(At),
    /// A destination overlaps an operand without being exactly it.
    #[error("{0}: the destination overlaps what is read")]
    Overlap(At),
    /// A lane touches what another writes.
    #[error("rank {rank}: lane {writer} writes {span}, which lane {other} touches")]
    Lanes {
        /// The rank.
        rank: usize,
        /// The lane that writes.
        writer: usize,
        /// The other.
        other: usize,
        /// What is written.
        span: Span,
    },
    /// Something is read that was never written.
    #[error("{at}: reads element {element} of {space:?}, which was never written")]
    Unwritten {
        /// Where.
        at: At,
        /// Which memory.
        space: Space,
        /// Which element.
        element: u64,
    },
    /// Sender and receiver disagree about a message.
    #[error(
        "{at}: expects {expected} elements (wide: {expected_wide}), rank {from} sends {sent} (wide: {sent_wide})"
    )]
    Message {
        /// Where it is received.
        at: At,
        /// The sender.
        from: u32,
        /// The length that the receiver expects.
        expected: u64,
        /// The width that the receiver expects.
        expected_wide: bool,
        /// The length sent.
        sent: u64,
        /// The width sent.
        sent_wide: bool,
    },
    /// [`hazards`](crate::schedule::hazards()) misses a message that is still being read.
    #[error("{at}: writes over a message to rank {to} that has not been consumed")]
    Hazard {
        /// Where.
        at: At,
        /// The receiver.
        to: u32,
    },
    /// Nobody can go on.
    #[error("deadlock: {}", list(.0))]
    Deadlock(Vec<Blocked>),
    /// Messages that nobody receives.
    #[error("rank {to} never receives {messages} of the messages that rank {from} sent it in lane {lane}")]
    Unconsumed {
        /// The sender.
        from: usize,
        /// The receiver.
        to: u32,
        /// The lane.
        lane: usize,
        /// How many.
        messages: usize,
    },
    /// The output is not what the collective promises.
    #[error("rank {rank}: element {element} of the output is {found}, expected {expected}")]
    Result {
        /// The rank.
        rank: usize,
        /// The element.
        element: u64,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
    },
    /// A rank can leave a barrier before another has entered.
    #[error("rank {rank} leaves the barrier without having heard from rank {missing}")]
    NotEntered {
        /// Who leaves.
        rank: usize,
        /// Who may be missing.
        missing: usize,
    },
}

fn list(blocked: &[Blocked]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<_> = blocked.iter().take(SHOWN).map(ToString::to_string).collect();
    if blocked.len() > SHOWN {
        text.push(format!("and {} more", blocked.len() - SHOWN));
    }
    text.join("; ")
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, lane {}, instruction {}", self.rank, self.lane, self.instruction)
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what =
            if self.consume { "to consume a message that would be overwritten" } else { "to send a message" };
        write!(f, "{} waits for rank {} {what}", self.at, self.on)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{}..{}]", self.space, self.start, self.start.saturating_add(self.len))
    }
}
