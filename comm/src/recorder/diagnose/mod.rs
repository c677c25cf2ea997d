//! Who is to blame, by the files of many ranks. No IO, and nothing is believed of a file but what it says of itself: any
//! subset of any files gives an answer.
//!
//! | file | what |
//! |---|---|
//! | `group` | the files of one communicator, and who they are about |
//! | `calls` | ranks that called different things |
//! | `gone` | ranks that are gone, left, or failed by themselves, and communicators that ended because others did |
//! | `parted` | ranks that are alive and do not hear each other |
//! | `waits` | ranks for which others wait |
//! | `missing` | of these, by what the errors of others tell |
//! | `stories` | what the errors of ranks whose time was up say of that |
//!
//! The errors know more than the calls: whoever gave up asked all others where they are. So what they say of a rank is
//! never contradicted, and the calls add to it.
//!
//! The clocks of hosts differ. So moments are compared only within one file; between files, numbers of calls are, and how
//! long a call has lasted.

mod calls;
#[cfg(test)]
mod elsewhere_tests;
mod gone;
mod group;
mod missing;
mod parted;
mod stories;
#[cfg(test)]
mod stories_tests;
#[cfg(test)]
mod tests;
mod waits;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::file::Dump;
use group::Group;

/// What the files of one communicator say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The job.
    pub job: String,
    /// The communicator.
    pub communicator: String,
    /// How many ranks it has.
    pub world_size: usize,
    /// Whose files were there.
    pub ranks_with_files: Vec<usize>,
    /// What was found; never empty, the cause first.
    pub findings: Vec<Finding>,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind of thing.
    pub verdict: Verdict,
    /// The ranks that are to blame, by their numbers in this communicator.
    pub culprits: Vec<usize>,
    /// The number of the call in which it showed; 0: a send or receive, or none.
    pub call: u32,
    /// All of it, in sentences.
    pub text: String,
}

/// Kinds of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Ranks called different things.
    Mismatch,
    /// Two ranks gave different counts.
    Length,
    /// A rank's process died or was cut off.
    Lost,
    /// A rank dropped its communicator before the others were done.
    Left,
    /// Something went wrong on the rank itself.
    Failed,
    /// A rank ended it because of a failure in another communicator, where it is told who is to blame; those of them that are
    /// here as well are the culprits.
    Ended,
    /// A rank has not entered the call in which others wait for it.
    NotEntered,
    /// A rank entered a call so late that others had given up or nearly had.
    Late,
    /// A rank left no file, and others wait for it.
    Silent,
    /// A rank was stopped, or its host was: it did not answer for longer than others wait.
    Unresponsive,
    /// Ranks that are alive do not hear each other, or a host is not heard at all.
    Parted,
    /// All are in the same call, and nothing tells why it does not end.
    Stuck,
    /// Nothing is wrong as far as the files go.
    Fine,
}

/// What these files say, for each job and communicator: first where something failed, in the order of the moments by the
/// hosts' clocks, from which nothing else follows. Of several files of one rank the one that tells of a failure
/// counts, then the later one.
pub fn diagnose(dumps: &[Dump]) -> Vec<Diagnosis> {
    let mut groups: BTreeMap<(&str, &str, usize), Group<'_>> = BTreeMap::new();
    for dump in dumps {
        let key = (&dump.job[..], &dump.communicator[..], dump.world_size);
        groups.entry(key).or_insert_with(|| Group::new(dump)).add(dump);
    }
    let mut failed: BTreeMap<(&str, usize), Vec<&Dump>> = BTreeMap::new();
    for dump in dumps.iter().filter(|dump| dump.failure.is_some()) {
        failed.entry((&dump.job, dump.world_rank)).or_default().push(dump);
    }
    let mut groups: Vec<Group<'_>> = groups.into_values().collect();
    groups.iter_mut().for_each(|group| group.note_elsewhere(&failed));
    let found: Vec<Vec<Finding>> = groups.iter().map(findings).collect();
    let mut diagnoses: Vec<Diagnosis> =
        groups.iter().zip(&found).map(|(g, f)| g.diagnosis(f.clone())).collect();
    for (g, diagnosis) in diagnoses.iter_mut().enumerate() {
        for finding in &mut diagnosis.findings {
            if finding.verdict == Verdict::Ended {
                finding.culprits = blamed_there(g, &groups, &found);
            }
            let waited = [Verdict::NotEntered, Verdict::Late, Verdict::Silent, Verdict::Unresponsive]
                .contains(&finding.verdict);
            if waited {
                let (text, held_up) = elsewhere(g, finding, &groups, &found);
                finding.text += &text;
                if !finding.culprits.iter().all(|c| held_up.contains(c)) {
                    finding.culprits.retain(|c| !held_up.contains(c));
                }
            }
        }
    }
    let failed_at = |group: &Group<'_>| {
        let failed = group.dumps.values().filter(|dump| dump.failure.is_some());
        failed.map(|dump| u128::from(dump.made_unix_ns) + u128::from(dump.written_ns)).min()
    };
    let only_follows = |diagnosis: &Diagnosis| {
        diagnosis.findings.iter().all(|finding| matches!(finding.verdict, Verdict::Ended | Verdict::Fine))
    };
    let mut order: Vec<_> = diagnoses
        .into_iter()
        .zip(&groups)
        .map(|(diagnosis, group)| (only_follows(&diagnosis), failed_at(group), diagnosis))
        .collect();
    order.sort_by_key(|(follows, at, _)| (*follows, at.is_none(), *at));
    order.into_iter().map(|(.., diagnosis)| diagnosis).collect()
}

