//! The files of one communicator.

use std::collections::{BTreeMap, BTreeSet};

use super::super::file::{Call, Current, Dump, Kind};
use super::super::identity::Peer;
use super::{Diagnosis, Finding, Verdict};

/// So many ranks are named one by one.
pub(super) const LISTED: usize = 8;

/// The files of one communicator.
pub(super) struct Group<'d> {
    pub job: &'d str,
    pub communicator: &'d str,
    pub world_size: usize,
    /// By rank.
    pub dumps: BTreeMap<usize, &'d Dump>,
    /// Ranks that failed in another communicator of the job, by their files there.
    pub failed_elsewhere: BTreeSet<usize>,
    /// Of ranks that failed in another communicator through no fault of their own, the file that tells most of it.
    pub followed: BTreeMap<usize, &'d Dump>,
    peers: BTreeMap<usize, &'d Peer>,
}

impl<'d> Group<'d> {
    /// Of the communicator of this file, which is not yet in it.
    pub fn new(dump: &'d Dump) -> Group<'d> {
        Group {
            job: &dump.job,
            communicator: &dump.communicator,
            world_size: dump.world_size,
            dumps: BTreeMap::new(),
            failed_elsewhere: BTreeSet::new(),
            followed: BTreeMap::new(),
            peers: BTreeMap::new(),
        }
    }

    pub fn add(&mut self, dump: &'d Dump) {
        let weight = |d: &Dump| (d.failure.is_some(), d.written_ns);
        let known = self.dumps.entry(dump.rank).or_insert(dump);
        if weight(dump) > weight(known) {
            *known = dump;
        }
        for peer in dump.ranks.iter().filter(|p| p.rank < dump.world_size) {
            self.peers.entry(peer.rank).or_insert(peer);
        }
    }

    /// Notes which of its ranks failed in another communicator, by the files there of the job's ranks.
    pub fn note_elsewhere(&mut self, failed: &BTreeMap<(&str, usize), Vec<&'d Dump>>) {
        let known: BTreeSet<usize> = self.dumps.keys().chain(self.peers.keys()).copied().collect();
        for rank in known {
            let Some(files) =
                self.world_rank(rank).and_then(|world_rank| failed.get(&(self.job, world_rank)))
            else {
                continue;
            };
            let elsewhere = || files.iter().copied().filter(|dump| dump.communicator != self.communicator);
            if elsewhere().next().is_some() {
                self.failed_elsewhere.insert(rank);
            }
            // Whoever saw that a rank is lost knows more than who was told, and neither is to blame.
            let order = |dump: &&Dump| match dump.failure.as_ref().map(|failure| failure.kind) {
                Some(Kind::Lost) => 0,
                Some(Kind::Told) => 2,
                _ => 1,
            };
            let through_others = elsewhere().filter(|dump| !is_own(dump));
            if let Some(file) = through_others.min_by_key(order) {
                self.followed.insert(rank, file);
            }
        }
    }

    pub fn diagnosis(&self, findings: Vec<Finding>) -> Diagnosis {
        Diagnosis {
            job: self.job.to_owned(),
            communicator: self.communicator.to_owned(),
            world_size: self.world_size,
            ranks_with_files: self.dumps.keys().copied().collect(),
            findings,
        }
    }

    /// Files that tell of a call that is not done, with that call.
    pub fn unfinished(&self) -> impl Iterator<Item = (usize, &'d Dump, &'d Current)> {
        self.dumps.iter().filter_map(|(&rank, &dump)| Some((rank, dump, dump.current.as_ref()?)))
    }

    /// Its number in the job's first communicator.
    pub fn world_rank(&self, rank: usize) -> Option<usize> {
        self.dumps.get(&rank).map(|d| d.world_rank).or_else(|| self.peers.get(&rank).map(|p| p.world_rank))
    }

    /// Its host's name, if that is known. Hosts may have the same.
    pub fn host(&self, rank: usize) -> Option<&'d str> {
        let host = match (self.dumps.get(&rank), self.peers.get(&rank)) {
            (Some(dump), _) => &dump.host[..],
            (None, Some(peer)) => &peer.host[..],
            (None, None) => "",
        };
        (!host.is_empty()).then_some(host)
    }

    /// All ranks that are known to be on this host.
    pub fn on_host(&self, host: &str) -> Vec<usize> {
        let known: BTreeSet<usize> = self.dumps.keys().chain(self.peers.keys()).copied().collect();
        known.into_iter().filter(|&rank| self.host(rank) == Some(host)).collect()
    }

