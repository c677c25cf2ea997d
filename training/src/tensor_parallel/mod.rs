//! Matrices dealt out over the ranks of `tp`: the scheme of Megatron-LM (arXiv 1909.08053) and, for the parts of a model
//! between the matrices, its sequence parallelism (arXiv 2205.05198).
//!
//! A column-parallel product followed by a row-parallel one needs each rank's part of the weights alone, and one sum
//! over all ranks at the end. `b` sequences of `s` tokens with `h` features each, on `T` ranks:
//!
//! | | forward | backward |
//! |---|---|---|
//! | [`copy_to`] | nothing | all-reduce of b·s·h |
//! | [`reduce_from`] | all-reduce of b·s·h | nothing |
//! | [`gather_sequence`] | all-gather of b·s·h | reduce-scatter of b·s·h |
//! | [`scatter_sequence`] | reduce-scatter of b·s·h | all-gather of b·s·h |
//! | [`ColumnParallel`] | as `copy_to`; `gather_sequence` with sequence parallelism | the same, and with sequence parallelism the all-gather once more, as what was gathered is not kept |
//! | [`RowParallel`], [`VocabParallelEmbedding`] | as `reduce_from`; `scatter_sequence` with sequence parallelism | the same |
//! | [`vocab_parallel_cross_entropy`] | three all-reduces of b·s numbers | nothing |
//!
//! All ranks of the group make the same calls in the same order; on one rank nothing is sent. With sequence parallelism
//! the weights that are applied between the matrices see a part of the tokens on each rank: their gradients are to be
//! added up over the group ([`Parameter::partial_over`](crate::model::Parameter::partial_over)).
//!
//! | file | what |
//! |---|---|
//! | `mappings` | the four ways in and out |
//! | `linear` | `x · wᵀ` |
//! | `parallel` | column- and row-parallel products |
//! | `products` | the former without sequence parallelism: what is sent overlaps with what is computed |
//! | `gathered` | their inputs under sequence parallelism |
//! | `embedding` | rows of a table that is dealt out |
//! | `cross_entropy` | the loss over a vocabulary that is dealt out |

mod cross_entropy;
mod embedding;
mod gathered;
mod linear;
mod mappings;
mod parallel;
mod products;

pub use cross_entropy::{IGNORE, vocab_parallel_cross_entropy};
pub use embedding::VocabParallelEmbedding;
pub use linear::linear;
pub use mappings::{copy_to, gather_sequence, reduce_from, scatter_sequence};
pub use parallel::{ColumnParallel, RowParallel};

#[cfg(test)]
mod tests;
