//! Which cores ranks may use, and which ranks share them: ranks that outnumber their cores sleep rather than spin.

use std::collections::BTreeSet;

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

use crate::card::Card;

/// Cores that a process may use, as ranges of their numbers, both ends included: `[[0, 3], [8, 8]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreSet {
    ranges: Vec<(u16, u16)>,
    /// How many of them a quota leaves to the process and those of its container; the number of cores where there is
    /// none.
    quota: u32,
}

impl CoreSet {
    /// This thread's, which is its process's unless somebody bound it.
    pub fn here() -> CoreSet {
        let quota = available();
        let all = || (0..quota.min(usize::from(u16::MAX)) as u16).collect::<Vec<_>>();
        let numbers = match sched_getaffinity(None) {
            Ok(set) => (0..CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).map(|c| c as u16).collect(),
            // More cores than the call has room for.
            Err(_) => all(),
        };
        CoreSet::of(numbers, quota as u32)
    }

    fn of(numbers: Vec<u16>, quota: u32) -> CoreSet {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for n in numbers {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == n => *last = n,
                _ => ranges.push((n, n)),
            }
        }
        CoreSet { ranges, quota }
    }

    pub fn numbers(&self) -> BTreeSet<u16> {
        self.ranges.iter().flat_map(|&(first, last)| first..=last).collect()
    }
}

/// How many cores this process may use.
pub(crate) fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How many cores these ranks of one machine may use together.
pub(crate) fn together<'c>(cards: impl Iterator<Item = &'c Card>) -> usize {
    let (mut all, mut containers) = (BTreeSet::new(), Vec::new());
    for card in cards {
        let numbers = card.cores.numbers();
        let bound =
            if (card.cores.quota as usize) < numbers.len() { card.cores.quota as usize } else { usize::MAX };
        all.extend(numbers);
        match containers.iter_mut().find(|(host, _)| *host == &card.host) {
            Some((_, most)) => *most = bound.max(*most),
            None => containers.push((&card.host, bound)),
        }
    }
    let quotas = containers.iter().fold(0usize, |sum, (_, quota)| sum.saturating_add(*quota));
    all.len().min(quotas).max(1)
}

/// Whether the ranks that share cores with `rank`, directly or by way of others, outnumber these cores.
pub(crate) fn crowded(cards: &[Card], rank: usize) -> bool {
    let machine = |card: &&Card| card.network.same_kernel(&cards[rank].network);
    let mut apart: Vec<&Card> = cards.iter().filter(machine).collect();
    let mut sharing: Vec<&Card> = Vec::new();
    let mut cores = cards[rank].cores.numbers();
    loop {
        let before = sharing.len();
        apart.retain(|card| {
            let theirs = card.cores.numbers();
            let shared = !theirs.is_disjoint(&cores);
            if shared {
                cores.extend(theirs);
                sharing.push(card);
            }
            !shared
        });
        if sharing.len() == before {
            return sharing.len() > together(sharing.iter().copied());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Endpoint;

    /// Ranks on the cores from `.0` up to and without `.1`, in the container `.2`, with `.3` cores by quota.
    fn cards(ranks: &[(u16, u16, usize, u32)]) -> Vec<Card> {
        let card = Endpoint::open(&crate::Config::default()).unwrap().card().clone();
        let hosts: Vec<_> = (0..4).map(|n| crate::HostId::here(Some(&format!("container-{n}")))).collect();
        let of = |&(from, to, host, quota): &(u16, u16, usize, u32)| Card {
            cores: CoreSet::of((from..to).collect(), quota),
            host: hosts[host].clone(),
            ..card.clone()
        };
        ranks.iter().map(of).collect()
    }

    fn all_crowded(ranks: &[(u16, u16, usize, u32)]) -> Vec<bool> {
        let cards = cards(ranks);
        (0..cards.len()).map(|rank| crowded(&cards, rank)).collect()
    }

    #[test]
    fn ranks_bound_to_cores_of_their_own_have_room() {
        assert_eq!(all_crowded(&[(0, 1, 0, 1), (1, 2, 0, 1)]), [false, false]);
        assert_eq!(all_crowded(&[(0, 2, 0, 2), (0, 2, 0, 2)]), [false, false]);
        assert_eq!(all_crowded(&[(0, 2, 0, 2), (0, 2, 0, 2), (0, 2, 0, 2)]), [true; 3]);
        // Two on one core, one alone; and a chain that joins them.
        assert_eq!(all_crowded(&[(0, 1, 0, 1), (0, 1, 0, 1), (1, 2, 0, 1)]), [true, true, false]);
        assert_eq!(all_crowded(&[(0, 1, 0, 1), (2, 3, 0, 1), (0, 2, 0, 2), (1, 3, 0, 2)]), [true; 4]);
    }

    #[test]
    fn quotas_hold_for_a_container() {
        let free = [(0, 8, 0, 8); 4];
        let bounded = [(0, 8, 0, 2); 4];
        assert_eq!((all_crowded(&free), all_crowded(&bounded)), (vec![false; 4], vec![true; 4]));
        let two = [(0, 8, 0, 2), (0, 8, 0, 2), (0, 8, 1, 2), (0, 8, 1, 2)];
        assert_eq!(all_crowded(&two), [false; 4]);
        assert_eq!(together(cards(&two).iter()), 4);
        assert_eq!(together(cards(&[(0, 1, 0, 1), (1, 2, 0, 1)]).iter()), 2);
    }

    #[test]
    fn ranges_are_short_and_whole() {
        let set = CoreSet::of(vec![0, 1, 2, 5, 7, 8], 6);
        assert_eq!(set.ranges, [(0, 2), (5, 5), (7, 8)]);
        assert_eq!(set.numbers().into_iter().collect::<Vec<_>>(), [0, 1, 2, 5, 7, 8]);
        let here = CoreSet::here();
        assert!(!here.numbers().is_empty() && here.quota >= 1);
        // A card of somebody who lies costs no more than all numbers there are.
        let wild = CoreSet { ranges: vec![(9, 3), (0, u16::MAX), (0, u16::MAX)], quota: 0 };
        assert_eq!(wild.numbers().len(), 1 << 16);
    }
}
