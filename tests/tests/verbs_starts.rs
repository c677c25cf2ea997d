//! How ranks come to use verbs, or not, and what all of them then say: over devices of memory that fail when told to (see
//! [`nd_tests::mock`]). Each test starts this program again.

use nd_comm::communicator::Communicator;
use nd_comm::number::ReduceOp;
use nd_comm::rendezvous::UniqueId;
use nd_tests::mock::Machine;
use nd_tests::mock::ranks::{self, ASKED, GID, HCA, LONG, MEMLOCK, RANKS};
use nd_tests::worlds::each;
use nd_transport::Config;

#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// Ranks of two hosts, two of each.
fn of_host(rank: usize) -> Config {
    Config { host_id: Some(format!("host-{}", rank / 2)), ..ranks::asked(rank) }
}

#[test]
#[ignore = "is started by another test"]
fn four_ranks_of_two_hosts() {
    ranks::limit_locked_memory();
    let world = ranks::world(4, of_host);
    each(&world, |comm| {
        let mut sum = [1u64; 40_000];
        comm.all_reduce(&mut sum, ReduceOp::Sum).expect("a sum");
        // Groups are joined anew.
        let part = comm.split((comm.rank() % 2) as u64, 0).expect("a group");
        part.all_reduce(&mut sum, ReduceOp::Sum).expect("a sum");
        assert!(sum.iter().all(|sum| *sum == 8));
        println!("\nrank {}: right", comm.rank());
    });
}

/// Whatever several ranks find out, whether before they connect or while they do, each host says it once, and nothing twice.
#[test]
fn what_all_ranks_of_a_host_would_warn_of_is_said_once_for_each_host() {
    let said = |machine: Machine| {
        let said = machine.variable(ASKED, "auto").role("four_ranks_of_two_hosts");
        (0..4).for_each(|rank| assert!(said.contains(&format!("\nrank {rank}: right")), "{said}"));
        let warnings = said.lines().filter(|line| line.contains("WARN")).map(str::to_owned);
        warnings.collect::<Vec<_>>()
    };
    let all = "=mock0,mock1";
    for faults in ["reg_mr=ENOMEM", "create_cq=ENOMEM", "create_qp=EIO", "query_port=down", "write=lost"] {
        let warnings = said(Machine::new(2).faults(faults).variable(HCA, all).variable(MEMLOCK, "65536"));
        assert_eq!(warnings.len(), 2, "{faults}: {warnings:?}");
        for warning in warnings {
            has(&warning, &["TCP is used with rank", "not verbs: "]);
            assert!(warning.matches("ulimit -l unlimited").count() <= 1, "{warning}");
        }
    }
    let warnings = said(Machine::new(2).variable(HCA, "=mock0,mock1,mlx7,mlx9"));
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    warnings.iter().for_each(|warning| has(warning, &["mlx7, mlx9 matches no RDMA port"]));
}

/// Two ranks that meet as those of any job do.
#[test]
#[ignore = "is started by the other tests"]
fn starts() {
    ranks::log();
    ranks::limit_locked_memory();
    let settings = |rank: usize| {
        let mut settings = nd_comm::config::Config::default().with_timeout(LONG);
        settings.transport = Config { start_timeout: LONG, ..ranks::asked(rank) };
        settings
    };
    let id = UniqueId::create(&settings(0)).expect("an id");
    let start = |rank: usize| -> nd_comm::Result<()> {
        let comm = Communicator::new(&id, rank, RANKS, &settings(rank))?;
        println!("\nrank {rank}: started");
        let part = comm.split(0, 0)?;
        println!("\nrank {rank}: split");
        let mut sum = vec![1u64; 40_000];
        part.all_reduce(&mut sum, ReduceOp::Sum)?;
        assert!(sum.iter().all(|sum| *sum == 2));
        println!("\nrank {rank}: right");
        Ok(())
    };
    std::thread::scope(|s| {
        for rank in 0..RANKS {
            s.spawn(move || start(rank).unwrap_or_else(|e| println!("\nrank {rank}: error: {e}")));
        }
    });
}

/// What only one rank is told wrongly, or cannot do, every rank hears at once, with that rank and the reason.
#[test]
fn what_keeps_one_rank_from_starting_is_told_to_all() {
    let told = |machine: Machine, who: usize, words: &[&str]| {
        let said = machine.role("starts");
        for rank in 0..RANKS {
            let mark = format!("rank {rank}: error: ");
            let line = said.lines().find_map(|line| line.strip_prefix(&mark));
            let line = line.unwrap_or_else(|| panic!("no error of rank {rank}: {said}"));
            has(line, words);
            if rank != who {
                has(line, &[&format!("rank {who} (host "), "cannot take part in the start"]);
            }
        }
    };
    for who in 0..RANKS {
        let hca = if who == 0 { "=mlx9;=mock1" } else { "=mock0;=mlx9" };
        for asked in ["auto", "verbs"] {
            let machine = Machine::new(2).variable(HCA, hca).variable(ASKED, asked);
            told(machine, who, &["ND_IB_HCA `=mlx9` matches no RDMA port", "mock0:1"]);
        }
        let only = |machine: Machine| machine.without_address(who, 1).variable(GID, "1");
        told(only(Machine::new(2)), who, &["ND_IB_GID_INDEX", &format!("mock{who}")]);
    }
}

/// What cannot be registered is found out where ranks meet or a group is made, on all of them, and before anything relies on
/// it: then TCP is used, or where verbs were asked for all have an error with the number and what to do.
#[test]
fn memory_that_cannot_be_registered_is_found_out_where_groups_are_made() {
    let (mut starts, mut splits) = (0, 0);
    for last in 1.. {
        let scarce =
            || Machine::new(2).faults(&format!("mock0/reg_mr#{last}+=ENOMEM")).variable(MEMLOCK, "65536");
        let said = scarce().role("starts");
        let all = |what: &str| (0..RANKS).all(|rank| said.contains(&format!("\nrank {rank}: {what}")));
        if all("right") {
            break;
        }
        assert!(all("error: ") && !said.contains("right"), "{last}: {said}");
        for line in said.lines().filter(|line| line.contains(": error: ")) {
            has(line, &["ND_TRANSPORT=verbs, but ", "KiB of locked memory", "ulimit -l unlimited"]);
        }
        // None has it where the other one has not.
        assert_eq!(all("started"), said.contains(": started"), "{last}: {said}");
        assert!(!said.contains(": split"), "{last}: {said}");
        *if all("started") { &mut splits } else { &mut starts } += 1;
        let said = scarce().variable(ASKED, "auto").role("starts");
        assert!((0..RANKS).all(|rank| said.contains(&format!("\nrank {rank}: right"))), "{last}: {said}");
        let warnings = said.lines().filter(|line| line.contains("WARN")).count();
        assert!((1..=RANKS).contains(&warnings), "{last}: one of each host at most: {said}");
    }
    assert!(starts > 0 && splits > 0, "{starts} {splits}");
}
