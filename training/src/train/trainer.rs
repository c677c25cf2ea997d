//! A Llama on a text.

use std::path::{Path, PathBuf};
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use nd_comm::prelude::Communicator;
use nd_topology::placement::{self, Placement};

use super::agree::{Thing, all_well, same, same_files};
use super::place::{placeable, ring};
use super::spared::{Spared, crossing};
use super::texts::{Sources, Texts};
use super::{Config, KEYS, Loop, Placed, Predicted, Row, Sent, place, predict, room};
use crate::context_parallel::{padding, positions};
use crate::data::{Deal, MicroBatch, Order, Tokenizer, Tokens, Windows};
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::group::Groups;
use crate::llama::weights::{Format, has_room, make_room, save};
use crate::llama::{self, Llama, Weights};
use crate::mesh::Mesh;
use crate::model::{Parameter, Unit};
use crate::optim::Schedule;
use crate::shard::Sharded;

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
    step: u64,
    /// What was sent up to here.
    sent: Vec<Sent>,
    hosts: Vec<Vec<u32>>,
    /// Where the weights came from.
    origin: String,
    /// All ranks, by the launcher's numbers.
    world: Communicator,
}

/// Tokens, and who gets which.
struct Text {
    tokens: Tokens,
    windows: Windows,
    deal: Deal,
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
        let texts = Texts::read(comm, &plan.sources, plan.model.vocab_size)?;
        let text = plan.text(config, texts.training, config.order);
        plan.check_length(config, text.tokens.len())?;
        let eval = texts.eval.map(|tokens| plan.text(config, tokens, Order::Sequential));
        let weights = all_well(comm, weights(config))?;
        let warning = all_well(comm, weights.warning())?.filter(|_| comm.rank() == 0);
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        let files = weights.files().map(|files| plan.files(config, &files));
        same_files(comm, &all_well(comm, files)?)?;
        let sequence = plan.sequence(config);
        let Plan { mesh, model, .. } = plan;
        let shape = shape(&model, config, &mesh, sequence)?;
        let placed = place(comm, &mesh, &shape)?;
        let groups = Groups::new(comm, mesh, &placed.order)?;
        let balance = config.cp_balance;
        let positions = positions(groups.cp().rank(), groups.cp().size(), sequence, balance)?;
        let origin = weights.describe();
        let mut training = all_well(comm, begin(config, &model, &groups, &weights))?;
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
            step: 0,
            sent: Vec::new(),
            hosts: comm.layout().hosts().to_vec(),
            origin,
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
            predicted: if self.step == 1 { self.predicted.clone() } else { Vec::new() },
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

/// What a rank finds out by itself, before it reads texts and weights.
struct Plan {
    mesh: Mesh,
    model: llama::Config,
    /// Sequences of a micro-batch, and micro-batches of a step.
    batching: (usize, usize),
    sources: Sources,
}

impl Plan {
    fn new(config: &Config, ranks: usize, local_ranks: usize) -> Result<Plan> {
        config.check()?;
        let sources = Sources::new(config)?;
        let mesh = Mesh::parse(&config.mesh, ranks)?;
        let batching = config.batching(&mesh)?;
        let model = match &config.init {
            Some(folder) => llama::Config::open(folder)?,
            None => llama::Config {
                vocab_size: config.tokenizer().vocabulary()?,
                hidden_size: config.hidden,
                intermediate_size: config.ffn,
                num_hidden_layers: config.layers,
                num_attention_heads: config.heads,
                num_key_value_heads: config.kv_heads,
                head_dim: config.hidden / config.heads,
                ..llama::Config::default()
            },
        };
        let plan = Plan { mesh, model, batching, sources };
        if let Some(tokens) = plan.sources.tokens_known() {
            plan.check_length(config, tokens)?;
        }
        room::check(&plan.model, config, &mesh, local_ranks)?;
        Llama::check(&plan.model, &options(config), &mesh)?;
        let sequence = plan.sequence(config);
        placeable(&mesh, &shape(&plan.model, config, &mesh, sequence)?)?;
        if let Some(path) = &config.init {
            Weights::are_in(path)?;
        }
        if let Some(folder) = &config.save {
            has_room(folder)?;
        }
        Ok(plan)
    }

    /// Tokens of a sequence, and padding.
    fn sequence(&self, config: &Config) -> usize {
        config.seq_len + padding(config.seq_len, &self.mesh)
    }

