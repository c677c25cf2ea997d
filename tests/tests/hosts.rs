//! Hosts made of namespaces are hosts: nothing of one is seen on another, rates and counters are right.

use std::process::Command;

use nd_tests::hosts::{Hosts, Network};

fn said(mut command: Command) -> String {
    let out = command.output().expect("it starts");
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).trim().to_string()
}

fn shell(hosts: &Hosts, host: usize, script: &str) -> String {
    let mut command = hosts.command(host, "sh");
    command.args(["-c", script]);
    said(command)
}

#[test]
fn hosts_share_nothing() {
    let Some(hosts) = Hosts::new("hosts_share_nothing", 2) else { return };
    let both = |script: &str| [0, 1].map(|host| shell(&hosts, host, script));
    for namespace in ["net", "uts", "ipc", "mnt"] {
        let [a, b] = both(&format!("readlink /proc/self/ns/{namespace}"));
        assert_ne!(a, b);
    }
    assert_eq!(both("uname -n"), [hosts.name(0), hosts.name(1)]);
    shell(&hosts, 0, "echo mine > /dev/shm/nd-test-file");
    assert_eq!(both("ls /dev/shm"), ["nd-test-file", ""]);
    assert_eq!(both("ls /sys/class/net | grep -c eth"), ["1", "1"]);
    let here = std::env::current_dir().expect("a folder");
    assert_eq!(both("pwd"), [0, 1].map(|_| here.to_string_lossy().into_owned()));
}

#[test]
fn interfaces_are_rails_with_a_rate_and_counters() {
    let network = Network { interfaces: 2, rate: Some(1.0) };
    let Some(hosts) = Hosts::joined("interfaces_are_rails_with_a_rate_and_counters", 2, network) else {
        return;
    };
    let shaped = shell(&hosts, 1, "tc qdisc show dev eth1");
    assert!(
        shaped.contains("tbf") && shaped.contains("rate 1Gbit") && shaped.contains("burst 131"),
        "{shaped}"
    );
    let before = [0, 1].map(|nic| hosts.carried(1, nic).expect("counters"));
    // A datagram to nobody: it crosses the wire all the same.
    let datagram = format!("bash -c 'head -c 1000 /dev/zero > /dev/udp/{}/9'", hosts.v4_on(0, 1));
    shell(&hosts, 1, &datagram);
    let after = [0, 1].map(|nic| hosts.carried(1, nic).expect("counters"));
    assert!(after[1].sent >= before[1].sent + 1000, "{before:?} {after:?}");
    assert!(after[0].sent < before[0].sent + 1000, "{before:?} {after:?}");
}

#[test]
fn dropped_hosts_leave_nothing() {
    let Some(hosts) = Hosts::new("dropped_hosts_leave_nothing", 2) else { return };
    let name = hosts.name(1);
    let (namespace, bridge) =
        (format!("/run/netns/{name}"), format!("/sys/class/net/{}b0", &name[..name.len() - 2]));
    let exist = || [&namespace, &bridge].map(|path| std::path::Path::new(path).exists());
    assert_eq!(exist(), [true, true]);
    drop(hosts);
    assert_eq!(exist(), [false, false]);
}

#[test]
fn what_a_killed_process_left_is_removed() {
    if !Hosts::possible() {
        return nd_tests::skip("what_a_killed_process_left_is_removed", nd_tests::Need::Root);
    }
    let ip = |arguments: &[&str]| Command::new("ip").args(arguments).status().is_ok_and(|s| s.success());
    // Of a process number that no system gives.
    assert!(ip(&["netns", "add", "nfffffb0h1"]) && ip(&["link", "add", "nfffffb0b0", "type", "bridge"]));
    let _hosts = Hosts::open(1, Network::default()).expect("hosts");
    for left in ["/run/netns/nfffffb0h1", "/sys/class/net/nfffffb0b0"] {
        assert!(!std::path::Path::new(left).exists(), "{left}");
    }
}
