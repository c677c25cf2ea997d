//! `nd-topo` as a user meets it: exit codes, what goes to standard output and what to standard error.
#![allow(clippy::unwrap_used)]

mod topo;

use std::process::{Command, Output};

use topo::{bad, good, nd_topo};

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

/// The kernel counts the memory of all nodes in MemTotal.
#[test]
fn nodes_have_the_memory_of_this_machine() {
    let json: serde_json::Value = serde_json::from_str(&good(&["show", "--json"])).unwrap();
    let numas = json["system"]["numas"].as_array().unwrap();
    let nodes: Vec<u64> = numas.iter().filter_map(|n| n["memory"].as_u64()).collect();
    if nodes.len() < numas.len() || cfg!(not(target_os = "linux")) {
        eprintln!("skipped: this machine does not say how much memory each NUMA node has");
        return;
    }
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:")).unwrap();
    let total: u64 = total.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024;
    assert_eq!(nodes.iter().sum::<u64>(), total, "{nodes:?}");
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
    assert_eq!(text.lines().count(), 3, "{text}");
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
    for command in ["show", "paths", "search", "place", "export", "diagnose"] {
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
fn the_matrix_says_how_many_links() {
    for (machine, cell) in
        [("dgx-h100", "NV18"), ("dgx-a100", "NV12"), ("dgx-2", "NV6"), ("dgx-1", "NV2"), ("mi300x", "XGMI1")]
    {
        let text = good(&["show", "--from", machine]);
        let row = text.lines().find(|l| l.starts_with("GPU0 ") && l.contains(" X ")).unwrap();
        assert!(row.split_whitespace().any(|w| w == cell), "{machine}: {row}");
        let json: serde_json::Value =
            serde_json::from_str(&good(&["show", "--from", machine, "--json"])).unwrap();
        let paths = json["paths"].as_array().unwrap();
        let path = |to: &str| paths.iter().find(|p| p["from"] == "GPU0" && p["to"] == to).unwrap();
        assert_eq!(path("GPU3")["class"], "NVL");
        assert_eq!(
            path("GPU3")["links"].as_u64().unwrap().to_string(),
            cell.trim_start_matches(char::is_alphabetic)
        );
    }
    let legend = good(&["show", "--from", "dgx-a100"]);
    assert!(legend.contains("NV# so many NVLinks · ") && !legend.contains("XGMI"), "{legend}");
}

#[test]
fn two_devices_of_one_name_can_both_be_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.xml");
    let nic = "<nic><net name=\"eth0\" dev=\"0\" speed=\"10000\"/></nic>";
    let gpu = |bus: &str, dev: u32| {
        format!(
            "<pci busid=\"{bus}\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"16\">\
             <gpu dev=\"{dev}\" sm=\"80\" rank=\"{dev}\"/></pci>"
        )
    };
    let cpu = |id: u32| {
        let gpu = gpu(&format!("0000:0{}:00.0", id + 1), id);
        format!("<cpu numaid=\"{id}\" arch=\"arm64\">{gpu}{nic}</cpu>")
    };
    std::fs::write(&path, format!("<system version=\"1\">{}{}</system>", cpu(0), cpu(1))).unwrap();
    let from = path.to_str().unwrap();
    let e = bad(&["paths", "--from", from, "GPU0", "eth0"]);
    assert!(e.contains("`eth0` may be any of eth0@NUMA0, eth0@NUMA1; name one of them"), "{e}");
    assert!(good(&["paths", "--from", from, "GPU0", "eth0@NUMA0"]).contains("(PHB"));
    assert!(good(&["paths", "--from", from, "GPU0", "eth0@NUMA1"]).contains("(SYS"));
    assert!(good(&["paths", "--from", from, "0000:01:00.0", "0000:02:00.0"]).contains("GPU0 reaches GPU1"));
}

#[test]
fn guesses_are_called_guesses() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("smi.txt");
    std::fs::write(
        &path,
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-19\t0\nGPU1\tSYS\t X \t20-39\t1\n",
    )
    .unwrap();
    let text = good(&["show", "--from", path.to_str().unwrap()]);
    assert!(text.contains("which is NCCL's guess for a processor that is not known"), "{text}");
    assert!(good(&["show", "--from", "dgx-1"]).contains("by NCCL's table for this processor"));
}

