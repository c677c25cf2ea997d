//! Ranks that are gone, left, or failed by themselves.

use std::collections::BTreeMap;

use super::super::file::{Dump, Kind};
use super::group::{Group, finding, is_own, numbered, ranks, sentence, verb};
use super::{Finding, Verdict};

/// Failures of a kind that name another rank, by that rank: who names it.
fn blamed<'d>(group: &Group<'d>, kind: Kind) -> BTreeMap<usize, Vec<(usize, &'d Dump)>> {
    let mut blamed: BTreeMap<usize, Vec<(usize, &Dump)>> = BTreeMap::new();
    for (&rank, &dump) in &group.dumps {
        let peer = dump.failure.as_ref().filter(|f| f.kind == kind).and_then(|f| f.peer);
        if let Some(peer) = peer.filter(|p| *p < group.world_size && *p != rank) {
            blamed.entry(peer).or_default().push((rank, dump));
        }
    }
    blamed
}

fn call_of(dump: &Dump) -> u32 {
    dump.current.as_ref().map_or_else(|| dump.entered(), |c| c.call.call)
}

/// Processes that died or were cut off. Who has written why it failed was not lost first.
pub(super) fn lost(group: &Group<'_>) -> Vec<Finding> {
    let mut lost: Vec<(usize, Vec<(usize, &Dump)>)> =
        blamed(group, Kind::Lost).into_iter().filter(|(rank, _)| !group.has_failed(*rank)).collect();
    // Told by others who were told by someone else, whose file is missing.
    lost.sort_by_key(|(rank, by)| {
        let first = by.iter().map(|(_, dump)| call_of(dump)).min().unwrap_or(0);
        (first, std::cmp::Reverse(by.len()), *rank)
    });
    let Some((rank, by)) = lost.first() else { return Vec::new() };
    let witnesses: Vec<usize> = by.iter().map(|(r, _)| *r).collect();
    let (_, witness) = by[0];
    let call = witness.current.as_ref().map(|c| &c.call);
    let mut text = format!(
        "{} is gone: {} lost it{}{}. ",
        sentence(&group.name(*rank)),
        ranks(&witnesses),
        call.map(|c| format!(" in {}", numbered(c))).unwrap_or_default(),
        match blamed(group, Kind::Told).get(rank) {
            Some(told) => {
                let told: Vec<usize> = told.iter().map(|(r, _)| *r).collect();
                format!(", and {} heard of it from others", ranks(&told))
            }
            None => String::new(),
        },
    );
    let saw = witness.failure.as_ref().map(|f| f.error.as_str()).unwrap_or_default();
    text += &format!("What was seen: {saw}. ");
    let heard: Vec<usize> = group
        .unfinished()
        .filter(|(_, _, c)| Some(c.call.call) == call.map(|c| c.call) && c.heard.contains(rank))
        .map(|(r, _, _)| r)
        .collect();
    if !heard.is_empty() {
        text += &format!("{} had still heard of it in this call. ", sentence(&ranks(&heard)));
    } else if let Some(seen) = group.last_seen(*rank) {
        text += &format!("It took part in {}, and nobody heard of it afterwards. ", numbered(seen));
    }
    text += "It left no file, so it did not fail in a call: it was killed or crashed, or its host or network went away. \
             Look at its own last words, and for the kernel's (dmesg, out of memory).";
    if lost.len() > 1 {
        let others: Vec<usize> = lost[1..].iter().map(|(r, _)| *r).collect();
        text += &format!(
            " {} {} lost too, in the same call or later.",
            sentence(&ranks(&others)),
            verb(others.len(), "was", "were")
        );
    }
    vec![finding(Verdict::Lost, vec![*rank], call.map_or(0, |c| c.call), text)]
}

/// Communicators that were dropped while others still used them. Who drops one that has failed is not to blame for that, nor
/// who does it because of another's failure in another one.
pub(super) fn left(group: &Group<'_>) -> Vec<Finding> {
    let is_first = |rank: usize| !group.has_failed(rank) && !group.followed.contains_key(&rank);
    let mut left: Vec<_> =
        blamed(group, Kind::Left).into_iter().filter(|(rank, _)| is_first(*rank)).collect();
    left.sort_by_key(|(rank, by)| (by.iter().map(|(_, dump)| call_of(dump)).min(), *rank));
    let Some((rank, by)) = left.first() else { return Vec::new() };
    let witnesses: Vec<usize> = by.iter().map(|(r, _)| *r).collect();
    let call = by[0].1.current.as_ref().map(|c| &c.call);
    let mut text = format!(
        "{} dropped its communicator, while {} still {} for it{}: its program ended too early, or makes fewer calls.",
        sentence(&group.name(*rank)),
        ranks(&witnesses),
        verb(witnesses.len(), "waits", "wait"),
        call.map(|c| format!(" in {}", numbered(c))).unwrap_or_default(),
    );
    if let Some(seen) = group.last_seen(*rank) {
        text += &format!(" It took part in {}.", numbered(seen));
    }
    vec![finding(Verdict::Left, vec![*rank], call.map_or(0, |c| c.call), text)]
}

fn aborted(dump: &Dump) -> bool {
    is_own(dump) && dump.failure.as_ref().is_some_and(|failure| failure.kind == Kind::Aborted)
}

