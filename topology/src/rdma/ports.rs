//! Which ports a rank uses: those that carry traffic, at full speed, nearest to where it runs; several that are equally
//! near are rails. And why not the others.

use std::fmt;

use super::{Gid, GidClass, HcaFilter, LinkLayer, NodeType, PortState, RdmaDevice, RdmaPort, choose_gid};
use crate::model::Parent;
use crate::{PathClass, Result, System};

/// Where a rank runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On cores of several NUMA nodes, or nobody knows: all ports are equally near.
    Anywhere,
    /// On the cores of a NUMA node, by the system's number.
    Numa(i32),
    /// With its data on a device, such as a GPU (index into [`System::devices`]).
    Device(usize),
}

impl Place {
    /// The NUMA node that holds all of these cores, by their kernel's numbers; [`Place::Anywhere`] if none does.
    pub fn of_cores(system: &System, cores: impl IntoIterator<Item = u32>) -> Place {
        let nodes: Vec<(i32, Vec<u32>)> =
            system.numas.iter().map(|n| (n.id, n.cpus().unwrap_or_default())).collect();
        let mut of = cores.into_iter().map(|c| nodes.iter().find(|(_, cpus)| cpus.contains(&c)).map(|n| n.0));
        match of.next() {
            Some(Some(first)) if of.all(|n| n == Some(first)) => Place::Numa(first),
            _ => Place::Anywhere,
        }
    }
}

/// What a user asks of the choice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wishes {
    /// `ND_IB_HCA`.
    pub hca: HcaFilter,
    /// `ND_IB_GID_INDEX`.
    pub gid_index: Option<u32>,
}

/// The ports that a rank uses, and the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortChoice<'s> {
    /// Those it uses: of each link layer the nearest, in the devices' order.
    pub rails: Vec<ChosenPort<'s>>,
    /// Of those left out below, the ones that are merely farther away, by nearness: for peers that no rail reaches.
    pub farther: Vec<ChosenPort<'s>>,
    /// Those it does not use, in the devices' order.
    pub left_out: Vec<(PortOf<'s>, LeftOut)>,
}

/// A port with its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortOf<'s> {
    /// The device.
    pub device: &'s RdmaDevice,
    /// One of its ports.
    pub port: &'s RdmaPort,
}

impl fmt::Display for PortOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.device.name, self.port.number))
    }
}

/// A port that is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenPort<'s> {
    /// Which.
    pub of: PortOf<'s>,
    /// Its link layer.
    pub link_layer: LinkLayer,
    /// The addresses by which it is reached, best first; with an index that the user chose, that one alone.
    pub gids: Vec<(GidClass, &'s Gid)>,
    /// How near it is to the rank, where that is known.
    pub nearness: Option<PathClass>,
}

/// Why a port is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeftOut {
    /// The user left it out.
    Filter,
    /// Its device speaks another protocol.
    Protocol(NodeType),
    /// It carries no traffic.
    State {
        /// Its state, where that is known.
        state: Option<PortState>,
        /// The state of the link below.
        link_state: Option<String>,
    },
    /// Its link layer is not known.
    LinkLayer,
    /// None of its addresses leads to other hosts.
    NoGid,
    /// Another has more than twice its speed.
    Slower {
        /// Its own speed in Mb/s.
        mbps: u64,
        /// The other port.
        than: String,
        /// That one's speed in Mb/s.
        best: u64,
    },
    /// Another is nearer.
    Farther {
        /// How near it is, where that is known.
        class: Option<PathClass>,
        /// The other port.
        than: String,
        /// How near that one is.
        best: PathClass,
    },
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gbits = |mbps: &u64| *mbps as f64 / 1000.0;
        match self {
            LeftOut::Filter => f.write_str("left out by ND_IB_HCA"),
            LeftOut::Protocol(NodeType::Iwarp) => f.write_str("iWARP, which is not supported"),
            LeftOut::Protocol(NodeType::Usnic) => f.write_str("usNIC, which is not supported"),
            LeftOut::Protocol(_) => f.write_str("neither InfiniBand nor RoCE"),
            LeftOut::State { state: None, .. } => f.write_str("its state is not known"),
            LeftOut::State { state: Some(state), link_state: None } => write!(f, "{state}"),
            LeftOut::State { state: Some(state), link_state: Some(link) } => write!(f, "{state} ({link})"),
            LeftOut::LinkLayer => f.write_str("its link layer is not known"),
            LeftOut::NoGid => f.write_str("no address (GID) that leads to other hosts"),
            LeftOut::Slower { mbps, than, best } => {
                write!(f, "{} Gb/s; {than} has {} Gb/s", gbits(mbps), gbits(best))
            }
            LeftOut::Farther { class: Some(class), than, best } => {
                write!(f, "farther away ({class}) than {than} ({best})")
            }
            LeftOut::Farther { class: None, than, best } => {
                write!(f, "nobody knows how far away it is; {than} is near ({best})")
            }
        }
    }
}

