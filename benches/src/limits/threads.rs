//! Threads that stay on cores of their own, start together, and are timed together.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Repetitions, of which the best counts.
const REPETITIONS: usize = 12;
/// A repetition lasts about so long, but at least one round.
const ENOUGH: f64 = 2e-3;
/// Spins before a waiting thread lets others run.
const SPINS: u32 = 20_000;
/// No round of work lasts so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many cores this process may run on.
pub fn cores() -> usize {
    allowed().len().max(1)
}

fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// Keeps the calling thread on the `index`-th of the allowed cores, where there are so many.
pub fn stay_on(index: usize) {
    if let Some(core) = allowed().get(index) {
        let mut set = CpuSet::new();
        set.set(*core);
        // Without it the times are only less steady.
        let _ = sched_setaffinity(None, &set);
    }
}

/// A barrier that spins.
pub struct Barrier {
    arrived: AtomicU64,
    threads: u64,
}

impl Barrier {
    /// For so many threads.
    pub fn new(threads: usize) -> Barrier {
        Barrier { arrived: AtomicU64::new(0), threads: threads as u64 }
    }

    /// Until all are here. Panics when one does not come for a minute: then it has panicked itself.
    pub fn wait(&self) {
        let mine = self.arrived.fetch_add(1, Ordering::AcqRel) + 1;
        let all = mine.div_ceil(self.threads) * self.threads;
        spin_until(|| self.arrived.load(Ordering::Acquire) >= all);
    }
}

/// Spins, then yields; panics after a minute.
pub fn spin_until(there: impl Fn() -> bool) {
    let mut since = None;
    loop {
        for _ in 0..SPINS {
            // No pause in between: it would be part of what is measured.
            if there() {
                return;
            }
        }
        let since = *since.get_or_insert_with(Instant::now);
        assert!(since.elapsed() < PATIENCE, "another measuring thread has not come for {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// The least time of a round, µs: each of `works` runs on a thread and core of its own, and a round ends when all have
/// done theirs. `meet`: they wait for each other after every round, not only at the end of a repetition.
pub fn timed<W: FnMut() + Send>(works: Vec<W>, meet: bool) -> f64 {
    let barrier = Barrier::new(works.len());
    let (count, agreed) = (works.len(), AtomicU32::new(1));
    std::thread::scope(|scope| {
        let threads: Vec<_> = works
            .into_iter()
            .enumerate()
            .map(|(index, mut work)| {
                let (barrier, agreed) = (&barrier, &agreed);
                scope.spawn(move || {
                    if count > 1 {
                        stay_on(index);
                    }
                    let mut repetition = |rounds: u32| {
                        barrier.wait();
                        let began = Instant::now();
                        for _ in 0..rounds {
                            work();
                            if meet {
                                barrier.wait();
                            }
                        }
                        barrier.wait();
                        began.elapsed().as_secs_f64() / f64::from(rounds)
                    };
                    repetition(1);
                    let probe = repetition(3).max(1e-9);
                    if index == 0 {
                        agreed.store((ENOUGH / probe).clamp(1.0, 1e6) as u32, Ordering::Release);
                    }
                    barrier.wait();
                    let rounds = agreed.load(Ordering::Acquire);
                    (0..REPETITIONS).map(|_| repetition(rounds)).fold(f64::INFINITY, f64::min) * 1e6
                })
            })
            .collect();
        threads.into_iter().filter_map(|t| t.join().ok()).fold(0.0, f64::max)
    })
}
