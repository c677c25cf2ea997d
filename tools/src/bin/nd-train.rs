//! Trains a Llama on one mesh of ranks or another. See [`nd_tools::train`].

use std::process::ExitCode;

fn main() -> ExitCode {
    nd_tools::train::main()
}
