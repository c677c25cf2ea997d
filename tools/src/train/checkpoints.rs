//! `nd-train verify` and `nd-train export`: what is done with checkpoints besides training.

use std::path::{Path, PathBuf};

use nd_training::checkpoint::{Saved, State, export, verify};
use nd_training::train::Config;

use super::error::Error;
use crate::units::bytes;

/// What was asked for.
#[derive(Debug, PartialEq)]
pub enum Task {
    /// Look at every byte of these.
    Verify(PathBuf),
    /// Write the model of a checkpoint as Hugging Face lays it out.
    Export {
        /// A checkpoint, or a folder of some.
        from: PathBuf,
        /// The folder to write.
        to: PathBuf,
        /// With its type in `save_dtype`.
        config: Box<Config>,
    },
}

/// Does it.
pub fn run(task: &Task) -> Result<(), Error> {
    match task {
        Task::Verify(path) => look(path),
        Task::Export { from, to, config } => {
            let saved = Saved::find(from)?;
            export(&saved, to, config.save_dtype)?;
            print(&format!("The model of {}: {}\n", saved.folder().display(), to.display()))
        }
    }
}

fn look(path: &Path) -> Result<(), Error> {
    let all = verify(path)?;
    let mut damaged = 0;
    for found in &all {
        let name = found.path.display();
        let said = match &found.state {
            State::Whole { step, mesh, files, bytes: size } => {
                format!(
                    "{name}: whole: step {step}, written on {mesh}, {files} files of {}\n",
                    bytes(*size as f64)
                )
            }
            State::Partial => format!("{name}: half-written: it was ended before it was whole\n"),
            State::Damaged(error) => format!("{name}: damaged: {error}\n"),
        };
        damaged += usize::from(!matches!(found.state, State::Whole { .. }));
        print(&said)?;
    }
    if damaged > 0 { Err(Error::Damaged { damaged, all: all.len() }) } else { Ok(()) }
}

fn print(text: &str) -> Result<(), Error> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
}
