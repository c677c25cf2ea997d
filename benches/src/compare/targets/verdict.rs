//! Which targets hold, from what was measured.

use std::fmt;

use serde::Serialize;

use super::alone::of_own;
use super::list::{Reference, Target, targets};
use crate::compare::own::Own;
use crate::compare::peers::Peer;
use crate::compare::rounds::{Against, Bounded, Measured};
use crate::compare::sizes;
use crate::compare::statistics::{NOISE, Summary};

/// What came of a target.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// At everything that was measured the ratio is at most what it may be.
    Holds,
    /// The worst ratio is above what it may be by so little that it is noise ([`NOISE`]).
    Noise,
    /// It is above by more.
    Misses,
    /// It should have been measured, and was not: why.
    Failed(String),
    /// This run was not asked to.
    Unasked,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Holds => f.pad("holds"),
            Verdict::Noise => f.pad("within noise"),
            Verdict::Misses => f.pad("misses"),
            Verdict::Failed(why) => write!(f, "not measured: {why}"),
            Verdict::Unasked => f.pad("not measured"),
        }
    }
}

/// In what a point is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// µs.
    Us,
    /// Bytes.
    Bytes,
}

/// One comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// At which size, and of how many ranks where a row has several.
    pub at: String,
    /// With which peer, or what.
    pub against: String,
    /// Ours, the median,
    pub ours: f64,
    /// and the other's,
    pub other: f64,
    /// in this unit.
    pub unit: Unit,
    /// The median of the ratios,
    pub ratio: f64,
    /// the lowest of them,
    pub lowest: f64,
    /// the highest,
    pub highest: f64,
    /// and how many there are.
    pub pairs: usize,
}

/// A target, and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Which cases.
    pub group: String,
    /// At which sizes.
    pub range: String,
    /// To what ours is compared.
    pub reference: &'static str,
    /// The ratio may be so large.
    pub at_most: f64,
    /// Where the ratio is largest.
    pub worst: Option<Point>,
    /// At how many points it is no larger than it may be,
    pub holding: usize,
    /// of how many.
    pub points: usize,
    /// Cases of it that this run was not asked for.
    pub unasked: Vec<String>,
    /// What came of it.
    pub verdict: Verdict,
}

impl Row {
    /// With the verdict that follows from its points.
    pub fn new(group: &str, range: &str, reference: &'static str, at_most: f64, points: Vec<Point>) -> Row {
        let worst = points.iter().max_by(|a, b| a.ratio.total_cmp(&b.ratio)).cloned();
        let verdict = match &worst {
            None => Verdict::Unasked,
            Some(worst) if worst.ratio <= at_most => Verdict::Holds,
            Some(worst) if worst.ratio <= at_most * (1.0 + NOISE) => Verdict::Noise,
            Some(_) => Verdict::Misses,
        };
        Row {
            group: group.into(),
            range: range.into(),
            reference,
            at_most,
            holding: points.iter().filter(|p| p.ratio <= at_most).count(),
            points: points.len(),
            unasked: Vec::new(),
            worst,
            verdict,
        }
    }
}

/// A row for each target.
pub fn rows(cases: &[Measured], own: Option<&Own>) -> Vec<Row> {
    let mut rows: Vec<Row> = targets().iter().map(|target| row(target, cases)).collect();
    rows.extend(of_own(own));
    rows
}

/// One that is about calls.
fn row(target: &Target, cases: &[Measured]) -> Row {
    let (mut points, mut why, mut asked) = (Vec::new(), None, Vec::new());
    for measured in cases.iter().filter(|measured| target.concerns(&measured.case)) {
        if target.against == Reference::FastestPeer && measured.against.iter().all(|a| a.peer == Peer::Ours) {
            continue;
        }
        let sizes: Vec<u64> = measured.sizes.iter().copied().filter(|size| target.covers(*size)).collect();
        if !sizes.is_empty() {
            asked.push(measured.case.ranks);
        }
        for &size in &sizes {
            let point = match target.against {
                Reference::FastestPeer => against_peers(measured, size),
                limit => against_limit(measured, size, limit),
            };
            match point {
                Some(mut point) => {
                    point.at = sizes::show(size);
                    if target.ranks.len() > 1 {
                        point.at = format!("{} ranks, {}", measured.case.ranks, point.at);
                    }
                    points.push(point);
                }
                None => why = why.or_else(|| reason(target, measured, size)),
            }
        }
    }
    let mut row = Row::new(&target.group(), target.range, target.against.name(), target.at_most, points);
    let unasked = target.ranks.iter().filter(|ranks| !asked.contains(*ranks));
    row.unasked = unasked.map(|ranks| format!("{ranks} ranks")).collect();
    if let Some(why) = why {
        row.verdict = Verdict::Failed(why);
    }
    row
}