#[test]
fn errors_name_the_file_and_the_entry() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let links = file(
        "links.toml",
        "[[link]]\nfrom='GPU0'\nto='NVSW'\nus=1.0\n[[link]]\nfrom='GPU0'\nto='NVSW'\ngbps=1e300\n",
    );
    let e = bad(&["show", "--from", "dgx-h100", "--measured", &links]);
    assert!(e.contains("links.toml") && e.contains("[[link]] number 2 (GPU0 – NVSW): gbps is 1e300"), "{e}");
    let links = file("none.toml", "[[link]]\nfrom='GPU0'\nto='GPU99'\nus=1.0\n");
    let e = bad(&["show", "--from", "dgx-h100", "--measured", &links]);
    assert!(e.contains("none.toml: measured link GPU0 – GPU99: no device called `GPU99`"), "{e}");
    file("bad.json", "[]");
    let cluster =
        file("c.toml", "[[hosts]]\nmachine='dgx-1'\nname='a'\n[[hosts]]\nfile='bad.json'\nname='b'\n");
    let e = bad(&["place", "--cluster", &cluster, "--mesh", "tp=8"]);
    assert!(
        e.contains("c.toml: [[hosts]] number 2 (`b`): ")
            && e.contains("bad.json: this looks like a JSON list"),
        "{e}"
    );
    let e = bad(&["show", "--from", &cluster]);
    assert!(e.contains("c.toml: this looks like a cluster in TOML"), "{e}");
    let machine = file("m.toml", &good(&["machines", "dgx-1"]));
    let e = bad(&["place", "--cluster", &machine, "--mesh", "tp=8"]);
    assert!(e.contains("m.toml: this looks like one machine in TOML"), "{e}");
    let json = good(&["show", "--from", "dgx-1", "--json"]);
    let fast = file("fast.json", &json.replacen("\"speed_mbps\": 100000.0", "\"speed_mbps\": 1e23", 1));
    let e = bad(&["show", "--from", &fast]);
    assert!(e.contains("fast.json: port mlx5_0 has a speed of 1e23 Mb/s; it is at most"), "{e}");
}

#[test]
fn what_cannot_be_honoured_is_refused() {
    let out = nd_topo(&["search", "--from", "dgx-1", "--json", "--format", "nccl-xml"]);
    assert!(!out.status.success());
    assert!(String::from_utf8_lossy(&out.stderr).contains("--format"), "{out:?}");
    let e = bad(&["env", "secert"]);
    assert!(
        e.contains("no setting has `secert`") && e.contains("near it are") && e.contains("SECRET"),
        "{e}"
    );
    assert!(bad(&["env", "qqqqqq"]).contains("lists them all"));
}

#[test]
fn placing_says_how_the_order_compares() {
    let text = good(&["place", "--from", "dgx-h100", "--mesh", "tp=8"]);
    assert!(text.contains("orders looked at cost about the same"), "{text}");
    assert!(!text.contains("1.0 times"), "{text}");
}

#[test]
fn links_between_chips_have_their_own_names() {
    assert!(good(&["show", "--from", "mi300x"]).contains("xGMI GB/s: GPU"));
    let text = good(&["show", "--from", "gb200-nvl72"]);
    assert!(text.contains("NVLink GB/s: NVSW") && text.contains("C2C GB/s: NUMA0 225"), "{text}");
}

