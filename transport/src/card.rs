//! What a rank tells the others about how it can be reached.

use nd_topology::rdma::Offer;
use serde::{Deserialize, Serialize};

use crate::HostId;
use crate::cores::CoreSet;
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
    pub cores: CoreSet,
    /// Process id, for messages and for cross-memory attach.
    pub pid: u32,
    /// When the process started, in ticks since boot: tells it from a later process with the same number.
    pub process_start: u64,
    /// Shared memory.
    pub shm: ShmCard,
    /// TCP.
    pub tcp: TcpCard,
    /// What it has of InfiniBand and RoCE.
    pub verbs: Offer,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tcp::address::{Filter, candidates};
    use crate::{Endpoint, Family};

    proptest! {
        /// A card that was changed is refused, or is one by which nobody comes to harm.
        #[test]
        fn changed_cards_are_taken_or_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            bytes: Vec<u8>,
        ) {
            let opening = Endpoint::open(&crate::Config::default()).unwrap();
            let mut card = serde_json::to_vec(opening.card()).unwrap();
            for (at, to) in changes {
                let at = at.index(card.len());
                card[at] = to;
            }
            if let Ok(card) = serde_json::from_slice::<Card>(&card) {
                let _ = candidates(&[], &Filter::parse(""), Family::Any, &card.tcp, true);
            }
            prop_assert!(serde_json::from_slice::<Card>(&bytes).is_err());
        }
    }
}
