//! What `nd-topo` says of RDMA devices, and of when ranks use verbs, for machines that are described in files.
#![allow(clippy::unwrap_used)]

mod topo;

use std::process::Command;

use topo::{bad, good, nd_topo};

/// A machine with one RDMA port, as `nd-topo show --json` writes it.
fn host_with_rdma(folder: &std::path::Path, name: &str, port: &str) -> String {
    let text = format!(
        r#"{{"format": "nd-topology", "version": 1, "system": {{"name": "{name}", "numas": [{{"id": 0}}],
        "rdma": [{{"name": "mlx5_0", "node_type": "adapter", "firmware": "16.35.2000", "numa": 0, "ports": [{port}]}}]}}}}"#
    );
    let file = folder.join(format!("{name}.json"));
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

const ROCE: &str = r#"{"number": 1, "state": "active", "link_state": "LinkUp", "link_layer": "ethernet",
    "rate_mbps": 100000, "lanes": "4X EDR", "netdev": "eth2", "netdev_mtu": 9000, "gid_count": 255, "gids": [
    {"index": 0, "address": "fe80::1", "framing": "ib_or_roce_v1", "netdev": "eth2"},
    {"index": 3, "address": "::ffff:10.0.0.1", "framing": "roce_v2", "netdev": "eth2"}]}"#;
const INFINIBAND: &str = r#"{"number": 1, "state": "active", "link_layer": "infiniband", "rate_mbps": 200000,
    "lid": 31, "gids": [{"index": 0, "address": "fe80::2", "framing": "ib_or_roce_v1"}]}"#;
const DOWN: &str = r#"{"number": 1, "state": "down", "link_state": "Polling", "link_layer": "infiniband"}"#;

