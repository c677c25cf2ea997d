//! The Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU.
//!
//! A [`Config`] comes from a Hugging Face `config.json`, a [`Llama`] is that model under tensor and context parallelism,
//! a [`Batch`] what one rank computes with, and [`Weights`] what parameters hold before training.
//!
//! | file | what |
//! |---|---|
//! | `config` | the numbers of a model, and its tensors |
//! | `heads` | how a width makes heads, and what would do where it does not — *pure* |
//! | `split` | which rank has which heads and channels — *pure* |
//! | `freeze` | which parameters stay as they are — *pure* |
//! | `gguf` | the same in a GGUF file |
//! | `model` | units and stages |
//! | `batch` | tokens, labels, positions |
//! | `weights` | random or from files, and to files |

mod batch;
mod config;
mod freeze;
pub(crate) mod gguf;
mod heads;
mod model;
#[cfg(test)]
mod plain;
mod split;
#[cfg(test)]
mod tests;
pub mod weights;

pub use batch::Batch;
pub use config::Config;
pub use heads::{Names, head_dim};
pub use model::{Llama, Options};
pub use weights::Weights;

pub use crate::tensor_parallel::IGNORE;
