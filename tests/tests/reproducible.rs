//! Every algorithm that may keep the reproducible order keeps it, bit for bit, at every size, on every transport.

use std::sync::Arc;

use half::{bf16, f16};
use nd_comm::choose::{Asked, Chooser};
use nd_comm::number::{F8E4M3, F8E5M2, ReduceOp};
use nd_comm::schedule::{self, Alias, Collective, Counts, Layout, Shape};
use nd_tests::machines::fewer;
use nd_tests::oracle::canonical_reduce;
use nd_tests::sample::{Float, values};
use nd_tests::worlds::{Kind, each, world};

/// From nothing to several chunks and pieces.
const SIZES: [usize; 9] = [0, 1, 2, 7, 64, 1000, 8193, 20_011, 150_001];
/// The same for layouts that are only different ones of a kind.
const FEW_SIZES: [usize; 3] = [7, 8193, 150_001];

fn reproducible(hosts: &[usize], collective: Collective) -> Vec<&'static str> {
    let layout = Arc::new(Layout::new(hosts));
    let shape = |count| Shape {
        collective,
        counts: Counts::Equal(count),
        root: 0,
        alias: Alias::None,
        layout: layout.clone(),
        piece: 1 << 16,
    };
    schedule::algorithms()
        .iter()
        .filter(|a| [0, 1, 1000].iter().all(|&c| a.supports(&shape(c)) && a.reproducible(&shape(c))))
        .map(|a| a.name())
        .collect()
}

fn expected<T: Float>(hosts: &[usize], inputs: &[Vec<T>], i: usize) -> T {
    let layout = Layout::new(hosts);
    let terms: Vec<Vec<T::Acc>> = layout
        .hosts()
        .iter()
        .map(|ranks| ranks.iter().map(|&r| inputs[r as usize][i].widen()).collect())
        .collect();
    T::round(canonical_reduce(&terms, |a, b| a + b, |a| T::round(a).widen()))
}

fn check<T: Float>(kind: &Kind, n: usize, sizes: &[usize]) {
    let hosts = kind.hosts(n);
    for name in reproducible(&hosts, Collective::AllReduce) {
        let chooser = Chooser { asked: vec![Asked::by_name(&[name])], ..Chooser::default() };
        let ranks = world(kind, n, &chooser);
        for (seed, &len) in sizes.iter().enumerate() {
            let inputs: Vec<Vec<T>> = (0..n).map(|r| values(len, r, seed as u64)).collect();
            let results = each(&ranks, |comm| {
                let mut plain = inputs[comm.rank()].clone();
                comm.all_reduce(&mut plain, ReduceOp::Sum).expect("in place");
                let mut send = comm.alloc::<T>(len).expect("memory");
                send.copy_from_slice(&inputs[comm.rank()]);
                let mut recv = comm.alloc::<T>(len).expect("memory");
                comm.all_reduce_into(&send, &mut recv, ReduceOp::Sum).expect("out of place");
                (plain, recv.to_vec())
            });
            for i in 0..len {
                let expected = expected(&hosts, &inputs, i).bits();
                for (rank, (plain, registered)) in results.iter().enumerate() {
                    assert_eq!(
                        plain[i].bits(),
                        expected,
                        "{name} {kind:?} n {n} len {len} rank {rank} at {i}"
                    );
                    assert_eq!(
                        registered[i].bits(),
                        expected,
                        "{name} {kind:?} registered n {n} len {len} at {i}"
                    );
                }
            }
        }
    }
}

/// Hosts of different sizes, their ranks interleaved.
fn uneven() -> [Vec<usize>; 3] {
    [vec![0, 1, 1, 0, 2, 1], vec![1, 0, 1, 1, 0, 1, 0, 1], vec![0, 1, 2, 3, 1, 3, 0, 2, 2]]
}

fn every_kind<T: Float>() {
    for n in fewer(&[1, 2, 3, 5, 8], &[3]) {
        for kind in Kind::all(n) {
            check::<T>(&kind, n, &fewer(&SIZES, &FEW_SIZES));
        }
    }
    for hosts in fewer(&uneven(), &[]) {
        check::<T>(&Kind::Hosts(hosts.clone()), hosts.len(), &FEW_SIZES);
    }
}

#[test]
fn verbs_give_the_same_bits() {
    nd_tests::machines::again("verbs_give_the_same_bits", &["bf16_sums"]);
}

#[test]
fn devices_of_memory_give_the_same_bits() {
    nd_tests::mock::again_by_rails("devices_of_memory_give_the_same_bits", &["bf16_sums", "f32_sums"]);
}

#[test]
fn f32_sums() {
    every_kind::<f32>();
}

#[test]
fn f64_sums() {
    every_kind::<f64>();
}

#[test]
fn bf16_sums() {
    every_kind::<bf16>();
}

#[test]
fn f16_sums() {
    every_kind::<f16>();
}

#[test]
fn fp8_sums() {
    every_kind::<F8E4M3>();
    every_kind::<F8E5M2>();
}

/// What each rank holds of a reduction to one root and of a reduce-scatter is what an all-reduce gives.
#[test]
fn parts_and_roots_get_the_same_bits() {
    for hosts in uneven() {
        let (n, kind) = (hosts.len(), Kind::Hosts(hosts.clone()));
        let len = n * 7001;
        let inputs: Vec<Vec<bf16>> = (0..n).map(|r| values(len, r, 3)).collect();
        let sums: Vec<u64> = (0..len).map(|i| expected(&hosts, &inputs, i).bits()).collect();
        let world_of = |name: &str| {
            world(&kind, n, &Chooser { asked: vec![Asked::by_name(&[name])], ..Chooser::default() })
        };
        for name in reproducible(&hosts, Collective::Reduce) {
            for root in [0, n - 1] {
                let results = each(&world_of(name), |comm| {
                    let mut sum = vec![bf16::ZERO; len];
                    comm.reduce(&inputs[comm.rank()], &mut sum, ReduceOp::Sum, root).expect("a reduction");
                    sum
                });
                let found: Vec<u64> = results[root].iter().map(|x| x.bits()).collect();
                assert!(found == sums, "{name} {hosts:?} root {root}");
            }
        }
        for name in reproducible(&hosts, Collective::ReduceScatter) {
            let parts = each(&world_of(name), |comm| {
                let mut part = vec![bf16::ZERO; len / n];
                comm.reduce_scatter(&inputs[comm.rank()], &mut part, ReduceOp::Sum).expect("a reduction");
                part
            });
            let found: Vec<u64> = parts.concat().iter().map(|x| x.bits()).collect();
            assert!(found == sums, "{name} {hosts:?}");
        }
    }
}