    /// Whether it left a file that tells of a failure.
    pub fn has_failed(&self, rank: usize) -> bool {
        self.dumps.get(&rank).is_some_and(|d| d.failure.is_some())
    }

    /// As people look for it: `rank 3 (node1, pid 4711)`.
    pub fn name(&self, rank: usize) -> String {
        let (host, pid) = match (self.dumps.get(&rank), self.peers.get(&rank)) {
            (Some(dump), _) => (&dump.host[..], dump.pid),
            (None, Some(peer)) => (&peer.host[..], peer.pid),
            (None, None) => ("", 0),
        };
        let mut about = Vec::new();
        about.extend(self.world_rank(rank).filter(|w| *w != rank).map(|w| format!("rank {w} of the world")));
        about.extend((!host.is_empty()).then(|| host.to_owned()));
        about.extend((pid > 0).then(|| format!("pid {pid}")));
        match about.is_empty() {
            true => format!("rank {rank}"),
            false => format!("rank {rank} ({})", about.join(", ")),
        }
    }

    /// Several of them, with hosts and processes.
    pub fn names(&self, ranks: &[usize]) -> String {
        let mut names: Vec<String> = ranks.iter().take(LISTED).map(|&r| self.name(r)).collect();
        if ranks.len() > LISTED {
            names.push(format!("{} more", ranks.len() - LISTED));
        }
        join(&names)
    }

    /// The last call of all ranks that someone has finished and nobody can finish without this rank.
    pub fn last_seen(&self, rank: usize) -> Option<&'d Call> {
        let calls = self.dumps.iter().filter(|(r, _)| **r != rank).flat_map(|(_, dump)| &dump.calls);
        calls.filter(|c| c.call > 0 && c.done_ns.is_some()).filter(|c| needs_all(c)).max_by_key(|c| c.call)
    }
}

/// Whether a file tells of a failure that is nobody's but its rank's.
pub(super) fn is_own(dump: &Dump) -> bool {
    let failure = dump.failure.as_ref().filter(|failure| failure.peer.is_none());
    failure.is_some_and(|failure| matches!(failure.kind, Kind::Other | Kind::Aborted))
}

/// Whether nobody can finish the call without all ranks.
pub(super) fn needs_all(call: &Call) -> bool {
    let name = call.collective.rsplit(' ').next().unwrap_or_default();
    let collective = name.trim_end_matches("_v");
    let everyone = ["all_reduce", "all_gather", "all_to_all", "reduce_scatter", "barrier"];
    everyone.contains(&collective) && (call.count > 0 || collective == "barrier")
}

/// A finding.
pub(super) fn finding(verdict: Verdict, culprits: Vec<usize>, call: u32, text: String) -> Finding {
    Finding { verdict, culprits, call, text }
}

/// `call 3, all_reduce(4 × float, sum)`, or `send(4 × float to rank 1)`.
pub(super) fn numbered(call: &Call) -> String {
    if call.call == 0 { call.to_string() } else { format!("call {}, {call}", call.call) }
}

/// `rank 1`, `ranks 0 and 2`, `ranks 0 to 3 and 7`.
pub(super) fn ranks(ranks: &[usize]) -> String {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in &sorted {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let more = runs.len().saturating_sub(LISTED);
    let mut parts = Vec::new();
    for (first, last) in runs.into_iter().take(LISTED) {
        match last - first {
            0 => parts.push(first.to_string()),
            1 => parts.extend([first.to_string(), last.to_string()]),
            _ => parts.push(format!("{first} to {last}")),
        }
    }
    if more > 0 {
        parts.push("others".into());
    }
    format!("{} {}", if sorted.len() == 1 { "rank" } else { "ranks" }, join(&parts))
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn join(parts: &[String]) -> String {
    match parts {
        [] => "nobody".into(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The verb for so many.
pub(super) fn verb<'w>(count: usize, one: &'w str, many: &'w str) -> &'w str {
    if count == 1 { one } else { many }
}

/// With a capital at the front.
pub(super) fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// In the unit that reads best.
pub(super) fn seconds(ns: u64) -> String {
    match ns as f64 / 1e9 {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 0.1 => format!("{s:.1} s"),
        s if s >= 1e-4 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

/// A moment of a file as its host's clock had it: `2026-11-30 04:52:13 UTC`.
pub(super) fn moment(dump: &Dump, ns: u64) -> String {
    let unix = dump.made_unix_ns.saturating_add(ns) / 1_000_000_000;
    let (days, second) = (unix / 86_400, unix % 86_400);
    // Days since 1970 to a date: Howard Hinnant, "chrono-compatible low-level date algorithms", civil_from_days.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}
