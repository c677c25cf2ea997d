//! Runs that end before their last step, in whatever way, and go on from their checkpoints.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nd_training::checkpoint::{State, verify};
use rustix::process::{Resource, Rlimit, Signal, kill_process, prlimit};

use super::ending::{PATIENCE, children, output, process};
use super::{TRAIN, nd_train, text};

/// Times that ranks are killed while they write.
const KILLS: usize = 100;
/// A save and the step after it take less.
const LONGEST: u64 = 20_000;

fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// The steps of a file of rows, and the bits of their losses and norms.
fn rows(path: &Path) -> Vec<(u64, u64, u64)> {
    let rows = std::fs::read_to_string(path).unwrap();
    let row = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let bits = |key: &str| row[key].as_f64().unwrap().to_bits();
        (row["step"].as_u64().unwrap(), bits("loss"), bits("grad_norm"))
    };
    rows.lines().map(row).collect()
}

/// The steps of the whole checkpoints in a folder, and how many are half-written; there are no others.
fn whole(folder: &Path) -> (Vec<u64>, usize) {
    let (mut steps, mut partial) = (Vec::new(), 0);
    for found in verify(folder).unwrap() {
        match found.state {
            State::Whole { step, .. } => steps.push(step),
            State::Partial => partial += 1,
            State::Damaged(error) => panic!("{error}"),
        }
    }
    (steps, partial)
}

/// The number of the last checkpoint by its name alone.
fn newest(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let steps = entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok());
    steps.max().unwrap_or(0)
}

/// Every rank is killed, or one of them, at a random moment of a loop that does little else than write checkpoints.
#[test]
fn ranks_that_are_killed_while_they_save_never_lose_the_checkpoint_before() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let saving =
        ["--mesh", "dp_shard=2", "--checkpoint", "state", "--checkpoint-every", "1", "--resume", "auto"];
    let seed = std::process::id();
    let mut random = seed;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (u64::from(random >> 8) * below) >> 24
    };
    let (mut last, mut halves) = (0, 0);
    for kill in 0..KILLS {
        let mut child = nd_train(folder.path(), &saving)
            .args(["steps=1000000", "--metrics", "m.jsonl"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let until = Instant::now() + PATIENCE;
        while newest(&state) <= last {
            let ended = child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < until,
                "kill {kill}: {}",
                text(&output(child).stderr)
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(draw(LONGEST)));
        let ranks = children(child.id());
        assert_eq!(ranks.len(), 2, "kill {kill}");
        let few = 1 + draw(2) as usize;
        for &rank in ranks.iter().skip(draw(2) as usize).chain(&ranks).take(few) {
            let _ = kill_process(rank, Signal::KILL);
        }
        let seen = newest(&state);
        assert!(!output(child).status.success());
        let (steps, partial) = whole(&state);
        assert!(
            steps.last().is_some_and(|&step| step >= seen && step > last),
            "kill {kill}, seed {seed}: {steps:?}"
        );
        (last, halves) = (newest(&state), halves + partial);
    }
    println!("{KILLS} kills, after which {halves} checkpoints were half-written; step {last}");
    assert!(halves > 0, "seed {seed}: no save was hit");
    // What came of it is what one run comes to, row by row.
    let steps = format!("steps={}", last + 2);
    done(&nd_train(folder.path(), &saving).args([&steps, "--metrics", "m.jsonl"]).output().unwrap());
    assert_eq!(whole(&state), (vec![last, last + 1, last + 2], 0));
    done(
        &nd_train(folder.path(), &["--mesh", "dp_shard=2", &steps, "--metrics", "n.jsonl"]).output().unwrap(),
    );
    assert_eq!(rows(&folder.path().join("m.jsonl")), rows(&folder.path().join("n.jsonl")));
}

#[test]
fn a_run_goes_on_with_its_rows_where_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let m = folder.path().join("m.jsonl");
    let run = |settings: &[&str]| {
        let all = [&["--mesh", "dp_shard=2", "--metrics", "m.jsonl"], settings].concat();
        nd_train(folder.path(), &all).output().unwrap()
    };
    done(&run(&["--checkpoint", "state", "--checkpoint-every", "4"]));
    let rows_of_one = rows(&m);
    assert_eq!(whole(&folder.path().join("state")), (vec![4, 6], 0));
    // As if it had ended in the middle of a row.
    let cut = std::fs::read(&m).unwrap();
    std::fs::write(&m, &cut[..cut.len() - 9]).unwrap();
    let said = done(&run(&["--resume", "state/step-00000004"]));
    assert!(said.contains("Weights: step 4 of state/step-00000004, written on dp_shard=2"), "{said}");
    assert_eq!(rows(&m), rows_of_one);
    let said = done(&run(&["--resume", "state/step-00000004", "lr=0"]));
    assert!(said.contains("; changed since: lr 3e-3 → 0"), "{said}");
    // A folder that has checkpoints is not begun anew by mistake.
    for (settings, words) in [
        (&["--checkpoint", "state"][..], &["step-00000006", "--resume auto"][..]),
        (&["--resume", "state", "seq-len=16"], &["seq-len=16", "--seq-len 32"]),
        (&["--resume", "state", "ffn=64"], &["intermediate_size=64", "intermediate_size=48"]),
        (&["--resume", "nowhere"], &["nowhere", "no checkpoint is in it", "--resume"]),
        (&["--resume", "auto"], &["resume=auto", "--checkpoint"]),
        (&["--checkpoint", "text.txt"], &["text.txt", "no checkpoint can be written here"]),
    ] {
        let output = run(settings);
        let said = text(&output.stderr);
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(output.status.code() == Some(2) && errors.len() == 1, "{settings:?}: {said}");
        assert!(words.iter().all(|word| errors[0].contains(word)), "{settings:?}: {said}");
    }
}

