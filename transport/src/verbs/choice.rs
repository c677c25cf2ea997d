//! Which peers a rank reaches by which of its ports.

use std::collections::HashMap;
use std::sync::Arc;

use nd_topology::rdma::{self, NoVerbs, Offer, Share, Verdict, between, between_ranks, shares};

use super::adapter::Adapter;
use super::fabric::{Adapters, Fabric, Pair, Rail};
use super::memory::Device;
use super::offer::Ports;
use crate::voice::{self, Topic};
use crate::{Card, Choice, Config, Error, HostId, Region, Result};

/// A group of ranks, as one of them sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group<'a> {
    /// Which one.
    pub rank: usize,
    /// Of all, by rank.
    pub cards: &'a [Card],
    /// Those that share no memory with it.
    pub far: &'a [usize],
    /// Its memory.
    pub region: &'a Arc<Region>,
    /// Its settings.
    pub config: &'a Config,
}

/// What a rank has on devices for a group.
#[derive(Debug, Default)]
pub(crate) struct Equipment {
    /// The devices' names, by place.
    names: Vec<String>,
    adapters: Adapters,
}

impl Equipment {
    /// Registers what the group's payload cannot do without: an error if that works on no device, the first one's.
    pub fn reserve(&self, region: &Region) -> Result<(), String> {
        let reserve = |adapter: &Result<Arc<Adapter>, String>| {
            adapter.as_ref().map_err(String::clone)?.reserve(region).map_err(|e| e.to_string())
        };
        let mut refused = Ok(());
        for adapter in &self.adapters {
            match reserve(adapter) {
                Ok(()) => return Ok(()),
                Err(why) => refused = refused.and(Err(why)),
            }
        }
        refused
    }
}

impl Group<'_> {
    /// A rank as people look for it.
    fn name(&self, rank: usize) -> String {
        format!("rank {rank} on {}", self.cards[rank].host_name)
    }

    /// Whether verbs join this rank with each of those that share no memory with it.
    fn verdicts(&self) -> Vec<(usize, Verdict)> {
        let (rank, cards, shares) = (self.rank, self.cards, shares_of(self.cards));
        let of = |&peer: &usize| {
            let (ours, theirs) = ((&cards[rank].verbs, shares[rank]), (&cards[peer].verbs, shares[peer]));
            let same_host = cards[peer].host == cards[rank].host;
            (peer, between_ranks(ours, theirs, same_host, peer < rank))
        };
        self.far.iter().map(of).collect()
    }
}

impl Ports {
    /// What this rank has on devices for a group, or for more ranks than the group will have.
    pub fn equipment(&self, group: Group<'_>) -> Equipment {
        let mut equipment = Equipment::default();
        let pairs = self.pairs(group, &group.verdicts(), &mut equipment.names);
        self.equip(&mut equipment, &pairs);
        equipment
    }

    /// The queue pairs' part of an endpoint, as far as verbs join this rank with others of the group. `unable` says of each
    /// rank why it cannot use its devices, where it has said so.
    ///
    /// # Errors
    /// [`Error::Unreachable`], on all ranks, where verbs were asked for and do not join two of them.
    pub fn fabric(
        &self,
        group: Group<'_>,
        mut equipment: Equipment,
        unable: &[Option<String>],
    ) -> Result<Option<Arc<Fabric>>> {
        let Group { rank, region, config, .. } = group;
        let strict = config.transport == Choice::Verbs;
        if strict {
            all_joined(group, unable)?;
        }
        let mut verdicts = group.verdicts();
        self.warn(group, &verdicts, unable);
        verdicts.retain(|(peer, _)| incapable(group, &[rank, *peer], unable).is_none());
        let pairs = self.pairs(group, &verdicts, &mut equipment.names);
        if pairs.is_empty() {
            return Ok(None);
        }
        self.equip(&mut equipment, &pairs);
        let adapters = equipment.adapters;
        let devices: Vec<_> = adapters.iter().flatten().map(|adapter| adapter.device.clone()).collect();
        region.watch(move |at| devices.iter().for_each(|device| device.forget(at)));
        let fabric = Fabric::new(rank, strict, adapters, pairs, region.clone(), config.verbs.care());
        Ok(Some(Arc::new(fabric)))
    }

