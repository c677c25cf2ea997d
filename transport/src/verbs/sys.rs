//! The objects of libibverbs, each of which ends when it is dropped, after those that lean on it. The only file of this
//! transport, with `post`, that calls the library.
#![allow(unsafe_code)] // calls a C library

mod dma_buf;
mod pair;

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libibverbs_sys::bindings::*;
use libibverbs_sys::{Symbols, inline, library};

use crate::fork::Forked;

pub use dma_buf::NoDmaBufs;
pub use pair::{Care, QueuePair, Route};

/// Asks a pointer of the library: null is an error whose number is in `errno`.
fn made<T>(pointer: *mut T) -> io::Result<*mut T> {
    if pointer.is_null() { Err(io::Error::last_os_error()) } else { Ok(pointer) }
}

/// The library answers 0 or an errno.
fn done(errno: c_int) -> io::Result<()> {
    match errno {
        0 => Ok(()),
        // Some functions of some providers.
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}

fn nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: the descriptor is the library's and open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?)
}

/// An open device.
pub struct Context {
    library: &'static Symbols,
    raw: *mut ibv_context,
    name: String,
    forked: Forked,
}

// SAFETY: the library may be called from any thread; so for all objects below.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.name)
    }
}

/// What a device can do, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Work requests of a queue pair.
    pub queue_pair: u32,
    /// Entries of a completion queue.
    pub completions: u32,
    /// Requests of a shared receive queue.
    pub receives: u32,
}

/// What a port is like at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortState {
    /// It carries packets.
    pub active: bool,
    /// The code of its active MTU.
    pub mtu: u32,
    /// InfiniBand's local identifier.
    pub lid: u16,
    /// RoCE.
    pub ethernet: bool,
}

/// What happened to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A port went down, or came up again.
    Port {
        /// Which.
        port: u32,
        /// What it is now.
        up: bool,
    },
    /// The device, or a queue that everybody shares, works no more.
    Fatal,
    /// A queue pair failed. Its number.
    Pair(u32),
    /// Something else.
    Other,
}

