//! The table of settings: names, NCCL's names for them, what they mean, how a text becomes a value.

use std::sync::Arc;

use nd_topology::rdma::MOST_RAILS;
use nd_transport::{Choice, Family};

use super::values::{self, Bad, bad};
use super::{Auth, Config, Logging};
use crate::cost::Calibration;
use crate::recorder::{Folder, Pattern};
use crate::rendezvous::Address;
use crate::schedule::Reduction;

/// One setting. Its key in the file is the name without `ND_`, in lower case.
pub(super) struct Known {
    pub name: &'static str,
    /// NCCL's name where the meaning is the same.
    pub nccl: Option<Foreign>,
    pub default: &'static str,
    pub meaning: &'static str,
    pub secret: bool,
    pub set: fn(&mut Config, &str) -> Result<(), Bad>,
    pub show: fn(&Config) -> String,
}

const fn known(
    name: &'static str,
    default: &'static str,
    set: fn(&mut Config, &str) -> Result<(), Bad>,
    show: fn(&Config) -> String,
    meaning: &'static str,
) -> Known {
    Known { name, nccl: None, default, meaning, secret: false, set, show }
}

/// NCCL's name for a setting, and how its value reads here (none: it says nothing).
type Foreign = (&'static str, fn(&str) -> Option<String>);

impl Known {
    const fn nccl(mut self, name: &'static str, convert: fn(&str) -> Option<String>) -> Known {
        self.nccl = Some((name, convert));
        self
    }

    const fn hidden(mut self) -> Known {
        self.secret = true;
        self
    }

    /// The key in the file.
    pub fn key(&self) -> String {
        self.name["ND_".len()..].to_ascii_lowercase()
    }
}

fn same(value: &str) -> Option<String> {
    Some(value.to_owned())
}

fn or_empty<T>(value: &Option<T>, show: impl Fn(&T) -> String) -> String {
    value.as_ref().map(show).unwrap_or_default()
}

/// All settings, in the order in which they are listed.
pub(super) const KNOWN: &[Known] = &[
    known(
        "ND_TIMEOUT",
        "10m",
        |c, v| values::duration(v).map(|d| c.timeout = d),
        |c| super::show_duration(c.timeout),
        "how long a call may wait for other ranks; seconds, or with ms, s, m, h",
    ),
    known(
        "ND_START_TIMEOUT",
        "60s",
        |c, v| values::duration(v).map(|d| c.transport.start_timeout = d),
        |c| super::show_duration(c.transport.start_timeout),
        "how long ranks may take to find each other",
    ),
    known(
        "ND_ALGO",
        "",
        |c, v| values::algorithms(v).map(|a| c.algorithms = a),
        |c| super::show_algorithms(&c.algorithms),
        "algorithms to choose from, for all collectives (ring,tree), by collective and size \
         (allreduce:ring,tree;allgather@64K-4M:ring), or all but some (^ring)",
    )
    .nccl("NCCL_ALGO", same),
    known(
        "ND_REDUCTION",
        "reproducible",
        |c, v| values::reduction(v).map(|r| c.reduction = r),
        |c| match c.reduction {
            Reduction::Reproducible => "reproducible".into(),
            Reduction::Fast => "fast".into(),
        },
        "reproducible: the same bits whatever the size, algorithm and transport; fast: any order",
    ),
    known(
        "ND_CALIBRATION",
        "",
        |c, v| {
            let text = match values::short_file(v) {
                Ok(text) => text,
                Err(e) => return bad(format!("cannot be read: {e}"), "name a file that this user can read"),
            };
            match Calibration::parse(&text) {
                Ok(read) if read.link.is_empty() => {
                    return bad("holds no [[link]]", "measure anew: nd-bench --calibrate FILE");
                }
                Ok(read) => c.calibration = Some(Arc::new(read)),
                Err(e) => return bad(e.to_string(), "measure anew: nd-bench --calibrate FILE"),
            }
            c.calibration_file = Some(v.into());
            Ok(())
        },
        |c| or_empty(&c.calibration_file, |p| p.display().to_string()),
        "a file that nd-bench --calibrate wrote: what links cost, by which algorithms are chosen; rank 0's holds",
    ),
    known(
        "ND_AUTH",
        "secret",
        |c, v| values::auth(v).map(|a| c.auth = a),
        |c| match c.auth {
            Auth::Secret => "secret".into(),
            Auth::None => "none".into(),
        },
        "secret: who has ND_SECRET may join, without one only loopback is used; none: everyone who reaches the port may join",
    ),
    known(
        "ND_SECRET",
        "",
        |c, v| values::secret(v).map(|s| c.secret = Some(s)),
        |c| or_empty(&c.secret, |_| "(set)".into()),
        "what ranks must know to join: 64 hex digits, or a random text of 16 bytes or more (openssl rand -hex 32 makes one)",
    )
    .hidden(),
    known(
        "ND_SECRET_FILE",
        "",
        |c, v| {
            let text = match values::short_file(v) {
                Ok(text) => text,
                Err(e) => return bad(format!("cannot be read: {e}"), "name a file that this user can read"),
            };
            c.secret = Some(values::secret(&text)?);
            c.secret_file = Some(v.into());
            c.warnings.extend(values::open_to_all("ND_SECRET_FILE", v));
            Ok(())
        },
        |c| or_empty(&c.secret_file, |p| p.display().to_string()),
        "a file that holds the secret, for its owner alone (chmod 600); ND_SECRET is stronger",
    ),
    known(
        "ND_JOB",
        "",
        |c, v| {
            c.job = v.to_owned();
            Ok(())
        },
        |c| c.job.clone(),
        "a name of the job: ranks of jobs with different names refuse each other although they have one secret",
    ),
    known(
        "ND_RENDEZVOUS",
        "",
        |c, v| match v.parse::<Address>() {
            Ok(address) => {
                c.rendezvous = Some(address);
                Ok(())
            }
            Err(problem) => bad(problem, "write host:port, such as node1:29500 or [fd00::1]:29500"),
        },
        |c| or_empty(&c.rendezvous, |a| a.to_string()),
        "where rank 0 listens; stronger than what the launcher says",
    )
    .nccl("NCCL_COMM_ID", same),
    known(
        "ND_DEBUG",
        "info",
        |c, v| Logging::parse(v).map(|l| c.debug = l),
        |c| c.debug.to_string(),
        "what to log: off, error, warn, info (a line by rank 0), debug (every rank, every link), trace; by part: \
         info,nd_transport=debug",
    )
    .nccl("NCCL_DEBUG", same),
    known(
        "ND_RECORDER_CALLS",
        "256",
        |c, v| match v.parse::<usize>() {
            Ok(calls) if calls <= values::RECORDER_MAX => {
                c.recorder.calls = calls;
                Ok(())
            }
            Ok(_) => bad(
                format!("above {}", values::RECORDER_MAX),
                "write how many calls to keep, such as 256; ND_TRACE=FILE writes all",
            ),
            Err(_) => bad("not a number of calls", "write how many to keep, such as 256; 0: none"),
        },
        |c| c.recorder.calls.to_string(),
        "how many of its last calls each communicator keeps, to be written when it fails; 0: none",
    ),
    known(
        "ND_RECORDER_DIR",
        "",
        |c, v| {
            c.recorder.folder = if v == "none" { Folder::Nowhere } else { Folder::At(v.into()) };
            Ok(())
        },
        |c| match &c.recorder.folder {
            Folder::Temporary => String::new(),
            Folder::Nowhere => "none".into(),
            Folder::At(path) => path.display().to_string(),
        },
        "the folder for what a rank that fails writes, one file a communicator, for nd-topo diagnose; empty: the system's \
         temporary folder; none: nothing is written",
    ),
    known(
        "ND_TRACE",
        "",
        |c, v| match Pattern::new(v) {
            Ok(pattern) => {
                c.recorder.trace = Some(pattern);
                Ok(())
            }
            Err((problem, remedy)) => bad(problem, remedy),
        },
        |c| or_empty(&c.recorder.trace, |p| p.as_str().to_owned()),
        "a file for a trace of all calls, for Perfetto; %r stands for the rank, %p for the process, %h for the host",
    ),
    known(
        "ND_TRANSPORT",
        "auto",
        |c, v| values::transport(v).map(|t| c.transport.transport = t),
        |c| match c.transport.transport {
            Choice::Auto => "auto".into(),
            Choice::Shm => "shm".into(),
            Choice::Tcp => "tcp".into(),
            Choice::Verbs => "verbs".into(),
        },
        "auto: shared memory inside a host, verbs (InfiniBand, RoCE) or TCP between hosts; shm, tcp or verbs: only that",
    )
    .nccl("NCCL_SHM_DISABLE", |v| (v.trim() == "1").then(|| "tcp".to_owned())),
    known(
        "ND_SOCKET_IFNAME",
        "",
        |c, v| {
            c.transport.interfaces = v.to_owned();
            Ok(())
        },
        |c| c.transport.interfaces.clone(),
        "interfaces for TCP: prefixes (eth,ib), exact names (=eth0), or all but some (^docker,lo)",
    )
    .nccl("NCCL_SOCKET_IFNAME", same),
    known(
        "ND_SOCKET_FAMILY",
        "any",
        |c, v| values::family(v).map(|f| c.transport.family = f),
        |c| match c.transport.family {
            Family::Any => "any".into(),
            Family::V4 => "ipv4".into(),
            Family::V6 => "ipv6".into(),
        },
        "any, ipv4 or ipv6",
    )
    .nccl("NCCL_SOCKET_FAMILY", same),
    known(
        "ND_PORT_RANGE",
        "",
        |c, v| values::ports(v).map(|p| c.transport.ports = Some(p)),
        |c| or_empty(&c.transport.ports, |p| format!("{}-{}", p.first, p.last)),
        "ports to listen on, such as 20000-20100, for firewalls; empty: the system chooses",
    ),
    known(
        "ND_SOCKET_BUFFER",
        "",
        |c, v| values::size(v).map(|n| c.transport.socket_buffer = Some(n)),
        |c| or_empty(&c.transport.socket_buffer, |n| n.to_string()),
        "bytes of the kernel's buffer in each direction, such as 4M; empty: the system's own tuning",
    ),
    known(
        "ND_ENCRYPT",
        "0",
        |c, v| values::flag(v).map(|f| c.transport.encrypt = f),
        |c| u8::from(c.transport.encrypt).to_string(),
        "1: what goes by TCP is encrypted (AES-256-GCM), and none goes by verbs; shared memory inside a host is not \
         encrypted; the same on all ranks",
    ),
    known(
        "ND_IB_DISABLE",
        "0",
        |c, v| values::flag(v).map(|f| c.transport.verbs.disable = f),
        |c| u8::from(c.transport.verbs.disable).to_string(),
        "1: InfiniBand and RoCE are not used",
    )
    .nccl("NCCL_IB_DISABLE", same),
    known(
        "ND_IB_HCA",
        "",
        |c, v| {
            c.transport.verbs.hca = v.to_owned();
            Ok(())
        },
        |c| c.transport.verbs.hca.clone(),
        "RDMA devices and ports: prefixes (mlx5), exact names (=mlx5_0:1), or all but some (^mlx5_3); empty: the nearest",
    )
    .nccl("NCCL_IB_HCA", same),
    known(
        "ND_IB_GID_INDEX",
        "",
        |c, v| values::number(v, 0..=u64::from(u8::MAX)).map(|n| c.transport.verbs.gid_index = Some(n)),
        |c| or_empty(&c.transport.verbs.gid_index, |n| n.to_string()),
        "the index of a RoCE port's address (GID); empty: RoCE v2 over IPv4 first",
    )
    .nccl("NCCL_IB_GID_INDEX", |v| (v.trim() != "-1").then(|| v.to_owned())),
    known(
        "ND_IB_RAILS",
        "4",
        |c, v| values::number(v, 1..=MOST_RAILS as u64).map(|n| c.transport.verbs.rails = n),
        |c| c.transport.verbs.rails.to_string(),
        "RDMA ports that two ranks use at once, where their hosts have so many for each rank; the least of both counts",
    )
    .nccl("NCCL_IB_MERGE_NICS", |v| (v.trim() == "0").then(|| "1".to_owned())),
    known(
        "ND_IB_TIMEOUT",
        "18",
        |c, v| values::number(v, 1..=31).map(|n| c.transport.verbs.timeout = n),
        |c| c.transport.verbs.timeout.to_string(),
        "a packet is sent again after 4.096 µs times 2 to the power of this",
    )
    .nccl("NCCL_IB_TIMEOUT", same),
    known(
        "ND_IB_RETRY_CNT",
        "6",
        |c, v| values::number(v, 0..=7).map(|n| c.transport.verbs.retries = n),
        |c| c.transport.verbs.retries.to_string(),
        "how often a packet is sent again before the peer counts as lost; Soft-RoCE takes 7 for ever",
    )
    .nccl("NCCL_IB_RETRY_CNT", same),
    known(
        "ND_IB_SL",
        "0",
        |c, v| values::number(v, 0..=15).map(|n| c.transport.verbs.service_level = n),
        |c| c.transport.verbs.service_level.to_string(),
        "service level of InfiniBand packets",
    )
    .nccl("NCCL_IB_SL", same),
    known(
        "ND_IB_TC",
        "0",
        |c, v| values::number(v, 0..=255).map(|n| c.transport.verbs.traffic_class = n),
        |c| c.transport.verbs.traffic_class.to_string(),
        "traffic class of RoCE packets",
    )
    .nccl("NCCL_IB_TC", same),
    known(
        "ND_IB_PKEY",
        "0",
        |c, v| values::number(v, 0..=65535).map(|n| c.transport.verbs.pkey_index = n),
        |c| c.transport.verbs.pkey_index.to_string(),
        "index of the partition key in the port's table",
    )
    .nccl("NCCL_IB_PKEY", same),
    known(
        "ND_HOSTID",
        "",
        |c, v| {
            c.transport.host_id = Some(v.to_owned());
            Ok(())
        },
        |c| or_empty(&c.transport.host_id, |h| h.clone()),
        "overrides what counts as one host: ranks with the same value share memory",
    )
    .nccl("NCCL_HOSTID", same),
    known(
        "ND_CMA",
        "0",
        |c, v| values::flag(v).map(|f| c.transport.cross_memory = f),
        |c| u8::from(c.transport.cross_memory).to_string(),
        "1: long plain buffers are read through the kernel (process_vm_readv) instead of copied through shared memory",
    ),
    known(
        "ND_SPIN_US",
        "",
        |c, v| match v.parse::<u32>() {
            Ok(us) => {
                c.transport.spin = Some(std::time::Duration::from_micros(us.into()));
                Ok(())
            }
            Err(_) => {
                bad("not a number of microseconds", "write a whole number, such as 50; 0 sleeps at once")
            }
        },
        |c| or_empty(&c.transport.spin, |d| d.as_micros().to_string()),
        "how long a wait spins before it sleeps, µs; empty: 200",
    ),
];

/// Names that belong to us but are no setting of this table.
pub(super) const OTHERS: &[&str] = &["ND_CONF_FILE", "ND_RESTART_COUNT"];

/// NCCL's variables that mean nothing here, and what to know about them. Others get a general sentence.
pub(super) const FOREIGN: &[(&str, &str)] = &[
    ("NCCL_CONF_FILE", "the format is another; write a TOML file and name it in ND_CONF_FILE"),
    ("NCCL_PROTO", "there are no protocols to choose from"),
    ("NCCL_DEBUG_SUBSYS", "use ND_DEBUG, as in ND_DEBUG=info,nd_transport=debug"),
    ("NCCL_DEBUG_FILE", "redirect stderr instead"),
    ("NCCL_BUFFSIZE", "buffers follow from the chunk size that the cost model chooses"),
    ("NCCL_NTHREADS", "it is about GPU kernels"),
    ("NCCL_MIN_NCHANNELS", "the number of channels follows from the cost model"),
    ("NCCL_MAX_NCHANNELS", "the number of channels follows from the cost model"),
    ("NCCL_P2P_DISABLE", "use ND_TRANSPORT"),
    ("NCCL_P2P_LEVEL", "use ND_TRANSPORT"),
    ("NCCL_SOCKET_NTHREADS", "TCP needs no helper threads here"),
    ("NCCL_NSOCKS_PERTHREAD", "the number of connections follows from what pays"),
];

/// Set by images and wrappers without anyone meaning anything by it.
pub(super) const SILENT: &[&str] =
    &["NCCL_VERSION", "NCCL_HOME", "NCCL_ROOT", "NCCL_LIB_DIR", "NCCL_INCLUDE_DIR"];
