//! Hosts that are namespaces of this machine (network, UTS, IPC and mount), joined by bridges. Needs root, `ip` and
//! `tc` (iproute2), and `unshare` and `nsenter` (util-linux).
//!
//! Each host has its own interfaces, host name, System V memory and `/dev/shm`; processes are numbered as outside.
//! The bridges lie in namespaces of their own, and no namespace has a name: the rest of the machine sees none of this.
//! A sleeping process holds each host together. It ends when the process that made the host ends, however that
//! happens, since its standard input does; with the last process inside, all of the host is gone.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::{Need, skip};

/// How hosts are joined.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// Interfaces of each host: `eth0`, `eth1`, …, each on a bridge of its own, as rails are.
    pub interfaces: usize,
    /// Gbit/s (1e9) of each interface in each direction; none: as fast as the machine copies.
    ///
    /// Kept by a token bucket at both ends of each interface, which counts whole Ethernet frames without preamble
    /// and checksum: 1514 bytes for 1448 of a TCP stream. After a pause the first [`burst`] bytes go faster.
    pub rate: Option<f64>,
}

impl Default for Network {
    fn default() -> Network {
        Network { interfaces: 1, rate: None }
    }
}

/// Bytes that pass a token bucket at once after a pause: what the link carries in about a millisecond, since the
/// kernel's timers are not exact, and 2 MiB at most.
pub fn burst(gigabits: f64) -> u64 {
    ((gigabits * f64::from(128 << 10)) as u64).clamp(16 << 10, 2 << 20)
}

/// What an interface has carried since it was made: bytes of Ethernet frames, where the kernel counts the headers of
/// a run of frames that it passes on as one only once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carried {
    /// Bytes that the host sent.
    pub sent: u64,
    /// Bytes that it received.
    pub received: u64,
}

/// Some hosts, named `host0`, `host1`, …; gone when dropped.
#[derive(Debug)]
pub struct Hosts {
    hosts: Vec<Holder>,
    /// Where the bridges are. Dropped last.
    switch: Holder,
}

/// A process in namespaces of its own, which ends when its input does.
#[derive(Debug)]
struct Holder(Child);

impl Hosts {
    /// `count` hosts with one interface each; none, with a line that says so, where that is not possible.
    pub fn new(test: &str, count: usize) -> Option<Hosts> {
        Hosts::joined(test, count, Network::default())
    }

    /// The same, over this network.
    pub fn joined(test: &str, count: usize, network: Network) -> Option<Hosts> {
        if !Hosts::possible() {
            skip(test, Need::Root);
            return None;
        }
        Some(Hosts::open(count, network).unwrap_or_else(|e| panic!("{test}: {e}")))
    }

    /// Whether this process may make hosts.
    pub fn possible() -> bool {
        let there = |program: &str, argument: &str| tool(Command::new(program).arg(argument)).is_ok();
        there("ip", "-V")
            && there("tc", "-V")
            && there("nsenter", "--version")
            && Holder::new("probe").is_ok()
    }

    /// `count` hosts with the addresses [`Hosts::v4`] and [`Hosts::v6`].
    ///
    /// # Errors
    /// With the command that failed, and what it said.
    pub fn open(count: usize, network: Network) -> io::Result<Hosts> {
        let switch = Holder::new("switch")?;
        for nic in 0..network.interfaces {
            switch.run("ip", &["link", "add", &bridge(nic), "type", "bridge"])?;
            switch.run("ip", &["link", "set", &bridge(nic), "up"])?;
        }
        let mut hosts = Hosts { hosts: Vec::new(), switch };
        for host in 0..count {
            hosts.hosts.push(Holder::new(&hosts.name(host))?);
            for nic in 0..network.interfaces {
                hosts.plug(host, nic, network.rate)?;
            }
        }
        Ok(hosts)
    }

