//! nd-run with real processes.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn nd_run(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nd-run"));
    command.args(arguments).stdin(Stdio::null());
    for name in ["ND_SECRET", "ND_SECRET_FILE", "ND_AUTH"] {
        command.env_remove(name);
    }
    command
}

/// Ranks that each run this shell script.
fn script(options: &[&str], text: &str) -> Command {
    let mut arguments = options.to_vec();
    arguments.extend(["--", "/bin/sh", "-c", text]);
    nd_run(&arguments)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

#[test]
fn ranks_get_their_environment() {
    let echo = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR ${#ND_SECRET}";
    let output = script(&["-n", "3"], echo).output().unwrap();
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["[0] 0 3 0 3 127.0.0.1 64", "[1] 1 3 1 3 127.0.0.1 64", "[2] 2 3 2 3 127.0.0.1 64"]);

    let options = ["-n", "2", "--nnodes", "3", "--node-rank", "1", "--rdzv", "node0:4000"];
    let echo = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $ND_SECRET";
    let output = script(&options, echo).env("ND_SECRET", "known-to-all-three").output().unwrap();
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(
        lines,
        ["[2] 2 6 0 2 node0 4000 known-to-all-three", "[3] 3 6 1 2 node0 4000 known-to-all-three"]
    );
}

#[test]
fn output_that_is_lost_is_a_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = script(&["-n", "2"], "echo result").stdout(full).output().unwrap();
    assert_eq!(code(&output), 1);
    let said = text(&output.stderr);
    assert!(said.contains("passed on whole: standard output, /dev/full: No space left on device"), "{said}");
    // Who reads no further has seen enough.
    let mut reader = script(&["-n", "1"], "sleep 0.5; echo result").stdout(Stdio::piped()).spawn().unwrap();
    drop(reader.stdout.take());
    assert_eq!(reader.wait().unwrap().code(), Some(0));
    // Ranks that would write on for ever notice it, as they would without a launcher.
    let endless = "while echo result; do sleep 0.01; done";
    let mut reader =
        script(&["-n", "2"], endless).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(reader.stdout.take());
    assert_eq!(code_of(reader), Some(128 + libc::SIGPIPE));
}

#[test]
fn the_first_to_fail_ends_all_and_is_named() {
    let began = Instant::now();
    let output = script(&["-n", "4"], "test $RANK = 2 && exit 7; sleep 100").output().unwrap();
    assert_eq!(code(&output), 7);
    assert!(began.elapsed() < Duration::from_secs(60));
    let said = text(&output.stderr);
    assert!(said.contains("error: rank 2 (pid ") && said.contains("failed first: exit code 7"), "{said}");
}

#[test]
fn the_others_go_on_if_they_are_to() {
    let some = "test $RANK = 2 && kill -KILL $$; test $RANK = 0 && exit 3; sleep 1; echo done";
    let output = script(&["-n", "4", "--keep-going"], some).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(code(&output), 0, "{said}");
    assert_eq!(text(&output.stdout).matches("done").count(), 2);
    assert!(said.contains("rank 2 (pid ") && said.contains("failed: SIGKILL (signal 9)"), "{said}");
    let output = script(&["-n", "2", "--keep-going"], "exit 5").output().unwrap();
    assert_eq!(code(&output), 5);
}

#[test]
fn a_signal_gives_128_and_its_number() {
    let output = script(&["-n", "2"], "test $RANK = 1 && kill -SEGV $$; sleep 100").output().unwrap();
    assert_eq!(code(&output), 128 + libc::SIGSEGV);
    assert!(text(&output.stderr).contains("rank 1 (pid ") && text(&output.stderr).contains("SIGSEGV"));
}

