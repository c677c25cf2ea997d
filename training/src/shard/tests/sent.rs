//! How often ranks call each other, and about how many bytes: exactly.

use std::collections::BTreeMap;

use super::*;
use crate::group::Kind as Call;

/// Elements of each unit, with parameters at multiples of 64 and shards that are multiples of it.
fn padded(model: &Perceptron, ranks: usize) -> Vec<u64> {
    let up = |len: usize, to: usize| len.div_ceil(to) * to;
    let unit = |u: &Unit| up(u.parameters.iter().map(|p| up(p.len(), 64)).sum(), 64 * ranks) as u64;
    model.units().iter().map(unit).collect()
}

struct Sent {
    calls: BTreeMap<(&'static str, Call), Entry>,
}

impl Sent {
    /// Of a job's last step, the same on all ranks.
    fn of(job: &Job, ranks: usize) -> Sent {
        let outcomes = job.run(ranks);
        assert!(outcomes.iter().all(|o| o.sent == outcomes[0].sent), "ranks send alike");
        Sent { calls: outcomes[0].sent.iter().map(|&(axis, kind, entry)| ((axis, kind), entry)).collect() }
    }

    fn take(&mut self, axis: &'static str, kind: Call) -> (u64, u64) {
        let entry = self.calls.remove(&(axis, kind)).unwrap_or_default();
        (entry.calls, entry.bytes)
    }