    /// The peers that verbs join this rank with, and over which ports; devices that are not among `names` are added.
    fn pairs(&self, group: Group<'_>, verdicts: &[(usize, Verdict)], names: &mut Vec<String>) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for (peer, verdict) in verdicts {
            let (Verdict::Verbs(joined), card) = (verdict, &group.cards[*peer]) else { continue };
            let mut rails = Vec::new();
            for rail in joined {
                let (ours, theirs) = (&self.offer.ports[rail.here], &card.verbs.ports[rail.there]);
                let (Ok(port), Ok(gid_index)) = (ours.number.try_into(), rail.gid_here.try_into()) else {
                    continue;
                };
                let adapter = names.iter().position(|name| *name == ours.device).unwrap_or_else(|| {
                    names.push(ours.device.clone());
                    names.len() - 1
                });
                let name = format!("{} ({}, address {})", ours.name(), rail.class, rail.gid_here);
                rails.push(Rail {
                    adapter,
                    port,
                    gid_index,
                    rate_mbps: ours.rate_mbps.min(theirs.rate_mbps),
                    name: format!("{name} to {}", theirs.name()),
                    ports: [ours.name(), theirs.name()],
                });
            }
            if !rails.is_empty() {
                pairs.push(Pair::new(*peer, card.host_name.clone(), rails));
            }
        }
        pairs
    }

    /// Makes what is missing on devices for these peers.
    fn equip(&self, equipment: &mut Equipment, pairs: &[Pair]) {
        for place in equipment.adapters.len()..equipment.names.len() {
            let rails = pairs.iter().flat_map(|pair| &pair.rails).filter(|rail| rail.adapter == place);
            let name = &equipment.names[place];
            let device = match self.devices.get(name) {
                Some(device) => Ok(device.clone()),
                None => Device::open(name, &self.exports),
            };
            let adapter = device.and_then(|device| Adapter::new(&device, rails.count()));
            // Of memory that may not be locked no device is to blame, but it is this one that goes without.
            let named = |e: Error| match e.to_string() {
                why if why.contains(&**name) => why,
                why => format!("{name}: {why}"),
            };
            equipment.adapters.push(adapter.map(Arc::new).map_err(named));
        }
    }

    /// Warns of what a user would not expect: peers that are not reached by verbs, or not by the nearest ports.
    fn warn(&self, group: Group<'_>, verdicts: &[(usize, Verdict)], unable: &[Option<String>]) {
        let Group { rank, cards, region, config, .. } = group;
        if !self.unmatched.is_empty() {
            let (hca, unmatched) = (&config.verbs.hca, self.unmatched.join(", "));
            let text = format_args!("ND_IB_HCA={hca}: {unmatched} matches no RDMA port of this host");
            voice::warn(region, Topic::Filter, text);
        }
        for (peer, verdict) in verdicts {
            let (host, offer) = (&cards[*peer].host_name, &cards[*peer].verbs);
            let ports = |rail: &rdma::Rail| (&self.offer.ports[rail.here], &offer.ports[rail.there]);
            let why = match verdict {
                Verdict::No(why) if !why.is_surprising() => continue,
                Verdict::No(why) => Some(why.text(&group.name(rank), &group.name(*peer))),
                Verdict::Verbs(_) => incapable(group, &[rank, *peer], unable),
            };
            if let Some(why) = why {
                let text =
                    format_args!("rank {rank}: TCP is used with rank {peer} on {host}, not verbs: {why}");
                voice::warn(region, Topic::NoVerbs, text);
            } else if let Verdict::Verbs(rails) = verdict
                && let Some((ours, theirs)) = rails.iter().map(ports).find(|(a, b)| a.farther || b.farther)
            {
                let text = format_args!(
                    "rank {rank}: RDMA port {} is used with {} of rank {peer} on {host}, since their nearest ports do \
                     not reach each other; `nd-topo paths` shows which do",
                    ours.name(),
                    theirs.name()
                );
                voice::warn(region, Topic::Farther, text);
            }
        }
    }
}

