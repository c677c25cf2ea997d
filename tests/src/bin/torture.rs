//! `torture`; see [`nd_tests::torture`].

use std::process::ExitCode;

fn main() -> ExitCode {
    nd_tests::torture::main()
}
