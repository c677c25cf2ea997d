//! Memory that a device may reach: the windows of the region, blocks of this transport's own, memory of the caller.
//!
//! A window is registered when it is first needed and as long as it is there. The caller's own memory is registered for as
//! long as it is lent, and not longer: the caller may free it the moment it gets it back, and a registration that
//! outlives it would have the device write into pages that nobody sees any more. Nothing tells a library reliably that
//! memory was freed, so nothing is kept that could be wrong; short pieces are copied through a block instead.
#![allow(unsafe_code)] // memory that a device writes

use std::collections::BTreeMap;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use super::exported::Exports;
use super::sys::{Context, Domain, Limits, Memory, NoDmaBufs};
use crate::sys::PAGE;
use crate::{DmaBuf, Error, Region, Result};

/// Bytes that are registered at least to see whether any can be.
const TRIAL: u64 = 1 << 20;

/// An open device, with what is registered there; all endpoints of a rank that use it share one.
#[derive(Debug)]
pub struct Device {
    domain: Arc<Domain>,
    /// What it can do.
    pub limits: Limits,
    /// The registered windows, by their offsets.
    windows: Mutex<BTreeMap<u64, Arc<Memory>>>,
    /// How often a registered window was given back.
    forgotten: AtomicU64,
    /// Memory of other devices, which the whole rank knows.
    exports: Arc<Exports>,
    /// Whether such memory cannot be registered here, once that was asked.
    no_dma_bufs: OnceLock<Option<NoDmaBufs>>,
}

impl Device {
    /// Opens the device of that name, for a rank that knows such memory of other devices.
    pub fn open(name: &str, exports: &Arc<Exports>) -> Result<Arc<Device>> {
        let failed = |what: &str| {
            let what = format!("{what} RDMA device {name}");
            move |e: io::Error| Error::system(what, e)
        };
        let context = Context::open(name).map_err(|e| match (e.kind(), e.raw_os_error()) {
            // The kernel has it, and nothing leads there from here.
            (io::ErrorKind::NotFound, _) | (_, Some(libc::ENOSYS)) => Error::Device {
                what: format!("RDMA device {name}"),
                why: "libibverbs does not find it, for want of its /dev/infiniband/uverbs device or of a provider for its \
                      driver"
                    .into(),
                remedy: "load ib_uverbs (`modprobe ib_uverbs`), give a container /dev/infiniband, or install rdma-core's \
                         providers"
                    .into(),
            },
            _ => failed("opening")(e),
        })?;
        let limits = context.limits().map_err(failed("asking for the limits of"))?;
        let domain = Domain::new(&context).map_err(failed("making a protection domain of"))?;
        Ok(Arc::new(Device {
            domain,
            limits,
            windows: Mutex::default(),
            forgotten: AtomicU64::new(0),
            exports: exports.clone(),
            no_dma_bufs: OnceLock::new(),
        }))
    }

    /// Its protection domain.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The device itself.
    pub fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    /// The registration of the window of this region that begins at `at` and is `size` bytes long.
    pub fn window(&self, region: &Region, at: u64, size: u64) -> Result<Arc<Memory>> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = windows.get(&at) {
            return Ok(memory.clone());
        }
        let ptr = region.at(at, size).as_ptr();
        // SAFETY: the region's mapping outlives the endpoint, and `forget` ends the registration before the window is
        // anybody else's. Keys go to ranks of this job alone, which may write exposed windows and what they were granted.
        let memory = unsafe { self.register(ptr, size as usize)? };
        let memory = Arc::new(memory);
        windows.insert(at, memory.clone());
        Ok(memory)
    }

    /// The window that begins there is being given back.
    pub fn forget(&self, at: u64) {
        let forgotten = self.windows.lock().unwrap_or_else(PoisonError::into_inner).remove(&at);
        if forgotten.is_some() {
            self.forgotten.fetch_add(1, Ordering::Release);
        }
    }

    /// Changes whenever a registered window was given back.
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Acquire)
    }

    /// Whether a window is registered under this key of peers.
    pub fn has(&self, at: u64, key: u32) -> bool {
        let windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.get(&at).is_some_and(|memory| memory.remote_key() == key)
    }

    /// Memory of other devices that the rank has registered.
    #[inline]
    pub fn exports(&self) -> &Exports {
        &self.exports
    }

    /// Registers memory of another device.
    ///
    /// # Errors
    /// What is missing for it: the library's function, the driver's, or what the kernel says of this memory.
    pub fn register_dma_buf(&self, buf: &DmaBuf) -> Result<Memory> {
        let what = || {
            let name = self.context().name();
            format!("registering a dma-buf of {} bytes with RDMA device {name}", buf.len)
        };
        let lacks = |none: &NoDmaBufs| {
            let (why, remedy) = none.why_and_remedy();
            Error::DmaBuf { what: what(), why, remedy: remedy.into() }
        };
        // Asked once, with no memory at all: what the kernel says of a certain one is told as it is.
        match self.no_dma_bufs.get_or_init(|| self.domain.try_dma_bufs()) {
            Some(none) => Err(lacks(none)),
            None => self.domain.register_dma_buf(buf).map_err(|e| match NoDmaBufs::of(&e) {
                Some(none) => lacks(&none),
                None => Error::DmaBuf {
                    what: what(),
                    why: e.to_string(),
                    remedy: "see that the descriptor is a dma-buf whose exporter lets other devices reach it, or copy through \
                             host memory"
                        .into(),
                },
            }),
        }
    }

    /// Registers memory.
    ///
    /// # Safety
    /// As for [`Domain::register`].
    pub unsafe fn register(&self, ptr: *mut u8, len: usize) -> Result<Memory> {
        // SAFETY: the caller's promise.
        unsafe { self.domain.register(ptr, len) }.map_err(|e| refused(self.context().name(), len, e))
    }
}

