//! Ranks that are missing by what the errors of others tell of them, and what they did meanwhile by their own files.

use std::collections::{BTreeMap, BTreeSet};

use super::super::file::Call;
use super::super::standstill::{Is, Standstill};
use super::group::{Group, finding, needs_all, numbered, ranks, seconds, sentence, verb};
use super::stories::Story;
use super::waits::{Wait, Waiter, describe};
use super::{Finding, Verdict};

/// Who is to blame by what the errors tell.
pub(super) fn told_missing(
    group: &Group<'_>,
    waiters: &BTreeMap<usize, Waiter<'_>>,
    story: &Story<'_>,
    silent: &[usize],
) -> Vec<Finding> {
    let told = &story.standstill;
    let call = told.call.call;
    let waiting: Vec<usize> = story.tellers.iter().copied().filter(|r| !silent.contains(r)).collect();
    let waiting = if waiting.is_empty() {
        told.entered.iter().copied().filter(|r| !silent.contains(r)).collect()
    } else {
        waiting
    };
    let is = |rank: usize| match story.of(rank).map_or(Is::Unknown, |m| m.is) {
        // It ended because of what it waited for there.
        Is::Gone if group.failed_elsewhere.contains(&rank) => Is::Absent,
        is => is,
    };
    let mut kinds: BTreeMap<usize, (Verdict, Is)> =
        silent.iter().map(|&r| (r, kind(group, waiters.get(&r), told, r, is(r)))).collect();
    for (&rank, (verdict, _)) in &mut kinds {
        if *verdict == Verdict::Late && held_in(group, story, rank).is_some() {
            *verdict = Verdict::Unresponsive;
        }
    }
    // A rank that stood still says where the others of its host were.
    let still: BTreeSet<&str> = kinds
        .iter()
        .filter(|(_, (verdict, _))| *verdict == Verdict::Unresponsive)
        .filter_map(|(&rank, _)| group.host(rank))
        .collect();
    for (&rank, (verdict, _)) in &mut kinds {
        if *verdict == Verdict::Late && group.host(rank).is_some_and(|host| still.contains(host)) {
            *verdict = Verdict::Unresponsive;
        }
    }
    let mut by_kind: BTreeMap<(usize, Is), (Verdict, Vec<usize>)> = BTreeMap::new();
    for (rank, (verdict, is)) in kinds {
        let order = ORDER.iter().position(|v| *v == verdict).unwrap_or(ORDER.len());
        // How it was seen matters only where there is no file that tells more.
        let is = if verdict == Verdict::Silent { is } else { Is::Unknown };
        by_kind.entry((order, is)).or_insert_with(|| (verdict, Vec::new())).1.push(rank);
    }
    let wait = Wait { call, what: numbered(&told.call), waiting, lasted: told.after_ns };
    let finding_of = |((_, is), (verdict, culprits)): ((usize, Is), (Verdict, Vec<usize>))| {
        let mut text = describe(group, &wait, verdict, is, &culprits);
        if verdict == Verdict::Unresponsive {
            let which = |rank: usize| if culprits.len() == 1 { "It".into() } else { format!("Rank {rank}") };
            let listed = culprits.iter().take(super::group::LISTED);
            text.extend(listed.map(|&rank| stood_in(group, waiters.get(&rank), story, rank, &which(rank))));
        }
        finding(verdict, culprits, call, text)
    };
    by_kind.into_iter().map(finding_of).collect()
}

/// Those to blame first come first.
const ORDER: [Verdict; 5] =
    [Verdict::Lost, Verdict::Unresponsive, Verdict::NotEntered, Verdict::Late, Verdict::Silent];

