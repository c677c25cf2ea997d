//! Two ranks on two hosts, threads of a program that a test has started: how they are told what to do, and what they say.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use nd_comm::choose::Chooser;
use nd_comm::communicator::Communicator;
use nd_comm::number::ReduceOp;
use nd_transport::secure::Secret;
use nd_transport::{Choice, Config, Endpoint, Opening, Result};

use super::root;
use crate::worlds::each;

/// How many.
pub const RANKS: usize = 2;
/// Longer than anything here takes; what is noticed otherwise than by a deadline ends before.
pub const LONG: Duration = Duration::from_secs(600);
/// The variable that says by what they reach each other: verbs, or `auto`.
pub const ASKED: &str = "ASKED_TRANSPORT";
/// The variable by which they go on until something fails.
pub const ON: &str = "ON_AND_ON";

/// Variables that tell the ranks what to do: all of them, or each, separated by semicolons.
pub const HCA: &str = "ASKED_HCA";
/// See above.
pub const GID: &str = "ASKED_GID_INDEX";
/// Bytes that may be locked.
pub const MEMLOCK: &str = "LOCKED_MEMORY";

/// What both are told.
pub fn config(rank: usize) -> Config {
    let asked = std::env::var(ASKED).unwrap_or_default();
    let transport = if asked == "auto" { Choice::Auto } else { Choice::Verbs };
    let mut config = Config { transport, host_id: Some(format!("host-{rank}")), ..Config::default() };
    config.verbs.sysfs = root().unwrap_or(config.verbs.sysfs);
    config
}

/// The same, with what these variables say.
pub fn asked(rank: usize) -> Config {
    let mut config = config(rank);
    let hca = std::env::var(HCA).unwrap_or_else(|_| "=mock0;=mock1".into());
    config.verbs.hca = hca.split(';').nth(rank).unwrap_or(&hca).into();
    config.verbs.gid_index = std::env::var(GID).ok().and_then(|index| index.parse().ok());
    config
}

/// This process may lock no more than such a variable says.
pub fn limit_locked_memory() {
    if let Some(bytes) = std::env::var(MEMLOCK).ok().and_then(|bytes| bytes.parse().ok()) {
        let limit = rustix::process::Rlimit { current: Some(bytes), maximum: Some(bytes) };
        rustix::process::setrlimit(rustix::process::Resource::Memlock, limit).expect("a lower limit");
    }
}

/// Connects them; one error if a rank cannot begin.
pub fn endpoints(config: impl Fn(usize) -> Config) -> Vec<Result<Endpoint>> {
    endpoints_of(RANKS, config)
}

/// The same of so many ranks.
pub fn endpoints_of(ranks: usize, config: impl Fn(usize) -> Config) -> Vec<Result<Endpoint>> {
    let openings: Result<Vec<Opening>> = (0..ranks).map(|rank| Endpoint::open(&config(rank))).collect();
    let openings = match openings {
        Ok(openings) => openings,
        Err(e) => return vec![Err(e)],
    };
    let cards: Vec<_> = openings.iter().map(|o| o.card().clone()).collect();
    let (secret, deadline) = (Secret::random(), Instant::now() + LONG);
    std::thread::scope(|s| {
        let connect = |(rank, opening): (usize, Opening)| {
            let (cards, secret) = (cards.clone(), secret.clone());
            s.spawn(move || opening.connect(rank, cards, &secret, deadline))
        };
        let threads: Vec<_> = openings.into_iter().enumerate().map(connect).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

/// Warnings go to standard error.
pub fn log() {
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    log.with_max_level(tracing_subscriber::filter::LevelFilter::WARN).init();
}

/// Communicators of so many ranks, as far as they come about; the others say why not.
pub fn world(ranks: usize, config: impl Fn(usize) -> Config) -> Vec<Communicator> {
    log();
    let (mut world, secret) = (Vec::new(), Secret::random());
    for (rank, endpoint) in endpoints_of(ranks, config).into_iter().enumerate() {
        match endpoint.map(|e| Communicator::on(e, secret.clone(), Chooser::default(), LONG)) {
            Ok(comm) => world.push(comm.expect("a communicator")),
            Err(e) => println!("\nrank {rank}: error: {e}"),
        }
    }
    world
}

/// Both call, once or until something fails, and say how they fared.
pub fn run(config: impl Fn(usize) -> Config) {
    let world = world(RANKS, config);
    if world.len() == RANKS {
        // What a device tells of itself is heard when a rank next looks at it.
        let rounds = if std::env::var_os(ON).is_some() { 1000 } else { 1 };
        each(&world, |comm| match (0..rounds).try_for_each(|_| call(comm)) {
            Ok(()) => println!("\nrank {}: right", comm.rank()),
            Err(e) => println!("\nrank {}: error: {e}", comm.rank()),
        });
    }
}

/// Sums over both kinds of buffers, of sizes that travel in every way there is.
fn call(comm: &Communicator) -> nd_comm::Result<()> {
    for round in 0..6 {
        for len in [1, 500, 40_000, 300_000] {
            let given = |i: usize| (comm.rank() * 1000 + round * 10 + i % 7) as u64;
            let sum = |i: usize| 1000 + 2 * (round * 10 + i % 7) as u64;
            let mut registered = comm.alloc::<u64>(len)?;
            registered.iter_mut().enumerate().for_each(|(i, x)| *x = given(i));
            comm.all_reduce(&mut registered, ReduceOp::Sum)?;
            assert!(registered.iter().enumerate().all(|(i, x)| *x == sum(i)), "a wrong result");
            let mut plain: Vec<u64> = (0..len).map(given).collect();
            comm.all_reduce(&mut plain, ReduceOp::Sum)?;
            assert!(plain.iter().enumerate().all(|(i, x)| *x == sum(i)), "a wrong result");
        }
    }
    Ok(())
}
