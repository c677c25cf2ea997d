//! Which rank this process is, by the variables of whichever launcher started it.
//!
//! Strongest first; a launcher counts when both its rank and its size are there:
//!
//! | launcher | rank, size, local rank, local size |
//! |---|---|
//! | nd-run, torchrun | `RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE` |
//! | Open MPI | `OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}` |
//! | MPICH, Intel MPI (hydra) | `PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS` |
//! | PMIx | `PMIX_RANK WORLD_SIZE` |
//! | Slurm | `SLURM_PROCID SLURM_STEP_NUM_TASKS`/`SLURM_NTASKS SLURM_LOCALID SLURM_STEP_TASKS_PER_NODE` |
//! | Kubernetes, Indexed Job | `JOB_COMPLETION_INDEX WORLD_SIZE` |
//!
//! Slurm gives the script of a batch job a rank and a size too, though no step: that is no rank, `srun` inside it starts
//! them. Kubernetes tells no pod how many there are: the Job's manifest has to say it in `WORLD_SIZE`, and where rank 0
//! is in `MASTER_ADDR`.
//!
//! Where ranks meet: `MASTER_ADDR` and `MASTER_PORT` (29500 if unsaid, torchrun's default; the next port if torchrun's
//! own store holds it), else `ND_RENDEZVOUS`, which `rendezvous::join` prefers anyway. With none of them,
//! ranks of one host meet at an abstract Unix name made of the user and the job; under Slurm on several hosts, at
//! the step's first host, port 20000 + (job + 7919 × step) mod 40000.

mod hostlist;
mod job;

use std::fmt;

pub use hostlist::{hosts, tasks_per_node};

use crate::config::Environment;
use crate::rendezvous::Address;
use crate::{Error, Result};

/// torchrun's default.
pub const DEFAULT_PORT: u16 = 29500;

/// Who started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// nd-run, torchrun, or whoever sets `RANK` and `WORLD_SIZE`.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// The mpiexec of MPICH and Intel MPI.
    Hydra,
    /// Another PMIx launcher.
    Pmix,
    /// srun.
    Slurm,
    /// An Indexed Job.
    Kubernetes,
}

/// Which rank this process is, and where the ranks meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// From 0 to `world_size` - 1.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// The rank among those of this host; none: the launcher does not say.
    pub local_rank: Option<usize>,
    /// How many ranks this host has; none: the launcher does not say.
    pub local_world_size: Option<usize>,
    /// Where the ranks meet. Never used when there is only one rank.
    pub rendezvous: Address,
    /// Who started it.
    pub launcher: Launcher,
    /// Others whose variables were there too and lost.
    pub also: Vec<Launcher>,
}

impl Launch {
    /// From this process's environment.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable that is missing or wrong, and what was found instead.
    pub fn from_env() -> Result<Launch> {
        let environment = Environment::of_process().with_launcher_process(job::launcher_process());
        Launch::from_environment(&environment)
    }

    /// From the given environment; no IO.
    pub fn from_environment(environment: &Environment) -> Result<Launch> {
        let found: Vec<&Names> = ALL.iter().filter(|names| names.complete(environment)).collect();
        let Some(names) = found.first() else { return Err(nothing_complete(environment)) };
        let (rank_name, rank) =
            number(environment, names.rank)?.ok_or_else(|| nothing_complete(environment))?;
        let (size_name, world_size) =
            number(environment, names.size)?.ok_or_else(|| nothing_complete(environment))?;
        if world_size == 0 {
            return Err(wrong(size_name, "0", "there is no rank at all", "start at least one rank"));
        }
        if world_size > 1 << 24 {
            return Err(wrong(
                size_name,
                &world_size.to_string(),
                "more ranks than any cluster has",
                "correct it",
            ));
        }
        below(rank_name, rank, size_name, world_size)?;
        let local_rank = number(environment, names.local_rank)?;
        let mut local_size = number(environment, names.local_size)?;
        if names.launcher == Launcher::Slurm && local_size.is_none() {
            local_size = slurm_local_size(environment);
        }
        if let (Some((name, local)), Some((size_name, size))) = (local_rank, local_size) {
            below(name, local, size_name, size)?;
        }
        if let Some((name, size)) = local_size.filter(|(_, size)| *size > world_size) {
            return Err(wrong(
                name,
                &size.to_string(),
                format!("more than {size_name}={world_size}"),
                "correct one of them",
            ));
        }
        let local_world_size = local_size.map(|(_, n)| n);
        Ok(Launch {
            rank,
            world_size,
            local_rank: local_rank.map(|(_, n)| n),
            local_world_size,
            rendezvous: meeting_point(environment, names.launcher, world_size, local_world_size)?,
            launcher: names.launcher,
            also: found[1..].iter().map(|n| n.launcher).collect(),
        })
    }