/// Chooses the ports of a rank that runs at `place`.
///
/// A port is used if the user lets it, it is active, it speaks InfiniBand or RoCE and has an address that leads to other
/// hosts. Of those of one link layer, ports with less than half the speed of the fastest are left out (they would
/// hold the others up), and then all but the nearest; what remains are rails. Ports of both link layers may remain: which
/// of them a peer has is not known yet ([`between`](super::between) decides).
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) when the filter matches none of the ports there are (they are listed), or
/// `gid_index` fits a chosen port's table not (it is shown). No port at all is no error.
pub fn choose_ports<'s>(system: &'s System, place: Place, wishes: &Wishes) -> Result<PortChoice<'s>> {
    wishes.hca.choose(&system.rdma)?;
    let mut choice = PortChoice::default();
    let mut fit: Vec<ChosenPort<'s>> = Vec::new();
    for device in &system.rdma {
        let nearness = nearness(system, place, device);
        for port in &device.ports {
            let of = PortOf { device, port };
            match usable(of, wishes) {
                Ok((link_layer, gids)) => fit.push(ChosenPort { of, link_layer, gids, nearness }),
                Err(why) => choice.left_out.push((of, why)),
            }
        }
    }
    let far = |c: &ChosenPort<'_>| c.nearness.unwrap_or(PathClass::Sys);
    for layer in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let mut rails: Vec<ChosenPort<'s>> = fit.extract_if(.., |c| c.link_layer == layer).collect();
        let speed = |c: &ChosenPort<'_>| c.of.port.rate_mbps.filter(|&r| r > 0);
        // The first of several.
        let fastest =
            rails.iter().rev().max_by_key(|c| speed(c)).and_then(|c| Some((c.of.to_string(), speed(c)?)));
        if let Some((than, best)) = fastest {
            let slow = |c: &ChosenPort<'_>| speed(c).filter(|&mbps| mbps < best / 2);
            for c in rails.extract_if(.., |c| slow(c).is_some()) {
                let mbps = speed(&c).unwrap_or_default();
                choice.left_out.push((c.of, LeftOut::Slower { mbps, than: than.clone(), best }));
            }
        }
        if let Some((than, best)) = rails.iter().min_by_key(|c| far(c)).map(|c| (c.of.to_string(), far(c))) {
            for c in rails.extract_if(.., |c| far(c) > best) {
                let class = c.nearness;
                choice.left_out.push((c.of, LeftOut::Farther { class, than: than.clone(), best }));
                choice.farther.push(c);
            }
        }
        choice.rails.append(&mut rails);
    }
    if let Some(index) = wishes.gid_index {
        for rail in &mut choice.rails {
            rail.gids = vec![choose_gid(&rail.of.device.name, rail.of.port, Some(index))?];
        }
        choice.farther.retain_mut(|port| {
            let gid = choose_gid(&port.of.device.name, port.of.port, Some(index));
            port.gids = gid.into_iter().collect();
            !port.gids.is_empty()
        });
    }
    let order = |of: &PortOf<'_>| {
        let device = system.rdma.iter().position(|d| std::ptr::eq(d, of.device));
        (device, of.device.ports.iter().position(|p| std::ptr::eq(p, of.port)))
    };
    choice.rails.sort_by_key(|c| order(&c.of));
    choice.farther.sort_by_key(|c| (far(c), order(&c.of)));
    choice.left_out.sort_by_key(|(of, _)| order(of));
    Ok(choice)
}

