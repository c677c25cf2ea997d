//! Tokens, and which rank sees which of them at which step.
//!
//! | file | what |
//! |---|---|
//! | [`Corpus`] | files with texts, and what is a document in them |
//! | [`Tokenizer`] | bytes, a `tokenizer.json`, or the one in a GGUF file |
//! | [`Cache`] | tokens that were made once, in files |
//! | `mapped` | such a file in memory |
//! | [`Tokens`] | tokens of a text — *pure* |
//! | [`Windows`] | a text cut into sequences — *pure* |
//! | [`Deal`] | which sequence whom at which step — *pure* |
//! | `permutation` | a shuffled order without a list of it — *pure* |
//! | [`MicroBatch`] | inputs and labels of one rank for one micro-batch — *pure* |
//! | [`text`] | a text that a small model can learn from — *pure* |

mod batch;
mod cache;
mod corpus;
mod deal;
mod mapped;
mod permutation;
pub mod text;
mod tokenizer;
mod tokens;
mod windows;

pub use batch::MicroBatch;
pub use cache::{Cache, Key};
pub use corpus::{Corpus, Documents, End};
pub use deal::{Deal, Order};
pub use tokenizer::{Encoder, Tokenizer};
pub use tokens::Tokens;
pub use windows::Windows;
