//! What is known when the time for a call is up: where each rank is, and what follows from it. Pure.
//!
//! Whoever gives up tells all others where it is; one of them makes a [`Standstill`] of what was told, and all
//! return that one.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::called::Called;
use super::layout::{REPORT, WHEREABOUTS};
use super::stamp::{is_later, latest};
use crate::error::seconds;
use crate::schedule::Collective;

/// Ranks of which a rank says more than that something came of them.
pub(super) const AWAITED: usize = 8;
/// Ranks that are named with what they did.
const MISSING: usize = 16;
/// Ranks of which it is said whether they have entered the call.
const LISTED: usize = 1024;
/// Ranks named one by one; of more it is said how many they are.
const NAMED: usize = 16;

/// Where one rank is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Whereabouts {
    /// How long its call has lasted, if its time is up.
    pub after: Duration,
    /// The number of the last collective call that it has entered.
    pub entered: u32,
    /// The first of its calls that is not done.
    pub call: Called,
    /// The last call that it has finished.
    pub finished: Option<Called>,
    /// For whom it waits; the first [`AWAITED`].
    pub awaited: Vec<Seen>,
    /// From whom something has come that belongs to its call or to a later one; of the first [`LISTED`] ranks.
    pub heard: Vec<usize>,
}

/// What one rank knows of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub rank: usize,
    /// The latest call of which a message has come from it.
    pub heard: Option<Called>,
    /// The last call that it has finished, where that can be seen.
    pub finished: Option<Called>,
}

/// Where the ranks were when the time for a call was up: the same on every rank that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standstill {
    /// The first call that was not done on all ranks.
    pub call: Called,
    /// The rank whose call it is; of several the lowest.
    pub rank: usize,
    /// For how long it was waited for.
    pub after: Duration,
    /// Who has entered it; of the first 1024 ranks.
    pub entered: Vec<usize>,
    /// For whom it was waited, and what is known of them; the first 16.
    pub missing: Vec<Missing>,
    /// How many more are missing.
    pub more_missing: usize,
    /// Ranks as people look for them, where this rank knows more of them than their numbers.
    pub(crate) names: BTreeMap<usize, String>,
}

/// A rank without which a call could not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Which.
    pub rank: usize,
    /// Where it is instead.
    pub is: Is,
    /// The last call that it has finished or, unless `finished`, the latest of which a message came from it.
    pub last: Option<Called>,
    /// Whether `last` is known to be the last call that it has finished.
    pub finished: bool,
}

/// Where a missing rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    /// It has not entered the call: what it sends would come, and nothing has.
    Absent,
    /// Nothing has come from it, and what it sends may not come: it may have entered the call.
    Unheard,
    /// It has entered the call, and does not answer since.
    Silent,
    /// Its process or its connection has ended without a word, whether or not it has entered the call.
    Gone,
    /// It is in this other call.
    In(Called),
}

/// What is seen of a rank that says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is no more.
    Gone,
    /// The network to it does not work.
    Unheard,
    /// Nothing.
    Unknown,
}

impl Whereabouts {
    /// As bytes.
    pub fn encode(&self) -> [u8; WHEREABOUTS] {
        let mut bytes = [0; WHEREABOUTS];
        let mut to = Writer(&mut bytes);
        to.word(self.after.as_nanos() as u64);
        to.word(u64::from(self.entered));
        to.called(Some(self.call));
        to.called(self.finished);
        for seen in self.awaited.iter().take(AWAITED) {
            to.word(seen.rank as u64 + 1);
            to.called(seen.heard);
            to.called(seen.finished);
        }
        for _ in self.awaited.len()..AWAITED {
            to.skip(1 + 2 * Called::WORDS);
        }
        to.ranks(&self.heard);
        bytes
    }

    /// From bytes that a peer wrote, whatever they are.
    pub fn decode(bytes: &[u8; WHEREABOUTS]) -> Whereabouts {
        let mut from = Reader(bytes);
        Whereabouts {
            after: Duration::from_nanos(from.word()),
            entered: from.word() as u32,
            call: from.called().unwrap_or_default(),
            finished: from.called(),
            awaited: (0..AWAITED)
                .filter_map(|_| {
                    let (rank, heard, finished) = (from.word(), from.called(), from.called());
                    Some(Seen { rank: usize::try_from(rank.checked_sub(1)?).ok()?, heard, finished })
                })
                .collect(),
            heard: from.ranks(),
        }
    }
}

