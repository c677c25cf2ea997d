//! From text to tokens.

use std::path::{Path, PathBuf};

use super::Tokens;
use crate::error::{Error, Result};

/// What makes tokens of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tokenizer {
    /// Every byte is a token: a vocabulary of 256.
    Bytes,
    /// A `tokenizer.json` of Hugging Face's.
    File(PathBuf),
}

impl Tokenizer {
    /// `bytes`, or a file.
    pub fn named(name: &str) -> Tokenizer {
        if name == "bytes" { Tokenizer::Bytes } else { Tokenizer::File(name.into()) }
    }

    /// How many tokens there are.
    ///
    /// # Errors
    /// [`Error::File`] for a tokenizer that cannot be read.
    pub fn vocabulary(&self) -> Result<usize> {
        match self {
            Tokenizer::Bytes => Ok(256),
            Tokenizer::File(path) => Ok(open(path)?.get_vocab_size(true)),
        }
    }

    /// The tokens of a text, without marks for its beginning or end.
    ///
    /// # Errors
    /// [`Error::File`] for a tokenizer that cannot be read; [`Error::Config`] for a text that is not UTF-8, with the place.
    pub fn encode(&self, text: Vec<u8>) -> Result<Tokens> {
        let path = match self {
            Tokenizer::Bytes => return Ok(Tokens::U8(text)),
            Tokenizer::File(path) => path,
        };
        let tokenizer = open(path)?;
        let text = std::str::from_utf8(&text).map_err(|e| {
            let at = e.valid_up_to();
            Error::Config(format!(
                "the text is not UTF-8 from byte {at} on; convert it, or use --tokenizer bytes"
            ))
        })?;
        let refused = |e| Error::File { path: path.clone(), problem: format!("cannot encode the text: {e}") };
        // The same tokens as `encode` gives, without their places in the text.
        let encoded = tokenizer.encode_fast(text, false).map_err(refused)?;
        Ok(encoded.get_ids().to_vec().into())
    }

    /// The tokens of a file's text.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`], and [`Error::File`] for a text of less than two tokens.
    pub fn encode_file(&self, path: &Path, text: Vec<u8>) -> Result<Tokens> {
        let refused = |problem: String| Error::File { path: path.to_owned(), problem };
        let bytes = text.len();
        let tokens = self.encode(text).map_err(|e| match e {
            Error::Config(problem) => refused(problem),
            e => e,
        })?;
        match tokens.len() {
            n @ (0 | 1) => Err(refused(format!(
                "{bytes} byte{} made {n} token{}, and a sequence needs at least 2; give a longer text",
                if bytes == 1 { "" } else { "s" },
                if n == 1 { "" } else { "s" }
            ))),
            _ => Ok(tokens),
        }
    }
}

fn open(path: &Path) -> Result<tokenizers::Tokenizer> {
    tokenizers::Tokenizer::from_file(path).map_err(|e| Error::File {
        path: path.to_owned(),
        problem: format!("no tokenizer can be read: {e}; name a tokenizer.json, or bytes"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_tokens() {
        assert_eq!(Tokenizer::named("bytes").encode(b"a\xff".to_vec()).unwrap(), Tokens::U8(vec![97, 255]));
    }

    #[test]
    fn a_tokenizer_file_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"one": 0, "two": 1, "?": 2}, "unk_token": "?"}}"#;
        std::fs::write(&path, json).unwrap();
        let tokenizer = Tokenizer::named(path.to_str().unwrap());
        assert_eq!(tokenizer.encode(b"two one four".to_vec()).unwrap(), Tokens::U8(vec![1, 0, 2]));
        assert_eq!(tokenizer.vocabulary().unwrap(), 3);
        let error = tokenizer.encode(b"one \xff".to_vec()).unwrap_err().to_string();
        assert!(error.contains("byte 4") && error.contains("--tokenizer bytes"), "{error}");
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("short.txt");
        let error = Tokenizer::Bytes.encode_file(&path, b"x".to_vec()).unwrap_err().to_string();
        assert!(error.contains("short.txt: 1 byte made 1 token,") && error.contains("at least 2"), "{error}");
        let error = Tokenizer::named("none.json").encode(Vec::new()).unwrap_err().to_string();
        assert!(error.starts_with("none.json: no tokenizer"), "{error}");
    }
}
