//! System calls and raw memory that the transports share.
#![allow(unsafe_code)] // memory mappings, cross-memory attach

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap_fixed, munmap,
};
use rustix::thread::futex;

use crate::{Error, Result};

/// The size of a page, in bytes; memory is handed out in multiples of it.
pub const PAGE: usize = 4096;

/// The size of a huge page, in bytes: with these, a processor finds large memory without walking its tables all the time.
pub const HUGE_PAGE: usize = 2 << 20;

/// A memory file without a name, `len` bytes long, all zero; it costs nothing until it is touched and is gone with
/// its last user. Nobody who has it can make it shorter: memory that is mapped stays there.
pub fn memory_file(len: u64) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create(c"nd", flags).map_err(|e| Error::system("creating a memory file", e))?;
    ftruncate(&fd, len)
        .map_err(|e| Error::system(format!("reserving {len} bytes of a memory file (see `ulimit -f`)"), e))?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|e| Error::system("fixing the length of a memory file", e))?;
    Ok(fd)
}

/// Whether the file has `len` bytes and keeps them, whatever those do who have it too: memory that is mapped from
/// beyond a file's end is a fault when it is touched.
pub fn keeps_length(file: &impl AsFd, len: u64) -> io::Result<()> {
    let size = fstat(file)?.st_size;
    if size < 0 || (size as u64) < len {
        return Err(io::Error::other(format!("the memory file has {size} bytes where {len} belong")));
    }
    match fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
        true => Ok(()),
        false => Err(io::Error::other("the memory file could be made shorter while it is mapped")),
    }
}

/// A shared mapping of a memory file.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory; whoever dereferences pointers into it answers for races.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods only compute addresses or advise the kernel.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps all `len` bytes of `file`.
    pub fn new(file: &impl AsFd, len: usize) -> Result<Mapping> {
        let failed = |e| Error::system(format!("mapping {len} bytes of shared memory"), e);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let span = len.checked_add(HUGE_PAGE).ok_or_else(|| failed(Errno::NOMEM))?;
        // SAFETY: a new mapping at an address that the kernel chooses; within it, at an address where huge pages fit, one of
        // a file that this library alone resizes; what is left of the first one around it is given back.
        let base = unsafe {
            let room =
                mmap_anonymous(std::ptr::null_mut(), span, ProtFlags::empty(), flags).map_err(failed)?;
            let before = room.addr().next_multiple_of(HUGE_PAGE) - room.addr();
            let base = room.byte_add(before);
            let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
            let mapped = mmap(base, len, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0);
            if mapped.is_err() {
                let _ = munmap(room, span);
            } else {
                let end = len.next_multiple_of(PAGE);
                let after = span - before - end;
                let _ = (before > 0).then(|| munmap(room, before));
                let _ = (after > 0).then(|| munmap(base.byte_add(end), after));
            }
            mapped.map_err(failed)?
        };
        let base = NonNull::new(base.cast()).expect("mmap never gives the null page");
        Ok(Mapping { base, len })
    }

    /// The address of `offset`; it and the `len` bytes after it lie inside the mapping.
    pub fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "{offset}+{len} of {}", self.len);
        // SAFETY: inside the mapping, checked above.
        unsafe { self.base.add(offset) }
    }

    /// The first address, as a number.
    pub fn base_address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Gives the memory of these whole pages back to the system; they read as zero afterwards, for everyone.
    pub fn release(&self, offset: usize, len: usize) {
        let at = self.at(offset, len);
        // SAFETY: inside the mapping; the caller owns this range and nobody uses it any more.
        let _ = unsafe { madvise(at.as_ptr().cast(), len, Advice::LinuxRemove) };
    }

    /// Has huge pages lie under these bytes, as far as whole ones fit and the system has them (Linux 6.1 on, whatever it
    /// says of shared memory in general unless that is `deny`): all of them are there afterwards, as if they had been
    /// touched. Nothing else tells where that fails.
    pub fn back_by_huge_pages(&self, offset: usize, len: usize) {
        let (first, end) = (offset.next_multiple_of(HUGE_PAGE), (offset + len) / HUGE_PAGE * HUGE_PAGE);
        if first >= end {
            return;
        }
        let at = self.at(first, end - first);
        // SAFETY: inside the mapping; neither advice changes contents.
        let _ = unsafe { madvise(at.as_ptr().cast(), end - first, Advice::LinuxHugepage) };
        // Only what has a page already is made one of huge ones.
        for unit in (first..end).step_by(HUGE_PAGE) {
            // SAFETY: inside the mapping; whatever others write there meanwhile, it is a byte.
            let _ = unsafe { self.at(unit, 1).as_ptr().read_volatile() };
        }
        // SAFETY: as above.
        let _ = unsafe { libc::madvise(at.as_ptr().cast(), end - first, libc::MADV_COLLAPSE) };
    }

    /// Puts memory of this process alone in the place of these whole pages, with what they hold: what others write to the
    /// shared ones is seen here no more.
    pub fn detach(&self, offset: usize, len: usize) -> Result<()> {
        let at = self.at(offset, len);
        let failed = |e| Error::system(format!("taking {len} bytes out of shared memory"), e);
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses, filled from ours, then moved over it whole. Others
        // may write the shared pages meanwhile: whichever of their bytes are copied, they are only bytes.
        unsafe {
            let own = mmap_anonymous(std::ptr::null_mut(), len, flags, MapFlags::PRIVATE).map_err(failed)?;
            std::ptr::copy_nonoverlapping(at.as_ptr(), own.cast(), len);
            if let Err(e) = mremap_fixed(own, len, len, MremapFlags::MAYMOVE, at.as_ptr().cast()) {
                let _ = munmap(own, len);
                return Err(failed(e));
            }
        }
        Ok(())
    }

    /// The 32-bit word at `offset`, a multiple of 4.
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        assert_eq!(offset % 4, 0);
        // SAFETY: aligned, inside the mapping, which lives as long as `self`; words are only accessed atomically.
        unsafe { self.at(offset, 4).cast().as_ref() }
    }

    /// The 64-bit word at `offset`, a multiple of 8.
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        assert_eq!(offset % 8, 0);
        // SAFETY: aligned, inside the mapping, which lives as long as `self`; words are only accessed atomically.
        unsafe { self.at(offset, 8).cast().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody holds pointers into it past the lifetime of its regions.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Sleeps while `word` holds `value`, at most `timeout`, until [`futex_wake`]. May return early.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Duration) {
    let timeout = futex::Timespec {
        tv_sec: timeout.as_secs().min(1 << 30) as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&timeout));
}

