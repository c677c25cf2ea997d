//! Who sends what to whom: a schedule is data.
//!
//! An [`Algorithm`] writes, for one rank, a [`Program`]: a few ordered *lanes* of [`Instruction`]s over spans of
//! elements. The verifier, the cost model and the executors consume the same programs.
//!
//! # What instructions mean
//! * `Send` *posts* a message and does not wait: the lane goes on. Until the receiver has consumed it, nothing may
//!   write the sent span; an instruction that does write it waits for the receiver first (whoever executes the
//!   program finds these waits by itself).
//! * `Recv` and `RecvReduce` wait for their messages. The k-th message that rank `a` sends to rank `b` in lane `l`
//!   is the k-th that `b` receives from `a` in lane `l`: there are no tags. Both sides give the same length and
//!   width.
//! * Instructions of one lane run in order; different lanes of a rank run in any order, so no lane may touch what
//!   another writes.
//! * A program ends when every instruction has run and every message it sent has been consumed.
//! * Nobody posts or awaits a message of length 0.
//!
//! # Files
//! | file | what |
//! |---|---|
//! | [`buffers`] | lengths and aliasing of a rank's buffers; cutting into parts and pieces |
//! | [`layout`] | which ranks share a host; the canonical order |
//! | [`hazards`](mod@hazards) | which messages must have been consumed before an instruction may write |
//! | [`verify`](mod@verify) | proves that a schedule does what its collective promises |
//! | [`direct`], [`hierarchical`], [`ring`], [`doubling`], [`halving`], [`tree`], [`dbtree`], [`bruck`] | the algorithms, one a file |

use std::sync::Arc;

pub mod bruck;
pub mod buffers;
mod canonical;
pub mod dbtree;
pub mod direct;
pub mod doubling;
pub mod halving;
pub mod hazards;
pub mod hierarchical;
mod lane;
pub mod layout;
pub mod ring;
pub mod tree;
pub mod verify;

pub use hazards::{Wait, Waits, hazards};
pub use layout::Layout;
pub use verify::{Fault, Report, verify};

use crate::fold::Fold;
use hierarchical::Across;

/// The collective operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Collective {
    /// Every rank gets the reduction of all inputs.
    AllReduce = 1,
    /// Rank r gets the r-th part of the reduction.
    ReduceScatter,
    /// Every rank gets the concatenation of all inputs.
    AllGather,
    /// Every rank gets the root's input.
    Broadcast,
    /// The root gets the reduction.
    Reduce,
    /// The root gets the concatenation of all inputs.
    Gather,
    /// Rank r gets the r-th part of the root's input.
    Scatter,
    /// Rank r gets the r-th part of every rank's input.
    AllToAll,
    /// One message from one rank to another.
    SendRecv,
    /// Nobody leaves before all have entered.
    Barrier,
}

impl Collective {
    /// Whether values are combined.
    pub fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce)
    }

    /// The name of the function that performs it.
    pub fn function(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllGather => "all_gather",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::AllToAll => "all_to_all",
            Collective::SendRecv => "send/recv",
            Collective::Barrier => "barrier",
        }
    }

    /// Whether it has a root.
    pub fn has_root(self) -> bool {
        matches!(self, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter)
    }
}

/// From its number, as on the wire; any other number is given back.
impl TryFrom<u8> for Collective {
    type Error = u8;

    fn try_from(code: u8) -> Result<Collective, u8> {
        use Collective::*;
        let all = [
            AllReduce,
            ReduceScatter,
            AllGather,
            Broadcast,
            Reduce,
            Gather,
            Scatter,
            AllToAll,
            SendRecv,
            Barrier,
        ];
        all.into_iter().find(|c| *c as u8 == code).ok_or(code)
    }
}

/// Which memory a [`Span`] lies in. Offsets and lengths are in elements of that memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Space {
    /// What the caller gives; never written, unless it aliases the output (see [`Shape::alias`]).
    Input,
    /// What the caller gets.
    Output,
    /// Scratch of the element type.
    Scratch,
    /// Scratch of the accumulator type: unrounded partial results (f32 for 16- and 8-bit floats).
    Partial,
}

/// `len` elements from `start` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// Which memory.
    pub space: Space,
    /// First element.
    pub start: u64,
    /// Number of elements.
    pub len: u64,
}

/// One operand of a [`Instruction::RecvReduce`], in the order of its fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Term {
    /// Own memory.
    Own(Span),
    /// The next message from this rank; `wide` when the sender sends from [`Space::Partial`].
    From {
        /// The sender.
        rank: u32,
        /// Whether the message is in the accumulator type.
        wide: bool,
    },
}

/// One instruction of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// Post a message.
    Send {
        /// The receiver.
        to: u32,
        /// What is sent.
        src: Span,
    },
    /// Await a message and store it.
    Recv {
        /// The sender.
        from: u32,
        /// Where to; the sender's span has the same length and width.
        dst: Span,
    },
    /// Combine terms, some of them messages, in the order of `fold`, and store the result.
    ///
    /// `dst` may be exactly the span of an own term, or disjoint from all own terms. Stored into
    /// [`Space::Partial`] the value stays unrounded; stored elsewhere it is rounded.
    RecvReduce {
        /// Where the result goes.
        dst: Span,
        /// The operands; all have `dst.len` elements.
        terms: Vec<Term>,
        /// How they are combined.
        fold: Fold,
        /// Whether this is the complete reduction of a span, so that an average is divided here, before rounding.
        finish: bool,
    },
    /// Copy own memory; from `Partial` to another space the value is rounded (and nothing else).
    Copy {
        /// From.
        src: Span,
        /// To; disjoint from `src`, same length.
        dst: Span,
    },
}

