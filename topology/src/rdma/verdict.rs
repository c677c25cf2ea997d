//! Whether two ranks are joined by verbs, and over which ports. Each rank makes an [`Offer`]; from both offers
//! both ranks come to the same verdict, so that nobody waits for a queue pair that the other does not make.

use std::borrow::Cow;
use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::ports::PortOf;
use super::{GidClass, LeftOut, LinkLayer, NoVerbs, PortChoice, Side, Unused};
use crate::printable;

/// What a rank's settings say of verbs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// Wherever they work between hosts.
    #[default]
    Auto,
    /// Verbs or an error, inside a host too.
    Verbs,
    /// Never; the setting that says so, such as `ND_TRANSPORT=tcp`.
    Never(String),
}

/// Whether libibverbs can be opened.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Library {
    /// Nobody looked: the machine is described in a file.
    #[default]
    Unknown,
    /// It is there.
    Present,
    /// It is not: why, and what to do.
    Absent(String),
}

/// What a rank has for verbs. Travels to its peers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Its settings.
    pub asked: Asked,
    /// How many ports it would use at once for one peer, at most.
    pub most_rails: u8,
    /// Whether it can open libibverbs.
    pub library: Library,
    /// The ports that it would use; after them those that are farther away, for peers that the others do not reach.
    pub ports: Vec<OfferedPort>,
    /// The other ports.
    pub left_out: Vec<Unused>,
}

impl Default for Offer {
    /// Nothing, of a rank that would use one port for a peer.
    fn default() -> Offer {
        Offer {
            asked: Asked::default(),
            most_rails: 1,
            library: Library::default(),
            ports: Vec::new(),
            left_out: Vec::new(),
        }
    }
}

/// A port that a rank would use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedPort {
    /// The device's name.
    pub device: String,
    /// The port's number.
    pub number: u32,
    /// What its packets travel in.
    pub link_layer: LinkLayer,
    /// Mb/s in one direction, where known.
    pub rate_mbps: Option<u64>,
    /// Bytes of payload in a packet at most, where known.
    pub mtu: Option<u32>,
    /// InfiniBand's local address.
    pub lid: Option<u16>,
    /// InfiniBand's subnet prefix.
    pub subnet: Option<u64>,
    /// By what it is reached: the index of its address of each class, best first.
    pub gids: Vec<(GidClass, u32)>,
    /// Others are nearer to the rank.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub farther: bool,
}

impl OfferedPort {
    /// `mlx5_0:1`.
    pub fn name(&self) -> String {
        format!("{}:{}", printable(&self.device), self.number)
    }
}

impl Offer {
    /// Of a rank that chose these ports, and would use so many at once for one peer.
    pub fn new(asked: Asked, most_rails: u8, library: Library, choice: &PortChoice<'_>) -> Offer {
        let port = |(c, farther): (&super::ports::ChosenPort<'_>, bool)| {
            let mut gids: Vec<(GidClass, u32)> = Vec::new();
            for (class, gid) in &c.gids {
                if gids.iter().all(|(known, _)| known != class) {
                    gids.push((*class, gid.index));
                }
            }
            let infiniband = c.link_layer == LinkLayer::InfiniBand;
            OfferedPort {
                device: c.of.device.name.clone(),
                number: c.of.port.number,
                link_layer: c.link_layer,
                rate_mbps: c.of.port.rate_mbps,
                mtu: c.of.port.roce_mtu(),
                lid: c.of.port.lid,
                subnet: c.gids.first().filter(|_| infiniband).map(|(_, g)| g.subnet()),
                gids,
                farther,
            }
        };
        let unused = |(of, why): &(PortOf<'_>, LeftOut)| Unused {
            port: of.to_string(),
            why: why.to_string(),
            remedy: String::new(),
        };
        let nearest = choice.rails.iter().map(|c| (c, false));
        Offer {
            asked,
            most_rails,
            library,
            ports: nearest.chain(choice.farther.iter().map(|c| (c, true))).map(port).collect(),
            left_out: choice.left_out.iter().map(unused).collect(),
        }
    }

