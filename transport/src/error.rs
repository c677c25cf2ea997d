//! What can go wrong between two ranks.

use std::io;
use std::time::Duration;

/// The result of a transport operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why bytes did not move. Messages name the thing, the value, the limit and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A peer is gone or cut off.
    #[error("rank {rank} on {host} is lost: {cause}")]
    PeerLost {
        /// Which rank.
        rank: usize,
        /// Its host, as it named itself.
        host: String,
        /// What was seen.
        cause: String,
    },
    /// The program of another rank has aborted the start.
    #[error("{who} aborted the start; start again")]
    Aborted {
        /// Which rank's.
        rank: usize,
        /// The same, with its host and process.
        who: String,
    },
    /// A deadline passed.
    #[error("{what} did not happen within {}", seconds(*.after))]
    Timeout {
        /// What was awaited.
        what: String,
        /// For how long.
        after: Duration,
    },
    /// The operating system refused something.
    #[error("{what}: {source}{}", hint(.source))]
    System {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A limit of this machine or process is too low.
    #[error("{what}: needs {needed}, the limit is {limit}; {remedy}")]
    Limit {
        /// What needs it.
        what: String,
        /// How much.
        needed: String,
        /// What there is.
        limit: String,
        /// What to do.
        remedy: String,
    },
    /// A setting cannot be used.
    #[error("{setting}={value}: {problem}; {remedy}")]
    Config {
        /// Its name.
        setting: &'static str,
        /// Its value.
        value: String,
        /// Why not.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// RDMA devices, ports or addresses that were asked for are not there.
    #[error(transparent)]
    Choice(nd_topology::Error),
    /// A peer speaks another protocol, or did not prove that it knows the secret.
    #[error("refused {who}: {why}")]
    Refused {
        /// Who.
        who: String,
        /// Why.
        why: String,
    },
    /// A peer sent something that the protocol forbids.
    #[error("rank {rank} broke the protocol: {what}")]
    Protocol {
        /// Which rank.
        rank: usize,
        /// What it sent.
        what: String,
    },
    /// An RDMA device cannot be used.
    #[error("{what}: {why}; {remedy}")]
    Device {
        /// Which.
        what: String,
        /// Why not.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// Memory of another device cannot be reached, or not so.
    #[error("{what}: {why}; {remedy}")]
    DmaBuf {
        /// What was tried.
        what: String,
        /// Why not.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// The memory and the connections belong to the parent of this process.
    #[error("this endpoint was made before fork; make a new one in the child")]
    Forked,
    /// No transport can reach a peer.
    #[error("no way from rank {from} to rank {to}: {why}")]
    Unreachable {
        /// This rank.
        from: usize,
        /// The peer.
        to: usize,
        /// What was tried.
        why: String,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::System { what: what.into(), source: source.into() }
    }
}

fn seconds(d: Duration) -> String {
    format!("{:.1} s", d.as_secs_f64())
}

/// What to do about errors that a limit of the process causes.
fn hint(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::EMFILE) => "; raise the limit on open files (`ulimit -n`)",
        Some(libc::EAGAIN) => "; raise the limit on processes and threads (`ulimit -u`, pids.max)",
        Some(libc::ENETDOWN) => "; bring one up: `ip link set lo up` is enough for ranks of one host",
        Some(libc::ENFILE) => "; the machine is out of open files (fs.file-max)",
        Some(libc::ENOMEM) => "; out of memory or address space (`ulimit -v`, vm.overcommit_memory)",
        _ => "",
    }
}
