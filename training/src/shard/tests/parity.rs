//! Many ranks against one that has all of their micro-batches.

use super::*;

/// torch's defaults for f32: rtol 1.3e-6, atol 1e-5.
fn close(ours: &[Outcome], reference: &Outcome, what: &str) {
    for ((name, ours), (_, reference)) in ours[0].parameters.iter().zip(&reference.parameters) {
        for (a, b) in ours.iter().zip(reference).map(|(a, b)| (f32::from_bits(*a), f32::from_bits(*b))) {
            assert!((a - b).abs() <= 1e-5 + 1.3e-6 * b.abs(), "{what}: {name}: {a} is not {b}");
        }
    }
}

#[test]
fn many_ranks_train_as_one_does() {
    for tied in [false, true] {
        for ranks in [2, 4, 8] {
            let alone = Job { micro_batches: ranks, steps: 10, tied, ..Job::new("", Policy::default()) };
            let reference = &alone.run(1)[0];
            for (mesh, zero) in [("dp_shard=-1", 3), ("dp_shard=-1", 0), ("dp_replicate=2,dp_shard=-1", 3)] {
                let policy = Policy { zero, ..Policy::default() };
                let job = Job { steps: 10, tied, ..Job::new(mesh, policy) };
                close(&job.run(ranks), reference, &format!("{mesh}, ZeRO-{zero}, {ranks} ranks"));
            }
        }
    }
}

/// Gradients that are not reduced in each micro-batch: the same within rounding.
#[test]
fn when_gradients_are_reduced_changes_roundings_alone() {
    let alone = Job { micro_batches: 8, steps: 10, tied: true, ..Job::new("", Policy::default()) };
    let reference = &alone.run(1)[0];
    for mesh in ["dp_shard=4", "dp_replicate=4", "dp_replicate=2,dp_shard=2", "dp_shard=2,cp=2"] {
        for zero in 0..4 {
            for each in [false, true] {
                let policy = Policy { zero, reduce_each_micro_batch: each, ..Policy::default() };
                let job = Job { micro_batches: 2, steps: 10, tied: true, ..Job::new(mesh, policy) };
                close(&job.run(4), reference, &format!("{mesh}, ZeRO-{zero}, each {each}"));
            }
        }
    }
}
