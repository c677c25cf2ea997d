//! `nd-bench`: measures collectives, checks every element, prints nccl-tests' table.
//!
//! | file | what |
//! |---|---|
//! | `arguments` | the command line |
//! | `start` | ranks as threads, as processes, or this process as one rank of a launcher's |
//! | `run` | what one rank does: every type, operation, root and size |
//! | `measure` | one case: warm up, time, check |
//! | `call` | one call of a collective on a case's buffers |
//! | `collective` | what a size means for each collective, bus bandwidth — *pure* |
//! | `picture` | what buffers hold before and must hold after a call — *pure* |
//! | `sample` | values whose reductions are exact in any order — *pure* |
//! | `size`, `number` | sizes; numbers as C's printf shows them — *pure* |
//! | `table`, `ranges`, `json`, `plot` | the output — *pure* but for writing files |
//! | `report` | rank 0's output: table, summary, files, progress |

mod arguments;
mod call;
mod collective;
mod error;
mod host;
mod json;
mod measure;
mod number;
mod picture;
mod plot;
mod ranges;
mod report;
mod run;
mod sample;
mod size;
mod start;
mod statistics;
mod table;

use std::process::ExitCode;

pub use error::Error;

/// The whole command.
pub fn main() -> ExitCode {
    let options = match arguments::read() {
        Ok(options) => options,
        Err(code) => return code,
    };
    match start::run(&options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            if !e.is_silent() {
                eprintln!("error: {e}");
            }
            ExitCode::from(e.code())
        }
    }
}

/// Of `names` the one that `text` most likely means.
fn nearest<'n>(text: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let near = names.into_iter().map(|name| (distance(text, name), name)).min_by_key(|(d, _)| *d)?;
    (near.0 <= text.len().max(near.1.len()) / 2).then_some(near.1)
}

/// Levenshtein's.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_is_near() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(nearest("rign", ["direct", "ring", "tree"]), Some("ring"));
        assert_eq!(nearest("zzzzzz", ["direct", "ring", "tree"]), None);
    }
}