type Usable<'s> = (LinkLayer, Vec<(GidClass, &'s Gid)>);

fn usable<'s>(of: PortOf<'s>, wishes: &Wishes) -> Result<Usable<'s>, LeftOut> {
    let PortOf { device, port } = of;
    if !wishes.hca.allows(&device.name, port.number) {
        return Err(LeftOut::Filter);
    }
    if let Some(other) = device.node_type.filter(|&t| t != NodeType::Adapter) {
        return Err(LeftOut::Protocol(other));
    }
    if port.state != Some(PortState::Active) {
        return Err(LeftOut::State { state: port.state, link_state: port.link_state.clone() });
    }
    let link_layer = port.link_layer.ok_or(LeftOut::LinkLayer)?;
    let gids = port.usable_gids();
    // An index that the user chose is looked at where the port is used, with an error of its own.
    if gids.is_empty() && wishes.gid_index.is_none() {
        return Err(LeftOut::NoGid);
    }
    Ok((link_layer, gids))
}

/// How near an RDMA device is to a place, as `nvidia-smi` would say it; nothing where that is not known or where all
/// are equally near.
pub fn nearness(system: &System, place: Place, rdma: &RdmaDevice) -> Option<PathClass> {
    let by_numa = |numa: i32| {
        // Where there is one node, everything is near to it.
        let own = rdma.numa.or((system.numas.len() == 1).then_some(numa))?;
        Some(if own == numa { PathClass::Phb } else { PathClass::Sys })
    };
    match place {
        Place::Anywhere => None,
        Place::Numa(numa) => by_numa(numa),
        Place::Device(from) => {
            let start = system.devices.get(from)?;
            let Some(to) = rdma.device.filter(|&d| d < system.devices.len()) else {
                return by_numa(system.numas.get(system.numa_of(from))?.id);
            };
            let (up_from, up_to) = (upward(system, from), upward(system, to));
            let meeting =
                up_from.iter().enumerate().find_map(|(i, d)| Some((i, up_to.iter().position(|x| x == d)?)));
            if let Some((a, b)) = meeting {
                // A switch is its upstream port and, below it, one downstream port for each device.
                return Some(if a.max(b) <= 2 { PathClass::Pix } else { PathClass::Pxb });
            }
            let end = &system.devices[to];
            match (&start.host_bridge, &end.host_bridge) {
                (Some(a), Some(b)) if a == b => Some(PathClass::Phb),
                (a, b) => {
                    let class = by_numa(system.numas.get(system.numa_of(from))?.id)?;
                    let apart = class == PathClass::Phb && a.is_some() && b.is_some();
                    Some(if apart { PathClass::Node } else { class })
                }
            }
        }
    }
}

