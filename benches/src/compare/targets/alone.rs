//! Targets that need no peer: sums of 16-bit floats, the start, memory.

use super::verdict::{Point, Row, Unit, Verdict, point};
use crate::compare::own::{Memory, Own};
use crate::compare::sizes;
use crate::compare::statistics::{Summary, median};

/// A communicator's start of so many local ranks may take so long, s.
const START: (usize, f64) = (64, 0.5);
/// An idle communicator may have so many bytes for each peer.
const MEMORY: f64 = 1e6;
/// Sums of 16-bit floats beside those of f32, time per byte: from cache and from memory.
const FROM_CACHE: f64 = 1.0;
const FROM_MEMORY: f64 = 1.5;

/// Those that need no peer.
pub fn of_own(own: Option<&Own>) -> Vec<Row> {
    let mut rows = Vec::new();
    for (range, in_cache, at_most) in [("from cache", true, FROM_CACHE), ("from memory", false, FROM_MEMORY)]
    {
        let sums = own.map_or(&[][..], |own| &own.sums);
        let points = sums.iter().filter(|sum| sum.in_cache == in_cache).filter_map(|sum| {
            let at = format!("{}, {}", sum.data_type, sizes::show(sum.bytes));
            Some(Point { at, ..point("f32", &Summary::of(&sum.pairs)?, Unit::Us) })
        });
        rows.push(Row::new("sum of bf16 and f16, time per byte", range, "f32", at_most, points.collect()));
    }
    let (ranks, seconds) = START;
    let group = format!("start of a communicator, {ranks} ranks on this host");
    rows.push(match own.map(|own| &own.start) {
        Some(Err(why)) => failed(Row::new(&group, "whole", "0.5 s", 1.0, vec![]), why),
        start => {
            let starts = start.and_then(|s| s.as_ref().ok()).map_or(&[][..], Vec::as_slice);
            let pairs: Vec<_> = starts.iter().map(|s| (s.whole * 1e6, seconds * 1e6)).collect();
            let points = Summary::of(&pairs).map(|s| point("0.5 s", &s, Unit::Us));
            let inside = median(starts.iter().map(|s| s.inside * 1e3));
            let at = inside.map_or(String::new(), |ms| format!("inside {ms:.0} ms"));
            Row::new(&group, "whole", "0.5 s", 1.0, points.map(|p| Point { at, ..p }).into_iter().collect())
        }
    });
    rows.push(of_memory(own.map_or(&[][..], |own| &own.memory)));
    rows
}

fn of_memory(all: &[Memory]) -> Row {
    let mut points = Vec::new();
    for memory in all {
        let states = [("started", memory.started), ("used", memory.used)];
        for (state, bytes) in states.into_iter().filter_map(|(state, bytes)| Some((state, bytes?))) {
            let summary = Summary::of(&[(bytes, MEMORY)]);
            let at = format!("{}, {state}", memory.transport);
            points.extend(summary.map(|s| Point { at: at.clone(), ..point("1 MB", &s, Unit::Bytes) }));
        }
    }
    let row = Row::new("memory of an idle communicator", "each peer", "1 MB", 1.0, points);
    match all.iter().find_map(|memory| memory.failure.as_ref()) {
        Some(why) => failed(row, why),
        None => row,
    }
}

fn failed(row: Row, why: &str) -> Row {
    Row { verdict: Verdict::Failed(why.into()), ..row }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::own::{Start, Sum};

    #[test]
    fn what_needs_no_peer() {
        let sum =
            |data_type, in_cache, time| Sum { data_type, bytes: 1 << 15, in_cache, pairs: vec![(time, 2.0)] };
        let memory = |used, failure| Memory { transport: "shm", ranks: 8, started: Some(4e5), used, failure };
        let own = Own {
            start: Ok(vec![Start { whole: 0.3, inside: 0.2 }, Start { whole: 0.6, inside: 0.3 }]),
            memory: vec![memory(Some(9e5), None), memory(None, Some("it fell".into()))],
            sums: vec![sum("bf16", true, 2.4), sum("f16", true, 1.0), sum("f16", false, 3.0)],
        };
        let rows = of_own(Some(&own));
        let verdicts: Vec<_> = rows.iter().map(|row| row.verdict.clone()).collect();
        let failed = Verdict::Failed("it fell".into());
        assert_eq!(verdicts, [Verdict::Misses, Verdict::Holds, Verdict::Holds, failed]);
        assert_eq!(rows[0].worst.as_ref().unwrap().at, "bf16, 32 KiB");
        assert_eq!((rows[2].worst.as_ref().unwrap().ours, rows[3].points), (450_000.0, 3));
        assert!(of_own(None).iter().all(|row| row.verdict == Verdict::Unasked));
    }
}
