//! Who runs when, and what came of it.
//!
//! In a round each peer runs once, with ours right before or after it: `peer ours peer`, `peer ours peer`, …; an odd
//! one is alone with ours. In every other round the order is reversed, so that neither of a pair always goes first. A
//! peer that is far slower at a size is not measured there in every round: it only makes the others wait.

use std::collections::BTreeMap;
use std::process::Command;

use nd_tests::hosts::Hosts;
use serde::Serialize;

use super::case::Case;
use super::error::Error;
use super::launch::Launcher;
use super::peers::Peer;
use super::process::{Failure, Runner};
use super::rows::{self, Rows};
use super::settings::settings;
use super::sizes::Sizes;
use super::statistics::{Summary, median};
use crate::limits::{self, Limits};

/// A peer that has failed so often in a case is not asked again.
const PATIENCE: usize = 2;
/// A peer is not asked again for a size at which it took so many times as long as ours in its only pair,
const HOPELESS: f64 = 20.0;
/// or so many times as long in each of two or more: one slow moment of the machine does not leave it out.
const SLOW: f64 = 5.0;

/// What was measured of a case.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// Which case.
    pub case: Case,
    /// The sizes that were asked for.
    pub sizes: Vec<u64>,
    /// Of ours out of place, by size, µs: all that were measured.
    pub ours: BTreeMap<u64, Vec<f64>>,
    /// What the machine allowed right after a run of ours, if the case has a target that needs it.
    pub bounded: Vec<Bounded>,
    /// The peers, in the order of the command line.
    pub against: Vec<Against>,
    /// Wrong elements of ours.
    pub wrong: u64,
    /// Why ours failed, each time.
    pub failures: Vec<String>,
}

/// A run of ours, and the machine at that moment: cores may be near each other now and far a minute later.
#[derive(Debug, Serialize)]
pub struct Bounded {
    /// Out of place, by size, µs.
    pub ours: BTreeMap<u64, f64>,
    /// Measured right after it.
    pub limits: Limits,
}

/// A peer in a case.
#[derive(Debug, Serialize)]
pub struct Against {
    /// Who.
    pub peer: Peer,
    /// What it says it is.
    pub library: Option<String>,
    /// How it was told what to do.
    pub settings: String,
    /// Times (ours, its) of each pair by size, µs.
    pub pairs: BTreeMap<u64, Vec<(f64, f64)>>,
    /// Wrong elements.
    pub wrong: u64,
    /// Why it failed, each time.
    pub failures: Vec<String>,
    /// It failed too often, or would have again.
    pub given_up: bool,
}

impl Measured {
    /// Median of ours out of place, µs.
    pub fn ours(&self, size: u64) -> Option<f64> {
        median(self.ours.get(&size)?.iter().copied())
    }
}

impl Against {
    /// Of a size.
    pub fn summary(&self, size: u64) -> Option<Summary> {
        Summary::of(self.pairs.get(&size)?)
    }

    /// Whether it was so slow at a size that it is not asked again. Ours never is: what it differs from itself is what
    /// one wants to know.
    pub fn dropped(&self, size: u64) -> bool {
        let Some(pairs) = self.pairs.get(&size).filter(|_| self.peer != Peer::Ours) else { return false };
        let slower = |times: f64| pairs.iter().all(|(ours, theirs)| *theirs > times * ours);
        match pairs.len() {
            0 => false,
            1 => slower(HOPELESS),
            _ => slower(SLOW),
        }
    }

    /// Those of `sizes` at which it is still asked.
    fn asked(&self, sizes: &Sizes) -> Sizes {
        let asked = |size: &&u64| !self.given_up && !self.dropped(**size);
        Sizes(sizes.0.iter().filter(asked).copied().collect())
    }
}

/// One of a group's runs: the rows, whatever came of it.
struct Run {
    rows: Rows,
    library: Option<String>,
}

/// Measures a case.
pub struct Rounds<'a> {
    /// Starts processes,
    pub launcher: &'a Launcher,
    /// and runs them.
    pub runner: &'a Runner,
    /// With `net`.
    pub hosts: Option<&'a Hosts>,
    /// What is measured.
    pub case: Case,
    /// At these sizes.
    pub sizes: &'a Sizes,
    /// Whether the limits of an all-reduce are measured after each run of ours.
    pub bounded: bool,
}

