//! NVIDIA's management library, opened at run time: indices, names, compute capability and NVLinks.

use std::collections::BTreeMap;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::model::{BusId, Gpu, NvLink, System};

const SOURCE: &str = "nvml";
/// NVLinks of one GPU at most (`NVML_NVLINK_MAX_LINKS`).
const MAX_LINKS: u32 = 18;

/// Adds what NVML knows of the GPUs; says so when it is not there.
pub fn add(system: &mut System) {
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(e) => {
            system.finding(
                SOURCE,
                match e {
                    NvmlError::LibloadingError(_) => {
                        "no NVIDIA driver library (libnvidia-ml.so.1) here: no NVIDIA GPU is seen through it"
                            .to_owned()
                    }
                    e => format!("the NVIDIA driver library does not start: {e}"),
                },
            );
            return;
        }
    };
    let count = nvml.device_count().unwrap_or(0);
    for index in 0..count {
        if let Err(e) = gpu(system, &nvml, index) {
            system.finding(SOURCE, format!("GPU {index} cannot be read: {e}"));
        }
    }
    if count == 0 {
        system.finding(SOURCE, "the NVIDIA driver reports no GPU");
    }
}

fn gpu(system: &mut System, nvml: &Nvml, index: u32) -> Result<(), NvmlError> {
    let device = nvml.device_by_index(index)?;
    let bus = device.pci_info()?.bus_id;
    let Ok(bus) = BusId::parse(&bus) else { return Ok(()) };
    let Some(at) = system.devices.iter().position(|d| d.bus == bus) else {
        system.finding(SOURCE, format!("GPU {index} at {bus} is not in the PCI tree; it is left out"));
        return Ok(());
    };
    let capability = device.cuda_compute_capability().ok();
    let sm = capability.map_or(0, |c| c.major * 10 + c.minor);
    // Links to one target are counted together; a target that is not in the tree is an NVSwitch the machine hides.
    let mut targets: BTreeMap<String, u32> = BTreeMap::new();
    for link in 0..MAX_LINKS {
        let link = device.link_wrapper_for(link);
        if !link.is_active().unwrap_or(false) {
            continue;
        }
        if let Ok(remote) = link.remote_pci_info() {
            *targets.entry(remote.bus_id).or_insert(0) += 1;
        }
    }
    let mut nvlinks = Vec::new();
    for (target, count) in targets {
        let Ok(target) = BusId::parse(&target) else { continue };
        let known = system.devices.iter().find(|d| d.bus == target).map(|d| d.class);
        let target_class = Some(known.unwrap_or(0x068000));
        nvlinks.push(NvLink { target, count, target_class, bandwidth: None, xgmi: false });
    }
    system.devices[at].product = device.name().ok();
    system.devices[at].gpu =
        Some(Gpu { dev: index as i32, sm, rank: Some(index as i32), nvlinks, ..Gpu::default() });
    Ok(())
}
