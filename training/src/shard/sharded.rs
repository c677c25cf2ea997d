//! A model whose state is divided over ranks.

use std::ops::Range;
use std::sync::Arc;

use super::buckets;
use super::gather::{self, Among, Gather, Masters};
use super::layout::{Layout, Piece, UnitLayout};
use super::memory::Memory;
use super::policy::{Policy, Reshard};
use super::program::{self, Use};
use super::reduce::{self, Over, Reduce};
use super::values::Values;
use super::weights::Weights;
use crate::error::{Error, Result};
use crate::group::{Group, Groups};
use crate::model::{Model, Parameter, Unit};

/// Fills a range of a parameter's part of this rank, flattened.
pub type Fill<'a> = dyn Fn(&Parameter, Range<usize>, &mut [f32]) -> Result<()> + 'a;

/// A model, and of its parameters and their gradients what belongs to this rank.
///
/// All ranks make the same calls in the same order. A call that fails on one rank fails on all: the rank that it failed on
/// gets the reason, the others an error that names it; then none of them can go on with this model.
pub struct Sharded<M: Model> {
    pub(super) model: M,
    pub(super) groups: Groups,
    pub(super) policy: Policy,
    pub(super) units: Vec<ShardedUnit>,
    pub(super) gather: Box<dyn Gather>,
    pub(super) reduce: Box<dyn Reduce>,
    pub(super) training: Vec<Use>,
    pub(super) evaluation: Vec<Use>,
    /// Who shares the masters; none if this rank has all.
    pub(super) shard: Option<Group>,
    /// Neighbours among whom weights are gathered again.
    near: Option<Group>,
    pub(super) activations: usize,
    pub(super) unreduced: usize,
    peak: Memory,
    failed: bool,
}

/// A unit, and this rank's shard of it.
pub(super) struct ShardedUnit {
    pub unit: Unit,
    /// Of the parameters that are trained, as of all that follows but `frozen`.
    pub layout: Layout,
    pub pieces: Vec<Piece>,
    /// This rank's shard of the parameters.
    pub masters: Vec<f32>,
    pub frozen: Frozen,
    pub weights: Weights,
    /// Whether the weights are there and are those of the masters.
    pub gathered: bool,
    /// Gradients that wait for those of the unit's other stages.
    pub of_stages: Option<Values>,
    /// Gradients that wait for those of other micro-batches.
    pub of_micro_batches: Option<Values>,
}

/// Of a unit's parameters those that stay as they are.
pub(super) struct Frozen {
    pub layout: Layout,
    /// This rank's shard.
    pub masters: Vec<f32>,
}

impl ShardedUnit {
    pub fn masters(&self) -> Masters<'_> {
        Masters { trained: &self.masters, frozen: &self.frozen.masters }
    }
}

/// What an optimizer updates: a unit's shard, without what is frozen. Elements that belong to no piece are zero, and so are their gradients.
#[derive(Debug)]
pub struct ShardView<'a> {
    /// Which unit.
    pub unit: usize,
    /// Parameters.
    pub master: &'a mut [f32],
    /// Their gradients, of all ranks.
    pub gradient: &'a mut [f32],
    /// Which parameters lie where, in order.
    pub pieces: &'a [Piece],
}

impl<M: Model> Sharded<M> {
    /// Divides a model over the ranks of `groups`; `fill` gives this rank's shard its first values. All ranks call this.
    ///
    /// # Errors
    /// [`Error::Config`] when the policy or the model is not usable; what `fill` returns.
    pub fn new(model: M, groups: &Groups, policy: Policy, fill: &Fill<'_>) -> Result<Sharded<M>> {
        Sharded::divide(model, groups, policy, fill).inspect_err(|_| abort(groups, None))
    }

