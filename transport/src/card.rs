//! What a rank tells the others about how it can be reached.

use serde::{Deserialize, Serialize};

use crate::HostId;
use crate::shm::ShmCard;
use crate::tcp::TcpCard;

/// How a rank can be reached. Travels between ranks through the rendezvous, which authenticates it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Card {
    /// Which host the rank is on.
    pub host: HostId,
    /// Which network namespace it is in: ranks of one reach each other by loopback, whatever their hosts are called.
    pub network: HostId,
    /// The host's name, for messages only.
    pub host_name: String,
    /// Cores that the process may use.
    pub cores: u32,
    /// Process id, for messages and for cross-memory attach.
    pub pid: u32,
    /// When the process started, in ticks since boot: tells it from a later process with the same number.
    pub process_start: u64,
    /// Shared memory.
    pub shm: ShmCard,
    /// TCP.
    pub tcp: TcpCard,
}
