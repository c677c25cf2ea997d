//! Registration of other devices' memory, by dma-buf.
#![allow(unsafe_code)] // calls a C library

use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use libibverbs_sys::bindings::*;
use libibverbs_sys::inline;

use super::{Domain, Memory, made};
use crate::DmaBuf;

/// Why a device registers no dma-bufs at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoDmaBufs {
    /// The library has no function for it.
    Library,
    /// The kernel has none for this device; its errno.
    Driver(i32),
}

impl NoDmaBufs {
    /// Whether an error says so.
    pub fn of(e: &io::Error) -> Option<NoDmaBufs> {
        match e.raw_os_error() {
            None => (e.kind() == io::ErrorKind::Unsupported).then_some(NoDmaBufs::Library),
            // Kernels without the call at all, and drivers without their part of it.
            Some(errno @ (libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS)) => {
                Some(NoDmaBufs::Driver(errno))
            }
            Some(_) => None,
        }
    }

    /// In words, with what to do.
    pub fn why_and_remedy(self) -> (String, &'static str) {
        match self {
            NoDmaBufs::Library => (
                "this libibverbs has no ibv_reg_dmabuf_mr".into(),
                "install rdma-core 34 or newer, or copy through host memory",
            ),
            NoDmaBufs::Driver(errno) => (
                format!("its driver registers none ({})", io::Error::from_raw_os_error(errno)),
                "mlx5 does from Linux 5.12 on, others later or never: choose another device (ND_IB_HCA), or copy through host \
                 memory",
            ),
        }
    }
}

impl Domain {
    /// Asks for a registration of no descriptor, as NCCL does: a driver that takes dma-bufs misses the descriptor (`EBADF`),
    /// others are told apart by what they say.
    pub fn try_dma_bufs(self: &Arc<Domain>) -> Option<NoDmaBufs> {
        self.reg_dma_buf(-1, (0, 0, 0), 0).err().and_then(|e| NoDmaBufs::of(&e))
    }

    /// Lets the device read and write this memory, and peers write it that know the key. The kernel keeps what the
    /// descriptor stands for until the registration is dropped.
    pub fn register_dma_buf(self: &Arc<Domain>, buf: &DmaBuf) -> io::Result<Memory> {
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let len = usize::try_from(buf.len).map_err(io::Error::other)?;
        self.reg_dma_buf(buf.fd.as_raw_fd(), (buf.offset, len, buf.address), access as c_int)
    }

    fn reg_dma_buf(
        self: &Arc<Domain>,
        fd: c_int,
        span: (u64, usize, u64),
        access: c_int,
    ) -> io::Result<Memory> {
        // SAFETY: the domain is alive, the kernel looks at the descriptor by itself, and holds on to the memory.
        let raw = made(unsafe { inline::reg_dma_buf(self.context.library, self.raw, fd, span, access)? })?;
        Ok(Memory { domain: self.clone(), raw })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_apart_from_what_was_wrong() {
        let of = |errno| NoDmaBufs::of(&io::Error::from_raw_os_error(errno));
        for errno in [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::ENOSYS] {
            assert_eq!(of(errno), Some(NoDmaBufs::Driver(errno)));
        }
        for errno in [libc::EBADF, libc::EINVAL, libc::ENOMEM] {
            assert_eq!(of(errno), None);
        }
        assert_eq!(NoDmaBufs::of(&io::ErrorKind::Unsupported.into()), Some(NoDmaBufs::Library));
    }
}
