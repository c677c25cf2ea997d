//! Sequences dealt out over the ranks of `cp`, and attention over them: Ring Attention (arXiv 2310.01889), and its form
//! that gathers keys and values first.
//!
//! Each rank has the queries, keys and values of its part of every sequence. Keys and values go round the ring, and while
//! they go, each rank works on those it has: no rank ever holds scores of more than a tile, or more keys and values than
//! three times its own. A causal mask leaves the first tokens little to do and the last ones much; dealt out as
//! [`Balance::Zigzag`], every rank has as much to do as every other.
//!
//! With W ranks, `b` sequences of `s` tokens in all, `h` heads of keys and values with `d` features of `p` bytes:
//!
//! | | forward | backward |
//! |---|---|---|
//! | [`Form::Ring`] | W-1 shifts of 2·b·(s/W)·h·d·p bytes | W-1 such, and W shifts of the gradients, in f32 (f64 for f64) |
//! | [`Form::AllGather`] | one all-gather of 2·b·s·h·d·p bytes | one such, and a reduce-scatter of the gradients, in f32 (f64 for f64) |
//!
//! | file | what |
//! |---|---|
//! | `deal` | which rank has which tokens — *pure* |
//! | `tiles` | which keys a tile of queries sees — *pure* |
//! | `attention` | the operation |
//! | `passing` | keys and values on their way |
//! | `forward`, `backward` | the arithmetic of a tile |

mod attention;
mod backward;
mod deal;
mod forward;
mod passing;
mod tiles;

pub use attention::ring_attention;
pub use deal::{collect, deal, padding, positions, work};

use crate::group::Group;

/// How attention works over the ranks of a group.
#[derive(Clone)]
pub struct ContextParallel {
    /// The ranks over which sequences are dealt out.
    pub group: Group,
    /// How keys and values come to them.
    pub form: Form,
    /// Which rank has which tokens.
    pub balance: Balance,
}

/// How keys and values come to the ranks that need them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// Round the ring, each on its way while the one before is worked on. Memory falls with the number of ranks.
    #[default]
    Ring,
    /// All at once, before the work on them: one call in place of W-1, and memory for all of them.
    AllGather,
}

/// Which rank has which tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Balance {
    /// Of 2·W equal chunks rank r has the chunks r and 2·W-1-r: as much work as every other under a causal mask.
    #[default]
    Zigzag,
    /// Of W equal chunks rank r has the chunk r: the last rank has nearly twice the mean of the work.
    Contiguous,
}
