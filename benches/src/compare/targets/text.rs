//! The verdicts as a table.

use std::fmt::Write;

use super::verdict::{Row, Unit, Verdict};
use crate::compare::table::number;

/// Columns of a line at most.
const WIDTH: usize = 110;

/// What the table's columns are.
const LEGEND: &str = "\
A target is a bound on our time over another's, the median of the pairs: over that of the peer that was fastest at that
size, or over what the machine itself takes (README, \"How it compares\"). A line shows where its ratio is largest, and at
how many of the sizes measured it is no larger than it may be. Within noise: larger by less than 10 %.";

/// The table of all rows that were measured or should have been, and what measures the others.
pub fn text(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<13}  {:<13}  {:<15} {:>9} {:>9} {:>5}  {:<11} {:>4} {:>5}  verdict\n",
        "target", "against", "worst at", "ours", "theirs", "ratio", "low–high", "≤", "hold"
    );
    let _ = writeln!(text, "{}", "─".repeat(WIDTH - 1));
    let mut group = "";
    for row in rows.iter().filter(|row| row.verdict != Verdict::Unasked) {
        if row.group != group {
            group = &row.group;
            let _ = writeln!(text, "{group}");
        }
        text += &line(row);
    }
    if rows.iter().any(|row| row.verdict != Verdict::Unasked && !row.unasked.is_empty()) {
        text += "* not of all of its cases: the others were not measured in this run\n";
    }
    let _ = write!(text, "\n{}\n{LEGEND}\n", counted(rows));
    let unasked: Vec<&Row> = rows.iter().filter(|row| row.verdict == Verdict::Unasked).collect();
    if !unasked.is_empty() {
        let _ = write!(
            text,
            "\nNot measured in this run; `make targets` measures everything:\n{}",
            left(&unasked)
        );
    }
    text
}

fn line(row: &Row) -> String {
    let range = &row.range;
    let (Verdict::Holds | Verdict::Noise | Verdict::Misses, Some(worst)) = (&row.verdict, &row.worst) else {
        let line = format!("  {range:<11}  {:<13}  {}", row.reference, row.verdict);
        return line.chars().take(WIDTH).collect::<String>() + "\n";
    };
    let hold = format!("{}/{}", row.holding, row.points);
    let spread = format!("{}–{}", number(worst.lowest), number(worst.highest));
    let mark = if row.unasked.is_empty() { "" } else { "*" };
    format!(
        "  {range:<11}  {:<13}  {:<15} {:>9} {:>9} {:>5}  {spread:<11} {:>4.2} {hold:>5}  {}{mark}\n",
        worst.against,
        worst.at,
        show(worst.ours, worst.unit),
        show(worst.other, worst.unit),
        number(worst.ratio),
        row.at_most,
        row.verdict
    )
}

/// "17 targets were measured: 12 hold, …".
fn counted(rows: &[Row]) -> String {
    let of = |verdict: &Verdict| rows.iter().filter(|row| row.verdict == *verdict).count();
    let (holds, noise, misses) = (of(&Verdict::Holds), of(&Verdict::Noise), of(&Verdict::Misses));
    let failed = rows.iter().filter(|row| matches!(row.verdict, Verdict::Failed(_))).count();
    let failed = if failed > 0 { format!(", {failed} could not be measured") } else { String::new() };
    format!(
        "{holds} of {} targets hold, {noise} are missed within noise, {misses} by more{failed}.",
        holds + noise + misses
    )
}