/// What a rank that others miss was doing, by its own file.
fn kind(
    group: &Group<'_>,
    waiter: Option<&Waiter<'_>>,
    told: &Standstill,
    rank: usize,
    is: Is,
) -> (Verdict, Is) {
    let call = told.call.call;
    let verdict = match (group.dumps.get(&rank), waiter) {
        (None, _) if is == Is::Gone => Verdict::Lost,
        (None, _) => Verdict::Silent,
        (Some(dump), None) if call == 0 || dump.entered() < call => Verdict::NotEntered,
        // It was asked for its file, and the call is not the last.
        (Some(_), None) => Verdict::Unresponsive,
        (Some(dump), Some(_)) if dump.failure.is_none() && dump.entered() < call => Verdict::NotEntered,
        (Some(_), Some(w)) => {
            let late = w.current.call.call == call && w.current.lasted_ns < told.after_ns / 2;
            if late && is != Is::Silent { Verdict::Late } else { Verdict::Unresponsive }
        }
    };
    (verdict, is)
}

/// Where a rank was that stood still, by its own clock, if that was so long.
fn stood_in(
    group: &Group<'_>,
    waiter: Option<&Waiter<'_>>,
    story: &Story<'_>,
    rank: usize,
    which: &str,
) -> String {
    let told = story.standstill;
    let current = waiter.map(|w| w.current).filter(|c| c.lasted_ns >= told.after_ns / 2);
    match (current, held_in(group, story, rank)) {
        (Some(current), _) if current.call.call == told.call.call => {
            format!(" {which} was in this call for {} by its own clock.", seconds(current.lasted_ns))
        }
        (Some(current), _) => format!(
            " {which} was in {} for {} by its own clock.",
            numbered(&current.call),
            seconds(current.lasted_ns)
        ),
        (None, Some((call, lasted))) => format!(
            " {which} was in {} for {} by its own clock, which took the others no time.",
            numbered(call),
            seconds(lasted)
        ),
        (None, None) => String::new(),
    }
}

/// The call before the one of the standstill, and how long the rank was in it, ns, if that is as long as others waited
/// afterwards, who had finished it at once.
fn held_in<'d>(group: &Group<'d>, story: &Story<'_>, rank: usize) -> Option<(&'d Call, u64)> {
    let told = story.standstill;
    let lasted = |call: &Call| Some(call.done_ns?.saturating_sub(call.entered_ns));
    let long = |call: &Call| lasted(call).is_some_and(|ns| ns >= told.after_ns / 2);
    let before = |c: &&Call| c.call > 0 && c.call < told.call.call && c.done_ns.is_some();
    let call = group.dumps.get(&rank)?.calls.iter().rev().find(before).filter(|c| long(c))?;
    let others = story.tellers.iter().filter(|r| story.of(**r).is_none());
    let mut others = others.filter_map(|r| group.dumps.get(r)?.call(call.call)).peekable();
    (others.peek().is_some() && others.all(|c| c.done_ns.is_some() && !long(c)))
        .then(|| (call, lasted(call).unwrap_or_default()))
}

/// Ranks that left no file though others of their host did, and though nobody can have finished the call.
pub(super) fn left_no_file(group: &Group<'_>, story: &Story<'_>, findings: &[Finding]) -> Option<Finding> {
    let call = &story.standstill.call;
    if !needs_all(call) {
        return None;
    }
    let named = |rank: &usize| findings.iter().any(|f| f.culprits.contains(rank));
    let hosts: BTreeSet<&str> = group.dumps.keys().filter_map(|r| group.host(*r)).collect();
    let silent = hosts.into_iter().flat_map(|host| group.on_host(host));
    let silent: BTreeSet<usize> =
        silent.filter(|r| !group.dumps.contains_key(r) && !named(r) && story.of(*r).is_none()).collect();
    let silent: Vec<usize> = silent.into_iter().collect();
    if silent.is_empty() {
        return None;
    }
    let entered: Vec<usize> = silent.iter().copied().filter(|r| story.entered(*r)).collect();
    let entered = match entered.is_empty() {
        true => String::new(),
        false => format!(" ({} had entered {})", ranks(&entered), numbered(call)),
    };
    let text = format!(
        "{} left no file either{entered}, though others of the same host did: {} stopped or stuck, or ended from outside \
         before {} could write one.",
        sentence(&group.names(&silent)),
        verb(silent.len(), "it is", "they are"),
        verb(silent.len(), "it", "they"),
    );
    Some(finding(Verdict::Silent, silent, call.call, text))
}