    fn divide(model: M, groups: &Groups, policy: Policy, fill: &Fill<'_>) -> Result<Sharded<M>> {
        let units = model.units();
        let stages = model.stages();
        check(&units, &stages)?;
        let (shard, replicate) = policy.ranks(groups);
        let (ranks, rank) = shard.as_ref().map_or((1, 0), |group| (group.size(), group.rank()));
        policy.check(ranks)?;
        let near = near(&policy, shard.as_ref(), groups)?;
        let layouts: Arc<[UnitLayout]> =
            units.iter().map(|u| UnitLayout::new(&u.parameters, ranks)).collect();
        let trained: Arc<[Layout]> = layouts.iter().map(|layout| layout.trained.clone()).collect();
        let training = program::training(&stages, &units, &policy);
        let limit = (policy.zero < 3).then(|| policy.bucket_bytes / policy.reduce.size_in_bytes());
        let buckets = buckets::cut(&program::completed(&training), &trained, limit);
        let among = Among { all: shard.clone(), near: near.clone(), keep_buffers: policy.prefetch };
        let gather = gather::gather(policy.compute, among, layouts.clone());
        let over = Over { shard: shard.clone(), replicate, each: policy.reduce_each_micro_batch };
        let sharded_units = units.iter().zip(&*layouts).map(|(unit, layout)| {
            let UnitLayout { trained, frozen } = layout.clone();
            let own = |layout: &Layout| {
                let pieces = layout.pieces(rank, &unit.parameters);
                let mut masters = vec![0.0; layout.shard()];
                for piece in &pieces {
                    let range = piece.start..piece.start + piece.range.len();
                    fill(&unit.parameters[piece.parameter], range, &mut masters[piece.range.clone()])?;
                }
                Ok::<_, Error>((pieces, masters))
            };
            let (pieces, masters) = own(&trained)?;
            let frozen = Frozen { masters: own(&frozen)?.1, layout: frozen };
            let weights =
                gather.empty(unit.parameters.iter().map(|p| (p.local_shape(), p.frozen)).collect())?;
            Ok(ShardedUnit {
                unit: unit.clone(),
                layout: trained,
                pieces,
                masters,
                frozen,
                weights,
                gathered: false,
                of_stages: None,
                of_micro_batches: None,
            })
        });
        let sharded_units = sharded_units.collect::<Result<Vec<_>>>()?;
        Ok(Sharded {
            groups: groups.clone(),
            policy,
            evaluation: program::evaluation(&stages, &units, &policy),
            training,
            units: sharded_units,
            gather,
            reduce: reduce::reduce(policy.reduce, over, trained, buckets),
            shard,
            near,
            activations: 0,
            unreduced: 0,
            peak: Memory::default(),
            failed: false,
            model,
        })
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The groups of this rank.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// How the state is divided.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// All parameters, by unit; [`Piece::parameter`] counts within [`ShardView::unit`].
    pub fn units(&self) -> impl Iterator<Item = &Unit> {
        self.units.iter().map(|u| &u.unit)
    }

    /// Forward and backward pass of one micro-batch. Its gradients × `seed` are added to those of the step's other
    /// micro-batches; `last` says that it is the step's last, after which [`Sharded::shards`] has the sum over all ranks.
    /// Returns this rank's loss, summed over its tokens.
    ///
    /// # Errors
    /// Of the model, its tensors and communication; see [`Sharded`].
    pub fn backward(&mut self, batch: &M::Batch, seed: f64, last: bool) -> Result<f64> {
        self.together(|all| all.train(batch, seed, last))
    }

    /// Forward pass of one micro-batch: this rank's loss, summed over its tokens.
    ///
    /// # Errors
    /// As for [`Sharded::backward`].
    pub fn evaluate(&mut self, batch: &M::Batch) -> Result<f64> {
        self.together(|all| all.compute(batch))
    }

    /// What an optimizer updates: this rank's shard of each unit. With ZeRO-0 that is all of it, on all ranks. Between
    /// the last micro-batch's [`Sharded::backward`] and [`Sharded::updated`] the gradients are those of the step.
    pub fn shards(&mut self) -> Vec<ShardView<'_>> {
        self.reduce.make_room();
        let mut views = Vec::with_capacity(self.units.len());
        for (unit, (shard, gradient)) in self.units.iter_mut().zip(self.reduce.gradients()).enumerate() {
            let ShardedUnit { masters, pieces, .. } = shard;
            views.push(ShardView { unit, master: masters, gradient, pieces });
        }
        views
    }