fn findings(group: &Group<'_>) -> Vec<Finding> {
    let mut found = calls::mismatch(group);
    if found.is_empty() {
        found = calls::lengths(group);
    }
    if found.is_empty() {
        found = gone::lost(group);
    }
    if found.is_empty() {
        found = parted::parted(group);
    }
    if found.is_empty() {
        found = gone::left(group);
    }
    if found.is_empty() {
        found = gone::failed(group);
    }
    if found.is_empty() {
        found = gone::followed(group);
    }
    if found.is_empty() {
        found = waits::waits(group);
    }
    if found.is_empty() {
        found = gone::told(group);
    }
    if found.is_empty() {
        found.push(gone::fine(group));
    }
    found
}

/// The ranks of a communicator that are to blame in the one whose failure ended it, there or where that one's failure came from.
fn blamed_there(g: usize, groups: &[Group<'_>], found: &[Vec<Finding>]) -> Vec<usize> {
    let mut at = g;
    for _ in 0..groups.len() {
        let Some((_, elsewhere)) = gone::ended(&groups[at]) else { break };
        let is_there = |other: &Group<'_>| {
            (other.job, other.communicator, other.world_size)
                == (&elsewhere.job[..], &elsewhere.communicator[..], elsewhere.world_size)
        };
        let Some(there) = groups.iter().position(is_there) else { break };
        at = there;
        if found[at].iter().all(|finding| finding.verdict != Verdict::Ended) {
            let culprits = found[at].iter().take(1).flat_map(|finding| &finding.culprits);
            let blamed: BTreeSet<usize> = culprits.filter_map(|&rank| groups[at].world_rank(rank)).collect();
            let here = |rank: &usize| {
                groups[g].world_rank(*rank).is_some_and(|world_rank| blamed.contains(&world_rank))
            };
            return (0..groups[g].world_size).filter(here).collect();
        }
    }
    Vec::new()
}

/// Where the culprits are meanwhile, in calls of other communicators of the job, and which of them that holds up.
fn elsewhere(
    g: usize,
    finding: &Finding,
    groups: &[Group<'_>],
    found: &[Vec<Finding>],
) -> (String, Vec<usize>) {
    let group = &groups[g];
    let (mut text, mut held_up) = (String::new(), Vec::new());
    for &culprit in finding.culprits.iter().take(group::LISTED) {
        let Some(process) = group.world_rank(culprit) else { continue };
        for (o, other) in groups.iter().enumerate().filter(|(o, other)| *o != g && other.job == group.job) {
            let Some((dump, current)) = other.dumps.values().find_map(|d| {
                let current = d.current.as_ref().filter(|c| !c.awaited.is_empty())?;
                (d.world_rank == process).then_some((d, current))
            }) else {
                continue;
            };
            text += &format!(
                " Meanwhile rank {culprit} is held up in {} of communicator {}, where it is rank {} and waits for {}.",
                group::numbered(&current.call),
                other.communicator,
                dump.rank,
                other.names(&current.awaited),
            );
            held_up.push(culprit);
            // Whoever is to blame there waits here?
            let blamed = found[o].iter().flat_map(|f| &f.culprits).filter_map(|&r| other.world_rank(r));
            let waits_here = |world_rank: usize| {
                group.dumps.values().any(|d| d.world_rank == world_rank && d.current.is_some())
            };
            if blamed.into_iter().any(waits_here) {
                text += " That one waits here: these ranks use the two communicators in different orders.";
            }
        }
    }
    (text, held_up)
}
