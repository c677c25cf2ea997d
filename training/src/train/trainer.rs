//! A Llama on a text.

use std::path::{Path, PathBuf};
use std::time::Instant;

use candle_core::{Device, Tensor};
use nd_comm::prelude::Communicator;
use nd_topology::placement::Placement;

use super::origin::{Origin, resumed};
use super::place::ring;
use super::plan::{Plan, options, shape};
use super::spared::{Spared, crossing};
use super::state::About;
use super::texts::Texts;
use super::{Config, Loop, Placed, Predicted, Row, Sent, place, predict};
use crate::agree::{all_well, same, same_files};
use crate::checkpoint::{self, Saver};
use crate::context_parallel::positions;
use crate::data::{Deal, MicroBatch, Order, Tokens, Windows};
use crate::error::{Error, Result};
use crate::group::Groups;
use crate::llama::weights::{Format, make_room, save};
use crate::llama::{self, Llama, Weights};
use crate::mesh::Mesh;
use crate::model::{Parameter, Unit};
use crate::optim::Schedule;

/// A run: model, texts and where it is.
pub struct Trainer {
    config: Config,
    model: llama::Config,
    groups: Groups,
    placed: Placed,
    predicted: Vec<Predicted>,
    spared: Option<Spared>,
    training: Loop<Llama>,
    text: Text,
    eval: Option<Text>,
    positions: Vec<u32>,
    schedule: Schedule,
    /// Steps that were made before.
    begun: u64,
    bytes_resumed: u64,
    step: u64,
    saver: Option<Saver>,
    /// What the text is, and what has made tokens of it.
    texts: Vec<checkpoint::manifest::Text>,
    /// What was sent up to here.
    sent: Vec<Sent>,
    hosts: Vec<Vec<u32>>,
    /// Where the weights came from.
    origin: String,
    /// All ranks, by the launcher's numbers.
    world: Communicator,
}

/// Tokens, and who gets which.
pub(super) struct Text {
    pub tokens: Tokens,
    pub windows: Windows,
    pub deal: Deal,
}

impl Trainer {
    /// What can be known of a run on so many ranks, `local_ranks` of them on this host, before any of them is started: whether mesh,
    /// model, batch and memory fit together, and files are there. It takes milliseconds, and reads no text and no weights.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::File`] or [`Error::Mesh`] with what does not fit and what to do.
    pub fn check(config: &Config, ranks: usize, local_ranks: usize) -> Result<()> {
        Plan::new(config, ranks, local_ranks).map(drop)
    }

