//! Ranks as threads, as processes, or this process as one rank of a launcher's.

use std::time::{Duration, Instant};

use nd_comm::config::{Config, Setting, Source};
use nd_comm::launch::Launch;
use nd_comm::prelude::Communicator;

use super::arguments::Transport;
use super::error::Error;
use super::fault::{self, Fault};
use super::options::{Options, Roots};
use super::{remote, run};
use crate::launch::{Bind, Event, Failure, Group, Output, Plan, given, settings};

/// How long ranks may take, beyond what calls may wait, to start and to tell what they have learnt.
const LEARNING: Duration = Duration::from_secs(30);

/// Runs all ranks that are this process's business; whether all elements were right.
pub fn run(options: &Options) -> Result<bool, Error> {
    let config = config(options)?;
    crate::log::init(&config.debug);
    if let Some(launch) = given()? {
        return one(options, &launch, &config);
    }
    if let Some((file, shell)) = &options.hosts {
        return remote::run(file, shell, options.ranks, &config);
    }
    let ranks = options.ranks.unwrap_or_else(one_per_core);
    match options.roots {
        Roots::One(root) if root >= ranks => return Err(no_such_root(root, ranks)),
        _ => {}
    }
    fault::check(&options.faults, ranks, options.threads)?;
    match options.threads {
        true => threads(options, ranks, &config),
        false => processes(ranks, &options.faults, config.timeout),
    }
}

