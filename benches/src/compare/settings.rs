//! How each peer is told which transport to use, and what was fastest for it of what was tried.
//!
//! Documented by each library: Open MPI's MCA parameters (`ompi_info --all`), MPICH's CVARs (`mpichversion`,
//! README.envvar), Intel MPI's and oneCCL's environment variables (their developer references), libfabric's
//! `fi_tcp(7)`.

use super::case::Transport;
use super::peers::Peer;

/// Options of the launcher, and variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Before the program.
    pub options: Vec<&'static str>,
    /// Name and value.
    pub variables: Vec<(&'static str, &'static str)>,
}

/// The interface of a host that is a network namespace.
pub const INTERFACE: &str = "eth0";

/// For a peer. `crowded`: more ranks than cores, so that a rank that waits must let others run.
pub fn settings(peer: Peer, transport: Transport, crowded: bool) -> Settings {
    let (options, variables): (&str, &[(&str, &str)]) = match (peer, transport) {
        (Peer::Ours, _) => ("", &[]),
        // Attaching to the other's memory costs two ranks more than a second copy does.
        (Peer::OpenMpi, Transport::Shm) if !crowded => {
            ("--mca pml ob1 --mca btl self,sm --mca smsc ^cma", &[])
        }
        (Peer::OpenMpi, Transport::Shm) => ("--mca pml ob1 --mca btl self,sm", &[]),
        (Peer::OpenMpi, Transport::Tcp) if crowded => (
            "--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo --mca btl_tcp_sndbuf 4194304 \
             --mca btl_tcp_rcvbuf 4194304 --mca btl_tcp_eager_limit 131072 --mca btl_tcp_max_send_size 1048576",
            &[],
        ),
        (Peer::OpenMpi | Peer::OpenMpi4, Transport::Tcp) => {
            ("--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo", &[])
        }
        (Peer::OpenMpi, Transport::Net) => {
            ("--mca pml ob1 --mca btl self,sm,tcp --mca btl_tcp_if_include eth0", &[])
        }
        (Peer::OpenMpi4, Transport::Shm) => ("--mca pml ob1 --mca btl self,vader", &[]),
        (Peer::OpenMpi4, Transport::Net) => {
            ("--mca pml ob1 --mca btl self,vader,tcp --mca btl_tcp_if_include eth0", &[])
        }
        // Collectives of its own over shared memory.
        (Peer::Mpich, Transport::Shm) if !crowded => (
            "",
            &[
                ("MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM", "release_gather"),
                ("MPIR_CVAR_BCAST_POSIX_INTRA_ALGORITHM", "release_gather"),
                ("MPIR_CVAR_REDUCE_POSIX_INTRA_ALGORITHM", "release_gather"),
                ("MPIR_CVAR_COLL_SHM_LIMIT_PER_NODE", "262144"),
                ("MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD", "0"),
            ],
        ),
        (Peer::Mpich, Transport::Shm) => (
            "",
            &[
                ("MPIR_CVAR_CH4_PROGRESS_THROTTLE", "1"),
                ("MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT", "100"),
            ],
        ),
        (Peer::Mpich, Transport::Tcp) => (
            "",
            &[
                ("MPIR_CVAR_NOLOCAL", "1"),
                ("MPIR_CVAR_CH4_NETMOD", "ofi"),
                ("FI_PROVIDER", "tcp"),
                ("FI_TCP_IFACE", "lo"),
            ],
        ),
        (Peer::Mpich, Transport::Net) => (
            "",
            &[
                ("MPIR_CVAR_CH4_NETMOD", "ofi"),
                ("FI_PROVIDER", "tcp"),
                ("FI_TCP_IFACE", "eth0"),
                ("MPIR_CVAR_CH4_PROGRESS_THROTTLE", "1"),
                ("MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT", "100"),
            ],
        ),
        (Peer::Mpich4, Transport::Shm) => ("", &[]),
        (Peer::Mpich4, Transport::Tcp) => {
            ("", &[("MPIR_CVAR_NOLOCAL", "1"), ("UCX_TLS", "self,tcp"), ("UCX_NET_DEVICES", "lo")])
        }
        (Peer::Mpich4, Transport::Net) => ("", &[("UCX_TLS", "self,tcp"), ("UCX_NET_DEVICES", "eth0")]),
        (Peer::Impi, Transport::Shm) if !crowded => ("", &[("I_MPI_FABRICS", "shm")]),
        (Peer::Impi, Transport::Shm) => ("", &[("I_MPI_FABRICS", "shm"), ("I_MPI_WAIT_MODE", "1")]),
        // Without pt2pt, small collectives go through shared memory all the same.
        (Peer::Impi, Transport::Tcp) => (
            "",
            &[
                ("I_MPI_FABRICS", "ofi"),
                ("I_MPI_OFI_PROVIDER", "tcp"),
                ("FI_TCP_IFACE", "lo"),
                ("I_MPI_COLL_INTRANODE", "pt2pt"),
            ],
        ),
        (Peer::Impi, Transport::Net) => {
            ("", &[("I_MPI_FABRICS", "shm:ofi"), ("I_MPI_OFI_PROVIDER", "tcp"), ("FI_TCP_IFACE", "eth0")])
        }
        (Peer::OneCcl, Transport::Shm) => (
            "",
            &[
                ("CCL_ATL_TRANSPORT", "ofi"),
                ("CCL_ATL_SHM", "1"),
                ("FI_PROVIDER", "shm"),
                ("CCL_KVS_IFACE", "lo"),
            ],
        ),
        (Peer::OneCcl, Transport::Tcp) => (
            "",
            &[
                ("CCL_ATL_TRANSPORT", "ofi"),
                ("CCL_ATL_SHM", "0"),
                ("FI_PROVIDER", "tcp"),
                ("FI_TCP_IFACE", "lo"),
                ("CCL_KVS_IFACE", "lo"),
            ],
        ),
        (Peer::OneCcl, Transport::Net) => (
            "",
            &[
                ("CCL_ATL_TRANSPORT", "ofi"),
                ("CCL_ATL_SHM", "1"),
                ("FI_PROVIDER", "tcp"),
                ("FI_TCP_IFACE", "eth0"),
                ("CCL_KVS_IFACE", "eth0"),
            ],
        ),
        (Peer::Gloo, Transport::Shm | Transport::Tcp) => ("", &[("GLOO_SOCKET_IFNAME", "lo")]),
        (Peer::Gloo, Transport::Net) => ("", &[("GLOO_SOCKET_IFNAME", "eth0")]),
    };
    let mut settings =
        Settings { options: options.split_whitespace().collect(), variables: variables.to_vec() };
    settings.common(peer, crowded);
    settings
}