/// What one rank does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Program {
    /// Independent sequences of instructions; at most [`MAX_LANES`].
    pub lanes: Vec<Vec<Instruction>>,
    /// Elements of [`Space::Scratch`] used.
    pub scratch: u64,
    /// Elements of [`Space::Partial`] used.
    pub partial: u64,
}

/// How many lanes a program may have.
pub const MAX_LANES: usize = 2;

/// How a caller's buffers coincide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Alias {
    /// Input and output are different memory.
    #[default]
    None,
    /// In place: the smaller of input and output is a part of the larger, where this rank's part belongs
    /// (all-gather: `input == output[own part]`; reduce-scatter: `output == input[own part]`; gather and scatter:
    /// likewise on the root; otherwise `input == output`).
    InPlace,
}

/// How many elements each rank contributes or gets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Counts {
    /// The same for every rank. All-reduce, reduce, broadcast: the length of the buffer. Reduce-scatter,
    /// all-gather, gather, scatter, all-to-all: the length of one rank's part.
    Equal(u64),
    /// Parts of different lengths, one after the other (the v-variants of reduce-scatter, all-gather; gather and
    /// scatter, where only the root need know all: the other ranks know their own and may hold 0 for the rest).
    PerRank(Arc<[u64]>),
    /// All-to-all-v as this rank sees it: what it sends to and gets from each rank, laid out one after the other.
    Pairwise {
        /// Elements sent to each rank.
        send: Arc<[u64]>,
        /// Elements received from each rank.
        recv: Arc<[u64]>,
    },
}

impl Counts {
    /// Elements of rank `r`'s part ([`Counts::Equal`] and [`Counts::PerRank`]).
    pub fn part(&self, r: usize) -> u64 {
        match self {
            Counts::Equal(n) => *n,
            Counts::PerRank(n) => n[r],
            Counts::Pairwise { .. } => 0,
        }
    }

    /// Where rank `r`'s part starts, in elements.
    pub fn start(&self, r: usize) -> u64 {
        match self {
            Counts::Equal(n) => *n * r as u64,
            Counts::PerRank(n) => n[..r].iter().sum(),
            Counts::Pairwise { .. } => 0,
        }
    }
}

/// Whether results must follow the reproducible order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Reduction {
    /// The order of [`Layout::canonical`]; the default on host memory.
    #[default]
    Reproducible,
    /// Any order (ring and double binary tree need it).
    Fast,
}

/// One call, as one rank sees it: everything a program depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Which collective.
    pub collective: Collective,
    /// How much.
    pub counts: Counts,
    /// The root, where there is one; for [`Collective::SendRecv`] the peer is not a root: see `p2p`.
    pub root: u32,
    /// In place or not, on this rank.
    pub alias: Alias,
    /// Who shares a host with whom; also gives the world size.
    pub layout: Arc<Layout>,
    /// Elements per piece where an algorithm splits a long span to pipeline it; at least 1.
    pub piece: u64,
}

impl Shape {
    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.layout.world_size()
    }
}

/// One way to perform collectives.
pub trait Algorithm: Sync {
    /// As on the command line: `direct`, `ring`, ….
    fn name(&self) -> &'static str;

    /// Whether it can perform this collective for this shape (some need all parts equal, or several ranks).
    fn supports(&self, shape: &Shape) -> bool;

    /// Whether its reductions follow [`Layout::canonical`] for this shape. Always true where nothing is reduced.
    fn reproducible(&self, shape: &Shape) -> bool;

    /// Whether rotating all ranks by one host maps the programs of a uniform, host-major layout onto each other,
    /// lengths of parts aside: rank r + L (of L ranks a host) does what rank r does, with every peer L ranks further
    /// on, too; the terms of a reduction may come in another order. Never true of other layouts. Takes time that
    /// grows with the number of ranks.
    fn cyclic(&self, _shape: &Shape) -> bool {
        false
    }

    /// What `rank` does. Only for shapes that it supports.
    fn program(&self, shape: &Shape, rank: usize) -> Program;
}

/// All algorithms, in the order in which they are listed to users.
pub fn algorithms() -> &'static [&'static dyn Algorithm] {
    &[
        &direct::OneShot,
        &direct::Direct,
        &hierarchical::Hierarchical(Across::Direct),
        &hierarchical::Hierarchical(Across::Halving),
        &hierarchical::Hierarchical(Across::Doubling),
        &hierarchical::Hierarchical(Across::Tree),
        &hierarchical::Hierarchical(Across::Ring),
        &doubling::Doubling,
        &halving::Halving,
        &tree::Tree,
        &ring::Ring,
        &dbtree::DoubleTree,
        &bruck::Bruck,
    ]
}

/// The algorithm of this name.
pub fn by_name(name: &str) -> Option<&'static dyn Algorithm> {
    algorithms().iter().copied().find(|algorithm| algorithm.name() == name)
}
