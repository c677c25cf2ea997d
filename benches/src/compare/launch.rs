//! The processes of a peer, and ours.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use nd_tests::hosts::Hosts;

use super::case::{Buffers, Case, Transport};
use super::error::Error;
use super::peers::Peer;
use super::settings::{INTERFACE, Settings, settings};
use super::sizes::Sizes;

/// What launching needs to know.
pub struct Launcher {
    /// Where the peers are.
    pub home: PathBuf,
    /// Where nd-bench and nd-run are.
    pub tools: PathBuf,
    /// Cores that this process may use.
    pub cores: usize,
    /// For temporary files of all programs.
    pub scratch: PathBuf,
    /// Calls before those that are timed.
    pub warmup: u32,
    /// Calls that are timed; none: as many as take 0.1 s.
    pub iterations: Option<u32>,
}

impl Launcher {
    /// Whether there are more ranks than cores. Hosts that are namespaces share the machine's.
    pub fn crowded(&self, case: &Case) -> bool {
        case.ranks > self.cores
    }

    /// Processes to run at the same time, once for each of the returned lists; the first one of each prints rows.
    pub fn commands(
        &self,
        peer: Peer,
        case: &Case,
        sizes: &Sizes,
        hosts: Option<&Hosts>,
    ) -> Result<Vec<Vec<Command>>, Error> {
        if peer == Peer::Ours {
            return sizes.runs().into_iter().map(|run| self.ours(case, run, hosts)).collect();
        }
        let settings = settings(peer, case.transport, self.crowded(case));
        let mut commands = match peer {
            Peer::OpenMpi | Peer::OpenMpi4 => vec![self.open_mpi(peer, case, &settings, hosts)?],
            Peer::Gloo => self.gloo(case, hosts)?,
            _ => vec![self.hydra(peer, case, &settings, hosts)?],
        };
        for command in &mut commands {
            command.args([case.collective.name(), &sizes.list(), &self.warmup.to_string()]);
            command.arg(self.iterations.unwrap_or(0).to_string());
            command.envs(settings.variables.iter().copied());
            self.surroundings(command);
        }
        Ok(vec![commands])
    }

    /// nd-run on each host, with each rank on a core of its own where there are enough.
    fn ours(
        &self,
        case: &Case,
        (first, last, factor): (u64, u64, u64),
        hosts: Option<&Hosts>,
    ) -> Result<Vec<Command>, Error> {
        // In namespaces every host would begin with the first core.
        let bind = hosts.is_none() && !self.crowded(case);
        let mut commands = ours(&self.tools, hosts, case.ranks_per_host(), bind)?;
        for command in &mut commands {
            command.arg(case.collective.name());
            command.args(["-b", &first.to_string(), "-e", &last.to_string(), "-f", &factor.to_string()]);
            command.args(["-w", &self.warmup.to_string()]);
            if let Some(iterations) = self.iterations {
                command.args(["-n", &iterations.to_string()]);
            }
            command.args([
                "--transport",
                match case.transport {
                    Transport::Shm => "shm",
                    Transport::Tcp => "tcp",
                    Transport::Net => "auto",
                },
            ]);
            if case.buffers == Buffers::Plain {
                command.args(["--buffers", "plain"]);
            }
            self.surroundings(command);
        }
        Ok(commands)
    }

