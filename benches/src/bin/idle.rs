//! One rank with a communicator that has nothing to do, for `nd-run -n RANKS -- idle [used]`; `used`: it
//! had something to do before. See [`nd_benches::idle`].

use std::process::ExitCode;

fn main() -> ExitCode {
    let used = std::env::args().nth(1).is_some_and(|word| word == "used");
    let seen = match nd_benches::idle::rank(used) {
        Ok(seen) => seen,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::FAILURE;
        }
    };
    match seen.map(|seen| serde_json::to_string(&seen)).transpose() {
        Ok(line) => {
            line.iter().for_each(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("error: what was seen is no JSON: {e}");
            ExitCode::FAILURE
        }
    }
}
