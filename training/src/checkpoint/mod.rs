//! The state of training in files, and out of them again on any mesh.
//!
//! A folder of checkpoints has one folder for each, `step-00000120`. In it lie a safetensors file for each rank that has
//! something to say, the files of the tokenizer, and `manifest.json`, which says what is where. Each tensor of a file is
//! a flat piece of a parameter's master copy (`master.NAME`) or of one of AdamW's two means (`exp_avg.NAME`,
//! `exp_avg_sq.NAME`), all f32. What several ranks have is written once, by one of them, and as evenly as it can be dealt
//! out.
//!
//! A checkpoint is written into a hidden folder, `.step-00000120.partial`; each rank's file is on the disk before rank 0 writes
//! the manifest, and the folder gets its name last. So a folder with that name is whole, and whatever ends a save, all
//! checkpoints before it are as they were. All ranks must see one folder: a shared file system, where there are several hosts.
//!
//! | file | what |
//! |---|---|
//! | [`manifest`] | what a checkpoint says of itself — *pure* |
//! | `share` | which rank writes what — *pure* |
//! | `plan` | which pieces of which files a rank of another mesh reads — *pure* |
//! | `digested` | files with a digest of what is in them |
//! | `folder` | the folder of checkpoints: names, whose it is, whether all ranks see it |
//! | [`Saver`] | writes checkpoints |
//! | [`Saved`] | reads one |
//! | [`export()`] | a model out of a checkpoint, for other programs |
//! | [`verify()`] | what is wrong with those that are there |

mod digested;
mod export;
mod folder;
pub mod manifest;
mod plan;
mod saved;
mod saver;
mod share;
mod verify;

use std::ops::Range;
use std::path::Path;

pub use export::export;
pub use manifest::Manifest;
pub use saved::Saved;
pub use saver::Saver;
pub use verify::{Found, State, verify};

use crate::error::{Error, Result};
use crate::model::Parameter;

/// What a tensor of a checkpoint is to its parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The parameter itself, in f32.
    Master,
    /// AdamW's mean of the gradients.
    Mean,
    /// AdamW's mean of their squares.
    Square,
}

impl Kind {
    /// All of them; a parameter that is frozen has the first alone.
    pub const ALL: [Kind; 3] = [Kind::Master, Kind::Mean, Kind::Square];

    /// What stands before a parameter's name: PyTorch's words.
    fn name(self) -> &'static str {
        match self {
            Kind::Master => "master",
            Kind::Mean => "exp_avg",
            Kind::Square => "exp_avg_sq",
        }
    }

    /// The name of a parameter's tensor.
    fn of(self, parameter: &str) -> String {
        format!("{}.{parameter}", self.name())
    }
}

/// What a rank holds of a parameter.
pub struct Held<'a> {
    /// Which, with the part of it that this rank computes with.
    pub parameter: &'a Parameter,
    /// Elements of that part, flattened, that are in its shard.
    pub range: Range<usize>,
    /// Their values, by [`Kind::ALL`]; of a frozen parameter the first alone.
    pub values: Vec<&'a [f32]>,
}

fn file_error(path: &Path, problem: impl ToString) -> Error {
    Error::File { path: path.to_owned(), problem: problem.to_string() }
}

/// Fills elements of a rank's part of a parameter, flattened.
pub type Fill<'a> = dyn Fn(Kind, &Parameter, Range<usize>, &mut [f32]) -> Result<()> + 'a;
