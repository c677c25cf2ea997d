//! `nd-train`: trains a Llama on a text, on one mesh of ranks or another.
//!
//! | file | what |
//! |---|---|
//! | `arguments` | the command line, from the table of settings |
//! | `checkpoints` | `nd-train verify` and `nd-train export` |
//! | `start` | ranks as processes, or this process as one rank of a launcher's |
//! | `threads` | how many threads a rank computes with |
//! | `files` | that nothing which is read is written over |
//! | `run` | what one rank does |
//! | `report` | what rank 0 prints: the mesh before, rows meanwhile, what was sent after |
//! | `groups` | which ranks form the groups of each axis — *pure* |
//! | `memory` | the C library's allocator, set for tensors |
//! | `plot` | the loss as a picture — *pure* but for writing files |

mod arguments;
mod checkpoints;
mod error;
mod files;
mod groups;
mod memory;
mod plot;
mod report;
mod run;
mod start;
mod threads;

use std::process::ExitCode;

use self::arguments::Asked;
use crate::say;

pub use error::Error;

/// The whole command.
pub fn main() -> ExitCode {
    memory::keep();
    let asked = match arguments::read() {
        Ok(asked) => asked,
        Err(code) => return code,
    };
    let done = match &asked {
        Asked::Train(config) => start::run(config),
        Asked::Checkpoints(task) => checkpoints::run(task),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            if !e.is_silent() {
                say::error(&e);
            }
            ExitCode::from(e.code())
        }
    }
}