    /// Whether the launcher says that all ranks are on this host.
    pub fn on_one_host(&self) -> bool {
        self.world_size == 1 || self.local_world_size == Some(self.world_size)
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Torchrun => "nd-run or torchrun",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Hydra => "MPICH or Intel MPI",
            Launcher::Pmix => "PMIx",
            Launcher::Slurm => "Slurm",
            Launcher::Kubernetes => "Kubernetes",
        })
    }
}

fn meeting_point(
    environment: &Environment,
    launcher: Launcher,
    world_size: usize,
    local_world_size: Option<usize>,
) -> Result<Address> {
    if let Some(host) = environment.get("MASTER_ADDR") {
        return Ok(Address::tcp(host, master_port(environment)?));
    }
    if world_size == 1 {
        return Ok(Address::Unix("nd-alone".into()));
    }
    // Config reads these as well and complains if they are malformed.
    let stated = environment.get("ND_RENDEZVOUS").or(environment.get("NCCL_COMM_ID"));
    if let Some(address) = stated.and_then(|text| text.parse().ok()) {
        return Ok(address);
    }
    let missing = |problem: String, remedy: &str| Err(wrong("MASTER_ADDR", "", problem, remedy));
    let one_host = local_world_size == Some(world_size);
    match (launcher, job::name(environment, launcher)) {
        (Launcher::Torchrun | Launcher::Kubernetes, _) => missing(
            format!("it is not set, but {world_size} ranks need a place to meet"),
            "set MASTER_ADDR to the host of rank 0 (127.0.0.1 if all ranks are on one host) and MASTER_PORT to a free port there",
        ),
        (_, Some(job)) if one_host => Ok(Address::Unix(format!("nd-{}-{job}", environment.user()))),
        (Launcher::Slurm, Some(_)) => slurm_meeting_point(environment),
        _ => missing(
            match local_world_size {
                _ if one_host => format!("it is not set, and {launcher} left nothing that names the job"),
                Some(local) => format!(
                    "it is not set, and {local} of {world_size} ranks are on this host, the rest elsewhere"
                ),
                None => {
                    format!("it is not set, and {launcher} does not say whether all ranks are on one host")
                }
            },
            match launcher {
                Launcher::Hydra => "pass it on: mpiexec -genv MASTER_ADDR HOST_OF_RANK_0 …",
                Launcher::OpenMpi => "pass it on: mpirun -x MASTER_ADDR=HOST_OF_RANK_0 …",
                _ => "set MASTER_ADDR to the host of rank 0",
            },
        ),
    }
}

/// torchrun's agent may itself listen on `MASTER_PORT` for the key-value store of its workers
/// (`TORCHELASTIC_USE_AGENT_STORE`, torch.distributed.elastic.agent.server.api); then the next port is ours.
fn master_port(environment: &Environment) -> Result<u16> {
    let Some(text) = environment.get("MASTER_PORT") else {
        return Ok(slurm_port(environment).unwrap_or(DEFAULT_PORT));
    };
    let port = match text.parse::<u16>() {
        Ok(port) if port > 0 => port,
        _ => return Err(wrong("MASTER_PORT", text, "not a port", "write a number from 1 to 65535")),
    };
    let taken =
        environment.get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|v| v.eq_ignore_ascii_case("true"));
    Ok(if taken { port.checked_add(1).unwrap_or(port - 1) } else { port })
}

fn slurm_port(environment: &Environment) -> Option<u16> {
    let number = |name: &str| environment.get(name)?.parse::<u64>().ok();
    let job = number("SLURM_JOB_ID")?;
    let step = number("SLURM_STEP_ID").unwrap_or(0) % 40_000;
    Some((20_000 + (job % 40_000 + 7919 * step) % 40_000) as u16)
}

fn slurm_meeting_point(environment: &Environment) -> Result<Address> {
    let name = if environment.get("SLURM_STEP_NODELIST").is_some() {
        "SLURM_STEP_NODELIST"
    } else {
        "SLURM_JOB_NODELIST"
    };
    let Some(list) = environment.get(name) else {
        return Err(wrong(name, "", "it is not set", "start with srun, or set MASTER_ADDR"));
    };
    let hosts = hosts(list).map_err(|e| wrong(name, list, e, "set MASTER_ADDR to the host of rank 0"))?;
    Ok(Address::tcp(&hosts[0], slurm_port(environment).unwrap_or(DEFAULT_PORT)))
}

