//! Ranks for which others wait: those who wait are followed to whom they wait for, until someone waits for nobody.

use std::collections::{BTreeMap, BTreeSet};

use super::super::file::{Current, Dump, Kind};
use super::group::{Group, finding, moment, numbered, ranks, seconds, sentence, verb};
use super::{Finding, Verdict};

/// Who is in a call that is not done.
struct Waiter<'d> {
    dump: &'d Dump,
    current: &'d Current,
    /// Whom it waits for.
    awaited: Vec<usize>,
}

/// Whom all others wait for, in the first call in which anyone waits.
pub(super) fn waits(group: &Group<'_>) -> Vec<Finding> {
    let mut waiters: BTreeMap<usize, Waiter<'_>> = group
        .unfinished()
        .map(|(rank, dump, current)| {
            let others = current.awaited.iter().copied().filter(|r| *r != rank && *r < group.world_size);
            (rank, Waiter { dump, current, awaited: others.collect() })
        })
        .collect();
    // Sends and receives have no number; they are waited in as well.
    let Some(call) = waiters
        .values()
        .map(|w| w.current.call.call)
        .filter(|c| *c > 0)
        .min()
        .or_else(|| (!waiters.is_empty()).then_some(0))
    else {
        return Vec::new();
    };
    // Who came late is not excused by whom it waits for since then.
    let late = latecomers(&waiters, call);
    for rank in &late {
        waiters.entry(*rank).and_modify(|w| w.awaited.clear());
    }
    let ends = ends(&waiters);
    let mut absent: BTreeSet<usize> = ends;
    // Who is behind all others holds them up, whether or not they got as far as to wait for it.
    if call > 0 {
        let behind = |(rank, d): (&usize, &&Dump)| {
            (d.entered() < call && !waits_alone(&waiters, *rank)).then_some(*rank)
        };
        absent.extend(group.dumps.iter().filter_map(behind));
    }
    let mut findings = Vec::new();
    let by_kind = |verdict: Verdict, wanted: &dyn Fn(usize) -> bool| {
        let ranks: Vec<usize> = absent.iter().copied().filter(|r| wanted(*r)).collect();
        (!ranks.is_empty()).then_some((verdict, ranks))
    };
    let file = |rank: usize| group.dumps.get(&rank).copied();
    let behind = |rank: usize| file(rank).is_some_and(|d| call > 0 && d.entered() < call);
    let kinds = [
        by_kind(Verdict::NotEntered, &behind),
        by_kind(Verdict::Late, &|rank| late.contains(&rank) && !behind(rank)),
        by_kind(Verdict::Silent, &|rank| file(rank).is_none()),
    ];
    for (verdict, culprits) in kinds.into_iter().flatten() {
        let text = describe(group, &waiters, call, verdict, &culprits);
        findings.push(finding(verdict, culprits, call, text));
    }
    if findings.is_empty() {
        findings.push(stuck(group, &waiters, call));
    }
    findings
}

/// Whether a rank is in a send or receive, so that others wait for it because it waits.
fn waits_alone(waiters: &BTreeMap<usize, Waiter<'_>>, rank: usize) -> bool {
    waiters.get(&rank).is_some_and(|w| !w.awaited.is_empty())
}

/// Who has been in the call for less than half as long as others who wait for it. Only lengths are compared: how long each
/// was in the call when it failed, which all do at about the same time.
fn latecomers(waiters: &BTreeMap<usize, Waiter<'_>>, call: u32) -> BTreeSet<usize> {
    let here = || waiters.iter().filter(|(_, w)| w.current.call.call == call);
    let awaited_for = |rank: usize| {
        let waits = here().filter(|(r, w)| **r != rank && w.awaited.contains(&rank));
        waits.map(|(_, w)| w.current.lasted_ns).max().unwrap_or(0)
    };
    here()
        .filter(|(_, w)| w.dump.failure.as_ref().is_none_or(|f| f.kind != Kind::Timeout))
        .filter(|(rank, w)| w.current.lasted_ns < awaited_for(**rank) / 2)
        .map(|(&rank, _)| rank)
        .collect()
}

/// Those whom someone waits for, perhaps by way of others, and who wait for nobody.
fn ends(waiters: &BTreeMap<usize, Waiter<'_>>) -> BTreeSet<usize> {
    let awaited: BTreeSet<usize> = waiters.values().flat_map(|w| w.awaited.iter().copied()).collect();
    awaited.into_iter().filter(|rank| waiters.get(rank).is_none_or(|w| w.awaited.is_empty())).collect()
}