    /// Reads what is to be read, places the ranks, and makes or loads this rank's shards. All ranks call this.
    ///
    /// # Errors
    /// The same on all ranks: [`Error::Config`], [`Error::File`] or [`Error::Mesh`] with what does not fit and what to do.
    pub fn new(comm: &Communicator, config: &Config) -> Result<Trainer> {
        let plan = all_well(comm, Plan::new(config, comm.world_size(), comm.host_ranks().len()))?;
        same(comm, &plan.compared(config), "start all ranks with the same settings")?;
        let made = config.save.as_deref().filter(|_| comm.rank() == 0).map_or(Ok(()), make_room);
        all_well(comm, made)?;
        let beside = match &config.checkpoint {
            Some(_) if comm.rank() == 0 => config.tokenizer().files(),
            _ => Ok(Vec::new()),
        };
        let beside = all_well(comm, beside)?;
        let saver = config.checkpoint.as_deref().map(|folder| Saver::open(comm, folder, config.keep, beside));
        let saver = saver.transpose()?;
        let saved = resumed(comm, config)?;
        let begun = saved.as_ref().map(|saved| saved.manifest().step);
        all_well(comm, saver.as_ref().map_or(Ok(()), |saver| saver.begins_after(begun)))?;
        let texts = Texts::read(comm, &plan.sources, plan.model.vocab_size)?;
        let text = plan.text(config, texts.training, config.order);
        plan.check_length(config, text.tokens.len())?;
        let eval = texts.eval.map(|tokens| plan.text(config, tokens, Order::Sequential));
        let origin = match saved {
            None => Origin::Weights(weights(comm, config, &plan)?),
            Some(saved) => {
                same_files(comm, &plan.files(config, &[]))?;
                Origin::Saved(saved)
            }
        };
        let sequence = plan.sequence(config);
        let Plan { mesh, model, .. } = plan;
        let shape = shape(&model, config, &mesh, sequence)?;
        let placed = place(comm, &mesh, &shape)?;
        let groups = Groups::new(comm, mesh, &placed.order)?;
        let balance = config.cp_balance;
        let positions = positions(groups.cp().rank(), groups.cp().size(), sequence, balance)?;
        let tokens = text.tokens.len() as u64;
        let about = About { config, model: &model, deal: &text.deal, tokens, texts: &texts.seen };
        let mut described = origin.describe();
        if let Origin::Saved(saved) = &origin {
            let changed = all_well(comm, about.check(saved.manifest()))?;
            if !changed.is_empty() {
                described += &format!("; changed since: {}", changed.join(", "));
            }
        }
        let mut training = all_well(comm, origin.begin(config, &model, &groups))?;
        let elements = |unit: &Unit| unit.parameters.iter().map(Parameter::len).sum::<usize>() as f64;
        let units: Vec<(f64, bool)> =
            training.sharded().units().map(|unit| (elements(unit), unit.keep)).collect();
        let parameters = units.iter().map(|unit| unit.0).sum();
        let kept = units.iter().filter(|unit| unit.1).map(|unit| unit.0).sum();
        let trained = training.sharded().units().flat_map(|unit| &unit.parameters).filter(|p| !p.frozen);
        let trained = trained.map(Parameter::len).sum::<usize>() as f64;
        let numbers = (parameters, kept, trained);
        let predict = |placement: &Placement, mesh: &Mesh| {
            let Some(cluster) = &placed.cluster else { return Vec::new() };
            let rings = |size, stride| ring(cluster, &placement.order, size, stride);
            predict(&rings, mesh, &config.policy(), &shape, numbers, &options(config))
        };
        let predicted = placed.placement.as_ref().map(|p| predict(p, &mesh)).unwrap_or_default();
        let spared = placed.placement.as_ref().zip(placed.flat.as_ref()).filter(|_| config.zero > 0);
        let spared = spared.map(|(placement, (flat_mesh, flat))| Spared {
            own: crossing(placement, &mesh, &predicted),
            flat: crossing(flat, flat_mesh, &predict(flat, flat_mesh)),
        });
        let batch = mesh.effective_batch(text.deal.micro_batch as usize, text.deal.accumulation as usize);
        let schedule = Schedule {
            lr: config.lr * config.lr_scaling.factor(batch, config.reference_batch),
            decay: config.schedule,
            warmup: config.warmup,
            steps: config.steps,
        };
        groups.ledger().take();
        let config = config.clone();
        Ok(Trainer {
            config,
            model,
            groups,
            placed,
            predicted,
            spared,
            training,
            text,
            eval,
            positions,
            schedule,
            begun: begun.unwrap_or(0),
            bytes_resumed: if let Origin::Saved(saved) = &origin { saved.bytes_read() } else { 0 },
            step: begun.unwrap_or(0),
            saver,
            texts: texts.seen,
            sent: Vec::new(),
            hosts: comm.layout().hosts().to_vec(),
            origin: described,
            world: comm.clone(),
        })
    }

