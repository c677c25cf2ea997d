//! Ranks for which others wait: by what the errors tell of them; else those who wait are followed to whom they wait for,
//! until someone waits for nobody.

use std::collections::{BTreeMap, BTreeSet};

use super::super::file::{Current, Dump, Kind};
use super::super::standstill::Is;
use super::group::{Group, finding, moment, numbered, ranks, seconds, sentence, verb};
use super::missing::{left_no_file, told_missing};
use super::stories::stories;
use super::{Finding, Verdict};

/// Who is in a call that is not done.
pub(super) struct Waiter<'d> {
    dump: &'d Dump,
    pub current: &'d Current,
    /// Whom it waits for.
    awaited: Vec<usize>,
}

/// Whom all others wait for, in the first call in which anyone waits: by what the errors tell and, where they tell nothing,
/// by who waits for whom.
pub(super) fn waits(group: &Group<'_>) -> Vec<Finding> {
    let waiters: BTreeMap<usize, Waiter<'_>> = group
        .unfinished()
        .map(|(rank, dump, current)| {
            let others = current.awaited.iter().copied().filter(|r| *r != rank && *r < group.world_size);
            (rank, Waiter { dump, current, awaited: others.collect() })
        })
        .collect();
    let stories = stories(group);
    let told =
        stories.iter().map(|story| (story, story.silent(group))).find(|(_, silent)| !silent.is_empty());
    let mut findings = match told {
        Some((story, silent)) => told_missing(group, &waiters, story, &silent),
        None => followed(group, waiters),
    };
    if let Some(story) = stories.first() {
        findings.extend(left_no_file(group, story, &findings));
    }
    findings
}

/// When a rank entered a call, by its own file, if it was looked up.
fn entered_ns(group: &Group<'_>, rank: usize, call: u32) -> Option<u64> {
    let entered = group.dumps.get(&rank)?.call(call)?.entered_ns;
    (entered > 0).then_some(entered)
}

