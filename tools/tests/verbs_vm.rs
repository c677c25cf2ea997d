//! `nd-bench` on two hosts with Soft-RoCE, which are virtual machines: right results, and the right errors.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use nd_tests::machines::{ndvm, run};

/// Runs `nd-bench` on both hosts, each of which is a rank, after `before` in its shell; what it said, and how it ended.
fn bench(ndvm: &Path, options: &[&str], before: &str, arguments: &str) -> (String, bool) {
    let bench = env!("CARGO_BIN_EXE_nd-bench");
    let script = format!(
        "export RANK=$NDVM_HOST_INDEX WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=${{NDVM_HOST_ADDRS%%,*}} MASTER_PORT=29500 \
         ND_SECRET=0123456789abcdef0123456789abcdef ND_IB_TIMEOUT=16 ND_RECORDER_DIR=none; {before} {bench} {arguments}"
    );
    let out = run(ndvm, &[&["--hosts", "2"], options].concat(), &["sh", "-c", &script]);
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    (said, out.status.success())
}

/// The rows of a table: those that begin with a size, without the host's mark.
fn rows(said: &str) -> Vec<Vec<&str>> {
    said.lines()
        .filter_map(|line| line.strip_prefix("[0] "))
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.len() > 8 && fields[0].parse::<u64>().is_ok())
        .collect()
}

#[test]
fn all_collectives_are_right_over_verbs() {
    let Some(ndvm) = ndvm("all_collectives_are_right_over_verbs") else { return };
    for buffers in ["registered", "plain"] {
        let arguments = format!("all -b 8 -e 256K -f 32 -n 2 -w 1 --transport verbs --buffers {buffers}");
        let (said, ended_well) = bench(&ndvm, &[], "", &arguments);
        assert!(ended_well, "{said}");
        let rows = rows(&said);
        assert!(rows.len() >= 30, "{said}");
        for row in &rows {
            let wrong = [row[8], *row.last().unwrap()];
            assert!(wrong.iter().all(|w| ["0", "N/A"].contains(w)), "{row:?} in {said}");
        }
        assert!(said.contains("over verbs") && !said.contains("over tcp"), "{said}");
    }
}

/// Each host has two ports and one rank, which uses both.
#[test]
fn two_ports_of_each_host_are_used_at_once() {
    let Some(ndvm) = ndvm("two_ports_of_each_host_are_used_at_once") else { return };
    // What each port has sent, as it says itself.
    let sent = "for i in 0 1; do echo \"rxe$i sent $(cat /sys/class/net/nic$i/statistics/tx_bytes)\"; done";
    let arguments = format!("allreduce -b 8 -e 1M -f 8 -n 2 -w 1 --transport verbs && {sent}");
    let (said, ended_well) = bench(&ndvm, &["--nics", "2"], "export ND_DEBUG=debug;", &arguments);
    assert!(ended_well, "{said}");
    let rows = rows(&said);
    assert_eq!(rows.len(), 6, "{said}");
    for row in &rows {
        assert!(row[8] == "0" && *row.last().unwrap() == "0", "{row:?} in {said}");
    }
    assert!(said.contains("verbs 2 rails: rxe0:1, rxe1:1 to rxe0:1, rxe1:1"), "{said}");
    for port in ["[0] rxe0", "[0] rxe1", "[1] rxe0", "[1] rxe1"] {
        let bytes = said
            .lines()
            .find_map(|line| line.strip_prefix(port)?.strip_prefix(" sent ")?.parse::<u64>().ok());
        // Three times a share of a quarter of the longest, at least.
        assert!(bytes.is_some_and(|bytes| bytes > 700_000), "{port}: {bytes:?} in {said}");
    }
}

/// Figures for verbs are written, and predictions follow them from then on.
#[test]
fn links_by_verbs_are_measured_and_their_figures_used() {
    let Some(ndvm) = ndvm("links_by_verbs_are_measured_and_their_figures_used") else { return };
    let (bench_again, file) = (env!("CARGO_BIN_EXE_nd-bench"), "/run/costs.toml");
    let call = "allreduce -b 8 -e 8 -n 1 -w 1 --transport verbs --explain";
    let arguments = format!(
        "{call} --calibrate {file} && export MASTER_PORT=29501 && {bench_again} {call} && export MASTER_PORT=29502 && \
         if [ $RANK = 0 ]; then cat {file}; export ND_CALIBRATION={file}; fi && {bench_again} {call}"
    );
    let (said, ended_well) = bench(&ndvm, &["--mem", "1500"], "", &arguments);
    assert!(ended_well, "{said}");
    assert!(said.contains("#   verbs between hosts"), "{said}");
    let written: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("[0] ")).collect();
    let link = ["transport = \"verbs\"", "between = \"hosts\""];
    assert!(written.windows(2).any(|lines| lines == link), "{said}");
    let predicted: Vec<_> = said.lines().filter(|line| line.contains("candidates at 8 B: ")).collect();
    let [measured, typical, read] = predicted[..] else { panic!("not three predictions: {said}") };
    assert!(measured == read && measured != typical, "{predicted:#?}");
}

