//! Where a run begins: with weights, or where a checkpoint was written.

use std::ops::Range;

use nd_comm::prelude::Communicator;

use super::{Config, Loop, Progress};
use crate::agree::{Thing, all_well, same};
use crate::checkpoint::manifest::LossScale as Scale;
use crate::checkpoint::{Kind, Saved};
use crate::error::Result;
use crate::group::Groups;
use crate::llama::{self, Llama, Weights};
use crate::model::Parameter;
use crate::optim::LossScale;
use crate::shard::Sharded;

/// What parameters hold at first, and what follows.
pub(super) enum Origin {
    /// Of files, or random.
    Weights(Weights),
    /// Of a checkpoint.
    Saved(Saved),
}

/// The checkpoint to go on from, if there is one; the same for all ranks, which all call this.
///
/// # Errors
/// The same on all ranks: [`Error::File`](crate::Error::File) where there is none, with what is wrong with the last one, and
/// [`Error::Config`](crate::Error::Config) where ranks find different ones.
pub(super) fn resumed(comm: &Communicator, config: &Config) -> Result<Option<Saved>> {
    let found = match config.resumed() {
        None => Ok(None),
        Some((folder, true)) => Saved::last(folder),
        Some((path, false)) => Saved::find(path).map(Some),
    };
    let saved = all_well(comm, found)?;
    let value = match &saved {
        None => "none".to_owned(),
        Some(saved) => {
            let name = saved.folder().file_name().unwrap_or(saved.folder().as_os_str());
            format!("{} of step {}", name.to_string_lossy(), saved.manifest().step)
        }
    };
    let remedy = "name a folder that all ranks see, on a file system that all hosts share";
    same(comm, &[Thing::new("as checkpoint to go on from", value)], remedy)?;
    Ok(saved)
}

impl Origin {
    /// For people: which files with how many tensors, or a seed, or a step.
    pub fn describe(&self) -> String {
        match self {
            Origin::Weights(weights) => weights.describe(),
            Origin::Saved(saved) => {
                let manifest = saved.manifest();
                let mesh = manifest.mesh().map_or(String::new(), |mesh| format!(", written on {mesh}"));
                format!("step {} of {}{mesh}", manifest.step, saved.folder().display())
            }
        }
    }

    /// The model, and this rank's shards of it, with all that a checkpoint has for them.
    pub fn begin(&self, config: &Config, model: &llama::Config, groups: &Groups) -> Result<Loop<Llama>> {
        let llama = Llama::new(model.clone(), super::plan::options(config), groups)?;
        let fill = |parameter: &Parameter, range: Range<usize>, out: &mut [f32]| match self {
            Origin::Weights(weights) => weights.fill(parameter, range, out),
            Origin::Saved(saved) => saved.fill(Kind::Master, parameter, range, out),
        };
        let sharded = Sharded::new(llama, groups, config.policy(), &fill)?;
        let f16 = config.dtype == candle_core::DType::F16;
        let mut training = Loop::new(sharded, groups, config.adamw, config.clip, f16);
        if let Origin::Saved(saved) = self {
            let manifest = saved.manifest();
            let scale = manifest.loss_scale.map(|Scale { scale, good }| LossScale::after(scale, good));
            let progress = Progress { step: manifest.step, updates: manifest.optimizer.updates, scale };
            training
                .go_on(progress, &|kind, parameter, range, out| saved.fill(kind, parameter, range, out))?;
        }
        Ok(training)
    }
}