/// Who is to blame by who waits for whom.
fn followed(group: &Group<'_>, mut waiters: BTreeMap<usize, Waiter<'_>>) -> Vec<Finding> {
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
    let by_kind = |verdict: Verdict, is: Is, wanted: &dyn Fn(usize) -> bool| {
        let ranks: Vec<usize> = absent.iter().copied().filter(|r| wanted(*r)).collect();
        (!ranks.is_empty()).then_some((verdict, is, ranks))
    };
    let file = |rank: usize| group.dumps.get(&rank).copied();
    let behind = |rank: usize| file(rank).is_some_and(|d| call > 0 && d.entered() < call);
    // Whose message has come, or without whom nobody else could have finished it.
    let has_entered = |rank: usize| {
        let heard = |w: &Waiter<'_>| w.current.call.call == call && w.current.heard.contains(&rank);
        waiters.values().any(heard) || call > 0 && group.last_seen(rank).is_some_and(|c| c.call >= call)
    };
    let kinds = [
        by_kind(Verdict::NotEntered, Is::Absent, &behind),
        by_kind(Verdict::Late, Is::Absent, &|rank| late.contains(&rank) && !behind(rank)),
        by_kind(Verdict::Silent, Is::Silent, &|rank| file(rank).is_none() && has_entered(rank)),
        by_kind(Verdict::Silent, Is::Absent, &|rank| file(rank).is_none() && !has_entered(rank)),
    ];
    for (verdict, is, culprits) in kinds.into_iter().flatten() {
        let here = waiters.iter().filter(|(rank, w)| w.current.call.call == call && !culprits.contains(rank));
        let waiting: Vec<usize> = here.map(|(&rank, _)| rank).collect();
        let longest = waiting.iter().filter_map(|r| waiters.get(r)).max_by_key(|w| w.current.lasted_ns);
        let wait = Wait {
            call,
            what: longest.map_or_else(|| "a call".to_owned(), |w| numbered(&w.current.call)),
            lasted: longest.map_or(0, |w| w.current.lasted_ns),
            waiting,
        };
        let text = describe(group, &wait, verdict, is, &culprits);
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

/// A call that does not end.
pub(super) struct Wait {
    pub call: u32,
    /// In words.
    pub what: String,
    pub waiting: Vec<usize>,
    /// How long, ns.
    pub lasted: u64,
}

/// What is told of culprits of a kind; `is` counts for those without a file.
pub(super) fn describe(
    group: &Group<'_>,
    wait: &Wait,
    verdict: Verdict,
    is: Is,
    culprits: &[usize],
) -> String {
    let Wait { call, what, waiting, lasted } = wait;
    let (call, lasted) = (*call, seconds(*lasted));
    let who = ranks(waiting);
    let waited = verb(waiting.len(), "has waited", "have waited");
    let (n, it) = (culprits.len(), verb(culprits.len(), "it", "them"));
    let names = sentence(&group.names(culprits));
    let they = verb(n, "it", "they");
    let mut text = match verdict {
        Verdict::NotEntered => format!(
            "{names} {} not entered {what}, in which {who} {waited} {lasted} for {it}.",
            verb(n, "has", "have"),
        ),
        Verdict::Late => {
            let unclear = culprits.iter().any(|r| entered_ns(group, *r, call).is_none());
            let or = if unclear { ", or stood still" } else { "" };
            format!("{names} came too late to {what}{or}: {who} had waited {lasted} for {it}.")
        }
        Verdict::Unresponsive => format!(
            "{names}{} stood still: {who} waited {lasted} for {it} in {what}, and got no answer. Something stopped {it}: a \
             signal, a debugger, a machine that was paused, swaps or has no processor to spare.",
            all_of(group, culprits),
        ),
        Verdict::Lost => format!(
            "{names} {} gone without a word, and left no file: {who} waited {lasted} for {it} in {what}.",
            verb(n, "is", "are"),
        ),
        _ => format!(
            "{names}{} left no file, and {who} waited {lasted} for {it} in {what}: {}.",
            all_of(group, culprits),
            match is {
                Is::Silent => format!(
                    "{they} {} entered this call and not answered since, so {} stopped or stuck, or killed from outside",
                    verb(n, "has", "have"),
                    verb(n, "it is", "they are"),
                ),
                Is::Unheard => format!(
                    "nothing came from {it}, nor was what {they} {} sent acknowledged, so {} stopped or dead, or {} host or \
                     network is down",
                    verb(n, "was", "were"),
                    verb(n, "it is", "they are"),
                    verb(n, "its", "their"),
                ),
                _ => format!(
                    "{} not in this call, but at work or stuck elsewhere, or stopped or killed from outside",
                    verb(n, "it is", "they are")
                ),
            },
        ),
    };
    for &rank in culprits.iter().take(super::group::LISTED) {
        let which = if n == 1 { "It".to_owned() } else { format!("Rank {rank}") };
        match group.dumps.get(&rank) {
            // Where it stood is told by the caller.
            Some(_) if verdict == Verdict::Unresponsive => {}
            Some(dump) => text += &format!(" {}", before(dump, call, &which)),
            None => {
                if let Some(seen) = group.last_seen(rank).filter(|seen| call == 0 || seen.call < call) {
                    text += &format!(" {which} took part in {}.", numbered(seen));
                }
            }
        }
    }
    text
}

/// That these are all ranks of a host, where others have other hosts.
fn all_of(group: &Group<'_>, culprits: &[usize]) -> String {
    let hosts: BTreeSet<Option<&str>> = culprits.iter().map(|r| group.host(*r)).collect();
    match hosts.first() {
        Some(Some(host)) if hosts.len() == 1 && culprits.len() > 1 && culprits.len() < group.world_size => {
            let all = group.on_host(host).iter().all(|r| culprits.contains(r));
            if all { format!(", all ranks of host {host},") } else { String::new() }
        }
        _ => String::new(),
    }
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
        // It was short, and failed when it first waited.
        Some(entered) if entered.entered_ns == 0 => format!(
            "{which} had finished {}, at {at} by its own clock, and failed in call {call} {} later.",
            numbered(last),
            seconds(dump.written_ns.saturating_sub(done)),
        ),
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
    let later: Vec<usize> =
        waiters.iter().filter(|(_, w)| w.current.call.call > call).map(|(&rank, _)| rank).collect();
    if !later.is_empty() {
        text +=
            &format!(" {} {} in later calls.", sentence(&ranks(&later)), verb(later.len(), "waits", "wait"));
    }
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
