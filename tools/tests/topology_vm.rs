//! `nd-topo show --json` in a virtual machine with two NUMA nodes, each with a switch, a NIC and a stand-in for an
//! accelerator: what it sees must be where it is. And what it says of RDMA devices, beside what rdma-core's own tools say in
//! the same boot. Needs `ndvm` (../shared/vm, or `ND_VM` names it).
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use nd_tests::{Need, skip};

fn ndvm(test: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/vm/ndvm");
    let ndvm = std::env::var_os("ND_VM").map_or_else(beside, PathBuf::from);
    let ready = |p: &PathBuf| {
        let check = Command::new(p).arg("check").output();
        check.is_ok_and(|o| o.status.success())
    };
    if !ndvm.is_file() {
        skip(test, Need::VirtualMachine);
        return None;
    }
    if !ready(&ndvm) {
        eprintln!("`{} check` says something is missing; run its install-deps", ndvm.display());
        skip(test, Need::VirtualMachine);
        return None;
    }
    Some(ndvm)
}

#[test]
fn a_machine_with_two_numa_nodes_is_seen_as_it_is() {
    let Some(ndvm) = ndvm("a_machine_with_two_numa_nodes_is_seen_as_it_is") else { return };
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

/// Each command with a line before it, first with both ports up, then with one that is down.
const SCRIPT: &str = r#"
look() {
    echo "=== $1 ibv_devinfo"; ibv_devinfo -v
    echo "=== $1 rdma"; rdma link
    echo "=== $1 json"; "$ND_TOPO" show --json
    echo "=== $1 show"; "$ND_TOPO" show
    echo "=== $1 paths"; "$ND_TOPO" paths --ranks
}
look up
"$ND_TOPO" show --json > /tmp/up.json
ip link set nic0 down
i=0
while rdma link | grep -q 'rxe0/1 state ACTIVE' && [ $i -lt 50 ]; do sleep 0.1; i=$((i + 1)); done
look down
echo "=== down wishes"
"$ND_TOPO" paths --ranks --hca =rxe0
"$ND_TOPO" paths --ranks --hca rxe7 2>&1 || true
"$ND_TOPO" paths --ranks --hca rxe1 --gid-index 4096 2>&1 || true
"$ND_TOPO" paths --hca =rxe0 --to /tmp/up.json
echo "=== end"
"#;

/// The part of the output behind `=== name`.
fn part<'o>(out: &'o str, name: &str) -> &'o str {
    let start = out.find(&format!("=== {name}\n")).unwrap_or_else(|| panic!("no {name} in {out}"));
    let rest = &out[start..];
    let body = &rest[rest.find('\n').unwrap() + 1..];
    body.find("\n=== ").map_or(body, |end| &body[..=end])
}

/// An address of a port: index, address, kind.
type Address = (u64, Ipv6Addr, String);

/// What `ibv_devinfo -v` says of a device with one port: keys with their first word, and the addresses.
fn ibv_devinfo(out: &str, device: &str) -> (BTreeMap<String, String>, Vec<Address>) {
    let mut mine = false;
    let (mut keys, mut gids) = (BTreeMap::new(), Vec::new());
    for line in out.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("hca_id:") {
            mine = name.trim() == device;
        }
        let Some((key, value)) = line.split_once(":\t").filter(|_| mine) else { continue };
        let value = value.trim();
        if let Some(index) = key.strip_prefix("GID[").and_then(|k| k.strip_suffix(']')) {
            let (address, kind) = value.split_once(", ").unwrap();
            gids.push((index.trim().parse().unwrap(), address.parse().unwrap(), kind.to_owned()));
        } else {
            keys.insert(key.to_owned(), value.split_whitespace().next().unwrap_or_default().to_owned());
        }
    }
    (keys, gids)
}

