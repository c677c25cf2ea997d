//! Memory of another device, such as a GPU, that was exported as a dma-buf: RDMA devices read and write it by themselves,
//! and the processor never does.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::sys::PAGE;
use crate::verbs::Exports;
use crate::{Error, Result};

/// Memory of another device, as its driver exports it: for CUDA by `cuMemGetHandleForAddressRange`, in whole pages. See
/// [`Endpoint::register_dma_buf`](crate::Endpoint::register_dma_buf).
#[derive(Debug)]
pub struct DmaBuf {
    /// The dma-buf.
    pub fd: OwnedFd,
    /// Bytes from its beginning to the first of this memory.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The address of the first byte, such as a `CUdeviceptr`: by this, puts and grants name it. The processor need not
    /// be able to read there.
    pub address: u64,
}

impl DmaBuf {
    /// Why it can be registered nowhere.
    pub(crate) fn check(&self) -> Result<()> {
        let DmaBuf { offset, len, address, .. } = *self;
        let wrong = |why: String, remedy: &str| {
            let what =
                format!("a dma-buf of {len} bytes from offset {offset:#x} on, at address {address:#x}");
            Err(Error::DmaBuf { what, why, remedy: remedy.into() })
        };
        let page = PAGE as u64;
        let Some((end, _)) = offset.checked_add(len).zip(address.checked_add(len)).filter(|_| len > 0) else {
            return wrong("no memory has this length".into(), "give the length in bytes, 1 or more");
        };
        if offset % page != address % page {
            return wrong(
                format!("offset and address lie at different places of their pages of {page} bytes"),
                "export whole pages, and count the offset from the first byte of the export",
            );
        }
        let there = rustix::fs::fstat(&self.fd).map(|stat| u64::try_from(stat.st_size).unwrap_or(0));
        match there {
            // 0: older kernels do not tell.
            Ok(there) if 0 < there && there < end => {
                wrong(format!("the export ends after {there} bytes"), "export all of the memory")
            }
            _ => Ok(()),
        }
    }
}

/// The registration of a [`DmaBuf`]. When it is dropped, its memory is known no more; devices reach it until the last put
/// from it is flushed, and what was granted of it is withdrawn.
#[derive(Debug)]
pub struct DmaBufRegistration {
    pub(crate) exports: Arc<Exports>,
    pub(crate) number: u64,
    pub(crate) addresses: Range<u64>,
}

impl DmaBufRegistration {
    /// The addresses by which its bytes are put and granted.
    pub fn addresses(&self) -> Range<u64> {
        self.addresses.clone()
    }
}

impl Drop for DmaBufRegistration {
    fn drop(&mut self) {
        self.exports.remove(self.addresses.start, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memory_file;

    #[test]
    fn what_no_export_can_be_is_told_with_its_numbers() {
        let page = PAGE as u64;
        let refused = |offset, len, address| {
            let fd = memory_file(4 * page).unwrap();
            DmaBuf { fd, offset, len, address }.check().map_err(|e| e.to_string())
        };
        assert_eq!(refused(0, 4 * page, 7 * page), Ok(()));
        assert_eq!(refused(page + 8, 3, 7 * page + 8), Ok(()));
        for (offset, len, address, words) in [
            (0, 0, page, "0 bytes"),
            (page, u64::MAX, page, "no memory has this length"),
            (page, 8, page + 8, "different places"),
            (8, 8, page + 16, "offset 0x8 on, at address 0x1010"),
            (page, 4 * page, page, "the export ends after 16384 bytes"),
        ] {
            let said = refused(offset, len, address).unwrap_err();
            assert!(said.contains(words), "{words}: {said}");
        }
        assert!(refused(0, page, u64::MAX / page * page).unwrap_err().contains("no memory"));
    }
}
