//! The two passes of a micro-batch.

use candle_core::{DType, Device, Tensor, Var};

use super::gather::Masters;
use super::layout::Layout;
use super::program::Use;
use super::seed::seeded;
use super::sharded::Sharded;
use super::values::{Values, bytes};
use super::weights::Differentiated;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::model::Model;

/// What a stage keeps for its backward pass.
#[derive(Default)]
struct Kept {
    /// A leaf of the stage's graph, if it has one.
    input: Option<Tensor>,
    /// The root of the stage's graph; none if the stage is to be computed again.
    output: Option<Tensor>,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.input.iter().chain(&self.output).map(bytes).sum()
    }
}

impl<M: Model> Sharded<M> {
    /// Forward and backward.
    pub(super) fn train(&mut self, batch: &M::Batch, seed: f64, last: bool) -> Result<f64> {
        let program = std::mem::take(&mut self.training);
        let result = self.passes(&program, batch, seed, last);
        self.training = program;
        result
    }

    fn passes(&mut self, program: &[Use], batch: &M::Batch, seed: f64, last: bool) -> Result<f64> {
        let stages = program.len() / 2;
        let mut tape: Vec<Kept> = Vec::with_capacity(stages);
        // What the last stage gave to the next, and its gradient on the way back.
        let mut between: Option<Tensor> = None;
        let mut loss = 0.0;
        for (at, step) in program.iter().enumerate() {
            self.bring(program, at)?;
            if step.backward {
                let gradients = self.stage_backward(step, tape.pop(), between.take(), batch)?;
                between = gradients.input;
                self.release(step)?;
                self.hand_over(step, gradients.weights, last)?;
            } else {
                let graph = !self.policy.checkpoint_activations || step.stage + 1 == stages;
                let (kept, output) = self.stage_forward(step, between.take(), graph, batch)?;
                self.activations += kept.bytes();
                tape.push(kept);
                if step.stage + 1 == stages {
                    loss = scalar(&output)?;
                    between = Some(Tensor::full(seed, (), &Device::Cpu)?.to_dtype(output.dtype())?);
                } else {
                    between = Some(output);
                }
                self.note();
                self.release(step)?;
            }
        }
        self.activations = 0;
        self.reduce.drain()?;
        if last {
            self.reduce.trim();
        }
        Ok(loss)
    }

    /// Forward alone.
    pub(super) fn compute(&mut self, batch: &M::Batch) -> Result<f64> {
        let program = std::mem::take(&mut self.evaluation);
        let run = |all: &mut Self| {
            let mut between: Option<Tensor> = None;
            for (at, step) in program.iter().enumerate() {
                all.bring(&program, at)?;
                let weights = all.units[step.unit].weights.constants();
                between = Some(all.model.forward(step.stage, weights, between.as_ref(), batch)?);
                all.note();
                all.release(step)?;
            }
            between.map_or(Ok(0.0), |loss| scalar(&loss))
        };
        let result = run(self);
        self.evaluation = program;
        result
    }

    /// Sees to it that a stage's weights are there, and that the next one's are on their way.
    fn bring(&mut self, program: &[Use], at: usize) -> Result<()> {
        let step = &program[at];
        let unit = &mut self.units[step.unit];
        if !unit.gathered {
            let masters = Masters { trained: &unit.masters, frozen: &unit.frozen.masters };
            self.gather.finish(step.unit, masters, &mut unit.weights, step.part)?;
            unit.gathered = true;
        }
        if !step.more {
            self.gather.trim();
        }
        if let Some(next) = program.get(at + 1).filter(|_| self.policy.prefetch) {
            let unit = &self.units[next.unit];
            if !unit.gathered {
                self.gather.start(next.unit, unit.masters())?;
            }
        }
        self.note();
        Ok(())
    }

    fn release(&mut self, step: &Use) -> Result<()> {
        let unit = &mut self.units[step.unit];
        if step.free {
            unit.weights.free()?;
            unit.gathered = false;
        }
        Ok(())
    }

    fn stage_forward(
        &self,
        step: &Use,
        input: Option<Tensor>,
        graph: bool,
        batch: &M::Batch,
    ) -> Result<(Kept, Tensor)> {
        let weights = &self.units[step.unit].weights;
        if !graph {
            let output = self.model.forward(step.stage, weights.constants(), input.as_ref(), batch)?;
            return Ok((Kept { input, output: None }, output));
        }
        let input = leaf(input)?;
        let output = self.model.forward(step.stage, weights.variables(), input.as_ref(), batch)?;
        let value = output.detach();
        Ok((Kept { input, output: Some(output) }, value))
    }

