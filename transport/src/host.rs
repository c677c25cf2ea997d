//! Which host a rank is on: what shares memory, not what shares a name.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// The identity of a host: the kernel's boot, and the network, IPC and process-id namespaces. Containers that share
/// none of these are different hosts, although the kernel is the same.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostId(String);

impl HostId {
    /// This process's host; `given` (`ND_HOSTID`) overrides it.
    pub fn here(given: Option<&str>) -> HostId {
        if let Some(given) = given {
            return HostId(format!("given:{given}"));
        }
        HostId(format!("{}/ipc:{}/pid:{}", HostId::network().0, namespace("ipc"), namespace("pid")))
    }

    /// This process's network namespace: what shares a loopback interface.
    pub fn network() -> HostId {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| host_name());
        HostId(format!("{}/net:{}", boot.trim(), namespace("net")))
    }

    /// Whether two network namespaces are of one running kernel, whose cores all their processes share.
    pub fn same_kernel(&self, other: &HostId) -> bool {
        let boot = |id: &HostId| id.0.split("/net:").next().map(str::to_owned);
        boot(self) == boot(other)
    }
}

fn namespace(name: &str) -> u64 {
    fs::metadata(format!("/proc/self/ns/{name}")).map(|m| m.ino()).unwrap_or_default()
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Bytes of the last cache before memory, as the first core has it; 32 MiB where the kernel does not say.
pub fn last_cache() -> u64 {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").into_iter().flatten().flatten();
    let size = |cache: fs::DirEntry| {
        let text = fs::read_to_string(cache.path().join("size")).ok()?;
        Some(text.trim().strip_suffix('K')?.parse::<u64>().ok()? << 10)
    };
    caches.filter_map(size).max().unwrap_or(32 << 20)
}

/// The host's name, for messages.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// When a process started, in clock ticks since boot; none when it is gone (or a zombie).
pub(crate) fn process_start(pid: u32) -> Option<u64> {
    process_stat(pid).filter(|(state, _)| !matches!(state, 'Z' | 'X')).map(|(_, start)| start)
}

/// Whether somebody has stopped a process (SIGSTOP, Ctrl-Z, a debugger).
pub fn process_is_stopped(pid: u32) -> bool {
    process_stat(pid).is_some_and(|(state, _)| matches!(state, 'T' | 't'))
}

/// A process's state, as a letter, and when it started.
fn process_stat(pid: u32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the command in parentheses and may hold anything; the third is the state.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_of_one_boot_share_their_cores() {
        let id = |text: &str| HostId(text.into());
        assert!(HostId::network().same_kernel(&HostId::network()));
        assert!(id("a/net:1").same_kernel(&id("a/net:2")) && !id("a/net:1").same_kernel(&id("b/net:1")));
    }
}