    /// Refuses a text that has not as many sequences as a step takes.
    fn check_length(&self, config: &Config, tokens: usize) -> Result<()> {
        let ranks = self.mesh.data_parallel_size();
        let sequences = Windows::new(tokens, config.seq_len).count();
        let batch = (self.batching.0 * self.batching.1 * ranks) as u64;
        if tokens > config.seq_len && batch <= sequences {
            return Ok(());
        }
        Err(Error::Config(format!(
            "the text has {tokens} token{}, {sequences} sequence{} of seq-len + 1 = {}, and a step takes {batch} (micro-batch × \
             accumulation × {ranks} data-parallel rank{}); lower --seq-len or --batch, or give a longer text",
            plural(tokens),
            plural(sequences as usize),
            config.seq_len.saturating_add(1),
            plural(ranks)
        )))
    }

    fn text(&self, config: &Config, tokens: Tokens, order: Order) -> Text {
        let windows = Windows::new(tokens.len(), config.seq_len);
        let deal = Deal {
            windows: windows.count(),
            order,
            seed: config.seed,
            micro_batch: self.batching.0 as u64,
            accumulation: self.batching.1 as u64,
            ranks: self.mesh.data_parallel_size() as u64,
        };
        Text { tokens, windows, deal }
    }

    /// The settings that all ranks must have alike; where files are is each host's own.
    fn compared(&self, config: &Config) -> Vec<Thing> {
        const OWN: [&str; 10] = [
            "init",
            "data",
            "eval-data",
            "data-cache",
            "tokenizer",
            "metrics",
            "plot",
            "save",
            "ranks",
            "threads",
        ];
        let settings = KEYS.iter().filter(|key| !OWN.contains(&key.name));
        let mut all: Vec<_> = settings.map(|key| Thing::new(key.name, (key.get)(config))).collect();
        let tokens = if config.tokenizer() == Tokenizer::Bytes { "bytes" } else { "by a file" };
        let weights = if config.init.is_some() { "from files (--init)" } else { "drawn by seed" };
        let saved = if config.save.is_some() { "written at the end (--save)" } else { "not written" };
        all.extend([
            Thing::new("tokens", tokens),
            Thing::new("weights", weights),
            Thing::new("the model", saved),
        ]);
        all
    }

    /// The files of the model, which lie in folders of any name.
    fn files(&self, config: &Config, weights: &[(PathBuf, u64, u64)]) -> Vec<Thing> {
        let Some(path) = &config.init else { return Vec::new() };
        // Whether keys that mean nothing here are the same is of no interest.
        let (path, name) = match path.is_dir() {
            true => (path.join("config.json"), "config.json"),
            false => (path.clone(), "settings"),
        };
        let shape = self.model.to_json();
        let value = format!("{}: {}", path.display(), shape.split_whitespace().collect::<Vec<_>>().join(" "));
        let config = Thing { name: name.into(), value, key: digest(0, shape.as_bytes()) };
        let weights = weights.iter().map(|(path, bytes, contents)| {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            Thing::file(name, path, *bytes, *contents)
        });
        std::iter::once(config).chain(weights).collect()
    }
}

/// What the word for so many things ends with.
fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Where the weights come from.
fn weights(config: &Config) -> Result<Weights> {
    match &config.init {
        Some(path) if Weights::are_in(path)? => Weights::open(path),
        _ => Ok(Weights::random(config.seed)),
    }
}

/// The model, and this rank's shards of it.
fn begin(config: &Config, model: &llama::Config, groups: &Groups, weights: &Weights) -> Result<Loop<Llama>> {
    let llama = Llama::new(model.clone(), options(config), groups)?;
    let fill = |parameter: &Parameter, range: std::ops::Range<usize>, out: &mut [f32]| {
        weights.fill(parameter, range, out)
    };
    let sharded = Sharded::new(llama, groups, config.policy(), &fill)?;
    Ok(Loop::new(sharded, groups, config.adamw, config.clip, config.dtype == DType::F16))
}

fn options(config: &Config) -> llama::Options {
    llama::Options {
        sequence_parallel: config.sequence_parallel,
        kv_replicas: config.kv_replicas,
        dropout: config.dropout,
        seed: config.seed,
        attention: config.cp_form,
        balance: config.cp_balance,
        freeze: config.freeze.clone(),
    }
}

/// The model as placement sees it.
fn shape(model: &llama::Config, config: &Config, mesh: &Mesh, sequence: usize) -> Result<placement::Model> {
    let (micro_batch, accumulation) = config.batching(mesh)?;
    Ok(placement::Model {
        name: "this Llama".into(),
        layers: model.num_hidden_layers as u64,
        hidden: model.hidden_size as u64,
        ffn: model.intermediate_size as u64,
        heads: model.num_attention_heads as u64,
        kv_heads: model.num_key_value_heads as u64,
        vocab: model.vocab_size as u64,
        sequence: sequence as u64,
        micro_batch: micro_batch as u64,
        accumulation: accumulation as u64,
        weight_bytes: config.dtype.size_in_bytes() as u64,
        gradient_bytes: config.reduce_dtype.size_in_bytes() as u64,
    })
}
