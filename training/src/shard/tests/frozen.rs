//! Parameters that training leaves as they are.

use std::collections::BTreeMap;

use super::*;
use crate::group::Kind as Call;

/// One of a unit's two, and a whole unit.
const FROZEN: &[&str] = &["0.weight", "1.weight", "1.bias"];

fn jobs() -> impl Iterator<Item = Job> {
    let policy = |zero, reshard| Policy { zero, reshard, ..Policy::default() };
    let policies = [
        policy(0, Reshard::Always),
        policy(1, Reshard::Always),
        policy(2, Reshard::Always),
        policy(3, Reshard::Always),
        policy(3, Reshard::Groups(2)),
        Policy { compute: DType::F32, prefetch: false, ..Policy::default() },
    ];
    policies.into_iter().map(|policy| Job { frozen: FROZEN, ..Job::new("dp_shard=4", policy) })
}

fn bits(outcome: &Outcome) -> BTreeMap<&str, &Vec<u32>> {
    outcome.parameters.iter().map(|(name, bits)| (&**name, bits)).collect()
}

#[test]
fn what_is_frozen_stays_and_the_rest_learns_the_same_everywhere() {
    let mut expected: Option<Outcome> = None;
    let mut all = Job::new("dp_shard=4", Policy::default()).run(4).swap_remove(0);
    for job in jobs() {
        let outcome = job.run(4).swap_remove(0);
        for (name, found) in bits(&outcome) {
            let parameter =
                perceptron().units().into_iter().flat_map(|u| u.parameters).find(|p| p.name == name);
            let parameter = parameter.unwrap();
            let mut first = vec![0.0; parameter.len()];
            fill(&parameter, 0..parameter.len(), &mut first).unwrap();
            let first: Vec<u32> = first.into_iter().map(f32::to_bits).collect();
            assert_eq!(*found == first, FROZEN.contains(&name), "{name}, {:?}", job.policy);
        }
        let expected = expected.get_or_insert_with(|| outcome.clone());
        assert_eq!(outcome.parameters, expected.parameters, "{:?}", job.policy);
        assert_eq!(outcome.losses, expected.losses, "{:?}", job.policy);
    }
    // The first step's loss is that of the whole model.
    all.losses.truncate(1);
    assert_eq!(all.losses, expected.unwrap().losses[..1]);
}

#[test]
fn nothing_is_reduced_for_what_is_frozen() {
    // 33 numbers, 99 and 3 are left: three units of two vectors, each over four ranks.
    let padded = |numbers: &[usize]| {
        let unit: usize = numbers.iter().map(|n| n.next_multiple_of(64)).sum();
        unit.next_multiple_of(4 * 64) as u64
    };
    let trained = [padded(&[15]), 0, padded(&[99, 3])];
    let frozen = [padded(&[105]), padded(&[495, 33]), 0];
    let once = |elements: u64| elements * 4 / 4 * 3;
    let job = Job { steps: 2, frozen: FROZEN, ..Job::new("dp_shard=4", Policy::default()) };
    let sent: BTreeMap<_, _> =
        job.run(4).swap_remove(0).sent.into_iter().map(|(_, kind, entry)| (kind, entry)).collect();
    let entry = sent[&Call::ReduceScatter];
    assert_eq!((entry.calls, entry.bytes), (2, once(trained.iter().sum())));
    let gathered: u64 = trained.iter().chain(&frozen).sum::<u64>() * 2 - trained[2];
    let entry = sent[&Call::AllGather];
    assert_eq!((entry.calls, entry.bytes), (5, once(gathered)));
}

#[test]
fn what_is_frozen_has_no_gradient_and_no_optimizer_s_state() {
    let world = worlds::world(&Kind::Local, 2, &Chooser::default());
    worlds::each(&world, |comm| {
        let groups = Groups::new(comm, Mesh::parse("dp_shard=2", 2).unwrap(), &[0, 1]).unwrap();
        let model = Perceptron { frozen: FROZEN, ..perceptron() };
        let mut sharded = Sharded::new(model, &groups, Policy::default(), &fill).unwrap();
        sharded.backward(&pairs(&perceptron(), 0, comm.rank()), 1.0, true).unwrap();
        let names: Vec<Vec<String>> =
            sharded.units().map(|u| u.parameters.iter().map(|p| p.name.clone()).collect()).collect();
        for shard in sharded.shards() {
            let mut pieces = shard.pieces.iter().map(|piece| &names[shard.unit][piece.parameter]);
            assert!(pieces.all(|name| !FROZEN.contains(&&**name)));
            assert_eq!(shard.master.len(), shard.gradient.len());
            assert_eq!(shard.master.is_empty(), shard.unit == 1);
        }
    });
}
