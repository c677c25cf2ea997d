//! Queue pairs, and what is posted to them and polled.
#![allow(unsafe_code)] // is called as a C library

use std::ffi::c_int;
use std::time::Duration;

use libibverbs_sys::bindings::*;

use super::{Answer, done, end, given, made, zeroed};
use crate::faults::Action;
use crate::pair::{INLINE, PATIENCE, Pair, Work};
use crate::world::{World, world};

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(domain: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's structure.
    let attr = unsafe { &mut *attr };
    let mut world = world();
    let mut create = || {
        let Some(&context) = world.domains.get(&(domain as usize)) else {
            return Err(world.misused("a queue pair of a domain that is not there"));
        };
        world.meet(context, "create_qp")?;
        if attr.cap.max_inline_data > INLINE || attr.qp_type != IBV_QPT_RC || attr.cap.max_send_sge > 1 {
            return Err(libc::EINVAL);
        }
        let ids = [attr.send_cq as usize, attr.recv_cq as usize, attr.srq as usize];
        let there = world.queues.contains_key(&ids[0]) && world.queues.contains_key(&ids[1]);
        if !there || !world.receives.contains_key(&ids[2]) {
            return Err(world.misused("a queue pair of queues that are not there"));
        }
        let number = world.number();
        let mut raw: ibv_qp = zeroed();
        (raw.context, raw.pd, raw.qp_num, raw.qp_type) =
            (context as *mut ibv_context, domain, number, attr.qp_type);
        (raw.send_cq, raw.recv_cq, raw.srq) = (attr.send_cq, attr.recv_cq, attr.srq);
        let raw = given(raw);
        let pair = Pair {
            context,
            domain: domain as usize,
            number,
            send_queue: ids[0],
            receive_queue: ids[1],
            receives: ids[2],
            room: attr.cap.max_send_wr.into(),
            inline: attr.cap.max_inline_data,
            state: IBV_QPS_RESET,
            port: 0,
            access: 0,
            peer: 0,
            patience: PATIENCE,
            for_ever: false,
            posted: 0,
            retired: 0,
            works: Default::default(),
        };
        world.pairs.insert(raw as usize, pair);
        world.numbers.insert(number, raw as usize);
        world.count_pair(ids, 1);
        Ok(raw)
    };
    made(create())
}

