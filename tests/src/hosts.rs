//! Hosts that are namespaces of this machine (network, UTS, IPC and mount), joined by bridges. Needs root, `ip` and
//! `tc` (iproute2), and `unshare` and `nsenter` (util-linux).
//!
//! Each host has its own interfaces, host name, System V memory and `/dev/shm`; processes are numbered as outside.
//! A sleeping process holds a host together. It ends when the process that made the host ends, however that
//! happens, since its standard input does.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

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

/// Some hosts, named `nPIDKhI`; gone when dropped. What a killed process left behind, the next one removes.
#[derive(Debug)]
pub struct Hosts {
    prefix: String,
    network: Network,
    subnet: u8,
    /// The processes that hold the hosts together.
    holders: Vec<Child>,
}

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
        let name = format!("{}p", prefix());
        let made = tool("ip", &["netns", "add", &name]).is_ok();
        let _ = tool("ip", &["netns", "del", &name]);
        let there = |program: &str, arguments: &[&str]| tool(program, arguments).is_ok();
        made && there("tc", &["-V"]) && there("nsenter", &["--version"]) && there("unshare", &["--version"])
    }

    /// `count` hosts with the addresses [`Hosts::v4`] and [`Hosts::v6`].
    pub fn open(count: usize, network: Network) -> io::Result<Hosts> {
        remove_leftovers();
        let subnet = (std::process::id() % 200) as u8;
        let mut hosts = Hosts { prefix: prefix(), network, subnet, holders: Vec::new() };
        for nic in 0..network.interfaces {
            tool("ip", &["link", "add", &hosts.bridge(nic), "type", "bridge"])?;
            tool("ip", &["link", "set", &hosts.bridge(nic), "up"])?;
        }
        for host in 0..count {
            let name = hosts.name(host);
            tool("ip", &["netns", "add", &name])?;
            hosts.holders.push(hold(&name)?);
            tool("ip", &["-n", &name, "link", "set", "lo", "up"])?;
            for nic in 0..network.interfaces {
                hosts.plug(host, nic)?;
            }
        }
        Ok(hosts)
    }

    /// Gives a host its interface `nic`.
    fn plug(&self, host: usize, nic: usize) -> io::Result<()> {
        let (name, eth, outside) =
            (self.name(host), format!("eth{nic}"), format!("{}v{host}e{nic}", self.prefix));
        let veth = ["type", "veth", "peer", "name", &eth, "netns", &name];
        tool("ip", &[&["link", "add", &outside], &veth[..]].concat())?;
        tool("ip", &["link", "set", &outside, "master", &self.bridge(nic), "up"])?;
        let (v4, v6) = (format!("{}/24", self.v4_on(host, nic)), format!("{}/64", self.v6_on(host, nic)));
        tool("ip", &["-n", &name, "addr", "add", &v4, "dev", &eth])?;
        tool("ip", &["-n", &name, "addr", "add", &v6, "dev", &eth, "nodad"])?;
        tool("ip", &["-n", &name, "link", "set", &eth, "up"])?;
        if let Some(gigabits) = self.network.rate {
            let (rate, burst) = (format!("{}bit", (gigabits * 1e9) as u64), burst(gigabits).to_string());
            let bucket = ["root", "tbf", "rate", &rate, "burst", &burst, "latency", "20ms"];
            tool("tc", &[&["qdisc", "add", "dev", &outside], &bucket[..]].concat())?;
            tool("tc", &[&["-n", &name, "qdisc", "add", "dev", &eth], &bucket[..]].concat())?;
        }
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.holders.len()
    }

    /// The IPv4 address of a host's `eth0`.
    pub fn v4(&self, host: usize) -> String {
        self.v4_on(host, 0)
    }

    /// The IPv4 address of one of a host's interfaces.
    pub fn v4_on(&self, host: usize, nic: usize) -> String {
        format!("10.{}.{}.{}", 78 + nic, self.subnet, host + 1)
    }

    /// The IPv6 address of a host's `eth0`.
    pub fn v6(&self, host: usize) -> String {
        self.v6_on(host, 0)
    }

    fn v6_on(&self, host: usize, nic: usize) -> String {
        format!("fd00:{}:{:x}::{}", 78 + nic, self.subnet, host + 1)
    }

    /// Changes a host's interfaces: `ip -n HOST …`. Panics where that fails.
    pub fn ip(&self, host: usize, arguments: &[&str]) {
        let name = self.name(host);
        tool("ip", &[&["-n", &name], arguments].concat()).unwrap_or_else(|e| panic!("{e}"));
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
        let holder = self.holders[host].id().to_string();
        ["nsenter", "--target", &holder, "--net", "--uts", "--ipc", "--mount", "--"].map(String::from).into()
    }

    /// Writes into `folder` a program that stands for `ssh`: it takes the name or the address of a host, and a
    /// command.
    pub fn remote_shell(&self, folder: &Path) -> io::Result<PathBuf> {
        let mut script = "#!/bin/sh\nhost=$1; shift\ncase $host in\n".to_string();
        for host in 0..self.count() {
            let (name, v4, enter) = (self.name(host), self.v4(host), self.enter(host).join(" "));
            script += &format!("{name}|{v4}) exec {enter} \"$@\" ;;\n");
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
    pub fn carried(&self, host: usize, nic: usize) -> io::Result<Carried> {
        let root = format!("/proc/{}/root/sys/class/net/eth{nic}/statistics", self.holders[host].id());
        let read = |name: &str| {
            let text = fs::read_to_string(format!("{root}/{name}"))?;
            text.trim().parse().map_err(|e| io::Error::other(format!("{root}/{name}: {text:?}: {e}")))
        };
        Ok(Carried { sent: read("tx_bytes")?, received: read("rx_bytes")? })
    }

    /// The name of a host, and of its network namespace.
    pub fn name(&self, host: usize) -> String {
        format!("{}h{host}", self.prefix)
    }

    fn bridge(&self, nic: usize) -> String {
        format!("{}b{nic}", self.prefix)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // Deleting a namespace's name does not end it while something still runs there: interfaces go one by one.
        for (host, holder) in self.holders.iter_mut().enumerate() {
            let _ = holder.kill();
            let _ = holder.wait();
            for nic in 0..self.network.interfaces {
                let _ = tool("ip", &["link", "del", &format!("{}v{host}e{nic}", self.prefix)]);
            }
            let _ = tool("ip", &["netns", "del", &format!("{}h{host}", self.prefix)]);
        }
        for nic in 0..self.network.interfaces {
            let _ = tool("ip", &["link", "del", &self.bridge(nic)]);
        }
    }
}

/// What the names of one set of hosts begin with. Names of interfaces have at most 15 characters.
fn prefix() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("n{:x}{:x}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed) % 16)
}

/// Starts the process that holds a host together, in a mount namespace with the host's own `/sys` (which
/// `ip netns exec` makes) and `/dev/shm`. Answers when all is in place.
fn hold(name: &str) -> io::Result<Child> {
    let script =
        "echo \"$0\" > /proc/sys/kernel/hostname && mount -t tmpfs tmpfs /dev/shm && echo ready && exec cat";
    let mut holder = Command::new("ip")
        .args(["netns", "exec", name, "unshare", "--uts", "--ipc", "sh", "-c", script, name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(out) = holder.stdout.as_mut() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.trim() == "ready" {
        return Ok(holder);
    }
    let out = holder.wait_with_output()?;
    Err(io::Error::other(format!("{name}: no namespaces: {}", String::from_utf8_lossy(&out.stderr).trim())))
}

fn tool(program: &str, arguments: &[&str]) -> io::Result<()> {
    let out = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(io::Error::other(format!("{program} {}: {}", arguments.join(" "), said.trim())))
}

/// Removes namespaces and bridges of processes that are gone.
fn remove_leftovers() {
    let gone = |name: &str, end: char| {
        let (digits, rest) = name.strip_prefix('n')?.rsplit_once(end)?;
        let pid = u32::from_str_radix(&digits[..digits.len().checked_sub(1)?], 16).ok()?;
        let numbered = rest.chars().all(|c| c.is_ascii_digit());
        (numbered && !Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    };
    let names = |folder: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    for name in names("/run/netns").iter().filter(|name| gone(name, 'h').is_some()) {
        let _ = tool("ip", &["netns", "del", name]);
    }
    for name in names("/sys/class/net").iter().filter(|name| gone(name, 'b').is_some()) {
        let _ = tool("ip", &["link", "del", name]);
    }
}
