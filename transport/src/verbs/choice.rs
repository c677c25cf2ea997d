//! Which ports a rank has, and which peers it reaches by which of them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use nd_topology::providers::sysfs;
use nd_topology::rdma::{
    Asked, HcaFilter, Library, NoVerbs, Offer, Place, PortChoice, Share, Verdict, Wishes, between,
    between_ranks, choose_ports, shares,
};

use super::adapter::Adapter;
use super::exported::Exports;
use super::fabric::{Fabric, Pair, Rail};
use super::memory::{Block, Device};
use crate::{Card, Choice, Config, Error, HostId, Region, Result};

/// Where the kernel lists RDMA devices, below the root of sysfs.
const CLASS: &str = "class/infiniband";
/// Bytes that are registered to see whether any can be: about what one peer needs.
const TRIAL: u32 = 1 << 20;

/// What a rank has for verbs: the ports that it would use, and their devices, open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ports {
    /// What the other ranks are told.
    pub offer: Offer,
    /// By name.
    devices: BTreeMap<String, Arc<Device>>,
    /// Memory of other devices that this rank has registered.
    pub exports: Arc<Exports>,
}

impl Ports {
    /// Looks at this machine, as far as the settings let it use verbs. Costs next to nothing where there is no RDMA.
    ///
    /// # Errors
    /// A setting that cannot be used, and no devices where verbs were asked for.
    pub fn open(config: &Config) -> Result<Ports> {
        let asked = match config.transport {
            Choice::Verbs if config.encrypt => {
                return Err(Error::Config {
                    setting: "ND_ENCRYPT",
                    value: "1".into(),
                    problem: "what goes by verbs is not encrypted, and ND_TRANSPORT=verbs asks for that"
                        .into(),
                    remedy: "use ND_TRANSPORT=tcp or auto, or leave ND_ENCRYPT".into(),
                });
            }
            Choice::Verbs if config.verbs.disable => {
                return Err(Error::Config {
                    setting: "ND_IB_DISABLE",
                    value: "1".into(),
                    problem: "ND_TRANSPORT=verbs asks for what it forbids".into(),
                    remedy: "leave one of the two".into(),
                });
            }
            Choice::Verbs => Asked::Verbs,
            _ if config.verbs.disable => Asked::Never("ND_IB_DISABLE=1".into()),
            Choice::Shm => Asked::Never("ND_TRANSPORT=shm".into()),
            Choice::Tcp => Asked::Never("ND_TRANSPORT=tcp".into()),
            Choice::Auto if config.encrypt => {
                if any_device(&config.verbs.sysfs) {
                    tracing::info!("ND_ENCRYPT=1: TCP is used between hosts, since RDMA is not encrypted");
                }
                Asked::Never("ND_ENCRYPT=1".into())
            }
            Choice::Auto => Asked::Auto,
        };
        let filter = HcaFilter::parse(&config.verbs.hca)?;
        if matches!(asked, Asked::Never(_)) || !any_device(&config.verbs.sysfs) {
            return Ok(Ports { offer: Offer { asked, ..Offer::default() }, ..Ports::default() });
        }
        let system = sysfs::read(&config.verbs.sysfs)?;
        let wishes = Wishes { hca: filter, gid_index: config.verbs.gid_index };
        let cores = crate::cores::CoreSet::here().numbers().into_iter().map(u32::from);
        let choice = choose_ports(&system, Place::of_cores(&system, cores), &wishes)?;
        for name in wishes.hca.unmatched(&system.rdma) {
            tracing::warn!("ND_IB_HCA={}: {name} matches no RDMA port of this host", wishes.hca);
        }
        let library = match libibverbs_sys::library() {
            Ok(_) => Library::Present,
            Err(e) => Library::Absent(e.to_string()),
        };
        Ok(Ports::of(asked, config.verbs.rails, library, &choice))
    }

    fn of(asked: Asked, most_rails: u8, library: Library, choice: &PortChoice<'_>) -> Ports {
        let mut offer = Offer::new(asked, most_rails, library, choice);
        let (mut devices, exports) = (BTreeMap::new(), Arc::default());
        if offer.library == Library::Present {
            let (ports, left_out) = (&mut offer.ports, &mut offer.left_out);
            ports.retain(|port| {
                // Those that are farther away are mostly not needed, and opened when they are.
                if port.farther || devices.contains_key(&port.device) {
                    return true;
                }
                match Device::open(&port.device, &exports)
                    .and_then(|device| try_memory(&device).map(|()| device))
                {
                    Ok(device) => {
                        devices.insert(port.device.clone(), device);
                        true
                    }
                    Err(e) => {
                        left_out.push(format!("{}: {e}", port.name()));
                        false
                    }
                }
            });
        }
        Ports { offer, devices, exports }
    }