/// Why one of these ranks cannot use its devices, if it has said so.
fn incapable(group: Group<'_>, ranks: &[usize], unable: &[Option<String>]) -> Option<String> {
    let of = |rank: &usize| Some((*rank, unable.get(*rank)?.as_ref()?));
    let (rank, why) = ranks.iter().find_map(of)?;
    Some(format!("{} cannot use it: {why}", group.name(rank)))
}

/// Sees that verbs join all ranks of a group; the same on every rank, so that none waits for one that cannot go on.
fn all_joined(group: Group<'_>, unable: &[Option<String>]) -> Result<()> {
    let ranks: Vec<usize> = (0..group.cards.len()).collect();
    let error = |from: usize, to: usize, why: String| {
        let why = format!("ND_TRANSPORT=verbs, but {why}; use auto for TCP instead");
        Err(Error::Unreachable { from, to, why })
    };
    if let Some((from, to, why)) = parted(group.cards, false) {
        return error(from, to, why.text(&group.name(from), &group.name(to)));
    }
    match (unable.iter().position(Option::is_some), incapable(group, &ranks, unable)) {
        (Some(to), Some(why)) if ranks.len() > 1 => error(usize::from(to == 0), to, why),
        _ => Ok(()),
    }
}

/// Among how many ranks of its host each rank's ports are divided; the same on every rank.
fn shares_of(cards: &[Card]) -> Vec<Share> {
    let mut hosts: HashMap<&HostId, Vec<usize>> = HashMap::new();
    for (rank, card) in cards.iter().enumerate() {
        hosts.entry(&card.host).or_default().push(rank);
    }
    let mut all = vec![Share::ALONE; cards.len()];
    for ranks in hosts.values() {
        let offers: Vec<&Offer> = ranks.iter().map(|&rank| &cards[rank].verbs).collect();
        ranks.iter().zip(shares(&offers)).for_each(|(&rank, share)| all[rank] = share);
    }
    all
}

/// Whether verbs join all ranks of different hosts: the same on every rank.
pub(crate) fn joins_all(cards: &[Card]) -> bool {
    let apart = cards.iter().any(|card| card.host != cards[0].host);
    apart && parted(cards, true).is_none()
}

/// The first two ranks that verbs do not join, and why; of ranks `apart`, on different hosts.
fn parted(cards: &[Card], apart: bool) -> Option<(usize, usize, NoVerbs)> {
    // Few hosts are unlike, so few pairs are looked at.
    let mut kinds: Vec<(&Offer, Vec<usize>)> = Vec::new();
    for (rank, card) in cards.iter().enumerate() {
        match kinds.iter_mut().find(|(offer, _)| **offer == card.verbs) {
            Some((_, ranks)) => ranks.push(rank),
            None => kinds.push((&card.verbs, vec![rank])),
        }
    }
    let counts = |a: usize, b: usize| a != b && !(apart && cards[a].host == cards[b].host);
    for (i, (here, ours)) in kinds.iter().enumerate() {
        for (there, theirs) in &kinds[i..] {
            let to_first = || theirs.iter().map(|&to| (ours[0], to)).find(|&(a, b)| counts(a, b));
            // Where there is none, all of theirs are on the host of the first of ours.
            let to_others = || ours.iter().map(|&from| (from, theirs[0])).find(|&(a, b)| counts(a, b));
            let Some((from, to)) = to_first().or_else(to_others) else { continue };
            if let Verdict::No(why) = between(here, there, false) {
                return Some((from, to, why));
            }
        }
    }
    None
}
