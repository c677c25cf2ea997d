//! The runner with real processes: ours against itself, and peers that fail, hang, and leave processes behind.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nd_tests::Need;
use nd_tests::hosts::Hosts;

/// The runner with tiny sizes; none, with a line that says so, where nd-bench has not been built.
fn compare(test: &str, folder: &Path, arguments: &[&str]) -> Option<Command> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_compare"));
    if !program.with_file_name("nd-bench").is_file() {
        nd_tests::skip(test, Need::Tools);
        return None;
    }
    let mut command = Command::new(program);
    command.args(["--ranks", "2", "--iterations", "3", "--warmup", "1"]);
    if !arguments.contains(&"--transport") {
        command.args(["--transport", "shm"]);
    }
    command.arg("--out").arg(folder.join("out")).arg("--home").arg(folder.join("peers")).args(arguments);
    Some(command)
}

fn run(command: &mut Command) -> (Output, String) {
    let output = command.output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output, said)
}

/// A python for gloo, and so a peer, that is a shell script.
fn pretend(folder: &Path, script: &str) {
    let place = folder.join("peers/gloo");
    std::fs::create_dir_all(&place).unwrap();
    let path = place.join("script");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(place.join("python"), path.to_str().unwrap()).unwrap();
}

#[test]
fn ours_against_itself() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--peers", "self,impi", "--sizes", "4,1K", "--pairs", "2"];
    let Some(mut command) = compare("ours_against_itself", folder.path(), &arguments) else { return };
    let (output, said) = run(&mut command);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("# impi is left out: it is not set up"), "{said}");

    let json = std::fs::read_to_string(folder.path().join("out/results.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let case = &json["cases"][0];
    assert_eq!(case["wrong"], 0);
    for size in ["4", "1024"] {
        let pairs = case["against"][0]["pairs"][size].as_array().unwrap();
        assert_eq!(pairs.len(), 2, "{case}");
        assert!(pairs.iter().all(|p| p[0].as_f64().unwrap() > 0.0 && p[1].as_f64().unwrap() > 0.0));
        assert!(json["limits"]["sizes"][size]["all_reduce"]["2"].as_f64().unwrap() > 0.0);
    }
    // Ours is no peer of ours, but there are limits.
    let targets = json["targets"].as_array().unwrap();
    let of = |reference: &str| {
        let is = |row: &&serde_json::Value| row["range"] == "4 B–1 KiB" && row["reference"] == reference;
        targets.iter().find(is).unwrap()
    };
    assert_eq!(of("fastest peer")["verdict"], "unasked");
    if std::thread::available_parallelism().unwrap().get() > 1 {
        assert_eq!(of("4 hops+100 ns")["points"], 2, "{said}");
    }
    let text = std::fs::read_to_string(folder.path().join("out/RESULTS.md")).unwrap();
    assert!(text.contains("## allreduce, shm, 2 ranks") && text.contains("### self"), "{text}");
    assert!(text.contains("## Targets") && said.contains("targets hold"), "{text}");
    let png = std::fs::read(folder.path().join("out/compare.png")).unwrap();
    assert!(png.starts_with(b"\x89PNG"));
}

#[test]
fn idle_ranks_tell_when_they_were_ready_and_what_memory_they_have() {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_idle"));
    let launcher = program.with_file_name("nd-run");
    if !launcher.is_file() {
        return nd_tests::skip("idle_ranks", Need::Tools);
    }
    for used in [false, true] {
        let mut command = Command::new(&launcher);
        command.args(["-n", "3", "--no-prefix", "--"]).arg(&program);
        let output = command.args(used.then_some("used")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let seen: nd_benches::idle::Seen = serde_json::from_slice(&output.stdout).expect(&said);
        assert!(
            seen.ranks == 3 && seen.began < seen.ready && seen.ready < nd_benches::idle::now(),
            "{seen:?}"
        );
        assert!(seen.started > 0.0 && seen.used.is_some() == used, "{seen:?}");
    }
}

#[test]
fn hosts_are_namespaces() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--peers", "self", "--transport", "net", "--sizes", "4", "--pairs", "1"];
    let Some(mut command) = compare("hosts_are_namespaces", folder.path(), &arguments) else { return };
    if !Hosts::possible() {
        return nd_tests::skip("hosts_are_namespaces", Need::Root);
    }
    let (output, said) = run(&mut command);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("allreduce, 2 hosts at 1000 Mbit/s, 2 ranks"), "{said}");
}

#[test]
fn a_peer_that_fails_is_named_and_the_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--peers", "gloo,self", "--sizes", "8", "--pairs", "3"];
    let Some(mut command) = compare("a_peer_that_fails", folder.path(), &arguments) else { return };
    pretend(folder.path(), "echo 'first' >&2; echo 'the moon is in the way' >&2; echo ----- >&2; exit 3");
    let (output, said) = run(&mut command);
    assert!(output.status.success(), "{said}");
    // Asked twice, then no more.
    assert_eq!(said.matches("# gloo failed: exit status: 3: the moon is in the way").count(), 2, "{said}");
    let text = std::fs::read_to_string(folder.path().join("out/RESULTS.md")).unwrap();
    assert!(text.contains("It failed: exit status: 3: the moon is in the way"), "{text}");
}

#[test]
fn wrong_results_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--peers", "gloo", "--sizes", "8", "--pairs", "1"];
    let Some(mut command) = compare("wrong_results", folder.path(), &arguments) else { return };
    pretend(folder.path(), "echo '8 2 float sum -1 1.0 0.1 0.1 7 N/A N/A N/A N/A'");
    let (output, said) = run(&mut command);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("wrong results: gloo (allreduce, shm, 2 ranks)"), "{said}");
}

/// Processes whose command line holds `mark`.
fn left(mark: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
    lines.filter(|line| line.windows(mark.len()).any(|w| w == mark.as_bytes())).count()
}

/// A peer that starts a process in a session of its own, ignores polite signals, and hangs.
fn hang(folder: &Path, mark: &str) {
    pretend(folder, &format!("trap '' TERM INT HUP\nsetsid sleep {mark} &\nwhile :; do sleep {mark}; done"));
}

#[test]
fn nothing_is_left_of_a_peer_that_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--peers", "gloo,self", "--sizes", "8", "--pairs", "2", "--deadline", "1"];
    let Some(mut command) = compare("a_peer_that_hangs", folder.path(), &arguments) else { return };
    // What `sleep` is told serves as a mark: nobody else sleeps exactly as long.
    let mark = format!("1000.{}1", std::process::id());
    hang(folder.path(), &mark);
    let (_, said) = run(&mut command);
    assert_eq!(said.matches("# gloo failed: killed after 1 s").count(), 1, "{said}");
    assert_eq!(left(&mark), 0);
}

#[test]
fn nothing_is_left_after_an_interruption() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--peers", "gloo", "--sizes", "8", "--pairs", "2", "--deadline", "600"];
    let Some(mut command) = compare("an_interruption", folder.path(), &arguments) else { return };
    let mark = format!("1000.{}2", std::process::id());
    hang(folder.path(), &mark);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    // The scripts of both ranks, and what each has started.
    while left(&mark) < 4 {
        assert!(Instant::now() < until, "the peer has not been started");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = child.id().to_string();
    assert!(Command::new("sh").args(["-c", "kill -INT \"$0\"", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(left(&mark), 0);
    assert!(folder.path().join("out/results.json").is_file());
}