/// What the command line says about the communicator is stronger than the environment.
fn config(options: &Options) -> Result<Config, Error> {
    let mut config = settings()?;
    if let Some(algorithm) = &options.algorithm {
        config = config.with("ND_ALGO", algorithm)?;
    }
    let said = |s: &Setting| s.name == "ND_TIMEOUT" && s.source != Source::Default;
    if !options.faults.is_empty() && !config.settings().iter().any(said) {
        config = config.with_timeout(fault::TIMEOUT);
    }
    let transport = match options.transport {
        Some(Transport::Auto) => "auto",
        Some(Transport::Shm) => "shm",
        Some(Transport::Tcp) => "tcp",
        Some(Transport::Verbs) => "verbs",
        Some(Transport::Local) | None => return Ok(config),
    };
    Ok(config.with("ND_TRANSPORT", transport)?)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn one_per_core() -> usize {
    cores().max(2)
}

/// `-r` is out of range.
pub fn no_such_root(root: usize, ranks: usize) -> Error {
    let most = ranks - 1;
    Error::Usage(format!("-r {root}: no such rank; ranks are 0 to {most}, and -1 means each in turn"))
}

/// This process is one rank.
fn one(options: &Options, launch: &Launch, config: &Config) -> Result<bool, Error> {
    let measured = || {
        if options.threads {
            return Err(Error::Usage(format!(
                "--threads: {} started this process as one rank; leave it out",
                launch.launcher
            )));
        }
        let stated = options.ranks.filter(|_| options.hosts.is_none());
        if let Some(n) = stated.filter(|n| *n != launch.world_size) {
            let (launcher, size) = (launch.launcher, launch.world_size);
            return Err(Error::Usage(format!(
                "--ranks {n}: {launcher} started {size} ranks; leave --ranks out"
            )));
        }
        let comm = Communicator::from_launch(launch, config)?;
        run::rank(&comm, options, &format!("{} as processes", plural(launch.world_size)))
    };
    match measured() {
        // Rank 0 speaks for all, and goes when the table is there.
        Ok(wrong) => Ok(wrong == 0 || (launch.rank > 0 && options.faults.is_empty())),
        Err(e) if launch.rank > 0 && (e.is_echo() || e.code() == 2) => Err(Error::Told(e.code())),
        Err(e) => Err(e),
    }
}

fn plural(ranks: usize) -> String {
    format!("{ranks} rank{}", if ranks == 1 { "" } else { "s" })
}

/// Starts this program again for each rank, on cores of its own: two that begin on one core may share it for longer than a
/// short run lasts.
fn processes(ranks: usize, faults: &[Fault], timeout: Duration) -> Result<bool, Error> {
    let program = std::env::current_exe().map_err(|e| {
        Error::Machine(format!("cannot find this program to start ranks of it: {e}; is /proc mounted?"))
    })?;
    let mut plan = Plan::new(program, ranks);
    plan.arguments = std::env::args_os().skip(1).collect();
    plan.output = Output::Inherited;
    if ranks <= cores() {
        plan.bind = Bind::Core;
    }
    let mut group = Group::spawn(&plan, 0).map_err(|e| Error::Machine(e.to_string()))?;
    if !faults.is_empty() {
        return struck(&mut group, ranks, faults, timeout);
    }
    match group.wait_all() {
        None => Ok(true),
        Some(failure @ Failure { first, .. }) => match first.code() {
            // It has said why.
            code @ (1 | 2) if first.rank == 0 || code == 2 => Err(Error::Told(code as u8)),
            _ => Err(Error::Machine(failure.first())),
        },
    }
}

/// Waits for all that go on, which say what they know themselves, and tells how many named the right rank.
fn struck(group: &mut Group, ranks: usize, faults: &[Fault], timeout: Duration) -> Result<bool, Error> {
    let survivors = fault::survivors(faults, ranks);
    let until = Instant::now() + fault::last(faults) + 2 * timeout + LEARNING;
    let (mut ended, mut right) = (0, 0);
    while ended < survivors.len() {
        match group.wait(None, Some(until)) {
            Event::Ended(one) if one.code() == 2 => return Err(Error::Told(2)),
            Event::Ended(one) if survivors.contains(&one.rank) => {
                ended += 1;
                right += usize::from(one.code() == 0);
            }
            Event::Ended(_) | Event::Other => {}
            Event::Time => break,
        }
    }
    // One that was stopped does not end by itself.
    group.end(Duration::from_millis(200));
    let (all, silent) = (survivors.len(), survivors.len() - ended);
    let late = if silent > 0 { format!("; {silent} said nothing and were ended") } else { String::new() };
    fault::verdict(right, all, faults, &late)
}

fn threads(options: &Options, n: usize, config: &Config) -> Result<bool, Error> {
    let ranks = Communicator::local_with(n, config)?;
    let how = format!("{} as threads", plural(n));
    let results: Vec<Result<u64, Error>> = std::thread::scope(|scope| {
        let spawned: Vec<_> = ranks
            .into_iter()
            .map(|comm| {
                let name = format!("rank {}", comm.rank());
                let (how, rank) = (&how, move |how: &str| run::rank(&comm, options, how));
                std::thread::Builder::new().name(name).spawn_scoped(scope, move || rank(how))
            })
            .collect();
        let join =
            |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, Result<u64, Error>>>| match thread {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|_| Err(Error::Machine("a rank panicked; report this".into()))),
                Err(e) => Err(Error::Machine(format!(
                    "cannot start a thread: {e}; lower --ranks, or raise `ulimit -u`"
                ))),
            };
        spawned.into_iter().map(join).collect()
    });
    if !options.faults.is_empty() {
        let right = results.iter().filter(|result| matches!(result, Ok(0))).count();
        let told =
            |result: Result<u64, Error>| if matches!(result, Err(Error::Told(_))) { Ok(0) } else { result };
        first_cause(results.into_iter().map(told).collect())?;
        return fault::verdict(right, n, &options.faults, "");
    }
    first_cause(results).map(|wrong| wrong == 0)
}

/// What happened first: an error that only follows from another rank's is told only if there is no other.
fn first_cause(results: Vec<Result<u64, Error>>) -> Result<u64, Error> {
    let mut echo = None;
    let mut wrong = 0;
    for result in results {
        match result {
            Ok(n) => wrong = n,
            Err(e) if e.is_echo() => echo = echo.or(Some(e)),
            Err(e) => return Err(e),
        }
    }
    echo.map_or(Ok(wrong), Err)
}
