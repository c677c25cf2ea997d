//! How many pairs of ports two ranks use at once, and which: where a host has more ports than ranks that use them, each
//! rank uses several. Both ranks come to the same rails from what all ranks offer.

use super::{Asked, Library, Offer, Rail, Verdict, between};

/// The most rails of two ranks: as many ports as NCCL makes one device of (`NCCL_NET_MAX_DEVS_PER_NIC`).
pub const MOST_RAILS: usize = 4;

/// Among how many ranks of its host a rank's ports are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Which of these ranks it is, from 0.
    pub index: usize,
    /// How many they are, itself among them.
    pub ranks: usize,
}

impl Share {
    /// Of a rank that has its ports to itself.
    pub const ALONE: Share = Share { index: 0, ranks: 1 };
}

/// The shares of the ranks of one host, which offer this: ranks share ports if any port is among the nearest of both.
pub fn shares(offers: &[&Offer]) -> Vec<Share> {
    let uses = |offer: &Offer| {
        !matches!(offer.asked, Asked::Never(_)) && !matches!(offer.library, Library::Absent(_))
    };
    let near = |offer: &Offer| {
        let near = offer.ports.iter().filter(|port| !port.farther);
        near.map(|port| (port.device.clone(), port.number)).collect::<Vec<_>>()
    };
    let ports: Vec<_> =
        offers.iter().map(|offer| if uses(offer) { near(offer) } else { Vec::new() }).collect();
    let share = |rank: usize| {
        let meet = |other: &usize| *other == rank || ports[*other].iter().any(|p| ports[rank].contains(p));
        let sharers: Vec<usize> = (0..ports.len()).filter(meet).collect();
        let index = sharers.iter().position(|&other| other == rank).unwrap_or_default();
        Share { index, ranks: sharers.len() }
    };
    (0..ports.len()).map(share).collect()
}

/// Whether two ranks are joined by verbs, and over which rails: the pairs of ports of their hosts, divided among the ranks
/// that share them, at most as many as both settings allow, and at least one. `turned` on exactly one of the two ranks:
/// what it is told is the mirror image of what the other one is.
///
/// Ranks with the same index on their hosts meet on the same rails, and one index after the other has the next ones.
pub fn between_ranks(
    (here, ours): (&Offer, Share),
    (there, theirs): (&Offer, Share),
    same_host: bool,
    turned: bool,
) -> Verdict {
    let most = here.most_rails.min(there.most_rails).into();
    let verdict = match turned {
        false => between(here, there, same_host),
        // The order of the rails is the other one's.
        true => match between(there, here, same_host) {
            Verdict::Verbs(rails) => Verdict::Verbs(rails.iter().map(Rail::turned).collect()),
            Verdict::No(_) => between(here, there, same_host),
        },
    };
    match verdict {
        Verdict::Verbs(ways) => Verdict::Verbs(allot(&ways, [ours, theirs], most)),
        no => no,
    }
}

/// The rails of two ranks, of all pairs of ports that are used between their hosts.
fn allot(ways: &[Rail], [ours, theirs]: [Share; 2], most: usize) -> Vec<Rail> {
    let count = (ways.len() / ours.ranks.max(theirs.ranks).max(1)).min(most).max(1);
    let start = ours.index.min(theirs.index) * count;
    (start..start + count).map(|k| ways[k % ways.len()]).collect()
}

#[cfg(test)]
mod tests;