    fn stage_backward(
        &mut self,
        step: &Use,
        kept: Option<Kept>,
        gradient: Option<Tensor>,
        batch: &M::Batch,
    ) -> Result<Gradients> {
        let kept = kept.unwrap_or_default();
        self.activations = self.activations.saturating_sub(kept.bytes());
        let weights = self.units[step.unit].weights.variables();
        let (input, output) = match kept.output {
            Some(output) => (kept.input, output),
            None => {
                let input = leaf(kept.input)?;
                let output = self.model.forward(step.stage, weights, input.as_ref(), batch)?;
                (input, output)
            }
        };
        let Some(gradient) = gradient else {
            return Err(Error::Config(format!(
                "stage {} has no output that anything depends on",
                step.stage
            )));
        };
        let weights = &self.units[step.unit].weights;
        let Differentiated { gradients: of_weights, most, result: mut gradients } =
            weights.differentiate(step.free, || Ok(seeded(&output, gradient)?.backward()?))?;
        drop(output);
        // What was there at a time, of weights that are gone now or of their gradients.
        self.unreduced = most.saturating_sub(weights.bytes());
        self.note();
        let of_input = match input {
            None => None,
            // Gradients hold on to the operations that they come from, unless they are detached.
            Some(input) => Some(gradients.remove(&input).map(|g| g.detach()).ok_or_else(|| {
                Error::Config(format!(
                    "no gradient of stage {}'s output reaches its input; look for an operation without a backward pass",
                    step.stage
                ))
            })?),
        };
        drop(gradients);
        let weights = Values::Each(of_weights);
        self.unreduced = weights.bytes();
        Ok(Gradients { weights, input: of_input })
    }

    /// Hands a stage's gradients on: to the sum that waits for the unit's other stages, then to the one that waits for the
    /// step's other micro-batches, then to be reduced.
    fn hand_over(&mut self, step: &Use, mut values: Values, last: bool) -> Result<()> {
        let late = self.policy.zero == 1 && !self.policy.reduce_each_micro_batch && self.shard.is_some();
        let unit = &mut self.units[step.unit];
        if !step.complete || unit.of_stages.is_some() {
            values = add(unit.of_stages.take(), &unit.layout, values)?;
            if !step.complete {
                (unit.of_stages, self.unreduced) = (Some(values), 0);
                return Ok(());
            }
        }
        if late && (!last || unit.of_micro_batches.is_some()) {
            values = add(unit.of_micro_batches.take(), &unit.layout, values)?;
            if !last {
                (unit.of_micro_batches, self.unreduced) = (Some(values), 0);
                return Ok(());
            }
        }
        self.unreduced = values.bytes();
        self.add_partials(step.unit, &mut values)?;
        self.reduce.submit(step.unit, &values, last)?;
        self.note();
        self.unreduced = 0;
        Ok(())
    }

    /// Adds up gradients of parameters of which each rank of another group has a part.
    fn add_partials(&self, unit: usize, values: &mut Values) -> Result<()> {
        let unit = &self.units[unit];
        let group_of = |index: usize| {
            let parameter = &unit.unit.parameters[index];
            parameter.partial_over.as_ref().filter(|g| g.size() > 1 && !parameter.frozen)
        };
        let mut left: Vec<_> = (0..unit.unit.parameters.len()).filter(|&i| group_of(i).is_some()).collect();
        while let Some(group) = left.first().and_then(|&i| group_of(i)).cloned() {
            let same = |index: &usize| group_of(*index).map(Group::name) == Some(group.name());
            let (together, others): (Vec<_>, Vec<_>) = left.into_iter().partition(same);
            left = others;
            let lens: Vec<_> = together.iter().map(|&i| unit.layout.parameter(i).len()).collect();
            let mut sum = vec![0.0f32; lens.iter().sum()];
            let mut start = 0;
            for (&index, &len) in together.iter().zip(&lens) {
                let to = &mut sum[start..start + len];
                values.visit(&unit.layout, index, 0..len, &mut |i, from| {
                    to[i..i + from.len()].copy_from_slice(from);
                })?;
                start += len;
            }
            group.all_reduce(&mut sum, nd_comm::prelude::ReduceOp::Sum)?;
            let mut start = 0;
            for (&index, &len) in together.iter().zip(&lens) {
                values.replace(&unit.layout, index, &sum[start..start + len])?;
                start += len;
            }
        }
        Ok(())
    }
}

/// Of a stage's weights and of its input.
struct Gradients {
    weights: Values,
    input: Option<Tensor>,
}

/// A unit's gradients and more of them; the sum, as they lie in the unit's vector.
fn add(sum: Option<Values>, layout: &Layout, more: Values) -> Result<Values> {
    let mut flat = match sum {
        Some(Values::Flat(flat)) => flat,
        _ => vec![0.0; layout.padded()],
    };
    more.add_to(layout, &mut flat)?;
    Ok(Values::Flat(flat))
}

/// A tensor that gradients are taken of.
fn leaf(input: Option<Tensor>) -> Result<Option<Tensor>> {
    Ok(input.map(|input| Var::from_tensor(&input)).transpose()?.map(Var::into_inner))
}

fn scalar(loss: &Tensor) -> Result<f64> {
    if loss.elem_count() != 1 {
        return Err(Error::Config(format!("the last stage gave {:?}; it gives one number", loss.shape())));
    }
    Ok(loss.flatten_all()?.get(0)?.to_dtype(DType::F64)?.to_scalar()?)
}
