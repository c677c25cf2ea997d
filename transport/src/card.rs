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
    /// The host's name, for messages only.
    pub host_name: String,
    /// Process id, for messages and for cross-memory attach.
    pub pid: u32,
    /// Shared memory.
    pub shm: ShmCard,
    /// TCP.
    pub tcp: TcpCard,
}