    fn nothing_else(self) {
        assert!(self.calls.is_empty(), "{:?}", self.calls);
    }
}

const RANKS: usize = 4;

fn job(zero: u8, micro_batches: usize, change: impl Fn(&mut Policy)) -> Job {
    let mut policy = Policy { zero, ..Policy::default() };
    change(&mut policy);
    Job { micro_batches, steps: 2, ..Job::new("dp_shard=4", policy) }
}

/// Bytes that each rank sends to gather or to scatter so many f32.
fn once(elements: u64) -> u64 {
    elements * 4 / RANKS as u64 * (RANKS as u64 - 1)
}

#[test]
fn ddp_reduces_twice_what_there_is_in_the_last_micro_batch() {
    let all: u64 = padded(&perceptron(), 1).iter().sum();
    for micro_batches in [1, 3] {
        let mut sent = Sent::of(&job(0, micro_batches, |_| {}), RANKS);
        assert_eq!(sent.take("fsdp", Call::AllReduce), (1, 2 * once(all)));
        sent.nothing_else();
    }
    let mut sent = Sent::of(&job(0, 3, |p| p.reduce_each_micro_batch = true), RANKS);
    assert_eq!(sent.take("fsdp", Call::AllReduce), (3, 3 * 2 * once(all)));
    sent.nothing_else();
    let mut sent = Sent::of(&job(0, 1, |p| p.bucket_bytes = 1024), RANKS);
    assert_eq!(sent.take("fsdp", Call::AllReduce), ((4 * all).div_ceil(1024), 2 * once(all)));
    sent.nothing_else();
}

#[test]
fn zero_1_and_2_gather_once_a_step_and_scatter_once_a_step_or_micro_batch() {
    let units = padded(&perceptron(), RANKS);
    let all: u64 = units.iter().sum();
    for (zero, each, scatters) in [(1, false, 1), (1, true, 3), (2, false, 3), (2, true, 3)] {
        let mut sent = Sent::of(&job(zero, 3, |p| p.reduce_each_micro_batch = each), RANKS);
        assert_eq!(sent.take("fsdp", Call::AllGather), (units.len() as u64, once(all)), "ZeRO-{zero}");
        let buckets = (4 * all).div_ceil(25 << 20);
        assert_eq!(sent.take("fsdp", Call::ReduceScatter), (scatters * buckets, scatters * once(all)));
        sent.nothing_else();
    }
}

#[test]
fn fsdp_gathers_twice_but_the_last_unit_once_and_scatters_once_a_micro_batch() {
    let units = padded(&perceptron(), RANKS);
    let (all, last, n) = (units.iter().sum::<u64>(), units[units.len() - 1], units.len() as u64);
    for micro_batches in [1, 3] {
        let m = micro_batches as u64;
        for (checkpoint, prefetch) in [(false, true), (true, true), (false, false)] {
            let change = |p: &mut Policy| (p.checkpoint_activations, p.prefetch) = (checkpoint, prefetch);
            let mut sent = Sent::of(&job(3, micro_batches, change), RANKS);
            assert_eq!(sent.take("fsdp", Call::AllGather), (m * (2 * n - 1), m * once(2 * all - last)));
            assert_eq!(sent.take("fsdp", Call::ReduceScatter), (m * n, m * once(all)));
            sent.nothing_else();
        }
        let mut sent = Sent::of(&job(3, micro_batches, |p| p.reshard = Reshard::Never), RANKS);
        assert_eq!(sent.take("fsdp", Call::AllGather), (m * n, m * once(all)));
        assert_eq!(sent.take("fsdp", Call::ReduceScatter), (m * n, m * once(all)));
        sent.nothing_else();
    }
}

#[test]
fn bf16_weights_halve_what_is_gathered_and_nothing_else() {
    let units = padded(&perceptron(), RANKS);
    let (all, last) = (units.iter().sum::<u64>(), units[units.len() - 1]);
    let mut sent = Sent::of(&job(3, 1, |p| p.compute = DType::BF16), RANKS);
    assert_eq!(sent.take("fsdp", Call::AllGather).1, once(2 * all - last) / 2);
    assert_eq!(sent.take("fsdp", Call::ReduceScatter).1, once(all));
    let mut sent = Sent::of(&job(3, 1, |p| p.reduce = DType::BF16), RANKS);
    assert_eq!(sent.take("fsdp", Call::AllGather).1, once(2 * all - last));
    assert_eq!(sent.take("fsdp", Call::ReduceScatter).1, once(all) / 2);
}

#[test]
fn weights_that_pairs_keep_are_gathered_again_within_the_pair() {
    let units = padded(&perceptron(), RANKS);
    let (all, last, n) = (units.iter().sum::<u64>(), units[units.len() - 1], units.len() as u64);
    let mut sent = Sent::of(&job(3, 1, |p| p.reshard = Reshard::Groups(2)), RANKS);
    assert_eq!(sent.take("fsdp", Call::AllGather), (n, once(all)));
    assert_eq!(sent.take("fsdp_near", Call::AllGather), (n - 1, (all - last) * 4 / 2));
    assert_eq!(sent.take("fsdp", Call::ReduceScatter), (n, once(all)));
    sent.nothing_else();
}

/// Replicas add up shards: in the last micro-batch, or in each.
#[test]
fn hybrid_shards_send_a_shard_between_replicas() {
    let units = padded(&perceptron(), 2);
    let (all, last, n) = (units.iter().sum::<u64>(), units[units.len() - 1], units.len() as u64);
    for (each, times) in [(false, 1), (true, 3)] {
        let mut hybrid = job(3, 3, |p| p.reduce_each_micro_batch = each);
        hybrid.mesh = "dp_replicate=2,dp_shard=2".into();
        let mut sent = Sent::of(&hybrid, RANKS);
        assert_eq!(sent.take("fsdp", Call::AllGather), (3 * (2 * n - 1), 3 * (2 * all - last) * 4 / 2));
        assert_eq!(sent.take("fsdp", Call::ReduceScatter), (3 * n, 3 * all * 4 / 2));
        assert_eq!(sent.take("dp_replicate", Call::AllReduce), (times * n, times * all / 2 * 4));
        sent.nothing_else();
    }
}

#[test]
fn a_tied_unit_is_reduced_once() {
    let model = tied();
    let units = padded(&model, RANKS);
    let all: u64 = units.iter().sum();
    let tied = Job { tied: true, ..job(3, 1, |_| {}) };
    let mut sent = Sent::of(&tied, RANKS);
    assert_eq!(sent.take("fsdp", Call::ReduceScatter), (units.len() as u64, once(all)));
    assert_eq!(sent.take("fsdp", Call::AllGather), (3 + 2, once(3 * units[0] + 2 * units[1])));
    sent.nothing_else();
}
