//! Ranks on two hosts.

use std::path::Path;
use std::process::{Command, Stdio};

use nd_tests::hosts::{Hosts, Network};

use super::{TRAIN, nd_train, text};

/// What rank 0 prints when two ranks on each of two hosts train.
fn on_two_hosts(hosts: &Hosts, folder: &Path, settings: &[&str]) -> String {
    let train = nd_train(folder, settings);
    let start = |host: usize| {
        let mut command: Command = hosts.command(host, env!("CARGO_BIN_EXE_nd-run"));
        command
            .args(["-n", "2", "--nnodes", "2", "--node-rank", &host.to_string(), "--no-prefix"])
            .args(["--rdzv", &format!("{}:29800", hosts.v4(0)), "--", TRAIN])
            .args(train.get_args())
            .current_dir(folder)
            .env("ND_SECRET", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let children = [0, 1].map(start);
    let outputs = children.map(|child| child.wait_with_output().unwrap());
    assert!(
        outputs.iter().all(|o| o.status.success()),
        "{}{}",
        text(&outputs[0].stderr),
        text(&outputs[1].stderr)
    );
    text(&outputs[0].stdout)
}

/// The line of an axis or of a group.
fn line<'a>(said: &'a str, begins: &str) -> &'a str {
    said.lines().find(|line| line.starts_with(begins)).unwrap_or_else(|| panic!("{begins}: {said}"))
}

/// Two starts on one machine, as on two hosts: each has an output of its own.
#[test]
fn what_all_ranks_know_is_told_once_on_each_host() {
    let folder = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |host: usize| {
        let train = nd_train(folder.path(), &["mesh=dp_shard=4", &format!("seed={host}")]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_nd-run"));
        command
            .args(["-n", "2", "--nnodes", "2", "--node-rank", &host.to_string(), "--no-prefix"])
            .args(["--rdzv", &format!("127.0.0.1:{port}"), "--", TRAIN])
            .args(train.get_args())
            .current_dir(folder.path())
            .env("ND_SECRET", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    for (host, child) in [0, 1].map(start).into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(said.matches("have seed 1, and ranks 0 and 1").count(), 1, "host {host}: {said}");
    }
}

#[test]
fn tensor_parallelism_stays_inside_hosts() {
    let Some(hosts) = Hosts::new("tensor_parallelism_stays_inside_hosts", 2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let said = on_two_hosts(&hosts, folder.path(), &["mesh=dp_shard=2,tp=2"]);
    assert!(line(&said, "tp ").contains("inside a host"), "{said}");
    assert!(line(&said, "fsdp ").contains("between hosts"), "{said}");
}

/// Over a link of 100 Mbit/s four micro-batches of a model of 0.5 million parameters, all of whose weights and gradients
/// cross it with flat FSDP, and with HSDP the sums of a step alone.
#[test]
fn hsdp_spares_the_link_between_hosts() {
    let slow = Network { rate: Some(0.1), ..Network::default() };
    let Some(hosts) = Hosts::joined("hsdp_spares_the_link_between_hosts", 2, slow) else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = |mesh: &str| {
        let before = hosts.carried(0, 0).unwrap().sent;
        let file = folder.path().join("m.jsonl");
        let metrics = format!("metrics={}", file.display());
        let settings = [mesh, &metrics, "hidden=128", "ffn=384", "batch=16", "accumulation=4", "steps=4"];
        let said = on_two_hosts(&hosts, folder.path(), &settings);
        let rows = std::fs::read_to_string(file).unwrap();
        let last: serde_json::Value = serde_json::from_str(rows.lines().last().unwrap()).unwrap();
        let speed = last["tokens_per_s"].as_f64().unwrap();
        (hosts.carried(0, 0).unwrap().sent - before, last["loss"].as_f64().unwrap(), speed, said)
    };
    let (flat, flat_loss, flat_speed, flat_said) = run("mesh=dp_shard=4");
    let (hsdp, hsdp_loss, hsdp_speed, hsdp_said) = run("mesh=dp_replicate=2,dp_shard=2");
    println!(
        "flat FSDP {flat} bytes between hosts, {flat_speed:.0} tokens/s; HSDP {hsdp}, {hsdp_speed:.0}: {:.1} times as fast",
        hsdp_speed / flat_speed
    );
    assert!(hsdp * 3 < flat, "{hsdp} bytes against {flat}");
    assert!((hsdp_loss / flat_loss - 1.0).abs() < 1e-5, "{hsdp_loss} {flat_loss}");
    assert!(line(&flat_said, "fsdp ").contains("between hosts"), "{flat_said}");
    assert!(line(&hsdp_said, "fsdp ").contains("inside a host"), "{hsdp_said}");
    assert!(line(&hsdp_said, "dp_replicate ").contains("between hosts"), "{hsdp_said}");
    // And the run says why, with the numbers of both.
    assert!(!flat_said.contains("flat FSDP"), "{flat_said}");
    let why = line(&hsdp_said, "Between hosts: on dp_replicate=2,dp_shard=2 each host sends ");
    println!("{why}");
    let (own, other) =
        why.split_once("; flat FSDP (dp_shard=4) would send ").unwrap_or_else(|| panic!("{why}"));
    let (others, times) = other.split_once(": ").unwrap();
    assert!(own.contains(" a step") && own.contains(" in ") && others.contains(" in "), "{why}");
    let times: Vec<f64> = times.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert_eq!(times.len(), 2, "{why}");
    // The bytes are those that crossed the link, but for what few small calls and headers take.
    let measured = flat as f64 / hsdp as f64;
    assert!((times[0] / measured - 1.0).abs() < 0.25, "{why}; measured {measured:.2}");
    assert!(times[1] > 2.0, "{why}");
}