    /// The next step.
    ///
    /// # Errors
    /// As [`Loop::step`].
    pub fn step(&mut self) -> Result<Row> {
        let began = Instant::now();
        self.step += 1;
        let lr = self.schedule.at(self.step);
        let mut tokens = 0;
        let mut batches = Vec::with_capacity(self.text.deal.accumulation as usize);
        for micro in 0..self.text.deal.accumulation {
            let batch = self.micro_batch(&self.text, self.step, micro);
            tokens += batch.count();
            batches.push(self.tensors(&batch)?);
        }
        let outcome = self.training.step(&batches, tokens, lr).map_err(|e| self.by_launcher(e))?;
        let took = began.elapsed().as_secs_f64();
        let all = Sent::all(self.groups.ledger());
        let before = std::mem::replace(&mut self.sent, all);
        let measured = self.eval.is_some()
            && (self.done()
                || self.config.eval_every > 0 && self.step.is_multiple_of(self.config.eval_every));
        Ok(Row {
            step: self.step,
            loss: outcome.loss,
            grad_norm: outcome.grad_norm,
            lr,
            tokens_per_s: outcome.tokens as f64 / took,
            eval_loss: if measured { self.evaluate()? } else { None },
            sent: Sent::since(&self.sent, &before),
            predicted: if self.step == self.begun + 1 { self.predicted.clone() } else { Vec::new() },
            loss_scale: self.training.loss_scale(),
            skipped: outcome.skipped,
        })
    }

    /// Whether all steps are done.
    pub fn done(&self) -> bool {
        self.step >= self.config.steps
    }

    /// The mean loss on the other text, if there is one; all ranks call this.
    ///
    /// # Errors
    /// Of tensors and communication.
    pub fn evaluate(&mut self) -> Result<Option<f64>> {
        let Some(eval) = &self.eval else {
            return Ok(None);
        };
        let deal = eval.deal;
        let rounds =
            (1..=deal.steps_of_epoch()).flat_map(|step| (0..deal.accumulation).map(move |m| (step, m)));
        let parts: Vec<MicroBatch> =
            rounds.map(|(step, micro)| self.micro_batch(eval, step, micro)).collect();
        let tokens = parts.iter().map(MicroBatch::count).sum();
        let batches: Vec<_> = parts.iter().map(|part| self.tensors(part)).collect();
        let ledger = self.groups.ledger().clone();
        let loss = ledger.aside(|| self.training.evaluate(batches.into_iter(), tokens))?;
        Ok(Some(loss))
    }

    /// Steps that were made before this run.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Bytes of tensors that this rank has read of the checkpoint that it goes on from.
    pub fn bytes_resumed(&self) -> u64 {
        self.bytes_resumed
    }

    /// Writes a checkpoint if one is due after the last step that was made, or begins to, and says where one is that is whole
    /// now. All ranks call this after each step.
    ///
    /// # Errors
    /// As [`Saver::save`].
    pub fn checkpoint(&mut self) -> Result<Option<PathBuf>> {
        let Some(saver) = &mut self.saver else { return Ok(None) };
        let (every, done) = (self.config.checkpoint_every, self.step >= self.config.steps);
        if self.step == self.begun || !(done || every > 0 && self.step.is_multiple_of(every)) {
            return saver.settle(false);
        }
        let tokens = self.text.tokens.len() as u64;
        let (config, model, deal, texts) = (&self.config, &self.model, &self.text.deal, &self.texts[..]);
        let about = About { config, model, deal, tokens, texts };
        let progress = self.training.progress();
        let manifest = about.manifest(self.groups.mesh(), progress, self.training.sharded().units());
        self.training.held(|held| match config.checkpoint_async && !done {
            true => saver.save_in_background(manifest, held).map(|()| None),
            false => saver.save(manifest, held).map(Some),
        })
    }

    /// Writes the model into the folder of `save`, with its tokenizer if it has one; nothing where none is named. All ranks call
    /// this, and rank 0 writes.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be written, on all ranks; of communication.
    pub fn save(&mut self) -> Result<()> {
        let Some(folder) = self.config.save.clone() else { return Ok(()) };
        let world = self.world.clone();
        let tensors = self.model.tensors();
        let mut given = 0;
        let written = match world.rank() {
            0 => self.write(&folder, &mut given),
            _ => Ok(()),
        };
        // Whatever rank 0 has not asked for, as it cannot write, is gathered with the others all the same.
        for (name, ..) in &tensors[given..] {
            self.training.sharded().parameter(name)?;
        }
        all_well(&world, written)
    }

