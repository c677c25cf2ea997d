//! Ranks as threads of one process, over every transport, real or broken on purpose.

use std::time::{Duration, Instant};

use nd_comm::choose::Chooser;
use nd_comm::communicator::Communicator;
use nd_transport::local::{Faults, faulty_group};
use nd_transport::secure::Secret;
use nd_transport::{Choice, Config, Endpoint};

/// How ranks are joined.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Threads.
    Local,
    /// Threads whose links cannot map or read, as over a network.
    PutOnly,
    /// The same, and puts take effect late, by this seed.
    Delayed(u64),
    /// A shared memory file.
    Shm,
    /// The same, without cross-memory attach.
    ShmWithoutAttach,
    /// TCP over loopback.
    Tcp,
    /// The same, encrypted.
    TcpEncrypted,
    /// Verbs, over a device of this machine.
    Verbs,
    /// Hosts by number: shared memory within, TCP across.
    Hosts(Vec<usize>),
}

impl Kind {
    /// Every kind, for `n` ranks: what contracts and collectives are tested on. A new transport is one line here. In a
    /// [virtual machine with RDMA](crate::machines), or with [devices of memory](crate::mock), it is verbs alone, which no
    /// other machine can be expected to have.
    pub fn all(n: usize) -> Vec<Kind> {
        if crate::machines::inside() || crate::mock::root().is_some() {
            return vec![Kind::Verbs];
        }
        vec![
            Kind::Local,
            Kind::PutOnly,
            Kind::Delayed(7),
            Kind::Shm,
            Kind::ShmWithoutAttach,
            Kind::Tcp,
            Kind::TcpEncrypted,
            Kind::Hosts((0..n).map(|r| r * 2 / n.max(1)).collect()),
        ]
    }

    /// Which rank is on which host.
    pub fn hosts(&self, n: usize) -> Vec<usize> {
        match self {
            Kind::Hosts(hosts) => hosts.clone(),
            _ => vec![0; n],
        }
    }
}

/// Endpoints of `n` ranks.
pub fn endpoints(kind: &Kind, n: usize) -> Vec<Endpoint> {
    // Whether or not it is faster here, both ways are to be right.
    let config = Config { cross_memory: true, ..Config::default() };
    let faults = |delay| Faults { put_only: true, delay, lose: None };
    let config_of = |rank: usize| {
        let mut config = config.clone();
        match kind {
            Kind::Shm => config.transport = Choice::Shm,
            Kind::ShmWithoutAttach => {
                config.transport = Choice::Shm;
                config.cross_memory = false;
            }
            Kind::Tcp => config.transport = Choice::Tcp,
            Kind::TcpEncrypted => {
                config.transport = Choice::Tcp;
                config.encrypt = true;
            }
            Kind::Verbs => {
                config.transport = Choice::Verbs;
                // Emulated machines stand still for a while now and then, not for long.
                config.verbs.timeout = 16;
                config.verbs.sysfs = crate::mock::root().unwrap_or(config.verbs.sysfs);
            }
            Kind::Hosts(hosts) => config.host_id = Some(format!("test-host-{}", hosts[rank])),
            _ => {}
        }
        config
    };
    match kind {
        Kind::Local => nd_transport::local::group(n, &config).expect("endpoints"),
        Kind::PutOnly => faulty_group(n, &config, &faults(None)).expect("endpoints"),
        Kind::Delayed(seed) => faulty_group(n, &config, &faults(Some((3, *seed)))).expect("endpoints"),
        _ => {
            let openings: Vec<_> =
                (0..n).map(|r| Endpoint::open(&config_of(r)).expect("an endpoint opens")).collect();
            let cards: Vec<_> = openings.iter().map(|o| o.card().clone()).collect();
            let secret = Secret::random();
            let deadline = Instant::now() + Duration::from_secs(60);
            std::thread::scope(|s| {
                let threads: Vec<_> = openings
                    .into_iter()
                    .enumerate()
                    .map(|(rank, opening)| {
                        let (cards, secret) = (cards.clone(), &secret);
                        s.spawn(move || opening.connect(rank, cards, secret, deadline).expect("it connects"))
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().expect("no panic")).collect()
            })
        }
    }
}

/// Communicators of `n` ranks.
pub fn world(kind: &Kind, n: usize, chooser: &Chooser) -> Vec<Communicator> {
    world_with(kind, n, chooser, Duration::from_secs(60))
}

/// The same, with a deadline for calls.
pub fn world_with(kind: &Kind, n: usize, chooser: &Chooser, timeout: Duration) -> Vec<Communicator> {
    let secret = Secret::random();
    endpoints(kind, n)
        .into_iter()
        .map(|e| Communicator::on(e, secret.clone(), chooser.clone(), timeout).expect("a communicator"))
        .collect()
}

/// Runs `f` for every rank at the same time, each in its thread; panics if one does.
pub fn each<R: Send>(world: &[Communicator], f: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|s| {
        let f = &f;
        let threads: Vec<_> = world.iter().map(|comm| s.spawn(move || f(comm))).collect();
        threads.into_iter().map(|t| t.join().expect("no rank panics")).collect()
    })
}
