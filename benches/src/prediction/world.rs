//! Who talks to whom over what, and the processes for it.

use std::path::Path;
use std::process::Command;

use nd_tests::hosts::{Hosts, Network};

use crate::compare::Error;
use crate::compare::launch;

/// Some ranks, and how they reach each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum World {
    /// Two ranks of this machine over this transport.
    Here(&'static str),
    /// Two hosts made of namespaces.
    Hosts {
        /// Ranks of each.
        ranks: usize,
        /// Gbit/s (1e9) of each host's link; none: as fast as the machine copies.
        rate: Option<f64>,
    },
}

impl World {
    /// All that are measured.
    pub const ALL: [World; 4] = [
        World::Here("shm"),
        World::Here("tcp"),
        World::Hosts { ranks: 1, rate: Some(1.0) },
        World::Hosts { ranks: 2, rate: None },
    ];

    /// For people.
    pub fn name(&self) -> String {
        match self {
            World::Here(transport) => format!("{transport}, 2 ranks"),
            World::Hosts { ranks, rate: Some(rate) } => format!("2 hosts × {ranks}, {rate} Gbit/s"),
            World::Hosts { ranks, rate: None } => format!("2 hosts × {ranks}"),
        }
    }

    /// For files.
    pub fn file(&self) -> String {
        match self {
            World::Here(transport) => (*transport).to_owned(),
            World::Hosts { ranks, rate } => {
                format!("hosts-2x{ranks}{}", rate.map_or(String::new(), |rate| format!("-{rate}gbit")))
            }
        }
    }

    /// The hosts it needs, if it needs any.
    pub fn hosts(&self) -> Result<Option<Hosts>, String> {
        match *self {
            World::Here(_) => Ok(None),
            World::Hosts { .. } if !Hosts::possible() => {
                Err("hosts made of namespaces need root, iproute2 and util-linux".into())
            }
            World::Hosts { rate, .. } => {
                Hosts::open(2, Network { interfaces: 1, rate }).map(Some).map_err(|e| e.to_string())
            }
        }
    }

    /// Processes to start at the same time, of which the first one prints.
    pub fn commands(
        &self,
        tools: &Path,
        hosts: Option<&Hosts>,
        calibration: &Path,
    ) -> Result<Vec<Command>, Error> {
        let (ranks, transport) = match *self {
            World::Here(transport) => (2, transport),
            World::Hosts { ranks, .. } => (ranks, "auto"),
        };
        let mut commands = launch::ours(tools, hosts, ranks, false)?;
        for command in &mut commands {
            command.args(["allreduce", "-b", "4", "-e", "64M", "-f", "4", "-c", "0", "--explain"]);
            command.args(["--transport", transport, "--calibrate"]).arg(calibration);
        }
        Ok(commands)
    }
}
