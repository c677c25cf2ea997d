//! What a rank finds out by itself, before it reads texts and weights.

use std::path::PathBuf;

use nd_topology::placement;

use super::place::placeable;
use super::texts::Sources;
use super::trainer::Text;
use super::{Config, KEYS, room};
use crate::agree::Thing;
use crate::context_parallel::padding;
use crate::data::{Deal, Order, Tokenizer, Tokens, Windows};
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::llama::weights::has_room;
use crate::llama::{self, Llama, Weights};
use crate::mesh::Mesh;

/// The settings that are each host's own: where files are, and what it has to compute with.
pub(super) const OWN: [&str; 12] = [
    "init",
    "data",
    "eval-data",
    "data-cache",
    "tokenizer",
    "metrics",
    "plot",
    "save",
    "checkpoint",
    "resume",
    "ranks",
    "threads",
];

/// Mesh, model, batch, and whether they fit together.
pub(super) struct Plan {
    pub mesh: Mesh,
    pub model: llama::Config,
    /// Sequences of a micro-batch, and micro-batches of a step.
    batching: (usize, usize),
    pub sources: Sources,
}

impl Plan {
    pub fn new(config: &Config, ranks: usize, local_ranks: usize) -> Result<Plan> {
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
    pub fn sequence(&self, config: &Config) -> usize {
        config.seq_len + padding(config.seq_len, &self.mesh)
    }

    /// Refuses a text that has not as many sequences as a step takes.
    pub fn check_length(&self, config: &Config, tokens: usize) -> Result<()> {
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

    pub fn text(&self, config: &Config, tokens: Tokens, order: Order) -> Text {
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
    pub fn compared(&self, config: &Config) -> Vec<Thing> {
        let settings = KEYS.iter().filter(|key| !OWN.contains(&key.name));
        let mut all: Vec<_> = settings.map(|key| Thing::new(key.name, (key.get)(config))).collect();
        let tokens = if config.tokenizer() == Tokenizer::Bytes { "bytes" } else { "by a file" };
        let weights = if config.init.is_some() { "from files (--init)" } else { "drawn by seed" };
        let checkpoints = if config.checkpoint.is_some() { "written (--checkpoint)" } else { "not written" };
        let begun = match config.resumed() {
            None => "anew",
            Some((_, true)) => "where the last checkpoint is, if there is one (--resume auto)",
            Some((_, false)) => "from a checkpoint (--resume)",
        };
        let saved = if config.save.is_some() { "written at the end (--save)" } else { "not written" };
        all.extend([
            Thing::new("tokens", tokens),
            Thing::new("weights", weights),
            Thing::new("the model", saved),
            Thing::new("checkpoints", checkpoints),
            Thing::new("a beginning", begun),
        ]);
        all
    }

    /// The files of the model, which lie in folders of any name.
    pub fn files(&self, config: &Config, weights: &[(PathBuf, u64, u64)]) -> Vec<Thing> {
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

/// How the model is computed.
pub(super) fn options(config: &Config) -> llama::Options {
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
pub(super) fn shape(
    model: &llama::Config,
    config: &Config,
    mesh: &Mesh,
    sequence: usize,
) -> Result<placement::Model> {
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
