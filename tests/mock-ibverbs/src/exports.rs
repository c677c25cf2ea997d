//! The functions of the library, and those that its contexts name. What they are given was made by them, or is noted as
//! misuse: nothing that a caller says is followed before it was found among [the objects](crate::world).
#![allow(unsafe_code)] // is called as a C library

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;

use libibverbs_sys::bindings::*;

use crate::faults::Action;
use crate::world::{Channel, Context, Memory, Queue, Receives, World, bell, world};

mod pairs;

type Answer<T> = Result<T, i32>;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// A structure of the caller's, all zero but for what is set next.
fn zeroed<T>() -> T {
    // SAFETY: used for structures of libibverbs alone: numbers, pointers, optional functions, and locks of pthread, for
    // all of which zero is valid.
    unsafe { std::mem::zeroed() }
}

/// An object's structure, the caller's from here on.
fn given<T>(raw: T) -> *mut T {
    Box::into_raw(Box::new(raw))
}

/// The end of an object's structure.
///
/// # Safety
/// It is from [`given`], and was found among the objects and removed there just now.
unsafe fn end<T>(raw: *mut T) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(raw) });
}

/// As functions answer that make something: null, and the error in `errno`.
fn made<T>(answer: Answer<*mut T>) -> *mut T {
    answer.unwrap_or_else(|errno| {
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = errno };
        null_mut()
    })
}

/// As the others answer.
fn done(answer: Answer<()>) -> c_int {
    answer.err().unwrap_or(0)
}

/// Reads one ring of a bell; the caller has made it non-blocking, or waits.
fn hear(fd: c_int) -> Answer<()> {
    let mut rings = [0; 8];
    // SAFETY: the caller's descriptor of an object that it uses.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::read(fd, &mut rings).map(drop).map_err(|e| e.raw_os_error())
}

