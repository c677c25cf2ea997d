//! What is measured: the collectives, how many elements a size means for each, and their bus bandwidth.

use std::fmt;
use std::str::FromStr;

use nd_comm::config::nearest;
use nd_comm::schedule::Collective;

/// A collective to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bench(pub Collective);

/// Every collective, in the order of `nd-bench all`.
pub const ALL: [Bench; 10] = [
    Bench(Collective::AllReduce),
    Bench(Collective::AllGather),
    Bench(Collective::ReduceScatter),
    Bench(Collective::Broadcast),
    Bench(Collective::Reduce),
    Bench(Collective::Gather),
    Bench(Collective::Scatter),
    Bench(Collective::AllToAll),
    Bench(Collective::SendRecv),
    Bench(Collective::Barrier),
];

/// How many elements a call with a size has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// What the call is given and the table calls "count": of one rank's part where there are parts.
    pub count: usize,
    /// Of the larger input (on the root where only that has it).
    pub send: usize,
    /// Of the larger output.
    pub recv: usize,
}

impl Bench {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self.0 {
            Collective::AllReduce => "allreduce",
            Collective::AllGather => "allgather",
            Collective::ReduceScatter => "reducescatter",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::AllToAll => "alltoall",
            Collective::SendRecv => "sendrecv",
            Collective::Barrier => "barrier",
        }
    }

    /// The lengths for a size in bytes of the larger side, as nccl-tests rounds it: parts of all-gather,
    /// reduce-scatter and all-to-all are multiples of 16 bytes (`src/*.cu`, `*GetCollByteCount`).
    pub fn lengths(self, bytes: u64, element: usize, ranks: usize) -> Lengths {
        let all = (bytes / element as u64) as usize;
        let part = all / ranks;
        let aligned = part - part % (16 / element);
        let (count, send, recv) = match self.0 {
            Collective::AllGather => (aligned, 1, ranks),
            Collective::ReduceScatter => (aligned, ranks, 1),
            Collective::AllToAll => (aligned, ranks, ranks),
            Collective::Gather => (part, 1, ranks),
            Collective::Scatter => (part, ranks, 1),
            Collective::Barrier => (0, 0, 0),
            _ => (all, 1, 1),
        };
        Lengths { count, send: count * send, recv: count * recv }
    }

    /// Bus bandwidth over algorithm bandwidth: what the busiest link carries (nccl-tests, doc/PERFORMANCE.md).
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self.0 {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::ReduceScatter | Collective::AllGather | Collective::AllToAll => (n - 1.0) / n,
            Collective::Gather | Collective::Scatter => (n - 1.0) / n,
            Collective::Broadcast | Collective::Reduce | Collective::SendRecv | Collective::Barrier => 1.0,
        }
    }

    /// Whether there is an in-place form.
    pub fn in_place(self) -> bool {
        !matches!(self.0, Collective::SendRecv | Collective::Barrier)
    }
}

impl fmt::Display for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// `allreduce`, also `all_reduce`, `All-Reduce`, `all_reduce_perf`.
impl FromStr for Bench {
    type Err = String;

    fn from_str(text: &str) -> Result<Bench, String> {
        let lower = text.to_ascii_lowercase().replace(['-', '_'], "");
        let plain = lower.strip_suffix("perf").unwrap_or(&lower);
        ALL.into_iter().find(|b| b.name() == plain).ok_or_else(|| {
            let names = ALL.map(Bench::name);
            let near = nearest(plain, names.iter().copied().chain(["all"]));
            let hint = near.map_or(String::new(), |n| format!("; did you mean {n}?"));
            format!("no such collective{hint} (there are {} and all)", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_the_spellings_people_use() {
        for b in ALL {
            assert_eq!(b.name().parse(), Ok(b));
        }
        for text in ["all_reduce", "AllReduce", "all-reduce", "all_reduce_perf"] {
            assert_eq!(text.parse(), Ok(Bench(Collective::AllReduce)));
        }
        let e = "alreduce".parse::<Bench>().unwrap_err();
        assert!(e.contains("did you mean allreduce?"), "{e}");
        assert!("allgathr".parse::<Bench>().unwrap_err().contains("allgather?"));
    }

    #[test]
    fn sizes_are_rounded_as_nccl_tests_does() {
        let of = |c, bytes, element, n| Bench(c).lengths(bytes, element, n);
        use Collective::*;
        assert_eq!(of(AllReduce, 1001, 4, 3), Lengths { count: 250, send: 250, recv: 250 });
        // 1000 / 4 / 3 = 83 elements, down to a multiple of 4.
        assert_eq!(of(AllGather, 1000, 4, 3), Lengths { count: 80, send: 80, recv: 240 });
        assert_eq!(of(ReduceScatter, 1000, 4, 3), Lengths { count: 80, send: 240, recv: 80 });
        assert_eq!(of(AllToAll, 1000, 1, 3), Lengths { count: 320, send: 960, recv: 960 });
        assert_eq!(of(Gather, 1000, 4, 3), Lengths { count: 83, send: 83, recv: 249 });
        assert_eq!(of(Scatter, 1000, 8, 3), Lengths { count: 41, send: 123, recv: 41 });
        assert_eq!(of(AllGather, 8, 4, 2), Lengths { count: 0, send: 0, recv: 0 });
        assert_eq!(of(SendRecv, 8, 8, 2).count, 1);
    }

    #[test]
    fn factors() {
        assert_eq!(Bench(Collective::AllReduce).bus_factor(4), 1.5);
        assert_eq!(Bench(Collective::AllToAll).bus_factor(4), 0.75);
        assert_eq!(Bench(Collective::Broadcast).bus_factor(4), 1.0);
    }
}
