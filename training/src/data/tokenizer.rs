//! From text to tokens.

use std::path::{Path, PathBuf};

use crate::digest::digest;
use crate::error::{Error, Result};
use crate::gguf::{Header, is_gguf, tokenizer};

/// What makes tokens of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tokenizer {
    /// Every byte is a token: a vocabulary of 256.
    Bytes,
    /// A `tokenizer.json` of Hugging Face's, or a GGUF file that has a tokenizer.
    File(PathBuf),
}

impl Tokenizer {
    /// `bytes`, or a file.
    pub fn named(name: &str) -> Tokenizer {
        if name == "bytes" { Tokenizer::Bytes } else { Tokenizer::File(name.into()) }
    }

    /// The one that a model has: in its GGUF file, or beside its `config.json`. Bytes where it has none.
    pub fn of_model(model: &Path) -> Tokenizer {
        let beside = model.join(JSON);
        if is_gguf(model) {
            Tokenizer::File(model.to_owned())
        } else if beside.is_file() {
            Tokenizer::File(beside)
        } else {
            Tokenizer::Bytes
        }
    }

    /// The files that Hugging Face's libraries read a tokenizer from, by name: what is needed to go on with a saved model.
    ///
    /// # Errors
    /// [`Error::File`] for a tokenizer that cannot be read.
    pub fn files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let Tokenizer::File(path) = self else { return Ok(Vec::new()) };
        if is_gguf(path) {
            let header = Header::open(path)?;
            let refused = |problem| Error::File { path: path.clone(), problem };
            let config = tokenizer::config_json(&header).map_err(refused)?;
            return Ok(vec![
                (JSON.into(), json_of(path, &header)?.into()),
                (BESIDE[0].into(), config.into()),
            ]);
        }
        let mut all = vec![(JSON.to_owned(), read(path)?)];
        for name in BESIDE {
            let beside = path.with_file_name(name);
            if beside.is_file() {
                all.push((name.to_owned(), read(&beside)?));
            }
        }
        Ok(all)
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

    /// Bytes of the file, if there is one, and a digest by which it can be told from others: of a GGUF file's settings, of all
    /// of another.
    ///
    /// # Errors
    /// [`Error::File`] for one that cannot be read.
    pub fn seen(&self) -> Result<Option<[u64; 2]>> {
        let Tokenizer::File(path) = self else { return Ok(None) };
        if is_gguf(path) {
            let bytes = path.metadata().map_or(0, |file| file.len());
            return Ok(Some([bytes, Header::open(path)?.digest]));
        }
        let file = read(path)?;
        Ok(Some([file.len() as u64, digest(0, &file)]))
    }

    /// The one in the file, if there is one, to make tokens with.
    ///
    /// # Errors
    /// [`Error::File`] for a tokenizer that cannot be read.
    pub fn encoder(&self) -> Result<Option<Encoder>> {
        match self {
            Tokenizer::Bytes => Ok(None),
            Tokenizer::File(path) => Ok(Some(Encoder { path: path.clone(), tokenizer: open(path)? })),
        }
    }
}

/// A tokenizer that was read from a file.
pub struct Encoder {
    path: PathBuf,
    tokenizer: tokenizers::Tokenizer,
}

