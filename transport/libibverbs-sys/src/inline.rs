//! What `<infiniband/verbs.h>` defines in place: calls through the operations of a context, which its provider has set.
//!
//! The table of operations is the same in every version of the library that has the symbols of this crate: newer ones only
//! append to the structure around it.

use std::ffi::c_int;

use crate::bindings::*;

/// Posts the work requests of a list to a queue pair. 0, or an errno and in `bad` the first that was not taken.
///
/// # Safety
/// As for `ibv_post_send`: the queue pair is alive, the list and what it points to are valid during the call, and the memory
/// that it names until the requests are complete.
#[inline]
pub unsafe fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: &mut *mut ibv_send_wr) -> c_int {
    // SAFETY: a live queue pair has a context, whose provider has set the operation.
    match unsafe { (*(*qp).context).ops.post_send } {
        // SAFETY: the caller's promise.
        Some(call) => unsafe { call(qp, wr, bad) },
        None => libc::EOPNOTSUPP,
    }
}

/// Posts the receive requests of a list to a shared receive queue, with the same answer.
///
/// # Safety
/// As for `ibv_post_srq_recv`; see [`post_send`].
#[inline]
pub unsafe fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: as above.
    match unsafe { (*(*srq).context).ops.post_srq_recv } {
        // SAFETY: the caller's promise.
        Some(call) => unsafe { call(srq, wr, bad) },
        None => libc::EOPNOTSUPP,
    }
}

/// Takes up to `wc.len()` completions off a queue: how many, negative on failure.
///
/// # Safety
/// As for `ibv_poll_cq`: the queue is alive.
#[inline]
pub unsafe fn poll_cq(cq: *mut ibv_cq, wc: &mut [ibv_wc]) -> c_int {
    let most = c_int::try_from(wc.len()).unwrap_or(c_int::MAX);
    // SAFETY: as above.
    match unsafe { (*(*cq).context).ops.poll_cq } {
        // SAFETY: the caller's promise; there is room for so many.
        Some(call) => unsafe { call(cq, most, wc.as_mut_ptr()) },
        None => -libc::EOPNOTSUPP,
    }
}

/// Asks for an event on the queue's channel with the next completion. 0, or an errno.
///
/// # Safety
/// As for `ibv_req_notify_cq`: the queue is alive.
#[inline]
pub unsafe fn req_notify_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: as above.
    match unsafe { (*(*cq).context).ops.req_notify_cq } {
        // SAFETY: the caller's promise; 0: with any completion, solicited or not.
        Some(call) => unsafe { call(cq, 0) },
        None => libc::EOPNOTSUPP,
    }
}

/// What a port is like. Newer libraries know of more than the exported function fills: all that it does not fill is zero.
///
/// # Errors
/// An errno.
///
/// # Safety
/// The context is alive.
pub unsafe fn query_port(
    library: &Symbols,
    context: *mut ibv_context,
    port: u8,
) -> Result<ibv_port_attr, c_int> {
    // SAFETY: plain numbers, for which zero is valid.
    let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's promise; the function writes no more than the beginning of the structure.
    match unsafe { library.ibv_query_port(context, port, (&raw mut attr).cast()) } {
        0 => Ok(attr),
        errno => Err(errno),
    }
}

/// Registers memory of another device, such as a GPU, that has exported it as a dma-buf: `len` bytes from `offset` on, which
/// peers know by `address` on. Null, with `errno`, where the kernel refuses it.
///
/// # Errors
/// `Unsupported` where the library is too old.
///
/// # Safety
/// As for `ibv_reg_dmabuf_mr`: the domain is alive, the descriptor open, and the memory stays until the registration ends.
pub unsafe fn reg_dma_buf(
    library: &Symbols,
    domain: *mut ibv_pd,
    fd: c_int,
    (offset, len, address): (u64, usize, u64),
    access: c_int,
) -> std::io::Result<*mut ibv_mr> {
    match &library.ibv_reg_dmabuf_mr {
        // SAFETY: the caller's promise.
        Ok(call) => Ok(unsafe { call(domain, offset, len, address, fd, access) }),
        Err(_) => Err(std::io::Error::new(
            std::io::ErrorKind::Unsupported,
            "this libibverbs cannot register dma-bufs; rdma-core 34 or newer can",
        )),
    }
}
