//! Settings of the transports. Whoever fills them in (environment, file, code) does so once, elsewhere.

use std::net::IpAddr;
use std::time::Duration;

use crate::tcp::seal::RECORDS_PER_KEY;
use crate::{Stop, VerbsSettings};

/// Which transport to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// Shared memory between ranks of one host, otherwise verbs where there are any, otherwise TCP.
    #[default]
    Auto,
    /// Shared memory, or an error.
    Shm,
    /// TCP, also between ranks of one host.
    Tcp,
    /// Verbs, also between ranks of one host, or an error.
    Verbs,
}

/// Which Internet protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Family {
    /// Either, IPv4 first.
    #[default]
    Any,
    /// Only IPv4.
    V4,
    /// Only IPv6.
    V6,
}

/// Ports to listen on, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// Lowest.
    pub first: u16,
    /// Highest.
    pub last: u16,
}

/// Settings of the transports.
#[derive(Debug, Clone)]
pub struct Config {
    /// `ND_TRANSPORT`.
    pub transport: Choice,
    /// `ND_SOCKET_IFNAME`: NCCL's syntax (`eth,ib` prefixes, `=eth0` exact, `^docker` all but); empty: automatic.
    pub interfaces: String,
    /// `ND_SOCKET_FAMILY`.
    pub family: Family,
    /// `ND_PORT_RANGE`; none: the system chooses.
    pub ports: Option<PortRange>,
    /// `ND_SOCKET_BUFFER`: bytes of the kernel's buffer in each direction; none: the system's own tuning.
    pub socket_buffer: Option<usize>,
    /// `ND_ENCRYPT=1`: payload that goes by TCP is encrypted and authenticated, and none goes by verbs. All ranks must
    /// say the same.
    pub encrypt: bool,
    /// `ND_IB_*`.
    pub verbs: VerbsSettings,
    /// `ND_HOSTID`: overrides the host's identity, as NCCL_HOSTID does.
    pub host_id: Option<String>,
    /// `ND_CMA=1`: plain buffers are read by cross-memory attach, where it works.
    pub cross_memory: bool,
    /// `ND_SPIN_US`: how long a wait spins before it sleeps; none: 200 µs, and 10 ms where answers come that soon by RDMA
    /// devices and every rank has a core of its own.
    pub spin: Option<Duration>,
    /// How long a start may take (`ND_START_TIMEOUT`).
    pub start_timeout: Duration,
    /// The address by which this rank reached the rendezvous; preferred when choosing an interface. Not a setting
    /// of the user.
    pub local_address: Option<IpAddr>,
    /// All ranks met on loopback, so that nobody else need reach this one. Not a setting of the user.
    pub loopback_only: bool,
    /// How many ranks there will be; 0 where that is not known. Not a setting of the user.
    pub ranks: usize,
    /// Bytes of a window that is there before any peer can connect ([`Endpoint::take_first`](crate::Endpoint::take_first)),
    /// and which peers may put into; 0: none. Not a setting of the user.
    pub exposed: u64,
    /// Encrypted records after which a connection changes its key. Not a setting of the user: tests make it small.
    pub records_per_key: u64,
    /// Ends a start that goes on. Not a setting of the user; clones share it.
    pub stop: Stop,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            transport: Choice::Auto,
            interfaces: String::new(),
            family: Family::Any,
            ports: None,
            socket_buffer: None,
            encrypt: false,
            verbs: VerbsSettings::default(),
            host_id: None,
            cross_memory: false,
            spin: None,
            start_timeout: Duration::from_secs(60),
            local_address: None,
            loopback_only: false,
            ranks: 0,
            exposed: 0,
            records_per_key: RECORDS_PER_KEY,
            stop: Stop::default(),
        }
    }
}
