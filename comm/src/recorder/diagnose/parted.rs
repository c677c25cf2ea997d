//! Ranks that are alive and do not hear each other: the network between them is cut.

use std::collections::BTreeSet;

use super::super::standstill::Is;
use super::group::{Group, finding, join, numbered, ranks, seconds, sentence, verb};
use super::stories::{Broken, Story, broken, stories};
use super::{Finding, Verdict};

/// Ranks that hear each other and not the others.
struct Side {
    ranks: BTreeSet<usize>,
    /// What they went through, in words; nothing: it is not known.
    told: Option<String>,
}

/// A network in pieces.
pub(super) fn parted(group: &Group<'_>) -> Vec<Finding> {
    let stories = stories(group);
    contradicting(group, &stories)
        .or_else(|| unreachable(group))
        .or_else(|| unheard(group, &stories))
        .into_iter()
        .collect()
}

/// Ranks that name each other as missing. Had they heard each other, they would tell the same.
fn contradicting(group: &Group<'_>, stories: &[Story<'_>]) -> Option<Finding> {
    let names = |a: &Story<'_>, b: &Story<'_>| a.silent(group).iter().any(|rank| b.tellers.contains(rank));
    let apart = |a: &Story<'_>| stories.iter().any(|b| !std::ptr::eq(a, b) && names(a, b) && names(b, a));
    let apart: Vec<&Story<'_>> = stories.iter().filter(|a| apart(a)).collect();
    let first = apart.first()?;
    let side = |story: &&Story<'_>| {
        // Whoever left no file belongs to those who do not miss it.
        let missed = apart.iter().filter(|s| !std::ptr::eq(**s, *story)).flat_map(|s| s.silent(group));
        let with =
            |rank: &usize| story.of(*rank).is_none() && !apart.iter().any(|s| s.tellers.contains(rank));
        let all: BTreeSet<usize> = story.tellers.iter().copied().chain(missed.filter(with)).collect();
        let told = format!(
            "{} waited {} for {} in {}",
            ranks(&story.tellers),
            seconds(story.standstill.after_ns),
            ranks(&story.silent(group)),
            numbered(&story.standstill.call),
        );
        Side { ranks: all, told: Some(told) }
    };
    let mut sides: Vec<Side> = apart.iter().map(side).collect();
    sides.sort_by_key(|s| s.ranks.first().copied());
    Some(finding(Verdict::Parted, Vec::new(), first.standstill.call.call, cut(group, &sides)))
}

/// Ranks that found no way to each other, or lost each other though both lived on.
fn unreachable(group: &Group<'_>) -> Option<Finding> {
    let broken = broken(group);
    let first = broken.first()?;
    let call = |rank: usize| group.dumps.get(&rank).and_then(|d| d.current.as_ref()).map(|c| &c.call);
    let number = broken.iter().filter_map(|b| call(b.from)).map(|c| c.call).min().unwrap_or(0);
    let from: BTreeSet<usize> = broken.iter().map(|b| b.from).collect();
    let mut to: BTreeSet<usize> = broken.iter().map(|b| b.to).collect();
    let saw = group.dumps.get(&first.from).and_then(|d| d.failure.as_ref()).map(|f| f.error.as_str());
    let saw = format!(" What rank {} saw: {}.", first.from, saw.unwrap_or_default());
    let sides = sides_of(group, &broken);
    let alive = |side: &Side| side.ranks.iter().any(|r| group.has_failed(*r));
    // A single rank that nobody reaches may be at fault itself.
    let several = to.len() > 1 || sides.iter().all(|s| from.iter().any(|r| s.ranks.contains(r)));
    if several && !sides.is_empty() && sides.iter().all(alive) {
        return Some(finding(Verdict::Parted, Vec::new(), number, cut(group, &sides) + &saw));
    }
    to.retain(|rank| !from.contains(rank));
    let (from, to): (Vec<usize>, Vec<usize>) = (from.into_iter().collect(), to.into_iter().collect());
    let place = call(first.from).map(|c| format!(" in {}", numbered(c))).unwrap_or_default();
    if to.is_empty() || broken.len() > 1 && to.iter().all(|r| group.has_failed(*r)) {
        let pairs: Vec<String> = broken
            .iter()
            .take(super::group::LISTED)
            .map(|b| format!("rank {} to rank {}", b.from, b.to))
            .collect();
        let text = format!(
            "{} found no way to others{place}: {}. All of them left files, so look at the network between them.{saw}",
            sentence(&ranks(&from)),
            join(&pairs),
        );
        return Some(finding(Verdict::Parted, Vec::new(), number, text));
    }
    let alive: Vec<usize> = to.iter().copied().filter(|r| group.has_failed(*r)).collect();
    let why = match (alive.len(), to.len()) {
        (0, n) => format!(
            "{} left no file: {} stopped or dead, or {} host is down, or the network between them is cut.",
            verb(n, "It", "They"),
            verb(n, "it is", "they are"),
            verb(n, "its", "their"),
        ),
        _ => format!(
            "But {} lived on and left {}: {} stood still, or the network between them is cut.",
            ranks(&alive),
            verb(alive.len(), "a file", "files"),
            verb(alive.len(), "it", "they")
        ),
    };
    let text = format!(
        "{} cannot be reached: {} found no way to {}{place}. {why}{saw}",
        sentence(&group.names(&to)),
        ranks(&from),
        verb(to.len(), "it", "them"),
    );
    let culprits = if alive.is_empty() { to } else { Vec::new() };
    Some(finding(Verdict::Parted, culprits, number, text))
}

