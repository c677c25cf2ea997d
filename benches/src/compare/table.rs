//! A case as a table that can be read at once, and as one with everything.

use std::fmt::Write;

use super::rounds::{Against, Measured};
use super::sizes;
use crate::limits::Limits;

/// Ratios of all peers side by side.
pub fn overview(measured: &Measured, limits: &Limits) -> String {
    let mut text = format!("{:>8} {:>9} {:>9} {:>7} ", "size", "limit", "ours", "/limit");
    for against in &measured.against {
        let _ = write!(text, " {:>9}", against.peer.name());
    }
    text += "\n";
    for &size in measured.ours.keys() {
        let (bound, ours) = (limits.bound(&measured.case, size), measured.ours(size));
        let times = ours.zip(bound).map_or("-".into(), |(ours, bound)| number(ours / bound));
        let shown = |time: Option<f64>| time.map_or("-".into(), number);
        let _ = write!(
            text,
            "{:>8} {:>9} {:>9} {times:>7} ",
            sizes::show(size).replace(' ', "").replace("iB", ""),
            shown(bound),
            shown(ours)
        );
        for against in &measured.against {
            let cell = against.summary(size).map_or("-".to_owned(), |s| {
                let mark = match against.dropped(size) {
                    true => "<",
                    false if s.is_noise() => "~",
                    false => "",
                };
                format!("{mark}{}", number(s.ratio))
            });
            let _ = write!(text, " {cell:>9}");
        }
        text += "\n";
    }
    text
}

/// What the overview's columns are.
pub const LEGEND: &str = "\
limit, ours: µs a call (limit: the least the machine allows); /limit: ours over it; then for each peer our time over
its time, the median of the pairs: below 1 ours is faster, ~ within 10 %, which is noise, < so far slower in its first
pairs that it was not asked again";

/// A peer's times and ratios, as Markdown.
pub fn details(measured: &Measured, limits: &Limits, against: &Against) -> String {
    let mut text = String::from(
        "| size | limit µs | ours µs | peer µs | ratio | lowest | highest | pairs | |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for &size in against.pairs.keys() {
        let Some(s) = against.summary(size) else { continue };
        let bound = limits.bound(&measured.case, size).map_or("-".into(), number);
        let _ = writeln!(
            text,
            "| {} | {bound} | {} | {} | {} | {} | {} | {} | {} |",
            sizes::show(size),
            number(s.ours),
            number(s.theirs),
            number(s.ratio),
            number(s.lowest),
            number(s.highest),
            s.pairs,
            match against.dropped(size) {
                true => "far slower, not asked again",
                false if s.is_noise() => "noise",
                false => "",
            }
        );
    }
    text
}

/// Two digits or three, or whole.
pub fn number(value: f64) -> String {
    match value {
        0.0..0.00995 => format!("{value:.4}"),
        0.00995..0.9995 => format!("{value:.3}"),
        0.9995..9.995 => format!("{value:.2}"),
        9.995..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::{Buffers, Case, Collective, Transport};
    use super::super::peers::Peer;
    use super::*;

    /// Two sizes and two peers, of which one has failed at the larger size.
    pub fn sample() -> Measured {
        let case = Case {
            collective: Collective::AllReduce,
            transport: Transport::Shm,
            ranks: 2,
            buffers: Buffers::Registered,
            hosts: 2,
            mbit: 1000,
        };
        let against = |peer, pairs: &[(u64, Vec<(f64, f64)>)]| Against {
            peer,
            library: Some("Some library 1.0".into()),
            settings: "A=1".into(),
            pairs: pairs.iter().cloned().collect(),
            wrong: 0,
            failures: vec![],
            given_up: false,
        };
        let impi = [(4, vec![(0.4, 0.8), (0.6, 0.4), (0.5, 0.5)]), (1 << 20, vec![(100.0, 400.0)])];
        Measured {
            case,
            sizes: vec![4, 1 << 20],
            ours: [(4, vec![0.4, 0.6, 0.5]), (1 << 20, vec![100.0])].into(),
            bounded: vec![],
            against: vec![against(Peer::Impi, &impi), against(Peer::Gloo, &[(4, vec![(0.5, 50.0)])])],
            wrong: 0,
            failures: vec![],
        }
    }

    #[test]
    fn an_overview() {
        let limits = Limits { threads: 2, cache_line: Some(0.1), ..Limits::default() };
        let text = overview(&sample(), &limits);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["size", "limit", "ours", "/limit", "impi", "gloo"]);
        assert_eq!(lines[1], ["4B", "0.100", "0.500", "5.00", "~1.00", "<0.010"]);
        assert_eq!(lines[2], ["1M", "0.100", "100", "1000", "0.250", "-"]);
    }

    #[test]
    fn details_say_what_is_noise() {
        let measured = sample();
        let text = details(&measured, &Limits::default(), &measured.against[0]);
        assert!(text.contains("| 4 B | - | 0.500 | 0.500 | 1.00 | 0.500 | 1.50 | 3 | noise |"), "{text}");
        assert!(text.contains("| 1 MiB | - | 100 | 400 | 0.250 | 0.250 | 0.250 | 1 |  |"), "{text}");
    }
}
