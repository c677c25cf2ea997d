//! A storm of signals, whose handlers do not restart what they interrupt: worlds come to be, every call is right, sleeping
//! ranks sleep on. In a program of its own, since handlers are the process's.
#![allow(unsafe_code)] // handlers, signals to threads

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nd_comm::choose::Chooser;
use nd_comm::communicator::Communicator;
use nd_comm::config::Config;
use nd_comm::number::ReduceOp;
use nd_comm::rendezvous::UniqueId;
use nd_tests::calls::{COLLECTIVES, FORMS};
use nd_tests::worlds::{Kind, each, world};

static CAUGHT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn caught(_: libc::c_int) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

fn install(signal: libc::c_int) {
    // SAFETY: the handler only adds to an atomic; the structure is all zero but for what is set.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = caught as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // Without SA_RESTART.
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Sends SIGUSR1 and SIGALRM to every other thread, and makes children that end, until told to stop.
fn storm(stop: &AtomicBool) {
    // SAFETY: asks for numbers.
    let (process, own) = unsafe { (libc::getpid(), libc::syscall(libc::SYS_gettid)) };
    let mut round = 0u32;
    while !stop.load(Ordering::Relaxed) {
        let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let threads = threads.filter_map(|entry| entry.file_name().to_str()?.parse::<i64>().ok());
        for thread in threads.filter(|thread| *thread != own) {
            let signal = if round.is_multiple_of(2) { libc::SIGUSR1 } else { libc::SIGALRM };
            // SAFETY: a signal that has a handler, to a thread of this process, or to none.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
        }
        if round.is_multiple_of(100) {
            // Its end is a SIGCHLD.
            let _ = std::process::Command::new("true").status();
        }
        round += 1;
        std::thread::sleep(Duration::from_micros(300));
    }
}

struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn calls(ranks: &[Communicator]) {
    each(ranks, |comm| {
        for len in [1, 5000, 100_000] {
            for call in COLLECTIVES.iter().chain(&FORMS) {
                (call.make)(comm, len).unwrap_or_else(|e| panic!("{}: {e}", call.shown));
            }
            let mut sum = vec![comm.rank() as i64; len];
            comm.all_reduce(&mut sum, ReduceOp::Sum).expect("all_reduce");
            let n = comm.world_size() as i64;
            assert!(sum.iter().all(|x| *x == n * (n - 1) / 2));
        }
        // Long enough that the others sleep.
        if comm.rank() == 0 {
            std::thread::sleep(Duration::from_millis(400));
        }
        comm.barrier().expect("barrier");
        let half = comm.split(comm.rank() as u64 % 2, 0).expect("split");
        half.barrier().expect("barrier");
    });
}

#[test]
fn nothing_minds_a_storm_of_signals() {
    [libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD].into_iter().for_each(install);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let _stop = Stop(&stop);
        s.spawn(|| storm(&stop));
        let kinds = [
            Kind::Local,
            Kind::Shm,
            Kind::ShmWithoutAttach,
            Kind::Tcp,
            Kind::TcpEncrypted,
            Kind::Hosts(vec![0, 0, 1]),
        ];
        for kind in kinds {
            calls(&world(&kind, 3, &Chooser::default()));
        }
        // The whole start, with its rendezvous.
        for transport in ["shm", "tcp"] {
            let config = Config::default().with("ND_TRANSPORT", transport).expect("a setting");
            let id = UniqueId::create(&config).expect("an id");
            let ranks: Vec<Communicator> = std::thread::scope(|s| {
                let join = |rank| {
                    let (id, config) = (&id, &config);
                    s.spawn(move || Communicator::new(id, rank, 3, config).expect("it joins"))
                };
                let joining: Vec<_> = (0..3).map(join).collect();
                joining.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            calls(&ranks);
        }
    });
    assert!(CAUGHT.load(Ordering::Relaxed) > 1000, "{CAUGHT:?}");
}
