//! What names a job, so that the ranks of one host can meet without being told where.

use std::fs;

use super::Launcher;
use crate::config::Environment;

/// A name that all ranks of the job share and no other job on this host has; none: the launcher gives nothing.
///
/// What launchers really set (seen with Open MPI 4.1 and 5.0, MPICH 4 and 5, Intel MPI 2021.18): Open MPI
/// `PMIX_NAMESPACE` (`prterun-HOST-PID@1`, or the number in `OMPI_MCA_ess_base_jobid`); Intel MPI
/// `I_MPI_HYDRA_UUID`; MPICH nothing at all, so that the process which started the ranks has to stand for the job.
pub(super) fn name(environment: &Environment, launcher: Launcher) -> Option<String> {
    let first = |names: &[&str]| names.iter().find_map(|n| environment.get(n)).map(str::to_owned);
    let name = match launcher {
        Launcher::OpenMpi => first(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]),
        Launcher::Pmix => first(&["PMIX_NAMESPACE"]),
        Launcher::Hydra => {
            first(&["I_MPI_HYDRA_UUID"]).or_else(|| environment.launcher_process().map(str::to_owned))
        }
        Launcher::Slurm => {
            let step = environment.get("SLURM_STEP_ID").unwrap_or("none");
            environment.get("SLURM_JOB_ID").map(|job| format!("slurm-{job}.{step}"))
        }
        Launcher::Torchrun | Launcher::Kubernetes => None,
    }?;
    Some(name.chars().map(|c| if c.is_ascii_graphic() { c } else { '_' }).take(80).collect())
}

/// The hydra proxy above this process, as "hydra-PID@START" (pids come again, starts do not). The ranks of one host
/// have one proxy, whatever shells stand between; without it, nothing.
pub(super) fn launcher_process() -> Option<String> {
    let mut pid = std::process::id();
    // No real process tree is deeper.
    for _ in 0..64 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // "pid (name) state ppid …": the name may hold blanks and parentheses. See proc_pid_stat(5).
        let (name, rest) = (stat.split_once('(')?.1.rsplit_once(')')?.0, stat.rsplit_once(')')?.1);
        let fields: Vec<&str> = rest.split_whitespace().collect();
        if name.starts_with("hydra_pmi_proxy") {
            return Some(format!("hydra-{pid}@{}", fields.get(19)?));
        }
        pid = fields.get(1)?.parse().ok().filter(|p| *p > 1)?;
    }
    None
}