fn slurm_local_size(environment: &Environment) -> Option<(&'static str, usize)> {
    let node = environment.get("SLURM_NODEID").and_then(|n| n.parse::<usize>().ok());
    for name in ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"] {
        let Some(tasks) = environment.get(name).and_then(tasks_per_node) else { continue };
        if let Some(&n) = tasks.get(node.unwrap_or(if tasks.len() == 1 { 0 } else { usize::MAX })) {
            return Some((name, n));
        }
    }
    None
}

/// The variables of one launcher; of several names for one thing, the first that is set counts.
struct Names {
    launcher: Launcher,
    rank: &'static [&'static str],
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
}

impl Names {
    fn complete(&self, environment: &Environment) -> bool {
        let set = |names: &[&str]| names.iter().any(|n| environment.get(n).is_some());
        // srun sets PMI_RANK or PMIX_RANK as well, for MPI programs: then Slurm's own say more.
        let by_slurm = match self.launcher {
            Launcher::Hydra => environment.get("MPI_LOCALNRANKS").is_none(),
            Launcher::Pmix => environment.get("PMIX_NAMESPACE").is_some_and(|n| n.starts_with("slurm.")),
            _ => false,
        } && environment.get("SLURM_PROCID").is_some();
        let script = self.launcher == Launcher::Slurm && environment.get("SLURM_STEP_ID").is_none();
        set(self.rank) && set(self.size) && !by_slurm && !script
    }
}

const ALL: &[Names] = &[
    Names {
        launcher: Launcher::Torchrun,
        rank: &["RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
    },
    Names {
        launcher: Launcher::OpenMpi,
        rank: &["OMPI_COMM_WORLD_RANK"],
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
    },
    Names {
        launcher: Launcher::Hydra,
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID"],
        local_size: &["MPI_LOCALNRANKS"],
    },
    Names {
        launcher: Launcher::Pmix,
        rank: &["PMIX_RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
    },
    Names {
        launcher: Launcher::Slurm,
        rank: &["SLURM_PROCID"],
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &["SLURM_NTASKS_PER_NODE"],
    },
    Names {
        launcher: Launcher::Kubernetes,
        rank: &["JOB_COMPLETION_INDEX"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
    },
];

fn number(environment: &Environment, names: &[&'static str]) -> Result<Option<(&'static str, usize)>> {
    for name in names.iter().copied() {
        if let Some(text) = environment.get(name) {
            return match text.parse() {
                Ok(n) => Ok(Some((name, n))),
                Err(_) => Err(wrong(name, text, "not a number", "write a whole number, 0 or above")),
            };
        }
    }
    Ok(None)
}

fn below(name: &str, rank: usize, size_name: &str, size: usize) -> Result<()> {
    if rank < size {
        return Ok(());
    }
    let remedy = format!("ranks count from 0 to {}", size.saturating_sub(1));
    Err(wrong(name, &rank.to_string(), format!("not below {size_name}={size}"), &remedy))
}

/// Says what is missing, next to what was found.
fn nothing_complete(environment: &Environment) -> Error {
    let set = |names: &'static [&'static str]| names.iter().copied().find(|n| environment.get(n).is_some());
    for names in ALL {
        let (missing, found) = match (set(names.rank), set(names.size)) {
            (Some(found), Some(_)) if names.launcher == Launcher::Slurm => ("SLURM_STEP_ID", found),
            (Some(found), None) => (names.size[0], found),
            (None, Some(found)) => (names.rank[0], found),
            _ => continue,
        };
        let value = environment.get(found).unwrap_or_default();
        return wrong(
            missing,
            "",
            format!("it is not set, although {found}={value} is"),
            match names.launcher {
                Launcher::Slurm => "a batch job's script is no rank: start ranks in it with srun",
                Launcher::Kubernetes => "set it in the Job's manifest to its completions",
                _ => "set it as well, or let a launcher do so: nd-run, torchrun, mpirun, srun",
            },
        );
    }
    wrong(
        "RANK",
        "",
        "no launcher's variables are set",
        "start with nd-run, torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
    )
}

fn wrong(setting: &str, value: &str, problem: impl Into<String>, remedy: &str) -> Error {
    Error::Config {
        setting: setting.into(),
        value: value.into(),
        problem: problem.into(),
        remedy: remedy.into(),
    }
}

#[cfg(test)]
mod tests;