/// Wakes whoever sleeps on `word`.
pub fn futex_wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// Copies `len` bytes from address `from` of process `pid` (process_vm_readv).
///
/// # Safety
/// `to` is valid for `len` bytes.
pub unsafe fn read_process(pid: u32, from: u64, to: *mut u8, len: usize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let local = libc::iovec {
            // SAFETY: within the caller's buffer.
            iov_base: unsafe { to.add(done) }.cast(),
            iov_len: len - done,
        };
        let remote =
            libc::iovec { iov_base: (from + done as u64) as usize as *mut libc::c_void, iov_len: len - done };
        // SAFETY: `local` lies in the caller's buffer; the kernel checks `remote` against the other process.
        let n = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
        match n {
            -1 => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e => return Err(e),
            },
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            n => done += n as usize,
        }
    }
    Ok(())
}

/// Whether [`read_process`] works on this process itself.
pub fn can_read_own_process() -> bool {
    static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(|| {
        let (from, mut to) = ([7u8; 8], [0u8; 8]);
        // SAFETY: `to` has 8 bytes.
        let read = unsafe { read_process(std::process::id(), from.as_ptr() as u64, to.as_mut_ptr(), 8) };
        read.is_ok() && to == from
    })
}

/// Lets processes of the same user read this one's memory where Yama would allow only its parents to.
pub fn allow_cross_memory() {
    // SAFETY: sets an attribute of this process; fails without effect where Yama is absent.
    let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// Registers `f` to run in the child after every fork.
pub fn after_fork_in_child(f: extern "C" fn()) {
    // SAFETY: `f` only touches an atomic, which is allowed between fork and exec.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(f)) };
}

/// Copies `len` bytes into memory that another process may be reading flags next to.
///
/// # Safety
/// Both are valid for `len` bytes and do not overlap.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}
