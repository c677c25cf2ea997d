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
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| host_name());
        let namespace =
            |name: &str| fs::metadata(format!("/proc/self/ns/{name}")).map(|m| m.ino()).unwrap_or_default();
        HostId(format!(
            "{}/net:{}/ipc:{}/pid:{}",
            boot.trim(),
            namespace("net"),
            namespace("ipc"),
            namespace("pid")
        ))
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The host's name, for messages.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
