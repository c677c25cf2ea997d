//! What sysfs says of RDMA devices, from the text of its files. Whatever is missing or malformed is not known; nothing
//! is made up for it.

use std::collections::BTreeMap;

use super::{Framing, Gid, LinkLayer, NodeType, PortState, RdmaDevice, RdmaPort, gid};

/// A folder of small text files, such as sysfs; tests and fuzzers make one of memory.
pub trait Folder {
    /// What is in a file, without the white space around it; nothing if it cannot be read.
    fn text(&self, path: &str) -> Option<String>;
    /// The names in a folder.
    fn names(&self, path: &str) -> Vec<String>;
}

/// Files by their paths.
impl Folder for BTreeMap<String, String> {
    fn text(&self, path: &str) -> Option<String> {
        self.get(path).map(|t| t.trim().to_owned())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let below = |p: &String| Some(p.strip_prefix(path)?.strip_prefix('/')?.split('/').next()?.to_owned());
        let mut names: Vec<String> = self.keys().filter_map(below).collect();
        names.dedup();
        names
    }
}

/// Ports are numbered in one byte.
const MAX_PORTS: usize = 255;
/// More than any driver's table holds (mlx5 has 255 entries).
const MAX_GIDS: u32 = 65_536;
/// Longer names and words are cut.
const MAX_TEXT: usize = 128;

/// All devices below `class/infiniband`, by name, with their ports. Where they sit is not part of it.
pub fn devices(sysfs: &impl Folder) -> Vec<RdmaDevice> {
    let mut names = sysfs.names("class/infiniband");
    names.sort_by(|a, b| natural(a).cmp(&natural(b)));
    let mut devices: Vec<RdmaDevice> = names.iter().map(|name| device(sysfs, name)).collect();
    for uverbs in sysfs.names("class/infiniband_verbs") {
        let name = sysfs.text(&format!("class/infiniband_verbs/{uverbs}/ibdev"));
        if let Some(device) = devices.iter_mut().find(|d| Some(&d.name) == name.as_ref()) {
            device.uverbs = Some(uverbs);
        }
    }
    devices
}

/// Sorts `mlx5_10` after `mlx5_9`: text without the number at its end, then that.
fn natural(name: &str) -> (&str, usize, &str) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = name[stem.len()..].trim_start_matches('0');
    (stem, digits.len(), digits)
}

