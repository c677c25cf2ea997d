//! What to train, on what, and how: one structure, filled from files and flags.

mod accelerate;
mod axolotl;
mod deepspeed;
mod foreign;
mod keys;
mod read;
mod values;
mod yaml;

use std::path::{Path, PathBuf};

use candle_core::DType;

pub use keys::{KEYS, Key};
pub use read::SHARDED_DDP;

use crate::context_parallel::{Balance, Form};
use crate::data::{Documents, Order, Tokenizer};
use crate::error::{Error, Result};
use crate::llama;
use crate::mesh::Mesh;
use crate::optim::{Decay, Options, Scaling};
use crate::shard::{Policy, Reshard};

/// Every setting of a run. Each is a key of [`KEYS`], which is a flag of `nd-train` and a key of its TOML file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// A folder with config.json and, if it has any, weights, or a GGUF file; without it a small model of the shape below.
    pub init: Option<PathBuf>,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of the feed-forward part.
    pub ffn: usize,
    /// Which part of the activations is dropped at each dropout.
    pub dropout: f64,
    /// Names of parameters that stay as they are; `*` stands for anything.
    pub freeze: Vec<String>,
    /// The text; without it one that is made by [`crate::data::text`].
    pub data: Option<PathBuf>,
    /// Another text, on which the loss is measured.
    pub eval_data: Option<PathBuf>,
    /// Steps between such measurements; 0: only at the end.
    pub eval_every: u64,
    /// What is a document in the files of a text.
    pub documents: Documents,
    /// Where tokens are kept that were made once, if it is said; see [`Config::data_cache`].
    pub data_cache: Option<PathBuf>,
    /// What makes tokens of the text, if it is said; see [`Config::tokenizer`].
    pub tokenizer: Option<Tokenizer>,
    /// The order of its sequences.
    pub order: Order,
    /// Inputs of a sequence.
    pub seq_len: usize,
    /// Sequences of a rank in a micro-batch.
    pub micro_batch: Option<usize>,
    /// Micro-batches of a step.
    pub accumulation: Option<usize>,
    /// Sequences of a step.
    pub batch: Option<usize>,
    /// Steps.
    pub steps: u64,
    /// The highest learning rate.
    pub lr: f64,
    /// How it goes on after warm-up.
    pub schedule: Decay,
    /// Steps in which it rises.
    pub warmup: u64,
    /// How it grows with the batch.
    pub lr_scaling: Scaling,
    /// The batch for which `lr` was found.
    pub reference_batch: usize,
    /// AdamW.
    pub adamw: Options,
    /// The greatest norm of the gradients, 0 for no limit.
    pub clip: f64,
    /// What is computed in.
    pub dtype: DType,
    /// Axes and sizes.
    pub mesh: String,
    /// 0 DDP, 1, 2, 3 FSDP.
    pub zero: u8,
    /// Whether weights are let go between the forward and the backward pass.
    pub reshard: Reshard,
    /// What gradients are added up in over the ranks.
    pub reduce_dtype: DType,
    /// Activations are computed again in the backward pass.
    pub checkpoint_activations: bool,
    /// Gradients are reduced at every micro-batch.
    pub reduce_each_micro_batch: bool,
    /// The next unit's weights are gathered while one computes.
    pub prefetch: bool,
    /// The longest piece that gradients are reduced in, bytes.
    pub bucket_bytes: usize,
    /// Activations between blocks are divided along the sequence over tp.
    pub sequence_parallel: bool,
    /// How ranks of cp see each other's keys and values.
    pub cp_form: Form,
    /// How sequences are dealt out to the ranks of cp.
    pub cp_balance: Balance,
    /// On how many ranks of tp each head of keys and values is.
    pub kv_replicas: usize,
    /// Ranks to start on this host.
    pub ranks: Option<usize>,
    /// Threads that each rank computes with.
    pub threads: Option<usize>,
    /// Decides weights, order and dropout.
    pub seed: u64,
    /// Where rows of numbers go, one a step.
    pub metrics: Option<PathBuf>,
    /// Where a picture of the loss goes.
    pub plot: Option<PathBuf>,
    /// The folder that the model is written into after the last step.
    pub save: Option<PathBuf>,
    /// What its numbers are written in.
    pub save_dtype: DType,
    /// The folder that checkpoints are written into.
    pub checkpoint: Option<PathBuf>,
    /// Steps between them; 0: only at the end.
    pub checkpoint_every: u64,
    /// They are written from a copy while training goes on.
    pub checkpoint_async: bool,
    /// How many of them stay.
    pub keep: usize,
    /// A checkpoint, or a folder of some, to go on from; `auto`: that of `checkpoint`, if it has any.
    pub resume: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            init: None,
            hidden: 128,
            layers: 4,
            heads: 4,
            kv_heads: 2,
            ffn: 352,
            dropout: 0.0,
            freeze: Vec::new(),
            data: None,
            eval_data: None,
            eval_every: 0,
            documents: Documents::default(),
            data_cache: None,
            tokenizer: None,
            order: Order::Sequential,
            seq_len: 128,
            micro_batch: None,
            accumulation: None,
            batch: None,
            steps: 100,
            lr: 1e-3,
            schedule: Decay::Constant,
            warmup: 0,
            lr_scaling: Scaling::None,
            reference_batch: 1,
            adamw: Options::default(),
            clip: 1.0,
            dtype: DType::F32,
            mesh: "dp_shard=-1".into(),
            zero: 3,
            reshard: Reshard::Always,
            reduce_dtype: DType::F32,
            checkpoint_activations: false,
            reduce_each_micro_batch: Policy::default().reduce_each_micro_batch,
            prefetch: true,
            bucket_bytes: Policy::default().bucket_bytes,
            sequence_parallel: false,
            cp_form: Form::default(),
            cp_balance: Balance::default(),
            kv_replicas: 1,
            ranks: None,
            threads: None,
            seed: 0,
            metrics: None,
            plot: None,
            save: None,
            save_dtype: DType::F32,
            checkpoint: None,
            checkpoint_every: 0,
            checkpoint_async: false,
            keep: 3,
            resume: None,
        }
    }
}

