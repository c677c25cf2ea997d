//! The loop: from a configuration to a trained model and its metrics.
//!
//! | file | what |
//! |---|---|
//! | [`Config`] | what to train, on what, and how; [`KEYS`] lists every setting |
//! | [`Loop`] | one step of any [`Model`](crate::Model): accumulate, clip, update, and the loss of all ranks |
//! | [`Placed`] | which rank sits where in the mesh, by the links between them |
//! | [`predict`] | what a step will send, by group — *pure* |
//! | [`Spared`] | what HSDP keeps off the links between hosts — *pure* |
//! | `plan` | what a rank finds out by itself, before it reads texts and weights |
//! | `origin` | where a run begins: with weights, or where a checkpoint was written |
//! | `state` | what a run says of itself in its checkpoints, and whether another can go on from one — *pure* |
//! | [`Trainer`] | a Llama on a text, by a configuration |
//! | `texts` | texts as tokens, made once on each host |
//! | [`Row`] | what is known of a step |
//! | [`Sent`] | what a rank has sent, and how long that took |

mod config;
mod origin;
mod place;
mod plan;
mod predict;
#[cfg(test)]
mod resumed;
mod room;
mod row;
mod sent;
mod spared;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod texts;
mod trainer;

pub use config::{Config, KEYS, Key, SHARDED_DDP};
pub use place::{Placed, place};
pub use predict::{Predicted, predict};
pub use row::Row;
pub use sent::Sent;
pub use spared::{Crossing, Spared};
pub use step::{Loop, Outcome, Progress};
pub use trainer::Trainer;