#[test]
fn who_does_not_hear_sigterm_gets_sigkill() {
    let began = Instant::now();
    let stubborn = "trap '' TERM; test $RANK = 1 && { sleep 1; exit 3; }; while :; do sleep 1; done";
    let output = script(&["-n", "2", "--grace", "0.5"], stubborn).output().unwrap();
    assert_eq!(code(&output), 3);
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn lines_stay_whole() {
    let chatter = "i=0; while [ $i -lt 200 ]; do printf 'rank'; printf ' %s' $RANK; printf ' line %s\\n' $i; i=$((i+1)); done; \
                   printf 'no end'; echo oops >&2";
    let output = script(&["-n", "4"], chatter).output().unwrap();
    assert_eq!(code(&output), 0);
    let mut next = [0; 4];
    for line in text(&output.stdout).lines() {
        let rank: usize = line[1..2].parse().unwrap();
        let expected = match next[rank] {
            200 => format!("[{rank}] no end"),
            i => format!("[{rank}] rank {rank} line {i}"),
        };
        assert_eq!(line, expected);
        next[rank] += 1;
    }
    assert_eq!(next, [201; 4]);
    assert_eq!(text(&output.stderr).lines().filter(|l| l.ends_with("] oops")).count(), 4);
}

#[test]
fn restarts_with_a_new_port_and_secret() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("run.json");
    let json = json.to_str().unwrap();
    let flaky = "echo $ND_RESTART_COUNT $MASTER_PORT $ND_SECRET; test $ND_RESTART_COUNT = 2 || exit 5";
    let output = script(&["-n", "1", "--max-restarts", "3", "--json", json], flaky).output().unwrap();
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let out = text(&output.stdout);
    let starts: Vec<Vec<&str>> = out.lines().map(|l| l.split(' ').skip(1).collect()).collect();
    assert_eq!(starts.iter().map(|s| s[0]).collect::<Vec<_>>(), ["0", "1", "2"]);
    assert!(starts[0][1] != starts[1][1] && starts[0][2] != starts[1][2], "{starts:?}");
    assert_eq!(text(&output.stderr).matches("failed: exit code 5; restart").count(), 2);
    let summary: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!((&summary["restarts"], &summary["exit_code"]), (&2.into(), &0.into()));
    assert_eq!(summary["ranks"][0]["reason"], "exit code 0");

    let output = script(&["-n", "2", "--max-restarts", "1"], "echo start; exit 5").output().unwrap();
    assert_eq!(code(&output), 5);
    assert!(text(&output.stderr).contains("restart 1 of 1"));
}

/// Starts ranks that print their own and their child's number, then sleep.
fn sleepers(trap: &str) -> (Child, Vec<u32>) {
    let (launcher, pids, out) =
        started(&[], &format!("{trap} sleep 1000 & echo $$ $!; wait; echo unreachable"));
    drain(out);
    (launcher, pids)
}

/// Starts ranks of a script that prints two process numbers first; gives these and what else it prints.
fn started(options: &[&str], text: &str) -> (Child, Vec<u32>, Lines<BufReader<ChildStdout>>) {
    let mut launcher = script(&[&["-n", "2", "--max-restarts", "2"], options].concat(), text)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut pids = Vec::new();
    let mut out = BufReader::new(launcher.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = out.next().unwrap().unwrap();
        pids.extend(line.split(' ').skip(1).map(|p| p.parse::<u32>().unwrap()));
    }
    (launcher, pids, out)
}

/// Whoever inherits the ranks' output may still write to it.
fn drain(out: Lines<BufReader<ChildStdout>>) {
    std::thread::spawn(move || out.for_each(drop));
}

/// Gone, or dead and not yet reaped by whoever adopted it.
fn gone(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim().starts_with('Z')),
        Err(_) => true,
    }
}

