//! Where a model's numbers come from before training, and how they are written.

pub(super) mod checkpoint;
mod layout;
mod safetensors;
mod save;

use std::ops::Range;
use std::path::{Path, PathBuf};

pub use save::{Format, has_room, make_room, save};

use self::checkpoint::Checkpoint;
use self::layout::Layout;
use super::{Config, gguf};
use crate::error::{Error, Result};
use crate::model::{Init, Parameter};
use crate::ops::random::Random;
use crate::runs::runs;

/// What parameters hold before training. Every rank fills its own part of its own shard and touches nothing else.
pub struct Weights {
    source: Source,
}

enum Source {
    Random(u64),
    Checkpoint(Checkpoint),
}

impl Weights {
    /// As each parameter's [`Init`] says, by a seed: the same model whatever the sharding.
    pub fn random(seed: u64) -> Weights {
        Weights { source: Source::Random(seed) }
    }

    /// From `config.json` and `model.safetensors` in a directory, or the files that `model.safetensors.index.json`
    /// names, or all of `model-00001-of-00003.safetensors` and so on, f32, bf16 or f16; or from a GGUF file, whose
    /// blocks are dequantised where they are asked for.
    ///
    /// Files are read at the places that are asked for rather than mapped: a file that is cut short meanwhile is an
    /// error and not a signal.
    ///
    /// # Errors
    /// [`Error::File`] when a file cannot be read or is damaged, and with the names of the tensors that are missing, are
    /// too many, or have the wrong shape or type.
    pub fn open(path: &Path) -> Result<Weights> {
        let checkpoint = if path.is_dir() { safetensors::open(path) } else { gguf::open(path) };
        Ok(Weights { source: Source::Checkpoint(checkpoint?) })
    }

    /// Whether a directory has weights, in one of the layouts that [`Weights::open`] reads; a file has.
    ///
    /// # Errors
    /// [`Error::File`] naming what is missing of several files, or a `.safetensors` file that belongs to no layout.
    pub fn are_in(path: &Path) -> Result<bool> {
        Ok(!path.is_dir() || !matches!(Layout::find(path)?, Layout::None))
    }

    /// Where they come from, for people: "201 tensors of model.safetensors", or the seed.
    pub fn describe(&self) -> String {
        match &self.source {
            Source::Random(seed) => format!("random, of seed {seed}"),
            Source::Checkpoint(checkpoint) => {
                let (tensors, files) = checkpoint.contents();
                let files: Vec<String> = files.map(|file| file.display().to_string()).collect();
                match &files[..] {
                    [first, .., last] => {
                        format!("{tensors} tensors of {} files, {first} to {last}", files.len())
                    }
                    _ => format!("{tensors} tensors of {}", files.concat()),
                }
            }
        }
    }

    /// The files that they come from, each with its length and a digest, by which ranks can tell whether they have the same ones:
    /// of the header (names, types, shapes and places of all tensors) and of each tensor 16 pieces of 4 KiB, from its beginning
    /// to its end, or all of one that has no more. So another model, another training of it, or a copy that is cut or has holes
    /// is seen; a change of few numbers between the pieces is not.
    ///
    /// # Errors
    /// [`Error::File`] for a file that cannot be read.
    pub fn files(&self) -> Result<Vec<(PathBuf, u64, u64)>> {
        match &self.source {
            Source::Random(_) => Ok(Vec::new()),
            Source::Checkpoint(checkpoint) => {
                let all = checkpoint.digests()?;
                Ok(all.into_iter().map(|(path, bytes, digest)| (path.to_owned(), bytes, digest)).collect())
            }
        }
    }

    /// What of the files is not used although it is there, for people. Few pieces of each tensor are looked at, as by
    /// [`Weights::files`].
    ///
    /// # Errors
    /// [`Error::File`] for a file that cannot be read.
    pub fn warning(&self) -> Result<Option<String>> {
        let unused = match &self.source {
            Source::Random(_) => None,
            Source::Checkpoint(checkpoint) => checkpoint.unused_head()?,
        };
        Ok(unused.map(|path| {
            format!(
                "{}: lm_head.weight is not used and differs from model.embed_tokens.weight, which is the head as \
                 config.json has tie_word_embeddings = true; set that to false if the model has a head of its own",
                path.display()
            )
        }))
    }

    /// The model that they belong to, where files say it.
    pub fn config(&self) -> Option<&Config> {
        match &self.source {
            Source::Random(_) => None,
            Source::Checkpoint(checkpoint) => Some(checkpoint.config()),
        }
    }

    /// Elements `range` of this rank's part of a parameter, flattened, into `out`.
    ///
    /// # Errors
    /// [`Error::Config`] when `out` has another length than `range`, or `range` ends beyond the part; [`Error::File`] when
    /// the tensor is not there or cannot be read.
    pub fn fill(&self, parameter: &Parameter, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        if range.len() != out.len() || range.end > parameter.len() {
            return Err(Error::Config(format!(
                "{}: elements {range:?} of {} into {} places",
                parameter.name,
                parameter.len(),
                out.len()
            )));
        }
        match &self.source {
            Source::Checkpoint(checkpoint) => {
                let mut reader = checkpoint.reader(&parameter.name, &parameter.shape)?;
                runs(parameter, range).try_for_each(|run| reader.read(run.start, &mut out[run.place]))
            }
            Source::Random(seed) => {
                match parameter.init {
                    Init::Zeros => out.fill(0.0),
                    Init::Ones => out.fill(1.0),
                    Init::Normal(deviation) => {
                        let random = Random::named(*seed, &parameter.name);
                        for run in runs(parameter, range) {
                            random.fill_normal(run.start as u64, deviation, &mut out[run.place]);
                        }
                    }
                }
                Ok(())
            }
        }
    }
}
