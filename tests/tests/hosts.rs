//! Hosts made of namespaces are hosts: nothing of one is seen on another, rates and counters are right, and nothing is
//! left of them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
fn the_machine_sees_nothing_of_hosts_and_nothing_is_left_of_them() {
    let test = "the_machine_sees_nothing_of_hosts_and_nothing_is_left_of_them";
    let Some(hosts) = Hosts::new(test, 2) else { return };
    for interface in ["bridge0", "host0eth0"] {
        assert!(!Path::new("/sys/class/net").join(interface).exists(), "{interface}");
    }
    let holders = hosts.holders();
    assert_eq!(holders.len(), 3);
    assert!(holders.iter().all(|pid| exists(*pid)));
    drop(hosts);
    assert!(!holders.iter().any(|pid| exists(*pid)));
}

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_remote_shell_is_called_as_ssh_is() {
    let Some(hosts) = Hosts::new("a_remote_shell_is_called_as_ssh_is", 2) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = hosts.remote_shell(folder.path()).expect("a script");
    let (name, address) = (hosts.name(1), hosts.v4(1));
    for words in
        [&["-x", "-o", "BatchMode=yes", "-p22", &address, "uname", "-n"][..], &[&name, "uname -n; true"]]
    {
        let mut command = Command::new(&path);
        command.args(words);
        assert_eq!(said(command), name);
    }
    let nowhere = Command::new(&path).args(["-T", "nowhere", "true"]).output().expect("it starts");
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("nowhere: no such host"), "{nowhere:?}");
}

#[test]
fn hosts_end_with_the_process_that_made_them_even_if_it_is_killed() {
    let test = "hosts_end_with_the_process_that_made_them_even_if_it_is_killed";
    if !Hosts::possible() {
        return nd_tests::skip(test, nd_tests::Need::Root);
    }
    let mut maker = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "makes_hosts_and_waits", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(maker.stdout.take().expect("its output")).lines();
    let pids = lines.map_while(Result::ok).find_map(|line| Some(line.split_once("holders:")?.1.to_owned()));
    maker.kill().and_then(|()| maker.wait()).expect("it ends");
    let pids: Vec<u32> =
        pids.iter().flat_map(|p| p.split_whitespace()).map(|p| p.parse().expect("a number")).collect();
    assert_eq!(pids.len(), 3);
    let until = Instant::now() + Duration::from_secs(60);
    while pids.iter().any(|pid| exists(*pid)) {
        assert!(Instant::now() < until, "{pids:?} are still there");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[ignore = "started by hosts_end_with_the_process_that_made_them_even_if_it_is_killed"]
fn makes_hosts_and_waits() {
    let hosts = Hosts::open(2, Network::default()).expect("hosts");
    let holders: Vec<_> = hosts.holders().iter().map(u32::to_string).collect();
    println!("holders: {}", holders.join(" "));
    // Until its input ends, were it not killed.
    let _ = std::io::stdin().read_line(&mut String::new());
}