    /// The queue pairs' part of an endpoint that is to reach these peers, as far as verbs join them.
    pub fn fabric(
        &self,
        rank: usize,
        cards: &[Card],
        far: &[usize],
        region: &Arc<Region>,
        config: &Config,
    ) -> Result<Option<Arc<Fabric>>> {
        let strict = config.transport == Choice::Verbs;
        let shares = shares_of(cards);
        let (mut pairs, mut names) = (Vec::new(), Vec::<String>::new());
        let (mut refused, mut farther) = (None, None);
        for &peer in far {
            let card = &cards[peer];
            let (ours, theirs) = ((&self.offer, shares[rank]), (&card.verbs, shares[peer]));
            let joined = match between_ranks(ours, theirs, card.host == cards[rank].host, peer < rank) {
                Verdict::Verbs(rails) => rails,
                Verdict::No(why) if strict => return Err(unreachable(rank, peer, cards, &why)),
                Verdict::No(why) => {
                    refused.get_or_insert((peer, why));
                    continue;
                }
            };
            let mut rails = Vec::new();
            for rail in joined {
                let (ours, theirs) = (&self.offer.ports[rail.here], &card.verbs.ports[rail.there]);
                if ours.farther || theirs.farther {
                    farther.get_or_insert((peer, ours.name(), theirs.name()));
                }
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
                pairs.push(Pair::new(peer, card.host_name.clone(), rails));
            }
        }
        if let Some((peer, why)) = refused.filter(|(_, why)| why.is_surprising()) {
            let [here, there] = [rank, peer].map(|r| format!("rank {r} on {}", cards[r].host_name));
            tracing::warn!(
                "rank {rank}: TCP is used with rank {peer}, not verbs: {}",
                why.text(&here, &there)
            );
        }
        if let Some((peer, ours, theirs)) = farther {
            tracing::warn!(
                "rank {rank}: RDMA port {ours} is used with {theirs} of rank {peer} on {}, since their nearest ports do not \
                 reach each other; `nd-topo paths` shows which do",
                cards[peer].host_name
            );
        }
        if pairs.is_empty() {
            return Ok(None);
        }
        let open = |name: &String| match self.devices.get(name) {
            Some(device) => Ok(device.clone()),
            None => Device::open(name, &self.exports).map_err(|e| e.to_string()),
        };
        let devices: Vec<_> = names.iter().map(open).collect();
        let adapter = |(place, device): (usize, &Result<Arc<Device>, String>)| {
            let rails = pairs.iter().flat_map(|pair: &Pair| &pair.rails);
            let peers = rails.filter(|rail| rail.adapter == place).count();
            let device = device.as_ref().map_err(String::clone)?;
            Adapter::new(device, peers).map(Arc::new).map_err(|e| e.to_string())
        };
        let adapters = devices.iter().enumerate().map(adapter).collect();
        let devices: Vec<_> = devices.into_iter().flatten().collect();
        region.watch(move |at| devices.iter().for_each(|device| device.forget(at)));
        let fabric = Fabric::new(rank, strict, adapters, pairs, region.clone(), config.verbs.care());
        Ok(Some(Arc::new(fabric)))
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
    // Few hosts are unlike, so few pairs are looked at.
    let mut kinds: Vec<(&Card, Vec<usize>)> = Vec::new();
    let host = |card: &Card| cards.iter().position(|c| c.host == card.host).unwrap_or_default();
    for card in cards {
        match kinds.iter_mut().find(|(other, _)| other.verbs == card.verbs) {
            Some((_, hosts)) => hosts.push(host(card)),
            None => kinds.push((card, vec![host(card)])),
        }
    }
    let joined = |a: &Card, b: &Card| matches!(between(&a.verbs, &b.verbs, false), Verdict::Verbs(_));
    let mut any = false;
    for (i, (a, here)) in kinds.iter().enumerate() {
        for (b, there) in &kinds[i..] {
            let apart = here.iter().chain(there).any(|host| *host != here[0]);
            any |= apart;
            if apart && !joined(a, b) {
                return false;
            }
        }
    }
    any
}

fn any_device(sysfs: &Path) -> bool {
    std::fs::read_dir(sysfs.join(CLASS)).is_ok_and(|mut devices| devices.next().is_some())
}

/// Whether memory can be registered at all.
fn try_memory(device: &Device) -> Result<()> {
    Block::new(device, TRIAL / 4096, 4096).map(drop)
}

fn unreachable(from: usize, to: usize, cards: &[Card], why: &NoVerbs) -> Error {
    let [here, there] = [from, to].map(|r| format!("rank {r} on {}", cards[r].host_name));
    let why = format!("ND_TRANSPORT=verbs, but {}; use auto for TCP instead", why.text(&here, &there));
    Error::Unreachable { from, to, why }
}
