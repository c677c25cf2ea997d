//! What fails on devices and on the way between them, and what all ranks then say: over devices of memory that fail when
//! told to (see [`nd_tests::mock`]). Each test starts this program again, where two ranks call collectives.

use std::time::{Duration, Instant};

use nd_comm::choose::Chooser;
use nd_comm::communicator::Communicator;
use nd_comm::number::ReduceOp;
use nd_tests::mock::{self, Machine};
use nd_tests::worlds::each;
use nd_transport::secure::Secret;
use nd_transport::{Choice, Config, Endpoint, Opening, Result};

/// Longer than anything here takes; what is noticed otherwise than by a deadline ends before.
const LONG: Duration = Duration::from_secs(600);
const RANKS: usize = 2;
/// Variables that tell the ranks what to do.
const ASKED: &str = "ASKED_TRANSPORT";
const HCA: &str = "ASKED_HCA";
const GID: &str = "ASKED_GID_INDEX";
const MEMLOCK: &str = "LOCKED_MEMORY";

fn config(rank: usize) -> Config {
    let asked = std::env::var(ASKED).unwrap_or_default();
    let transport = if asked == "auto" { Choice::Auto } else { Choice::Verbs };
    let mut config = Config { transport, host_id: Some(format!("host-{rank}")), ..Config::default() };
    config.verbs.sysfs = mock::root().unwrap_or(config.verbs.sysfs);
    config.verbs.hca = std::env::var(HCA).unwrap_or_else(|_| format!("=mock{rank}"));
    config.verbs.gid_index = std::env::var(GID).ok().and_then(|index| index.parse().ok());
    config
}

fn endpoints() -> Vec<Result<Endpoint>> {
    let openings: Result<Vec<Opening>> = (0..RANKS).map(|rank| Endpoint::open(&config(rank))).collect();
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

/// Two ranks, each of which says how it fared.
#[test]
#[ignore = "is started by the other tests"]
fn ranks() {
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
    log.with_max_level(tracing::Level::WARN).init();
    if let Some(bytes) = std::env::var(MEMLOCK).ok().and_then(|bytes| bytes.parse().ok()) {
        assert_eq!(mock::limit_locked_memory(bytes), 0);
    }
    let said = |rank: usize, e: &dyn std::fmt::Display| println!("\nrank {rank}: error: {e}");
    let (mut world, secret) = (Vec::new(), Secret::random());
    for (rank, endpoint) in endpoints().into_iter().enumerate() {
        match endpoint.map(|e| Communicator::on(e, secret.clone(), Chooser::default(), LONG)) {
            Ok(comm) => world.push(comm.expect("a communicator")),
            Err(e) => said(rank, &e),
        }
    }
    if world.len() == RANKS {
        each(&world, |comm| match call(comm) {
            Ok(()) => println!("\nrank {}: right", comm.rank()),
            Err(e) => said(comm.rank(), &e),
        });
    }
    drop(world);
    println!("\n{}", mock::report());
}

/// What the ranks said. Panics if anything is left or misused.
#[track_caller]
fn run(machine: Machine) -> String {
    let said = machine.role("ranks");
    assert!(!said.contains("left:") && !said.contains("misuse:"), "{said}");
    said
}

/// Both ranks end with an error; what each of them says.
#[track_caller]
fn errors(machine: Machine) -> [String; RANKS] {
    let said = run(machine);
    [0, 1].map(|rank| {
        let mark = format!("rank {rank}: error: ");
        let line = said.lines().find_map(|line| line.strip_prefix(&mark));
        line.unwrap_or_else(|| panic!("no error of rank {rank}: {said}")).to_owned()
    })
}

/// Every result is right; what was said.
#[track_caller]
fn right(machine: Machine) -> String {
    let said = run(machine);
    for rank in 0..RANKS {
        assert!(said.contains(&format!("\nrank {rank}: right")), "{said}");
    }
    said
}

/// Bytes went by the devices; or none did, and so many warnings said why.
#[track_caller]
fn by_verbs(said: &str) {
    assert!(!said.contains("WARN") && !said.contains("sends: 0\n"), "{said}");
}

#[track_caller]
fn by_tcp(said: &str, words: &[&str]) {
    assert!(said.contains("\nsends: 0\n"), "{said}");
    let warnings: Vec<_> = said.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), RANKS, "one of each rank: {said}");
    for word in words {
        assert!(warnings.iter().all(|line| line.contains(word)), "{word}: {said}");
    }
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn without_faults_all_is_right() {
    by_verbs(&right(Machine::new(2)));
    by_verbs(&right(Machine::new(2).variable(ASKED, "auto")));
}

/// In a call: a work request that fails names the peer, on both ranks, and nothing is left.
#[test]
fn a_work_request_that_fails_ends_the_call_on_both_ranks() {
    for fault in ["mock0/send#40=status:12", "mock1/write#5=lost", "mock0/post_send#50=ENOMEM"] {
        let other = usize::from(fault.starts_with("mock0"));
        for error in errors(Machine::new(2).faults(fault)) {
            has(&error, &[&format!("rank {other} on "), "is lost: "]);
        }
    }
}

#[test]
fn what_cannot_be_made_at_the_start_is_told_and_tcp_is_used() {
    for call in ["open_device", "create_cq", "create_srq", "create_qp", "modify_qp_rtr"] {
        let machine = Machine::new(2).faults(&format!("mock0/{call}=EIO")).variable(ASKED, "auto");
        by_tcp(&right(machine), &["os error 5", "TCP is used"]);
    }
}