#[test]
fn rdma_devices_are_listed_with_their_ports_and_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let text = good(&["show", "--from", &host_with_rdma(folder.path(), "a", ROCE)]);
    let row = text.lines().find(|l| l.starts_with("mlx5_0 ")).unwrap();
    for cell in ["active", "RoCE", "100 Gb/s (4X EDR)", "4096", "eth2", "NUMA0", "16.35.2000"] {
        assert!(row.contains(cell), "no {cell} in {text}");
    }
    assert!(text.contains("*  mlx5_0:1      3  RoCE v2, IPv4  ::ffff:10.0.0.1  eth2"), "{text}");
    assert!(text.contains("   mlx5_0:1      0  RoCE v1        fe80::1          eth2"), "{text}");
    let text = good(&["show", "--from", &host_with_rdma(folder.path(), "b", INFINIBAND)]);
    assert!(text.contains("InfiniBand, LID 31"), "{text}");
    let text = good(&["show", "--from", &host_with_rdma(folder.path(), "c", DOWN)]);
    assert!(text.contains("down (Polling)"), "{text}");
    // Many addresses are listed on request.
    let gid = |i: u32| format!(r#"{{"index": {i}, "address": "2001:db8::{i}", "framing": "roce_v2"}}"#);
    let gids: Vec<String> = (0..40).map(gid).collect();
    let many = format!(r#"{{"number": 1, "link_layer": "ethernet", "gids": [{}]}}"#, gids.join(", "));
    let many = host_with_rdma(folder.path(), "d", &many);
    let text = good(&["show", "--from", &many]);
    assert!(
        text.contains("40 addresses (GIDs): `nd-topo show --gids`") && !text.contains("2001:db8::39"),
        "{text}"
    );
    assert!(good(&["show", "--gids", "--from", &many]).contains("2001:db8::39"));
}

#[test]
fn paths_between_hosts_say_when_verbs_are_used_and_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let host = |name: &str, port: &str| host_with_rdma(folder.path(), name, port);
    let (a, b, down) = (host("a", ROCE), host("b", INFINIBAND), host("down", DOWN));
    let both = host("both", &format!("{ROCE}, {}", INFINIBAND.replace("\"number\": 1", "\"number\": 2")));
    let said = |from: &str, to: &str| good(&["paths", "--from", from, "--to", to]);
    let text = said(&a, &both);
    let rail = "verbs  mlx5_0:1 – mlx5_0:1 (RoCE v2, IPv4, GID 3 – 3, 100 Gb/s, MTU 4096)";
    assert!(text.contains(rail), "{text}");
    assert!(text.contains("Whether a and both have libibverbs, their files do not say."), "{text}");
    assert!(said(&b, &both).contains("verbs  mlx5_0:1 – mlx5_0:2 (InfiniBand, GID 0 – 0, 200 Gb/s)"));
    // Several ports: one rank uses all of them, unless it is not to.
    let turns = "More ranks of a host divide its ports among them";
    let two = host("two", &format!("{ROCE}, {}", ROCE.replace("\"number\": 1", "\"number\": 2")));
    let several = said(&two, &two);
    assert!(
        several.contains("verbs  2 rails: mlx5_0:1 – mlx5_0:1 (") && several.contains(turns),
        "{several}"
    );
    assert!(several.contains("; mlx5_0:2 – mlx5_0:2 ("), "{several}");
    let one = Command::new(env!("CARGO_BIN_EXE_nd-topo"))
        .args(["paths", "--from", &two, "--to", &two])
        .env("ND_IB_RAILS", "1")
        .output()
        .unwrap();
    let one = String::from_utf8_lossy(&one.stdout);
    assert!(one.contains("verbs  mlx5_0:1 – mlx5_0:1 (") && !one.contains("mlx5_0:2 – mlx5_0:2"), "{one}");
    assert!(!said(&a, &both).contains(turns));
    assert!(said(&a, &b).contains("tcp  a has Ethernet ports, b has InfiniBand ports"));
    assert!(said(&a, &down).contains("tcp  down has no usable RDMA port: mlx5_0:1 down (Polling)"));
    let silent = said(&down, "dgx-1");
    assert!(
        silent.contains("?   the description of NVIDIA DGX-1") && silent.contains("lists no RDMA"),
        "{silent}"
    );
    // A host that was looked at and has none.
    let none = folder.path().join("none.json");
    let finding =
        r#"{"source": "sysfs", "message": "no RDMA device (no InfiniBand, RoCE or EFA driver is loaded)"}"#;
    let text = format!(
        r#"{{"format": "nd-topology", "version": 1, "system": {{"name": "none", "numas": [{{"id": 0}}],
        "findings": [{finding}]}}}}"#
    );
    std::fs::write(&none, text).unwrap();
    let none = said(&a, none.to_str().unwrap());
    assert!(none.contains("tcp  none has no RDMA device"), "{none}");
    // Without another host: one like this, and after the table of devices.
    let alike = good(&["paths", "--from", &a]);
    assert!(
        alike.contains("Ranks of a and ranks of another host like this one") && alike.contains(rail),
        "{alike}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&good(&["paths", "--ranks", "--json", "--from", &a])).unwrap();
    assert_eq!(
        (&json[0]["transport"], &json[0]["rails"][0]["gid_here"]),
        (&"verbs".into(), &3.into()),
        "{json}"
    );

    let tcp = Command::new(env!("CARGO_BIN_EXE_nd-topo"))
        .args(["paths", "--ranks", "--from", &a])
        .env("ND_TRANSPORT", "tcp")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&tcp.stdout).contains("tcp  ND_TRANSPORT=tcp"), "{tcp:?}");

    let e = bad(&["paths", "--from", &a, "--ranks", "--hca", "=mlx5_7"]);
    assert!(e.contains("ND_IB_HCA `=mlx5_7` matches no RDMA port; there are: mlx5_0:1"), "{e}");
    let out = nd_topo(&["paths", "--from", &a, "--ranks", "--hca", "=mlx5_0,mlx5_7"]);
    let warning = "warning: `mlx5_7` in ND_IB_HCA matches no RDMA port of a\n";
    assert!(out.status.success() && String::from_utf8_lossy(&out.stderr) == warning, "{out:?}");
    let e = bad(&["paths", "--from", &a, "--ranks", "--hca", "=^mlx5_7"]);
    assert!(e.contains("mean nothing together"), "{e}");
    let e = bad(&["paths", "--from", &a, "--ranks", "--gid-index", "255"]);
    assert!(
        e.contains("out of range: the table ends at index 254") && e.contains("3 = ::ffff:10.0.0.1"),
        "{e}"
    );
}

#[test]
fn rdma_devices_that_contradict_the_machine_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |rdma: &str| {
        let text = format!(
            r#"{{"format": "nd-topology", "version": 1, "system": {{"numas": [{{"id": 0}}], "rdma": [{rdma}]}}}}"#
        );
        let file = folder.path().join("x.json");
        std::fs::write(&file, text).unwrap();
        bad(&["show", "--from", file.to_str().unwrap()])
    };
    let e = write(r#"{"name": "mlx5_0", "device": 7}"#);
    assert!(e.contains("mlx5_0 sits on device number 7, but there are 0"), "{e}");
    let e = write(r#"{"name": "mlx5_0"}, {"name": "mlx5_0"}"#);
    assert!(e.contains("two RDMA devices are called mlx5_0"), "{e}");
    let e = write(r#"{"name": "mlx5_0", "ports": [{"number": 1, "gids": [{"index": 0, "address": "x"}]}]}"#);
    assert!(e.contains("address"), "{e}");
}
