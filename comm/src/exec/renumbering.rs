//! Numbers of calls begin anew when they are used up: nobody notices, ranks that wait for long included.

use std::sync::Barrier;
use std::time::Duration;

use crate::communicator::Communicator;
use crate::number::ReduceOp;

#[test]
fn calls_go_on_after_the_last_number() {
    let ranks = Communicator::local(3).unwrap();
    let all_here = Barrier::new(3);
    let all_here = &all_here;
    std::thread::scope(|s| {
        for comm in &ranks {
            s.spawn(move || {
                // Something is said of small numbers, and stays said.
                if comm.rank() == 2 {
                    std::thread::sleep(Duration::from_millis(300));
                }
                // More calls than a rank remembers.
                for _ in 0..20 {
                    comm.barrier().unwrap();
                }
                all_here.wait();
                comm.renumber(u64::from(u32::MAX) - 4);
                all_here.wait();
                for call in 0..10 {
                    if comm.rank() == call % 3 {
                        std::thread::sleep(Duration::from_millis(250));
                    }
                    let mut sum = vec![1f32; 1 << (2 * call)];
                    comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                    assert!(sum.iter().all(|x| *x == 3.0));
                    comm.broadcast(&mut sum, call % 3).unwrap();
                }
            });
        }
    });
    // A disagreement is found as before.
    let errors: Vec<String> = std::thread::scope(|s| {
        let call = |comm: &Communicator| match comm.rank() {
            0 => comm.all_reduce(&mut [0u8; 4], ReduceOp::Sum),
            _ => comm.barrier(),
        };
        let calls: Vec<_> = ranks.iter().map(|comm| s.spawn(move || call(comm))).collect();
        calls.into_iter().map(|c| c.join().unwrap().unwrap_err().to_string()).collect()
    });
    assert!(errors.iter().all(|e| e.contains("all_reduce") && e.contains("barrier")), "{errors:?}");
}