fn device(sysfs: &impl Folder, name: &str) -> RdmaDevice {
    let folder = format!("class/infiniband/{name}");
    let text = |file: &str| sysfs.text(&format!("{folder}/{file}")).filter(|t| !t.is_empty()).map(clip);
    let mut numbers: Vec<u32> =
        sysfs.names(&format!("{folder}/ports")).iter().filter_map(|n| n.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.truncate(MAX_PORTS);
    RdmaDevice {
        name: name.to_owned(),
        node_type: text("node_type").as_deref().and_then(node_type),
        node_guid: text("node_guid").as_deref().and_then(guid),
        system_guid: text("sys_image_guid").as_deref().and_then(guid),
        firmware: text("fw_ver"),
        board: text("board_id"),
        ports: numbers.into_iter().map(|n| port(sysfs, &format!("{folder}/ports/{n}"), n)).collect(),
        ..RdmaDevice::default()
    }
}

fn port(sysfs: &impl Folder, folder: &str, number: u32) -> RdmaPort {
    let text = |file: &str| sysfs.text(&format!("{folder}/{file}")).filter(|t| !t.is_empty()).map(clip);
    let rate = text("rate").unwrap_or_default();
    let gids = gids(sysfs, folder);
    let netdev = gids.1.iter().min_by_key(|g| g.index).and_then(|g| g.netdev.clone());
    let mtu = netdev.as_deref().and_then(|n| sysfs.text(&format!("class/net/{n}/mtu")));
    RdmaPort {
        number,
        state: text("state").as_deref().and_then(state),
        link_state: text("phys_state").as_deref().and_then(word).map(str::to_owned),
        link_layer: text("link_layer").as_deref().and_then(link_layer),
        rate_mbps: rate_mbps(&rate),
        lanes: lanes(&rate).map(str::to_owned),
        lid: text("lid").as_deref().and_then(lid),
        netdev_mtu: mtu.and_then(|m| m.parse().ok()).filter(|&m| m > 0),
        netdev,
        gid_count: gids.0,
        gids: gids.1,
    }
}

/// The length of the table, and its entries that are filled.
fn gids(sysfs: &impl Folder, folder: &str) -> (Option<u32>, Vec<Gid>) {
    let names = sysfs.names(&format!("{folder}/gids"));
    let mut indices: Vec<u32> =
        names.iter().filter_map(|n| n.parse().ok()).filter(|&i| i < MAX_GIDS).collect();
    indices.sort_unstable();
    indices.dedup();
    let entry = |&index: &u32| {
        let address = gid::address(&sysfs.text(&format!("{folder}/gids/{index}"))?)?;
        if address.is_unspecified() {
            return None;
        }
        let attribute = |what: &str| sysfs.text(&format!("{folder}/gid_attrs/{what}/{index}"));
        let netdev = attribute("ndevs").filter(|n| !n.is_empty() && !n.contains('/') && n != "..").map(clip);
        Some(Gid { index, address, framing: attribute("types").as_deref().and_then(framing), netdev })
    };
    (indices.last().map(|last| last + 1), indices.iter().filter_map(entry).collect())
}

fn clip(text: String) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

/// The word of `4: ACTIVE`.
fn word(text: &str) -> Option<&str> {
    text.split_once(':').map(|(_, word)| word.trim()).filter(|w| !w.is_empty())
}

/// The number of `4: ACTIVE`.
fn code(text: &str) -> Option<u32> {
    text.split_once(':').map_or(text, |(code, _)| code).trim().parse().ok()
}

/// `4: ACTIVE`, or hwloc's `4`.
pub(crate) fn state(text: &str) -> Option<PortState> {
    Some(match code(text)? {
        1 => PortState::Down,
        2 => PortState::Init,
        3 => PortState::Armed,
        4 => PortState::Active,
        5 => PortState::ActiveDefer,
        _ => return None,
    })
}

/// `1: CA`.
fn node_type(text: &str) -> Option<NodeType> {
    Some(match code(text)? {
        1 => NodeType::Adapter,
        2 => NodeType::Switch,
        3 => NodeType::Router,
        4 => NodeType::Iwarp,
        5 | 6 => NodeType::Usnic,
        7 => NodeType::Other,
        _ => return None,
    })
}

/// `InfiniBand` or `Ethernet`.
fn link_layer(text: &str) -> Option<LinkLayer> {
    match text {
        "InfiniBand" => Some(LinkLayer::InfiniBand),
        "Ethernet" => Some(LinkLayer::Ethernet),
        _ => None,
    }
}

/// `RoCE v2` or `IB/RoCE v1`.
fn framing(text: &str) -> Option<Framing> {
    match text {
        "RoCE v2" => Some(Framing::RoceV2),
        "IB/RoCE v1" => Some(Framing::IbOrRoceV1),
        _ => None,
    }
}

/// The rate of `100 Gb/sec (4X EDR)`, in Mb/s; `2.5` and `14` occur too.
fn rate_mbps(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ')?;
    let gbits: f64 = number.parse().ok()?;
    (unit.starts_with("Gb/s") && gbits > 0.0 && gbits < 1e6).then(|| (gbits * 1000.0).round() as u64)
}

/// The lanes of `100 Gb/sec (4X EDR)`.
fn lanes(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('(')?;
    rest.split_once(')').map(|(lanes, _)| lanes.trim()).filter(|l| !l.is_empty())
}

/// `0x1`; 0 stands for none.
pub(crate) fn lid(text: &str) -> Option<u16> {
    let digits = text.trim().strip_prefix("0x")?;
    u16::from_str_radix(digits, 16).ok().filter(|&l| l > 0)
}

/// `248a:0703:001e:39fe`; all zeros stand for none.
pub(crate) fn guid(text: &str) -> Option<u64> {
    let digits: String = text.trim().split(':').collect();
    let hex = digits.len() <= 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(&digits, 16).ok().filter(|&g| hex && g > 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn files(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(p, t)| ((*p).to_owned(), format!("{t}\n"))).collect()
    }

    /// A RoCE card as mlx5 shows it, with a VLAN, and empty entries whose attributes cannot be read.
    fn card() -> BTreeMap<String, String> {
        let mut all = files(&[
            ("class/infiniband/mlx5_0/node_type", "1: CA"),
            ("class/infiniband/mlx5_0/node_guid", "248a:0703:001e:39fe"),
            ("class/infiniband/mlx5_0/sys_image_guid", "248a:0703:001e:39fe"),
            ("class/infiniband/mlx5_0/fw_ver", "16.35.2000"),
            ("class/infiniband/mlx5_0/board_id", "MT_0000000008"),
            ("class/infiniband_verbs/uverbs3/ibdev", "mlx5_0"),
            ("class/net/eth2/mtu", "9000"),
        ]);
        let port = [
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("link_layer", "Ethernet"),
            ("rate", "100 Gb/sec (4X EDR)"),
            ("lid", "0x0"),
            ("gids/0", "fe80:0000:0000:0000:268a:07ff:fe1e:39fe"),
            ("gids/1", "fe80:0000:0000:0000:268a:07ff:fe1e:39fe"),
            ("gids/2", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
            ("gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
            ("gids/4", "0000:0000:0000:0000:0000:ffff:0a09:0001"),
            ("gids/10", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("gid_attrs/types/0", "IB/RoCE v1"),
            ("gid_attrs/types/1", "RoCE v2"),
            ("gid_attrs/types/2", "IB/RoCE v1"),
            ("gid_attrs/types/3", "RoCE v2"),
            ("gid_attrs/types/4", "RoCE v2"),
            ("gid_attrs/ndevs/0", "eth2"),
            ("gid_attrs/ndevs/1", "eth2"),
            ("gid_attrs/ndevs/2", "eth2"),
            ("gid_attrs/ndevs/3", "eth2"),
            ("gid_attrs/ndevs/4", "eth2.9"),
        ];
        all.extend(port.map(|(p, t)| (format!("class/infiniband/mlx5_0/ports/1/{p}"), format!("{t}\n"))));
        all
    }

    #[test]
    fn a_card_is_read() {
        let devices = devices(&card());
        assert_eq!(devices.len(), 1);
        let d = &devices[0];
        assert_eq!((d.name.as_str(), d.uverbs.as_deref()), ("mlx5_0", Some("uverbs3")));
        assert_eq!((d.node_type, d.node_guid), (Some(NodeType::Adapter), Some(0x248a_0703_001e_39fe)));
        assert_eq!((d.firmware.as_deref(), d.board.as_deref()), (Some("16.35.2000"), Some("MT_0000000008")));
        let p = &d.ports[0];
        assert_eq!(
            (p.number, p.state, p.link_state.as_deref()),
            (1, Some(PortState::Active), Some("LinkUp"))
        );
        assert_eq!((p.rate_mbps, p.lanes.as_deref(), p.lid), (Some(100_000), Some("4X EDR"), None));
        assert_eq!((p.netdev.as_deref(), p.netdev_mtu, p.roce_mtu()), (Some("eth2"), Some(9000), Some(4096)));
        assert_eq!((p.gid_count, p.gids.len()), (Some(11), 5));
        assert_eq!(p.usable_gids()[0].1.index, 3);
        assert_eq!(p.gids[4].netdev.as_deref(), Some("eth2.9"));
    }

    #[test]
    fn what_is_missing_or_malformed_is_not_known() {
        let bare = files(&[("class/infiniband/x/ports/1/state", "")]);
        let expected = RdmaDevice {
            name: "x".into(),
            ports: vec![RdmaPort { number: 1, ..RdmaPort::default() }],
            ..RdmaDevice::default()
        };
        assert_eq!(devices(&bare), std::slice::from_ref(&expected));
        let port = "class/infiniband/x/ports/1";
        let mut wrong = files(&[
            ("class/infiniband/x/node_type", "9: LOOM"),
            ("class/infiniband/x/node_guid", "0000:0000:0000:0000"),
            ("class/infiniband/x/sys_image_guid", "12:not hex"),
            ("class/infiniband/x/ports/one/state", "4: ACTIVE"),
        ]);
        let files = [
            ("state", "ACTIVE"),
            ("phys_state", "7"),
            ("link_layer", "Unspecified"),
            ("rate", "-5 Gb/sec"),
            ("lid", "none"),
            ("gids/0", "not an address"),
            ("gids/x", "fe80::1"),
        ];
        wrong.extend(files.map(|(p, t)| (format!("{port}/{p}"), t.to_owned())));
        let mut expected = expected;
        expected.ports[0].gid_count = Some(1);
        assert_eq!(devices(&wrong), [expected]);
    }

    #[test]
    fn rates() {
        let cases = [
            ("2.5 Gb/sec (1X SDR)", Some(2500), Some("1X SDR")),
            ("56 Gb/sec (4X FDR)", Some(56_000), Some("4X FDR")),
            ("800 Gb/sec (8X HDR)", Some(800_000), Some("8X HDR")),
            ("40 Gb/sec", Some(40_000), None),
            ("nan Gb/sec (4X", None, None),
            ("1e99 Gb/sec", None, None),
            ("", None, None),
        ];
        for (text, rate, wide) in cases {
            assert_eq!((rate_mbps(text), lanes(text)), (rate, wide), "{text}");
        }
    }

    #[test]
    fn devices_are_in_the_order_of_their_numbers() {
        let names = ["mlx5_10", "mlx5_9", "mlx5_1", "bnxt_re0", "rxe"];
        let all: Vec<(String, String)> =
            names.iter().map(|n| (format!("class/infiniband/{n}/node_type"), "1: CA".to_owned())).collect();
        let read: Vec<String> =
            devices(&all.into_iter().collect::<BTreeMap<_, _>>()).into_iter().map(|d| d.name).collect();
        assert_eq!(read, ["bnxt_re0", "mlx5_1", "mlx5_9", "mlx5_10", "rxe"]);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(
            texts in prop::collection::vec("(.{0,30}|[0-9a-f:x. ]{0,40}|[0-9]{1,3}: [A-Za-z]{0,8})", 21),
            number in "[0-9a-z/.]{0,12}",
        ) {
            let keys: Vec<String> = card().into_keys().filter(|k| k.contains("/ports/1/")).collect();
            let mut all: BTreeMap<String, String> = keys.into_iter().zip(texts).collect();
            all.insert(format!("class/infiniband/mlx5_0/ports/{number}/state"), "4: ACTIVE".into());
            for d in devices(&all) {
                for p in &d.ports {
                    let _ = (p.usable_gids(), p.roce_mtu(), gid::gid_table(p));
                    let _ = gid::choose_gid(&d.name, p, Some(3));
                }
            }
        }
    }
}