/// Both ends of what is broken, by hosts, if it all lies between two hosts or between one and all others; else nothing.
fn sides_of(group: &Group<'_>, broken: &[Broken]) -> Vec<Side> {
    let hosts: Option<Vec<(&str, &str)>> =
        broken.iter().map(|b| Some((group.host(b.from)?, group.host(b.to)?))).collect();
    let Some(hosts) = hosts.filter(|hosts| hosts.iter().all(|(a, b)| a != b)) else { return Vec::new() };
    let Some(&(a, b)) = hosts.first() else { return Vec::new() };
    let Some(cut_off) = [b, a].into_iter().find(|h| hosts.iter().all(|(a, b)| a == h || b == h)) else {
        return Vec::new();
    };
    let ends = || broken.iter().flat_map(|b| [b.from, b.to]);
    let side = |inside: bool| {
        let mut all: BTreeSet<usize> =
            ends().filter(|r| (group.host(*r) == Some(cut_off)) == inside).collect();
        let hosts: BTreeSet<&str> = all.iter().filter_map(|r| group.host(*r)).collect();
        all.extend(hosts.into_iter().flat_map(|host| group.on_host(host)));
        let from = || broken.iter().filter(|b| (group.host(b.from) == Some(cut_off)) == inside);
        let current = |b: &Broken| group.dumps.get(&b.from).and_then(|d| d.current.as_ref());
        let longest = from().filter_map(current).max_by_key(|c| c.lasted_ns);
        let told = longest.map(|current| {
            let to: Vec<usize> = from().map(|b| b.to).collect();
            format!(
                "{} did not reach {} within {} in {}",
                ranks(&from().map(|b| b.from).collect::<Vec<_>>()),
                ranks(&to),
                seconds(current.lasted_ns),
                numbered(&current.call),
            )
        });
        Side { ranks: all, told }
    };
    let mut sides = vec![side(false), side(true)];
    sides.sort_by_key(|s| s.ranks.first().copied());
    sides
}

/// Hosts of which nothing came and that left no file.
fn unheard(group: &Group<'_>, stories: &[Story<'_>]) -> Option<Finding> {
    let story = stories.first()?;
    let silent = story.silent(group);
    let hosts: BTreeSet<&str> = silent.iter().filter_map(|r| group.host(*r)).collect();
    let heard = |host: &&str| {
        group.on_host(host).iter().any(|r| group.dumps.contains_key(r) || story.entered(*r))
            || !silent
                .iter()
                .any(|r| group.host(*r) == Some(host) && story.of(*r).is_some_and(|m| m.is == Is::Unheard))
    };
    if hosts.is_empty() || hosts.iter().any(heard) || silent.iter().any(|r| group.host(*r).is_none()) {
        return None;
    }
    let culprits: BTreeSet<usize> = hosts.iter().flat_map(|host| group.on_host(host)).collect();
    let culprits: Vec<usize> = culprits.into_iter().collect();
    let names: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let one = hosts.len() == 1;
    let text = format!(
        "Nothing is heard of {} {} ({}): {} waited {} for {} in {}, and what was sent there was not even acknowledged. \
         There is no file of {}: {} down, or the network to {} is cut.",
        verb(hosts.len(), "host", "hosts"),
        join(&names),
        ranks(&culprits),
        ranks(&story.tellers),
        seconds(story.standstill.after_ns),
        ranks(&silent),
        numbered(&story.standstill.call),
        if one { "any rank there" } else { "any rank on them" },
        if one { "the host is" } else { "the hosts are" },
        if one { "it" } else { "them" },
    );
    Some(finding(Verdict::Parted, culprits, story.standstill.call.call, text))
}

/// That these do not hear each other.
fn cut(group: &Group<'_>, sides: &[Side]) -> String {
    let hosts = |side: &Side| side.ranks.iter().filter_map(|r| group.host(*r)).collect::<BTreeSet<&str>>();
    let name = |side: &Side| {
        let who = ranks(&side.ranks.iter().copied().collect::<Vec<_>>());
        let own = hosts(side);
        // Names that hosts share tell nothing.
        let shared = sides.iter().any(|o| !std::ptr::eq(o, side) && !hosts(o).is_disjoint(&own));
        let own: Vec<String> = own.into_iter().take(super::group::LISTED).map(str::to_owned).collect();
        match &own[..] {
            [] => who,
            [host] if !shared => format!("host {host} ({who})"),
            hosts => format!("{who} ({})", join(hosts)),
        }
    };
    let names: Vec<String> = sides.iter().map(name).collect();
    let told: Vec<String> = sides.iter().filter_map(|s| s.told.clone()).collect();
    let told = if told.is_empty() { String::new() } else { format!(": {}", told.join("; ")) };
    format!(
        "{} do not hear each other{told}. There are ranks alive on {} sides, so look at the network between them: cables, \
         switches, bridges, firewalls.",
        sentence(&join(&names)),
        if sides.len() == 2 { "both" } else { "all" },
    )
}