/// Why there is no point; none where there cannot be one: a collective with parts has none of less than 16 bytes.
fn reason(target: &Target, measured: &Measured, size: u64) -> Option<String> {
    if let (false, Some(failure)) = (measured.ours.contains_key(&size), measured.failures.first()) {
        return Some(format!("ours failed: {failure}"));
    }
    measured.ours.contains_key(&size).then(|| match target.against {
        Reference::FastestPeer => format!("no peer gave a result at {}", sizes::show(size)),
        limit => format!("there is no {} on this machine", limit.name()),
    })
}

/// The peer that comes nearest to ours.
fn against_peers(measured: &Measured, size: u64) -> Option<Point> {
    let peers = measured.against.iter().filter(|against| against.peer != Peer::Ours);
    let all = peers.filter_map(|against: &Against| Some((against.peer, against.summary(size)?)));
    let (peer, summary) = all.max_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio))?;
    Some(point(peer.name(), &summary, Unit::Us))
}

/// What the machine allowed at the moment of each run.
fn against_limit(measured: &Measured, size: u64, reference: Reference) -> Option<Point> {
    let pair = |bounded: &Bounded| {
        let limit = reference.time(&bounded.limits, &measured.case, size).filter(|time| *time > 0.0)?;
        Some((*bounded.ours.get(&size)?, limit))
    };
    let pairs: Vec<_> = measured.bounded.iter().filter_map(pair).collect();
    Some(point(reference.name(), &Summary::of(&pairs)?, Unit::Us))
}