/// Calls with the same cases and sizes on one line, each once.
fn left(rows: &[&Row]) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in rows {
        let ranges = match groups.iter_mut().find(|(group, _)| *group == row.group) {
            Some((_, ranges)) => ranges,
            None => {
                groups.push((&row.group, Vec::new()));
                let last = groups.len() - 1;
                &mut groups[last].1
            }
        };
        if !ranges.contains(&&*row.range) {
            ranges.push(&row.range);
        }
    }
    let mut lines: Vec<(Vec<&str>, &str, Vec<&str>)> = Vec::new();
    for (group, ranges) in groups {
        let (call, case) = group.split_once(", ").unwrap_or((group, ""));
        match lines.iter_mut().find(|(_, other, of)| *other == case && *of == ranges) {
            Some((calls, ..)) => calls.push(call),
            None => lines.push((vec![call], case, ranges)),
        }
    }
    let line = |(calls, case, ranges): &(Vec<&str>, &str, Vec<&str>)| {
        let case = if case.is_empty() { String::new() } else { format!(" ({case})") };
        format!("  {}{case}: {}\n", calls.join(", "), ranges.join(", "))
    };
    lines.iter().map(line).collect()
}

/// "0.390 µs", "10.6 ms", "412 kB".
fn show(value: f64, unit: Unit) -> String {
    let (value, unit) = match (unit, value) {
        (Unit::Us, 0.0..999.5) => (value, "µs"),
        (Unit::Us, 999.5..999_500.0) => (value / 1e3, "ms"),
        (Unit::Us, _) => (value / 1e6, "s"),
        (Unit::Bytes, 0.0..999_500.0) => (value / 1e3, "kB"),
        (Unit::Bytes, _) => (value / 1e6, "MB"),
    };
    format!("{} {unit}", number(value))
}

#[cfg(test)]
mod tests {
    use super::super::verdict::Point;
    use super::*;

    fn row(group: &str, range: &str, verdict: Verdict) -> Row {
        let worst = Point {
            at: "4 ranks, 64 MiB".into(),
            against: "openmpi4".into(),
            ours: 24_238.0,
            other: 115_465.0,
            unit: Unit::Us,
            ratio: 0.21,
            lowest: 0.19,
            highest: 0.25,
            pairs: 5,
        };
        Row {
            group: group.into(),
            range: range.into(),
            reference: "fastest peer",
            at_most: 0.7,
            worst: Some(worst),
            holding: 5,
            points: 6,
            unasked: vec![],
            verdict,
        }
    }

    #[test]
    fn a_table() {
        let mut partly = row("allgather, shm, 2 and 4 ranks", "≥ 64 KiB", Verdict::Holds);
        partly.unasked.push("2 ranks".into());
        let why = "no peer gave a result, and the reason for that is longer than a line is wide, by far and by more";
        let rows = [
            partly,
            row("allgather, shm, 2 and 4 ranks", "< 64 KiB", Verdict::Failed(why.into())),
            row("broadcast, shm, 2 ranks", "< 64 KiB", Verdict::Unasked),
            row("broadcast, shm, 2 ranks", "≥ 64 KiB", Verdict::Unasked),
            row("alltoall, shm, 2 ranks", "< 64 KiB", Verdict::Unasked),
            row("alltoall, shm, 2 ranks", "≥ 64 KiB", Verdict::Unasked),
        ];
        let text = text(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2], "allgather, shm, 2 and 4 ranks");
        let words: Vec<&str> = lines[3].split_whitespace().collect();
        let last = ["24.2", "ms", "115", "ms", "0.210", "0.190–0.250", "0.70", "5/6", "holds*"];
        assert_eq!(words[words.len() - 9..], last);
        assert!(lines[4].contains("not measured: no peer gave a result"), "{text}");
        assert!(
            text.contains(
                "1 of 1 targets hold, 0 are missed within noise, 0 by more, 1 could not be measured."
            )
        );
        assert!(text.contains("\n  broadcast, alltoall (shm, 2 ranks): < 64 KiB, ≥ 64 KiB\n"), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 120), "{text}");
        assert!(lines[..5].iter().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn quantities() {
        let shown = [
            (0.39, Unit::Us),
            (10_619.0, Unit::Us),
            (2.3e6, Unit::Us),
            (412e3, Unit::Bytes),
            (1e6, Unit::Bytes),
        ];
        assert_eq!(shown.map(|(v, u)| show(v, u)), ["0.390 µs", "10.6 ms", "2.30 s", "412 kB", "1.00 MB"]);
    }
}
