//! Memory of other devices that a rank has registered, by its addresses: what is put from there, or granted, is the devices'
//! business alone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::memory::Device;
use super::sys::Memory;
use crate::{DmaBuf, DmaBufRegistration, Error, Result};

/// All such memory of a rank, for all its endpoints.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    /// By address and number.
    all: RwLock<Known>,
    /// How many there are: mostly none, which costs a put one look.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Known {
    by_address: BTreeMap<(u64, u64), Arc<Exported>>,
    last: u64,
}

/// One of them, with its registrations.
#[derive(Debug)]
pub(crate) struct Exported {
    buf: DmaBuf,
    /// By the device's place in memory, where its protection domain stays as long as what is registered with it.
    memories: Mutex<Vec<(usize, Arc<Memory>)>>,
}

impl Exported {
    fn covers(&self, at: u64, len: u64) -> bool {
        let from = at.checked_sub(self.buf.address);
        from.and_then(|from| from.checked_add(len)).is_some_and(|end| end <= self.buf.len)
    }

    fn meets(&self, at: u64, len: u64) -> bool {
        at < self.buf.address + self.buf.len && self.buf.address < at.saturating_add(len)
    }

    /// Its registration with a device, which is made when it is first asked for.
    pub fn with(&self, device: &Device) -> Result<Arc<Memory>> {
        let place = Arc::as_ptr(device.domain()) as usize;
        let mut memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, memory)) = memories.iter().find(|(of, _)| *of == place) {
            return Ok(memory.clone());
        }
        let memory = Arc::new(device.register_dma_buf(&self.buf)?);
        memories.push((place, memory.clone()));
        Ok(memory)
    }
}

impl Exports {
    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// What covers these bytes, if they are such memory.
    ///
    /// # Errors
    /// When only some of them are.
    pub fn find(&self, at: u64, len: u64) -> Result<Option<Arc<Exported>>> {
        if len == 0 || self.is_empty() {
            return Ok(None);
        }
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let mut met = None;
        for found in all.by_address.range(..(at.saturating_add(len), 0)).rev().map(|(_, found)| found) {
            if found.covers(at, len) {
                return Ok(Some(found.clone()));
            }
            if found.meets(at, len) {
                met = Some(&found.buf);
            }
        }
        let Some(buf) = met else { return Ok(None) };
        Err(Error::DmaBuf {
            what: format!("{len} bytes at address {at:#x}"),
            why: format!("only some of them are of the dma-buf of {} bytes at {:#x}", buf.len, buf.address),
            remedy: "register all of the memory, or put its parts one by one".into(),
        })
    }

    /// Whether any of these bytes are such memory.
    pub fn meet(&self, at: u64, len: u64) -> bool {
        !matches!(self.find(at, len), Ok(None))
    }

    /// Registers memory with devices, all or none, and knows it from then on.
    pub fn add<'d>(
        self: &Arc<Exports>,
        buf: DmaBuf,
        devices: impl Iterator<Item = &'d Arc<Device>>,
    ) -> Result<DmaBufRegistration> {
        let addresses = buf.address..buf.address + buf.len;
        let exported = Exported { buf, memories: Mutex::default() };
        for device in devices {
            exported.with(device)?;
        }
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.last += 1;
        let number = all.last;
        all.by_address.insert((addresses.start, number), Arc::new(exported));
        self.count.store(all.by_address.len(), Ordering::Release);
        Ok(DmaBufRegistration { exports: self.clone(), number, addresses })
    }

    /// It is known no more.
    pub fn remove(&self, address: u64, number: u64) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        let removed = all.by_address.remove(&(address, number));
        self.count.store(all.by_address.len(), Ordering::Release);
        drop(all);
        // Its registrations end here, and that takes a while.
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(exports: &Arc<Exports>, address: u64, len: u64) -> DmaBufRegistration {
        let fd = crate::sys::memory_file(4096).unwrap();
        exports.add(DmaBuf { fd, offset: 0, len, address }, std::iter::empty()).unwrap()
    }

    #[test]
    fn memory_is_found_whole_or_not_at_all() {
        let exports = Arc::new(Exports::default());
        let found = |at, len| exports.find(at, len).map(|found| found.map(|f| f.buf.len));
        assert!(exports.is_empty() && !exports.meet(0x5000, 8));
        let (long, inside) = (add(&exports, 0x5000, 0x3000), add(&exports, 0x6000, 0x1000));
        assert!(!exports.is_empty());
        for (at, len, by) in [(0x5000, 0x3000, 0x3000), (0x7fff, 1, 0x3000), (0x6000, 0x1000, 0x1000)] {
            assert_eq!(found(at, len).unwrap(), Some(by), "{at:#x}+{len:#x}");
        }
        for (at, len) in [(0x4ff8, 8), (0x8000, 8), (0x8000, u64::MAX), (0x6000, 0)] {
            assert_eq!(found(at, len).unwrap(), None, "{at:#x}+{len:#x}");
            assert!(!exports.meet(at, len));
        }
        for (at, len) in [(0x4ff8, 9), (0x7fff, 2), (0x4000, 0x8000)] {
            let said = found(at, len).unwrap_err().to_string();
            assert!(
                said.contains("12288 bytes at 0x5000") || said.contains("4096 bytes at 0x6000"),
                "{said}"
            );
            assert!(exports.meet(at, len));
        }
        drop(long);
        assert_eq!(found(0x6010, 8).unwrap(), Some(0x1000));
        assert_eq!(found(0x5000, 8).unwrap(), None);
        drop(inside);
        assert!(exports.is_empty());
    }
}
