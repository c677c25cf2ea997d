//! Tokens, and which rank sees which of them at which step.
//!
//! | file | what |
//! |---|---|
//! | [`Tokenizer`] | bytes, or a `tokenizer.json` |
//! | [`Tokens`] | tokens of a text — *pure* |
//! | [`Windows`] | a text cut into sequences — *pure* |
//! | [`Deal`] | which sequence whom at which step — *pure* |
//! | `permutation` | a shuffled order without a list of it — *pure* |
//! | [`MicroBatch`] | inputs and labels of one rank for one micro-batch — *pure* |
//! | [`text`] | a text that a small model can learn from — *pure* |

mod batch;
mod deal;
mod permutation;
pub mod text;
mod tokenizer;
mod tokens;
mod windows;

pub use batch::MicroBatch;
pub use deal::{Deal, Order};
pub use tokenizer::Tokenizer;
pub use tokens::Tokens;
pub use windows::Windows;