/// Is called when the process ends.
pub(crate) extern "C" fn write_report() {
    if let Some(path) = std::env::var_os(crate::REPORT) {
        let _ = std::fs::write(path, world().report());
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let mut list: Vec<_> = world()
        .devices
        .iter()
        .map(|device| {
            let mut raw: ibv_device = zeroed();
            (raw.node_type, raw.transport_type) = (IBV_NODE_CA, IBV_TRANSPORT_IB);
            for (to, from) in raw.name.iter_mut().zip(device.name.bytes().take(63)) {
                *to = from as c_char;
            }
            given(raw)
        })
        .collect();
    if !count.is_null() {
        // SAFETY: the caller's number.
        unsafe { *count = list.len() as c_int };
    }
    list.push(null_mut());
    // Some leak, as tests are short.
    Box::leak(list.into_boxed_slice()).as_mut_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_free_device_list(_: *mut *mut ibv_device) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: from a list, which is never freed.
    unsafe { (*device).name.as_ptr() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: from a list, which is never freed.
    let name: Vec<u8> = unsafe { (*device).name }.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    let mut world = world();
    let mut open = || {
        let name = String::from_utf8_lossy(&name);
        let device = world.devices.iter().position(|device| *device.name == *name).ok_or(libc::ENODEV)?;
        world.meet_named(&name, 0, "open_device", None)?;
        let bell = bell()?;
        let mut raw: ibv_context = zeroed();
        raw.async_fd = bell.as_raw_fd();
        raw.cmd_fd = -1;
        raw.num_comp_vectors = 1;
        raw.ops.poll_cq = Some(pairs::poll_cq);
        raw.ops.req_notify_cq = Some(pairs::req_notify_cq);
        raw.ops.post_send = Some(pairs::post_send);
        raw.ops.post_srq_recv = Some(pairs::post_srq_recv);
        let raw = given(raw);
        world.contexts.insert(raw as usize, Context { device, bell, events: Default::default() });
        Ok(raw)
    };
    made(open())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let (mut world, id) = (world(), context as usize);
    let used = world.domains.values().any(|c| *c == id)
        || world.channels.values().any(|channel| channel.context == id)
        || world.queues.values().any(|queue| queue.context == id);
    if used {
        return world.misused("a device is closed before what was made of it has ended");
    }
    if world.contexts.remove(&id).is_none() {
        return world.misused("a device is closed that is not open");
    }
    // SAFETY: removed just now.
    unsafe { end(context) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    // SAFETY: of a device that the caller has open.
    if let Err(errno) = hear(unsafe { (*context).async_fd }) {
        made::<()>(Err(errno));
        return -1;
    }
    let mut world = world();
    let Some((kind, to)) = world.contexts.get_mut(&(context as usize)).and_then(|c| c.events.pop_front())
    else {
        return -1;
    };
    let mut told: ibv_async_event = zeroed();
    told.event_type = kind;
    match kind {
        IBV_EVENT_PORT_ERR | IBV_EVENT_PORT_ACTIVE => told.element.port_num = to as c_int,
        IBV_EVENT_CQ_ERR => told.element.cq = to as *mut ibv_cq,
        // Of a queue pair that has ended meanwhile no event is told.
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_ACCESS_ERR if !world.pairs.contains_key(&to) => return -1,
        _ => told.element.qp = to as *mut ibv_qp,
    }
    // SAFETY: the caller's structure.
    unsafe { *event = told };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_async_event(_: *mut ibv_async_event) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    let mut told: ibv_device_attr = zeroed();
    (told.max_qp, told.max_qp_wr, told.max_sge) = (65_536, 8192, 1);
    (told.max_cq, told.max_cqe, told.max_mr, told.max_pd) = (65_536, 1 << 22, 1 << 20, 65_536);
    (told.max_srq, told.max_srq_wr, told.phys_port_cnt) = (65_536, 32_768, 1);
    let answer = world().meet(context as usize, "query_device");
    // SAFETY: the caller's structure.
    done(answer.map(|_| unsafe { *attr = told }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    number: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    let mut world = world();
    let mut query = || {
        let met = world.meet(context as usize, "query_port")?;
        let device = world.contexts.get(&(context as usize)).ok_or(libc::EINVAL)?.device;
        let port = world.devices[device].port(number).ok_or(libc::EINVAL)?;
        let mut told: ibv_port_attr = zeroed();
        let up = port.active && !world.down.contains(&(device, number)) && !met.contains(&Action::Down);
        told.state = if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
        (told.active_mtu, told.max_mtu, told.lid) = (port.mtu, IBV_MTU_4096, port.lid);
        (told.gid_tbl_len, told.max_msg_sz, told.pkey_tbl_len) = (port.gids.len() as c_int, 1 << 31, 1);
        let ethernet = port.ethernet && !met.contains(&Action::InfiniBand);
        told.link_layer = if ethernet { IBV_LINK_LAYER_ETHERNET } else { IBV_LINK_LAYER_INFINIBAND } as u8;
        for action in met {
            if let Action::Mtu(code) = action {
                told.active_mtu = code;
            }
        }
        Ok(told)
    };
    // SAFETY: the caller's structure, which has this form.
    done(query().map(|told| unsafe { *attr.cast::<ibv_port_attr>() = told }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    number: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let mut world = world();
    let mut query = || {
        world.meet(context as usize, "query_gid")?;
        let device = world.contexts.get(&(context as usize)).ok_or(libc::EINVAL)?.device;
        let port = world.devices[device].port(number).ok_or(libc::EINVAL)?;
        usize::try_from(index).ok().and_then(|i| port.gids.get(i)).copied().ok_or(libc::ENODATA)
    };
    // SAFETY: the caller's union.
    done(query().map(|raw| unsafe { *gid = ibv_gid { raw } }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let mut world = world();
    let answer = world.meet(context as usize, "alloc_pd").map(|_| {
        let raw = given(ibv_pd { context, handle: 0 });
        world.domains.insert(raw as usize, context as usize);
        raw
    });
    made(answer)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    let (mut world, id) = (world(), domain as usize);
    let used = world.memories.values().any(|memory| memory.domain == id)
        || world.receives.values().any(|receives| receives.domain == id)
        || world.pairs.values().any(|pair| pair.domain == id);
    if used {
        return world.misused("a protection domain ends before what was made of it");
    }
    if world.domains.remove(&id).is_none() {
        return world.misused("a protection domain ends that is not there");
    }
    // SAFETY: removed just now.
    unsafe { end(domain) };
    0
}

fn register(world: &mut World, domain: *mut ibv_pd, memory: Memory) -> Answer<*mut ibv_mr> {
    let Some(&context) = world.domains.get(&(domain as usize)) else {
        return Err(world.misused("memory is registered with a domain that is not there"));
    };
    let mut raw: ibv_mr = zeroed();
    let key = world.key();
    (raw.context, raw.pd) = (context as *mut ibv_context, domain);
    (raw.addr, raw.length) = (memory.host as *mut c_void, memory.len as usize);
    (raw.lkey, raw.rkey) = (key, key);
    let raw = given(raw);
    world.memories.insert(raw as usize, memory);
    world.keys.insert(key, raw as usize);
    Ok(raw)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    at: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    let mut world = world();
    let context = world.domains.get(&(domain as usize)).copied().unwrap_or_default();
    let met = world.meet(context, "reg_mr");
    let memory = Memory {
        domain: domain as usize,
        host: at as usize,
        address: at as u64,
        len: len as u64,
        access: access as u32,
        mapped: false,
    };
    made(met.and_then(|_| register(&mut world, domain, memory)))
}

/// A dma-buf is any file that can be mapped. It may begin anywhere in a page, as long as its address does so, too.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    domain: *mut ibv_pd,
    offset: u64,
    len: usize,
    address: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let mut world = world();
    let mut map = || {
        let context = world.domains.get(&(domain as usize)).copied().unwrap_or_default();
        world.meet(context, "reg_dmabuf_mr")?;
        let (before, flags) = (offset % PAGE, libc::PROT_READ | libc::PROT_WRITE);
        if fd >= 0 && before != address % PAGE {
            return Err(libc::EINVAL);
        }
        let (first, all) = ((offset - before) as libc::off_t, len + before as usize);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(null_mut(), all, flags, libc::MAP_SHARED, fd, first) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
        }
        let (domain_id, host) = (domain as usize, at as usize + before as usize);
        let memory =
            Memory { domain: domain_id, host, address, len: len as u64, access: access as u32, mapped: true };
        register(&mut world, domain, memory)
    };
    made(map())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(memory: *mut ibv_mr) -> c_int {
    let mut world = world();
    let Some(removed) = world.memories.remove(&(memory as usize)) else {
        return world.misused("memory is taken back that is not registered");
    };
    world.keys.retain(|_, id| *id != memory as usize);
    if removed.mapped {
        let before = removed.host % PAGE as usize;
        // SAFETY: mapped by `ibv_reg_dmabuf_mr`, and nobody reaches it any more.
        unsafe { libc::munmap((removed.host - before) as *mut c_void, removed.len as usize + before) };
    }
    // SAFETY: removed just now.
    unsafe { end(memory) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let mut world = world();
    let mut create = || {
        world.meet(context as usize, "create_comp_channel")?;
        let bell = bell()?;
        let raw = given(ibv_comp_channel { context, fd: bell.as_raw_fd(), refcnt: 0 });
        let channel = Channel { context: context as usize, bell, events: Default::default(), queues: 0 };
        world.channels.insert(raw as usize, channel);
        Ok(raw)
    };
    made(create())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let mut world = world();
    match world.channels.get(&(channel as usize)) {
        Some(found) if found.queues == 0 => {}
        _ => return world.misused("a completion channel ends that is used, or not there"),
    }
    world.channels.remove(&(channel as usize));
    // SAFETY: removed just now.
    unsafe { end(channel) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    room: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    let mut world = world();
    let mut create = || {
        world.meet(context as usize, "create_cq")?;
        let Some(used) = world.channels.get_mut(&(channel as usize)) else {
            return Err(world.misused("a completion queue without a channel"));
        };
        used.queues += 1;
        let mut raw: ibv_cq = zeroed();
        (raw.context, raw.channel, raw.cq_context, raw.cqe) = (context, channel, cq_context, room);
        let raw = given(raw);
        let queue = Queue {
            context: context as usize,
            channel: channel as usize,
            room: room as usize,
            done: Default::default(),
            armed: false,
            told: 0,
            acknowledged: 0,
            pairs: 0,
            endless: None,
        };
        world.queues.insert(raw as usize, queue);
        Ok(raw)
    };
    made(create())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    let mut world = world();
    let Some(found) = world.queues.get(&(queue as usize)) else {
        return world.misused("a completion queue ends that is not there");
    };
    // Events that were told and not taken need no acknowledgement.
    let untaken = world.channels.get(&found.channel);
    let untaken = untaken.map_or(0, |c| c.events.iter().filter(|id| **id == queue as usize).count() as u32);
    if found.pairs > 0 || found.told != found.acknowledged + untaken {
        return world
            .misused("a completion queue ends that is used, or has events that were not acknowledged");
    }
    let channel = found.channel;
    world.queues.remove(&(queue as usize));
    if let Some(channel) = world.channels.get_mut(&channel) {
        channel.queues -= 1;
        channel.events.retain(|id| *id != queue as usize);
    }
    // SAFETY: removed just now.
    unsafe { end(queue) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    context: *mut *mut c_void,
) -> c_int {
    // SAFETY: of a channel that the caller has.
    if let Err(errno) = hear(unsafe { (*channel).fd }) {
        made::<()>(Err(errno));
        return -1;
    }
    let mut world = world();
    let Some(id) = world.channels.get_mut(&(channel as usize)).and_then(|c| c.events.pop_front()) else {
        return -1;
    };
    // SAFETY: the caller's pointers, and a queue that is there.
    unsafe { (*queue, *context) = (id as *mut ibv_cq, (*(id as *mut ibv_cq)).cq_context) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(queue: *mut ibv_cq, count: c_uint) {
    if let Some(queue) = world().queues.get_mut(&(queue as usize)) {
        queue.acknowledged += count;
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(domain: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the caller's structure.
    let room = unsafe { (*attr).attr.max_wr } as usize;
    let mut world = world();
    let mut create = || {
        let Some(&context) = world.domains.get(&(domain as usize)) else {
            return Err(world.misused("a shared receive queue of a domain that is not there"));
        };
        world.meet(context, "create_srq")?;
        let mut raw: ibv_srq = zeroed();
        (raw.context, raw.pd) = (context as *mut ibv_context, domain);
        let raw = given(raw);
        let receives = Receives { domain: domain as usize, room, posted: Default::default(), pairs: 0 };
        world.receives.insert(raw as usize, receives);
        Ok(raw)
    };
    made(create())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(receives: *mut ibv_srq) -> c_int {
    let mut world = world();
    match world.receives.get(&(receives as usize)) {
        Some(found) if found.pairs == 0 => {}
        _ => return world.misused("a shared receive queue ends that is used, or not there"),
    }
    world.receives.remove(&(receives as usize));
    // SAFETY: removed just now.
    unsafe { end(receives) };
    0
}