#[test]
fn what_is_exported_is_what_is_saved_and_what_is_damaged_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let train = |arguments: &[&str]| {
        Command::new(TRAIN).current_dir(folder.path()).args(arguments).stdin(Stdio::null()).output().unwrap()
    };
    let saving = ["--mesh", "tp=2", "--checkpoint", "state", "--checkpoint-every", "3", "--save", "saved"];
    done(&nd_train(folder.path(), &saving).output().unwrap());
    let said = done(&train(&["export", "state", "--to", "exported"]));
    assert!(said.contains("state/step-00000006: exported"), "{said}");
    for name in ["config.json", "model.safetensors"] {
        let [a, b] =
            ["saved", "exported"].map(|dir| std::fs::read(folder.path().join(dir).join(name)).unwrap());
        assert!(a == b, "{name}");
    }
    done(&train(&["export", "state/step-00000003", "--to", "half", "--dtype", "bf16"]));
    let bytes = |dir: &str| folder.path().join(dir).join("model.safetensors").metadata().unwrap().len();
    assert!(bytes("half") < bytes("saved") * 6 / 10);
    let again = train(&["export", "state", "--to", "half"]);
    assert!(again.status.code() == Some(2) && text(&again.stderr).contains("holds a model already"));
    let said = done(&train(&["verify", "state"]));
    assert_eq!(said.matches(": whole: step ").count(), 2, "{said}");
    let at = |name: &str| folder.path().join("state").join(name);
    let path = at("step-00000006/rank-00001.safetensors");
    let file = std::fs::read(&path).unwrap();
    std::fs::write(&path, &file[..100]).unwrap();
    std::fs::create_dir(at(".step-00000007.partial")).unwrap();
    std::fs::create_dir(at("step-00000009")).unwrap();
    let output = train(&["verify", "state"]);
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.code() == Some(1) && error.contains("3 of 4 are not whole"), "{error}");
    for words in [
        "step-00000003: whole".to_owned(),
        format!("rank-00001.safetensors: it has 100 bytes and should have {}: it is truncated", file.len()),
        ".step-00000007.partial: half-written".to_owned(),
        "step-00000009: it is no checkpoint: it has no manifest.json".to_owned(),
    ] {
        assert_eq!(said.matches(&words).count(), 1, "{words}: {said}");
    }
    assert_eq!(train(&["verify", "nowhere"]).status.code(), Some(2));
    assert_eq!(train(&["verify", "exported"]).status.code(), Some(2));
}

/// A limit on the length of files is met as a full disk is: in the middle of a file, on one rank.
#[test]
fn a_disk_without_room_ends_training_with_one_sentence_and_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let saving =
        ["--mesh", "dp_shard=2", "--checkpoint", "state", "--checkpoint-every", "1", "--steps", "1000000"];
    // Who is over the limit is told so by an error once the signal is ignored, which ranks inherit.
    let mut child = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", TRAIN])
        .args(nd_train(folder.path(), &saving).get_args())
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + PATIENCE;
    while newest(&state) == 0 {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none() && Instant::now() < until, "{}", text(&output(child).stderr));
        std::thread::sleep(Duration::from_millis(1));
    }
    let limit = Rlimit { current: Some(64 << 10), maximum: Some(64 << 10) };
    prlimit(Some(process(&child, 1)), Resource::Fsize, limit).unwrap();
    let output = output(child);
    let said = text(&output.stderr);
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(output.status.code() == Some(1) && errors.len() == 1, "{said}");
    for word in
        ["rank 1: ", "rank-00001.safetensors: ", "cannot be written: File too large", "are as they were"]
    {
        assert!(errors[0].contains(word), "{word}: {said}");
    }
    let (steps, partial) = whole(&state);
    assert!(!steps.is_empty() && partial == 0, "{steps:?} {partial}");
}
