//! A communicator takes in new ranks: the old ones keep their numbers, and what goes wrong is named.

use std::time::Duration;

use nd_comm::choose::Chooser;
use nd_comm::prelude::*;
use nd_tests::collectives::all_collectives;
use nd_tests::jobs::free_port;
use nd_tests::worlds::{Kind, each, world};
use nd_transport::{Choice, PortRange};

const SOON: Duration = Duration::from_secs(40);

fn config(kind: &Kind) -> Config {
    let mut config = Config::default().with_start_timeout(SOON);
    match kind {
        Kind::Tcp | Kind::TcpEncrypted => config.transport.transport = Choice::Tcp,
        Kind::Shm => config.transport.transport = Choice::Shm,
        _ => {}
    }
    config.transport.encrypt = *kind == Kind::TcpEncrypted;
    config
}

/// Ranks that were joined by a start, as threads.
fn started(size: usize, config: &Config) -> Vec<Communicator> {
    started_with(&vec![config.clone(); size])
}

/// The same, with settings for each.
fn started_with(configs: &[Config]) -> Vec<Communicator> {
    let (id, size) = (UniqueId::create(&configs[0]).expect("an id"), configs.len());
    std::thread::scope(|s| {
        let join = |rank| {
            let (id, config): (_, &Config) = (&id, &configs[rank]);
            s.spawn(move || Communicator::new(id, rank, size, config).expect("it starts"))
        };
        let threads: Vec<_> = (0..size).map(join).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

#[test]
fn new_ranks_follow_the_old_ones() {
    for kind in [Kind::Local, Kind::Shm, Kind::Tcp, Kind::TcpEncrypted] {
        let config = config(&kind);
        let id = UniqueId::create(&config).expect("an id");
        std::thread::scope(|s| {
            for rank in [2, 3, 4] {
                let (id, config) = (&id, &config);
                s.spawn(move || {
                    let comm = Communicator::new(id, rank, 5, config).expect("it joins");
                    assert_eq!((comm.rank(), comm.world_size()), (rank, 5));
                    all_collectives(&comm).expect("it works");
                    comm.barrier().expect("it works");
                });
            }
            each(&started(2, &config), |comm| {
                let larger = comm.grow(&id, 5).expect("it grows");
                assert_eq!((larger.rank(), larger.world_size()), (comm.rank(), 5));
                assert_eq!(larger.layout().hosts().len(), 1);
                all_collectives(&larger).expect("it works");
                // The old one still works, beside it.
                all_collectives(comm).expect("it works");
                larger.barrier().expect("it works");
            });
        });
    }
}

#[test]
fn it_shrinks_and_grows_again() {
    let config = config(&Kind::Shm);
    let id = UniqueId::create(&config).expect("an id");
    std::thread::scope(|s| {
        let (id, config) = (&id, &config);
        s.spawn(move || {
            let comm = Communicator::new(id, 2, 3, config).expect("it joins");
            all_collectives(&comm).expect("it works");
            let all = comm.shrink().expect("all go on");
            all_collectives(&all).expect("it works");
        });
        for comm in started(3, config) {
            s.spawn(move || {
                if comm.rank() == 1 {
                    return;
                }
                let two = comm.shrink().expect("two go on");
                let three = two.grow(id, 3).expect("it grows");
                all_collectives(&three).expect("it works");
                let all = three.shrink().expect("all go on");
                all_collectives(&all).expect("it works");
            });
        }
    });
}

#[test]
fn ranks_that_give_different_ids_or_sizes_are_named_and_go_on_as_they_were() {
    let ids = [0, 1].map(|_| UniqueId::create(&Config::default()).expect("an id"));
    each(&world(&Kind::Shm, 3, &Chooser::default()), |comm| {
        let odd = comm.rank() == 2;
        let e = comm.grow(&ids[usize::from(odd)], 4).expect_err("different ids").to_string();
        assert!(e.contains("rank 2 gives another id than rank 0"), "{e}");
        let e = comm.grow(&ids[0], 4 + usize::from(odd)).expect_err("different sizes").to_string();
        assert!(e.contains("rank 2 gives 5 as the new size, rank 0 gives 4"), "{e}");
        let e = comm.grow(&ids[0], 3).expect_err("no larger").to_string();
        assert!(e.contains("size 3 is not above the present one, 3"), "{e}");
        all_collectives(comm).expect("it works");
    });
}

#[test]
fn new_ranks_that_do_not_come_are_named_and_the_old_ones_go_on_as_they_were() {
    let config = config(&Kind::Tcp).with_start_timeout(Duration::from_secs(2));
    let id = UniqueId::create(&config).expect("an id");
    std::thread::scope(|s| {
        let (id, config) = (&id, &config);
        s.spawn(move || {
            let e = Communicator::new(id, 3, 5, config).expect_err("two are missing").to_string();
            assert!(e.contains("ranks 2, 4 of 5 did not join within"), "{e}");
        });
        each(&started(2, config), |comm| {
            let e = comm.grow(id, 5).expect_err("two are missing").to_string();
            assert!(e.contains("ranks 2, 4 of 5 did not join within"), "{e}");
            all_collectives(comm).expect("it works");
        });
    });
}

#[test]
fn too_many_new_ranks_and_one_that_takes_an_old_ones_number_are_named() {
    let config = config(&Kind::Tcp);
    for (number, size, problem) in [(1, 3, "two processes say that they are rank 1"), (3, 4, "expects 4")] {
        let id = UniqueId::create(&config).expect("an id");
        std::thread::scope(|s| {
            let (id, config) = (&id, &config);
            s.spawn(move || {
                let e = Communicator::new(id, number, size, config).expect_err("one too many").to_string();
                assert!(e.contains(problem), "{e}");
            });
            each(&started(2, config), |comm| {
                let e = comm.grow(id, 3).expect_err("one too many").to_string();
                assert!(e.contains(problem), "{e}");
                all_collectives(comm).expect("it works");
            });
        });
    }
}

#[test]
fn who_knows_only_the_id_is_not_taken_for_an_old_rank() {
    let mut config = config(&Kind::Tcp);
    config.timeout = Duration::from_secs(3);
    let id = UniqueId::create(&config).expect("an id");
    // Rank 1 cannot come: it may use one port, and does already.
    let port = free_port();
    let mut short = config.clone();
    short.transport.ports = Some(PortRange { first: port, last: port });
    std::thread::scope(|s| {
        let (id, config) = (&id, &config);
        for rank in [1, 2] {
            s.spawn(move || {
                // Only the old ranks can tell; who joins waits for them in vain.
                let joined = Communicator::new(id, rank, 3, config);
                assert!(joined.and_then(|comm| comm.barrier()).is_err());
            });
        }
        each(&started_with(&[config.clone(), short]), |comm| {
            let e = comm.grow(id, 3).expect_err("rank 1 is somebody else").to_string();
            // The old rank 1 says that it cannot come: when another has its number already, before that, or when all are there.
            let said = [
                "two processes say that they are rank 1",
                "cannot take part in the start: ND_PORT_RANGE",
                "joined as rank 1 is not rank 1",
            ];
            let expected = if comm.rank() == 0 { &said[..] } else { &["ND_PORT_RANGE"] };
            assert!(expected.iter().any(|said| e.contains(said)), "{e}");
            all_collectives(comm).expect("it works");
        });
    });
}