/// How the launcher ends, which it does soon; it is ended if it does not.
fn code_of(mut launcher: Child) -> Option<i32> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = launcher.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() >= until {
            launcher.kill().unwrap();
            launcher.wait().unwrap();
            panic!("the launcher does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn all_go(pids: &[u32]) {
    let until = Instant::now() + Duration::from_secs(30);
    while !pids.iter().all(|p| gone(*p)) {
        assert!(Instant::now() < until, "still there: {pids:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn kill(pid: u32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_killed_launcher_leaves_nothing() {
    let (mut launcher, pids) = sleepers("");
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    all_go(&pids);
}

#[test]
fn signals_are_passed_on_and_end_without_restart() {
    use rustix::process::Signal;
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2), (Signal::HUP, 1)] {
        // A shell in the background ignores SIGINT by default.
        let (launcher, pids) = sleepers("trap 'kill $!; exit 0' TERM INT HUP;");
        kill(launcher.id(), signal);
        assert_eq!(code_of(launcher), Some(128 + number));
        all_go(&pids);
    }
}

#[test]
fn stopped_ranks_hear_a_signal_too() {
    use rustix::process::Signal;
    for (signal, number) in [(Signal::TERM, 15), (Signal::HUP, 1)] {
        let (launcher, pids) = sleepers("");
        kill(pids[0], Signal::STOP);
        let until = Instant::now() + Duration::from_secs(30);
        let stopped = || std::fs::read_to_string(format!("/proc/{}/stat", pids[0])).unwrap().contains(") T ");
        while !stopped() {
            assert!(Instant::now() < until, "{} does not stop", pids[0]);
            std::thread::sleep(Duration::from_millis(1));
        }
        kill(launcher.id(), signal);
        assert_eq!(code_of(launcher), Some(128 + number));
        all_go(&pids);
    }
}

#[test]
fn asking_twice_kills() {
    let stubborn = "trap 'echo heard' TERM; sleep 1000 & echo $$ $!; while :; do wait; sleep 0.1; done";
    let (launcher, pids, mut out) = started(&[], stubborn);
    kill(launcher.id(), rustix::process::Signal::TERM);
    // Both hear the first signal and stay.
    for _ in 0..2 {
        let line = out.next().unwrap().unwrap();
        assert!(line.ends_with("heard"), "{line}");
    }
    assert!(!gone(pids[0]));
    drain(out);
    kill(launcher.id(), rustix::process::Signal::TERM);
    assert_eq!(code_of(launcher), Some(143));
    all_go(&pids);
}

/// Also those that do not hear SIGTERM: whoever started the launcher is gone, and nobody asks again.
#[test]
fn the_end_of_standard_input_ends_ranks_if_it_is_to() {
    for trap in ["", "trap '' TERM;"] {
        let text = format!("{trap} sleep 1000 & echo $$ $!; while :; do wait; sleep 0.1; done");
        let (mut launcher, pids, out) = started(&["--end-with-input", "--grace", "0.2"], &text);
        drain(out);
        drop(launcher.stdin.take());
        assert_eq!(code_of(launcher), Some(129));
        all_go(&pids);
    }
}

#[test]
fn ranks_are_bound_when_there_are_enough_cores() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let each = script(&["-n", "1"], "nproc").output().unwrap();
    assert_eq!(text(&each.stdout), format!("[0] {cores}\n"));
    if cores < 2 {
        println!("skipped: binding two ranks needs two cores");
        return;
    }
    let output = script(&["-n", "2", "--bind", "core"], "nproc").output().unwrap();
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, [format!("[0] {}", cores / 2), format!("[1] {}", cores / 2)]);
}

#[test]
fn wrong_command_lines_say_what_to_do() {
    let long = "99999".to_owned();
    for (arguments, exit, say) in [
        (&["-n", "0", "--", "true"][..], 2, "-n 0: there is nothing to start; write at least 1"),
        (&["-n", &long, "--", "true"], 2, "write at most 4096"),
        (&["-n", "2", "true"], 2, "there is no -- between the options and the program"),
        (&["-n", "2", "--"], 2, "no program to start"),
        (&["-n", "2"], 2, "no program to start"),
        (&["-n", "2", "--", "no-such-program"], 127, "rank 0: cannot start no-such-program"),
        (&["-n", "2", "--", "/etc/passwd"], 126, "make it executable"),
        (&["-n", "2", "--nnodes", "2", "--", "true"], 2, "pass --rdzv"),
        (&["-n", "2", "--nnodes", "2", "--rdzv", "a:1", "--", "true"], 2, "set ND_SECRET or ND_SECRET_FILE"),
        (
            &["-n", "2", "--node-rank", "1", "--", "true"],
            2,
            "node rank 1 is not below the number of nodes, 1",
        ),
        (&["-n", "2", "--rdzv", "a", "--", "true"], 2, "write HOST:PORT"),
        (&["-n", "2", "--grace", "-1", "--", "true"], 2, "--grace"),
    ] {
        let output = nd_run(arguments).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(code(&output), exit, "{arguments:?}: {said}");
        assert!(said.starts_with("error: ") && said.contains(say), "{arguments:?}: {said}");
    }
}
