//! RDMA devices: what there is, which ports and addresses a rank uses, and whether verbs join two ranks.
//!
//! All of it is pure: [`providers::rdma`](crate::providers::rdma) reads sysfs, and whoever opens the devices asks here
//! what to open. The same functions answer for a machine that is described in a file.
//!
//! | module | what |
//! |---|---|
//! | this | devices, ports and addresses as the kernel shows them |
//! | [`gid`] | the address (GID) that a port is reached by, and the table of them |
//! | [`filter`] | `ND_IB_HCA`: which devices and ports may be used |
//! | [`ports`] | the ports that a rank uses, and why not the others |
//! | [`verdict`] | whether two ranks are joined by verbs, and over which ports |
//! | [`refusal`] | why they are not, in words |
//! | [`rails`] | how many of these ports they use at once, and which |
//! | [`parse`] | the text of sysfs |

pub mod filter;
pub mod gid;
pub mod parse;
pub mod ports;
pub mod rails;
pub mod refusal;
pub mod verdict;

use std::fmt;
use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

pub use filter::HcaFilter;
pub use gid::{GidClass, choose_gid, gid_table, gid_word};
pub use ports::{LeftOut, Place, PortChoice, Wishes, choose_ports};
pub use rails::{MOST_RAILS, Share, between_ranks, shares};
pub use refusal::{NoVerbs, Side, Unused, told};
pub use verdict::{Asked, Library, Offer, OfferedPort, Rail, Verdict, between};

/// One RDMA device (host channel adapter). What the source does not say is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RdmaDevice {
    /// `mlx5_0`, `rxe0`.
    pub name: String,
    /// What kind of node it is on its fabric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_type: Option<NodeType>,
    /// Globally unique id of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_guid: Option<u64>,
    /// Globally unique id that the devices of one card share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_guid: Option<u64>,
    /// Version of the firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// The maker's name for the card (`MT_0000000838`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board: Option<String>,
    /// What programs open it by (`uverbs0`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uverbs: Option<String>,
    /// It has no hardware of its own (Soft-RoCE, Soft-iWARP) and sits where its interface does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub software: bool,
    /// The PCI device that it is or sits on (index into [`System::devices`](crate::System::devices)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<usize>,
    /// The system's number of the NUMA node that it is near to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<i32>,
    /// Its ports, by number.
    #[serde(default)]
    pub ports: Vec<RdmaPort>,
}

/// One port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RdmaPort {
    /// Its number on the device, from 1.
    pub number: u32,
    /// Whether the fabric carries its packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PortState>,
    /// The state of the link below that, in the kernel's word (`LinkUp`, `Polling`, `Disabled`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_state: Option<String>,
    /// What the packets travel in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<LinkLayer>,
    /// Mb/s in one direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_mbps: Option<u64>,
    /// Lanes and their generation (`4X EDR`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<String>,
    /// InfiniBand's local address; absent where the subnet manager has given none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lid: Option<u16>,
    /// The network interface on the same port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
    /// That interface's MTU in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev_mtu: Option<u32>,
    /// How many entries its table of addresses has, the empty ones too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid_count: Option<u32>,
    /// The addresses in that table, by index; the empty ones are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gids: Vec<Gid>,
}

/// One address of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gid {
    /// Its index in the port's table.
    pub index: u32,
    /// The address: a subnet prefix and a GUID on InfiniBand, an IP address on RoCE.
    pub address: Ipv6Addr,
    /// How packets with it are framed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framing: Option<Framing>,
    /// The interface whose address it is: the port's own, or a VLAN of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
}

/// How packets are framed. The kernel has one word for InfiniBand and RoCE v1; the link layer tells which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Framing {
    /// InfiniBand's own, or RoCE v1: frames of their own kind that no router forwards.
    IbOrRoceV1,
    /// In UDP packets, which are routed.
    RoceV2,
}

/// What a device is on its fabric (`enum rdma_node_type` of the kernel).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeType {
    /// A channel adapter: InfiniBand or RoCE.
    Adapter,
    /// A switch.
    Switch,
    /// A router.
    Router,
    /// An iWARP card.
    Iwarp,
    /// Cisco's usNIC.
    Usnic,
    /// Another protocol of its own (EFA).
    Other,
}

/// The state of a port (InfiniBand Architecture Specification, volume 1, PortInfo:PortState).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// No link.
    Down,
    /// A link, and no subnet manager has set it up.
    Init,
    /// Set up, and not yet released for traffic.
    Armed,
    /// It carries traffic.
    Active,
    /// It did, and has errors.
    ActiveDefer,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PortState::Down => "down",
            PortState::Init => "init",
            PortState::Armed => "armed",
            PortState::Active => "active",
            PortState::ActiveDefer => "active-defer",
        })
    }
}

/// What a port's packets travel in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLayer {
    /// InfiniBand.
    #[serde(rename = "infiniband")]
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        })
    }
}

/// Bytes of headers that the kernel sets aside in each Ethernet packet when it derives a RoCE MTU (GRH 40, UDP 8,
/// BTH 12, XRC 4, AtomicETH 28, ICRC 4: `iboe_get_mtu` in `include/rdma/ib_addr.h`).
const ROCE_HEADERS: u32 = 96;

impl RdmaPort {
    /// Bytes of payload in a packet at most, for RoCE: the largest of 256, 512, 1024, 2048 and 4096 that fits the
    /// interface's MTU. sysfs does not show InfiniBand's.
    pub fn roce_mtu(&self) -> Option<u32> {
        let room = self.netdev_mtu?.checked_sub(ROCE_HEADERS)?;
        let fits = [4096, 2048, 1024, 512, 256].into_iter().find(|&mtu| mtu <= room);
        fits.filter(|_| self.link_layer == Some(LinkLayer::Ethernet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mtu_of_roce_is_what_fits_the_interface() {
        let roce = |mtu, link_layer| {
            let link_layer = Some(link_layer);
            RdmaPort { netdev_mtu: Some(mtu), link_layer, ..RdmaPort::default() }.roce_mtu()
        };
        let ethernet = [(1500, 1024), (4200, 4096), (9000, 4096), (4191, 2048), (352, 256)];
        for (mtu, payload) in ethernet {
            assert_eq!(roce(mtu, LinkLayer::Ethernet), Some(payload), "{mtu}");
        }
        assert_eq!((roce(351, LinkLayer::Ethernet), roce(0, LinkLayer::Ethernet)), (None, None));
        assert_eq!(roce(9000, LinkLayer::InfiniBand), None);
    }
}
