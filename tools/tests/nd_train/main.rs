//! nd-train with real processes: what it learns, what it refuses. `checkpoints`: runs that go on; `ending`: ranks that
//! die or stop; `on_hosts`: on two hosts; `saved`: models that are written and read again; `real`: a published one.

#![allow(clippy::unwrap_used)]

mod checkpoints;
mod ending;
mod on_hosts;
mod real;
mod saved;

use std::path::Path;
use std::process::{Command, Stdio};

const TRAIN: &str = env!("CARGO_BIN_EXE_nd-train");

/// A model that is trained in a moment: 8 sequences of 32 tokens a step.
const SMALL: &[&str] = &[
    "hidden=32",
    "layers=2",
    "heads=4",
    "kv-heads=2",
    "ffn=48",
    "seq-len=32",
    "batch=8",
    "steps=6",
    "lr=3e-3",
    "seed=5",
    "clip=0.5",
    "weight-decay=0.1",
];

fn nd_train(folder: &Path, settings: &[&str]) -> Command {
    let mut command = Command::new(TRAIN);
    let data = folder.join("text.txt");
    if !data.exists() {
        std::fs::write(&data, nd_training::data::text::generate(9, 20_000)).unwrap();
    }
    command.current_dir(folder).arg("--data").arg(data).args(SMALL).args(settings).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Losses and norms, by step.
fn losses(folder: &Path, settings: &[&str]) -> Vec<(f64, f64)> {
    let output = nd_train(folder, settings).args(["--metrics", "m.jsonl"]).output().unwrap();
    assert!(output.status.success(), "{settings:?}\n{}{}", text(&output.stdout), text(&output.stderr));
    let rows = std::fs::read_to_string(folder.join("m.jsonl")).unwrap();
    let rows: Vec<serde_json::Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    rows.iter()
        .enumerate()
        .map(|(i, row)| {
            assert_eq!(row["step"], i as u64 + 1);
            assert!(row["tokens_per_s"].as_f64().unwrap() > 0.0);
            assert!(row["lr"].as_f64().unwrap() > 0.0);
            (row["loss"].as_f64().unwrap(), row["grad_norm"].as_f64().unwrap())
        })
        .collect()
}

#[test]
fn every_mesh_learns_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let one = losses(folder.path(), &["mesh=dp_shard=1"]);
    assert!(one.len() == 6 && one[5].0 < one[0].0 && (one[0].0 - 256f64.ln()).abs() < 0.2, "{one:?}");
    for mesh in [
        "dp_shard=2",
        "dp_replicate=2",
        "tp=2",
        "cp=2",
        "dp_shard=2,tp=2",
        "dp_shard=2,cp=2",
        "dp_replicate=2,tp=2",
        "dp_replicate=2,dp_shard=2",
        "cp=2,tp=2",
    ] {
        let many = losses(folder.path(), &[&format!("mesh={mesh}")]);
        for (step, (a, b)) in one.iter().zip(&many).enumerate() {
            let (loss, norm) = ((a.0 / b.0 - 1.0).abs(), (a.1 / b.1 - 1.0).abs());
            assert!(loss < 1e-5 && norm < 1e-4, "{mesh}, step {}: {a:?} {b:?}", step + 1);
        }
    }
}

#[test]
fn accumulation_and_sharding_do_not_change_what_is_learnt() {
    let folder = tempfile::tempdir().unwrap();
    let fsdp = losses(folder.path(), &["mesh=dp_shard=2", "accumulation=2"]);
    for zero in ["zero=0", "zero=1", "zero=2"] {
        let other = losses(
            folder.path(),
            &["mesh=dp_shard=2", "accumulation=2", "reduce-each-micro-batch=true", zero],
        );
        assert_eq!(fsdp, other, "{zero}");
    }
    let checkpointed =
        losses(folder.path(), &["mesh=dp_shard=2", "accumulation=2", "checkpoint-activations=true"]);
    assert_eq!(fsdp, checkpointed);
    let bf16 = losses(folder.path(), &["mesh=dp_shard=2", "dtype=bf16"]);
    let f16 = losses(folder.path(), &["mesh=dp_shard=2", "dtype=f16"]);
    for (a, b) in fsdp.iter().zip(bf16.iter().zip(&f16)) {
        assert!((a.0 / b.0.0 - 1.0).abs() < 2e-2 && (a.0 / b.1.0 - 1.0).abs() < 2e-2, "{a:?} {b:?}");
    }
}

