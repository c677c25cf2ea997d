//! What the machine itself can do, so that a result stands beside its limit.
//!
//! | file | what |
//! |---|---|
//! | `bound` | the least time of a collective, from what follows — *pure* |
//! | `memory` | copies by one and by all threads, a sum |
//! | `reduction` | an all-reduce by threads that see all buffers |
//! | [`sums`] | our own sums of 16-bit floats beside those of f32 (`unsafe`) |
//! | `lines` | a cache line between two cores |
//! | `loopback` | spinning TCP: a ping-pong, an exchange, and a stream each way |
//! | `threads` | threads on cores of their own that start together |
//! | `kernels` | loops with the processor's vectors and streaming stores (`unsafe`) |
//!
//! Of several repetitions the best counts: whatever else runs on the machine only adds time.

mod bound;
mod kernels;
mod lines;
mod loopback;
mod memory;
mod reduction;
pub mod sums;
mod threads;

use std::collections::BTreeMap;

use serde::Serialize;

pub use threads::stay_on;

/// What was measured, on one machine at one time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Limits {
    /// Threads used where all work: the cores this process may run on, at most as many as ranks; at least 1.
    pub threads: usize,
    /// By size in bytes.
    pub sizes: BTreeMap<u64, AtSize>,
    /// A cache line from one core to another, one way, µs. None on one core.
    pub cache_line: Option<f64>,
    /// Four bytes over loopback TCP, one way, both sides spinning, µs. None on one core.
    pub tcp_one_way: Option<f64>,
    /// Four bytes over loopback TCP each way at once: both sides send, then spin for the other's, µs. None on one core.
    pub tcp_exchange: Option<f64>,
    /// Loopback TCP with a stream each way at the same time, GB/s (1e9) each way.
    pub tcp_stream: Option<f64>,
}

/// In µs; all data hot, in the cache it fits in.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct AtSize {
    /// `memcpy` of this size by one thread.
    pub copy: f64,
    /// The same by all threads at once, each with buffers of its own of this size.
    pub copy_all: f64,
    /// `c = a + b`, f32, of this size, by one thread.
    pub sum: f64,
    /// By number of ranks: an all-reduce by at most as many threads as cores, each of which reads its share of every
    /// rank's input and writes it to every rank's output.
    pub all_reduce: BTreeMap<usize, f64>,
}

/// Measures everything for `sizes` in bytes and all-reduces of `ranks`; `go_on` is asked in between.
pub fn measure(sizes: &[u64], ranks: &[usize], go_on: &dyn Fn() -> bool) -> Limits {
    let threads = threads::cores().min(ranks.iter().copied().max().unwrap_or(2)).max(1);
    let mut limits = Limits { threads, ..Limits::default() };
    for &size in sizes.iter().filter(|s| **s >= 4) {
        let bytes = size as usize;
        let mut at = AtSize {
            copy: memory::copy(bytes, 1),
            copy_all: memory::copy(bytes, threads),
            sum: memory::sum(bytes),
            all_reduce: BTreeMap::new(),
        };
        for &n in ranks {
            at.all_reduce.insert(n, reduction::all_reduce(bytes, n, threads.min(n)));
        }
        limits.sizes.insert(size, at);
        if !go_on() {
            return limits;
        }
    }
    if threads > 1 {
        limits.cache_line = Some(lines::one_way());
        limits.tcp_one_way = loopback::one_way().ok();
        limits.tcp_exchange = loopback::exchange().ok();
        limits.tcp_stream = loopback::stream().ok();
    }
    limits
}

/// What an all-reduce of `ranks` ranks is held against, in little time: threads that see all buffers, a cache line's way,
/// bare sockets.
pub fn of_all_reduce(sizes: &[u64], ranks: usize) -> Limits {
    let threads = threads::cores().min(ranks).max(1);
    let ideal = |size: u64| (ranks, reduction::all_reduce(size as usize, ranks, threads));
    let at = |size: u64| (size, AtSize { all_reduce: [ideal(size)].into(), ..AtSize::default() });
    let sizes = sizes.iter().filter(|size| **size >= 4).map(|size| at(*size)).collect();
    let several = |measure: &dyn Fn() -> Option<f64>| if threads > 1 { measure() } else { None };
    Limits {
        threads,
        sizes,
        cache_line: several(&|| Some(lines::one_way())),
        tcp_one_way: several(&|| loopback::one_way().ok()),
        tcp_exchange: several(&|| loopback::exchange().ok()),
        tcp_stream: None,
    }
}

impl Limits {
    /// Of two measurements of the same machine, what was better in each.
    pub fn best(mut self, other: &Limits) -> Limits {
        let least = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.cache_line = least(self.cache_line, other.cache_line);
        self.tcp_one_way = least(self.tcp_one_way, other.tcp_one_way);
        self.tcp_exchange = least(self.tcp_exchange, other.tcp_exchange);
        self.tcp_stream = least(self.tcp_stream.map(|s| -s), other.tcp_stream.map(|s| -s)).map(|s| -s);
        for (size, theirs) in &other.sizes {
            let own = self.sizes.entry(*size).or_insert_with(|| theirs.clone());
            own.copy = own.copy.min(theirs.copy);
            own.copy_all = own.copy_all.min(theirs.copy_all);
            own.sum = own.sum.min(theirs.sum);
            for (ranks, time) in &theirs.all_reduce {
                let own = own.all_reduce.entry(*ranks).or_insert(*time);
                *own = own.min(*time);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_measured_and_the_better_kept() {
        let limits = measure(&[4, 4096, 1 << 20], &[2, 3], &|| true);
        assert_eq!(limits.sizes.len(), 3);
        for at in limits.sizes.values() {
            assert!(at.copy > 0.0 && at.copy_all > 0.0 && at.sum > 0.0, "{at:?}");
            assert_eq!(at.all_reduce.keys().copied().collect::<Vec<_>>(), [2, 3]);
        }
        let mut slow = limits.clone();
        slow.cache_line = Some(1e9);
        slow.tcp_stream = Some(1e-9);
        slow.sizes.values_mut().for_each(|at| at.copy = 1e9);
        let best = slow.best(&limits);
        assert!(best.cache_line.is_none_or(|t| t < 1e9));
        assert_eq!(best.sizes, limits.sizes);
    }
}
