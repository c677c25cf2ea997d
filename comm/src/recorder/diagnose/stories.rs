//! What the errors of ranks whose time was up tell. Whoever hears of another's error returns the same, so ranks that tell
//! different stories have not heard each other.

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

/// Connections that could not be made, and those that were lost in both directions between ranks that both failed.
pub(super) fn broken(group: &Group<'_>) -> Vec<Broken> {
    let mut broken = Vec::new();
    let mut lost = Vec::new();
    for (&from, dump) in &group.dumps {
        let Some(failure) = dump.failure.as_ref() else { continue };
        let Some(to) = failure.peer.filter(|p| *p < group.world_size && *p != from) else { continue };
        match failure.kind {
            Kind::Other => broken.push(Broken { from, to }),
            Kind::Lost if group.has_failed(to) => lost.push(Broken { from, to }),
            _ => {}
        }
    }
    let same_host =
        |a: usize, b: usize| a == b || matches!((group.host(a), group.host(b)), (Some(a), Some(b)) if a == b);
    let back = |b: &Broken, all: &[Broken]| {
        !same_host(b.from, b.to) && all.iter().any(|o| same_host(o.from, b.to) && same_host(o.to, b.from))
    };
    let known = broken.len();
    broken.append(&mut lost);
    let mutual: Vec<bool> = broken.iter().enumerate().map(|(i, b)| i < known || back(b, &broken)).collect();
    let mut mutual = mutual.into_iter();
    broken.retain(|_| mutual.next().unwrap_or(false));
    broken
}