impl Standstill {
    /// As bytes: all but the names.
    pub(crate) fn encode(&self) -> [u8; REPORT - 8] {
        let mut bytes = [0; REPORT - 8];
        let mut to = Writer(&mut bytes);
        to.word(self.after.as_nanos() as u64);
        to.word(self.rank as u64);
        to.called(Some(self.call));
        let unnamed = self.missing.len().saturating_sub(MISSING);
        to.word((self.more_missing + unnamed) as u64);
        for missing in self.missing.iter().take(MISSING) {
            to.word(missing.rank as u64 + 1);
            let (kind, call) = match missing.is {
                Is::Absent => (0, None),
                Is::Silent => (1, None),
                Is::In(call) => (2, Some(call)),
                Is::Gone => (3, None),
                Is::Unheard => (4, None),
            };
            to.word(kind | u64::from(missing.finished) << 8);
            to.called(call);
            to.called(missing.last);
        }
        for _ in self.missing.len()..MISSING {
            to.skip(2 + 2 * Called::WORDS);
        }
        to.ranks(&self.entered);
        bytes
    }

    /// From bytes that a peer wrote, whatever they are.
    pub(crate) fn decode(bytes: &[u8; REPORT - 8]) -> Standstill {
        let mut from = Reader(bytes);
        Standstill {
            after: Duration::from_nanos(from.word()),
            rank: from.word() as usize,
            call: from.called().unwrap_or_default(),
            more_missing: from.word() as usize,
            missing: (0..MISSING)
                .filter_map(|_| {
                    let (rank, kind) = (from.word(), from.word());
                    let (call, last) = (from.called(), from.called());
                    let is = match (kind as u8, call) {
                        (1, _) => Is::Silent,
                        (2, Some(call)) => Is::In(call),
                        (3, _) => Is::Gone,
                        (4, _) => Is::Unheard,
                        _ => Is::Absent,
                    };
                    let rank = usize::try_from(rank.checked_sub(1)?).ok()?;
                    Some(Missing { rank, is, last, finished: kind >> 8 & 1 != 0 })
                })
                .collect(),
            entered: from.ranks(),
            names: BTreeMap::new(),
        }
    }

    /// What follows from what these ranks say, of `world_size`; at least one, in the order of their numbers; and from what is
    /// seen of the others.
    pub(crate) fn of(
        world_size: usize,
        said: &BTreeMap<usize, Whereabouts>,
        silent: &BTreeMap<usize, Fate>,
    ) -> Standstill {
        let collective = |w: &Whereabouts| (!w.call.is_single()).then_some(w.call.stamp.sequence);
        let calls = said.iter().filter_map(|(rank, w)| Some((collective(w)?, *rank)));
        let first = calls.reduce(|first, next| if is_later(first.0, next.0) { next } else { first });
        let rank = first.map_or_else(|| said.keys().next().copied().unwrap_or_default(), |(_, rank)| rank);
        let own = said.get(&rank).cloned().unwrap_or_default();
        let call = own.call;
        let has_entered = |r: usize| match (said.get(&r), first) {
            (Some(w), Some((sequence, _))) => !is_later(sequence, w.entered),
            (Some(_), None) => r == rank,
            // Whoever has sent something of a call has entered it.
            (None, Some((sequence, _))) => said.values().any(|w| {
                let later = |seen: &Seen| {
                    seen.rank == r
                        && [seen.heard, seen.finished]
                            .iter()
                            .flatten()
                            .any(|c| !is_later(sequence, c.stamp.sequence))
                };
                w.awaited.iter().any(later)
                    || (collective(w).is_some_and(|s| !is_later(sequence, s)) && w.heard.contains(&r))
            }),
            (None, None) => own.heard.contains(&r),
        };
        let awaited = |r: usize| said.values().any(|w| w.awaited.iter().any(|seen| seen.rank == r));
        let is = |r: usize| match said.get(&r) {
            Some(w) if first.is_some() => (!has_entered(r)).then_some(Is::In(w.call)),
            Some(w) => (r != rank && awaited(r)).then_some(Is::In(w.call)),
            None if silent.get(&r) == Some(&Fate::Gone) => Some(Is::Gone),
            None if !has_entered(r) => (needs_all(&call) || awaited(r)).then_some(match silent.get(&r) {
                Some(Fate::Unheard) => Is::Unheard,
                _ => Is::Absent,
            }),
            // Who has done its part may be busy with something else.
            None => awaited(r).then_some(Is::Silent),
        };
        let missing = |r: usize| {
            let (last, finished) = last(said, r);
            Some(Missing { rank: r, is: is(r)?, last, finished })
        };
        let mut all = (0..world_size).filter_map(missing);
        let after = said.values().map(|w| w.after).filter(|after| !after.is_zero()).min();
        Standstill {
            call,
            rank,
            after: after.unwrap_or(own.after),
            entered: (0..world_size.min(LISTED)).filter(|&r| has_entered(r)).collect(),
            missing: all.by_ref().take(MISSING).collect(),
            more_missing: all.count(),
            names: BTreeMap::new(),
        }
    }

    /// With the names of the ranks that it is about.
    pub(crate) fn named(mut self, who: impl Fn(usize) -> String) -> Standstill {
        let ranks = self.entered.iter().take(NAMED).copied().chain(self.missing.iter().map(|m| m.rank));
        self.names = ranks.map(|rank| (rank, who(rank))).collect();
        self
    }