impl Settings {
    /// What does not depend on the transport: staying on cores, or making room when there are too few.
    fn common(&mut self, peer: Peer, crowded: bool) {
        match peer {
            Peer::OpenMpi | Peer::OpenMpi4 => {
                self.options.extend(["--bind-to", if crowded { "none" } else { "core" }]);
                if crowded {
                    self.options.extend(["--mca", "mpi_yield_when_idle", "1"]);
                }
            }
            Peer::Mpich | Peer::Mpich4 if !crowded => self.options.extend(["-bind-to", "core"]),
            Peer::Impi | Peer::OneCcl => {
                self.variables.push(("I_MPI_PIN", if crowded { "0" } else { "1" }));
                if crowded {
                    self.variables.push(("I_MPI_THREAD_YIELD", "2"));
                }
            }
            _ => {}
        }
        if peer == Peer::OneCcl {
            // Its worker threads would need cores of their own.
            self.variables.extend([("CCL_WORKER_OFFLOAD", "0"), ("CCL_LOG_LEVEL", "error")]);
            if crowded {
                self.variables.push(("CCL_YIELD", "sched_yield"));
            }
        }
    }

    /// In one line, as a user would write it.
    pub fn line(&self) -> String {
        let variables = self.variables.iter().map(|(name, value)| format!("{name}={value}"));
        variables.chain(self.options.iter().map(|o| (*o).to_owned())).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_one_line() {
        let line = |peer, transport, crowded| settings(peer, transport, crowded).line();
        assert_eq!(line(Peer::Impi, Transport::Shm, false), "I_MPI_FABRICS=shm I_MPI_PIN=1");
        assert_eq!(
            line(Peer::OpenMpi4, Transport::Shm, true),
            "--mca pml ob1 --mca btl self,vader --bind-to none --mca mpi_yield_when_idle 1"
        );
        assert_eq!(line(Peer::Ours, Transport::Net, true), "");
    }
}
