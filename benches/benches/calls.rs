//! What a call costs besides moving data, and what choosing its algorithm adds: `cargo bench -p nd-benches --bench
//! calls`.
//!
//! One rank, which waits for nobody, and two threads that exchange 4 bytes. "Chosen" are communicators that weigh all
//! algorithms by their costs, "forced" ones that were told the algorithm which the others choose. The batches of both
//! alternate; each number is the median of many.

use std::time::Instant;

use nd_comm::choose::{Asked, Chooser};
use nd_comm::communicator::Communicator;
use nd_comm::number::{DataType, ReduceOp};
use nd_comm::schedule::Collective;
use nd_tests::worlds::{Kind, each, world};

const BATCHES: usize = 301;
const CALLS: usize = 2000;
/// More shapes than one, so that the last plan is never the next one.
const LENGTHS: [usize; 4] = [1, 2, 3, 4];

fn main() {
    for ranks in [1, 2] {
        let chosen = world(&Kind::Local, ranks, &Chooser::default());
        let explained = chosen[0]
            .explain(Collective::AllReduce, 1, DataType::F32, Some(ReduceOp::Sum))
            .expect("an all-reduce can be performed");
        let asked = vec![Asked::by_name(&[explained.algorithm])];
        let forced = world(&Kind::Local, ranks, &Chooser { asked, ..Chooser::default() });
        for (what, lengths) in [("the same call", &LENGTHS[..1]), ("calls of four shapes", &LENGTHS[..])] {
            let mut times = [Vec::new(), Vec::new()];
            for batch in 0..2 * BATCHES {
                let which = (batch + batch / 2) % 2;
                times[which].push(call([&chosen, &forced][which], lengths));
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

/// ns of a call, on the slowest rank.
fn call(ranks: &[Communicator], lengths: &[usize]) -> f64 {
    let times = each(ranks, |comm| {
        let mut buffer = comm.alloc::<f32>(LENGTHS[LENGTHS.len() - 1]).expect("memory");
        buffer.fill(0.0);
        comm.barrier().expect("all are there");
        let began = Instant::now();
        for i in 0..CALLS {
            let part = &mut buffer[..lengths[i % lengths.len()]];
            comm.all_reduce(part, ReduceOp::Sum).expect("all are there");
        }
        began.elapsed().as_secs_f64() * 1e9 / CALLS as f64
    });
    times.into_iter().fold(0.0, f64::max)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
