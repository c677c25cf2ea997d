//! `nd-topo` as a user meets it: exit codes, what goes to standard output and what to standard error.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn nd_topo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nd-topo")).args(args).output().unwrap()
}

fn good(args: &[&str]) -> String {
    let out = nd_topo(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The one line that an error is.
fn bad(args: &[&str]) -> String {
    let out = nd_topo(args);
    assert_eq!(out.status.code(), Some(1), "{args:?}");
    assert!(out.stdout.is_empty(), "{args:?} printed {}", String::from_utf8_lossy(&out.stdout));
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(text.starts_with("error: ") && text.trim_end().lines().count() == 1, "{text}");
    text
}

#[test]
fn this_machine_is_shown_with_what_could_not_be_seen() {
    let text = good(&["show"]);
    assert!(text.contains("NUMA0"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&good(&["show", "--json"])).unwrap();
    let numas = json["system"]["numas"].as_array().unwrap();
    assert!(!numas.is_empty());
    for finding in json["system"]["findings"].as_array().unwrap() {
        assert!(text.contains(finding["message"].as_str().unwrap()), "{finding} is not in the table");
    }
}

#[test]
fn sysfs_alone_sees_the_devices_hwloc_sees() {
    let json = |args: &[&str]| -> serde_json::Value { serde_json::from_str(&good(args)).unwrap() };
    let (both, alone) = (json(&["show", "--json"]), json(&["show", "--json", "--without-hwloc"]));
    assert_eq!(both["system"]["devices"], alone["system"]["devices"]);
    assert_eq!(
        both["system"]["numas"].as_array().unwrap().len(),
        alone["system"]["numas"].as_array().unwrap().len()
    );
}

#[test]
fn paths_explain_in_a_sentence() {
    let text = good(&["paths", "--from", "dgx-1", "GPU0", "GPU5"]);
    assert!(text.contains("NVB") && text.contains("GPU0 → GPU1 → GPU5"), "{text}");
    let e = bad(&["paths", "--from", "dgx-1", "GPU0", "GPU99"]);
    assert!(e.contains("GPU99") && e.contains("GPU7"), "{e}");
}

#[test]
fn search_prints_tables_and_ncclxml() {
    let text = good(&["search", "--from", "dgx-h200"]);
    assert!(text.contains("ring        12       30.0            360  NVL"), "{text}");
    let xml = good(&["search", "--from", "dgx-h200", "--format", "nccl-xml"]);
    assert!(xml.starts_with("<graphs version=\"1\">\n  <graph id=\"0\" pattern=\"4\""), "{xml}");
    let text = good(&["search", "--from", "dgx-h100", "--several-hosts"]);
    assert!(text.contains("to NICs together") && text.contains("mlx5_0 → GPU0"), "{text}");
    assert!(bad(&["search", "--from", "cpu-2s"]).contains("no GPU"));
}

#[test]
fn a_cluster_file_places_a_mesh() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let topo = file("h100.xml", &good(&["export", "--from", "dgx-h100", "--format", "nccl-xml"]));
    let cluster = file(
        "c.toml",
        "[[hosts]]\nfile = 'h100.xml'\ncount = 4\n[network]\nkind = 'rails'\nhosts_per_leaf = 2\n",
    );
    let text = good(&["place", "--cluster", &cluster, "--mesh", "tp=8,dp_shard=-1"]);
    assert!(text.contains("NVL, NVLink inside the host") && text.contains("32 ranks on 4 hosts"), "{text}");
    let ranks: serde_json::Value = serde_json::from_str(&good(&[
        "place",
        "--cluster",
        &cluster,
        "--mesh",
        "tp=8,dp_shard=-1",
        "--json",
    ]))
    .unwrap();
    assert_eq!(ranks["ranks"].as_array().unwrap().len(), 32);
    assert!(
        bad(&["place", "--cluster", &cluster, "--mesh", "tp=8,dp_shard=3"])
            .contains("dp_shard=3 × tp=8 = 24")
    );
    let broken = file("b.toml", "[[hosts]]\nmachine = 'dgx-h100'\n[[leaf]]\nhosts = ['node7']\n");
    assert!(bad(&["place", "--cluster", &broken, "--mesh", "tp=8"]).contains("node7"));
    let e = bad(&["place", "--cluster", &topo, "--mesh", "tp=8"]);
    assert!(e.contains("h100.xml") && e.contains("looks like NCCL topology XML"), "{e}");
}

#[test]
fn files_that_are_no_machines_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graph.xml");
    std::fs::write(&path, good(&["search", "--from", "dgx-1", "--format", "nccl-xml"])).unwrap();
    assert!(bad(&["show", "--from", path.to_str().unwrap()]).contains("NCCL graph file"));
    assert!(bad(&["show", "--from", "/no/such/file.xml"]).contains("No such file"));
    assert!(bad(&["show", "--from", folder.path().to_str().unwrap()]).contains("folder"));
    assert!(bad(&["show", "--from", "dgx-99"]).contains("dgx-a100"));
}

#[test]
fn pictures_graphs_and_help() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("m.svg");
    good(&[
        "show",
        "--from",
        "dgx-a100",
        "--svg",
        svg.to_str().unwrap(),
        "--mesh",
        "tp=4,dp_shard=2",
        "--axis",
        "tp",
    ]);
    assert!(std::fs::read_to_string(&svg).unwrap().contains("2 groups of tp=4"));
    assert!(good(&["export", "--from", "dgx-a100", "--format", "dot"]).starts_with("graph topology {"));
    for command in ["show", "paths", "search", "place", "export"] {
        assert!(good(&[command, "--help"]).contains("Examples:"), "{command}");
    }
    assert!(good(&["machines"]).contains("NVIDIA DGX H100"));
    assert!(good(&["machines", "dgx-1"]).contains("[gpu]"));
}

#[test]
fn names_from_files_do_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.json");
    let text = good(&["show", "--from", "dgx-1", "--json"]);
    let evil = text.replace("\"name\": \"mlx5_0\"", "\"name\": \"e\\u001b[31m\\u0007\\nGPU9\"").replacen(
        "\"name\": \"NVIDIA",
        "\"name\": \"\\u009b2J\\u202eNVIDIA",
        1,
    );
    assert!(evil != text);
    std::fs::write(&path, evil).unwrap();
    let from = path.to_str().unwrap();
    for command in [&["show", "--from", from][..], &["paths", "--from", from], &["search", "--from", from]] {
        let out = good(command);
        assert!(!out.contains(|c: char| c.is_control() && c != '\n'), "{command:?}: {out}");
        assert!(!out.lines().any(|l| l.starts_with("GPU9")), "{out}");
    }
    let e = bad(&["paths", "--from", from, "x\u{1b}[2J\ny"]);
    assert!(!e.trim_end().contains(|c: char| c.is_control()) && e.contains("x\\u{1b}[2J\\ny"), "{e}");
    assert!(!good(&["show", "--from", from, "--json"]).contains('\u{9b}'));
}

#[test]
fn links_between_chips_have_their_own_names() {
    assert!(good(&["show", "--from", "mi300x"]).contains("xGMI GB/s: GPU"));
    let text = good(&["show", "--from", "gb200-nvl72"]);
    assert!(text.contains("NVLink GB/s: NVSW") && text.contains("C2C GB/s: NUMA0 225"), "{text}");
}
