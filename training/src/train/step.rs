//! One step of training, for any model.

use nd_comm::prelude::ReduceOp;

use crate::checkpoint::{Fill, Held, Kind};
use crate::error::{Error, Result};
use crate::group::Groups;
use crate::model::Model;
use crate::optim::{AdamW, LossScale, Options, clip, norm};
use crate::shard::Sharded;

/// A model on its way: shards, optimizer and loss scale.
pub struct Loop<M: Model> {
    sharded: Sharded<M>,
    groups: Groups,
    optimizer: AdamW,
    scale: Option<LossScale>,
    clip: f64,
    step: u64,
}

/// What a loop has to go on with, beside what lies in its shards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Steps that were made.
    pub step: u64,
    /// Of these, updates.
    pub updates: u64,
    /// Under f16.
    pub scale: Option<LossScale>,
}

/// What came of a step; the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The sum of the loss over all tokens that count, divided by their number.
    pub loss: f64,
    /// How many count, on all ranks together.
    pub tokens: u64,
    /// The global L2 norm of the gradients before clipping; NaN in a step that was skipped.
    pub grad_norm: f64,
    /// Whether parameters were left as they were, because the loss scale of f16 was too great.
    pub skipped: bool,
}

/// What a rank says when all is well with it: more than any rank's number.
const WELL: u64 = u64::MAX;

impl<M: Model> Loop<M> {
    /// Begins with the parameters that `sharded` has. `clip` is the greatest norm of the gradients, 0 for no limit; `f16` says that
    /// losses are computed in f16, whose gradients need a scale.
    pub fn new(sharded: Sharded<M>, groups: &Groups, options: Options, clip: f64, f16: bool) -> Loop<M> {
        Loop {
            sharded,
            groups: groups.clone(),
            optimizer: AdamW::new(options),
            scale: f16.then(LossScale::dynamic),
            clip,
            step: 0,
        }
    }

    /// The model and its shards.
    pub fn sharded(&mut self) -> &mut Sharded<M> {
        &mut self.sharded
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        Progress { step: self.step, updates: self.optimizer.steps(), scale: self.scale }
    }