/// One device as `nd-topo show --json` has it, held against both tools.
fn compare(out: &str, when: &str, device: &str, active: bool) {
    let json: serde_json::Value = serde_json::from_str(part(out, &format!("{when} json"))).unwrap();
    let system = &json["system"];
    let rdma = system["rdma"].as_array().unwrap();
    let mine = rdma.iter().find(|d| d["name"] == device).unwrap_or_else(|| panic!("no {device}: {rdma:?}"));
    let port = &mine["ports"][0];
    let (keys, gids) = ibv_devinfo(part(out, &format!("{when} ibv_devinfo")), device);
    let guid = |key: &str| u64::from_str_radix(&keys[key].replace(':', ""), 16).unwrap();
    assert_eq!(mine["node_guid"].as_u64(), Some(guid("node_guid")), "{mine}");
    assert_eq!(mine["system_guid"].as_u64(), Some(guid("sys_image_guid")), "{mine}");
    assert_eq!(port["number"].to_string(), keys["port"], "{port}");
    let state = if active { ("PORT_ACTIVE", "active") } else { ("PORT_DOWN", "down") };
    assert_eq!((keys["state"].as_str(), port["state"].as_str()), (state.0, Some(state.1)), "{port}");
    let physical = port["link_state"].as_str().unwrap().to_lowercase();
    assert_eq!(physical, keys["phys_state"].to_lowercase().replace('_', ""), "{port}");
    assert_eq!((keys["link_layer"].as_str(), port["link_layer"].as_str()), ("Ethernet", Some("ethernet")));
    assert_eq!((keys["port_lid"].as_str(), port.get("lid")), ("0", None));
    assert_eq!(port["gid_count"].to_string(), keys["gid_tbl_len"], "{port}");
    let rate: f64 = keys["active_speed"].parse().unwrap();
    assert_eq!(keys["active_width"], "1X");
    assert_eq!(port["rate_mbps"].as_f64(), Some(rate * 1000.0), "{port}");
    let seen: Vec<Address> = port["gids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| {
            assert_eq!(g["netdev"], port["netdev"], "{port}");
            let kind = if g["framing"] == "roce_v2" { "RoCE v2" } else { "IB/RoCE v1" };
            (g["index"].as_u64().unwrap(), g["address"].as_str().unwrap().parse().unwrap(), kind.to_owned())
        })
        .collect();
    assert_eq!(seen, gids, "{port}");
    assert!(gids.iter().any(|(_, a, _)| a.to_ipv4_mapped().is_some()), "{gids:?}");

    // `link rxe0/1 state ACTIVE physical_state LINK_UP netdev nic0`
    let links = part(out, &format!("{when} rdma"));
    let link = links.lines().find(|l| l.starts_with(&format!("link {device}/1 "))).unwrap();
    let words: Vec<&str> = link.split_whitespace().collect();
    let after = |key: &str| words[words.iter().position(|w| *w == key).unwrap() + 1];
    assert_eq!(after("state").to_lowercase(), state.1, "{link}");
    assert_eq!(port["netdev"].as_str(), Some(after("netdev")), "{link}");

    // In the table for people: the same state, MTU and interface, and the place of the NIC that it sits on.
    let table = part(out, &format!("{when} show"));
    let table = &table[table.find("\nRDMA devices\n").unwrap()..];
    let row: Vec<&str> =
        table.lines().find(|l| l.starts_with(&format!("{device} "))).unwrap().split_whitespace().collect();
    let nic = &system["devices"][mine["device"].as_u64().unwrap() as usize];
    for cell in [state.1, "RoCE", &keys["active_mtu"], after("netdev"), nic["bus"].as_str().unwrap()] {
        assert!(row.contains(&cell), "no {cell} in {row:?}");
    }
    assert_eq!(nic["class"].as_u64().unwrap() >> 16, 2, "{nic}");
    let numa = mine["numa"].as_i64().unwrap();
    assert_eq!(device.ends_with('1'), numa == 1, "{mine}");
    assert!(row.contains(&format!("NUMA{numa},").as_str()), "{row:?}");
}

#[test]
fn rdma_devices_are_shown_as_rdma_core_shows_them() {
    let Some(ndvm) = ndvm("rdma_devices_are_shown_as_rdma_core_shows_them") else { return };
    let out = Command::new(&ndvm)
        .args(["run", "--numa", "2", "--pcie-topology", "--mtu", "4500", "--timeout", "280", "--"])
        .args(["env", concat!("ND_TOPO=", env!("CARGO_BIN_EXE_nd-topo")), "sh", "-c", SCRIPT])
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && stdout.contains("=== end"), "{}\n{stdout}\n{stderr}", out.status);
    // The console's line ends.
    let out = stdout.replace('\r', "");
    for (when, rxe0) in [("up", true), ("down", false)] {
        compare(&out, when, "rxe0", rxe0);
        compare(&out, when, "rxe1", true);
    }

    // Both up: each node has its own port. One down: all use the other.
    let rails = |text: &str, numa: &str| {
        let row = text.lines().find(|l| l.starts_with(numa)).unwrap_or_else(|| panic!("no {numa}: {text}"));
        row.split_whitespace().skip(2).take(4).collect::<Vec<_>>().join(" ")
    };
    let up = part(&out, "up paths");
    assert_eq!(rails(up, "NUMA0 "), "verbs rxe0:1 – rxe0:1", "{up}");
    assert_eq!(rails(up, "NUMA1 "), "verbs rxe1:1 – rxe1:1", "{up}");
    assert!(up.contains("RoCE v2, IPv4, GID 1 – 1") && up.contains("MTU 4096"), "{up}");
    let down = part(&out, "down paths");
    assert_eq!(rails(down, "NUMA0 "), "verbs rxe1:1 – rxe1:1", "{down}");
    assert!(down.contains("Not used on nd0: rxe0:1 down (Disabled)"), "{down}");
    let wishes = part(&out, "down wishes");
    assert!(wishes.contains("tcp  nd0 has no usable RDMA port: rxe0:1 down (Disabled)"), "{wishes}");
    assert!(wishes.contains("ND_IB_HCA `rxe7` matches no RDMA port; there are: rxe0:1, rxe1:1"), "{wishes}");
    assert!(wishes.contains("ND_IB_GID_INDEX=4096 is out of range: the table ends at index"), "{wishes}");
    assert!(wishes.contains("1 = ::ffff:10.77.1.1 (RoCE v2, IPv4, nic1)"), "{wishes}");
}
