//! Devices, ports and addresses, as a folder that looks like `/sys` describes them: below `class/infiniband`, for each
//! device `ports/N` with `state`, `link_layer`, `lid` and `gids/I` as the kernel shows them, and a file `active_mtu` that
//! the kernel does not have, with the bytes of a packet's payload.

use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// It carries packets.
    pub active: bool,
    /// RoCE, not InfiniBand.
    pub ethernet: bool,
    /// The code of its active MTU: 128 bytes shifted by it.
    pub mtu: u32,
    /// InfiniBand's local identifier.
    pub lid: u16,
    /// Its table of addresses; the empty ones are zero.
    pub gids: Vec<[u8; 16]>,
}

impl Device {
    /// A port by its number.
    pub fn port(&self, number: u8) -> Option<&Port> {
        self.ports.iter().find(|port| port.number == number)
    }
}

/// All devices that a folder describes, by name. What is missing there is zero.
pub fn read(root: &Path) -> Vec<Device> {
    let class = root.join("class/infiniband");
    names(&class).into_iter().map(|name| Device { ports: ports(&class.join(&name)), name }).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn ports(device: &Path) -> Vec<Port> {
    let numbers = names(&device.join("ports")).into_iter().filter_map(|name| name.parse().ok());
    numbers.map(|number: u8| port(&device.join(format!("ports/{number}")), number)).collect()
}

fn port(folder: &Path, number: u8) -> Port {
    let text = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default().trim().to_owned();
    let mut gids = Vec::new();
    for name in names(&folder.join("gids")) {
        let Ok(index) = name.parse::<usize>() else { continue };
        if gids.len() <= index {
            gids.resize(index + 1, [0; 16]);
        }
        gids[index] = text(&format!("gids/{name}")).parse::<Ipv6Addr>().map_or([0; 16], |gid| gid.octets());
    }
    Port {
        number,
        active: text("state").ends_with("ACTIVE"),
        ethernet: text("link_layer") == "Ethernet",
        mtu: (1..=5).rev().find(|code| text("active_mtu") == (128 << code).to_string()).unwrap_or(3),
        lid: u16::from_str_radix(text("lid").trim_start_matches("0x"), 16).unwrap_or(0),
        gids,
    }
}
