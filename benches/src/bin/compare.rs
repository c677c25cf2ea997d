//! Measures ours and its peers in turn. See [`nd_benches::compare`].

use std::process::ExitCode;

fn main() -> ExitCode {
    nd_benches::compare::main()
}