#[test]
fn a_host_that_dies_is_named() {
    let Some(ndvm) = ndvm("a_host_that_dies_is_named") else { return };
    let dies = "[ $RANK = 0 ] || (sleep 4; echo b > /proc/sysrq-trigger) &";
    let options = ["--may-die", "1"];
    let arguments = "allreduce -b 64K -e 64K -n 100000 --transport verbs";
    let (said, ended_well) = bench(&ndvm, &options, dies, arguments);
    assert!(!ended_well, "{said}");
    let error = said.lines().find(|line| line.starts_with("[0]") && line.contains("error:"));
    let error = error.unwrap_or_else(|| panic!("no error: {said}"));
    assert!(error.contains("rank 1"), "{error}");
}

#[test]
fn a_closed_way_is_told_and_tcp_is_used() {
    let Some(ndvm) = ndvm("a_closed_way_is_told_and_tcp_is_used") else { return };
    // Longer packets are lost on the way, as where a switch takes none of that size. TCP sends shorter ones.
    let close = "tc qdisc add dev nic0 root tbf rate 1gbit burst 900 latency 50ms && \
                 ip route change 10.77.0.0/24 dev nic0 src $NDVM_ADDR advmss 500 || exit 9;";
    let (said, ended_well) = bench(&ndvm, &[], close, "allreduce -b 8 -e 8 -n 2 -w 1");
    assert!(ended_well, "{said}");
    let warnings =
        said.lines().filter(|line| line.contains("TCP is used with rank") && line.contains("WARN")).count();
    assert_eq!(warnings, 2, "one of each rank: {said}");
    assert!(said.contains("4791"), "{said}");
    assert_eq!(rows(&said).len(), 1, "{said}");
    let (said, ended_well) = bench(&ndvm, &[], close, "allreduce -b 8 -e 8 -n 2 -w 1 --transport verbs");
    assert!(!ended_well && said.contains("ND_TRANSPORT=verbs") && said.contains("4791"), "{said}");
    // Figures are those of the way that bytes really went.
    let measured = "allreduce -b 8 -e 8 -n 1 -w 1 --calibrate /run/costs.toml";
    let (said, ended_well) = bench(&ndvm, &["--mem", "1500"], close, measured);
    assert!(ended_well, "{said}");
    assert!(said.contains("#   tcp between hosts") && !said.contains("verbs between hosts"), "{said}");
}

#[test]
fn a_port_that_is_down_is_named() {
    let Some(ndvm) = ndvm("a_port_that_is_down_is_named") else { return };
    let bench = env!("CARGO_BIN_EXE_nd-bench");
    let script = format!(
        "ip link set nic1 down; export ND_RECORDER_DIR=none; ND_IB_HCA=rxe1 {bench} allreduce -b 8 -e 8 --ranks 2 --transport verbs"
    );
    let out = run(&ndvm, &["--nics", "2"], &["sh", "-c", &script]);
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(!out.status.success() && said.contains("rxe1:1 down"), "{said}");
}

/// What a job would find out of this host's devices is known beforehand.
#[test]
fn paths_tell_why_verbs_would_not_be_used() {
    let Some(ndvm) = ndvm("paths_tell_why_verbs_would_not_be_used") else { return };
    let paths = concat!(env!("CARGO_BIN_EXE_nd-topo"), " paths --ranks");
    let library = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
    let script = format!(
        "{paths}; mv /dev/infiniband/uverbs0 /run/; {paths}; mv /run/uverbs0 /dev/infiniband/; \
         mount --bind /dev/null {library}; {paths}; umount {library}; ip link set nic0 down; {paths}"
    );
    let said = |options: &[&str], script: &str| {
        let out = run(&ndvm, options, &["sh", "-c", script]);
        assert!(out.status.success(), "{out:?}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let text = said(&[], &script);
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with("NUMA0 ")).collect();
    let [well, absent, bare, down] = rows[..] else { panic!("not four answers: {text}") };
    assert!(well.contains(" verbs "), "{well}");
    for (row, words) in [
        (absent, ["rxe0:1 cannot be used: libibverbs does not find it", "modprobe ib_uverbs"]),
        (bare, ["libibverbs.so.1 cannot be opened", "install rdma-core's libibverbs"]),
        (down, ["no usable RDMA port", "rxe0:1 down (Disabled)"]),
    ] {
        assert!(row.contains(" tcp ") && words.iter().all(|word| row.contains(word)), "{row}");
    }
    let scarce = said(&["--memlock", "64"], paths);
    for word in [" tcp ", "1024 KiB of locked memory", "the limit is 64 KiB", "ulimit -l unlimited"] {
        assert!(scarce.contains(word), "{word}: {scarce}");
    }
}
