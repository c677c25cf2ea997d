//! `nd-topo`: what the machine looks like, which rings and trees fit it, and where to put a mesh.

use std::process::ExitCode;

use clap::Parser;
use nd_tools::{say, topo};

fn main() -> ExitCode {
    match topo::run(topo::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say::error(&e);
            ExitCode::FAILURE
        }
    }
}