    /// Counts the parameters that were gathered.
    fn write(&mut self, folder: &Path, given: &mut usize) -> Result<()> {
        let beside = self.config.tokenizer().files()?;
        let format = Format { beside, ..self.config.save_dtype.into() };
        let sharded = self.training.sharded();
        save(folder, &self.model, &format, &mut |parameter, out| {
            *given += 1;
            let whole = sharded.parameter(&parameter.name)?.flatten_all()?.to_vec1::<f32>()?;
            out.copy_from_slice(&whole);
            Ok(())
        })
    }

    /// This rank's groups, with what they have sent in the steps so far; evaluation is not among it.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Where each rank sits.
    pub fn placed(&self) -> &Placed {
        &self.placed
    }

    /// What this rank has sent in the steps so far, by group and kind, and how long that took.
    pub fn sent(&self) -> &[Sent] {
        &self.sent
    }

    /// The ranks of each host.
    pub fn hosts(&self) -> &[Vec<u32>] {
        &self.hosts
    }

    /// What each group is predicted to send in a step; on rank 0 alone.
    pub fn predicted(&self) -> &[Predicted] {
        &self.predicted
    }

    /// What HSDP keeps off the links between hosts, where it is used; on rank 0 alone.
    pub fn spared(&self) -> Option<&Spared> {
        self.spared.as_ref()
    }

    /// The model's numbers.
    pub fn model(&self) -> &llama::Config {
        &self.model
    }

    /// Threads that this rank computes with.
    pub fn threads(&self) -> usize {
        candle_core::utils::get_num_threads()
    }

    /// Where the weights came from, for people: which files with how many tensors, or a seed.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Sequences of a step.
    pub fn batch(&self) -> u64 {
        self.text.deal.batch()
    }

    /// The model, its shards and its optimizer.
    pub fn training(&mut self) -> &mut Loop<Llama> {
        &mut self.training
    }

    fn micro_batch(&self, text: &Text, step: u64, micro: u64) -> MicroBatch {
        let rank = self.groups.mesh().data_parallel_rank(self.groups.rank()) as u64;
        MicroBatch::new(&text.tokens, &text.windows, &text.deal, (step, micro, rank), &self.positions)
    }

    fn tensors(&self, batch: &MicroBatch) -> Result<llama::Batch> {
        let shape = (batch.rows, batch.positions.len());
        let tensor = |values: &[u32]| Tensor::from_slice(values, shape, &Device::Cpu);
        Ok(llama::Batch {
            tokens: tensor(&batch.tokens)?,
            labels: tensor(&batch.labels)?,
            positions: batch.positions.clone(),
            sequences: batch.sequences.clone(),
        })
    }

    /// Inside the mesh ranks are counted by place; people know the launcher's numbers.
    fn by_launcher(&self, error: Error) -> Error {
        match error {
            Error::NotFinite { step, rank, what } => {
                let rank = self.placed.order.iter().position(|&place| place == rank).unwrap_or(rank);
                Error::NotFinite { step, rank, what }
            }
            error => error,
        }
    }
}

/// The weights that a run begins with, the same on all ranks.
fn weights(comm: &Communicator, config: &Config, plan: &Plan) -> Result<Weights> {
    let opened = match &config.init {
        Some(path) => Weights::are_in(path).and_then(|are| are.then(|| Weights::open(path)).transpose()),
        None => Ok(None),
    };
    let weights = all_well(comm, opened)?.unwrap_or_else(|| Weights::random(config.seed));
    let warning = all_well(comm, weights.warning())?.filter(|_| comm.rank() == 0);
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    let files = weights.files().map(|files| plan.files(config, &files));
    same_files(comm, &all_well(comm, files)?)?;
    Ok(weights)
}