/// What this calls a model's sizes.
const NAMES: llama::Names = llama::Names { hidden: "hidden", heads: "heads", kv_heads: "kv-heads" };
/// What is said to go on from wherever the run itself has come.
const AUTO: &str = "auto";
/// Sequences of a micro-batch where nothing is said.
const MICRO_BATCH: usize = 4;
/// Sequences of a step, which are counted in 32 bits.
const MOST: usize = u32::MAX as usize;

impl Config {
    /// Sequences of a micro-batch, and micro-batches of a step, on `mesh`: of `micro-batch`, `accumulation` and `batch` any two
    /// give the third.
    ///
    /// # Errors
    /// [`Error::Config`] with the numbers when three do not agree, or two give no third.
    pub fn batching(&self, mesh: &Mesh) -> Result<(usize, usize)> {
        let ranks = mesh.data_parallel_size();
        let (some_micro, some_accumulation) = (self.micro_batch.unwrap_or(1), self.accumulation.unwrap_or(1));
        if some_micro
            .checked_mul(some_accumulation)
            .and_then(|n| n.checked_mul(ranks))
            .is_none_or(|n| n > MOST)
        {
            return Err(Error::Config(format!(
                "micro-batch {some_micro} × accumulation {some_accumulation} × {ranks} data-parallel ranks are more than \
                 {MOST} sequences; lower one of them"
            )));
        }
        let Some(batch) = self.batch else {
            return Ok((self.micro_batch.unwrap_or(MICRO_BATCH), self.accumulation.unwrap_or(1)));
        };
        let divided = |by: usize, name: &str| match batch % (by * ranks) {
            0 => Ok(batch / (by * ranks)),
            _ => Err(Error::Config(format!(
                "batch={batch} is no multiple of {name} {by} × {ranks} data-parallel ranks = {}; change one of them",
                by * ranks
            ))),
        };
        match (self.micro_batch, self.accumulation) {
            (Some(micro), Some(accumulation)) if micro * accumulation * ranks != batch => {
                Err(Error::Config(format!(
                    "micro-batch {micro} × accumulation {accumulation} × {ranks} data-parallel ranks = {}, not \
                     batch={batch}; leave one of the three out",
                    micro * accumulation * ranks
                )))
            }
            (Some(micro), Some(accumulation)) => Ok((micro, accumulation)),
            (Some(micro), None) => Ok((micro, divided(micro, "micro-batch")?)),
            (None, accumulation) => {
                let accumulation = accumulation.unwrap_or(1);
                Ok((divided(accumulation, "accumulation")?, accumulation))
            }
        }
    }