impl World {
    fn count_pair(&mut self, [send, receive, receives]: [usize; 3], by: isize) {
        for queue in [send, receive] {
            if let Some(queue) = self.queues.get_mut(&queue) {
                queue.pairs = queue.pairs.saturating_add_signed(by);
            }
        }
        if let Some(receives) = self.receives.get_mut(&receives) {
            receives.pairs = receives.pairs.saturating_add_signed(by);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    let mut world = world();
    let Some(removed) = world.pairs.remove(&(pair as usize)) else {
        return world.misused("a queue pair ends that is not there");
    };
    world.numbers.remove(&removed.number);
    world.stuck.remove(&(pair as usize));
    world.count_pair([removed.send_queue, removed.receive_queue, removed.receives], -1);
    for queue in world.queues.values_mut() {
        queue.endless.take_if(|(to, _)| *to == pair as usize);
    }
    // SAFETY: removed just now.
    unsafe { end(pair) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(pair: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's structure.
    let attr = unsafe { &*attr };
    let answer = world().modify(pair as usize, attr, mask as u32);
    if answer.is_ok() {
        // SAFETY: found among the objects just now.
        unsafe { (*pair).state = attr.qp_state };
    }
    done(answer)
}

impl World {
    fn modify(&mut self, id: usize, attr: &ibv_qp_attr, mask: u32) -> Answer<()> {
        let Some(pair) = self.pairs.get(&id) else {
            return Err(self.misused("a queue pair is changed that is not there"));
        };
        let (from, context, port) = (pair.state, pair.context, pair.port);
        let device = self.contexts.get(&context).ok_or(libc::EINVAL)?.device;
        let (place, needed) = match (from, attr.qp_state) {
            (IBV_QPS_RESET, IBV_QPS_INIT) => {
                ("modify_qp_init", IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
            }
            (IBV_QPS_INIT, IBV_QPS_RTR) => (
                "modify_qp_rtr",
                IBV_QP_STATE
                    | IBV_QP_AV
                    | IBV_QP_PATH_MTU
                    | IBV_QP_DEST_QPN
                    | IBV_QP_RQ_PSN
                    | IBV_QP_MAX_DEST_RD_ATOMIC
                    | IBV_QP_MIN_RNR_TIMER,
            ),
            (IBV_QPS_RTR, IBV_QPS_RTS) => (
                "modify_qp_rts",
                IBV_QP_STATE
                    | IBV_QP_TIMEOUT
                    | IBV_QP_RETRY_CNT
                    | IBV_QP_RNR_RETRY
                    | IBV_QP_SQ_PSN
                    | IBV_QP_MAX_QP_RD_ATOMIC,
            ),
            _ => {
                return Err(self.misused(format!("a queue pair goes from state {from} to {}", attr.qp_state)));
            }
        };
        if mask != needed {
            return Err(self.misused(format!("{place} with attributes {mask:#x}, not {needed:#x}")));
        }
        self.meet_pair(id, place)?;
        let refused = match attr.qp_state {
            IBV_QPS_INIT => self.devices[device].port(attr.port_num).is_none(),
            IBV_QPS_RTR => {
                let Some(port) = self.devices[device].port(port) else { return Err(libc::EINVAL) };
                // SAFETY: all bytes are valid as bytes.
                let gid = unsafe { attr.ah_attr.grh.dgid.raw };
                let own = port.gids.get(usize::from(attr.ah_attr.grh.sgid_index));
                let addressed = attr.ah_attr.is_global == 1 && own.is_some_and(|own| *own != [0; 16]);
                let known = self.devices.iter().flat_map(|d| &d.ports).any(|port| port.gids.contains(&gid));
                if port.ethernet && addressed && !known {
                    return Err(libc::ENETUNREACH);
                }
                attr.path_mtu > port.mtu || (port.ethernet && !addressed)
            }
            _ => false,
        };
        if refused {
            return Err(libc::EINVAL);
        }
        let Some(pair) = self.pairs.get_mut(&id) else { return Err(libc::EINVAL) };
        // One that met its end on the way stays at it.
        if pair.state == from {
            pair.state = attr.qp_state;
        }
        match attr.qp_state {
            IBV_QPS_INIT => (pair.port, pair.access) = (attr.port_num, attr.qp_access_flags),
            IBV_QPS_RTR => pair.peer = attr.dest_qp_num,
            _ => {
                pair.for_ever = attr.rnr_retry == 7;
                let once = Duration::from_nanos(4096 << attr.timeout.min(31));
                pair.patience = PATIENCE.min(once * (u32::from(attr.retry_cnt) + 1));
            }
        }
        Ok(())
    }
}

pub unsafe extern "C" fn post_send(
    pair: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut world = world();
    world.posts += 1;
    let mut next = first;
    let posted = world.meet_pair(pair as usize, "post_send").and_then(|_| {
        while !next.is_null() {
            // SAFETY: the caller's list, valid during the call.
            unsafe { world.take(pair as usize, &*next)? };
            // SAFETY: as above.
            next = unsafe { (*next).next };
        }
        Ok(())
    });
    if posted.is_err() {
        // SAFETY: the caller's pointer.
        unsafe { *bad = next };
    }
    world.advance(pair as usize);
    done(posted)
}

impl World {
    /// # Safety
    /// As for `ibv_post_send`: what the request points to is valid, if it is inline.
    unsafe fn take(&mut self, id: usize, request: &ibv_send_wr) -> Answer<()> {
        let Some(pair) = self.pairs.get_mut(&id) else {
            return Err(self.misused("work for a queue pair that is not there"));
        };
        if !matches!(pair.state, IBV_QPS_RTS | IBV_QPS_ERR) || request.num_sge > 1 {
            return Err(self.misused("work for a queue pair that is not ready to send"));
        }
        if pair.posted - pair.retired >= pair.room {
            return Err(self.misused("more work than a queue pair has room for"));
        }
        // SAFETY: the caller's promise; there is one.
        let source = (request.num_sge == 1).then(|| unsafe { *request.sg_list });
        let mut inline = None;
        if request.send_flags & IBV_SEND_INLINE != 0 {
            let (at, len) = source.map_or((0, 0), |sge| (sge.addr, sge.length));
            if len > pair.inline {
                return Err(self.misused(format!("{len} bytes are sent inline")));
            }
            // SAFETY: the caller's promise.
            let bytes =
                (len > 0).then(|| unsafe { std::slice::from_raw_parts(at as *const u8, len as usize) });
            inline = Some(bytes.unwrap_or_default().to_vec());
        }
        // SAFETY: plain numbers, of whatever kind the request is.
        let target = unsafe { (request.wr.rdma.remote_addr, request.wr.rdma.rkey) };
        pair.posted += 1;
        let work = Work {
            id: request.wr_id,
            place: pair.posted,
            opcode: request.opcode,
            signaled: request.send_flags & IBV_SEND_SIGNALED != 0,
            inline,
            source,
            target,
            met: None,
            until: None,
            put_off: 0,
        };
        pair.works.push_back(work);
        Ok(())
    }
}

pub unsafe extern "C" fn post_srq_recv(
    receives: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut world = world();
    world.receive_posts += 1;
    let mut next = first;
    let mut post = || {
        let domain = world.receives.get(&(receives as usize)).ok_or(libc::EINVAL)?.domain;
        let context = world.domains.get(&domain).copied().unwrap_or_default();
        world.meet(context, "post_srq_recv")?;
        while !next.is_null() {
            // SAFETY: the caller's list, valid during the call, each with one span.
            let (id, sge) = unsafe { ((*next).wr_id, *(*next).sg_list) };
            let receives = world.receives.get_mut(&(receives as usize)).ok_or(libc::EINVAL)?;
            if receives.posted.len() >= receives.room {
                return Err(world.misused("more receive requests than there is room for"));
            }
            receives.posted.push_back((id, sge));
            // SAFETY: as above.
            next = unsafe { (*next).next };
        }
        Ok(())
    };
    let posted = post();
    if posted.is_err() {
        // SAFETY: the caller's pointer.
        unsafe { *bad = next };
    }
    world.advance_stuck();
    done(posted)
}

pub unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, most: c_int, into: *mut ibv_wc) -> c_int {
    let (mut world, id) = (world(), queue as usize);
    let Some(context) = world.queues.get(&id).map(|queue| queue.context) else {
        world.misused("a completion queue is polled that is not there");
        return -libc::EINVAL;
    };
    if let Err(errno) = world.meet(context, "poll_cq") {
        return -errno;
    }
    world.advance_stuck();
    world.repeat(id, most as usize);
    let mut count = 0;
    while count < most as usize {
        let Some(done) = world.queues.get_mut(&id).and_then(|queue| queue.done.pop_front()) else { break };
        if let Some(pair) = world.pairs.get_mut(&done.pair) {
            pair.retired = pair.retired.max(done.retires);
        }
        let mut told: ibv_wc = zeroed();
        (told.wr_id, told.status, told.opcode) = (done.id, done.status, done.opcode);
        (told.byte_len, told.qp_num) = (done.len, done.number);
        // SAFETY: the caller's array, of which `count` is within.
        unsafe { *into.add(count) = told };
        count += 1;
    }
    count as c_int
}

pub unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, _solicited: c_int) -> c_int {
    let (mut world, id) = (world(), queue as usize);
    let Some(context) = world.queues.get(&id).map(|queue| queue.context) else {
        return world.misused("a completion queue is armed that is not there");
    };
    let met: Answer<Vec<Action>> = world.meet(context, "req_notify_cq");
    done(met.map(|_| {
        if let Some(queue) = world.queues.get_mut(&id) {
            queue.armed = true;
        }
    }))
}
