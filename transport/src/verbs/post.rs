//! Work requests on their way to the device, several with one call.
#![allow(unsafe_code)] // calls a C library

use std::io;
use std::mem::MaybeUninit;

use libibverbs_sys::bindings::*;
use libibverbs_sys::inline;

use super::sys::{QueuePair, SharedReceives};

/// Work requests posted with one call.
pub const BATCH: usize = 16;

/// Bytes of this rank: where they are and by what the device may reach them.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// The first byte.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// The local key; of no meaning for what is sent inline.
    pub key: u32,
}

/// Where a peer's bytes are.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The peer's address of the first.
    pub address: u64,
    /// The peer's key.
    pub key: u32,
}

/// Some work requests for one queue pair.
pub struct Batch {
    requests: [MaybeUninit<ibv_send_wr>; BATCH],
    sources: [MaybeUninit<ibv_sge>; BATCH],
    len: usize,
}

impl Batch {
    /// None.
    pub fn new() -> Batch {
        Batch {
            requests: [const { MaybeUninit::uninit() }; BATCH],
            sources: [const { MaybeUninit::uninit() }; BATCH],
            len: 0,
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no room for one more.
    pub fn is_full(&self) -> bool {
        self.len == BATCH
    }

    /// Adds one that is known by `id`: a message, or with a target a write.
    pub fn push(&mut self, id: u64, source: Source, target: Option<Target>, inline: bool) {
        // SAFETY: plain numbers and pointers, for which zero is valid.
        let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
        request.wr_id = id;
        request.num_sge = i32::from(source.len > 0);
        request.opcode = IBV_WR_SEND;
        if let Some(target) = target {
            request.opcode = IBV_WR_RDMA_WRITE;
            request.wr.rdma =
                ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: target.address, rkey: target.key };
        }
        request.send_flags = if inline { IBV_SEND_INLINE } else { 0 };
        self.requests[self.len].write(request);
        self.sources[self.len].write(ibv_sge { addr: source.address, length: source.len, lkey: source.key });
        self.len += 1;
    }

    /// Has the last one's completion told, and so that of all before it.
    pub fn signal(&mut self) {
        if let Some(last) = self.len.checked_sub(1) {
            // SAFETY: the first `len` are initialised.
            unsafe { self.requests[last].assume_init_mut() }.send_flags |= IBV_SEND_SIGNALED;
        }
    }

    /// Posts them.
    ///
    /// # Safety
    /// What is not inline stays valid and unchanged until its completion, or until the queue pair is no more; inline
    /// sources are valid now.
    pub unsafe fn post(&mut self, pair: &QueuePair) -> io::Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        for i in (0..self.len).rev() {
            let next = match i + 1 {
                next if next < self.len => self.requests[next].as_mut_ptr(),
                _ => std::ptr::null_mut(),
            };
            let source = self.sources[i].as_mut_ptr();
            // SAFETY: the first `len` are initialised.
            let request = unsafe { self.requests[i].assume_init_mut() };
            (request.next, request.sg_list) = (next, source);
        }
        self.len = 0;
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is alive, the list has just been joined, and the caller promises the rest.
        match unsafe { inline::post_send(pair.raw, self.requests[0].as_mut_ptr(), &mut bad) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno.abs())),
        }
    }
}

/// Gives buffers of `len` bytes, each by its number and address, to a shared receive queue.
///
/// # Safety
/// They are registered under `key`, and nobody touches them until their completion.
pub unsafe fn receive(
    queue: &SharedReceives,
    buffers: impl Iterator<Item = (u64, u64)>,
    len: u32,
    key: u32,
) -> io::Result<()> {
    let mut buffers = buffers.peekable();
    while buffers.peek().is_some() {
        let mut sources = [const { MaybeUninit::<ibv_sge>::uninit() }; BATCH];
        let mut requests = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; BATCH];
        let mut count = 0;
        for (id, address) in buffers.by_ref().take(BATCH) {
            sources[count].write(ibv_sge { addr: address, length: len, lkey: key });
            requests[count].write(ibv_recv_wr {
                wr_id: id,
                next: std::ptr::null_mut(),
                sg_list: sources[count].as_mut_ptr(),
                num_sge: 1,
            });
            count += 1;
        }
        for i in 1..count {
            let next = requests[i].as_mut_ptr();
            // SAFETY: the first `count` are initialised.
            unsafe { requests[i - 1].assume_init_mut() }.next = next;
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue is alive, the list has just been made, and the caller promises the rest.
        match unsafe { inline::post_srq_recv(queue.raw, requests[0].as_mut_ptr(), &mut bad) } {
            0 => {}
            errno => return Err(io::Error::from_raw_os_error(errno.abs())),
        }
    }
    Ok(())
}
