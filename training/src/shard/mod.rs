//! Flat shards of units: gather, reduce, and what DDP, ZeRO and FSDP make of them.
//!
//! Each unit's parameters lie one after the other in a vector that is cut into equal [shards](layout), one for each rank of
//! `dp_shard`×`cp`. Before a stage computes, its unit's weights are [gathered](Policy::compute) while the stage before it
//! computes; after its backward pass their gradients are added up and scattered while the stage before it is
//! differentiated. `dp_replicate` ranks then add up their shards' gradients (HSDP).
//!
//! Per step and parameter, f32, over W ranks each sends (W-1)/W × 4 bytes for each of
//!
//! | | gathered | gradients | memory besides the optimizer's state |
//! |---|---|---|---|
//! | ZeRO-0 (DDP) | – | 2 (all-reduce) | masters, weights, gradients |
//! | ZeRO-1 | 1 | 1 a step | weights, gradients while micro-batches add up; the rest over W |
//! | ZeRO-2 | 1 | 1 a micro-batch | weights; the rest over W |
//! | FSDP, `Reshard::Never` | 1 a micro-batch | 1 a micro-batch | weights of a micro-batch; the rest over W |
//! | FSDP | 2 a micro-batch | 1 a micro-batch | some units; the rest over W |
//!
//! (the unit of the last stage is gathered once, as it is needed again at once), as ZeRO has it: Rajbhandari et al., "ZeRO:
//! Memory Optimizations Toward Training Trillion Parameter Models", arXiv 1910.02054.
//!
//! The whole of FSDP needs, besides its shards and what operations keep: two units in the forward pass (the weights in use,
//! the next ones on their way), and in the backward pass three and the largest parameter: the weights, each of which goes when
//! its gradient comes, the next ones, and the gradients of the stage before that are on their way; two and the largest
//! parameter without [`Policy::prefetch`]. The units whose gradients are not reduced yet, three with prefetch, have no shards of
//! gradients meanwhile. So FSDP2's bound, two shards of the model and three units, holds as long as a parameter is no larger
//! than three shards of a unit; on more ranks the largest parameter comes on top.
//!
//! | file | what |
//! |---|---|
//! | [`sharded`] | [`Sharded`], the model whose state is divided |
//! | `run` | forward and backward pass of a micro-batch |
//! | [`policy`] | [`Policy`] |
//! | [`layout`] | where a unit's parameters lie — *pure* |
//! | `program` | in which order units are used — *pure* |
//! | `buckets` | which gradients are reduced together — *pure* |
//! | `weights` | tensors whose memory comes and goes |
//! | `gather` | weights are brought together |
//! | `values`, `reduce` | gradients, before and while they are added up |
//! | `whole` | whole parameters, for export |
//! | `state` | what of which parameters lies on a rank, for checkpoints |
//! | [`memory`] | what memory is for |

mod buckets;
mod gather;
pub mod layout;
pub mod memory;
mod number;
pub mod policy;
mod program;
mod reduce;
mod run;
mod seed;
pub mod sharded;
mod state;
mod values;
mod weights;
mod whole;

#[cfg(test)]
mod tests;

pub use layout::Piece;
pub use memory::Memory;
pub use policy::{Policy, Reshard};
pub use sharded::{ShardView, Sharded};
pub use state::Own;