impl Encoder {
    /// How many tokens there are.
    pub fn vocabulary(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// The tokens of a text, without marks for its beginning or end.
    ///
    /// # Errors
    /// [`Error::Config`] for a text that is not UTF-8, with the place, or that the tokenizer refuses.
    pub fn encode(&self, text: &[u8]) -> Result<Vec<u32>> {
        let text = std::str::from_utf8(text).map_err(|e| {
            let at = e.valid_up_to();
            Error::Config(format!(
                "the text is not UTF-8 from byte {at} on; convert it, or use --tokenizer bytes"
            ))
        })?;
        // The same tokens as `encode` gives, without their places in the text.
        let encoded = self.tokenizer.encode_fast(text, false);
        let refused = |e| Error::Config(format!("{} cannot encode the text: {e}", self.path.display()));
        Ok(encoded.map_err(refused)?.get_ids().to_vec())
    }
}

/// A tokenizer's file, and those beside it that belong to it, under Hugging Face's names.
const JSON: &str = "tokenizer.json";
const BESIDE: [&str; 3] = ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json"];

fn read(path: &Path) -> Result<Vec<u8>> {
    let refused =
        |e| Error::File { path: path.to_owned(), problem: format!("cannot be read: {e}; check --tokenizer") };
    std::fs::read(path).map_err(refused)
}

fn open(path: &Path) -> Result<tokenizers::Tokenizer> {
    let read = match is_gguf(path) {
        true => tokenizers::Tokenizer::from_bytes(json_of(path, &Header::open(path)?)?),
        false => tokenizers::Tokenizer::from_file(path),
    };
    read.map_err(|e| Error::File {
        path: path.to_owned(),
        problem: format!(
            "no tokenizer can be read: {e}; name a tokenizer.json, a GGUF file with one, or bytes"
        ),
    })
}

fn json_of(path: &Path, header: &Header) -> Result<String> {
    let none = || "it has no tokenizer: name a tokenizer.json with --tokenizer, or bytes".to_owned();
    let json = tokenizer::json(header).and_then(|json| json.ok_or_else(none));
    json.map_err(|problem| Error::File { path: path.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::testing::{Setting, Writer};

    fn encoded(tokenizer: &Tokenizer, text: &[u8]) -> Result<Vec<u32>> {
        tokenizer.encoder()?.expect("a file").encode(text)
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
        assert_eq!(encoded(&tokenizer, b"two one four").unwrap(), [1, 0, 2]);
        assert_eq!(tokenizer.vocabulary().unwrap(), 3);
        let error = encoded(&tokenizer, b"one \xff").unwrap_err().to_string();
        assert!(error.contains("byte 4") && error.contains("--tokenizer bytes"), "{error}");
        let error = encoded(&Tokenizer::named("none.json"), b"").unwrap_err().to_string();
        assert!(error.starts_with("none.json: no tokenizer"), "{error}");
        assert!(Tokenizer::named("bytes").encoder().unwrap().is_none());
    }

    /// Words of letters, digits and blanks; three merges, a mark, and a word that somebody has added.
    fn gguf(rule: &str, more: &dyn Fn(Writer) -> Writer) -> (tempfile::TempDir, Tokenizer) {
        let tokens = ["a", "b", "1", "2", "Ġ", "ab", "Ġab", "12", "<s>", "a b"];
        let writer = Writer::default()
            .set("tokenizer.ggml.model", Setting::Text("gpt2"))
            .set("tokenizer.ggml.pre", Setting::Text(rule))
            .set("tokenizer.ggml.tokens", Setting::Texts(&tokens))
            .set("tokenizer.ggml.token_type", Setting::Kinds(&[1, 1, 1, 1, 1, 1, 1, 1, 3, 4]))
            .set("tokenizer.ggml.merges", Setting::Texts(&["a b", "Ġ ab", "1 2"]))
            .set("tokenizer.ggml.bos_token_id", Setting::Count(8));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        more(writer).write(&path);
        (folder, Tokenizer::File(path))
    }

    #[test]
    fn a_tokenizer_in_a_gguf_file_is_used_and_written_as_hugging_face_s() {
        let same = |writer: Writer| writer;
        for (rule, text, expected) in [
            ("gpt-2", "ab ab12", [5, 6, 7].as_slice()),
            ("smollm", "ab ab12", &[5, 6, 2, 3]),
            ("llama-bpe", "ab ab12", &[5, 6, 7]),
            ("gpt-2", "<s>ba a b", &[8, 1, 0, 4, 9]),
        ] {
            let (_folder, tokenizer) = gguf(rule, &same);
            assert_eq!(encoded(&tokenizer, text.as_bytes()).unwrap(), expected, "{rule}: {text}");
            assert_eq!(tokenizer.vocabulary().unwrap(), 10);
            let files = tokenizer.files().unwrap();
            let folder = tempfile::tempdir().unwrap();
            for (name, contents) in &files {
                std::fs::write(folder.path().join(name), contents).unwrap();
            }
            let written = Tokenizer::of_model(folder.path());
            assert_eq!(encoded(&written, text.as_bytes()).unwrap(), expected, "{rule}: {text}");
            assert_eq!(written.files().unwrap(), files);
            assert!(String::from_utf8_lossy(&files[1].1).contains(r#""bos_token": "<s>""#));
        }
    }

    #[test]
    fn a_tokenizer_in_a_gguf_file_that_is_not_known_is_refused_by_name() {
        let said = |rule: &str, more: &dyn Fn(Writer) -> Writer| {
            let (_folder, tokenizer) = gguf(rule, more);
            encoded(&tokenizer, b"a").unwrap_err().to_string()
        };
        let other = said("tekken", &|writer| writer);
        assert!(other.contains("the rule tekken") && other.contains("--tokenizer"), "{other}");
        let few = said("gpt-2", &|_| Writer::default().set("tokenizer.ggml.model", Setting::Text("llama")));
        assert!(few.contains("of the kind llama"), "{few}");
        let none = said("gpt-2", &|_| Writer::default());
        assert!(none.contains("it has no tokenizer"), "{none}");
        let tokens = |all: &'static [&str], merges: &'static [&str]| {
            move |_: Writer| {
                Writer::default()
                    .set("tokenizer.ggml.model", Setting::Text("gpt2"))
                    .set("tokenizer.ggml.tokens", Setting::Texts(all))
                    .set("tokenizer.ggml.merges", Setting::Texts(merges))
            }
        };
        let twice = said("", &tokens(&["a", "b", "a"], &[]));
        assert!(twice.contains(r#"its tokens 0 and 2 are both "a""#), "{twice}");
        let unknown = said("", &tokens(&["a", "b"], &["a b"]));
        assert!(unknown.contains(r#"its merge "a b" needs "ab""#), "{unknown}");
        let alone = said("", &tokens(&["a", "b"], &["ab"]));
        assert!(alone.contains(r#"its merge "ab" is no pair"#), "{alone}");
    }
}
