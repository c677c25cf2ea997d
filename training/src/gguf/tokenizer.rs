//! The tokenizer in a GGUF file, as a `tokenizer.json` of Hugging Face's. *Pure.*
//!
//! Byte-level BPE is in GGUF as its tokens and merges, and the name of a rule by which a text is cut into words before it; the
//! rules are those of the tokenizers that llama.cpp's names stand for.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Header;

/// What to do about a tokenizer that cannot be taken over.
const REMEDY: &str = "name the model's tokenizer.json with --tokenizer";

/// Kinds of tokens: one that is a mark rather than text, and one that somebody has added.
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;

/// How Llama 3 cuts a text into words.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The text of a `tokenizer.json`, if there is a tokenizer.
///
/// # Errors
/// Which setting is not as it should be, or of a kind that is not known.
pub(crate) fn json(header: &Header) -> Result<Option<String>, String> {
    let Some(model) = header.text("tokenizer.ggml.model")? else { return Ok(None) };
    if model != "gpt2" {
        return Err(format!(
            "its tokenizer is of the kind {model}, and byte-level BPE (gpt2) is read: {REMEDY}"
        ));
    }
    let missing = |key: &str| format!("{key} is missing: {REMEDY}");
    let list = |key: &str| header.texts(key)?.ok_or_else(|| missing(key));
    let tokens = list("tokenizer.ggml.tokens")?;
    let mut vocabulary = BTreeMap::new();
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = vocabulary.insert(*token, id) {
            return Err(format!("its tokens {first} and {id} are both {token:?}: {REMEDY}"));
        }
    }
    let merge = |merge: &&str| {
        let (left, right) =
            merge.split_once(' ').ok_or_else(|| format!("its merge {merge:?} is no pair: {REMEDY}"))?;
        let joined = [left, right].concat();
        match [left, right, &joined].into_iter().find(|part| !vocabulary.contains_key(part)) {
            Some(part) => Err(format!("its merge {merge:?} needs {part:?}, which is no token: {REMEDY}")),
            None => Ok(json!([left, right])),
        }
    };
    let merges = list("tokenizer.ggml.merges")?.iter().map(merge).collect::<Result<Vec<_>, _>>()?;
    let words = words(header.text("tokenizer.ggml.pre")?)?;
    let value = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added(header, &tokens)?,
        "normalizer": null,
        "pre_tokenizer": words.rule,
        "post_processor": beginning(header, &tokens)?,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": words.whole,
            "vocab": vocabulary,
            "merges": merges,
        },
    });
    Ok(Some(value.to_string()))
}

/// The text of a `tokenizer_config.json`: which tokens begin and end texts, and how a conversation is written.
///
/// # Errors
/// As [`json`].
pub(crate) fn config_json(header: &Header) -> Result<String, String> {
    let tokens = header.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let mut config = Map::from_iter([("tokenizer_class".into(), json!("PreTrainedTokenizerFast"))]);
    for (key, name) in [
        ("bos_token_id", "bos_token"),
        ("eos_token_id", "eos_token"),
        ("unknown_token_id", "unk_token"),
        ("padding_token_id", "pad_token"),
    ] {
        let id = header.count(&format!("tokenizer.ggml.{key}"))?;
        config.extend(id.and_then(|id| tokens.get(id)).map(|token| (name.to_owned(), json!(token))));
    }
    if let Some(template) = header.text("tokenizer.chat_template")? {
        config.insert("chat_template".into(), json!(template));
    }
    Ok(format!("{:#}\n", Value::Object(config)))
}

/// How a text is cut into words.
struct Words {
    rule: Value,
    /// Whether a word that is a token is never cut.
    whole: bool,
}

fn words(name: Option<&str>) -> Result<Words, String> {
    match name {
        Some("gpt-2") => Ok(Words { rule: byte_level(true), whole: false }),
        // Every digit is a word.
        Some("smollm" | "starcoder" | "refact") => {
            let digits = json!({ "type": "Digits", "individual_digits": true });
            Ok(Words {
                rule: json!({ "type": "Sequence", "pretokenizers": [digits, byte_level(true)] }),
                whole: false,
            })
        }
        Some("llama-bpe" | "llama-v3" | "llama3") => {
            let split = json!({
                "type": "Split", "pattern": { "Regex": LLAMA_3 }, "behavior": "Isolated", "invert": false
            });
            Ok(Words {
                rule: json!({ "type": "Sequence", "pretokenizers": [split, byte_level(false)] }),
                whole: true,
            })
        }
        name => Err(format!(
            "its tokenizer cuts texts by the rule {}, and gpt-2, smollm, starcoder, refact and llama-bpe are known: {REMEDY}",
            name.unwrap_or("none (tokenizer.ggml.pre)")
        )),
    }
}

/// Bytes as characters; `words` says whether GPT-2's rule cuts the text too.
fn byte_level(words: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": words })
}

/// Tokens that are found in a text before it is cut.
fn added(header: &Header, tokens: &[&str]) -> Result<Vec<Value>, String> {
    let kinds = header.wholes("tokenizer.ggml.token_type")?.unwrap_or_default();
    if kinds.len() > tokens.len() {
        return Err(format!("it has {} tokens and the types of {}: {REMEDY}", tokens.len(), kinds.len()));
    }
    let all =
        kinds.iter().zip(tokens).enumerate().filter(|(_, (kind, _))| [CONTROL, USER_DEFINED].contains(kind));
    let entry = |(id, (kind, token)): (usize, (&i128, &&str))| {
        json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": *kind == CONTROL
        })
    };
    Ok(all.map(entry).collect())
}

/// What puts a mark at the beginning of a text for who asks for marks.
fn beginning(header: &Header, tokens: &[&str]) -> Result<Value, String> {
    let id = header.count("tokenizer.ggml.bos_token_id")?;
    let wanted = header.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(false);
    let Some((id, token)) = id.filter(|_| wanted).and_then(|id| Some((id, *tokens.get(id)?))) else {
        return Ok(byte_level(true));
    };
    let mark = |sequence: u8| json!({ "SpecialToken": { "id": token, "type_id": sequence } });
    let text = |name: &str, sequence: u8| json!({ "Sequence": { "id": name, "type_id": sequence } });
    Ok(json!({
        "type": "TemplateProcessing",
        "single": [mark(0), text("A", 0)],
        "pair": [mark(0), text("A", 0), mark(1), text("B", 1)],
        "special_tokens": { token: { "id": token, "ids": [id], "tokens": [token] } },
    }))
}
