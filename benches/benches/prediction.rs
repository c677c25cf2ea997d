//! What the cost model predicts beside what is measured: [`nd_benches::prediction`].
//!
//! `make predict`, or `cargo bench -p nd-benches --bench prediction [-- WORLD …]` once nd-tools is built.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Cargo builds this crate's programs beside those of nd-tools.
    nd_benches::prediction::main(Path::new(env!("CARGO_BIN_EXE_compare")))
}