#[test]
fn a_collective_is_simulated_by_every_algorithm() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let line = ["simulate", "allreduce", "--size", "64M", "--cluster", "dgx-h100", "--hosts", "4"];
    let svg = at("load.svg");
    let text = good(&[&line[..], &["--svg", &svg]].concat());
    for word in ["32 ranks", "algbw", "busiest link", "hierarchical", "ring *", "reproducible"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("node0: "), "{picture}");

    let json: serde_json::Value = serde_json::from_str(&good(&[&line[..], &["--json"]].concat())).unwrap();
    let rows = json["algorithms"].as_array().unwrap();
    let us = |name: &str| rows.iter().find(|r| r["name"] == name).unwrap()["us"].as_f64().unwrap();
    let fastest = us(json["fastest"].as_str().unwrap());
    assert!(rows.iter().all(|r| r["us"].as_f64().unwrap() >= fastest));
    // 64 MiB in a ring of 32, whose narrowest link carries 48 GB/s: 2 · 31/32 · 64 MiB / 48 GB/s, and some latency.
    let wire = 2.0 * 31.0 / 32.0 * (64 << 20) as f64 / 48e3;
    assert!((wire..1.2 * wire).contains(&us("ring")), "{} µs, wire {wire}", us("ring"));
    let ordered = good(&[&line[..], &["--reduction", "reproducible", "--json"]].concat());
    let ordered: serde_json::Value = serde_json::from_str(&ordered).unwrap();
    let chosen = ordered["fastest"].as_str().unwrap().to_owned();
    let row = ordered["algorithms"].as_array().unwrap().iter().find(|r| r["name"] == *chosen).unwrap();
    assert_eq!(row["reproducible"], true);
}

