//! `nd-topo show --json` in a virtual machine with two NUMA nodes, each with a switch, a NIC and a stand-in for an
//! accelerator: what it sees must be where it is. Needs `ndvm` (../shared/vm, or `ND_VM` names it).
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use nd_tests::{Need, skip};

fn ndvm() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/vm/ndvm");
    let ndvm = std::env::var_os("ND_VM").map_or_else(beside, PathBuf::from);
    let ready = |p: &PathBuf| {
        let check = Command::new(p).arg("check").output();
        check.is_ok_and(|o| o.status.success())
    };
    if !ndvm.is_file() {
        skip("a_machine_with_two_numa_nodes_is_seen_as_it_is", Need::VirtualMachine);
        return None;
    }
    if !ready(&ndvm) {
        eprintln!("`{} check` says something is missing; run its install-deps", ndvm.display());
        skip("a_machine_with_two_numa_nodes_is_seen_as_it_is", Need::VirtualMachine);
        return None;
    }
    Some(ndvm)
}

#[test]
fn a_machine_with_two_numa_nodes_is_seen_as_it_is() {
    let Some(ndvm) = ndvm() else { return };
    let out = Command::new(&ndvm)
        .args(["run", "--numa", "2", "--pcie-topology", "--timeout", "280", "--"])
        .arg(env!("CARGO_BIN_EXE_nd-topo"))
        .args(["show", "--json"])
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{}\n{stdout}\n{stderr}", out.status);
    let start = stdout.find('{').unwrap_or_else(|| panic!("no JSON in {stdout}\n{stderr}"));
    let mut values = serde_json::Deserializer::from_str(&stdout[start..]).into_iter::<serde_json::Value>();
    let seen = values.next().unwrap().unwrap();
    let system = &seen["system"];
    assert_eq!(system["numas"].as_array().unwrap().len(), 2, "{system}");

    let devices = system["devices"].as_array().unwrap();
    let numa_of = |d: &serde_json::Value| {
        let mut parent = d["parent"].clone();
        let mut above = 0;
        while let Some(p) = parent["device"].as_u64() {
            parent = devices[p as usize]["parent"].clone();
            above += 1;
        }
        (parent["numa"].as_u64().unwrap(), above)
    };
    // On each node: a NIC with a port, and a display-class device, both behind root port and switch.
    for node in 0..2 {
        let here = |d: &&serde_json::Value| numa_of(d).0 == node && numa_of(d).1 >= 2;
        let class = |d: &serde_json::Value| d["class"].as_u64().unwrap() >> 16;
        let nics: Vec<_> = devices.iter().filter(here).filter(|d| class(d) == 2).collect();
        let displays = devices.iter().filter(here).filter(|d| class(d) == 3).count();
        assert_eq!((nics.len(), displays), (1, 1), "NUMA node {node}: {system}");
        assert_eq!(nics[0]["nics"][0]["ports"].as_array().unwrap().len(), 1, "{}", nics[0]);
    }
    // Soft-RoCE sits where its interface does.
    let rdma = devices.iter().flat_map(|d| d["nics"].as_array().cloned().unwrap_or_default());
    let ports: Vec<_> = rdma.flat_map(|n| n["ports"].as_array().cloned().unwrap_or_default()).collect();
    assert!(ports.iter().any(|p| p["name"] == "rxe0" && p["companion"] == "nic0"), "{ports:?}");
    let findings = system["findings"].to_string();
    assert!(findings.contains("virtual machine"), "{findings}");
}
