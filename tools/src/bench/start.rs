//! Ranks as threads, as processes, or this process as one rank of a launcher's.

use std::time::Duration;

use nd_comm::choose::Chooser;
use nd_comm::prelude::Communicator;

use super::arguments::Options;
use super::error::Error;
use super::run;

/// How long a call may take among threads.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Runs all ranks that are this process's business; the number of wrong elements.
pub fn run(options: &Options) -> Result<u64, Error> {
    let ranks = options.ranks.unwrap_or_else(one_per_core);
    if options.threads {
        return threads(options, ranks);
    }
    Err(Error::Usage("ranks as processes cannot be started yet; add --threads".into()))
}

fn one_per_core() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().max(2))
}

fn threads(options: &Options, n: usize) -> Result<u64, Error> {
    let chooser = Chooser {
        asked: options.algorithm.iter().map(|a| (None, a.split(',').map(str::to_owned).collect())).collect(),
        ..Chooser::default()
    };
    let secret = nd_transport::secure::Secret::random();
    let endpoints = nd_transport::local::group(n, &nd_transport::Config::default())
        .map_err(|source| nd_comm::Error::Transport { rank: 0, source })?;
    let ranks: Vec<Communicator> = endpoints
        .into_iter()
        .map(|endpoint| Communicator::on(endpoint, secret.clone(), chooser.clone(), TIMEOUT))
        .collect::<Result<_, _>>()?;
    let how = format!("{n} rank{} as threads", if n == 1 { "" } else { "s" });
    let results: Vec<Result<u64, Error>> = std::thread::scope(|scope| {
        let spawned: Vec<_> = ranks
            .into_iter()
            .map(|comm| {
                let name = format!("rank {}", comm.rank());
                std::thread::Builder::new().name(name).spawn_scoped(scope, || {
                    let comm = comm;
                    run::rank(&comm, options, &how)
                })
            })
            .collect();
        let join = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, Result<u64, Error>>>| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err(Error::Machine("a rank panicked; report this".into()))),
            Err(e) => Err(Error::Machine(format!("cannot start a thread: {e}; lower --ranks, or raise `ulimit -u`"))),
        };
        spawned.into_iter().map(join).collect()
    });
    first_cause(results)
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