#[test]
fn clusters_are_simulated_as_their_file_describes_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    let simulate = |oversubscription: &str| -> f64 {
        let text = format!(
            "[[hosts]]\nmachine='dgx-h100'\ncount=4\n[network]\nkind='rails'\nhosts_per_leaf=2\n\
             oversubscription={oversubscription}\n"
        );
        std::fs::write(&path, text).unwrap();
        let json =
            good(&["simulate", "alltoall", "-s", "64M", "--cluster", path.to_str().unwrap(), "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let rows = json["algorithms"].as_array().unwrap();
        rows.iter().find(|r| r["name"] == "direct").unwrap()["us"].as_f64().unwrap()
    };
    assert!(simulate("8.0") > 3.0 * simulate("1.0"));
    let path = path.to_str().unwrap();
    assert!(bad(&["simulate", "allreduce", "--cluster", path, "--hosts", "3"]).contains("--hosts"));
}

#[test]
fn eight_thousand_ranks_fit_into_two_gigabytes() {
    let nd_topo = env!("CARGO_BIN_EXE_nd-topo");
    let line = format!(
        "ulimit -v 2000000 && exec {nd_topo} simulate allreduce --size 1G --cluster dgx-h100 --hosts 1024"
    );
    let out = Command::new("sh").args(["-c", &line]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("8192 ranks on 1024 × NVIDIA DGX H100"), "{text}");
}

#[test]
fn what_cannot_be_simulated_is_said() {
    let simulate = |rest: &[&str]| bad(&[&["simulate"], rest].concat());
    assert!(simulate(&["allreduce", "--cluster", "dgx-h1000"]).contains("dgx-h100"));
    assert!(simulate(&["allreduce", "--cluster", "dgx-h100", "--hosts", "0"]).contains("--hosts 0"));
    assert!(simulate(&["sendrecv", "--cluster", "dgx-h100"]).contains("nd-topo paths"));
    assert!(simulate(&["allgather", "-s", "16", "--cluster", "dgx-h100"]).contains("at least 128 B"));
    assert!(simulate(&["allreduce", "-s", "3", "--cluster", "dgx-h100"]).contains("at least 4 B"));
    let e = simulate(&["broadcast", "--cluster", "dgx-h100", "--algo", "bruck"]);
    assert!(e.contains("bruck") && e.contains("tree"), "{e}");
    let e = simulate(&["allreduce", "--cluster", "dgx-h100", "--hosts", "8", "--limit", "3"]);
    assert!(e.contains("--limit"), "{e}");
    assert!(simulate(&["allreduce", "--cluster", "/dev/null"]).contains("/dev/null"));
}

#[test]
fn paths_say_where_a_speed_comes_from_and_what_the_search_does_instead() {
    let text = good(&["paths", "--from", "dgx-h100", "GPU1", "mlx5_0"]);
    assert!(text.contains("by NVLink to GPU0, which is close to mlx5_0 (PXN)"), "{text}");
    let text = good(&["paths", "--from", "dgx-h100", "GPU0", "mlx5_0"]);
    assert!(!text.contains("PXN") && !text.contains("table"), "{text}");
    let text = good(&["paths", "--from", "dgx-1", "GPU0", "GPU1"]);
    assert!(text.contains("by the table for its generation"), "{text}");
    let usage = good(&["paths", "--help"]);
    assert!(usage.contains("[A] [B]\n"), "{usage}");
    assert!(good(&["paths", "--from", "dgx-1", "GPU0"]).lines().count() > 8);
}

#[test]
fn switches_of_one_chip_are_said_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bcm.xml");
    let port = |bus: &str, dev: u32| {
        format!(
            "<pci busid=\"0000:0{bus}:00.0\" class=\"0x060400\" vendor=\"0x1000\" device=\"0xc030\" \
             subsystem_vendor=\"0x1000\" subsystem_device=\"0x1000\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\
             <pci busid=\"0000:0{}:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\
             <gpu dev=\"{dev}\" sm=\"80\" rank=\"{dev}\"/></pci></pci>",
            bus.parse::<u32>().unwrap() + 1
        )
    };
    let text = format!(
        "<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\"><pci busid=\"0000:01:00.0\" class=\"0x060400\" \
         vendor=\"0x1000\" device=\"0xc030\" subsystem_vendor=\"0x1000\" subsystem_device=\"0x0000\" \
         link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">{}{}</pci></cpu></system>",
        port("2", 0),
        port("4", 1)
    );
    std::fs::write(&path, text).unwrap();
    let from = path.to_str().unwrap();
    let text = good(&["show", "--from", from]);
    assert!(
        text.contains("0000:02:00.0  part of the switch above") && text.contains("2 bridges are one chip"),
        "{text}"
    );
    let e = bad(&["paths", "--from", from, "0000:02:00.0", "GPU1"]);
    assert!(e.contains("0000:02:00.0 is one chip with the switch 0000:01:00.0"), "{e}");
    assert!(!good(&["show", "--from", "dgx-1"]).contains("one chip"));
}

#[test]
fn a_mesh_of_one_rank_and_clusters_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.xml");
    let text = "<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\"><pci busid=\"0000:01:00.0\" class=\"0x030200\" \
                link_speed=\"16 GT/s\" link_width=\"16\"><gpu dev=\"0\" sm=\"80\" rank=\"0\"/></pci></cpu></system>";
    std::fs::write(&path, text).unwrap();
    let text = good(&["place", "--from", path.to_str().unwrap(), "--mesh", "tp=1"]);
    assert!(
        text.starts_with("1 rank on 1 host") && text.contains("one rank") && !text.contains('-'),
        "{text}"
    );
    let text = good(&["place", "--cluster", "dgx-h100", "--mesh", "tp=2,cp=4"]);
    assert!(text.contains("8 ranks on 1 host") && text.contains("(320 exchanges a step)"), "{text}");
    assert!(bad(&["place", "--cluster", "dgx-h1000", "--mesh", "tp=8"]).contains("did you mean dgx-h100?"));
}

#[test]
fn machines_are_listed_as_json() {
    let json: serde_json::Value = serde_json::from_str(&good(&["machines", "--json"])).unwrap();
    let all = json.as_array().unwrap();
    assert!(all.iter().any(|m| m["name"] == "dgx-h100" && m["title"] == "NVIDIA DGX H100"), "{json}");
}

