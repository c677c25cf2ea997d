//! What attention over many ranks holds in memory: all ranks of a ring together no more than one rank alone, each so a
//! part that falls with their number.
#![allow(clippy::unwrap_used)]

use candle_core::{DType, Device, Tensor, Var};
use nd_comm::prelude::Communicator;
use nd_tests::allocator::{Counting, peak_of_all};
use nd_tests::worlds::each;
use nd_training::Group;
use nd_training::context_parallel::{Balance, ContextParallel, Form, ring_attention};

#[global_allocator]
static COUNTING: Counting = Counting;

const HEADS: usize = 4;
const SEQUENCE: usize = 4096;
const DIM: usize = 32;

/// Keys and values of the whole sequence, in bytes; as many queries take half of it.
const KEYS_AND_VALUES: f64 = (2 * HEADS * SEQUENCE * DIM * 4) as f64;

/// Peaks of all ranks together, of a forward pass and of a backward pass, over the bytes of keys and values.
fn peaks(ranks: usize, form: Form) -> [f64; 2] {
    let world = Communicator::local(ranks).unwrap();
    let groups: Vec<_> = world.iter().map(|c| Group::new("cp", c.clone(), Default::default())).collect();
    let inputs: Vec<[Var; 3]> = (0..ranks)
        .map(|_| {
            std::array::from_fn(|_| {
                let shape = (1, HEADS, SEQUENCE / ranks, DIM);
                Var::from_tensor(&Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap()).unwrap()
            })
        })
        .collect();
    let (results, forward) = peak_of_all(|| {
        each(&world, |comm| {
            let [q, k, v] = &inputs[comm.rank()];
            let group = groups[comm.rank()].clone();
            ring_attention(q, k, v, &ContextParallel { group, form, balance: Balance::Zigzag }).unwrap()
        })
    });
    let losses: Vec<_> = results.iter().map(|result| result.sum_all().unwrap()).collect();
    let (_, backward) = peak_of_all(|| each(&world, |comm| losses[comm.rank()].backward().unwrap()));
    [forward, backward].map(|bytes| bytes as f64 / KEYS_AND_VALUES)
}

#[test]
fn memory_of_a_rank_falls_with_the_number_of_ranks() {
    // The threads that compute have their stacks and queues.
    peaks(2, Form::Ring);
    for ranks in [1, 2, 4, 8] {
        let [forward, backward] = peaks(ranks, Form::Ring);
        println!("{ranks} ranks, ring: {forward:.2} times keys and values forward, {backward:.2} backward");
        // What is worked on, what leaves and what comes: 3. Queries, sums and the result, each half as large: 1.5.
        assert!(forward < 5.0, "{ranks} ranks: {forward}");
        // The same 3, and gradients that are made, leave and come: 3. The queries' five tensors, and what candle adds up.
        assert!(backward < 10.0, "{ranks} ranks: {backward}");
    }
    let [forward, _] = peaks(8, Form::AllGather);
    println!("8 ranks, gathered: {forward:.2} times keys and values forward");
    assert!(forward > 8.0, "every rank holds all of them: {forward}");
}
