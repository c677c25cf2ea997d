//! hwloc's view of the machine: host bridges, locality where sysfs is silent, and a second opinion on the tree.

use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::TypeFilter;

use crate::model::{BusId, Parent, System};
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
    let mut moved = Vec::new();
    for d in &mut system.devices {
        let near = seen.devices.iter().find(|s| s.bus == d.bus).and_then(|s| s.numa);
        let at = near.and_then(|id| system.numas.iter().position(|n| n.id == id));
        // Where sysfs states a node, hwloc says the same; it knows more where sysfs is silent.
        if let (Parent::Numa(now), Some(at)) = (d.parent, at)
            && now != at
        {
            d.parent = Parent::Numa(at);
            moved.push(d.bus.to_string());
        }
    }
    for r in system.rdma.iter_mut().filter(|r| r.numa.is_none()) {
        let bus = r.device.and_then(|at| system.devices.get(at)).map(|d| &d.bus);
        r.numa = seen.devices.iter().find(|s| Some(&s.bus) == bus).and_then(|s| s.numa);
    }
    if !moved.is_empty() {
        system.finding(
            SOURCE,
            format!("hwloc knows the NUMA node of {}, which sysfs does not state", moved.join(", ")),
        );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hwloc_knows_the_node_of_an_rdma_device_that_sysfs_does_not_place() {
        use crate::model::{Device, Numa};
        use crate::rdma::RdmaDevice;
        let bus = BusId::parse("0000:81:00.0").unwrap();
        let numas = (0..2).map(|id| Numa { id, ..Numa::default() }).collect();
        let mut system = System { numas, ..System::default() };
        system.devices.push(Device::new(Parent::Numa(0), bus.clone(), 0x020700));
        let hca = |name: &str, numa| RdmaDevice {
            name: name.into(),
            device: Some(0),
            numa,
            ..RdmaDevice::default()
        };
        system.rdma = vec![hca("silent", None), hca("said", Some(0))];
        let seen = Seen { bus, parent: None, numa: Some(1) };
        merge(&mut system, &View { numas: vec![0, 1], devices: vec![seen] });
        assert_eq!(system.rdma.iter().map(|r| r.numa).collect::<Vec<_>>(), [Some(1), Some(0)]);
    }

    /// The two providers on the machine that runs the test: same devices, same parents, same NUMA nodes.
    #[test]
    fn hwloc_and_sysfs_see_the_same_tree() {
        let Ok(system) = crate::providers::sysfs::read(std::path::Path::new("/sys")) else {
            eprintln!("skipped: no sysfs here, so the two providers were not compared");
            return;
        };
        let view = read().unwrap();
        let mut ids: Vec<i32> = system.numas.iter().map(|n| n.id).collect();
        let mut theirs = view.numas.clone();
        ids.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(ids, theirs);
        for seen in &view.devices {
            let at = system.devices.iter().position(|d| d.bus == seen.bus);
            let at = at.unwrap_or_else(|| panic!("sysfs does not show {}", seen.bus));
            let above = match system.devices[at].parent {
                Parent::Device(p) => Some(system.devices[p].bus.clone()),
                Parent::Numa(_) => None,
            };
            assert_eq!(above, seen.parent, "{}", seen.bus);
            if let (Some(numa), 1) = (seen.numa, system.numas.len()) {
                assert_eq!(system.numas[system.numa_of(at)].id, numa);
            }
        }
        let mut merged = system.clone();
        merge(&mut merged, &view);
        assert_eq!(merged.devices.len(), system.devices.len());
        merged.validate().unwrap();
    }
}
