//! Small models on ranks that are threads.

mod bits;
mod failures;
mod frozen;
mod parity;
mod parts;
mod sent;

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use nd_comm::choose::Chooser;
use nd_comm::communicator::Communicator;
use nd_tests::worlds::{self, Kind};

use super::sharded::Sharded;
use super::*;
use crate::error::Result;
use crate::group::{Entry, Groups};
use crate::mesh::Mesh;
use crate::model::{Init, Model, Parameter, Unit};

/// Layers of a perceptron: `tanh(x Wᵀ + b)`, and at the end the sum of squared differences.
pub struct Perceptron {
    /// Widths, from the input's to the output's.
    widths: Vec<usize>,
    /// Whether the last layer's weight is the first one's, transposed.
    tied: bool,
    /// Parameters that stay as they are.
    frozen: &'static [&'static str],
}

/// Inputs and what should come out.
pub struct Pairs {
    x: Tensor,
    y: Tensor,
}

pub fn perceptron() -> Perceptron {
    Perceptron { widths: vec![7, 15, 33, 3], tied: false, frozen: &[] }
}

pub fn tied() -> Perceptron {
    Perceptron { widths: vec![7, 15, 15, 7], tied: true, frozen: &[] }
}

impl Perceptron {
    fn layers(&self) -> usize {
        self.widths.len() - 1
    }
}

impl Model for Perceptron {
    type Batch = Pairs;

    fn units(&self) -> Vec<Unit> {
        let matrix = |i: usize| {
            Parameter::whole(format!("{i}.weight"), &[self.widths[i + 1], self.widths[i]], Init::Zeros)
        };
        let bias = |i: usize| Parameter::whole(format!("{i}.bias"), &[self.widths[i + 1]], Init::Zeros);
        let unit = |i: usize, mut parameters: Vec<Parameter>| {
            parameters.iter_mut().for_each(|p| p.frozen = self.frozen.contains(&&*p.name));
            Unit { name: format!("layers.{i}"), parameters, keep: false }
        };
        let last = self.layers() - 1;
        (0..if self.tied { last } else { last + 1 })
            .map(|i| match i {
                0 if self.tied => unit(0, vec![matrix(0), bias(0), bias(last)]),
                _ => unit(i, vec![matrix(i), bias(i)]),
            })
            .collect()
    }

    fn stages(&self) -> Vec<usize> {
        let last = self.layers() - 1;
        (0..=last).map(|i| if self.tied && i == last { 0 } else { i }).collect()
    }

    fn forward(
        &self,
        stage: usize,
        weights: &[Tensor],
        input: Option<&Tensor>,
        batch: &Pairs,
    ) -> Result<Tensor> {
        let last = stage + 1 == self.layers();
        let dtype = weights[0].dtype();
        let x = input.cloned().map_or_else(|| batch.x.to_dtype(dtype), Ok)?;
        let (matrix, bias) = match last && self.tied {
            true => (weights[0].clone(), &weights[2]),
            false => (weights[0].t()?, &weights[1]),
        };
        let y = x.matmul(&matrix)?.broadcast_add(bias)?;
        if !last {
            return Ok(y.tanh()?);
        }
        Ok((y.to_dtype(DType::F32)? - &batch.y)?.sqr()?.sum_all()?)
    }
}

/// A number in [-1, 1) that depends on nothing but its place.
pub fn number(stream: u64, index: usize) -> f32 {
    let mut x =
        stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index as u64).wrapping_mul(0xd1b5_4a32_d192_ed03);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((x >> 40) as f32 / (1u64 << 23) as f32) - 1.0
}

fn tensor(stream: u64, rows: usize, columns: usize) -> Tensor {
    let values = (0..rows * columns).map(|i| number(stream, i)).collect::<Vec<_>>();
    Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
}

