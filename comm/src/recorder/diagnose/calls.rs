//! Ranks that called different things.

use std::collections::BTreeMap;

use super::super::file::{Call, Kind};
use super::group::{Group, finding, join, numbered, ranks, sentence, verb};
use super::{Finding, Verdict};

/// The first call, by its number, that differs between ranks.
pub(super) fn mismatch(group: &Group<'_>) -> Vec<Finding> {
    let mut called: BTreeMap<u32, Vec<(usize, &Call)>> = BTreeMap::new();
    for (&rank, dump) in &group.dumps {
        for call in dump.calls.iter().filter(|c| c.call > 0) {
            called.entry(call.call).or_default().push((rank, call));
        }
    }
    let differ = |calls: &&Vec<(usize, &Call)>| calls.iter().any(|(_, call)| !call.matches(calls[0].1));
    let from_errors = || {
        let sides = group.dumps.values().filter_map(|d| d.failure.as_ref()).map(|f| &f.sides[..]);
        let sides = sides.filter(|sides| sides.len() > 1 && sides.iter().all(|s| s.rank < group.world_size));
        // The same mismatch is reported by many.
        sides
            .min_by_key(|sides| sides[0].call.call)
            .map(|sides| sides.iter().map(|s| (s.rank, &s.call)).collect())
    };
    let Some(calls) = called.values().find(differ).cloned().or_else(from_errors) else { return Vec::new() };

    let mut sides: Vec<(&Call, Vec<usize>)> = Vec::new();
    for (rank, call) in calls {
        match sides.iter_mut().find(|(c, _)| c.matches(call)) {
            Some((_, ranks)) if !ranks.contains(&rank) => ranks.push(rank),
            Some(_) => {}
            None => sides.push((call, vec![rank])),
        }
    }
    // Those that are fewest are most likely wrong; of two equal sides the one without rank 0.
    sides.sort_by_key(|(_, ranks)| (ranks.len(), ranks.contains(&0)));
    let Some(((most, _), fewer)) = sides.split_last() else { return Vec::new() };
    let Some((wrong, _)) = fewer.first() else { return Vec::new() };
    let culprits: Vec<usize> = fewer.iter().flat_map(|(_, ranks)| ranks.iter().copied()).collect();
    let described: Vec<String> = sides
        .iter()
        .map(|(call, who)| {
            let other = if std::ptr::eq(*call, *most) { wrong } else { most };
            let who = if who.len() == 1 { group.name(who[0]) } else { ranks(who) };
            format!("{who} called {}", beside(call, other))
        })
        .collect();
    let number = most.call;
    let differs = differences(wrong, most);
    let text = format!(
        "Ranks called different things as {}: {}. {} {}; every rank must make the same calls in the same order.",
        if number > 0 { format!("call {number}") } else { "a call".into() },
        described.join("; "),
        sentence(&join(&differs)),
        verb(differs.len(), "differs", "differ"),
    );
    vec![finding(Verdict::Mismatch, culprits, number, text)]
}

/// What a rank called, with the algorithm where that is all that differs.
fn beside(call: &Call, other: &Call) -> String {
    match &call.algorithm {
        Some(algorithm) if call.same_arguments(other) => format!("{call}, to be done by {algorithm}"),
        _ => call.to_string(),
    }
}

fn differences(a: &Call, b: &Call) -> Vec<String> {
    if a.collective != b.collective {
        return vec!["the collective".into()];
    }
    let all = [
        ("the number", a.call != b.call),
        ("the type", a.data_type != b.data_type),
        ("the count", a.count != b.count),
        ("the counts", a.counts_hash != b.counts_hash && a.count == b.count),
        ("the operation", a.op != b.op),
        ("the root", a.root != b.root),
    ];
    let found: Vec<String> =
        all.iter().filter(|(_, differs)| *differs).map(|(what, _)| (*what).into()).collect();
    if found.is_empty() { vec!["the algorithm, which follows from the settings,".into()] } else { found }
}

/// Messages that were longer or shorter than expected.
pub(super) fn lengths(group: &Group<'_>) -> Vec<Finding> {
    let found = group.dumps.iter().find_map(|(&rank, &dump)| {
        let failure = dump.failure.as_ref().filter(|f| f.kind == Kind::Length)?;
        let peer = failure.peer.filter(|p| *p < group.world_size)?;
        Some((rank, dump, failure, peer))
    });
    let Some((rank, dump, failure, peer)) = found else { return Vec::new() };
    let theirs = group.dumps.get(&peer).and_then(|d| d.current.as_ref());
    let mut text = format!(
        "{} and {} do not agree how long a message between them is: {}.",
        sentence(&group.name(rank)),
        group.name(peer),
        failure.error,
    );
    let ours = dump.current.as_ref().map(|c| format!("{} is in {}", group.name(rank), numbered(&c.call)));
    let theirs = theirs.map(|c| format!("{} is in {}", group.name(peer), numbered(&c.call)));
    let both: Vec<String> = ours.into_iter().chain(theirs).collect();
    if !both.is_empty() {
        text += &format!(" {}.", sentence(&join(&both)));
    }
    vec![finding(Verdict::Length, vec![rank, peer], dump.current.as_ref().map_or(0, |c| c.call.call), text)]
}
