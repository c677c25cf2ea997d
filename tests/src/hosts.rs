//! Hosts that are network namespaces of this machine, joined by a bridge. Needs root and `ip` (iproute2).

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Need, skip};

/// Some hosts, named `ndtPID-K-I`; gone when dropped. What a killed test left behind, the next one removes.
#[derive(Debug)]
pub struct Hosts {
    prefix: String,
    count: usize,
    subnet: u8,
}

impl Hosts {
    /// `count` hosts with the addresses [`Hosts::v4`] and [`Hosts::v6`] on `eth0`; none, with a line that says so,
    /// where that is not possible.
    pub fn new(test: &str, count: usize) -> Option<Hosts> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        // Interface names have at most 15 characters.
        let hosts = Hosts { prefix: format!("n{pid:x}{number}"), count, subnet: (pid % 200) as u8 };
        if !ip(&["netns", "add", &format!("{}p", hosts.prefix)]) {
            skip(test, Need::Root);
            return None;
        }
        ip(&["netns", "del", &format!("{}p", hosts.prefix)]);
        remove_leftovers();
        let bridge = hosts.bridge();
        must(&["link", "add", &bridge, "type", "bridge"]);
        must(&["link", "set", &bridge, "up"]);
        for i in 0..count {
            let (host, veth) = (hosts.name(i), format!("{}v{i}", hosts.prefix));
            must(&["netns", "add", &host]);
            must(&["link", "add", &veth, "type", "veth", "peer", "name", "eth0", "netns", &host]);
            must(&["link", "set", &veth, "master", &bridge, "up"]);
            let (v4, v6) = (format!("{}/24", hosts.v4(i)), format!("{}/64", hosts.v6(i)));
            hosts.ip(i, &["addr", "add", &v4, "dev", "eth0"]);
            hosts.ip(i, &["addr", "add", &v6, "dev", "eth0", "nodad"]);
            hosts.ip(i, &["link", "set", "lo", "up"]);
            hosts.ip(i, &["link", "set", "eth0", "up"]);
        }
        Some(hosts)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The IPv4 address of a host.
    pub fn v4(&self, host: usize) -> String {
        format!("10.78.{}.{}", self.subnet, host + 1)
    }

    /// The IPv6 address of a host.
    pub fn v6(&self, host: usize) -> String {
        format!("fd00:78:{:x}::{}", self.subnet, host + 1)
    }

    /// Changes a host's interfaces: `ip -n HOST …`.
    pub fn ip(&self, host: usize, arguments: &[&str]) {
        let name = self.name(host);
        must(&[&["-n", &name], arguments].concat());
    }

    /// A command that runs `program` on a host.
    pub fn command(&self, host: usize, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(host)]).arg(program.as_ref());
        command
    }

    /// The name of a host's namespace.
    pub fn name(&self, host: usize) -> String {
        format!("{}h{host}", self.prefix)
    }

    fn bridge(&self) -> String {
        format!("{}b", self.prefix)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for i in 0..self.count {
            ip(&["netns", "del", &self.name(i)]);
            ip(&["link", "del", &format!("{}v{i}", self.prefix)]);
        }
        ip(&["link", "del", &self.bridge()]);
    }
}

fn ip(arguments: &[&str]) -> bool {
    let run = Command::new("ip").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

fn must(arguments: &[&str]) {
    let out = Command::new("ip").args(arguments).output().expect("ip can be started");
    assert!(out.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Removes namespaces and bridges of test processes that are gone.
fn remove_leftovers() {
    let gone = |name: &str, end: char| {
        let (digits, rest) = name.strip_prefix('n')?.split_once(end)?;
        let pid = u32::from_str_radix(&digits[..digits.len().checked_sub(1)?], 16).ok()?;
        (rest.chars().all(|c| c.is_ascii_digit()) && !Path::new(&format!("/proc/{pid}")).exists())
            .then_some(())
    };
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if gone(&name, 'h').is_some() {
            ip(&["netns", "del", &name]);
        }
    }
    for entry in std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if gone(&name, 'b').is_some() {
            ip(&["link", "del", &name]);
        }
    }
}