/// Of a summary; where is still to be said.
pub fn point(against: &str, s: &Summary, unit: Unit) -> Point {
    Point {
        at: String::new(),
        against: against.into(),
        ours: s.ours,
        other: s.theirs,
        unit,
        ratio: s.ratio,
        lowest: s.lowest,
        highest: s.highest,
        pairs: s.pairs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::case::Case;
    use crate::compare::targets::cases;
    use crate::limits::Limits;

    type Pairs = Vec<(f64, f64)>;

    fn against(peer: Peer, pairs: &[(u64, Pairs)]) -> Against {
        Against {
            peer,
            library: None,
            settings: String::new(),
            pairs: pairs.iter().cloned().collect(),
            wrong: 0,
            failures: vec![],
            given_up: false,
        }
    }

    fn measured(case: Case, against: Vec<Against>) -> Measured {
        let ours =
            against[0].pairs.iter().map(|(size, p)| (*size, p.iter().map(|p| p.0).collect())).collect();
        let sizes = against[0].pairs.keys().copied().collect();
        Measured { case, sizes, ours, bounded: vec![], against, wrong: 0, failures: vec![] }
    }

    /// The row of a case at the sizes of a range.
    fn find<'a>(rows: &'a [Row], group: &str, range: &str, reference: &str) -> &'a Row {
        let is = |row: &&Row| (&*row.group, &*row.range, row.reference) == (group, range, reference);
        rows.iter().find(is).unwrap()
    }

    #[test]
    fn the_fastest_peer_of_a_size_counts_and_the_worst_size_of_a_row() {
        let case = cases()[0].0;
        let impi =
            against(Peer::Impi, &[(4, vec![(1.0, 1.0)]), (64, vec![(1.0, 4.0)]), (8192, vec![(6.5, 10.0)])]);
        let gloo =
            against(Peer::Gloo, &[(4, vec![(1.0, 9.0)]), (64, vec![(2.4, 2.0), (2.0, 2.0), (1.0, 2.0)])]);
        let itself = against(Peer::Ours, &[(4, vec![(7.0, 1.0)])]);
        let rows = rows(&[measured(case, vec![impi, gloo, itself])], None);
        let small = find(&rows, "allreduce, shm, 2 ranks", "4 B–1 KiB", "fastest peer");
        assert_eq!((small.holding, small.points, &small.verdict), (2, 2, &Verdict::Holds));
        let worst = small.worst.as_ref().unwrap();
        assert_eq!(
            (worst.ratio, worst.against.as_str()),
            (1.0, if worst.at == "4 B" { "impi" } else { "gloo" })
        );
        let middle = find(&rows, "allreduce, shm, 2 ranks", "4 KiB–1 MiB", "fastest peer");
        assert_eq!((middle.holding, middle.points, &middle.verdict), (0, 1, &Verdict::Noise));
        let large = find(&rows, "allreduce, shm, 2 ranks", "≥ 4 MiB", "fastest peer");
        assert_eq!((large.points, &large.verdict), (0, &Verdict::Unasked));
        // Two sizes, but nothing to hold them against.
        let hops = find(&rows, "allreduce, shm, 2 ranks", "4 B–1 KiB", "4 hops+100 ns");
        assert_eq!(hops.verdict, Verdict::Failed("there is no 4 hops+100 ns on this machine".into()));
    }

    #[test]
    fn limits_and_what_failed() {
        let case = cases()[0].0;
        let impi = against(Peer::Impi, &[(4, vec![(0.6, 1.0), (0.5, 1.0), (0.4, 1.0)])]);
        let mut case = measured(case, vec![impi]);
        case.sizes.push(64);
        let bounded = |ours: f64, hop: f64| Bounded {
            ours: [(4, ours)].into(),
            limits: Limits { cache_line: Some(hop), ..Limits::default() },
        };
        case.bounded = vec![bounded(0.6, 0.25), bounded(0.5, 0.05), bounded(0.4, 0.05)];
        let hops = |case: &Measured| {
            let rows = rows(std::slice::from_ref(case), None);
            find(&rows, "allreduce, shm, 2 ranks", "4 B–1 KiB", "4 hops+100 ns").clone()
        };
        let row = hops(&case);
        let worst = row.worst.unwrap();
        // Each with the machine of its moment: 0.6 with 1.1, 0.5 with 0.3, 0.4 with 0.3.
        assert_eq!((worst.ours, row.verdict), (0.5, Verdict::Misses));
        assert!((worst.ratio - 0.4 / 0.3).abs() < 1e-9 && (worst.lowest - 0.6 / 1.1).abs() < 1e-9);
        assert!((worst.highest - 0.5 / 0.3).abs() < 1e-9);
        case.failures.push("it fell".into());
        assert_eq!(hops(&case).verdict, Verdict::Failed("ours failed: it fell".into()));
        case.sizes.pop();
        case.against[0].pairs.clear();
        let rows = rows(&[case], None);
        let row = find(&rows, "allreduce, shm, 2 ranks", "4 B–1 KiB", "fastest peer");
        assert_eq!(row.verdict, Verdict::Failed("no peer gave a result at 4 B".into()));
    }

    #[test]
    fn rows_of_several_cases_say_which_were_not_asked_for() {
        let gather = cases().into_iter().find(|(c, _)| c.collective.name() == "allgather" && c.ranks == 4);
        let impi = against(Peer::Impi, &[(1 << 20, vec![(1.0, 2.0)])]);
        let rows = rows(&[measured(gather.unwrap().0, vec![impi])], None);
        let row = find(&rows, "allgather, shm, 2 and 4 ranks", "≥ 64 KiB", "fastest peer");
        assert_eq!(
            (row.verdict.clone(), row.unasked.as_slice()),
            (Verdict::Holds, &["2 ranks".to_owned()][..])
        );
        assert_eq!(row.worst.as_ref().unwrap().at, "4 ranks, 1 MiB");
    }
}
