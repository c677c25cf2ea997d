//! What a call costs besides moving data, and what choosing its algorithm adds: `cargo bench -p nd-benches --bench
//! calls`.
//!
//! All-reduces of 4 to 16 bytes by one rank, which waits for nobody, and by two threads over each transport. "Chosen" are
//! communicators that weigh all algorithms by their costs, "forced" ones that were told the algorithm which the others
//! choose. Criterion measures the chosen ones and tells what has changed since it last did. It measures one after the
//! other, in which the machine's noise is larger than what choosing costs: therefore batches of chosen and forced calls
//! also alternate, and a line for each gives the medians of many.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};

use nd_benches::limits::stay_on;
use nd_comm::choose::{Asked, Chooser};
use nd_comm::communicator::Communicator;
use nd_comm::number::{DataType, ReduceOp};
use nd_comm::schedule::Collective;
use nd_tests::worlds::{Kind, each, world};

const BATCHES: usize = 301;
const CALLS: u64 = 2000;
/// More shapes than one, so that the last plan is never the next one.
const LENGTHS: [usize; 4] = [1, 2, 3, 4];
const SHAPES: [(&str, &[usize]); 2] = [("the same call", &[1]), ("calls of four shapes", &LENGTHS)];

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    small_calls(&mut criterion);
    criterion.final_summary();
    // Not when cargo only tries whether everything starts.
    if std::env::args().any(|word| word == "--bench") {
        alternating();
    }
}

fn small_calls(criterion: &mut Criterion) {
    for (kind, ranks) in [(Kind::Local, 1), (Kind::Local, 2), (Kind::Shm, 2), (Kind::Tcp, 2)] {
        let name = format!("all_reduce, {kind:?}, {ranks} {}", if ranks == 1 { "rank" } else { "ranks" });
        let mut group = criterion.benchmark_group(name);
        let world = world(&kind, ranks, &Chooser::default());
        for (what, lengths) in SHAPES {
            group.bench_function(BenchmarkId::from_parameter(what), |bencher| {
                bencher.iter_custom(|calls| time(&world, lengths, calls));
            });
        }
        group.finish();
    }
}

fn alternating() {
    for ranks in [1, 2] {
        let chosen = world(&Kind::Local, ranks, &Chooser::default());
        let explained = chosen[0]
            .explain(Collective::AllReduce, 1, DataType::F32, Some(ReduceOp::Sum))
            .expect("an all-reduce can be performed");
        let asked = vec![Asked::by_name(&[explained.algorithm])];
        let forced = world(&Kind::Local, ranks, &Chooser { asked, ..Chooser::default() });
        for (what, lengths) in SHAPES {
            let mut times = [Vec::new(), Vec::new()];
            for batch in 0..2 * BATCHES {
                let which = (batch + batch / 2) % 2;
                let batch = time([&chosen, &forced][which], lengths, CALLS);
                times[which].push(batch.as_secs_f64() * 1e9 / CALLS as f64);
            }
            let [chosen, forced] = times.map(median);
            println!(
                "{ranks} rank{}, {what} of {}: chosen {chosen:.0} ns, forced {forced:.0} ns, difference {:+.0} ns",
                if ranks == 1 { "" } else { "s" },
                explained.algorithm,
                chosen - forced
            );
        }
    }
}

/// Of so many calls back to back, on the slowest rank. Each is on a core of its own.
fn time(ranks: &[Communicator], lengths: &[usize], calls: u64) -> Duration {
    let times = each(ranks, |comm| {
        stay_on(comm.rank());
        let mut buffer = comm.alloc::<f32>(LENGTHS[LENGTHS.len() - 1]).expect("memory");
        buffer.fill(0.0);
        comm.barrier().expect("all are there");
        let began = Instant::now();
        for length in lengths.iter().cycle().take(calls as usize) {
            comm.all_reduce(&mut buffer[..*length], ReduceOp::Sum).expect("all are there");
        }
        began.elapsed()
    });
    times.into_iter().max().unwrap_or_default()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
