//! Ranks that die, stop, or are stopped together.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{nd_train, text};

/// Nothing that is waited for takes so long.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The processes whose parent is this one.
pub(super) fn children(parent: u32) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let own = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect::<Vec<_>>());
        let of = fields.and_then(|fields| fields.get(1)?.parse::<u32>().ok());
        if of == Some(parent) && own.starts_with("nd-train") {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}

#[test]
fn a_rank_that_dies_ends_the_job_with_its_name() {
    // Along tp it is noticed inside a tensor operation.
    for mesh in ["mesh=dp_shard=2", "mesh=tp=2"] {
        let said = said_when_one_dies(mesh);
        assert!(said.contains("rank 1") && said.contains("SIGKILL"), "{said}");
        assert!(!said.contains("tensor operation") && !said.contains("stack backtrace"), "{said}");
        assert!(!said.lines().any(|line| line.trim_start().starts_with("at ")), "a backtrace: {said}");
    }
}

/// Trains until it is ended, and has done a step: the program that started the ranks.
fn trains(folder: &Path, settings: &[&str], environment: &[(&str, &OsStr)]) -> Child {
    let mut child = nd_train(folder, settings)
        .args(["steps=1000000", "--metrics", "m.jsonl"])
        .envs(environment.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + PATIENCE;
    while std::fs::metadata(folder.join("m.jsonl")).map_or(0, |m| m.len()) == 0 {
        if Instant::now() >= until {
            child.kill().unwrap();
            panic!("no step is done");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

/// What it said before it ended, which it does soon; it is ended if it does not.
pub(super) fn output(mut child: Child) -> Output {
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= until {
            child.kill().unwrap();
            panic!("it does not end: {}", text(&child.wait_with_output().unwrap().stderr));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// The process of a rank.
pub(super) fn process(child: &Child, rank: usize) -> Pid {
    let environment = |pid: Pid| std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap();
    let named = format!("RANK={rank}");
    let is_rank = |pid: &Pid| text(&environment(*pid)).split('\0').any(|v| v == named);
    children(child.id()).into_iter().find(is_rank).unwrap()
}

/// By all ranks but the second of two, which is killed.
fn said_when_one_dies(mesh: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let child = trains(folder.path(), &[mesh], &[("RUST_BACKTRACE", "1".as_ref())]);
    kill_process(process(&child, 1), Signal::KILL).unwrap();
    let output = output(child);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

/// By its number in the job, with the call that was not finished: the ranks of other groups ask each other in a barrier, which
/// is not what failed.
#[test]
fn a_rank_that_stops_is_named_with_the_call_that_waited() {
    for (mesh, stopped) in [("mesh=dp_shard=2", 1), ("mesh=dp_shard=2,tp=2", 2)] {
        let folder = tempfile::tempdir().unwrap();
        let child = trains(folder.path(), &[mesh], &[("ND_TIMEOUT", "2s".as_ref())]);
        let pid = process(&child, stopped);
        kill_process(pid, Signal::STOP).unwrap();
        let output = output(child);
        let said = text(&output.stderr);
        let named = format!("rank {stopped} (");
        let errors =
            said.lines().filter(|line| line.starts_with("error: ") && !line.contains("failed first"));
        let errors: Vec<&str> = errors.collect();
        assert!(!errors.is_empty(), "{said}");
        for error in errors {
            assert!(error.contains(&named) && error.contains("did not answer"), "{said}");
            assert!(error.contains(&format!("pid {}", pid.as_raw_nonzero())), "{said}");
            assert!(!error.contains("barrier") && error.contains("did not finish within 2"), "{said}");
        }
    }
}

/// Rank 2 dies, which rank 0 talks to in dp_shard and rank 3 in tp, each under another number, and rank 1 not at all. It may die
/// between two steps, when all are in calls of all: then few communicators have files, and it is tried again.
#[test]
fn whoever_tells_of_it_names_the_rank_that_died() {
    assert!((0..20).any(|_| communicators_that_tell_of_rank_2() > 3), "never in calls of parts");
}

/// How many have files; in all of them and in all errors rank 2 is to blame.
fn communicators_that_tell_of_rank_2() -> usize {
    let folder = tempfile::tempdir().unwrap();
    let recorded = folder.path().join("recorded");
    let recorder = [("ND_RECORDER_DIR", recorded.as_os_str())];
    let child = trains(folder.path(), &["mesh=dp_shard=2,tp=2"], &recorder);
    kill_process(process(&child, 2), Signal::KILL).unwrap();
    let output = output(child);
    let said = text(&output.stderr);
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    // Those of ranks, and one of the program that started them.
    assert!(errors.len() > 1, "{said}");
    assert!(errors.iter().all(|line| line.contains("rank 2") && !line.contains("aborted")), "{said}");
    // So do the files of all communicators: nobody else has failed by itself in any of them.
    let diagnose = Command::new(env!("CARGO_BIN_EXE_nd-topo"))
        .args(["diagnose", "--json", "-"])
        .arg(&recorded)
        .output()
        .unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&diagnose.stdout).unwrap();
    let all = answer["diagnoses"].as_array().unwrap();
    let findings = || all.iter().flat_map(|diagnosis| diagnosis["findings"].as_array().unwrap());
    assert!(findings().all(|f| f["verdict"] == "lost" || f["verdict"] == "ended"), "{answer}");
    let lost =
        findings().filter(|f| f["verdict"] == "lost").map(|f| f["text"].as_str().unwrap().to_lowercase());
    let is_third = |text: String| text.starts_with("rank 2 (") || text.contains(" (rank 2 of the world");
    assert!(findings().any(|f| f["verdict"] == "lost") && lost.into_iter().all(is_third), "{answer}");
    all.len()
}

#[test]
fn ranks_stop_and_go_on_with_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = trains(folder.path(), &["mesh=dp_shard=2"], &[]);
    let until = Instant::now() + PATIENCE;
    let wait = |what: &str, done: &dyn Fn() -> bool| {
        while !done() {
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let written = || std::fs::metadata(folder.path().join("m.jsonl")).map_or(0, |m| m.len());
    let own = Pid::from_child(&child);
    let mut all = children(child.id());
    assert_eq!(all.len(), 2);
    all.push(own);
    let stopped = |pid: &Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
        stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
    };
    kill_process(own, Signal::TSTP).unwrap();
    wait("not all have stopped", &|| all.iter().all(stopped));
    kill_process(own, Signal::CONT).unwrap();
    let before = written();
    wait("not all have gone on", &|| !all.iter().any(stopped) && written() > before);
    child.kill().unwrap();
    child.wait().unwrap();
}
