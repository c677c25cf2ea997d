//! What the errors of ranks whose time was up tell. Whoever hears of another's error returns the same, so ranks that tell
//! different stories have not heard each other.

use std::collections::BTreeSet;

use super::super::file::Kind;
use super::super::standstill::{Is, Missing, Standstill};
use super::group::Group;

/// A standstill, and whose errors tell it.
pub(super) struct Story<'d> {
    pub standstill: &'d Standstill,
    pub tellers: Vec<usize>,
}

/// Those of these files: the earliest call first, then what most ranks tell.
pub(super) fn stories<'d>(group: &Group<'d>) -> Vec<Story<'d>> {
    let mut stories: Vec<Story<'d>> = Vec::new();
    for (&rank, &dump) in &group.dumps {
        let Some(standstill) = dump.failure.as_ref().and_then(|f| f.standstill.as_ref()) else { continue };
        match stories.iter_mut().find(|s| s.standstill == standstill) {
            Some(story) => story.tellers.push(rank),
            None => stories.push(Story { standstill, tellers: vec![rank] }),
        }
    }
    stories.sort_by_key(|s| (s.standstill.call.call, std::cmp::Reverse(s.tellers.len())));
    stories
}

impl Story<'_> {
    /// What it says of a rank that it names as missing.
    pub fn of(&self, rank: usize) -> Option<&Missing> {
        self.standstill.missing.iter().find(|m| m.rank == rank)
    }

    /// Whether it says that the rank has entered the call.
    pub fn entered(&self, rank: usize) -> bool {
        self.standstill.entered.contains(&rank)
    }

    /// Whom nobody could say anything of but that they are missing; who says that it waits elsewhere is not among them.
    pub fn silent(&self, group: &Group<'_>) -> Vec<usize> {
        let known = |m: &&Missing| m.rank < group.world_size && m.is != Is::Elsewhere;
        // Who has ended after it had told of its failure is not to blame for that.
        let ended = |m: &&Missing| m.is == Is::Gone && group.has_failed(m.rank);
        self.standstill.missing.iter().filter(known).filter(|m| !ended(m)).map(|m| m.rank).collect()
    }
}

/// A rank that could not reach another, though the other's process may be well.
pub(super) struct Broken {
    pub from: usize,
    pub to: usize,
}

/// Connections that could not be made; and those that were lost, or over which nothing came, in both directions between
/// two hosts whose ranks lived on.
pub(super) fn broken(group: &Group<'_>) -> Vec<Broken> {
    let (mut broken, mut suspected) = (Vec::new(), Vec::new());
    for (&from, dump) in &group.dumps {
        let Some(failure) = dump.failure.as_ref() else { continue };
        let Some(to) = failure.peer.filter(|p| *p < group.world_size && *p != from) else { continue };
        match failure.kind {
            Kind::Other => broken.push(Broken { from, to }),
            Kind::Lost if group.has_failed(to) => suspected.push(Broken { from, to }),
            _ => {}
        }
    }
    for story in stories(group) {
        let unheard = |rank: &usize| story.of(*rank).is_some_and(|m| m.is == Is::Unheard);
        let lived_on = |rank: &usize| group.has_failed(*rank) && !story.tellers.contains(rank);
        let to = story.silent(group).into_iter().filter(unheard).filter(lived_on);
        suspected.extend(to.map(|to| Broken { from: story.tellers[0], to }));
    }
    let hosts = |b: &Broken| Some((group.host(b.from)?, group.host(b.to)?)).filter(|(from, to)| from != to);
    let ways: BTreeSet<(&str, &str)> = broken.iter().chain(&suspected).filter_map(hosts).collect();
    let mutual = |b: &Broken| hosts(b).is_some_and(|(from, to)| ways.contains(&(to, from)));
    broken.extend(suspected.into_iter().filter(mutual));
    broken
}
