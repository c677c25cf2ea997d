//! A rank that starts a communicator and then has nothing to do: when it was ready, and what memory it took.
//!
//! The program `idle` is one such rank, to be started by nd-run; rank 0 prints what all have seen.

use std::fs;

use nd_comm::Result;
use nd_comm::prelude::{Communicator, ReduceOp};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Elements for each peer of the calls that use everything: twice what the slots of a lane hold (256 KiB).
const PART: usize = 1 << 17;

/// What all ranks have seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// How many ranks.
    pub ranks: usize,
    /// When the first rank began to start its communicator, on [`now`]'s clock.
    pub began: f64,
    /// When the last one had it.
    pub ready: f64,
    /// By how many bytes the memory of all ranks together had grown by then,
    pub started: f64,
    /// and when every pair of ranks had exchanged more than their buffers hold, and was idle again; if it was to.
    pub used: Option<f64>,
}

/// Seconds on the clock that all processes of the host share.
pub fn now() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// One rank's part; what all have seen, on rank 0. `used`: the communicator is used before it is idle.
pub fn rank(used: bool) -> Result<Option<Seen>> {
    let before = memory();
    let began = now();
    let comm = Communicator::from_env()?;
    let ready = now();
    // Nobody is still at work when memory is looked at.
    comm.barrier()?;
    let started = memory();
    comm.barrier()?;
    if used {
        exchange(&comm)?;
        comm.barrier()?;
    }
    let own = [began, ready, started - before, memory() - before];
    let mut all = vec![0.0; own.len() * comm.world_size()];
    comm.all_gather(&own, &mut all)?;
    let of = |index: usize| all.iter().skip(index).step_by(own.len()).copied();
    let seen = Seen {
        ranks: comm.world_size(),
        began: of(0).fold(f64::INFINITY, f64::min),
        ready: of(1).fold(0.0, f64::max),
        started: of(2).sum(),
        used: used.then(|| of(3).sum()),
    };
    Ok((comm.rank() == 0).then_some(seen))
}

/// Calls of every kind that go through slots, between all pairs; their own buffers are gone afterwards.
fn exchange(comm: &Communicator) -> Result<()> {
    let (ranks, rank) = (comm.world_size(), comm.rank());
    let (send, mut recv) = (vec![1f32; ranks * PART], vec![0f32; ranks * PART]);
    comm.all_to_all(&send, &mut recv)?;
    comm.all_reduce_into(&send, &mut recv, ReduceOp::Sum)?;
    for root in 0..ranks {
        comm.broadcast(&mut recv, root)?;
    }
    comm.group(|group| {
        for (peer, part) in recv.chunks_mut(PART).enumerate().filter(|(peer, _)| *peer != rank) {
            group.send(&send[..part.len()], peer)?;
            group.recv(part, peer)?;
        }
        Ok(())
    })
}

/// Bytes of anonymous and shared memory that are this process's, those of pages that several have divided among them
/// (proc_pid_smaps(5), `Pss`). Pages of files, the program's own, are not counted, nor what the kernel holds for it.
fn memory() -> f64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    sum(&text)
}

fn sum(text: &str) -> f64 {
    let kilobytes = text.lines().filter_map(|line| {
        let (name, rest) = line.split_once(':')?;
        let wanted = matches!(name, "Pss_Anon" | "Pss_Shmem");
        rest.split_whitespace().next().filter(|_| wanted)?.parse::<f64>().ok()
    });
    kilobytes.sum::<f64>() * 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_anonymous_and_shared() {
        let text = "5594-7ffd ---p 00000000 00:00 0  [rollup]\nRss:     1580 kB\nPss_Anon:    112 kB\n\
                    Pss_File:   180 kB\nPss_Shmem:     16 kB\n";
        assert_eq!(sum(text), 128.0 * 1024.0);
        let before = memory();
        let more = std::hint::black_box(vec![1u8; 8 << 20]);
        // Other tests of this process come and go, so not to the byte.
        assert!(before > 0.0 && memory() > 0.0 && more.len() == 8 << 20);
    }
}
