//! What the commands log: one line by rank 0 unless asked for more, and never a secret.

use std::process::Command;

const RANKS: usize = 8;
const SECRET: &str = "a secret that nobody may ever see in any line";

/// What `nd-bench` says on standard error with this `ND_DEBUG`.
fn said(debug: Option<&str>, transport: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nd-bench"));
    command.args(format!("barrier --ranks {RANKS} --transport {transport} -n 2 -w 0").split_whitespace());
    command.env("ND_SECRET", SECRET).env_remove("ND_DEBUG").env_remove("NCCL_DEBUG");
    command.envs(debug.map(|value| ("ND_DEBUG", value)));
    let out = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    assert!(!String::from_utf8_lossy(&out.stdout).contains(SECRET) && !said.contains(SECRET), "{said}");
    said
}

#[test]
fn one_line_says_which_world_it_is_and_how_it_is_joined() {
    for (transport, why) in
        [("shm", "rank 0 reaches 7 ranks by shm: the same host"), ("tcp", "7 ranks by tcp")]
    {
        let said = said(None, transport);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 1, "{said}");
        let parts = [&format!("{RANKS} ranks on 1 host; ")[..], why, "INFO", "nd "];
        assert!(parts.iter().all(|part| lines[0].contains(part)), "{said}");
    }
}

#[test]
fn who_asks_for_warnings_gets_no_more() {
    assert_eq!(said(Some("warn"), "shm"), "");
    assert_eq!(said(Some("info,nd_comm=error"), "shm"), "");
}

#[test]
fn who_asks_for_more_is_told_by_every_rank() {
    for debug in ["debug", "trace", "warn,nd_comm=debug"] {
        let said = said(Some(debug), "tcp");
        for rank in 0..RANKS {
            let own = format!("rank {rank} of {RANKS} of communicator world");
            assert!(said.contains(&own), "{debug}: {own}: {said}");
            // Every link.
            let links = said.lines().filter(|line| line.contains(&format!("rank {rank}: rank "))).count();
            assert_eq!(links, RANKS - 1, "{debug}: rank {rank}: {said}");
        }
    }
}

#[test]
fn a_level_that_there_is_not_is_named() {
    let out = Command::new(env!("CARGO_BIN_EXE_nd-bench")).arg("barrier").env("ND_DEBUG", "loud").output();
    let out = out.expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("ND_DEBUG=loud: no such level"), "{said}");
}
