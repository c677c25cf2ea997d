//! A plain candle model made parallel: a network of three layers learns the sine. Its weights, gradients and optimizer state are
//! sharded over all ranks (FSDP), each of which sees its own points.
//!
//! ```console
//! cargo run --release -p nd-training --example plain_model                      # two ranks as threads
//! nd-run -n 4 -- target/release/examples/plain_model                            # four as processes
//! ```

use candle_core::{Device, Tensor};
use nd_comm::launch::Launch;
use nd_comm::prelude::Communicator;
use nd_training::llama::Weights;
use nd_training::model::{Init, Parameter, Unit};
use nd_training::optim::Options;
use nd_training::shard::{Policy, Sharded};
use nd_training::train::Loop;
use nd_training::{Groups, Mesh, Model, Result};

const WIDTHS: [usize; 4] = [1, 64, 64, 1];
const LAYERS: usize = WIDTHS.len() - 1;
/// Points of a rank in a step.
const POINTS: usize = 32;
const STEPS: u64 = 500;

/// The model as anyone would write it.
fn layer(weight: &Tensor, bias: &Tensor, x: &Tensor, last: bool) -> candle_core::Result<Tensor> {
    let y = x.matmul(&weight.t()?)?.broadcast_add(bias)?;
    if last { Ok(y) } else { y.tanh() }
}

/// What is added to it: which parameters there are, and which of them each stage needs.
struct Network;

/// One micro-batch.
struct Points {
    x: Tensor,
    y: Tensor,
}

impl Model for Network {
    type Batch = Points;

    fn units(&self) -> Vec<Unit> {
        let unit = |layer: usize| {
            let (inputs, outputs) = (WIDTHS[layer], WIDTHS[layer + 1]);
            let init = Init::Normal(1.0 / (inputs as f64).sqrt());
            let parameters = vec![
                Parameter::whole(format!("layers.{layer}.weight"), &[outputs, inputs], init),
                Parameter::whole(format!("layers.{layer}.bias"), &[outputs], init),
            ];
            Unit { name: format!("layers.{layer}"), parameters, keep: layer == LAYERS - 1 }
        };
        (0..LAYERS).map(unit).collect()
    }

    fn stages(&self) -> Vec<usize> {
        (0..LAYERS).collect()
    }

    fn forward(
        &self,
        stage: usize,
        weights: &[Tensor],
        input: Option<&Tensor>,
        batch: &Points,
    ) -> Result<Tensor> {
        let last = stage == LAYERS - 1;
        let y = layer(&weights[0], &weights[1], input.unwrap_or(&batch.x), last)?;
        // The last stage gives the sum of the loss; the loop divides by the number of points of all ranks.
        if last { Ok((y - &batch.y)?.sqr()?.sum_all()?) } else { Ok(y) }
    }
}

/// Points that no other rank has at this step.
fn points(step: u64, rank: usize) -> Result<Points> {
    let place =
        |i: usize| ((step as usize * 7919 + rank * POINTS + i) as f32 * 0.618_034).fract() * 6.0 - 3.0;
    let x: Vec<f32> = (0..POINTS).map(place).collect();
    let y: Vec<f32> = x.iter().map(|x| x.sin()).collect();
    let column = |values| Tensor::from_vec(values, (POINTS, 1), &Device::Cpu);
    Ok(Points { x: column(x)?, y: column(y)? })
}

fn train(comm: &Communicator) -> Result<()> {
    let mesh = Mesh::parse("dp_shard=-1", comm.world_size())?;
    let order: Vec<usize> = (0..comm.world_size()).collect();
    let groups = Groups::new(comm, mesh, &order)?;
    let weights = Weights::random(1);
    let fill = |parameter: &Parameter, range, out: &mut [f32]| weights.fill(parameter, range, out);
    let sharded = Sharded::new(Network, &groups, Policy::default(), &fill)?;
    let mut training = Loop::new(sharded, &groups, Options::default(), 1.0, false);
    for step in 1..=STEPS {
        let outcome = training.step(&[points(step, comm.rank())?], POINTS as u64, 3e-3)?;
        if comm.rank() == 0 && step % 50 == 0 {
            println!("step {step}: mean square error {:.1e}", outcome.loss);
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    if Launch::from_env().is_ok() {
        return train(&Communicator::from_env()?);
    }
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            Communicator::local(2)?.into_iter().map(|comm| scope.spawn(move || train(&comm))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("a rank does not panic"))
    })
}
