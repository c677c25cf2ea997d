//! Why two ranks are not joined by verbs, in words.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{GidClass, LinkLayer};

/// Why two ranks are not joined by verbs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoVerbs {
    /// The settings say so.
    NotAsked {
        /// Whose.
        side: Side,
        /// Which setting.
        setting: String,
    },
    /// They share memory, which is faster.
    SameHost,
    /// There is no RDMA device.
    NoDevice(Side),
    /// libibverbs cannot be opened.
    NoLibrary {
        /// Where.
        side: Side,
        /// Why, and what to do.
        reason: String,
    },
    /// There are ports, and none can be used.
    NoPort {
        /// Where.
        side: Side,
        /// Our ports.
        here: Vec<Unused>,
        /// Theirs.
        there: Vec<Unused>,
    },
    /// One has InfiniBand, the other Ethernet.
    LinkLayers {
        /// Ours.
        here: LinkLayer,
        /// Theirs.
        there: LinkLayer,
    },
    /// InfiniBand ports in different subnets.
    Subnets {
        /// Prefix of ours.
        here: u64,
        /// Prefix of theirs.
        there: u64,
    },
    /// RoCE ports without addresses of one class.
    Addresses {
        /// Classes of ours.
        here: Vec<GidClass>,
        /// Classes of theirs.
        there: Vec<GidClass>,
    },
}

impl NoVerbs {
    /// Whether a user would want to know: not where nobody asked, and not where there is no RDMA at all.
    pub fn is_surprising(&self) -> bool {
        !matches!(self, NoVerbs::NotAsked { .. } | NoVerbs::SameHost | NoVerbs::NoDevice(Side::Both))
    }

    /// One clause, with what to call the two ranks or hosts; the same name twice where the other is thought to be like
    /// this one.
    pub fn text(&self, here: &str, there: &str) -> String {
        let one = |side: &Side| match side {
            Side::There => Some(there),
            Side::Both if here != there => None,
            Side::Here | Side::Both => Some(here),
        };
        match self {
            NoVerbs::NotAsked { side: Side::Both, setting } => setting.clone(),
            NoVerbs::NotAsked { side, setting } => format!("{setting} on {}", one(side).unwrap_or(here)),
            NoVerbs::SameHost => "they are on one host and share its memory".to_owned(),
            NoVerbs::NoDevice(side) => match one(side) {
                Some(name) => format!("{name} has no RDMA device"),
                None => format!("neither {here} nor {there} has an RDMA device"),
            },
            NoVerbs::NoLibrary { side, reason } => match one(side) {
                Some(name) => format!("{name}: {reason}"),
                None => format!("{here} and {there}: {reason}"),
            },
            NoVerbs::NoPort { side, here: ours, there: theirs } => match one(side) {
                Some(name) => {
                    let ports = if *side == Side::There { theirs } else { ours };
                    format!("{name} has no usable RDMA port: {}", told(ports))
                }
                None if ours == theirs => {
                    format!("neither {here} nor {there} has a usable RDMA port: {}", told(ours))
                }
                None => format!(
                    "neither has a usable RDMA port ({here}: {}; {there}: {}){}",
                    reasons(ours),
                    reasons(theirs),
                    remedies(ours.iter().chain(theirs))
                ),
            },
            NoVerbs::LinkLayers { here: a, there: b } => {
                format!("{here} has {a} ports, {there} has {b} ports")
            }
            NoVerbs::Subnets { here: a, there: b } => format!(
                "their InfiniBand ports are in different subnets ({here}: {a:016x}, {there}: {b:016x})"
            ),
            NoVerbs::Addresses { here: a, there: b } => {
                let list = |c: &[GidClass]| c.iter().map(GidClass::to_string).collect::<Vec<_>>().join(" / ");
                format!(
                    "their RoCE addresses do not fit together ({here}: {}, {there}: {}); give both interfaces an \
                     IPv4 address",
                    list(a),
                    list(b)
                )
            }
        }
    }
}

/// One of two ranks, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Ours.
    Here,
    /// The peer.
    There,
    /// Both.
    Both,
}

/// A port that a rank does not use: `mlx5_1:1 down (Disabled)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unused {
    /// Its name.
    pub port: String,
    /// Why.
    pub why: String,
    /// What to do, where there is something.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&told(std::slice::from_ref(self)))
    }
}

/// Why ports are not used, and what to do.
pub fn told(ports: &[Unused]) -> String {
    reasons(ports) + &remedies(ports)
}

/// Why ports are not used, each reason once.
fn reasons(ports: &[Unused]) -> String {
    let mut of_each: Vec<(&str, Vec<&str>)> = Vec::new();
    for Unused { port, why, .. } in ports {
        match of_each.iter_mut().find(|(known, _)| known == why) {
            Some((_, ports)) => ports.push(port),
            None => of_each.push((why, vec![port])),
        }
    }
    let one = |(why, ports): &(&str, Vec<&str>)| format!("{} {why}", ports.join(", "));
    of_each.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// What to do so that ports can be used, each thing once, to follow the reasons.
fn remedies<'a>(ports: impl IntoIterator<Item = &'a Unused>) -> String {
    let mut all: Vec<&str> = Vec::new();
    for Unused { remedy, .. } in ports {
        if !remedy.is_empty() && !all.contains(&remedy.as_str()) {
            all.push(remedy);
        }
    }
    all.iter().map(|remedy| format!("; {remedy}")).collect()
}