    /// Checks that ranks are below `world_size`: the bytes may come from anyone who is a member.
    pub(crate) fn fits(&self, world_size: usize) -> bool {
        let ranks = self.entered.iter().chain(self.missing.iter().map(|m| &m.rank)).chain([&self.rank]);
        ranks.into_iter().all(|rank| *rank < world_size)
    }

    /// A rank as people look for it: with host and process, where this rank knows them.
    pub fn name(&self, rank: usize) -> String {
        self.names.get(&rank).cloned().unwrap_or_else(|| format!("rank {rank}"))
    }
}

/// Whether nobody can finish the call before all have sent something: whoever was not heard has not entered it.
fn needs_all(call: &Called) -> bool {
    call.stamp.kind().is_ok_and(|c| c != Collective::SendRecv && !c.has_root())
}

/// The last call of a rank, and whether it is the last that it has finished.
fn last(said: &BTreeMap<usize, Whereabouts>, rank: usize) -> (Option<Called>, bool) {
    if let Some(w) = said.get(&rank) {
        return (w.finished, true);
    }
    let seen = || said.values().flat_map(|w| &w.awaited).filter(|seen| seen.rank == rank);
    let number = |call: &Called| call.stamp.sequence;
    let finished = latest(seen().filter_map(|s| s.finished), number);
    match finished {
        Some(_) => (finished, true),
        None => (latest(seen().filter_map(|s| s.heard), number), false),
    }
}

impl fmt::Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} did not finish within {}; ", self.call, seconds(self.after))?;
        // Of those that have fallen silent since, more is said below.
        let silent =
            |rank: &usize| self.missing.iter().any(|m| m.rank == *rank && matches!(m.is, Is::Silent));
        let entered: Vec<usize> = self.entered.iter().copied().filter(|rank| !silent(rank)).collect();
        let named: Vec<String> = entered.iter().take(NAMED).map(|&rank| self.name(rank)).collect();
        let more = match entered.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let have = if entered.len() == 1 { "has" } else { "have" };
        write!(f, "{}{more} {have} entered it", named.join(", "))?;
        for missing in &self.missing {
            let name = self.name(missing.rank);
            match missing.is {
                Is::Absent => write!(f, "; {name} has not")?,
                Is::Unheard => {
                    write!(f, "; {name} was not heard, nor does its host acknowledge what it is sent")?
                }
                Is::Silent => write!(f, "; {name} has entered it and does not answer since")?,
                Is::Gone => write!(f, "; {name} is gone without a word")?,
                Is::In(call) => write!(f, "; {name} is in {call} instead")?,
            }
            match (missing.last, missing.finished) {
                (Some(call), true) => write!(f, ": the last call that it finished is {call}")?,
                (Some(call), false) => write!(f, ": the last call in which it was heard is {call}")?,
                (None, true) => f.write_str(": it has finished no call")?,
                (None, false) => f.write_str(": it was not heard in any call")?,
            }
        }
        match (self.more_missing, self.missing.is_empty()) {
            (0, true) => f.write_str("; nobody is missing: it needs longer, or never ends"),
            (0, false) => Ok(()),
            (more, _) => write!(f, "; {more} more are missing"),
        }
    }
}

struct Writer<'b>(&'b mut [u8]);

impl Writer<'_> {
    fn word(&mut self, word: u64) {
        let (to, rest) = std::mem::take(&mut self.0).split_at_mut(8);
        to.copy_from_slice(&word.to_le_bytes());
        self.0 = rest;
    }

    fn called(&mut self, call: Option<Called>) {
        call.map_or([0; Called::WORDS], |c| c.words()).into_iter().for_each(|word| self.word(word));
    }

    fn skip(&mut self, words: usize) {
        (0..words).for_each(|_| self.word(0));
    }

    /// A bit for each of the first ranks.
    fn ranks(&mut self, ranks: &[usize]) {
        let mut bits = [0u64; LISTED / 64];
        for rank in ranks.iter().filter(|rank| **rank < LISTED) {
            bits[rank / 64] |= 1 << (rank % 64);
        }
        bits.into_iter().for_each(|word| self.word(word));
    }
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn word(&mut self) -> u64 {
        let (word, rest) = self.0.split_at(8);
        self.0 = rest;
        u64::from_le_bytes(std::array::from_fn(|i| word[i]))
    }

    fn called(&mut self) -> Option<Called> {
        Called::from_words(std::array::from_fn(|_| self.word()))
    }

    fn ranks(&mut self) -> Vec<usize> {
        let bits: [u64; LISTED / 64] = std::array::from_fn(|_| self.word());
        (0..LISTED).filter(|rank| bits[rank / 64] >> (rank % 64) & 1 != 0).collect()
    }
}
