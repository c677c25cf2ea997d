//! Where ranks run.

use nd_comm::prelude::{Communicator, Result};
use serde::{Deserialize, Serialize};

use super::measure::gathered;

/// Bytes that a rank tells about itself.
const CARD: usize = 320;

/// A rank, in nccl-tests' words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub rank: usize,
    pub group: usize,
    pub pid: u32,
    pub hostname: String,
    /// The rank among those of its host.
    pub device: usize,
    /// nccl-tests: the PCI address. Here: where the buffers are.
    pub device_hex: String,
    /// The processor.
    pub device_info: String,
}

/// Those of all ranks.
pub fn devices(comm: &Communicator) -> Result<Vec<Device>> {
    let own = Device {
        rank: comm.rank(),
        group: 0,
        pid: std::process::id(),
        hostname: cut(&nd_transport::host_name(), 64),
        device: comm.host_ranks().iter().position(|r| *r as usize == comm.rank()).unwrap_or(0),
        device_hex: "host".into(),
        device_info: cut(&processor(), 96),
    };
    let mut card = serde_json::to_vec(&own).unwrap_or_default();
    card.resize(CARD, b' ');
    let all = gathered(comm, &card)?;
    let read = |(rank, card): (usize, &[u8])| {
        serde_json::from_slice(card).unwrap_or(Device { rank, hostname: "unknown".into(), ..own.clone() })
    };
    Ok(all.chunks(CARD).enumerate().map(read).collect())
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Printable ASCII, so that its length as JSON is bounded.
fn cut(text: &str, most: usize) -> String {
    let plain = |c: &char| c.is_ascii_graphic() && !matches!(c, '"' | '\\') || *c == ' ';
    text.chars().filter(plain).take(most).collect()
}
