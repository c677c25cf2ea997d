//! Ranks as processes, or this process as one rank of a launcher's.

use nd_comm::launch::Launch;
use nd_comm::prelude::Communicator;
use nd_training::Mesh;
use nd_training::train::{Config, Trainer};

use super::error::Error;
use super::{run, threads};
use crate::launch::{Bind, Failure, Group, Output, Plan, given, settings};
use crate::say;

/// Ranks where neither --ranks nor the mesh says how many.
const RANKS: usize = 2;
/// Ranks on a core that are so many that a word is said.
const MANY: usize = 8;
/// The most that are started here.
const MOST: usize = 4096;

/// Runs all ranks that are this process's business.
pub fn run(config: &Config) -> Result<(), Error> {
    let settings = settings()?;
    crate::log::init(&settings.debug);
    match given()? {
        Some(launch) => one(config, &launch, &settings),
        None => processes(config),
    }
}

/// This process is one rank.
fn one(config: &Config, launch: &Launch, settings: &nd_comm::config::Config) -> Result<(), Error> {
    let speaks = speaks(launch.rank, launch.local_rank);
    let trained = || {
        if let Some(n) = config.ranks.filter(|n| *n != launch.world_size) {
            let (launcher, size) = (launch.launcher, launch.world_size);
            return Err(Error::Usage(format!(
                "--ranks {n}: {launcher} started {size} ranks; leave --ranks out"
            )));
        }
        let capped = threads::decide(config, launch);
        if let Some(capped) = capped.filter(|_| speaks) {
            say::line(capped);
        }
        let comm = Communicator::from_launch(launch, settings)?;
        run::rank(&comm, config)
    };
    match trained() {
        // Where all know the same one rank of each host speaks for all, and rank 0 where one has said it already.
        Err(e) if e.is_common() && !speaks => Err(Error::Told(e.code())),
        Err(e) if e.is_echo() && launch.rank > 0 => Err(Error::Told(e.code())),
        result => result,
    }
}

/// Whether this rank tells on its host what all ranks know: the first there, as each host may have a terminal of its own.
fn speaks(rank: usize, local_rank: Option<usize>) -> bool {
    local_rank.unwrap_or(rank) == 0
}

/// Starts this program again for each rank, on cores of its own where there are enough.
fn processes(config: &Config) -> Result<(), Error> {
    let ranks = ranks(config)?;
    // Each of them would find out the same.
    Trainer::check(config, ranks, ranks)?;
    let program = std::env::current_exe().map_err(|e| {
        Error::Machine(format!("cannot find this program to start ranks of it: {e}; is /proc mounted?"))
    })?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut plan = Plan::new(program, ranks);
    plan.arguments = std::env::args_os().skip(1).collect();
    plan.output = Output::Inherited;
    if ranks <= cores {
        plan.bind = Bind::Core;
    }
    if ranks > MANY * cores {
        say::line(format_args!("Starting {ranks} ranks on {cores} cores, which takes a while …"));
    }
    let mut group = Group::spawn(&plan, 0).map_err(|e| Error::Machine(e.to_string()))?;
    match group.wait_all() {
        None => Ok(()),
        Some(failure @ Failure { first, rank_zero, .. }) => match first.code() {
            // It has said why, or leaves it to rank 0, which has.
            code @ (1 | 2) if code == 2 || rank_zero == Some(code) => Err(Error::Told(code as u8)),
            _ => Err(Error::Machine(failure.first())),
        },
    }
}

/// What --ranks says, else what the mesh needs: two if it can be filled with two, or as few as it can.
pub(super) fn ranks(config: &Config) -> Result<usize, Error> {
    if let Some(ranks) = config.ranks {
        Mesh::parse(&config.mesh, ranks)?;
        if ranks > MOST {
            return Err(Error::Usage(format!(
                "--ranks {ranks}: one host starts {MOST} at most; use a launcher to start more on several"
            )));
        }
        return Ok(ranks);
    }
    let fits = |ranks: &usize| Mesh::parse(&config.mesh, *ranks).is_ok();
    match std::iter::once(RANKS).chain(1..=MOST).find(fits) {
        Some(ranks) => Ok(ranks),
        None => {
            let sizes = config.mesh.split(',').filter_map(|axis| axis.split_once('=')?.1.trim().parse().ok());
            let product = sizes.fold(1usize, |product, size: usize| product.saturating_mul(size));
            let of_few = || Mesh::parse(&config.mesh, RANKS).err().map(Error::from);
            match Mesh::parse(&config.mesh, product) {
                // Says what is wrong with it.
                Err(e) => Err(of_few().unwrap_or(e.into())),
                Ok(_) => Err(Error::Usage(format!(
                    "--mesh {}: needs {product} ranks, and one host starts {MOST} at most; use a launcher to start them on several",
                    config.mesh
                ))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_of_each_host_speaks() {
        assert_eq!(
            [(0, 0), (1, 1), (2, 0), (3, 1)].map(|(rank, local)| speaks(rank, Some(local))),
            [true, false, true, false]
        );
        // A launcher that does not say where ranks are.
        assert_eq!([0, 1].map(|rank| speaks(rank, None)), [true, false]);
    }

    #[test]
    fn the_mesh_says_how_many_ranks() {
        let of = |mesh: &str, given: Option<usize>| {
            ranks(&Config { mesh: mesh.into(), ranks: given, ..Config::default() }).map_err(|e| e.to_string())
        };
        assert_eq!(of("dp_shard=-1", None), Ok(2));
        assert_eq!(of("dp_shard=2,tp=2", None), Ok(4));
        assert_eq!(of("tp=3,dp_shard=-1", None), Ok(3));
        assert_eq!(of("dp_shard=1", None), Ok(1));
        assert_eq!(of("dp_shard=-1", Some(3)), Ok(3));
        assert!(of("tp=2", Some(3)).unwrap_err().contains("3"));
        assert!(of("pp=2", None).unwrap_err().contains("pp"));
        assert!(of("pp=9999", None).unwrap_err().contains("pp"));
        assert!(of("dp_replicate=1000,tp=1000", None).unwrap_err().contains("needs 1000000 ranks"));
    }
}
