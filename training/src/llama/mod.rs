//! The Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU.
//!
//! A [`Config`] comes from a Hugging Face `config.json`, and [`Weights`] are what parameters hold before training.
//!
//! | file | what |
//! |---|---|
//! | `config` | the numbers of a model, and its tensors |
//! | `weights` | random or from files, and to files |

mod config;
pub mod weights;

pub use config::Config;
pub use weights::Weights;
