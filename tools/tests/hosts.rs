//! Real processes on several hosts: network namespaces, shared memory within, TCP across.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nd_tests::hosts::{Hosts, Network};

const SECRET: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// `nd-run` on every host, `ranks` ranks each, meeting at `address`; what host 0 printed.
fn run(
    hosts: &Hosts,
    ranks: usize,
    address: &str,
    environment: &[(&str, &str)],
    program: &[&str],
) -> Vec<Output> {
    let start = |host: usize| {
        let mut command: Command = hosts.command(host, env!("CARGO_BIN_EXE_nd-run"));
        command
            .args(["-n", &ranks.to_string(), "--nnodes", &hosts.count().to_string()])
            .args([
                "--node-rank",
                &host.to_string(),
                "--rdzv",
                &format!("{address}:29800"),
                "--no-prefix",
                "--",
            ])
            .args(program)
            .env("ND_SECRET", SECRET)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("it starts")
    };
    let children: Vec<_> = (0..hosts.count()).map(start).collect();
    children.into_iter().map(|c| c.wait_with_output().expect("it ends")).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn all_right(outputs: &[Output]) -> String {
    for out in outputs {
        assert!(out.status.success(), "{}\n{}", text(&out.stdout), text(&out.stderr));
    }
    let table = text(&outputs[0].stdout);
    let rows: Vec<_> = table.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()).collect();
    assert!(!rows.is_empty(), "{table}");
    for row in rows {
        let columns: Vec<_> = row.split_whitespace().collect();
        assert!(["0", "N/A"].contains(&columns[8]) && ["0", "N/A"].contains(&columns[12]), "{row}");
    }
    table
}

const BENCH: &str = env!("CARGO_BIN_EXE_nd-bench");

#[test]
fn every_collective_across_two_hosts() {
    let Some(hosts) = Hosts::new("every_collective_across_two_hosts", 2) else { return };
    let program = [BENCH, "all", "-b", "0", "-e", "1M", "-f", "32", "-n", "2", "--explain"];
    let table = all_right(&run(&hosts, 2, &hosts.v4(0), &[], &program));
    assert!(table.contains("shm") && table.contains("tcp"), "{table}");
}

#[test]
fn three_hosts_and_a_bridge_that_leads_nowhere() {
    let Some(hosts) = Hosts::new("three_hosts_and_a_bridge_that_leads_nowhere", 3) else { return };
    for host in 0..3 {
        // As Docker makes it: the same address on every host.
        hosts.ip(host, &["link", "add", "docker0", "type", "bridge"]);
        hosts.ip(host, &["addr", "add", "172.17.0.1/16", "dev", "docker0"]);
        hosts.ip(host, &["link", "set", "docker0", "up"]);
    }
    let program = [BENCH, "allreduce", "-b", "4", "-e", "64K", "-f", "64", "-n", "2", "--explain"];
    let table = all_right(&run(&hosts, 1, &hosts.v4(0), &[], &program));
    assert!(table.contains("eth0") && !table.contains("172.17"), "{table}");
}

#[test]
fn hosts_with_nothing_but_ipv6() {
    let Some(hosts) = Hosts::new("hosts_with_nothing_but_ipv6", 2) else { return };
    for host in 0..2 {
        let address = format!("{}/24", hosts.v4(host));
        hosts.ip(host, &["addr", "del", &address, "dev", "eth0"]);
    }
    let address = format!("[{}]", hosts.v6(0));
    let program = [BENCH, "allreduce", "-b", "4", "-e", "64K", "-f", "64", "-n", "2", "--explain"];
    let table = all_right(&run(&hosts, 1, &address, &[], &program));
    assert!(table.contains(&hosts.v6(0)) || table.contains(&hosts.v6(1)), "{table}");
}

#[test]
fn an_interface_that_is_not_there_is_named_with_those_that_are() {
    let Some(hosts) = Hosts::new("an_interface_that_is_not_there_is_named_with_those_that_are", 2) else {
        return;
    };
    let program = [BENCH, "barrier"];
    for out in run(&hosts, 1, &hosts.v4(0), &[("ND_SOCKET_IFNAME", "ib")], &program) {
        let error = text(&out.stderr);
        assert!(!out.status.success());
        assert!(error.contains("ND_SOCKET_IFNAME=ib") && error.contains("eth0"), "{error}");
    }
}

#[test]
fn shared_memory_between_hosts_is_refused() {
    let Some(hosts) = Hosts::new("shared_memory_between_hosts_is_refused", 2) else { return };
    let outputs = run(&hosts, 1, &hosts.v4(0), &[("ND_TRANSPORT", "shm")], &[BENCH, "barrier"]);
    for out in outputs {
        assert!(!out.status.success());
        assert!(text(&out.stderr).contains("another host"), "{}", text(&out.stderr));
    }
}

/// A file of two hosts with two ranks each, and what reaches them as ssh does.
fn file_and_shell(hosts: &Hosts, folder: &Path) -> (PathBuf, PathBuf) {
    let file = folder.join("hosts");
    std::fs::write(&file, format!("{} slots=2\n{} slots=2\n", hosts.v4(0), hosts.v4(1))).expect("a file");
    (file, hosts.remote_shell(folder).expect("a script"))
}