fn describe(
    group: &Group<'_>,
    waiters: &BTreeMap<usize, Waiter<'_>>,
    call: u32,
    verdict: Verdict,
    culprits: &[usize],
) -> String {
    let waiting: Vec<usize> = waiters
        .iter()
        .filter(|(rank, w)| w.current.call.call == call && !culprits.contains(rank))
        .map(|(&rank, _)| rank)
        .collect();
    let longest = waiting.iter().filter_map(|r| waiters.get(r)).max_by_key(|w| w.current.lasted_ns);
    let what = longest.map_or_else(|| "a call".to_owned(), |w| numbered(&w.current.call));
    let lasted = longest.map_or(0, |w| w.current.lasted_ns);
    let who = ranks(&waiting);
    let waited = verb(waiting.len(), "has waited", "have waited");
    let (one, it) = (culprits.len() == 1, verb(culprits.len(), "it", "them"));
    let names = sentence(&group.names(culprits));
    let mut text = match verdict {
        Verdict::NotEntered => format!(
            "{names} {} not entered {what}, in which {who} {waited} {} for {it}.",
            verb(culprits.len(), "has", "have"),
            seconds(lasted),
        ),
        Verdict::Late => {
            format!("{names} came too late to {what}: {who} had waited {} for {it}.", seconds(lasted),)
        }
        _ => format!(
            "{names} left no file, and {who} waited {} for {it} in {what}: {} not in this call, but at work or stuck \
             elsewhere, or killed from outside.",
            seconds(lasted),
            if one { "it is" } else { "they are" },
        ),
    };
    for &rank in culprits.iter().take(super::group::LISTED) {
        let which = if one { "It".to_owned() } else { format!("Rank {rank}") };
        match group.dumps.get(&rank) {
            Some(dump) => text += &format!(" {}", before(dump, call, &which)),
            None => {
                if let Some(seen) = group.last_seen(rank) {
                    text += &format!(" {which} took part in {}.", numbered(seen));
                }
            }
        }
    }
    text
}

/// What a rank did before the call.
fn before(dump: &Dump, call: u32, which: &str) -> String {
    let Some(last) =
        dump.calls.iter().filter(|c| c.call < call.max(1) || c.call == 0).rfind(|c| c.done_ns.is_some())
    else {
        return format!("{which} had finished no call before.");
    };
    let done = last.done_ns.unwrap_or_default();
    let at = moment(dump, done);
    match dump.call(call).filter(|_| call > 0) {
        Some(entered) => format!(
            "{which} had finished {}, at {at} by its own clock, and entered call {call} {} later.",
            numbered(last),
            seconds(entered.entered_ns.saturating_sub(done)),
        ),
        None => format!(
            "The last that {} finished is {}, at {at} by its own clock, {} before it wrote its file.",
            which.to_lowercase(),
            numbered(last),
            seconds(dump.written_ns.saturating_sub(done)),
        ),
    }
}

/// All are there, and it does not end.
fn stuck(group: &Group<'_>, waiters: &BTreeMap<usize, Waiter<'_>>, call: u32) -> Finding {
    let here: Vec<_> = waiters.iter().filter(|(_, w)| w.current.call.call == call).collect();
    let who: Vec<usize> = here.iter().map(|(r, _)| **r).collect();
    let what = here.first().map_or_else(|| "a call".to_owned(), |(_, w)| numbered(&w.current.call));
    let mut text = format!("{} {} in {what}", sentence(&ranks(&who)), verb(who.len(), "waits", "all wait"));
    let waits: Vec<String> = here
        .iter()
        .filter(|(_, w)| !w.awaited.is_empty())
        .take(super::group::LISTED)
        .map(|(r, w)| format!("rank {r} for {}", ranks(&w.awaited)))
        .collect();
    text += &match waits.is_empty() {
        true => {
            ", and nobody says for whom: its data are on their way, or its algorithm is at work.".to_owned()
        }
        false => format!(": {}. Nobody is missing, so look at the links between them.", waits.join(", ")),
    };
    let by_length = |(_, w): &&(&usize, &Waiter<'_>)| w.current.lasted_ns;
    if let (Some(first), Some(last)) = (here.iter().max_by_key(by_length), here.iter().min_by_key(by_length))
        && first.0 != last.0
    {
        text += &format!(
            " The last to enter was {}, {} after rank {}.",
            group.name(*last.0),
            seconds(first.1.current.lasted_ns.saturating_sub(last.1.current.lasted_ns)),
            first.0,
        );
    }
    finding(Verdict::Stuck, Vec::new(), call, text)
}