    /// Gives a host its interface `nic`.
    fn plug(&self, host: usize, nic: usize, rate: Option<f64>) -> io::Result<()> {
        let (inside, switch) = (&self.hosts[host], &self.switch);
        let (eth, port, pid) =
            (format!("eth{nic}"), format!("host{host}eth{nic}"), inside.0.id().to_string());
        let veth = ["type", "veth", "peer", "name", &eth, "netns", &pid];
        switch.run("ip", &[&["link", "add", &port], &veth[..]].concat())?;
        switch.run("ip", &["link", "set", &port, "master", &bridge(nic), "up"])?;
        let (v4, v6) = (format!("{}/24", self.v4_on(host, nic)), format!("{}/64", v6_on(host, nic)));
        inside.run("ip", &["addr", "add", &v4, "dev", &eth])?;
        inside.run("ip", &["addr", "add", &v6, "dev", &eth, "nodad"])?;
        inside.run("ip", &["link", "set", &eth, "up"])?;
        if let Some(gigabits) = rate {
            let (rate, burst) = (format!("{}bit", (gigabits * 1e9) as u64), burst(gigabits).to_string());
            let bucket = ["root", "tbf", "rate", &rate, "burst", &burst, "latency", "20ms"];
            switch.run("tc", &[&["qdisc", "add", "dev", &port], &bucket[..]].concat())?;
            inside.run("tc", &[&["qdisc", "add", "dev", &eth], &bucket[..]].concat())?;
        }
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.hosts.len()
    }

    /// The name of a host, which only [`Hosts::remote_shell`] can find an address for.
    pub fn name(&self, host: usize) -> String {
        format!("host{host}")
    }

    /// The IPv4 address of a host's `eth0`.
    pub fn v4(&self, host: usize) -> String {
        self.v4_on(host, 0)
    }

    /// The IPv4 address of one of a host's interfaces.
    pub fn v4_on(&self, host: usize, nic: usize) -> String {
        format!("10.{}.0.{}", 78 + nic, host + 1)
    }

    /// The IPv6 address of a host's `eth0`.
    pub fn v6(&self, host: usize) -> String {
        v6_on(host, 0)
    }

    /// Changes a host's interfaces: `ip …` inside it. Panics where that fails.
    pub fn ip(&self, host: usize, arguments: &[&str]) {
        self.hosts[host].run("ip", arguments).unwrap_or_else(|e| panic!("{e}"));
    }

    /// From now on a host sends no faster than so many bit/s, and what it cannot send waits in a queue of so many bytes: a slow
    /// link that nobody manages. Panics where that fails.
    pub fn slow_down(&self, host: usize, rate: u64, queue: u64) {
        let (rate, queue) = (format!("{rate}bit"), queue.to_string());
        let bucket = ["root", "tbf", "rate", &rate, "burst", "4000", "limit", &queue];
        let words = [&["qdisc", "replace", "dev", "eth0"], &bucket[..]].concat();
        self.hosts[host].run("tc", &words).unwrap_or_else(|e| panic!("{e}"));
    }

    /// A host can open no connection any more, as behind a firewall that lets only others begin: the first packet of each
    /// is dropped. Panics where that fails.
    pub fn let_nothing_begin(&self, host: usize) {
        let tc = |words: &str| {
            let words: Vec<_> = words.split(' ').collect();
            self.hosts[host].run("tc", &words).unwrap_or_else(|e| panic!("{e}"));
        };
        tc("qdisc replace dev eth0 root handle 1: htb default 1");
        for class in ["1:1", "1:2"] {
            tc(&format!("class add dev eth0 parent 1: classid {class} htb rate 100gbit quantum 60000"));
        }
        tc("qdisc add dev eth0 parent 1:2 handle 2: pfifo limit 0");
        // TCP with SYN and without ACK.
        for (priority, protocol, at) in [(1, "ip", 33), (2, "ipv6", 53)] {
            let tcp = format!("match {} protocol 6 0xff", protocol.replace('v', ""));
            let filter =
                format!("filter add dev eth0 parent 1: prio {priority} protocol {protocol} u32 {tcp}");
            tc(&format!("{filter} match u8 0x02 0x12 at {at} flowid 1:2"));
        }
    }

    /// A command that runs `program` on a host, in this process's folder.
    pub fn command(&self, host: usize, program: impl AsRef<Path>) -> Command {
        let enter = self.enter(host);
        let mut command = Command::new(&enter[0]);
        command.args(&enter[1..]);
        // Entering a mount namespace leads to its root folder.
        command.args(["sh", "-c", "cd \"$0\" && exec \"$@\""]);
        command.arg(std::env::current_dir().unwrap_or_else(|_| "/".into()));
        command.arg(program.as_ref());
        command
    }

    /// The words to put before a command so that it runs on a host, in its root folder.
    pub fn enter(&self, host: usize) -> Vec<String> {
        self.hosts[host].enter()
    }