#[test]
fn measured_links_that_a_format_cannot_hold_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("links.toml");
    std::fs::write(&path, "[[link]]\nfrom='GPU0'\nto='NVSW'\ngbps=300.0\n").unwrap();
    let links = path.to_str().unwrap();
    let out = nd_topo(&["export", "--from", "dgx-h100", "--measured", links, "--format", "nccl-xml"]);
    assert!(out.status.success());
    let warning = String::from_utf8(out.stderr).unwrap();
    assert!(warning.contains("no place for measured links; 1 "), "{warning}");
    assert!(good(&["export", "--help"]).contains("[[link]]"));
    std::fs::write(&path, "").unwrap();
    assert!(bad(&["show", "--from", "dgx-h100", "--measured", links]).contains("no measured link"));
}

#[test]
fn all_wrong_variables_are_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nd-topo"));
    let out = command.arg("env").env("ND_REDUCTION", "sideways").env("ND_AUTH", "perhaps").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let (text, e) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(e.contains("ND_REDUCTION") && e.contains("ND_AUTH") && e.contains("2 settings are wrong"), "{e}");
    assert!(text.contains("ND_SECRET") && text.matches("its value is refused").count() == 2, "{text}");
}

#[test]
fn files_that_are_no_text_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes, word) in [
        ("a.png", &b"\x89PNG\r\n\x1a\n"[..], "PNG"),
        ("a.gz", b"\x1f\x8b\x08\x00", "gzip"),
        ("a.out", b"\x7fELF\x02\x01\xff", "ELF"),
        ("a.txt", b"\xff\xfeG\x00P\x00", "UTF-16"),
        ("a.html", b"<html></html>", "HTML"),
        ("empty", b"", "an empty file"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let e = bad(&["show", "--from", path.to_str().unwrap()]);
        assert!(e.contains(word) && e.contains(name), "{e}");
    }
}

#[test]
fn search_says_that_its_phb_takes_in_node() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("smi.txt");
    let matrix = |word: &str| {
        let text =
            format!("GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X {word} 0-19 0\nGPU1 {word} X 0-19 0\n");
        std::fs::write(&path, text).unwrap();
        good(&["search", "--from", path.to_str().unwrap()])
    };
    assert!(matrix("NODE").contains("PHB here takes in NODE"), "{}", matrix("NODE"));
    assert!(!matrix("PHB").contains("takes in"));
}

/// Two GPUs of a virtual machine: links that are none, and no NVLinks.
const GUESSED: &str = "<system version='1'><cpu numaid='0' arch='x86_64'>
<pci busid='0000:01:00.0' class='0x030200' link_speed='2.5 GT/s PCIe' link_width='1'><gpu dev='0' sm='90'/></pci>
<pci busid='0000:02:00.0' class='0x030200' link_speed='2.5 GT/s PCIe' link_width='1'><gpu dev='1' sm='90'/></pci>
</cpu></system>";

fn with_input(args: &[&str], input: &str) -> Output {
    use std::io::Write;
    use std::process::Stdio;
    let mut child = Command::new(env!("CARGO_BIN_EXE_nd-topo"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn what_is_guessed_is_said_where_it_counts() {
    for args in [&["search"][..], &["paths"], &["place", "--mesh", "tp=2"]] {
        let out = with_input(&[args, &["--from", "-"]].concat(), GUESSED);
        let errors = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success(), "{args:?}: {errors}");
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!(lines.len(), 2, "{args:?}: {errors}");
        assert!(lines[0].starts_with("warning: 2 of 2 GPUs and NICs show a PCIe link"), "{errors}");
        assert!(lines[1].ends_with("NVLinks unknown, so PCIe only"), "{errors}");
    }
    // And the link counts as one of unknown speed: PCIe 3.0 x16.
    let out = with_input(&["paths", "--from", "-", "GPU0", "GPU1"], GUESSED);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("at 12.0 GB/s"), "{text}");
}
