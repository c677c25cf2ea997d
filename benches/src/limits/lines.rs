//! A cache line that two cores write in turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::threads::{spin_until, stay_on};

/// Short and many: of a busy machine some are undisturbed.
const ROUND_TRIPS: u64 = 2_000;
const REPETITIONS: u64 = 100;

/// Two lines that the processor does not fetch as one.
#[derive(Default)]
#[repr(align(128))]
struct Flag(AtomicU64);

/// From one core to another, one way, µs: half the best mean round trip.
pub fn one_way() -> f64 {
    let (there, back) = (Flag::default(), Flag::default());
    let last = REPETITIONS * ROUND_TRIPS;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stay_on(1);
            for turn in 1..=last {
                spin_until(|| there.0.load(Ordering::Acquire) == turn);
                back.0.store(turn, Ordering::Release);
            }
        });
        let measuring = scope.spawn(|| {
            stay_on(0);
            let mut least = f64::INFINITY;
            for repetition in 0..REPETITIONS {
                let began = Instant::now();
                for turn in 1..=ROUND_TRIPS {
                    let turn = repetition * ROUND_TRIPS + turn;
                    there.0.store(turn, Ordering::Release);
                    spin_until(|| back.0.load(Ordering::Acquire) == turn);
                }
                least = least.min(began.elapsed().as_secs_f64());
            }
            least * 1e6 / ROUND_TRIPS as f64 / 2.0
        });
        measuring.join().unwrap_or(0.0)
    })
}
