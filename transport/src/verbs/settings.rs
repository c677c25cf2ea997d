//! What a user can set of InfiniBand and RoCE.

use std::path::PathBuf;

use nd_topology::rdma::MOST_RAILS;

use super::sys::Care;

/// Settings of InfiniBand and RoCE, under NCCL's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbsSettings {
    /// `ND_IB_DISABLE=1`: they are not used.
    pub disable: bool,
    /// `ND_IB_HCA`: NCCL's syntax (`mlx5` prefix, `=mlx5_0:1` exact, `^mlx5_3` all but); empty: all.
    pub hca: String,
    /// `ND_IB_GID_INDEX`; none: the best address of the port.
    pub gid_index: Option<u32>,
    /// `ND_IB_RAILS`: how many ports two ranks use at once, at most, from 1 to [`MOST_RAILS`].
    pub rails: u8,
    /// `ND_IB_TIMEOUT`: a packet is sent again after 4.096 µs × 2 to the power of this, from 1 to 31.
    pub timeout: u8,
    /// `ND_IB_RETRY_CNT`: how often, from 0 to 7; Soft-RoCE takes 7 for ever.
    pub retries: u8,
    /// `ND_IB_SL`: InfiniBand's service level, from 0 to 15.
    pub service_level: u8,
    /// `ND_IB_TC`: the traffic class of RoCE packets.
    pub traffic_class: u8,
    /// `ND_IB_PKEY`: the index of the partition key.
    pub pkey_index: u16,
    /// Where the kernel describes devices. Not a setting of the user: tests describe devices of their own.
    pub sysfs: PathBuf,
}

impl Default for VerbsSettings {
    fn default() -> VerbsSettings {
        VerbsSettings {
            disable: false,
            hca: String::new(),
            gid_index: None,
            rails: MOST_RAILS as u8,
            // 1.07 s, seven times: longer than a switch needs to find another way, and a peer that has ended is noticed
            // sooner by its connection. One more would be for ever on Soft-RoCE.
            timeout: 18,
            retries: 6,
            service_level: 0,
            traffic_class: 0,
            pkey_index: 0,
            sysfs: "/sys".into(),
        }
    }
}

impl VerbsSettings {
    pub(super) fn care(&self) -> Care {
        Care {
            timeout: self.timeout,
            retries: self.retries,
            service_level: self.service_level,
            traffic_class: self.traffic_class,
            pkey_index: self.pkey_index,
        }
    }
}