#[test]
fn the_end_prints_what_was_predicted_and_what_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["mesh=dp_shard=2,tp=2", "--metrics", "m.jsonl"];
    let output = nd_train(folder.path(), &settings).output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (_, end) = said.split_once("Sent by rank 0 in a step:").unwrap();
    for (begins, words) in
        [("fsdp", "all-gather"), ("fsdp", "reduce-scatter"), ("fsdp", "together"), ("tp", "all-reduce")]
    {
        let found = end.lines().find(|line| line.starts_with(begins) && line.contains(words));
        let line = found.unwrap_or_else(|| panic!("{begins} {words}: {said}"));
        assert_eq!(line.contains(" in "), words == "together" || begins == "tp", "{line}");
        assert!(line.matches("µs").count() + line.matches(" ms").count() >= 2, "{line}");
    }
    let rows = std::fs::read_to_string(folder.path().join("m.jsonl")).unwrap();
    for (i, row) in rows.lines().enumerate() {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        let sent = row["sent"].as_array().unwrap();
        assert!(sent.iter().any(|s| s["group"] == "tp" && s["kind"] == "all_reduce"), "{row}");
        assert!(sent.iter().all(|s| s["us"].as_f64() >= s["exposed_us"].as_f64()), "{row}");
        assert_eq!(row["predicted"].is_array(), i == 0, "{row}");
    }
}

fn refused(settings: &[&str], code: i32, words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let output = nd_train(folder.path(), settings).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{settings:?}: {said}");
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(errors.len() == 1 && words.iter().all(|word| errors[0].contains(word)), "{settings:?}: {said}");
}

#[test]
fn what_cannot_be_is_one_sentence_with_the_numbers() {
    refused(&["mesh=tp=3", "ranks=2"], 2, &["3", "2"]);
    refused(&["mesh=tp=4"], 2, &["tp=4", "num_key_value_heads=2", "kv_replicas"]);
    refused(&["mesh=tp=3"], 2, &["tp=3", "heads"]);
    refused(&["hidden=10"], 2, &["hidden=10", "2 × heads = 8", "use hidden=8 or hidden=16"]);
    refused(&["heads=1000000000", "kv-heads=1000000000"], 2, &["use heads=16 with kv-heads=16"]);
    refused(&["--mesh", ""], 2, &["--mesh=: names no axis"]);
    refused(&["--data", "/dev/zero"], 2, &["/dev/zero", "no regular file", "--data"]);
    refused(&["--init", "/dev"], 2, &["/dev/config.json"]);
    refused(&["batch=9", "mesh=dp_shard=2"], 2, &["batch=9", "2"]);
    refused(&["warmup=7"], 2, &["warmup=7", "steps=6"]);
    refused(&["--data", "missing.txt"], 2, &["missing.txt", "cannot be read"]);
    refused(&["--init", "nowhere"], 2, &["nowhere", "config.json"]);
    refused(&["--tokenizer", "nothing.json"], 2, &["nothing.json"]);
    refused(&["step=3"], 2, &["did you mean steps?"]);
    refused(&["mesh=dp_shard=2", "reshard=3"], 2, &["3", "2"]);
    refused(&["seq-len=18446744073709551615"], 2, &["18446744073709551615", "--seq-len"]);
    refused(&["accumulation=4611686018427387904", "micro-batch=4"], 2, &["4611686018427387904"]);
    refused(&["hidden=1000000", "heads=1", "kv-heads=1", "ranks=1"], 2, &["GiB", "left"]);
    refused(&["layers=100000000", "ranks=1"], 2, &["GiB", "left"]);
    refused(&["hidden=18446744073709551614", "ranks=1"], 2, &["hidden"]);
    refused(&["--eval-data", "missing.txt"], 2, &["missing.txt", "--eval-data"]);
    refused(&["--metrics", "nowhere/m.jsonl"], 2, &["nowhere/m.jsonl", "--metrics"]);
}

