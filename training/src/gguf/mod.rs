//! GGUF, llama.cpp's file of one model: settings, a tokenizer and tensors.
//!
//! | file | what |
//! |---|---|
//! | [`Header`] | what a file says before its tensors' numbers — *pure* but for reading |
//! | [`tokenizer`] | the tokenizer that is in it, as Hugging Face writes one — *pure* |
//!
//! The format is <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. What belongs to one kind of model lies with
//! that model.

mod header;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod tokenizer;

pub(crate) use header::{Header, is_gguf};