    /// Writes into `folder` a program that stands for `ssh`: it takes ssh's options, which it ignores, the name or the
    /// address of a host, and a command, which it gives to the host's shell.
    ///
    /// # Errors
    /// The file's.
    pub fn remote_shell(&self, folder: &Path) -> io::Result<PathBuf> {
        // Letters of ssh(1) that take no value; all others do.
        let mut script =
            "#!/bin/sh\nwhile :; do\n  case $1 in\n    -[46AaCfGgKkMNnqsTtVvXxYy]*) shift ;;\n    \
                          -?) shift 2 ;;\n    -*) shift ;;\n    *) break ;;\n  esac\ndone\n\
                          host=$1; shift\ncase $host in\n"
                .to_string();
        for host in 0..self.count() {
            let (name, v4, enter) = (self.name(host), self.v4(host), self.enter(host).join(" "));
            script += &format!("{name}|{v4}) exec {enter} sh -c \"$*\" ;;\n");
        }
        script += "*) echo \"$host: no such host\" >&2; exit 1 ;;\nesac\n";
        let path = folder.join("rsh");
        // Closed before anyone runs it: a program that is open for writing cannot be.
        let mut file = fs::File::create(&path)?;
        file.write_all(script.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    /// What a host's interface has carried so far.
    ///
    /// # Errors
    /// The file's of the kernel's counter.
    pub fn carried(&self, host: usize, nic: usize) -> io::Result<Carried> {
        let root = format!("/proc/{}/root/sys/class/net/eth{nic}/statistics", self.hosts[host].0.id());
        let read = |name: &str| {
            let text = fs::read_to_string(format!("{root}/{name}"))?;
            text.trim().parse().map_err(|e| io::Error::other(format!("{root}/{name}: {text:?}: {e}")))
        };
        Ok(Carried { sent: read("tx_bytes")?, received: read("rx_bytes")? })
    }

    /// The processes that hold the hosts together: whoever ends all children of this process spares these.
    pub fn holders(&self) -> Vec<u32> {
        self.hosts.iter().chain([&self.switch]).map(|holder| holder.0.id()).collect()
    }
}

fn v6_on(host: usize, nic: usize) -> String {
    format!("fd00:{}::{}", 78 + nic, host + 1)
}

fn bridge(nic: usize) -> String {
    format!("bridge{nic}")
}

impl Holder {
    /// Answers when all is in place: `/sys` shows the interfaces of the network namespace it was mounted in.
    fn new(name: &str) -> io::Result<Holder> {
        let script = "echo \"$0\" > /proc/sys/kernel/hostname && mount -t tmpfs tmpfs /dev/shm && \
                      mount -t sysfs sysfs /sys && ip link set lo up && echo ready && exec cat";
        let mut holder = Command::new("unshare")
            .args(["--net", "--uts", "--ipc", "--mount", "--propagation", "private"])
            .args(["sh", "-c", script, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map(Holder)
            .map_err(|e| io::Error::other(format!("unshare: {e}")))?;
        let mut line = String::new();
        if let Some(out) = holder.0.stdout.as_mut() {
            // Ends at the latest with the shell, which either says this or fails.
            BufReader::new(out).read_line(&mut line)?;
        }
        if line.trim() == "ready" {
            return Ok(holder);
        }
        drop(holder.0.stdin.take());
        let mut said = String::new();
        if let Some(mut errors) = holder.0.stderr.take() {
            errors.read_to_string(&mut said)?;
        }
        Err(io::Error::other(format!("{name}: no namespaces: {}", said.trim())))
    }

    fn enter(&self) -> Vec<String> {
        let pid = self.0.id().to_string();
        ["nsenter", "--target", &pid, "--net", "--uts", "--ipc", "--mount", "--"].map(String::from).into()
    }

    fn run(&self, program: &str, arguments: &[&str]) -> io::Result<()> {
        let enter = self.enter();
        let said = tool(Command::new(&enter[0]).args(&enter[1..]).arg(program).args(arguments));
        said.map_err(|e| io::Error::other(format!("{program} {}: {e}", arguments.join(" "))))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tool(command: &mut Command) -> io::Result<()> {
    let out = command.stdin(Stdio::null()).output()?;
    if out.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&out.stderr).trim().to_owned()))
}