/// A pipe has no length, can be read once, and is not opened: nobody may ever write to it.
#[test]
fn a_pipe_is_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let file = path.to_str().unwrap();
    for settings in [&["--data", file][..], &["--eval-data", file], &["--tokenizer", file]] {
        refused(settings, 2, &["pipe: cannot be read: it is a pipe, no regular file", settings[0]]);
    }
}

/// A Llama of a few thousand numbers, whose config.json has `more` keys.
fn model(folder: &Path, more: &str) {
    let json = r#""model_type": "llama", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": true"#;
    std::fs::write(folder.join("config.json"), format!("{{{json}{more}}}")).unwrap();
}

/// nd-train with the model of a folder, on a text that it makes.
fn with_model(folder: &Path) -> Command {
    let mut command = Command::new(TRAIN);
    command.current_dir(folder).stdin(Stdio::null()).args(["--init", "."]);
    command.args(["--steps", "1", "--seq-len", "32", "--mesh", "dp_shard=2"]);
    command
}

#[test]
fn a_model_that_cannot_be_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let said = |more: &str| {
        model(folder.path(), more);
        let output = with_model(folder.path()).output().unwrap();
        let said = text(&output.stderr);
        // No rank has been started, which would have said so.
        assert!(output.status.code() == Some(2) && said.lines().count() == 1, "{more}: {said}");
        said
    };
    assert!(said(r#", "head_dim": 7"#).contains("head_dim=7 is odd"));
    assert!(said(r#", "head_dim": 1000000000000000"#).contains("head_dim=1000000000000000; it is from 2 to"));
    assert!(said(r#", "max_position_embeddings": 0"#).contains("max_position_embeddings=0; it is from 1 to"));
    assert!(said(r#", "hidden_size": 16"#).contains("hidden_size is there twice"));
    std::fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
    assert!(said("").contains("pytorch_model.bin is no safetensors file"));
}

#[test]
fn a_head_that_is_not_used_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let untied = nd_training::llama::Config {
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 8,
        tie_word_embeddings: false,
        ..Default::default()
    };
    // The last tensor is the head, all ones; the others are zeros.
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
    for (name, shape, _) in untied.tensors() {
        let start = bytes.len();
        let value = if name == "lm_head.weight" { 1f32 } else { 0.0 };
        bytes.extend(value.to_le_bytes().repeat(shape.iter().product()));
        let place = [start, bytes.len()];
        header.insert(name, serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": place }));
    }
    let header = serde_json::Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat();
    std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
    model(folder.path(), "");
    let output = with_model(folder.path()).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("lm_head.weight is not used").count(), 1, "{said}");
}

/// What the program does when it is told nothing are no orders that contradict what it is told.
#[test]
fn ranks_alone_are_enough() {
    let folder = tempfile::tempdir().unwrap();
    let train = ["--steps", "1", "--seq-len", "32", "--hidden", "32", "--layers", "1"];
    let run = |command: &mut Command, mesh: &str| {
        let output = command.args(train).current_dir(folder.path()).stdin(Stdio::null()).output().unwrap();
        let said = text(&output.stdout);
        assert!(output.status.success() && said.contains(mesh), "{said}{}", text(&output.stderr));
    };
    run(Command::new(TRAIN).args(["--ranks", "1"]), "1 rank, dp_shard=1,");
    run(Command::new(TRAIN).args(["--ranks", "3"]), "3 ranks, dp_shard=3,");
    let mut launched = Command::new(env!("CARGO_BIN_EXE_nd-run"));
    run(launched.args(["-n", "3", "--no-prefix", "--", TRAIN]), "3 ranks, dp_shard=3,");
}

/// A thousand ranks would take minutes to start, and say so first.
#[test]
fn settings_are_looked_at_before_ranks_are_started() {
    let folder = tempfile::tempdir().unwrap();
    for (settings, words) in [
        (&["mesh=dp_shard=1000"][..], &["batch=8", "1000 data-parallel ranks"][..]),
        (&["mesh=dp_shard=1000", "batch=1000", "kv-heads=3"], &["3", "4"]),
        (&["mesh=dp_shard=1000", "batch=1000"], &[" tokens, 60", "a step takes 1000"]),
        (&["mesh=tp=1000"], &["tp=1000", "heads"]),
        (&["mesh=dp_replicate=1000", "batch=1000", "--data", "missing.txt"], &["missing.txt", "--data"]),
        (&["mesh=dp_replicate=1000,tp=1000"], &["4096"]),
        (&["ranks=1000000"], &["1000000", "4096", "launcher"]),
        (&["mesh=tp=1000", "--init", "nowhere"], &["nowhere/config.json"]),
    ] {
        let output = nd_train(folder.path(), settings).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{settings:?}: {said}");
        assert!(said.starts_with("error: ") && said.lines().count() == 1, "{settings:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{settings:?}: {said}");
    }
}

#[test]
fn a_loss_that_is_no_number_stops_with_step_and_rank() {
    refused(&["lr=1e30", "clip=0", "mesh=dp_shard=2"], 1, &["step ", "rank ", "--lr"]);
}

#[test]
fn ranks_of_a_host_share_its_cores() {
    let folder = tempfile::tempdir().unwrap();
    let threads = |variable: Option<&str>, settings: &[&str]| {
        let train = nd_train(folder.path(), settings);
        let mut command = Command::new(env!("CARGO_BIN_EXE_nd-run"));
        command
            .args(["-n", "4", "--no-prefix", "--", TRAIN])
            .args(train.get_args())
            .current_dir(folder.path());
        command.env_remove("RAYON_NUM_THREADS").envs(variable.map(|n| ("RAYON_NUM_THREADS", n)));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said = text(&output.stdout);
        let (before, _) = said.split_once(" thread").unwrap_or_else(|| panic!("{said}"));
        before.rsplit(' ').next().unwrap().parse::<usize>().unwrap()
    };
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(threads(None, &["mesh=dp_shard=4", "steps=1"]), (cores / 4).max(1));
    assert_eq!(threads(Some("3"), &["mesh=dp_shard=4", "steps=1"]), 3);
    assert_eq!(threads(Some("3"), &["mesh=dp_shard=4", "steps=1", "threads=2"]), 2);
    // A thousand for each rank would wait for each other for minutes.
    assert_eq!(threads(None, &["mesh=dp_shard=4", "steps=1", "threads=1000000"]), 4 * cores);
    assert_eq!(threads(Some("1000000"), &["mesh=dp_shard=4", "steps=1"]), 4 * cores);
}

#[test]
fn too_many_threads_are_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let output = nd_train(folder.path(), &["mesh=dp_shard=2", "steps=1", "threads=5000"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains(", 4 a core, at most"), "{said}");
    assert_eq!(said.matches("--threads=5000: a rank may use ").count(), 1, "{said}");
}

#[test]
fn what_is_read_is_not_written_over() {
    refused(&["--metrics", "text.txt"], 2, &["--metrics text.txt", "--data"]);
    refused(&["--metrics", "m.jsonl", "--eval-data", "./m.jsonl"], 2, &["m.jsonl", "--eval-data"]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.jsonl"), "theirs").unwrap();
    let theirs = std::fs::File::open(folder.path().join("m.jsonl")).unwrap();
    theirs.lock().unwrap();
    let output = nd_train(folder.path(), &["--metrics", "m.jsonl", "steps=1"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("another nd-train"), "{said}");
    assert_eq!(std::fs::read(folder.path().join("m.jsonl")).unwrap(), b"theirs");
}

#[test]
fn under_a_launcher_it_takes_its_rank() {
    let folder = tempfile::tempdir().unwrap();
    let own = losses(folder.path(), &["mesh=dp_shard=2"]);
    let train = nd_train(folder.path(), &["mesh=dp_shard=2", "--metrics", "n.jsonl"]);
    let output = Command::new(env!("CARGO_BIN_EXE_nd-run"))
        .current_dir(folder.path())
        .args(["-n", "2", "--no-prefix", "--", TRAIN])
        .args(train.get_args())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = std::fs::read_to_string(folder.path().join("n.jsonl")).unwrap();
    assert_eq!(rows.lines().count(), own.len());
    assert_eq!(text(&output.stdout).matches("dp_shard=2, zero=3").count(), 1);
}
