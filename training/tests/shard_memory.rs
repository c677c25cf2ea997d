//! How much memory the state of training takes, in bytes: what is accounted for, and what each rank's thread allocates.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, DType, Device, Shape, Tensor};
use nd_comm::choose::Chooser;
use nd_tests::allocator::{Counting, allocated, take_peak};
use nd_tests::worlds::{Kind, each, world};
use nd_training::group::Groups;
use nd_training::mesh::Mesh;
use nd_training::model::{Init, Model, Parameter, Unit};
use nd_training::shard::{Memory, Policy, Reshard, Sharded};

#[global_allocator]
static COUNTING: Counting = Counting;

/// A product whose gradients let go of what they were made of, as candle's own do not.
struct Product;

impl CustomOp2 for Product {
    fn name(&self) -> &'static str {
        "product"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_at: &candle_core::Layout,
        w: &CpuStorage,
        w_at: &candle_core::Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let product = x.matmul(w, (1, 1, SIDE, SIDE), x_at, w_at)?;
        Ok((product, Shape::from((1, SIDE))))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let (x, w) = (x.detach(), w.detach());
        Ok((Some(gradient.matmul(&w.t()?)?), Some(x.t()?.matmul(gradient)?)))
    }
}

/// Blocks of square matrices, applied to one row: next to no activations.
struct Blocks;

const BLOCKS: usize = 6;
const MATRICES: usize = 8;
const SIDE: usize = 128;
/// Ranks, where a test is about one number of them.
const RANKS: usize = 2;

/// Bytes of a matrix, a block, the model and a shard.
const MATRIX: usize = SIDE * SIDE * 4;
const BLOCK: usize = MATRICES * MATRIX;
const WHOLE: usize = BLOCKS * BLOCK;
const SHARD: usize = WHOLE / RANKS;
/// Bytes of all rows that stages keep for the backward pass, and of the one between them.
const ROWS: usize = (2 * BLOCKS + 1) * SIDE * 4;
/// What the tensor library takes on top while it adds a matrix's gradient to zeros.
const ADDING: usize = 2 * MATRIX;
/// What tensors of a row, the graph, names and lists of a model's size take together.
const SMALL: usize = 3 * MATRIX;

impl Model for Blocks {
    type Batch = Tensor;

    fn units(&self) -> Vec<Unit> {
        let matrix = |b: usize, m: usize| Parameter::whole(format!("{b}.{m}"), &[SIDE, SIDE], Init::Ones);
        let block = |b| Unit {
            name: format!("blocks.{b}"),
            parameters: (0..MATRICES).map(|m| matrix(b, m)).collect(),
            keep: false,
        };
        (0..BLOCKS).map(block).collect()
    }

    fn stages(&self) -> Vec<usize> {
        (0..BLOCKS).collect()
    }

    fn forward(
        &self,
        stage: usize,
        weights: &[Tensor],
        input: Option<&Tensor>,
        batch: &Tensor,
    ) -> nd_training::Result<Tensor> {
        let mut x = input.unwrap_or(batch).clone();
        for weight in weights {
            x = x.apply_op2(weight, Product)?.tanh()?;
        }
        Ok(if stage + 1 == BLOCKS { x.to_dtype(DType::F32)?.sum_all()? } else { x })
    }
}

/// What one rank sees: accounted for, and allocated by its thread beyond what there was before.
#[derive(Debug, Clone, Copy)]
struct Seen {
    accounted: Memory,
    allocated: usize,
}

/// A rank's most memory in a forward pass, in a step, and its memory when an optimizer works.
struct Steps {
    forward: Seen,
    step: Seen,
    update: Seen,
}

fn train(policy: Policy, steps: usize) -> Vec<Steps> {
    train_on(RANKS, policy, steps)
}

fn train_on(ranks: usize, policy: Policy, steps: usize) -> Vec<Steps> {
    each(&world(&Kind::Local, ranks, &Chooser::default()), |comm| {
        let mesh = Mesh::parse("dp_shard=-1", ranks).expect("a mesh");
        let order: Vec<usize> = (0..ranks).collect();
        let groups = Groups::new(comm, mesh, &order).expect("groups");
        let batch = Tensor::ones((1, SIDE), policy.compute, &Device::Cpu).expect("a row");
        // What products keep for themselves comes with the first ones.
        let square = Tensor::ones((SIDE, SIDE), policy.compute, &Device::Cpu).expect("a matrix");
        for (a, b) in [(&batch, &square), (&square, &square), (&batch.t().expect("a column"), &batch)] {
            a.matmul(b).expect("a product");
        }
        // And what a communicator keeps, with the first calls.
        let fsdp = groups.fsdp();
        let buffer = || fsdp.alloc::<f32>(64 * ranks).expect("registered memory");
        fsdp.all_gather_in_place_start(buffer()).expect("a call").wait().expect("gathered");
        fsdp.reduce_scatter_in_place_start(buffer()).expect("a call").wait().expect("reduced");
        let before = allocated();
        let peak = || usize::try_from(take_peak() - before).expect("more than before");
        let fill = |_: &Parameter, range: std::ops::Range<usize>, out: &mut [f32]| {
            out.iter_mut().zip(range).for_each(|(out, i)| *out = (i % 7) as f32 * 0.01 - 0.03);
            Ok(())
        };
        let mut model = Sharded::new(Blocks, &groups, policy, &fill).expect("a model");
        let mut seen = None;
        for _ in 0..steps {
            take_peak();
            model.take_peak();
            model.evaluate(&batch).expect("a forward pass");
            let forward = Seen { accounted: model.take_peak(), allocated: peak() };
            model.backward(&batch, 1.0, true).expect("a step");
            let step = Seen { accounted: model.take_peak(), allocated: peak() };
            for shard in model.shards() {
                shard.master.iter_mut().zip(shard.gradient).for_each(|(master, g)| *master -= 1e-3 * *g);
            }
            let update = Seen { accounted: model.memory(), allocated: peak() };
            model.updated().expect("an update");
            seen = Some(Steps { forward, step, update });
        }
        seen.expect("a step")
    })
}

