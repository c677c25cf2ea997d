//! nccl-tests' rows.

use std::collections::BTreeMap;

/// A row's times, µs, and wrong elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Out of place.
    pub apart: f64,
    /// In place, where it was measured.
    pub in_place: Option<f64>,
    /// Elements that were wrong, in both.
    pub wrong: u64,
}

/// By size in bytes.
pub type Rows = BTreeMap<u64, Row>;

/// The rows in what a program printed; lines that are none are skipped. Columns: size, count, type, redop, root, then
/// twice time, algbw, busbw, #wrong.
pub fn parse(text: &str) -> Rows {
    text.lines().filter_map(row).collect()
}

fn row(line: &str) -> Option<(u64, Row)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [size, _, _, _, _, apart, _, _, wrong, rest @ ..] = words.as_slice() else { return None };
    let size = size.parse().ok().filter(|s| *s > 0)?;
    let count = |text: &&str| text.parse().unwrap_or(0);
    let in_place = rest.first().and_then(|time| time.parse().ok());
    let wrong = count(wrong) + rest.get(3).map_or(0, count);
    Some((size, Row { apart: apart.parse().ok()?, in_place, wrong }))
}

/// What a peer's program says its library is.
pub fn library(text: &str) -> Option<String> {
    let name = text.lines().find_map(|l| l.strip_prefix("# library "))?;
    Some(name.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_ours_and_of_peers() {
        let text = "# nd-bench version 0.1.0
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
           4             1     float     sum      -1    13.41    0.00    0.00       0     0.53    0.01    0.01       2
# library Some MPI   1.2
64 16 float sum -1 1.500 0.043 0.043 1 N/A N/A N/A N/A
           0             0     float     sum      -1    13.41    0.00    0.00       0     0.53    0.01    0.01       0
warning: 64 things happened while something else was going on in there
";
        let rows = parse(text);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[&4], Row { apart: 13.41, in_place: Some(0.53), wrong: 2 });
        assert_eq!(rows[&64], Row { apart: 1.5, in_place: None, wrong: 1 });
        assert_eq!(library(text).as_deref(), Some("Some MPI 1.2"));
    }
}