/// A device and all above it.
fn upward(system: &System, device: usize) -> Vec<usize> {
    let mut all = vec![device];
    while let Some(Parent::Device(up)) = all.last().map(|&d| system.devices[d].parent) {
        all.push(up);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BusId, Device, Numa};
    use crate::rdma::Framing;

    fn bus(n: usize) -> BusId {
        BusId::parse(&format!("0000:{n:02x}:00.0")).unwrap()
    }

    /// Two NUMA nodes, on each a switch with a GPU (1, 4), a NIC (2, 5) below it.
    fn machine() -> System {
        let mut s = System::default();
        for id in 0..2 {
            let affinity = Some(if id == 0 { "0000000f" } else { "000000f0" }.to_owned());
            s.numas.push(Numa { id, affinity, ..Numa::default() });
            let switch = s.devices.len();
            for (parent, class) in [
                (Parent::Numa(id as usize), 0x060400),
                (Parent::Device(switch), 0x030200),
                (Parent::Device(switch), 0x020000),
            ] {
                s.devices.push(Device::new(parent, bus(s.devices.len()), class));
            }
        }
        s
    }

    fn hca(name: &str, device: usize, numa: i32, gbits: u64) -> RdmaDevice {
        let gid = Gid {
            index: 0,
            address: "::ffff:10.0.0.1".parse().unwrap(),
            framing: Some(Framing::RoceV2),
            netdev: None,
        };
        let port = RdmaPort {
            number: 1,
            state: Some(PortState::Active),
            link_layer: Some(LinkLayer::Ethernet),
            rate_mbps: Some(gbits * 1000),
            gid_count: Some(4),
            gids: vec![gid],
            ..RdmaPort::default()
        };
        RdmaDevice {
            name: name.into(),
            device: Some(device),
            numa: Some(numa),
            ports: vec![port],
            ..RdmaDevice::default()
        }
    }

    fn two_nics() -> System {
        System { rdma: vec![hca("a", 2, 0, 100), hca("b", 5, 1, 100)], ..machine() }
    }

    /// The ports used, then the others with the reason.
    fn said(system: &System, place: Place, wishes: &Wishes) -> (Vec<String>, Vec<String>) {
        let choice = choose_ports(system, place, wishes).unwrap();
        let rails = choice.rails.iter().map(|c| c.of.to_string()).collect();
        (rails, choice.left_out.iter().map(|(of, why)| format!("{of} {why}")).collect())
    }

    #[test]
    fn the_nearest_ports_are_used_and_equally_near_ones_are_rails() {
        let system = two_nics();
        let plain = Wishes::default();
        assert_eq!(said(&system, Place::Anywhere, &plain).0, ["a:1", "b:1"]);
        let far = vec!["a:1 farther away (SYS) than b:1 (PHB)".to_owned()];
        assert_eq!(said(&system, Place::Numa(1), &plain), (vec!["b:1".into()], far));
        let far = vec!["b:1 farther away (SYS) than a:1 (PIX)".to_owned()];
        assert_eq!(said(&system, Place::Device(1), &plain), (vec!["a:1".into()], far));
        assert_eq!(Place::of_cores(&system, [4, 5]), Place::Numa(1));
        assert_eq!(Place::of_cores(&system, [3, 4]), Place::Anywhere);
        assert_eq!(Place::of_cores(&system, [99]), Place::Anywhere);
        assert_eq!(Place::of_cores(&system, []), Place::Anywhere);
    }

    #[test]
    fn farther_ports_are_kept_for_peers_that_no_rail_reaches() {
        let system = two_nics();
        let kept = |wishes: &Wishes| {
            let choice = choose_ports(&system, Place::Numa(1), wishes).unwrap();
            choice.farther.iter().map(|c| c.of.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&Wishes::default()), ["a:1"]);
        assert_eq!(kept(&Wishes { gid_index: Some(0), ..Wishes::default() }), ["a:1"]);
        assert!(kept(&Wishes { hca: HcaFilter::parse("b").unwrap(), ..Wishes::default() }).is_empty());
    }

    #[test]
    fn what_is_not_known_counts_as_far_and_one_node_is_near_to_all() {
        let mut system = two_nics();
        (system.rdma[1].numa, system.rdma[1].device) = (None, None);
        let plain = Wishes::default();
        let (rails, others) = said(&system, Place::Numa(0), &plain);
        assert_eq!(
            (rails, others),
            (vec!["a:1".into()], vec!["b:1 nobody knows how far away it is; a:1 is near (PHB)".into()])
        );
        system.numas.truncate(1);
        system.devices.truncate(3);
        assert_eq!(said(&system, Place::Numa(0), &plain).0, ["a:1", "b:1"]);
    }

    #[test]
    fn switches_bridges_and_sockets_are_told_apart() {
        let mut system = two_nics();
        let of = |s: &System, from| nearness(s, Place::Device(from), &s.rdma[0]);
        assert_eq!(
            (of(&system, 1), of(&system, 4), of(&system, 2)),
            (Some(PathClass::Pix), Some(PathClass::Sys), Some(PathClass::Pix))
        );
        // The GPU moves to the root, under the same bridge, under another, and behind two more switches.
        system.devices[1].parent = Parent::Numa(0);
        assert_eq!(of(&system, 1), Some(PathClass::Phb));
        system.devices[1].host_bridge = Some("pci0000:00".into());
        system.devices[2].host_bridge = Some("pci0000:20".into());
        assert_eq!(of(&system, 1), Some(PathClass::Node));
        let below = system.devices.len();
        for (i, up) in [0, below, below + 1].into_iter().enumerate() {
            system.devices.push(Device::new(Parent::Device(up), bus(0x40 + i), 0x060400));
        }
        assert_eq!(of(&system, below + 2), Some(PathClass::Pxb));
        assert_eq!(of(&system, 999), None);
    }

    #[test]
    fn ports_that_cannot_be_used_say_why() {
        let mut system = machine();
        let mut put = |name: &str, change: fn(&mut RdmaDevice)| {
            let mut device = hca(name, 2, 0, 100);
            change(&mut device);
            system.rdma.push(device);
        };
        put("good", |_| ());
        put("down", |d| {
            (d.ports[0].state, d.ports[0].link_state) = (Some(PortState::Down), Some("Disabled".into()));
        });
        put("init", |d| d.ports[0].state = Some(PortState::Init));
        put("silent", |d| d.ports[0].state = None);
        put("siw0", |d| d.node_type = Some(NodeType::Iwarp));
        put("efa", |d| d.node_type = Some(NodeType::Other));
        put("layerless", |d| d.ports[0].link_layer = None);
        put("nowhere", |d| d.ports[0].gids[0].address = "::1".parse().unwrap());
        put("slow", |d| d.ports[0].rate_mbps = Some(25_000));
        put("half", |d| d.ports[0].rate_mbps = Some(50_000));
        put("rateless", |d| d.ports[0].rate_mbps = None);
        put("filtered", |_| ());
        let wishes = Wishes { hca: HcaFilter::parse("^filtered").unwrap(), ..Wishes::default() };
        let (rails, others) = said(&system, Place::Numa(0), &wishes);
        assert_eq!(rails, ["good:1", "half:1", "rateless:1"]);
        assert_eq!(
            others,
            [
                "down:1 down (Disabled)",
                "init:1 init",
                "silent:1 its state is not known",
                "siw0:1 iWARP, which is not supported",
                "efa:1 neither InfiniBand nor RoCE",
                "layerless:1 its link layer is not known",
                "nowhere:1 no address (GID) that leads to other hosts",
                "slow:1 25 Gb/s; good:1 has 100 Gb/s",
                "filtered:1 left out by ND_IB_HCA",
            ]
        );
    }

    #[test]
    fn each_link_layer_has_its_own_rails() {
        let mut system = two_nics();
        let mut ib = hca("ib", 2, 0, 400);
        ib.ports[0].link_layer = Some(LinkLayer::InfiniBand);
        system.rdma.push(ib);
        assert_eq!(said(&system, Place::Numa(0), &Wishes::default()).0, ["a:1", "ib:1"]);
    }

    #[test]
    fn wishes_that_cannot_be_met_are_errors_that_list_what_there_is() {
        let system = two_nics();
        let fails = |hca: &str, gid_index| {
            let wishes = Wishes { hca: HcaFilter::parse(hca).unwrap(), gid_index };
            choose_ports(&system, Place::Numa(0), &wishes).unwrap_err().to_string()
        };
        assert!(fails("=c", None).contains("there are: a:1, b:1"));
        let error = fails("", Some(4));
        assert!(
            error.contains("out of range: the table ends at index 3")
                && error.contains("of a port 1: 0 = ::ffff:10.0.0.1"),
            "{error}"
        );
        // Of a port that is not used nobody asks.
        let mut other = system.clone();
        other.rdma[1].ports[0].gids.clear();
        let wishes = Wishes { gid_index: Some(0), ..Wishes::default() };
        assert_eq!(choose_ports(&other, Place::Numa(0), &wishes).unwrap().rails[0].gids.len(), 1);
        assert!(choose_ports(&System::default(), Place::Anywhere, &wishes).unwrap().rails.is_empty());
    }
}
