//! hwloc's view of the machine: host bridges, locality where sysfs is silent, and a second opinion on the tree.

use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::TypeFilter;

use crate::model::{BusId, System};
use crate::{Error, Result};

const SOURCE: &str = "hwloc";

/// What hwloc says of one PCI device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its address.
    pub bus: BusId,
    /// The PCI device above it, if any.
    pub parent: Option<BusId>,
    /// The NUMA node that it is near to, where that is one.
    pub numa: Option<i32>,
}

/// All PCI devices, with the numbers of the NUMA nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The system's numbers of its NUMA nodes.
    pub numas: Vec<i32>,
    /// PCI devices and bridges.
    pub devices: Vec<Seen>,
}

/// Asks hwloc.
///
/// # Errors
/// [`Error::Provider`] with hwloc's reason.
pub fn read() -> Result<View> {
    let fail = |e: &dyn std::fmt::Display| Error::Provider(format!("hwloc sees nothing: {e}"));
    let topology = Topology::builder()
        .with_io_type_filter(TypeFilter::KeepAll)
        .map_err(|e| fail(&e))?
        .build()
        .map_err(|e| fail(&e))?;
    let index = |o: &TopologyObject| o.os_index().map(|i| i as i32);
    let numas = topology.objects_with_type(ObjectType::NUMANode).filter_map(index).collect();
    let mut devices = Vec::new();
    for kind in [ObjectType::Bridge, ObjectType::PCIDevice] {
        for object in topology.objects_with_type(kind) {
            let Some(bus) = address(object) else { continue };
            let parent = object.parent().and_then(address);
            let near = object.first_non_io_ancestor().and_then(|a| a.nodeset());
            let numa = near.and_then(|set| {
                let mut nodes = set.iter_set();
                let first = nodes.next().map(|i| usize::from(i) as i32);
                if nodes.next().is_some() { None } else { first }
            });
            devices.push(Seen { bus, parent, numa });
        }
    }
    Ok(View { numas, devices })
}

fn address(object: &TopologyObject) -> Option<BusId> {
    let pci = match object.attributes()? {
        ObjectAttributes::PCIDevice(pci) => pci,
        ObjectAttributes::Bridge(bridge) => match bridge.upstream_attributes()? {
            hwlocality::object::attributes::UpstreamAttributes::PCI(pci) => pci,
            #[allow(unreachable_patterns)]
            _ => return None,
        },
        _ => return None,
    };
    let text =
        format!("{:04x}:{:02x}:{:02x}.{:x}", pci.domain(), pci.bus_id(), pci.bus_device(), pci.function());
    BusId::parse(&text).ok()
}

/// Takes hwloc's locality where sysfs has none, and says where the two differ.
pub fn merge(system: &mut System, seen: &View) {
    let mut ids: Vec<i32> = system.numas.iter().map(|n| n.id).collect();
    let mut theirs = seen.numas.clone();
    ids.sort_unstable();
    theirs.sort_unstable();
    if ids != theirs {
        system
            .finding(SOURCE, format!("hwloc counts NUMA nodes {theirs:?}, sysfs {ids:?}; sysfs is followed"));
    }
    let missing: Vec<String> = seen
        .devices
        .iter()
        .filter(|s| !system.devices.iter().any(|d| d.bus == s.bus))
        .map(|s| s.bus.to_string())
        .collect();
    if !missing.is_empty() {
        system.finding(SOURCE, format!("hwloc sees {} that sysfs does not show", missing.join(", ")));
    }
}