    /// With its nearest ports alone, which come first.
    fn nearest(&self) -> Cow<'_, Offer> {
        if !self.ports.iter().any(|port| port.farther) {
            return Cow::Borrowed(self);
        }
        let mut nearest = self.clone();
        nearest.ports.retain(|port| !port.farther);
        Cow::Owned(nearest)
    }

    fn layers(&self) -> Vec<LinkLayer> {
        let all = [LinkLayer::InfiniBand, LinkLayer::Ethernet];
        all.into_iter().filter(|&l| self.ports.iter().any(|p| p.link_layer == l)).collect()
    }

    fn of(&self, layer: LinkLayer) -> Vec<usize> {
        (0..self.ports.len()).filter(|&i| self.ports[i].link_layer == layer).collect()
    }
}

/// Whether two ranks are joined by verbs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Over these pairs of ports, of one link layer; at least one.
    Verbs(Vec<Rail>),
    /// Not.
    No(NoVerbs),
}

/// Two ports that carry the traffic of two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rail {
    /// Ours (index into [`Offer::ports`]).
    pub here: usize,
    /// Theirs.
    pub there: usize,
    /// By addresses of this class.
    pub class: GidClass,
    /// The index of ours.
    pub gid_here: u32,
    /// The index of theirs.
    pub gid_there: u32,
    /// Bytes of payload in a packet, the less of both, where known.
    pub mtu: Option<u32>,
}

impl Rail {
    /// As the other rank sees it.
    pub fn turned(&self) -> Rail {
        let Rail { here, there, class, gid_here, gid_there, mtu } = *self;
        Rail { here: there, there: here, class, gid_here: gid_there, gid_there: gid_here, mtu }
    }
}

/// Whether two ranks are joined by verbs. `between(b, a)` is the mirror image of `between(a, b)`.
///
/// Of two link layers that both have, the one with more bandwidth is used. Ports that are farther away are used where the
/// nearest of both do not reach each other.
pub fn between(here: &Offer, there: &Offer, same_host: bool) -> Verdict {
    match refusal(here, there, same_host) {
        Some(why) => Verdict::No(why),
        None => {
            let (a, b) = (here.nearest(), there.nearest());
            let nearest = (!a.ports.is_empty() && !b.ports.is_empty()).then(|| fabric(&a, &b));
            match nearest {
                Some(Verdict::Verbs(rails)) => Verdict::Verbs(rails),
                nearest => match fabric(here, there) {
                    Verdict::Verbs(rails) => Verdict::Verbs(rails),
                    no => nearest.unwrap_or(no),
                },
            }
        }
    }
}

/// What speaks against verbs before ports are compared.
fn refusal(here: &Offer, there: &Offer, same_host: bool) -> Option<NoVerbs> {
    let sides = |at: &dyn Fn(&Offer) -> bool| match (at(here), at(there)) {
        (true, true) => Some(Side::Both),
        (true, false) => Some(Side::Here),
        (false, true) => Some(Side::There),
        (false, false) => None,
    };
    let first = |side: Side| if side == Side::There { there } else { here };
    if let Some(side) = sides(&|o| matches!(o.asked, Asked::Never(_)))
        && let Asked::Never(setting) = &first(side).asked
    {
        return Some(NoVerbs::NotAsked { side, setting: setting.clone() });
    }
    if same_host && (here.asked != Asked::Verbs || there.asked != Asked::Verbs) {
        return Some(NoVerbs::SameHost);
    }
    if let Some(side) = sides(&|o| o.ports.is_empty() && o.left_out.is_empty()) {
        return Some(NoVerbs::NoDevice(side));
    }
    if let Some(side) = sides(&|o| matches!(o.library, Library::Absent(_)))
        && let Library::Absent(reason) = &first(side).library
    {
        return Some(NoVerbs::NoLibrary { side, reason: reason.clone() });
    }
    sides(&|o| o.ports.is_empty()).map(|side| {
        let (here, there) = (here.left_out.clone(), there.left_out.clone());
        NoVerbs::NoPort { side, here, there }
    })
}

