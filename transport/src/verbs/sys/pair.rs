//! Queue pairs.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;

use libibverbs_sys::bindings::*;

use super::{Completions, Domain, SharedReceives, done, made};

/// A reliable connection. When it is dropped, nothing is sent, received, read or written by it any more.
#[derive(Debug)]
pub struct QueuePair {
    domain: Arc<Domain>,
    _completions: Arc<Completions>,
    _receives: Arc<SharedReceives>,
    pub(in crate::verbs) raw: *mut ibv_qp,
    /// Bytes that may be sent from memory that is not registered.
    pub inline: u32,
}

// SAFETY: see `Context`.
unsafe impl Send for QueuePair {}
// SAFETY: see `Context`.
unsafe impl Sync for QueuePair {}

/// The other end of a queue pair, and the way there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// This rank's port.
    pub port: u8,
    /// The index of its address.
    pub gid_index: u8,
    /// RoCE: packets have a global header.
    pub ethernet: bool,
    /// The code of the path's MTU.
    pub mtu: u32,
    /// The other port's address.
    pub gid: [u8; 16],
    /// Its local identifier.
    pub lid: u16,
    /// The other queue pair's number.
    pub number: u32,
    /// What the other one numbers its first packet.
    pub first_theirs: u32,
    /// What this one does.
    pub first_ours: u32,
}

/// How hard a queue pair tries, and how its packets are marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Care {
    /// `4.096 µs << timeout` until a packet is sent again.
    pub timeout: u8,
    /// How often.
    pub retries: u8,
    /// InfiniBand's service level.
    pub service_level: u8,
    /// The traffic class of the global header.
    pub traffic_class: u8,
    /// The index of the partition key.
    pub pkey_index: u16,
}

/// Receivers that have no request posted are tried again for ever, after this time: 0.64 ms (InfiniBand Architecture
/// Specification, volume 1, table 45).
const RECEIVER_NOT_READY_TIMER: u8 = 12;
const FOR_EVER: u8 = 7;
/// Packets of a global header live for so many hops.
const HOPS: u8 = 255;

impl QueuePair {
    /// With room for so many work requests, and if possible for `inline` bytes in each.
    pub fn new(
        domain: &Arc<Domain>,
        completions: &Arc<Completions>,
        receives: &Arc<SharedReceives>,
        (room, inline): (u32, u32),
    ) -> io::Result<QueuePair> {
        let mut inline = inline;
        loop {
            // SAFETY: plain numbers and pointers, for which zero is valid.
            let mut attr: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
            (attr.send_cq, attr.recv_cq, attr.srq) = (completions.raw, completions.raw, receives.raw);
            attr.qp_type = IBV_QPT_RC;
            (attr.cap.max_send_wr, attr.cap.max_send_sge, attr.cap.max_inline_data) = (room, 1, inline);
            // SAFETY: everything is alive, and kept so by the value below.
            match made(unsafe { domain.context.library.ibv_create_qp(domain.raw, &mut attr) }) {
                Ok(raw) => {
                    return Ok(QueuePair {
                        domain: domain.clone(),
                        _completions: completions.clone(),
                        _receives: receives.clone(),
                        raw,
                        inline: attr.cap.max_inline_data.min(inline),
                    });
                }
                // More than this provider has.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) && inline > 0 => inline /= 2,
                Err(e) => return Err(e),
            }
        }
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: alive.
        unsafe { (*self.raw).qp_num }
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> io::Result<()> {
        let library = self.domain.context.library;
        // SAFETY: alive; the structure is filled as far as the mask says.
        done(unsafe { library.ibv_modify_qp(self.raw, attr, mask as c_int) })
    }

    /// Joins it with the other end, whose packets it takes from here on, and sends.
    pub fn connect(&self, route: &Route, care: &Care) -> io::Result<()> {
        // SAFETY: plain numbers, for which zero is valid.
        let zero: ibv_qp_attr = unsafe { std::mem::zeroed() };
        let mut init = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index: care.pkey_index,
            port_num: route.port,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE,
            ..zero
        };
        self.modify(&mut init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)?;
        let mut receive = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: route.mtu,
            dest_qp_num: route.number,
            rq_psn: route.first_theirs,
            max_dest_rd_atomic: 1,
            min_rnr_timer: RECEIVER_NOT_READY_TIMER,
            ..zero
        };
        receive.ah_attr.sl = care.service_level;
        receive.ah_attr.port_num = route.port;
        receive.ah_attr.dlid = route.lid;
        if route.ethernet {
            receive.ah_attr.is_global = 1;
            receive.ah_attr.grh.dgid = ibv_gid { raw: route.gid };
            receive.ah_attr.grh.sgid_index = route.gid_index;
            receive.ah_attr.grh.hop_limit = HOPS;
            receive.ah_attr.grh.traffic_class = care.traffic_class;
        }
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut receive, mask)?;
        let mut send = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: care.timeout,
            retry_cnt: care.retries,
            rnr_retry: FOR_EVER,
            sq_psn: route.first_ours,
            max_rd_atomic: 1,
            ..zero
        };
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut send, mask)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let context = &self.domain.context;
        if !context.forked.since() {
            // SAFETY: alive, ended once.
            unsafe { context.library.ibv_destroy_qp(self.raw) };
        }
    }
}