    /// What makes tokens of texts: what is said, else what the model has, else bytes.
    pub fn tokenizer(&self) -> Tokenizer {
        match (&self.tokenizer, &self.init) {
            (Some(tokenizer), _) => tokenizer.clone(),
            (None, Some(model)) => Tokenizer::of_model(model),
            (None, None) => Tokenizer::Bytes,
        }
    }

    /// Where tokens are kept that a tokenizer made once: where it is said, else in `nd/tokens` of the user's folder for what
    /// can be made again, if there is a user.
    pub fn data_cache(&self) -> Option<PathBuf> {
        let of_user = || {
            let named =
                std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
            Some(named.or_else(|| Some(std::env::home_dir()?.join(".cache")))?.join("nd/tokens"))
        };
        self.data_cache.clone().or_else(of_user)
    }

    /// The folder to go on from, and whether one without a checkpoint will do.
    pub fn resumed(&self) -> Option<(&Path, bool)> {
        match (&self.resume, &self.checkpoint) {
            (Some(path), Some(folder)) if path == Path::new(AUTO) => Some((folder, true)),
            (resume, _) => resume.as_deref().map(|path| (path, false)),
        }
    }

    /// How shards are kept.
    pub fn policy(&self) -> Policy {
        Policy {
            zero: self.zero,
            reshard: self.reshard,
            compute: self.dtype,
            reduce: self.reduce_dtype,
            checkpoint_activations: self.checkpoint_activations,
            reduce_each_micro_batch: self.reduce_each_micro_batch,
            prefetch: self.prefetch,
            bucket_bytes: self.bucket_bytes,
        }
    }