impl Context {
    /// Opens the device of that name. `errno` says why not; none of that name is `NotFound`.
    pub fn open(name: &str) -> io::Result<Arc<Context>> {
        let library = library().map_err(io::Error::other)?;
        let mut count = 0;
        // SAFETY: writes one number, and gives a list that is freed below.
        let list = made(unsafe { library.ibv_get_device_list(&mut count) })?;
        // SAFETY: the list has so many entries, which are valid until it is freed.
        let devices = unsafe { std::slice::from_raw_parts(list, count.max(0) as usize) };
        let called = |device: &&*mut ibv_device| {
            // SAFETY: an entry of the list; its name is a C string.
            let found = unsafe { CStr::from_ptr(library.ibv_get_device_name(**device)) };
            found.to_bytes() == name.as_bytes()
        };
        let opened = match devices.iter().find(called) {
            // SAFETY: an entry of the list.
            Some(device) => made(unsafe { library.ibv_open_device(*device) }),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        // SAFETY: from above, freed once; the open device does not need it.
        unsafe { library.ibv_free_device_list(list) };
        let context = Context { library, raw: opened?, name: name.into(), forked: Forked::here() };
        nonblocking(context.async_fd())?;
        Ok(Arc::new(context))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn async_fd(&self) -> RawFd {
        // SAFETY: open as long as `self` is there.
        unsafe { (*self.raw).async_fd }
    }

    /// What it can do.
    pub fn limits(&self) -> io::Result<Limits> {
        // SAFETY: plain numbers, for which zero is valid.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: fills the structure.
        done(unsafe { self.library.ibv_query_device(self.raw, &mut attr) })?;
        let number = |n: c_int| u32::try_from(n).unwrap_or(0);
        Ok(Limits {
            queue_pair: number(attr.max_qp_wr),
            completions: number(attr.max_cqe),
            receives: number(attr.max_srq_wr),
        })
    }

    /// What a port is like.
    pub fn port(&self, port: u8) -> io::Result<PortState> {
        // SAFETY: the context is open.
        let attr = unsafe { inline::query_port(self.library, self.raw, port) }
            .map_err(io::Error::from_raw_os_error)?;
        Ok(PortState {
            active: attr.state == IBV_PORT_ACTIVE,
            mtu: attr.active_mtu,
            lid: attr.lid,
            ethernet: u32::from(attr.link_layer) == IBV_LINK_LAYER_ETHERNET,
        })
    }

    /// An entry of a port's table of addresses.
    pub fn gid(&self, port: u8, index: u32) -> io::Result<[u8; 16]> {
        let mut gid = ibv_gid { raw: [0; 16] };
        let index = c_int::try_from(index).map_err(io::Error::other)?;
        // SAFETY: fills the union.
        done(unsafe { self.library.ibv_query_gid(self.raw, port, index, &mut gid) })?;
        // SAFETY: all bytes are valid as bytes.
        Ok(unsafe { gid.raw })
    }

    /// The next thing that has happened to the device, if any.
    pub fn event(&self) -> Option<Event> {
        // SAFETY: plain numbers and pointers, for which zero is valid.
        let mut event: ibv_async_event = unsafe { std::mem::zeroed() };
        // SAFETY: fills the structure; does not wait, see `open`.
        if unsafe { self.library.ibv_get_async_event(self.raw, &mut event) } != 0 {
            return None;
        }
        let element = event.element;
        let what = match event.event_type {
            // SAFETY: of these events the element is a port's number.
            IBV_EVENT_PORT_ERR => Event::Port { port: unsafe { element.port_num } as u32, up: false },
            // SAFETY: as above.
            IBV_EVENT_PORT_ACTIVE => Event::Port { port: unsafe { element.port_num } as u32, up: true },
            IBV_EVENT_DEVICE_FATAL | IBV_EVENT_CQ_ERR | IBV_EVENT_SRQ_ERR => Event::Fatal,
            // SAFETY: of these events the element is a queue pair, alive until the event is acknowledged.
            IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => unsafe {
                Event::Pair((*element.qp).qp_num)
            },
            _ => Event::Other,
        };
        // SAFETY: from above, acknowledged once.
        unsafe { self.library.ibv_ack_async_event(&mut event) };
        Some(what)
    }
}

impl AsFd for Context {
    /// Readable when something has happened to the device.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as `self` is there.
        unsafe { BorrowedFd::borrow_raw(self.async_fd()) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.forked.since() {
            // SAFETY: open, closed once, and everything that was made of it is gone.
            unsafe { self.library.ibv_close_device(self.raw) };
        }
    }
}

/// What memory and queue pairs have in common that may meet.
#[derive(Debug)]
pub struct Domain {
    context: Arc<Context>,
    raw: *mut ibv_pd,
}

// SAFETY: see `Context`.
unsafe impl Send for Domain {}
// SAFETY: see `Context`.
unsafe impl Sync for Domain {}

impl Domain {
    /// A new one.
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Domain>> {
        // SAFETY: the context is open.
        let raw = made(unsafe { context.library.ibv_alloc_pd(context.raw) })?;
        Ok(Arc::new(Domain { context: context.clone(), raw }))
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Lets the device read and write this memory, and peers write it that know the key.
    ///
    /// # Safety
    /// The memory stays mapped until the registration is dropped; whoever gives the key away answers for what is written.
    pub unsafe fn register(self: &Arc<Domain>, ptr: *mut u8, len: usize) -> io::Result<Memory> {
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let library = self.context.library;
        // SAFETY: the caller's promise; the kernel checks that the memory is there.
        let raw = made(unsafe { library.ibv_reg_mr(self.raw, ptr.cast(), len, access as c_int) })?;
        Ok(Memory { domain: self.clone(), raw })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if !self.context.forked.since() {
            // SAFETY: alive, ended once, and everything that was made of it is gone.
            unsafe { self.context.library.ibv_dealloc_pd(self.raw) };
        }
    }
}

/// Memory that the device may reach. When it is dropped, the device does not touch it any more.
#[derive(Debug)]
pub struct Memory {
    domain: Arc<Domain>,
    raw: *mut ibv_mr,
}

// SAFETY: see `Context`.
unsafe impl Send for Memory {}
// SAFETY: see `Context`.
unsafe impl Sync for Memory {}

impl Memory {
    /// By what work requests of this rank name it.
    pub fn local_key(&self) -> u32 {
        // SAFETY: alive.
        unsafe { (*self.raw).lkey }
    }

    /// By what peers name it.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: alive.
        unsafe { (*self.raw).rkey }
    }

    /// Ends it before it is dropped; what is asked of it afterwards is a mistake.
    pub(super) fn end(&mut self) {
        let (context, raw) = (&self.domain.context, std::mem::replace(&mut self.raw, std::ptr::null_mut()));
        if !raw.is_null() && !context.forked.since() {
            // SAFETY: alive, ended once.
            unsafe { context.library.ibv_dereg_mr(raw) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.end();
    }
}

/// A queue of completions, with a channel that tells of new ones.
#[derive(Debug)]
pub struct Completions {
    context: Arc<Context>,
    channel: *mut ibv_comp_channel,
    raw: *mut ibv_cq,
    /// Events that were taken and not acknowledged yet: that takes a lock, so it is done now and then.
    events: AtomicU32,
}

// SAFETY: see `Context`.
unsafe impl Send for Completions {}
// SAFETY: see `Context`.
unsafe impl Sync for Completions {}

impl Completions {
    /// With room for so many.
    pub fn new(context: &Arc<Context>, room: u32) -> io::Result<Arc<Completions>> {
        let library = context.library;
        // SAFETY: the context is open.
        let channel = made(unsafe { library.ibv_create_comp_channel(context.raw) })?;
        let room = c_int::try_from(room).unwrap_or(c_int::MAX);
        // SAFETY: channel and context are alive.
        let raw = made(unsafe { library.ibv_create_cq(context.raw, room, std::ptr::null_mut(), channel, 0) });
        let raw = raw.inspect_err(|_| {
            // SAFETY: made above, ended once.
            unsafe { library.ibv_destroy_comp_channel(channel) };
        })?;
        let this = Completions { context: context.clone(), channel, raw, events: AtomicU32::new(0) };
        nonblocking(this.as_fd_raw())?;
        Ok(Arc::new(this))
    }

    fn as_fd_raw(&self) -> RawFd {
        // SAFETY: alive.
        unsafe { (*self.channel).fd }
    }

    /// Takes completions off; how many.
    pub fn poll(&self, into: &mut [ibv_wc]) -> io::Result<usize> {
        // SAFETY: alive.
        match unsafe { inline::poll_cq(self.raw, into) } {
            n if n >= 0 => Ok(n as usize),
            n => Err(io::Error::from_raw_os_error(n.abs())),
        }
    }

    /// The next completion makes the channel readable.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: alive.
        done(unsafe { inline::req_notify_cq(self.raw) })
    }

    /// Takes what has made the channel readable; whether anything had.
    pub fn take_events(&self) -> bool {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let library = self.context.library;
        let mut any = false;
        // SAFETY: the channel is alive; does not wait, see `new`.
        while unsafe { library.ibv_get_cq_event(self.channel, &mut cq, &mut context) } == 0 {
            any = true;
            if self.events.fetch_add(1, Ordering::Relaxed) + 1 >= ACKNOWLEDGE {
                self.acknowledge();
            }
        }
        any
    }

    fn acknowledge(&self) {
        let events = self.events.swap(0, Ordering::Relaxed);
        if events > 0 {
            // SAFETY: so many were taken and not acknowledged.
            unsafe { self.context.library.ibv_ack_cq_events(self.raw, events) };
        }
    }
}

/// Events that are acknowledged at once.
const ACKNOWLEDGE: u32 = 64;

impl AsFd for Completions {
    /// Readable after [`Completions::arm`] when there is a completion.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as `self` is there.
        unsafe { BorrowedFd::borrow_raw(self.as_fd_raw()) }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        if self.context.forked.since() {
            return;
        }
        // Ending the queue waits until all events are acknowledged.
        self.acknowledge();
        // SAFETY: alive, ended once, and the queue pairs that used it are gone.
        unsafe {
            self.context.library.ibv_destroy_cq(self.raw);
            self.context.library.ibv_destroy_comp_channel(self.channel);
        }
    }
}

/// Receive requests that all queue pairs of an endpoint share.
#[derive(Debug)]
pub struct SharedReceives {
    domain: Arc<Domain>,
    pub(super) raw: *mut ibv_srq,
}

// SAFETY: see `Context`.
unsafe impl Send for SharedReceives {}
// SAFETY: see `Context`.
unsafe impl Sync for SharedReceives {}

impl SharedReceives {
    /// With room for so many.
    pub fn new(domain: &Arc<Domain>, room: u32) -> io::Result<Arc<SharedReceives>> {
        // SAFETY: plain numbers and a pointer, for which zero is valid.
        let mut attr: ibv_srq_init_attr = unsafe { std::mem::zeroed() };
        (attr.attr.max_wr, attr.attr.max_sge) = (room, 1);
        // SAFETY: the domain is alive.
        let raw = made(unsafe { domain.context.library.ibv_create_srq(domain.raw, &mut attr) })?;
        Ok(Arc::new(SharedReceives { domain: domain.clone(), raw }))
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        let context = &self.domain.context;
        if !context.forked.since() {
            // SAFETY: alive, ended once, and the queue pairs that used it are gone.
            unsafe { context.library.ibv_destroy_srq(self.raw) };
        }
    }
}
