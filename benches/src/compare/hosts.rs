//! Hosts that are namespaces of this machine (network, host name, IPC, mounts), joined by a bridge, each with a link of
//! a given rate. Needs root, iproute2 and util-linux.
//!
//! A shell holds a host's namespaces for as long as this process holds the other end of its standard input; the bridge
//! lies in namespaces of its own. So everything is gone with this process, however it ends, and nothing is visible to
//! the rest of the machine.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::error::Error;
use super::settings::INTERFACE;

/// Bytes that a link passes at once before its rate holds: `tc-tbf(8)` wants at least rate / HZ where the kernel's
/// timers are coarse; two 64 KiB segments suit those of today.
const BURST: &str = "128kb";
/// How long a packet may queue before it is dropped.
const QUEUE: &str = "20ms";

/// Some hosts, gone when dropped.
pub struct Hosts {
    hosts: Vec<Holder>,
    /// Where the bridge is. Dropped last.
    switch: Holder,
}

/// A shell in namespaces of its own, which ends when its input does.
struct Holder(Child);

impl Hosts {
    /// `count` hosts, whose links carry `mbit` Mbit/s (1e6) in each direction.
    pub fn new(count: usize, mbit: u32) -> Result<Hosts, Error> {
        let switch = Holder::new("switch")?;
        switch.run(&["ip", "link", "add", "bridge0", "type", "bridge"])?;
        switch.run(&["ip", "link", "set", "bridge0", "up"])?;
        let rate = format!("{mbit}mbit");
        let shape = |holder: &Holder, interface: &str| {
            let shaped = ["root", "tbf", "rate", &rate, "burst", BURST, "latency", QUEUE];
            holder.run(&[&["tc", "qdisc", "add", "dev", interface], &shaped[..]].concat())
        };
        let mut hosts = Vec::new();
        for index in 0..count {
            let host = Holder::new(&name(index))?;
            let (port, pid) = (format!("port{index}"), host.0.id().to_string());
            let veth = ["type", "veth", "peer", "name", INTERFACE, "netns", &pid];
            switch.run(&[&["ip", "link", "add", &port], &veth[..]].concat())?;
            switch.run(&["ip", "link", "set", &port, "master", "bridge0", "up"])?;
            let address = format!("{}/24", address(index));
            host.run(&["ip", "address", "add", &address, "dev", INTERFACE])?;
            host.run(&["ip", "link", "set", INTERFACE, "up"])?;
            shape(&host, INTERFACE)?;
            shape(&switch, &port)?;
            hosts.push(host);
        }
        Ok(Hosts { hosts, switch })
    }

    /// A command that runs `program` on a host.
    pub fn command(&self, host: usize, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(self.hosts[host].enter()).arg(program.as_ref());
        command
    }

    /// The hosts' addresses, with commas.
    pub fn list(&self) -> String {
        (0..self.hosts.len()).map(address).collect::<Vec<_>>().join(",")
    }

    /// Writes a stand-in for ssh, which MPI's launchers call with options, an address and a command.
    pub fn shell(&self, folder: &Path) -> Result<PathBuf, Error> {
        let mut script = String::from(
            "#!/bin/sh\nwhile :; do case $1 in -x | -q | -n | -T | -f) shift ;; -*) shift 2 ;; *) break ;; esac; done\n\
             host=$1\nshift\ncase $host in\n",
        );
        for (index, host) in self.hosts.iter().enumerate() {
            let pid = host.0.id();
            script += &format!("{} | {}) pid={pid} ;;\n", address(index), name(index));
        }
        script += "*) echo \"no such host: $host\" >&2; exit 1 ;;\nesac\n\
                   exec nsenter -t \"$pid\" -n -u -i -m -- /bin/sh -c \"$*\"\n";
        let path = folder.join("remote-shell");
        let failed = |source| Error::File { path: path.clone(), source };
        std::fs::write(&path, script).map_err(failed)?;
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, executable).map_err(failed)?;
        Ok(path)
    }

    /// The shells that must not be ended with a peer's processes.
    pub fn holders(&self) -> Vec<u32> {
        self.hosts.iter().chain([&self.switch]).map(|h| h.0.id()).collect()
    }
}

/// IPv4.
pub fn address(host: usize) -> String {
    format!("10.79.0.{}", host + 1)
}

fn name(host: usize) -> String {
    format!("compare{host}")
}

impl Holder {
    fn new(name: &str) -> Result<Holder, Error> {
        // /sys shows the interfaces of the network namespace in which it was mounted.
        const SCRIPT: &str = "hostname \"$0\" && mount -t tmpfs tmpfs /dev/shm && mount -t sysfs sysfs /sys && \
                              ip link set lo up && echo ready && exec cat";
        let started = Command::new("unshare")
            .args([
                "--net",
                "--uts",
                "--ipc",
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                SCRIPT,
                name,
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut holder = Holder(started.map_err(|e| Error::Hosts(format!("unshare: {e}")))?);
        let mut line = String::new();
        if let Some(output) = holder.0.stdout.take() {
            // Ends at the latest with the shell, which either says this or fails.
            let _ = BufReader::new(output).read_line(&mut line);
        }
        if line == "ready\n" {
            return Ok(holder);
        }
        drop(holder.0.stdin.take());
        let mut said = String::new();
        if let Some(mut errors) = holder.0.stderr.take() {
            let _ = errors.read_to_string(&mut said);
        }
        Err(Error::Hosts(said.trim().to_owned()))
    }

    fn enter(&self) -> Vec<String> {
        let pid = self.0.id().to_string();
        ["-t", &pid, "-n", "-u", "-i", "-m", "--"].map(str::to_owned).to_vec()
    }

    fn run(&self, words: &[&str]) -> Result<(), Error> {
        let output = Command::new("nsenter").args(self.enter()).args(words).stdin(Stdio::null()).output();
        let output = output.map_err(|e| Error::Hosts(format!("nsenter: {e}")))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Error::Hosts(format!("{}: {}", words.join(" "), said.trim())))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
