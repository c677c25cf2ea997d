//! What nd-bench said of what it predicted, read and laid out side by side.

use std::fmt::Write;

use crate::compare::sizes::show;
use crate::compare::statistics::median;

/// One size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Bytes.
    pub size: u64,
    /// µs.
    pub predicted: f64,
    /// µs.
    pub measured: f64,
}

impl Row {
    /// (predicted − measured) / measured.
    fn error(&self) -> f64 {
        (self.predicted - self.measured) / self.measured
    }
}

/// One world.
#[derive(Debug)]
pub struct Column {
    /// Its name.
    pub world: String,
    /// Ascending sizes.
    pub rows: Vec<Row>,
}

/// The line that comes before the rows.
const TITLE: &str = "# predicted against measured, µs:";

/// Rows of `nd-bench --explain`: `#   SIZE B PREDICTED MEASURED ±ERROR %`.
pub fn read(text: &str) -> Vec<Row> {
    text.lines().skip_while(|line| *line != TITLE).skip(1).map_while(row).collect()
}

fn row(line: &str) -> Option<Row> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["#", size, "B", predicted, measured, ..] = words[..] else { return None };
    let row = Row {
        size: size.parse().ok()?,
        predicted: predicted.parse().ok()?,
        measured: measured.parse().ok()?,
    };
    (row.measured > 0.0).then_some(row)
}

/// Markdown: a row for each size of any world, and the median error of each world, without signs.
pub fn table(columns: &[Column]) -> String {
    let mut sizes: Vec<u64> = columns.iter().flat_map(|c| c.rows.iter().map(|r| r.size)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut text = String::from("| size |");
    for column in columns {
        let _ = write!(text, " {}: predicted | measured | error |", column.world);
    }
    text += &format!("\n|---|{}\n", "---|---|---|".repeat(columns.len()));
    for size in sizes {
        let _ = write!(text, "| {} |", show(size));
        for column in columns {
            text += &match column.rows.iter().find(|r| r.size == size) {
                Some(r) => {
                    format!(
                        " {} | {} | {:+.0} % |",
                        number(r.predicted),
                        number(r.measured),
                        100.0 * r.error()
                    )
                }
                None => " | | |".into(),
            };
        }
        text.push('\n');
    }
    text += "| median of \\|error\\| |";
    for column in columns {
        let of_all = median(column.rows.iter().map(|r| r.error().abs())).unwrap_or(f64::NAN);
        let _ = write!(text, " | | {:.0} % |", 100.0 * of_all);
    }
    text.push('\n');
    text
}

/// Three digits, all of those before the point.
fn number(us: f64) -> String {
    let decimals = if us < 10.0 { 2 } else { usize::from(us < 100.0) };
    format!("{us:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
        4 1 float sum -1 0.44 0.01 0.01 N/A 0.40 0.01 0.01 N/A
# predicted against measured, µs:
#              4 B         0.55         0.44     +25 %
#           1024 B         9.00        10.00     -10 %
# median of |predicted - measured| / measured: 25 %
#   shm between 2 ranks
";

    #[test]
    fn what_nd_bench_says_is_read() {
        let rows = read(SAID);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0], Row { size: 4, predicted: 0.55, measured: 0.44 });
        assert!(read("# nothing\n").is_empty());
    }

    #[test]
    fn worlds_stand_side_by_side() {
        let one = Column { world: "shm".into(), rows: read(SAID) };
        let other =
            Column { world: "tcp".into(), rows: vec![Row { size: 4, predicted: 250.4, measured: 500.0 }] };
        let text = table(&[one, other]);
        let lines: Vec<_> = text.lines().collect();
        let title = "| size | shm: predicted | measured | error | tcp: predicted | measured | error |";
        assert_eq!(lines[0], title);
        assert_eq!(lines[2], "| 4 B | 0.55 | 0.44 | +25 % | 250 | 500 | -50 % |");
        assert_eq!(lines[3], "| 1 KiB | 9.00 | 10.0 | -10 % | | | |");
        assert!(lines[4].starts_with("| median of \\|error\\| | | | 1"), "{text}");
        assert!(lines[4].ends_with(" | | 50 % |"), "{text}");
    }
}
