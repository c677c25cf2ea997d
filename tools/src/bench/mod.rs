//! `nd-bench`: measures collectives, checks every element, prints nccl-tests' table.
//!
//! | file | what |
//! |---|---|
//! | `arguments`, `options` | the command line; what it asks for, checked |
//! | `start` | ranks as threads, as processes, or this process as one rank of a launcher's |
//! | `remote` | ranks on other hosts |
//! | `run` | what one rank does: every type, operation, root and size |
//! | `measure` | one case: warm up, time, check |
//! | `fault` | `--fault`: what goes wrong on purpose |
//! | `calibrate` | what links cost, for the cost model |
//! | `call` | one call of a collective on a case's buffers |
//! | `collective` | what a size means for each collective, bus bandwidth — *pure* |
//! | `picture` | what buffers hold before and must hold after a call — *pure* |
//! | `sample` | values whose reductions are exact in any order — *pure* |
//! | `size`, `number` | sizes; numbers as C's printf shows them — *pure* |
//! | `table`, `ranges`, `json`, `plot` | the output — *pure* but for writing files |
//! | `report`, `summary`, `progress` | rank 0's output: rows, what is said after them, what is told meanwhile |

mod arguments;
mod calibrate;
mod call;
pub(crate) mod collective;
mod error;
mod fault;
mod host;
mod hosts_file;
mod json;
mod measure;
mod number;
mod options;
mod picture;
mod plot;
mod progress;
mod ranges;
mod remote;
mod report;
mod run;
mod sample;
pub(crate) mod size;
mod start;
mod statistics;
mod summary;
mod table;

use std::process::ExitCode;

use crate::say;

pub use error::Error;

/// The whole command.
pub fn main() -> ExitCode {
    let options = match arguments::read() {
        Ok(options) => options,
        Err(code) => return code,
    };
    match start::run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            if !e.is_silent() {
                say::error(&e);
            }
            ExitCode::from(e.code())
        }
    }
}
