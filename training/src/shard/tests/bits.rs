//! Which choices change nothing, bit for bit.

use super::*;

type Parameters = Vec<(String, Vec<u32>)>;

/// Losses of every rank, as bits, and the model, which is the same on all.
fn results(outcomes: Vec<Outcome>) -> Vec<(Vec<u64>, Parameters)> {
    assert!(outcomes.iter().all(|o| o.parameters == outcomes[0].parameters), "all ranks have the same model");
    let bits = |o: &Outcome| o.losses.iter().chain([&o.evaluated]).map(|l| l.to_bits()).collect();
    outcomes.into_iter().map(|o| (bits(&o), o.parameters)).collect()
}

fn same(reference: &Job, others: &[(&str, Job)], ranks: usize) {
    let reference = reference.run(ranks);
    let moved = |(name, after): &(String, Vec<u32>)| {
        let mut before = vec![0.0; after.len()];
        fill(&Parameter::whole(name.clone(), &[after.len()], Init::Zeros), 0..after.len(), &mut before)
            .unwrap();
        before.iter().map(|b| b.to_bits()).zip(after).filter(|(b, a)| b != *a).count() * 2 > after.len()
    };
    assert!(reference[0].parameters.iter().all(moved), "training moves every parameter");
    let reference = results(reference);
    for (what, job) in others {
        assert!(results(job.run(ranks)) == reference, "{what} on {ranks} ranks gives other bits");
    }
}

/// Every way to divide the state, on a mesh of one axis.
fn ways(base: &Job, ranks: usize) -> Vec<(&'static str, Job)> {
    let with = |change: &dyn Fn(&mut Policy)| {
        let mut job = base.clone();
        change(&mut job.policy);
        job
    };
    let mut replicas = with(&|p| p.zero = 0);
    replicas.mesh = format!("dp_replicate={ranks}");
    let mut fsdp_of_one = with(&|p| p.zero = 3);
    fsdp_of_one.mesh = replicas.mesh.clone();
    vec![
        ("DDP over dp_replicate", replicas),
        ("FSDP with shards of one rank", fsdp_of_one),
        ("DDP in small buckets", with(&|p| (p.zero, p.bucket_bytes) = (0, 1100))),
        ("ZeRO-1", with(&|p| p.zero = 1)),
        ("ZeRO-1 in small buckets", with(&|p| (p.zero, p.bucket_bytes) = (1, 700))),
        ("ZeRO-2", with(&|p| p.zero = 2)),
        ("ZeRO-2 in buckets of a block", with(&|p| (p.zero, p.bucket_bytes) = (2, 1))),
        ("FSDP", with(&|p| p.zero = 3)),
        ("FSDP without prefetch", with(&|p| (p.zero, p.prefetch) = (3, false))),
        ("FSDP, never resharded", with(&|p| (p.zero, p.reshard) = (3, Reshard::Never))),
        ("FSDP, kept by pairs", with(&|p| (p.zero, p.reshard) = (3, Reshard::Groups(2)))),
        ("FSDP, kept whole", with(&|p| (p.zero, p.reshard) = (3, Reshard::Groups(1)))),
        ("FSDP with checkpoints", with(&|p| (p.zero, p.checkpoint_activations) = (3, true))),
        ("ZeRO-1 with checkpoints", with(&|p| (p.zero, p.checkpoint_activations) = (1, true))),
    ]
}

#[test]
fn all_ways_to_divide_the_state_give_the_same_bits() {
    for ranks in [2, 4, 8] {
        let mut base = Job::new(&format!("dp_shard={ranks}"), Policy { zero: 0, ..Policy::default() });
        same(&base, &ways(&base, ranks), ranks);
        base.tied = true;
        same(&base, &ways(&base, ranks), ranks);
    }
}

#[test]
fn so_they_do_with_micro_batches_that_are_each_reduced() {
    let policy = Policy { zero: 0, reduce_each_micro_batch: true, ..Policy::default() };
    let base = Job { micro_batches: 3, tied: true, ..Job::new("dp_shard=4", policy) };
    same(&base, &ways(&base, 4), 4);
}

#[test]
fn so_they_do_in_bf16() {
    for reduce in [DType::F32, DType::BF16] {
        let policy = Policy { zero: 0, compute: DType::BF16, reduce, ..Policy::default() };
        let base = Job { tied: true, ..Job::new("dp_shard=4", policy) };
        same(&base, &ways(&base, 4), 4);
    }
}

#[test]
fn sums_over_micro_batches_before_they_are_reduced_are_the_same_for_ddp_and_zero_1() {
    let policy = Policy { zero: 0, ..Policy::default() };
    let base = Job { micro_batches: 3, tied: true, ..Job::new("dp_shard=4", policy) };
    let zero_1 = Job { policy: Policy { zero: 1, ..policy }, ..base.clone() };
    let small = Job { policy: Policy { bucket_bytes: 600, ..policy }, ..base.clone() };
    same(&base, &[("ZeRO-1", zero_1), ("small buckets", small)], 4);
    let zero_2 = Job { policy: Policy { zero: 2, ..policy }, ..base.clone() };
    let fsdp = Job { policy: Policy { zero: 3, ..policy }, ..base };
    same(&zero_2, &[("FSDP", fsdp)], 4);
}

/// Replicas on hosts of their own: within a host, then across, is the order of the flat sum too.
#[test]
fn hybrid_shards_on_two_hosts_give_the_bits_of_flat_ones() {
    for (ranks, hosts) in [(4, vec![0, 0, 1, 1]), (8, vec![0, 0, 0, 0, 1, 1, 1, 1])] {
        for (micro_batches, reduce) in [(1, DType::F32), (2, DType::F32), (1, DType::BF16)] {
            let policy = Policy { reduce, reduce_each_micro_batch: micro_batches > 1, ..Policy::default() };
            let kind = Kind::Hosts(hosts.clone());
            let flat = Job { kind, micro_batches, ..Job::new(&format!("dp_shard={ranks}"), policy) };
            let hybrid = |policy| Job {
                mesh: format!("dp_replicate=2,dp_shard={}", ranks / 2),
                policy,
                ..flat.clone()
            };
            let each = Policy { reduce_each_micro_batch: true, ..policy };
            let others = [
                ("HSDP", hybrid(policy)),
                ("HSDP that reduces each micro-batch", hybrid(each)),
                ("HSDP with ZeRO-1", hybrid(Policy { zero: 1, ..each })),
                ("HSDP with ZeRO-2", hybrid(Policy { zero: 2, bucket_bytes: 900, ..each })),
                ("DDP over both axes", hybrid(Policy { zero: 0, ..each })),
            ];
            same(&flat, &others, ranks);
        }
    }
}