    /// Calls `each` with what this rank holds: parameters and the optimizer's means of them. Before the first update the means
    /// are zeros.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn held<R>(&self, each: impl FnOnce(&[Held<'_>]) -> Result<R>) -> Result<R> {
        let own = self.sharded.own();
        let none = self.optimizer.bytes() == 0;
        let longest = own.iter().map(|own| own.place.len()).max().filter(|_| none);
        let zeros = vec![0.0; longest.unwrap_or(0)];
        let held = own.iter().map(|own| {
            let means = self.optimizer.means(own.unit.0);
            let mut values = vec![own.masters];
            if !own.parameter.frozen {
                values.extend(means.map(|mean| match none {
                    true => &zeros[..own.place.len()],
                    false => &mean[own.place.clone()],
                }));
            }
            Held { parameter: own.parameter, range: own.range.clone(), values }
        });
        let held: Vec<Held<'_>> = held.collect();
        each(&held)
    }

    /// Goes on from where another loop was: `fill` gives the optimizer's means; the parameters are those that the model was made
    /// with. Under f16 a loop that had no loss scale begins with the usual one.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn go_on(&mut self, progress: Progress, fill: &Fill<'_>) -> Result<()> {
        self.step = progress.step;
        self.scale = self.scale.map(|scale| progress.scale.unwrap_or(scale));
        let own = self.sharded.own();
        let units = self.sharded.units().count();
        let mut lens = vec![0; units];
        own.iter().for_each(|own| lens[own.unit.0] = own.unit.1);
        let mut means: Vec<[&mut [f32]; 2]> = self.optimizer.go_on(progress.updates, &lens).collect();
        for own in own.iter().filter(|own| !own.parameter.frozen) {
            for (mean, kind) in means[own.unit.0].iter_mut().zip([Kind::Mean, Kind::Square]) {
                fill(kind, own.parameter, own.range.clone(), &mut mean[own.place.clone()])?;
            }
        }
        Ok(())
    }

    /// The loss scale, under f16.
    pub fn loss_scale(&self) -> Option<f64> {
        self.scale.map(|scale| scale.get())
    }

    /// One step: forward and backward passes of this rank's micro-batches, of which `tokens` labels count; gradients of the mean
    /// loss over the tokens of all ranks; clipping; the update. All ranks call this with as many micro-batches, also those that
    /// have run out of data, with labels that do not count.
    ///
    /// # Errors
    /// [`Error::NotFinite`] on all ranks when a loss is infinite or NaN, naming the first rank that saw it, or when a gradient is,
    /// unless a smaller loss scale may help. Of tensors and communication.
    pub fn step(&mut self, micro_batches: &[M::Batch], tokens: u64, lr: f64) -> Result<Outcome> {
        let outcome = self.learn(micro_batches, tokens, lr);
        outcome.map_err(|error| self.groups.first(error))
    }

    fn learn(&mut self, micro_batches: &[M::Batch], tokens: u64, lr: f64) -> Result<Outcome> {
        self.step += 1;
        let tokens = self.total(tokens)?;
        // Where nothing counts, all gradients are zero.
        let seed = self.loss_scale().unwrap_or(1.0) / tokens.max(1) as f64;
        let mut loss = 0.0;
        for (i, batch) in micro_batches.iter().enumerate() {
            loss += self.sharded.backward(batch, seed, i + 1 == micro_batches.len())?;
        }
        let scale = self.loss_scale().unwrap_or(1.0);
        let over = self.sharded.norm_groups();
        let mut shards = self.sharded.shards();
        let grad_norm = norm(&shards, &over)? / scale;
        let own = shards.iter().all(|shard| shard.gradient.iter().all(|g| g.is_finite()));
        let rank = self.groups.world().rank() as u64;
        let mut first = [loss.is_finite(), own].map(|well| if well { WELL } else { rank });
        self.groups.world().all_reduce(&mut first, ReduceOp::Min)?;
        let not_finite = |rank: u64, what: &str| {
            Err(Error::NotFinite { step: self.step, rank: rank as usize, what: what.into() })
        };
        if first[0] != WELL {
            return not_finite(first[0], "the loss is infinite or NaN");
        }
        let finite = first[1] == WELL && grad_norm.is_finite();
        let skipped = match &mut self.scale {
            Some(scale) => {
                if !scale.update(finite) {
                    return not_finite(first[1], "a gradient is infinite or NaN at a loss scale of 1");
                }
                !finite
            }
            None if finite => false,
            None if first[1] == WELL => {
                return not_finite(rank, "the norm of the gradients is infinite");
            }
            None => return not_finite(first[1], "a gradient is infinite or NaN"),
        };
        if !skipped {
            self.optimizer.step(&mut shards, lr, clip(grad_norm, self.clip) / scale);
        }
        drop(shards);
        self.sharded.updated()?;
        let loss = self.mean(loss, tokens)?;
        Ok(Outcome { loss, tokens, grad_norm: if skipped { f64::NAN } else { grad_norm }, skipped })
    }

    /// The mean loss over these micro-batches of all ranks, of which `tokens` labels of this rank count; nothing is learnt. All
    /// ranks call this with as many micro-batches.
    ///
    /// # Errors
    /// Of tensors and communication.
    pub fn evaluate(
        &mut self,
        micro_batches: impl Iterator<Item = Result<M::Batch>>,
        tokens: u64,
    ) -> Result<f64> {
        self.measure(micro_batches, tokens).map_err(|error| self.groups.first(error))
    }

    fn measure(&mut self, micro_batches: impl Iterator<Item = Result<M::Batch>>, tokens: u64) -> Result<f64> {
        let mut loss = 0.0;
        for batch in micro_batches {
            loss += self.sharded.evaluate(&batch?)?;
        }
        let tokens = self.total(tokens)?;
        self.mean(loss, tokens)
    }

    /// Over all ranks that have different tokens.
    fn total(&self, tokens: u64) -> Result<u64> {
        let mut all = [tokens];
        self.groups.loss().all_reduce(&mut all, ReduceOp::Sum)?;
        Ok(all[0])
    }

    fn mean(&self, loss: f64, tokens: u64) -> Result<f64> {
        let mut all = [loss];
        self.groups.loss().all_reduce(&mut all, ReduceOp::Sum)?;
        Ok(all[0] / tokens.max(1) as f64)
    }
}