impl Rounds<'_> {
    /// Runs `pairs` rounds with `peers`, or until somebody wants it to end.
    pub fn run(&self, peers: &[Peer], pairs: u32) -> Result<Measured, Error> {
        let crowded = self.launcher.crowded(&self.case);
        let against = |&peer: &Peer| Against {
            peer,
            library: None,
            settings: settings(peer, self.case.transport, crowded).line(),
            pairs: BTreeMap::new(),
            wrong: 0,
            failures: Vec::new(),
            given_up: false,
        };
        let mut measured = Measured {
            case: self.case,
            sizes: self.sizes.0.clone(),
            ours: BTreeMap::new(),
            bounded: Vec::new(),
            against: peers.iter().map(against).collect(),
            wrong: 0,
            failures: Vec::new(),
        };
        for round in 0..pairs {
            eprintln!("# {}: round {} of {pairs}", self.case, round + 1);
            let asked = |index: &usize| !measured.against[*index].asked(self.sizes).0.is_empty();
            let asked: Vec<usize> = (0..peers.len()).filter(asked).collect();
            for group in groups(&asked, round % 2 == 1) {
                self.group(&mut measured, group)?;
                if self.runner.stopped() {
                    return Ok(measured);
                }
            }
        }
        Ok(measured)
    }

    /// Runs ours and the one or two peers of a group.
    fn group(&self, measured: &mut Measured, group: Vec<Option<usize>>) -> Result<(), Error> {
        let mut ours = None;
        let mut theirs = Vec::new();
        for who in group {
            let Some(index) = who else {
                let (run, failure) = self.once(Peer::Ours, self.sizes)?;
                measured.wrong += run.rows.values().map(|r| r.wrong).sum::<u64>();
                for (size, row) in &run.rows {
                    measured.ours.entry(*size).or_default().push(row.apart);
                }
                measured.failures.extend(failure.map(|f| told("ours", f)));
                if self.bounded {
                    let ours = run.rows.iter().map(|(size, row)| (*size, row.apart)).collect();
                    let limits = limits::of_all_reduce(&self.sizes.0, self.case.ranks);
                    measured.bounded.push(Bounded { ours, limits });
                }
                ours = Some(run);
                continue;
            };
            let against = &mut measured.against[index];
            let (run, failure) = self.once(against.peer, &against.asked(self.sizes))?;
            if let Some(failure) = failure {
                let late = failure.late;
                against.failures.push(told(against.peer.name(), failure));
                against.given_up = late || against.failures.len() >= PATIENCE;
            }
            against.wrong += run.rows.values().map(|r| r.wrong).sum::<u64>();
            theirs.push((index, run));
        }
        let Some(ours) = ours else { return Ok(()) };
        for (index, run) in theirs {
            let against = &mut measured.against[index];
            against.library = run.library.or(against.library.take());
            let in_place = against.peer.in_place(self.case.collective);
            for (size, row) in run.rows {
                let own =
                    ours.rows.get(&size).and_then(|r| if in_place { r.in_place } else { Some(r.apart) });
                if let Some(own) = own {
                    against.pairs.entry(size).or_default().push((own, row.apart));
                }
            }
        }
        Ok(())
    }

    /// One run.
    fn once(&self, peer: Peer, sizes: &Sizes) -> Result<(Run, Option<Failure>), Error> {
        let runs: Vec<Vec<Command>> = self.launcher.commands(peer, &self.case, sizes, self.hosts)?;
        let spared = self.hosts.map(Hosts::holders).unwrap_or_default();
        let mut all = Run { rows: Rows::new(), library: None };
        for commands in runs {
            let outcome = self.runner.run(commands, &spared);
            all.library = rows::library(&outcome.stdout).or(all.library);
            all.rows.extend(rows::parse(&outcome.stdout));
            let interrupted = self.runner.stopped();
            if let Some(failure) = outcome.failure {
                return Ok((all, Some(failure).filter(|_| !interrupted)));
            }
        }
        let none = all.rows.is_empty().then(|| Failure { why: "it printed no table".into(), late: false });
        Ok((all, none))
    }
}

/// Says so at once, and keeps it for the report.
fn told(name: &str, failure: Failure) -> String {
    eprintln!("# {name} failed: {}", failure.why);
    failure.why
}

/// Peers in groups of two with ours, which is None, in between; in pairs with ours for an odd one.
fn groups(peers: &[usize], reversed: bool) -> Vec<Vec<Option<usize>>> {
    let group = |pair: &[usize]| match *pair {
        [a, b] => vec![Some(a), None, Some(b)],
        _ => pair.iter().map(|a| Some(*a)).chain([None]).collect(),
    };
    let mut groups: Vec<_> = peers.chunks(2).map(group).collect();
    if reversed {
        groups.reverse();
        groups.iter_mut().for_each(|g| g.reverse());
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_is_beside_ours_before_and_after() {
        assert_eq!(groups(&[0, 1, 2], false), [vec![Some(0), None, Some(1)], vec![Some(2), None]]);
        assert_eq!(groups(&[0, 1, 2], true), [vec![None, Some(2)], vec![Some(1), None, Some(0)]]);
        assert_eq!(groups(&[5], true), [[None, Some(5)]]);
        assert!(groups(&[], false).is_empty());
    }

    #[test]
    fn who_is_far_slower_is_not_asked_again() {
        let mut against = Against {
            peer: Peer::Gloo,
            library: None,
            settings: String::new(),
            pairs: [
                (4, vec![(1.0, 30.0)]),
                (8, vec![(1.0, 10.0)]),
                (16, vec![(1.0, 10.0), (2.0, 11.0)]),
                (32, vec![(1.0, 10.0), (2.0, 9.0)]),
            ]
            .into(),
            wrong: 0,
            failures: vec![],
            given_up: false,
        };
        let sizes: Sizes = "4,8,16,32,64".parse().unwrap();
        assert_eq!(against.asked(&sizes).0, [8, 32, 64]);
        against.given_up = true;
        assert!(against.asked(&sizes).0.is_empty());
    }
}