/// What is accounted for stays within `bound`, and what the allocator gave for it (all but buffers) within `heap`.
fn within(what: &str, seen: Seen, bound: usize, heap: usize) {
    let Seen { accounted, allocated } = seen;
    let total = accounted.total();
    assert!(total <= bound + ROWS, "{what}: {total} bytes are more than {bound}: {accounted:?}");
    assert!(
        allocated <= heap + SMALL,
        "{what}: {allocated} bytes allocated are more than {heap}: {accounted:?}"
    );
}

/// The inequality of PyTorch's `test_fully_shard_memory.py`, with weights gathered ahead too, on few ranks and many. Of what
/// the allocator gave, weights and gradients of a block share one block's room.
#[test]
fn fsdp_needs_two_shards_and_three_blocks_at_most() {
    for (ranks, steps) in [(2, 1), (2, 3), (4, 2), (8, 2)] {
        let shard = WHOLE / ranks;
        for prefetch in [false, true] {
            for seen in train_on(ranks, Policy { prefetch, ..Policy::default() }, steps) {
                let what = |pass: &str| format!("{pass} on {ranks} ranks, prefetch={prefetch}");
                within(&what("forward"), seen.forward, shard + 3 * BLOCK, shard + BLOCK);
                let heap = 2 * shard + BLOCK + MATRIX + ADDING;
                within(&what("a step"), seen.step, 2 * shard + 3 * BLOCK, heap);
                // With an optimizer's two moments: four shards.
                within(&what("an update"), seen.update, 2 * shard, 2 * shard);
                assert_eq!(
                    seen.update.accounted.total(),
                    2 * shard,
                    "nothing but masters and gradients stays"
                );
            }
        }
    }
}

#[test]
fn weights_that_stay_until_the_backward_pass_add_the_whole_and_one_block() {
    let policy = Policy { reshard: Reshard::Never, ..Policy::default() };
    for seen in train(policy, 2) {
        within("forward", seen.forward, SHARD + 3 * BLOCK, SHARD + BLOCK);
        // The forward pass of a step: all weights, and the buffer that the last came through.
        assert!(seen.step.accounted.gathered >= WHOLE - BLOCK, "{:?}", seen.step.accounted);
        let heap = SHARD + WHOLE + BLOCK + ADDING;
        within("a step", seen.step, SHARD + WHOLE + 3 * BLOCK / 2, heap);
        within("an update", seen.update, 2 * SHARD, 2 * SHARD);
    }
}

#[test]
fn each_stage_of_zero_divides_more() {
    let at = |zero| train(Policy { zero, bucket_bytes: BLOCK, ..Policy::default() }, 2).swap_remove(0);
    let [ddp, one, two, fsdp] = [0, 1, 2, 3].map(at);
    let update = |seen: &Steps| {
        let Memory { masters, gradients, gathered, unreduced, buffers, activations } = seen.update.accounted;
        assert_eq!((unreduced, buffers, activations), (0, 0, 0));
        (masters, gradients, gathered)
    };
    assert_eq!(update(&ddp), (WHOLE, WHOLE, WHOLE));
    assert_eq!(update(&one), (SHARD, SHARD, WHOLE));
    assert_eq!(update(&two), (SHARD, SHARD, WHOLE));
    assert_eq!(update(&fsdp), (SHARD, SHARD, 0));
    for (what, seen, state) in [("DDP", &ddp, 3 * WHOLE), ("ZeRO-2", &two, 2 * SHARD + WHOLE)] {
        // A block's gradients, and two buckets.
        within(what, seen.step, state + 3 * BLOCK, state + BLOCK + ADDING);
    }
}

#[test]
fn bf16_halves_weights_and_what_is_gathered() {
    let policy = Policy { compute: DType::BF16, ..Policy::default() };
    for seen in train(policy, 2) {
        // Products in bf16 are made in f32 meanwhile.
        within("forward", seen.forward, SHARD + BLOCK, SHARD + BLOCK / 2 + 4 * MATRIX);
        assert_eq!(seen.forward.accounted.gathered, BLOCK / 2);
    }
}

/// Inputs of stages alone are kept.
#[test]
fn checkpoints_keep_one_row_a_stage() {
    for checkpoint in [false, true] {
        let policy = Policy { checkpoint_activations: checkpoint, ..Policy::default() };
        for seen in train(policy, 1) {
            let rows = seen.step.accounted.activations.div_ceil(SIDE * 4);
            assert!(rows <= if checkpoint { BLOCKS + 1 } else { 2 * BLOCKS }, "{rows} rows");
        }
    }
}