/// The kernel would not have memory registered: mostly because so much may not be locked, with whatever device.
pub fn refused(device: &str, len: usize, e: io::Error) -> Error {
    let what = format!("registering {len} bytes of memory");
    match (e.raw_os_error(), lock_limit()) {
        (Some(libc::ENOMEM), Some(limit)) => Error::Limit {
            what: format!("{what} for RDMA"),
            needed: format!(
                "{} KiB of locked memory beside the {} KiB that are locked already",
                len.div_ceil(1024),
                locked_kib()
            ),
            limit: format!("{} KiB for all (`ulimit -l`)", limit / 1024),
            remedy: "raise it: `ulimit -l unlimited`, memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity of a \
                     service, --ulimit memlock=-1 of a container; or use ND_TRANSPORT=tcp"
                .into(),
        },
        _ => Error::system(format!("{what} with RDMA device {device}"), e),
    }
}

/// Bytes that this process may lock, if they are limited.
fn lock_limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// Whether so many bytes can be registered, or about what one peer needs if that is more. They are not kept.
///
/// # Errors
/// As for registering them.
pub fn try_memory(device: &Device, bytes: u64) -> Result<()> {
    let bytes = bytes.max(TRIAL);
    // More than the limit is refused before it takes any memory; who is not held to it is not held up either.
    let most = lock_limit().map_or(TRIAL, |limit| limit.saturating_add(PAGE as u64).max(TRIAL));
    match Block::new(device, (bytes.min(most) / PAGE as u64) as u32, PAGE) {
        Err(Error::Limit { .. }) => {
            Err(refused(device.context().name(), bytes as usize, io::Error::from_raw_os_error(libc::ENOMEM)))
        }
        done => done.map(drop),
    }
}

/// What the kernel counts as locked by this process, by itself or for devices.
fn locked_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    ["VmLck:", "VmPin:"].into_iter().filter_map(kib).sum()
}

/// Registered memory of this transport's own, in pieces of one size.
#[derive(Debug)]
pub struct Block {
    // Ends before its memory does.
    memory: Memory,
    base: NonNull<u8>,
    len: usize,
    piece: usize,
}

// SAFETY: memory that is handed out piece by piece, each to one user at a time.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// So many pieces, each of so many bytes.
    pub fn new(device: &Device, count: u32, piece: usize) -> Result<Block> {
        let len = (count as usize * piece).next_multiple_of(PAGE);
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, flags, MapFlags::PRIVATE) }
            .map_err(|e| Error::system(format!("reserving {len} bytes for RDMA"), e))?;
        let base: NonNull<u8> = NonNull::new(base.cast()).expect("mmap never gives the null page");
        // SAFETY: mapped until the block is dropped, after its registration.
        match unsafe { device.register(base.as_ptr(), len) } {
            Ok(memory) => Ok(Block { memory, base, len, piece }),
            Err(e) => {
                // SAFETY: mapped above, and nobody has it.
                let _ = unsafe { munmap(base.as_ptr().cast(), len) };
                Err(e)
            }
        }
    }

    /// The first byte of a piece.
    pub fn at(&self, number: u32) -> *mut u8 {
        let at = number as usize * self.piece;
        assert!(at + self.piece <= self.len, "piece {number} of {} bytes", self.len);
        // SAFETY: inside the mapping.
        unsafe { self.base.as_ptr().add(at) }
    }

    /// Its registration.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The first bytes of a piece, which the caller alone uses.
    ///
    /// # Safety
    /// Nobody writes there meanwhile, nor does the device.
    pub unsafe fn bytes(&self, number: u32, len: usize) -> &[u8] {
        assert!(len <= self.piece);
        // SAFETY: inside the mapping, and nobody writes there.
        unsafe { std::slice::from_raw_parts(self.at(number), len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // The registration must end while the memory is there; it is a field, so it is exchanged for the end of the mapping.
        self.memory.end();
        // SAFETY: ours, and the device reaches it no more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Pieces of a block that are free.
#[derive(Debug)]
pub struct Pieces {
    /// Where they are.
    pub block: Block,
    free: Mutex<Vec<u32>>,
}

impl Pieces {
    /// All of `count` pieces of a new block.
    pub fn new(device: &Device, count: u32, piece: usize) -> Result<Pieces> {
        Ok(Pieces { block: Block::new(device, count, piece)?, free: Mutex::new((0..count).collect()) })
    }

    /// Takes one.
    pub fn take(&self) -> Option<u32> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Gives one back.
    pub fn give(&self, number: u32) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(number);
    }
}
