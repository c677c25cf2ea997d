//! What a rank has for verbs: the ports that it would use, and why not the others. Nothing else decides that: what tells of
//! it beforehand asks here, too.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use nd_topology::System;
use nd_topology::providers::sysfs;
use nd_topology::rdma::{Asked, HcaFilter, Library, Offer, Place, PortChoice, Unused, Wishes, choose_ports};

use super::adapter;
use super::exported::Exports;
use super::memory::{Device, try_memory};
use crate::{Choice, Config, Error, Result};

/// Where the kernel lists RDMA devices, below the root of sysfs.
const CLASS: &str = "class/infiniband";

/// What a rank has for verbs: the ports that it would use, and their devices, open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ports {
    /// What the other ranks are told.
    pub offer: Offer,
    /// By name.
    pub devices: BTreeMap<String, Arc<Device>>,
    /// Memory of other devices that this rank has registered.
    pub exports: Arc<Exports>,
    /// Names of `ND_IB_HCA` that match no port.
    pub unmatched: Vec<String>,
}

impl Ports {
    /// Looks at this machine, as far as the settings let it use verbs. Costs next to nothing where there is no RDMA.
    ///
    /// # Errors
    /// A setting that cannot be used, and no devices where verbs were asked for.
    pub fn open(config: &Config) -> Result<Ports> {
        let asked = asked(config)?;
        let filter = HcaFilter::parse(&config.verbs.hca)?;
        if matches!(asked, Asked::Never(_)) || !any_device(&config.verbs.sysfs) {
            return Ok(Ports { offer: Offer { asked, ..Offer::default() }, ..Ports::default() });
        }
        let system = sysfs::read(&config.verbs.sysfs)?;
        let unmatched = filter.unmatched(&system.rdma);
        let cores = crate::cores::CoreSet::here().numbers().into_iter().map(u32::from);
        let ports = Ports::at(config, &system, Place::of_cores(&system, cores))?;
        Ok(Ports { unmatched, ..ports })
    }

    /// The ports that a rank at this place of this machine uses, as they are found to work.
    fn at(config: &Config, system: &System, place: Place) -> Result<Ports> {
        let library = match libibverbs_sys::library() {
            Ok(_) => Library::Present,
            Err(e) => Library::Absent(e.to_string()),
        };
        let mut offer = described(config, system, place, library)?;
        let (mut devices, exports) = (BTreeMap::new(), Arc::default());
        if offer.library == Library::Present && !matches!(offer.asked, Asked::Never(_)) {
            let bytes =
                config.ranks.checked_sub(1).map_or(0, |peers| adapter::memory(peers) + config.exposed);
            let (ports, left_out) = (&mut offer.ports, &mut offer.left_out);
            ports.retain(|port| {
                // Those that are farther away are mostly not needed, and opened when they are.
                if port.farther || devices.contains_key(&port.device) {
                    return true;
                }
                let tried = Device::open(&port.device, &exports)
                    .and_then(|device| try_memory(&device, bytes).map(|()| device));
                match tried {
                    Ok(device) => {
                        devices.insert(port.device.clone(), device);
                        true
                    }
                    Err(e) => {
                        left_out.push(unused(port.name(), e));
                        false
                    }
                }
            });
        }
        Ok(Ports { offer, devices, exports, unmatched: Vec::new() })
    }
}

/// What a rank at this place of this machine offers its peers, as a job with these settings finds out when it starts.
///
/// # Errors
/// Settings that cannot be used.
pub fn offer(config: &Config, system: &System, place: Place) -> Result<Offer> {
    Ports::at(config, system, place).map(|ports| ports.offer)
}

/// The same by what is known of a machine alone, which may be another one.
///
/// # Errors
/// Settings that cannot be used.
pub fn described(config: &Config, system: &System, place: Place, library: Library) -> Result<Offer> {
    let asked = asked(config)?;
    let hca = HcaFilter::parse(&config.verbs.hca)?;
    let wishes = Wishes { hca, gid_index: config.verbs.gid_index };
    let choice: PortChoice<'_> = choose_ports(system, place, &wishes)?;
    Ok(Offer::new(asked, config.verbs.rails, library, &choice))
}

/// What the settings say of verbs.
fn asked(config: &Config) -> Result<Asked> {
    Ok(match config.transport {
        Choice::Verbs if config.encrypt => {
            return Err(Error::Config {
                setting: "ND_ENCRYPT",
                value: "1".into(),
                problem: "what goes by verbs is not encrypted, and ND_TRANSPORT=verbs asks for that".into(),
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
    })
}

fn any_device(sysfs: &Path) -> bool {
    std::fs::read_dir(sysfs.join(CLASS)).is_ok_and(|mut devices| devices.next().is_some())
}

/// A port whose device cannot be used.
fn unused(port: String, e: Error) -> Unused {
    let (why, remedy) = match e {
        Error::Limit { what, needed, limit, remedy } => {
            (format!("{what} needs {needed}, the limit is {limit}"), remedy)
        }
        Error::Device { why, remedy, .. } => (why, remedy),
        other => (other.to_string(), String::new()),
    };
    Unused { port, why: format!("cannot be used: {why}"), remedy }
}
