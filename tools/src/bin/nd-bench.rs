//! Measures what the links do, with every element checked. See [`nd_tools::bench`].

use std::process::ExitCode;

fn main() -> ExitCode {
    nd_tools::bench::main()
}