    fn open_mpi(
        &self,
        peer: Peer,
        case: &Case,
        settings: &Settings,
        hosts: Option<&Hosts>,
    ) -> Result<Command, Error> {
        let place = peer.place(&self.home);
        let five = peer == Peer::OpenMpi;
        let mpirun = if five { place.join("venv/bin/mpirun") } else { "mpirun.openmpi".into() };
        let mut command = on(hosts, 0, mpirun);
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
            command.env(name, "1").env(format!("{name}_CONFIRM"), "1");
        }
        let here = case.ranks_per_host();
        command.args(["-np", &case.ranks.to_string()]).args(&settings.options);
        match (hosts, five) {
            (None, true) => command.args(["--map-by", ":OVERSUBSCRIBE"]),
            (None, false) => command.arg("--oversubscribe"),
            (Some(hosts), five) => {
                let list: Vec<_> = addresses(hosts).map(|host| format!("{host}:{here}")).collect();
                let shell = self.shell(hosts)?;
                command.args(["--host", &list.join(",")]);
                let (kind, agent) = if five { ("--prtemca", "plm_ssh") } else { ("--mca", "plm_rsh") };
                command.args([kind, &format!("{agent}_agent")]).arg(shell);
                command.args([kind, &format!("{agent}_no_tree_spawn"), "1"]);
                if five {
                    command.args([kind, "prte_if_include", INTERFACE]);
                    command.args(["--map-by", &format!("ppr:{here}:node:OVERSUBSCRIBE")])
                } else {
                    command.args([kind, "oob_tcp_if_include", INTERFACE, "--oversubscribe"]);
                    command.args(["--map-by", &format!("ppr:{here}:node")])
                }
            }
        };
        command.arg(place.join("bench"));
        Ok(command)
    }

    /// MPICH, and what is built on its launcher.
    fn hydra(
        &self,
        peer: Peer,
        case: &Case,
        settings: &Settings,
        hosts: Option<&Hosts>,
    ) -> Result<Command, Error> {
        let place = peer.place(&self.home);
        let intel = self.home.join("intel/venv");
        let launcher = match peer {
            Peer::Mpich4 => "mpiexec.mpich".into(),
            Peer::Mpich => place.join("venv/bin/mpiexec.hydra"),
            _ => intel.join("bin/mpiexec.hydra"),
        };
        let mut command = on(hosts, 0, launcher);
        if matches!(peer, Peer::Impi | Peer::OneCcl) {
            let library = intel.join("lib");
            command.env("I_MPI_ROOT", &intel).env("CCL_ROOT", &intel);
            command.env("LD_LIBRARY_PATH", &library).env("FI_PROVIDER_PATH", &library);
            command.env("PATH", path_with(&intel.join("bin")));
        }
        match hosts {
            None => {
                command.env("HYDRA_LAUNCHER", "fork").env("I_MPI_HYDRA_BOOTSTRAP", "fork");
            }
            Some(hosts) => {
                let shell = self.shell(hosts)?;
                command.env("HYDRA_LAUNCHER", "ssh").env("HYDRA_LAUNCHER_EXEC", &shell);
                command.env("I_MPI_HYDRA_BOOTSTRAP", "ssh").env("I_MPI_HYDRA_BOOTSTRAP_EXEC", &shell);
                let here = case.ranks_per_host().to_string();
                let list: Vec<_> = addresses(hosts).collect();
                command.args(["-hosts", &list.join(","), "-ppn", &here, "-iface", INTERFACE]);
            }
        }
        command.args(["-n", &case.ranks.to_string()]).args(&settings.options).arg(place.join("bench"));
        Ok(command)
    }

    /// It has no launcher: a process for each rank.
    fn gloo(&self, case: &Case, hosts: Option<&Hosts>) -> Result<Vec<Command>, Error> {
        let path = Peer::Gloo.place(&self.home).join("python");
        let python = std::fs::read_to_string(&path).map_err(|source| Error::File { path, source })?;
        let port = free_port()?.to_string();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/gloo.py");
        let commands = (0..case.ranks).map(|rank| {
            let mut command = on(hosts, rank / case.ranks_per_host(), python.trim());
            command.arg(&script).env("RANK", rank.to_string()).env("WORLD_SIZE", case.ranks.to_string());
            let first = hosts.map_or_else(|| Ipv4Addr::LOCALHOST.to_string(), |hosts| hosts.v4(0));
            command.env("MASTER_ADDR", first).env("MASTER_PORT", &port).env("CUDA_VISIBLE_DEVICES", "");
            command
        });
        Ok(commands.collect())
    }

    fn shell(&self, hosts: &Hosts) -> Result<PathBuf, Error> {
        let failed = |source| Error::File { path: self.scratch.clone(), source };
        hosts.remote_shell(&self.scratch).map_err(failed)
    }

    /// What all programs get.
    fn surroundings(&self, command: &mut Command) {
        command.env("TMPDIR", &self.scratch).env("OMP_NUM_THREADS", "1").current_dir(&self.scratch);
    }
}

/// nd-bench under nd-run on this machine, or on each of the hosts, to which arguments can be added. `tools` is the
/// folder of both, `bind` puts each rank on a core of its own.
pub fn ours(
    tools: &Path,
    hosts: Option<&Hosts>,
    ranks_per_host: usize,
    bind: bool,
) -> Result<Vec<Command>, Error> {
    let nodes = hosts.map_or(1, Hosts::count);
    let (secret, port) = (secret()?, free_port()?);
    let commands = (0..nodes).map(|node| {
        let mut command = on(hosts, node, tools.join("nd-run"));
        command.args(["-n", &ranks_per_host.to_string(), "--no-prefix"]);
        if bind {
            command.args(["--bind", "core"]);
        }
        if let Some(hosts) = hosts {
            let rendezvous = format!("{}:{port}", hosts.v4(0));
            command.args(["--nnodes", &nodes.to_string(), "--node-rank", &node.to_string()]);
            command.args(["--rdzv", &rendezvous]).env("ND_SECRET", &secret);
        }
        command.arg("--").arg(tools.join("nd-bench"));
        command
    });
    Ok(commands.collect())
}

fn addresses(hosts: &Hosts) -> impl Iterator<Item = String> {
    (0..hosts.count()).map(|host| hosts.v4(host))
}

fn on(hosts: Option<&Hosts>, host: usize, program: impl AsRef<Path>) -> Command {
    match hosts {
        Some(hosts) => hosts.command(host, program),
        None => Command::new(program.as_ref()),
    }
}

fn path_with(folder: &Path) -> std::ffi::OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(rest) = std::env::var_os("PATH") {
        path.push(OsStr::new(":"));
        path.push(rest);
    }
    path
}

/// A port of this host that nobody listens on at this moment; of a fresh namespace, any is.
fn free_port() -> Result<u16, Error> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr());
    bound.map(|a| a.port()).map_err(|source| Error::System { what: "find a free port".into(), source })
}

/// 256 bits, as hex digits.
fn secret() -> Result<String, Error> {
    let mut bytes = [0u8; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::System { what: "draw a secret".into(), source: e.into() })?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
