//! How many threads a rank computes with: the ranks of a host share its cores.

use nd_comm::launch::Launch;
use nd_training::train::Config;
use rustix::process::{Pid, getppid};
use rustix::thread::sched_getaffinity;

/// What candle and the library under it read when they first compute.
const THREADS: &str = "RAYON_NUM_THREADS";

/// The most threads for each core that a rank may use: with many more, each product waits until all had their turn.
const MOST: usize = 4;

/// Decides for this process, which is one rank and has not computed yet. `--threads` is strongest, then the variable. Tells if
/// those are more than can be of use.
pub fn decide(config: &Config, launch: &Launch) -> Option<String> {
    let cores = Cores::seen();
    let variable = || std::env::var(THREADS).ok()?.trim().parse().ok().filter(|&threads| threads > 0);
    let asked = config.threads.map(|threads| ("--threads", threads));
    let Some((name, threads)) = asked.or_else(|| Some((THREADS, variable()?))) else {
        sys::set(THREADS, share(&cores, launch.local_world_size.unwrap_or(1)));
        return None;
    };
    let most = MOST * cores.quota;
    sys::set(THREADS, threads.min(most));
    (threads > most).then(|| capped(name, threads, cores.quota, most))
}

fn capped(name: &str, threads: usize, cores: usize, most: usize) -> String {
    let cores = if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
    format!(
        "{name}={threads}: a rank may use {cores} here and computes with {most} threads, {MOST} a core, at most"
    )
}

/// Cores that this process may use.
struct Cores {
    /// Those that it may be scheduled on.
    own: usize,
    /// Those that its launcher may be scheduled on: more than its own where the launcher bound it to some of them.
    launchers: usize,
    /// Its own, or fewer where a quota gives it less time.
    quota: usize,
}

impl Cores {
    fn seen() -> Cores {
        let quota = std::thread::available_parallelism().map_or(1, usize::from);
        let count = |pid: Option<Pid>| sched_getaffinity(pid).map(|set| set.count() as usize);
        let own = count(None).unwrap_or(quota);
        let launchers = getppid().and_then(|pid| count(Some(pid)).ok()).unwrap_or(own);
        Cores { own, launchers: launchers.max(own), quota }
    }
}

/// Of `ranks` on one host each has as many threads as there are cores for it: those that it is bound to, or its part of all.
fn share(cores: &Cores, ranks: usize) -> usize {
    let together = if cores.quota < cores.own { cores.launchers.min(cores.quota) } else { cores.launchers };
    cores.quota.min(together / ranks.max(1)).max(1)
}

#[allow(unsafe_code)]
mod sys {
    /// Before anything is computed.
    pub fn set(name: &str, value: usize) {
        // SAFETY: nd-train has no other thread until its rank opens a communicator, so nobody reads the environment.
        unsafe { std::env::set_var(name, value.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_are_told_with_the_numbers() {
        let said = capped("--threads", 1000, 2, 8);
        assert_eq!(
            said,
            "--threads=1000: a rank may use 2 cores here and computes with 8 threads, 4 a core, at most"
        );
    }

    #[test]
    fn ranks_of_a_host_share_its_cores() {
        let threads = |own, launchers, quota, ranks| share(&Cores { own, launchers, quota }, ranks);
        assert_eq!([1, 2, 3, 4, 9].map(|ranks| threads(8, 8, 8, ranks)), [8, 4, 2, 2, 1]);
        // Bound to two of eight cores; to one of two sockets, together with three others.
        assert_eq!(threads(2, 8, 2, 4), 2);
        assert_eq!(threads(32, 64, 32, 8), 8);
        // A container that may use the time of four cores, on any of 64.
        assert_eq!([1, 2, 4, 8].map(|ranks| threads(64, 64, 4, ranks)), [4, 2, 1, 1]);
    }
}
