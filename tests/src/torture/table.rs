//! What came of all cases, as a table.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::case::{Case, Fault, Joined};
use super::watch::Outcome;

/// A row for each fault and kind of link.
#[derive(Debug, Default)]
pub struct Table {
    rows: BTreeMap<(Fault, Joined), Row>,
    abort: Option<Duration>,
    dropped: Duration,
}

#[derive(Debug, Default)]
struct Row {
    tried: usize,
    well: usize,
    survivors: usize,
    right: usize,
    /// With the seed of the case.
    times: Vec<(Duration, u64)>,
}

impl Table {
    /// One more case.
    pub fn add(&mut self, case: &Case, outcome: &Outcome) {
        let row = self.rows.entry((case.fault, case.joined)).or_default();
        row.tried += 1;
        row.well += usize::from(outcome.problems.is_empty());
        row.survivors += outcome.survivors;
        row.right += outcome.right;
        // A rank that is lost during the start may be missed only when its time is up.
        if !case.at_start {
            row.times.extend(outcome.learnt.iter().map(|time| (*time, case.seed)));
        }
        self.abort = self.abort.max(outcome.abort);
        self.dropped = self.dropped.max(outcome.dropped);
    }
}

fn ms(time: Duration) -> String {
    format!("{:.0}", time.as_secs_f64() * 1e3)
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "#                  worlds  of which    ranks    named    time to the error, ms")?;
        writeln!(f, "# fault     links   tried  all well  survive  rightly     median       worst  in case")?;
        for ((fault, joined), row) in &self.rows {
            let mut times = row.times.clone();
            times.sort_unstable();
            let median = times.get(times.len() / 2).map_or("-".into(), |(time, _)| ms(*time));
            let (worst, seed) =
                times.last().map_or(("-".into(), "-".into()), |(time, seed)| (ms(*time), seed.to_string()));
            let Row { tried, well, survivors, right, .. } = row;
            writeln!(
                f,
                "  {:<9} {:<5} {tried:>7} {well:>9} {survivors:>8} {right:>8} {median:>10} {worst:>11}  {seed}",
                fault.name(),
                joined.name()
            )?;
        }
        let abort =
            self.abort.map(|abort| format!("abort took {} ms at most, ", ms(abort))).unwrap_or_default();
        writeln!(f, "# {abort}dropping a communicator {} ms", ms(self.dropped))
    }
}