/// Whether a rank ended this communicator only because of another's failure in another one.
fn follows(group: &Group<'_>, rank: usize, dump: &Dump) -> bool {
    aborted(dump) && group.followed.contains_key(&rank)
}

/// The rank that ended this communicator because of what it met in another one, and its file there.
pub(super) fn ended<'d>(group: &Group<'d>) -> Option<(usize, &'d Dump)> {
    let ended = group.dumps.iter().filter(|(rank, dump)| follows(group, **rank, dump)).map(|(rank, _)| *rank);
    let left = blamed(group, Kind::Left).into_keys().filter(|rank| !group.has_failed(*rank));
    let mut elsewhere = ended.chain(left).filter_map(|rank| Some((rank, *group.followed.get(&rank)?)));
    let lost = |(_, dump): &(usize, &Dump)| dump.failure.as_ref().is_some_and(|f| f.kind == Kind::Lost);
    let first = elsewhere.next()?;
    Some(if lost(&first) { first } else { elsewhere.find(lost).unwrap_or(first) })
}

/// Communicators that a rank ended because of a failure in another one.
pub(super) fn followed(group: &Group<'_>) -> Vec<Finding> {
    let Some((rank, elsewhere)) = ended(group) else { return Vec::new() };
    // Who has left has no file here: the call in which others wait for it.
    let file = group.dumps.get(&rank).or_else(|| group.dumps.values().next());
    let call = file.map_or(0, |dump| call_of(dump));
    let as_rank = match elsewhere.rank == rank {
        true => String::new(),
        false => format!(", where it is rank {}", elsewhere.rank),
    };
    let text = format!(
        "Nothing went wrong here first: {} ended it because of communicator {}{as_rank}: {}.",
        group.name(rank),
        elsewhere.communicator,
        elsewhere.failure.as_ref().map_or("it failed", |failure| &failure.error),
    );
    vec![finding(Verdict::Ended, Vec::new(), call, text)]
}

/// Ranks on which something went wrong that is nobody else's fault.
pub(super) fn failed(group: &Group<'_>) -> Vec<Finding> {
    let own = |(rank, dump): &(usize, &Dump)| is_own(dump) && !follows(group, *rank, dump);
    let mut failed: Vec<(usize, &Dump)> = group.dumps.iter().map(|(&r, &d)| (r, d)).filter(own).collect();
    failed.sort_by_key(|(rank, dump)| (aborted(dump), call_of(dump), *rank));
    let Some((rank, dump)) = failed.first() else { return Vec::new() };
    let call = dump.current.as_ref().map(|c| format!(" in {}", numbered(&c.call))).unwrap_or_default();
    let why = dump.failure.as_ref().map(|f| f.error.as_str()).unwrap_or_default();
    let name = sentence(&group.name(*rank));
    let mut text = match aborted(dump) {
        true => format!("{name} aborted it{call}."),
        false => format!("{name} failed by itself{call}: {why}."),
    };
    if failed.len() > 1 {
        let others: Vec<usize> = failed[1..].iter().map(|(r, _)| *r).collect();
        text += &format!(" So did {}, in the same call or later.", ranks(&others));
    }
    vec![finding(Verdict::Failed, vec![*rank], call_of(dump), text)]
}

/// What others were told of a rank that left no file.
pub(super) fn told(group: &Group<'_>) -> Vec<Finding> {
    for kind in [Kind::Told, Kind::Lost, Kind::Timeout] {
        let mut told: Vec<_> = blamed(group, kind).into_iter().collect();
        told.sort_by_key(|(rank, by)| (group.dumps.contains_key(rank), std::cmp::Reverse(by.len()), *rank));
        if let Some((rank, by)) = told.first() {
            let witnesses: Vec<usize> = by.iter().map(|(r, _)| *r).collect();
            let why = by[0].1.failure.as_ref().map(|f| f.error.as_str()).unwrap_or_default();
            let text = format!(
                "{} failed first, by the word of {}: {why}.",
                sentence(&group.name(*rank)),
                ranks(&witnesses)
            );
            return vec![finding(Verdict::Failed, vec![*rank], call_of(by[0].1), text)];
        }
    }
    // A failure that fits nothing above is shown as it is.
    let first = group.dumps.iter().find_map(|(&rank, &dump)| Some((rank, dump, dump.failure.as_ref()?)));
    first.map_or_else(Vec::new, |(rank, dump, failure)| {
        let text = format!("{} failed: {}.", sentence(&group.name(rank)), failure.error);
        vec![finding(Verdict::Failed, vec![rank], call_of(dump), text)]
    })
}

/// Nothing is wrong.
pub(super) fn fine(group: &Group<'_>) -> Finding {
    let with: Vec<usize> = group.dumps.keys().copied().collect();
    let entered: Vec<u32> = group.dumps.values().map(|d| d.entered()).collect();
    let (least, most) =
        (entered.iter().min().copied().unwrap_or(0), entered.iter().max().copied().unwrap_or(0));
    let calls = match (least, most) {
        (_, 0) => "made no call that all make".into(),
        (a, b) if a == b => format!("made the same {b} calls"),
        (a, b) => format!("made {a} to {b} calls"),
    };
    let text = format!("Nothing wrong found: {} {calls}, and none of them failed or waits.", ranks(&with));
    finding(Verdict::Fine, Vec::new(), 0, text)
}
