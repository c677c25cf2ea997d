//! Models that are written and read again, with their tokenizers, and texts in several files.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::{TRAIN, text};

const SHAPE: [&str; 5] = ["hidden=32", "layers=2", "heads=4", "kv-heads=2", "ffn=48"];

/// Three words, blanks, and anything else.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"?": 0, "rank": 1, "waits": 2, "for": 3}, "unk_token": "?"}}"#;

fn run(folder: &Path, settings: &[&str]) -> Output {
    let mut command = Command::new(TRAIN);
    command.current_dir(folder).stdin(Stdio::null()).args([
        "--metrics",
        "m.jsonl",
        "--seq-len",
        "32",
        "--batch",
        "4",
    ]);
    command
        .args(["--data", "texts", "--eval-data", "texts", "--data-cache", "cache"])
        .args(settings)
        .output()
        .unwrap()
}

/// The loss on the text after the last step.
fn measured(folder: &Path, settings: &[&str]) -> f64 {
    let output = run(folder, settings);
    assert!(output.status.success(), "{settings:?}\n{}{}", text(&output.stdout), text(&output.stderr));
    let rows = std::fs::read_to_string(folder.join("m.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(rows.lines().last().unwrap()).unwrap();
    last["eval_loss"].as_f64().unwrap()
}

/// A folder with texts in two files.
fn texts() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let texts = folder.path().join("texts");
    std::fs::create_dir(&texts).unwrap();
    let line = |i: usize| format!("{{\"id\": {i}, \"text\": \"rank {i} waits for rank {}\"}}\n", i + 1);
    std::fs::write(texts.join("a.jsonl"), (0..100).map(line).collect::<String>()).unwrap();
    std::fs::write(texts.join("b.txt"), nd_training::data::text::generate(9, 5_000)).unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), TOKENIZER).unwrap();
    folder
}

#[test]
fn what_is_saved_is_a_model_with_the_same_loss_and_its_tokenizer() {
    let folder = texts();
    let folder = folder.path();
    for (i, mesh) in ["dp_shard=2", "dp_shard=2,tp=2", "tp=2,cp=2"].into_iter().enumerate() {
        for tokenizer in ["bytes", "tokenizer.json"] {
            let (save, mesh) = (format!("{i}-{tokenizer}"), format!("mesh={mesh}"));
            let shape =
                [&SHAPE[..], &[&mesh, "--steps", "3", "--tokenizer", tokenizer, "--save", &save]].concat();
            let after = measured(folder, &shape);
            // The tokenizer that was saved is the one that is used; nothing is learnt at a rate of 0.
            let again = [&mesh, "--init", &*save, "--lr", "0", "--steps", "1"];
            assert_eq!(measured(folder, &again), after, "{mesh} with {tokenizer}");
            assert_eq!(folder.join(&save).join("tokenizer.json").exists(), tokenizer != "bytes");
            let refused = run(folder, &shape);
            let said = text(&refused.stderr);
            assert!(refused.status.code() == Some(2) && said.contains("holds a model already"), "{said}");
        }
    }
    // Tokens of the folder were made once.
    assert_eq!(std::fs::read_dir(folder.join("cache")).unwrap().count(), 1);
}

#[test]
fn a_model_that_cannot_be_written_is_told_and_every_rank_ends() {
    let folder = texts();
    let folder = folder.path();
    std::fs::write(folder.join("file"), "").unwrap();
    let settings = [&SHAPE[..], &["mesh=dp_shard=2", "--steps", "1", "--save", "file/model"]].concat();
    let output = run(folder, &settings);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("file/model: cannot be made"), "{said}");
}
