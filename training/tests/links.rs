//! Attention and products that are dealt out, over every kind of link, and with a rank that goes away.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use candle_core::{Device, Tensor, Var};
use nd_comm::choose::Chooser;
use nd_comm::communicator::Communicator;
use nd_tests::worlds::{Kind, each, world};
use nd_training::context_parallel::{Balance, ContextParallel, Form, ring_attention};
use nd_training::tensor_parallel::{
    ColumnParallel, RowParallel, VocabParallelEmbedding, vocab_parallel_cross_entropy,
};
use nd_training::{Error, Group};

const RANKS: usize = 3;

/// Numbers that differ from rank to rank.
fn variable(comm: &Communicator, seed: usize, shape: &[usize]) -> Var {
    let len = shape.iter().product();
    let number = |i: usize| ((i * 37 + seed * 11 + comm.rank() * 5) as f32 * 0.61).sin();
    Var::from_vec((0..len).map(number).collect(), shape, &Device::Cpu).unwrap()
}

/// The bits of a loss and of the gradients that lead to it.
fn bits(loss: &Tensor, of: &[&Var]) -> Vec<u32> {
    let gradients = loss.backward().unwrap();
    let tensors = of.iter().map(|x| gradients.get(x).unwrap().clone()).chain([loss.clone()]);
    let values = tensors.flat_map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap());
    values.map(f32::to_bits).collect()
}

fn attention(comm: &Communicator, form: Form) -> nd_training::Result<Vec<u32>> {
    let group = Group::new("cp", comm.clone(), Default::default());
    let [q, k, v] = [(1, 4), (2, 2), (3, 2)].map(|(seed, heads)| variable(comm, seed, &[2, heads, 40, 16]));
    let result = ring_attention(&q, &k, &v, &ContextParallel { group, form, balance: Balance::Zigzag })?;
    Ok(bits(&(&result * &result).unwrap().sum_all().unwrap(), &[&q, &k, &v]))
}

/// From tokens to a loss, as a small model does.
fn products(comm: &Communicator, sequence_parallel: bool) -> nd_training::Result<Vec<u32>> {
    let group = Group::new("tp", comm.clone(), Default::default());
    let tokens = Tensor::arange(0u32, 24, &Device::Cpu).unwrap().reshape((2, 12)).unwrap();
    let [table, up, down, head] =
        [[8, 16], [20, 16], [16, 20], [8, 16]].map(|shape| variable(comm, shape[0], &shape));
    let column = ColumnParallel { group: group.clone(), sequence_parallel };
    let row = RowParallel { group: group.clone(), sequence_parallel };
    let embedding = VocabParallelEmbedding { group: group.clone(), sequence_parallel };
    let x = embedding.forward(&table, &tokens)?;
    let x = row.forward(&column.forward(&x, &up)?.tanh()?, &down)?;
    let loss = vocab_parallel_cross_entropy(&column.forward(&x, &head)?, &tokens, &group)?;
    Ok(bits(&loss, &[&table, &up, &down, &head]))
}

#[test]
fn every_link_carries_the_same_bits() {
    let run = |kind: &Kind| {
        each(&world(kind, RANKS, &Chooser::default()), |comm| {
            let attention = [Form::Ring, Form::AllGather].map(|form| attention(comm, form).unwrap());
            (attention, [false, true].map(|sequence_parallel| products(comm, sequence_parallel).unwrap()))
        })
    };
    let expected = run(&Kind::Local);
    for kind in Kind::all(RANKS) {
        assert_eq!(run(&kind), expected, "{kind:?}");
    }
}

#[test]
fn a_rank_that_ends_ends_the_others_operations() {
    let began = Instant::now();
    for kind in [Kind::Local, Kind::Shm, Kind::Tcp] {
        for form in [Form::Ring, Form::AllGather] {
            let errors = each(&world(&kind, RANKS, &Chooser::default()), |comm| match comm.rank() {
                1 => {
                    comm.abort();
                    None
                }
                _ => Some([attention(comm, form).unwrap_err(), products(comm, true).unwrap_err()]),
            });
            for error in errors.into_iter().flatten().flatten() {
                // What it was, although it has come through the tensor library.
                let aborted = matches!(error, Error::Comm(nd_comm::Error::Aborted { culprit: 1, .. }));
                assert!(aborted, "{kind:?}, {form:?}: {error}");
            }
        }
    }
    assert!(began.elapsed() < Duration::from_secs(120));
}