/// The `index`-th micro-batch of a step, over all ranks.
pub fn pairs(model: &Perceptron, step: usize, index: usize) -> Pairs {
    let stream = (step * 1000 + index) as u64;
    let (x, y) = (model.widths[0], model.widths[model.layers()]);
    Pairs { x: tensor(2 * stream, 5, x), y: tensor(2 * stream + 1, 5, y) }
}

/// What a parameter holds at first.
pub fn fill(parameter: &Parameter, range: Range<usize>, out: &mut [f32]) -> Result<()> {
    let stream = parameter.name.bytes().fold(7, |hash: u64, byte| hash * 31 + u64::from(byte));
    out.iter_mut().zip(range).for_each(|(out, i)| *out = 0.5 * number(stream, i));
    Ok(())
}

/// How a job trains.
#[derive(Clone)]
pub struct Job {
    pub kind: Kind,
    pub mesh: String,
    pub policy: Policy,
    pub micro_batches: usize,
    pub steps: usize,
    pub tied: bool,
    pub frozen: &'static [&'static str],
}

/// What came of it, on one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// By step and micro-batch.
    pub losses: Vec<f64>,
    /// All parameters, whole, as bits.
    pub parameters: Vec<(String, Vec<u32>)>,
    /// What the last step sent.
    pub sent: Vec<(&'static str, crate::group::Kind, Entry)>,
    /// Loss of the last micro-batch, computed again after training.
    pub evaluated: f64,
}

impl Job {
    pub fn new(mesh: &str, policy: Policy) -> Job {
        Job {
            kind: Kind::Local,
            mesh: mesh.into(),
            policy,
            micro_batches: 1,
            steps: 3,
            tied: false,
            frozen: &[],
        }
    }

    /// Trains with momentum on as many ranks as the mesh has; gives every rank's outcome.
    pub fn run(&self, ranks: usize) -> Vec<Outcome> {
        let world = worlds::world(&self.kind, ranks, &Chooser::default());
        worlds::each(&world, |comm| self.rank(comm))
    }

    fn rank(&self, comm: &Communicator) -> Outcome {
        let mesh = Mesh::parse(&self.mesh, comm.world_size()).unwrap();
        let order: Vec<_> = (0..comm.world_size()).collect();
        let groups = Groups::new(comm, mesh, &order).unwrap();
        let model = || Perceptron { frozen: self.frozen, ..if self.tied { tied() } else { perceptron() } };
        let mut sharded = Sharded::new(model(), &groups, self.policy, &fill).unwrap();
        let part = groups.loss().rank();
        let batch = |step, micro: usize| pairs(&model(), step, part * self.micro_batches + micro);
        let mut momentum: Vec<Vec<f32>> = Vec::new();
        let (mut losses, mut sent) = (Vec::new(), Vec::new());
        for step in 0..self.steps {
            groups.ledger().take();
            for micro in 0..self.micro_batches {
                let last = micro + 1 == self.micro_batches;
                losses.push(sharded.backward(&batch(step, micro), 0.01, last).unwrap());
            }
            for (i, shard) in sharded.shards().into_iter().enumerate() {
                if momentum.len() == i {
                    momentum.push(vec![0.0; shard.master.len()]);
                }
                for ((m, w), g) in momentum[i].iter_mut().zip(shard.master).zip(shard.gradient) {
                    *m = 0.9 * *m + *g;
                    *w -= 0.5 * *m;
                }
            }
            sharded.updated().unwrap();
            sent =
                groups.ledger().take().into_iter().map(|((axis, kind), entry)| (axis, kind, entry)).collect();
        }
        let evaluated = sharded.evaluate(&batch(self.steps - 1, self.micro_batches - 1)).unwrap();
        let names: Vec<_> = sharded.units().flat_map(|u| &u.parameters).map(|p| p.name.clone()).collect();
        let mut bits = |name: &String| {
            let values = sharded.parameter(name).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            (name.clone(), values.iter().map(|v| v.to_bits()).collect())
        };
        let parameters = names.iter().map(&mut bits).collect();
        Outcome { losses, parameters, sent, evaluated }
    }
}
