//! Parallel training on [candle](candle_core): data parallelism from DDP to FSDP and HSDP, tensor parallelism and
//! RingAttention, alone and together.
//!
//! A model is a list of [`stages`](model::Model): functions from weights and an input to an output. Its weights
//! belong to *units* (a transformer block, say); each unit's weights lie as one flat vector, of which every rank keeps
//! a shard, an optimizer's state for the shard, and nothing else between steps. [`Sharded`](shard::Sharded) gathers
//! a unit's weights when a stage needs them and scatters their gradients when the last stage that needs them has been
//! differentiated.
//!
//! | module | what |
//! |---|---|
//! | [`mesh`] | the axes `dp_replicate, dp_shard, cp, tp`, coordinates and rules — *pure* |
//! | [`group`] | the ranks along an axis, and a ledger of what they send and how long that takes |
//! | [`model`] | what a model is to this crate: parameters, units, stages |
//! | [`ops`] | differentiable operations with their own backward pass |
//! | [`shard`] | flat shards of units: gather, reduce, DDP, ZeRO-1, 2, 3 (FSDP), HSDP |
//! | [`tensor_parallel`] | column- and row-parallel products, vocabulary-parallel embedding and loss |
//! | [`context_parallel`] | sequences dealt out over ranks, and attention over them |
//! | [`llama`] | the Llama family |
//! | [`optim`] | AdamW on shards, gradient norm and clipping, loss scale, learning rate |
//! | [`data`] | tokens, and which rank sees which at which step — the order is *pure* |
//! | [`train`] | the loop: from a configuration to a trained model and its metrics |
//! | [`checkpoint`] | the state of training in files, and on any mesh out of them again |
//! | `files`, `json` | what must hold of what is read |
//! | `gguf` | llama.cpp's files |
//! | `encoding`, `tensor_file` | how numbers lie in files, and where in safetensors |
//! | `runs` | where a part of a tensor lies in the whole — *pure* |
//! | `agree` | whether all ranks can begin, and have the same |
//! | `digest` | whether two ranks have read the same — *pure* |
//! | `kernel` | loops over slices that the operations share, on the CPU |
//!
//! May depend on `nd-comm` and on `nd-topology`'s placement; never names a transport or a rank's address. Losses and
//! gradients are sums; the one division is by the global number of tokens that count.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agree;
pub mod checkpoint;
pub mod context_parallel;
pub mod data;
mod digest;
mod encoding;
mod error;
mod files;
mod gguf;
pub mod group;
mod json;
mod kernel;
pub mod llama;
pub mod mesh;
pub mod model;
pub mod ops;
pub mod optim;
mod runs;
pub mod shard;
mod tensor_file;
pub mod tensor_parallel;
pub mod train;

pub use error::{Error, Result};
pub use group::{Group, Groups};
pub use mesh::{Axis, Mesh};
pub use model::{Model, Parameter, Unit};
