//! Twenty steps on every mesh, and one process on the same data: losses, norms of gradients and what is dropped.

use nd_comm::prelude::Communicator;
use nd_tests::worlds::each;
use nd_training::train::{Config, Trainer};

/// Loss and norm of each step.
type Rows = Vec<(f64, f64)>;

/// Eight sequences of 32 tokens a step, one in a micro-batch.
const MODEL: &str = "hidden=64 layers=2 heads=8 kv-heads=4 ffn=96 seq-len=32 batch=8 micro-batch=1 steps=20 lr=2e-3 \
                     schedule=cosine warmup=3 clip=0.5 weight-decay=0.1 dropout=0.1 seed=7 mesh=dp_shard=1";

/// Training may drift so far from one process's, of f32, in twenty steps.
const F32: f64 = 1e-5;
/// And of bf16.
const BF16: f64 = 2e-2;

fn config(settings: &str) -> Config {
    let mut config = Config::default();
    for pair in MODEL.split(' ').chain(settings.split(' ')).filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').expect("key=value");
        config.set(key, value).unwrap_or_else(|e| panic!("{pair}: {e}"));
    }
    config
}

/// What all ranks saw alike.
fn run(ranks: usize, settings: &str) -> Rows {
    let config = config(settings);
    let mut all: Vec<Rows> = each(&Communicator::local(ranks).expect("ranks"), |comm| {
        let mut trainer = Trainer::new(comm, &config).expect("a trainer");
        let step = |_| trainer.step().map(|row| (row.loss, row.grad_norm)).expect("a step");
        (0..config.steps).map(step).collect()
    });
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{settings}: {all:?}");
    all.swap_remove(0)
}

#[track_caller]
fn close(one: &Rows, other: &Rows, most: f64, what: &str) {
    assert_eq!(one.len(), other.len());
    for (step, (a, b)) in one.iter().zip(other).enumerate() {
        let apart = (a.0 / b.0 - 1.0).abs().max((a.1 / b.1 - 1.0).abs());
        assert!(apart < most, "{what}, step {}: {a:?} on one process, {b:?}: {apart:.1e} apart", step + 1);
    }
}

#[test]
fn two_ranks() {
    let one = run(1, "");
    assert!(one[19].0 < one[0].0 - 1.0, "it learns: {one:?}");
    for settings in [
        "mesh=dp_replicate=2",
        "mesh=dp_shard=2 zero=0",
        "mesh=dp_shard=2 zero=1",
        "mesh=dp_shard=2 zero=2",
        "mesh=dp_shard=2",
        "mesh=dp_shard=2 reshard=never prefetch=false",
        "mesh=dp_shard=2 checkpoint-activations=true",
        "mesh=tp=2",
        "mesh=tp=2 sequence-parallel=true",
        "mesh=cp=2",
        "mesh=cp=2 cp-form=all-gather cp-balance=contiguous",
    ] {
        close(&one, &run(2, settings), F32, settings);
    }
}

#[test]
fn four_ranks() {
    let one = run(1, "");
    for settings in [
        "mesh=dp_shard=4",
        "mesh=dp_shard=4 reshard=2",
        "mesh=dp_replicate=2,dp_shard=2",
        "mesh=dp_shard=2,tp=2",
        "mesh=dp_shard=2,cp=2",
        "mesh=dp_replicate=2,tp=2",
        "mesh=dp_replicate=2,cp=2",
        "mesh=cp=2,tp=2 sequence-parallel=true",
        "mesh=tp=4",
        "mesh=cp=4",
    ] {
        close(&one, &run(4, settings), F32, settings);
    }
}

#[test]
fn eight_ranks() {
    let one = run(1, "");
    for settings in [
        "mesh=dp_shard=8",
        "mesh=dp_replicate=2,dp_shard=4",
        "mesh=dp_shard=4,tp=2",
        "mesh=dp_shard=4,cp=2",
        "mesh=dp_replicate=2,dp_shard=2,tp=2",
        "mesh=dp_replicate=2,dp_shard=2,cp=2",
        "mesh=dp_shard=2,cp=2,tp=2 checkpoint-activations=true",
        "mesh=dp_replicate=2,cp=2,tp=2",
        "mesh=tp=8 kv-replicas=2",
    ] {
        close(&one, &run(8, settings), F32, settings);
    }
}

#[test]
fn bf16() {
    let one = run(1, "dtype=bf16");
    for (ranks, settings) in [
        (2, "dtype=bf16 mesh=dp_shard=2"),
        (2, "dtype=bf16 mesh=cp=2"),
        (4, "dtype=bf16 mesh=dp_shard=2,tp=2"),
        (8, "dtype=bf16 mesh=dp_replicate=2,dp_shard=2,cp=2"),
    ] {
        close(&one, &run(ranks, settings), BF16, settings);
    }
}