/// Which ports fit together.
fn fabric(here: &Offer, there: &Offer) -> Verdict {
    let common: Vec<LinkLayer> = here.layers().into_iter().filter(|l| there.layers().contains(l)).collect();
    let speed = |rails: &[Rail]| -> u64 {
        let rate = |r: &Rail| here.ports[r.here].rate_mbps.min(there.ports[r.there].rate_mbps).unwrap_or(1);
        rails.iter().map(rate).fold(0, u64::saturating_add)
    };
    let ways = common.iter().map(|&layer| rails(here, there, layer)).filter(|rails| !rails.is_empty());
    // InfiniBand before Ethernet where both carry as much.
    let best = ways.rev().max_by_key(|rails| speed(rails));
    if let Some(rails) = best {
        return Verdict::Verbs(rails);
    }
    let (a, b) = (&here.ports[0], &there.ports[0]);
    Verdict::No(match common.first() {
        None => NoVerbs::LinkLayers { here: a.link_layer, there: b.link_layer },
        Some(LinkLayer::InfiniBand) => {
            let subnet = |o: &Offer| o.ports.iter().find_map(|p| p.subnet).unwrap_or_default();
            NoVerbs::Subnets { here: subnet(here), there: subnet(there) }
        }
        Some(LinkLayer::Ethernet) => {
            let classes = |o: &Offer| {
                let of = o.of(LinkLayer::Ethernet).into_iter().flat_map(|i| &o.ports[i].gids);
                let mut all: Vec<GidClass> = of.map(|(class, _)| *class).collect();
                all.sort_unstable();
                all.dedup();
                all
            };
            NoVerbs::Addresses { here: classes(here), there: classes(there) }
        }
    })
}

/// The pairs of ports of one link layer: the fastest first, of these the ones whose ports are in the fewest pairs so far,
/// and of these the first ports of both. A port is in as many pairs as it has the speed for, so that two ports of
/// 200 Gb/s serve four of 100 Gb/s; it is in one where its speed is not known.
fn rails(here: &Offer, there: &Offer, layer: LinkLayer) -> Vec<Rail> {
    let (ours, theirs) = (here.of(layer), there.of(layer));
    let all = (0..ours.len()).flat_map(|i| (0..theirs.len()).map(move |j| (i, j)));
    let fits: Vec<_> =
        all.filter_map(|(i, j)| Some((i, j, join(here, there, ours[i], theirs[j])?))).collect();
    // Of each port, how many pairs it is in, and the speed that they take of it.
    let (mut here_in, mut there_in) = (vec![(0, 0); ours.len()], vec![(0, 0); theirs.len()]);
    let room = |(pairs, taken): (usize, u64), rate: Option<u64>, more: u64| {
        pairs == 0 || rate.is_some_and(|rate| taken.saturating_add(more) <= rate)
    };
    let mut rails = Vec::new();
    loop {
        let next = fits.iter().filter_map(|&(i, j, rail)| {
            let (a, b) = (here.ports[ours[i]].rate_mbps, there.ports[theirs[j]].rate_mbps);
            let rate = a.or(b).unwrap_or(1).min(b.or(a).unwrap_or(1));
            let fits = room(here_in[i], a, rate) && room(there_in[j], b, rate);
            // The same from either side.
            let key = (Reverse(rate), here_in[i].0 + there_in[j].0, i.max(j), i.min(j));
            fits.then_some((key, (i, j, rate, rail)))
        });
        let Some((_, (i, j, rate, rail))) = next.min_by_key(|(key, _)| *key) else { return rails };
        for port in [&mut here_in[i], &mut there_in[j]] {
            *port = (port.0 + 1, port.1.saturating_add(rate));
        }
        rails.push(rail);
    }
}

/// Two ports as a rail, if they can reach each other.
fn join(here: &Offer, there: &Offer, i: usize, j: usize) -> Option<Rail> {
    let (a, b) = (&here.ports[i], &there.ports[j]);
    if a.link_layer == LinkLayer::InfiniBand && a.subnet != b.subnet {
        return None;
    }
    let classes = a.gids.iter().filter_map(|(class, own)| {
        let other = b.gids.iter().find(|(c, _)| c == class)?.1;
        Some((*class, *own, other))
    });
    let (class, gid_here, gid_there) = classes.min_by_key(|(class, ..)| *class)?;
    let mtu = a.mtu.zip(b.mtu).map(|(a, b)| a.min(b));
    Some(Rail { here: i, there: j, class, gid_here, gid_there, mtu })
}

#[cfg(test)]
mod tests;