/// `nd-bench` with these arguments on the hosts of a file.
fn remotely(arguments: &str, (file, shell): &(PathBuf, PathBuf)) -> Command {
    let mut command = Command::new(BENCH);
    command.args(arguments.split(' ')).arg("--hosts").arg(file).arg("--rsh").arg(shell);
    command
}

#[test]
fn a_file_of_hosts_and_a_remote_shell() {
    let Some(hosts) = Hosts::new("a_file_of_hosts_and_a_remote_shell", 2) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let by = file_and_shell(&hosts, folder.path());
    let nd_bench = || remotely("allgather -b 8 -e 32K -f 64 -n 2", &by).output().expect("it starts");
    let table = all_right(&[nd_bench()]);
    assert_eq!(table.matches("#  Rank ").count(), 4, "{table}");
    std::fs::write(&by.0, "nowhere slots=1\n").expect("a file");
    let out = nd_bench();
    assert!(!out.status.success() && text(&out.stderr).contains("nowhere"), "{}", text(&out.stderr));
}

/// Processes with this word on their command line.
fn processes_with(word: &str) -> usize {
    let of = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
    let all = std::fs::read_dir("/proc").expect("processes").flatten().map(of);
    all.filter(|line| text(line).contains(word)).count()
}

/// However nd-bench ends, so do the ranks that it started on other hosts.
#[test]
fn nothing_runs_on_after_a_remote_start_was_killed() {
    let Some(hosts) = Hosts::new("nothing_runs_on_after_a_remote_start_was_killed", 2) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let by = file_and_shell(&hosts, folder.path());
    let mut nd_bench =
        remotely("allreduce -b 8 -e 8 -N 0", &by).stdout(Stdio::piped()).spawn().expect("it starts");
    // The first line comes from rank 0, when all ranks have met.
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(nd_bench.stdout.as_mut().expect("a pipe")),
        &mut line,
    )
    .expect("a line");
    let word = by.0.to_str().expect("a path");
    assert!(processes_with(word) > 4, "{line}");
    nd_bench.kill().expect("it runs");
    nd_bench.wait().expect("it ends");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while processes_with(word) > 0 {
        assert!(std::time::Instant::now() < until, "{} processes run on", processes_with(word));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Bytes that each host sends for one call, measured at its interface: of many calls less those of a few, so that
/// starting and leaving do not count.
fn sent_per_call(hosts: &Hosts, ranks: usize, collective: &str, algorithm: &str, size: &str) -> Vec<f64> {
    let sent = |calls: &str| -> Vec<f64> {
        let count = || (0..hosts.count()).map(|h| hosts.carried(h, 0).expect("counters").sent as f64);
        let before: Vec<_> = count().collect();
        let program = [BENCH, collective, "-b", size, "-e", size, "-n", calls, "-w", "0", "-c", "0"];
        all_right(&run(hosts, ranks, &hosts.v4(0), &[("ND_ALGO", algorithm)], &program));
        count().zip(before).map(|(after, before)| after - before).collect()
    };
    let (few, many) = (sent("2"), sent("12"));
    // Ten more calls out of place, ten in place.
    many.iter().zip(few).map(|(many, few)| (many - few) / 20.0).collect()
}

#[test]
fn hierarchies_put_the_fewest_bytes_on_the_wire() {
    let Some(hosts) = Hosts::new("hierarchies_put_the_fewest_bytes_on_the_wire", 3) else { return };
    let size = f64::from(3 << 20);
    for (collective, algorithm, expected) in [
        ("allreduce", "hierarchical", [4.0 / 3.0; 3]),
        ("allreduce", "hierarchical-ring", [4.0 / 3.0; 3]),
        ("reducescatter", "hierarchical", [2.0 / 3.0; 3]),
        ("allgather", "hierarchical", [2.0 / 3.0; 3]),
        ("broadcast", "hierarchical", [1.0, 1.0, 0.0]),
        ("alltoall", "hierarchical", [4.0 / 3.0; 3]), // each of two ranks sends two thirds of its buffer
    ] {
        let sent = sent_per_call(&hosts, 2, collective, algorithm, "3M");
        for (host, (sent, expected)) in sent.iter().zip(expected).enumerate() {
            // Beyond the payload: 96 bytes for each 32 KiB (0.3 %), 66 for each packet that the kernel sends, which
            // holds 1448 bytes to 64 KiB, and acknowledgements of what came in. Each goes once for both directions.
            let (least, most) = (expected * size, expected * size * 1.04 + 0.01 * size);
            assert!(
                least <= *sent && *sent <= most,
                "{collective} {algorithm} host {host}: {sent} of {least}"
            );
        }
    }
}

#[test]
fn each_local_rank_has_a_rail() {
    let network = Network { interfaces: 2, rate: None };
    let Some(hosts) = Hosts::joined("each_local_rank_has_a_rail", 2, network) else { return };
    let program =
        [BENCH, "allreduce", "-b", "4M", "-e", "4M", "-n", "5", "-c", "0", "--algo", "hierarchical"];
    all_right(&run(&hosts, 2, &hosts.v4(0), &[], &program));
    for host in 0..2 {
        let [a, b] = [0, 1].map(|nic| hosts.carried(host, nic).expect("counters").sent as f64);
        assert!(a.max(b) < 1.05 * a.min(b), "host {host}: {a} and {b} bytes");
    }
}