    /// What does not fit together whatever the mesh.
    ///
    /// # Errors
    /// [`Error::Config`] with the numbers and what to do.
    pub fn check(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::Config(text));
        if self.warmup > self.steps {
            let (warmup, steps) = (self.warmup, self.steps);
            return wrong(format!(
                "warmup={warmup} is more than steps={steps}; lower --warmup or raise --steps"
            ));
        }
        let default = Config::default();
        let shape = ["hidden", "layers", "heads", "kv-heads", "ffn"].map(|name| {
            KEYS.iter().find(|key| key.name == name).filter(|key| (key.get)(self) != (key.get)(&default))
        });
        if let (Some(folder), Some(key)) = (&self.init, shape.into_iter().flatten().next()) {
            return wrong(format!(
                "{}={} has no effect with --init: {} says what the model is like; leave --{} out",
                key.name,
                (key.get)(self),
                if folder.is_file() { folder.clone() } else { folder.join("config.json") }.display(),
                key.name
            ));
        }
        if self.init.is_none() {
            llama::head_dim(&NAMES, self.hidden, self.heads, self.kv_heads)?;
        }
        if self.eval_every > 0 && self.eval_data.is_none() {
            return wrong(format!(
                "eval-every={}: there is no text to evaluate on; give one with --eval-data",
                self.eval_every
            ));
        }
        if self.save.is_none() && self.save_dtype != default.save_dtype {
            return wrong(format!(
                "save-dtype={}: nothing is written; name a folder with --save",
                self.save_dtype.as_str()
            ));
        }
        if self.checkpoint.is_none() {
            let without = ["checkpoint-every", "checkpoint-async", "keep"]
                .into_iter()
                .filter_map(|name| KEYS.iter().find(|key| key.name == name));
            if let Some(key) = without.into_iter().find(|key| (key.get)(self) != (key.get)(&default)) {
                return wrong(format!(
                    "{}={}: no checkpoints are written; name a folder with --checkpoint",
                    key.name,
                    (key.get)(self)
                ));
            }
            if self.resume.as_deref() == Some(Path::new(AUTO)) {
                return wrong("resume=auto goes on from the folder of --checkpoint; name one".into());
            }
        }
        if self.zero < 3 && self.reshard != Reshard::Always {
            return wrong(format!(
                "reshard={} is about zero=3, and zero={} keeps whole weights; leave --reshard out",
                values::Show::show(&self.reshard),
                self.zero
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batching(keys: &[(&str, &str)], mesh: &str, world: usize) -> Result<(usize, usize)> {
        let mut config = Config::default();
        keys.iter().for_each(|(key, value)| config.set(key, value).unwrap());
        config.batching(&Mesh::parse(mesh, world).unwrap())
    }

    #[test]
    fn two_of_three_give_the_third_by_the_data_parallel_ranks_alone() {
        assert_eq!(batching(&[], "dp_shard=2", 2).unwrap(), (4, 1));
        assert_eq!(batching(&[("micro-batch", "2"), ("accumulation", "3")], "tp=2", 2).unwrap(), (2, 3));
        assert_eq!(
            batching(&[("micro-batch", "2"), ("batch", "24")], "dp_shard=2,tp=2,cp=2", 8).unwrap(),
            (2, 6)
        );
        assert_eq!(batching(&[("accumulation", "2"), ("batch", "24")], "dp_shard=4", 4).unwrap(), (3, 2));
        let error = batching(&[("micro-batch", "5"), ("batch", "24")], "dp_shard=2", 2).unwrap_err();
        assert!(error.to_string().contains("5 × 2 data-parallel ranks = 10"), "{error}");
        let many = [("micro-batch", "4"), ("accumulation", "4611686018427387904")];
        let error = batching(&many, "dp_shard=2", 2).unwrap_err().to_string();
        assert!(error.contains("4 × accumulation 4611686018427387904 × 2"), "{error}");
        let three = [("micro-batch", "2"), ("accumulation", "2"), ("batch", "24")];
        let error = batching(&three, "dp_shard=2", 2).unwrap_err().to_string();
        assert!(error.contains("= 8, not batch=24"), "{error}");
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let mut config = Config { warmup: 200, ..Config::default() };
        assert!(config.check().unwrap_err().to_string().contains("warmup=200 is more than steps=100"));
        config.warmup = 100;
        config.check().unwrap();
        let shaped = Config { init: Some("model".into()), hidden: 64, ..Config::default() };
        let error = shaped.check().unwrap_err().to_string();
        assert!(error.contains("hidden=64") && error.contains("model/config.json"), "{error}");
        let narrow = Config { hidden: 10, ..Config::default() }.check().unwrap_err().to_string();
        assert!(narrow.contains("hidden=10 is no multiple of 2 × heads = 8"), "{narrow}");
        let never = Config { eval_every: 5, ..Config::default() };
        assert!(never.check().unwrap_err().to_string().contains("--eval-data"));
        let unsaved = Config { save_dtype: DType::BF16, ..Config::default() };
        assert!(unsaved.check().unwrap_err().to_string().contains("save-dtype=bf16: nothing is written"));
        for (key, value) in
            [("keep", "2"), ("checkpoint-every", "5"), ("checkpoint-async", "true"), ("resume", "auto")]
        {
            let mut config = Config::default();
            config.set(key, value).unwrap();
            let error = config.check().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{key}={value}")) && error.contains("--checkpoint"),
                "{error}"
            );
            config.checkpoint = Some("folder".into());
            config.check().unwrap();
        }
        config.set("zero", "1").unwrap();
        config.set("reshard", "never").unwrap();
        assert!(config.check().unwrap_err().to_string().contains("reshard=never"));
    }
}