    /// The groups over which squares of gradients that [count](Piece::counts) add up to those of the whole model.
    pub fn norm_groups(&self) -> Vec<Group> {
        let tp = (self.groups.tp().size() > 1).then(|| self.groups.tp().clone());
        self.shard.iter().cloned().chain(tp).collect()
    }

    /// Says that the masters have changed: weights that were gathered are out of date, and gradients are zero again.
    /// ZeRO-1 and 2 gather the new weights when the next forward pass comes to them, one unit ahead.
    ///
    /// # Errors
    /// Of [`Sharded`].
    pub fn updated(&mut self) -> Result<()> {
        self.together(|all| {
            all.reduce.clear();
            for unit in &mut all.units {
                (unit.gathered, unit.of_micro_batches) = (false, None);
            }
            Ok(())
        })
    }

    /// What this rank's memory is for, now.
    pub fn memory(&self) -> Memory {
        let (gradients, buckets) = self.reduce.bytes();
        let waiting =
            |u: &ShardedUnit| u.of_stages.iter().chain(&u.of_micro_batches).map(Values::bytes).sum::<usize>();
        let waiting: usize = self.units.iter().map(waiting).sum();
        Memory {
            masters: self
                .units
                .iter()
                .map(|u| size_of_val(&*u.masters) + size_of_val(&*u.frozen.masters))
                .sum(),
            gradients,
            gathered: self.units.iter().map(|u| u.weights.bytes()).sum(),
            unreduced: self.unreduced + waiting,
            buffers: buckets + self.gather.bytes(),
            activations: self.activations,
        }
    }

    /// What it was for when it was most, since this was last asked.
    pub fn take_peak(&mut self) -> Memory {
        std::mem::take(&mut self.peak)
    }

    pub(super) fn note(&mut self) {
        let now = self.memory();
        if now.total() > self.peak.total() {
            self.peak = now;
        }
    }

    /// Does something in which all ranks take part, and ends all their communication when it fails on this one.
    pub(super) fn together<R>(&mut self, what: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        if self.failed {
            return Err(Error::Config(
                "an earlier call on this model failed, on this rank or another; load the last checkpoint into a new one"
                    .into(),
            ));
        }
        let result = what(self);
        if result.is_err() {
            self.failed = true;
            abort(&self.groups, self.near.as_ref());
        }
        result
    }
}

/// Tells all that this rank communicates with that it goes on no more.
fn abort(groups: &Groups, near: Option<&Group>) {
    let all = [groups.world(), groups.loss(), groups.dp_replicate(), groups.fsdp(), groups.cp(), groups.tp()];
    for group in all.into_iter().chain(near).filter(|group| group.size() > 1) {
        group.communicator().abort();
    }
}

/// The neighbours of [`Reshard::Groups`]: all ranks split alike.
fn near(policy: &Policy, shard: Option<&Group>, groups: &Groups) -> Result<Option<Group>> {
    match (policy.reshard, shard) {
        (Reshard::Groups(k), Some(shard)) if policy.zero == 3 => {
            let part = shard.communicator().split((shard.rank() / k) as u64, shard.rank() as i64)?;
            Ok(Some(Group::new("fsdp_near", part, groups.ledger().clone())))
        }
        _ => Ok(None),
    }
}

/// # Errors
/// [`Error::Config`] when a stage has no unit, a unit no stage, or two parameters one name.
fn check(units: &[Unit], stages: &[usize]) -> Result<()> {
    let refuse = |problem: String| Err(Error::Config(problem));
    if let Some((stage, unit)) = stages.iter().enumerate().find(|&(_, &unit)| unit >= units.len()) {
        return refuse(format!(
            "stage {stage} computes with unit {unit}; the model has {} units",
            units.len()
        ));
    }
    if let Some(idle) = (0..units.len()).find(|unit| !stages.contains(unit)) {
        return refuse(format!("no stage computes with unit {}; leave it out", units[idle].name));
    }
    let mut names: Vec<_> = units.iter().flat_map(|u| &u.parameters).map(|p| &*p.name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => refuse(format!("two parameters are called {}; a tensor belongs to one unit", pair[0])),
        None => Ok(()),
    }
}
