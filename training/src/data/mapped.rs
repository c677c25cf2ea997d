//! Tokens in a file that is mapped: its pages are shared by all processes of a host, and come from the disk when they are needed.

use std::fmt;
use std::fs::File;
use std::sync::Arc;

/// A whole file in memory.
#[derive(Debug, Clone)]
pub(super) struct Map(Arc<memmap2::Mmap>);

impl Map {
    /// Of a file of [`Cache`](super::Cache)'s.
    #[allow(unsafe_code)]
    pub fn open(file: &File) -> std::io::Result<Map> {
        // SAFETY: nobody writes to a file of the cache or cuts it once it has its name, under which alone it is opened: it is
        // replaced by renaming another one, and then stays as it is for those who have it open.
        let map = unsafe { memmap2::Mmap::map(file)? };
        Ok(Map(Arc::new(map)))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Tokens of a mapped file.
#[derive(Clone)]
pub struct Mapped {
    map: Map,
    /// Where the first lies, in bytes.
    start: usize,
    /// Bytes of each: 1, 2 or 4, little-endian.
    width: usize,
    largest: u32,
}

impl Mapped {
    /// From byte `start` to the end of a map.
    pub(super) fn new(map: Map, start: usize, width: usize, largest: u32) -> Mapped {
        Mapped { map, start, width, largest }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        (self.map.bytes().len() - self.start) / self.width
    }

    /// One of them.
    pub(super) fn get(&self, index: usize) -> Option<u32> {
        let start = index.checked_mul(self.width)?.checked_add(self.start)?;
        let bytes = self.map.bytes().get(start..)?.get(..self.width)?;
        Some(bytes.iter().rev().fold(0, |token, byte| token << 8 | u32::from(*byte)))
    }

    /// The largest of them.
    pub(super) fn largest(&self) -> u32 {
        self.largest
    }
}

impl PartialEq for Mapped {
    fn eq(&self, other: &Mapped) -> bool {
        self.len() == other.len() && (0..self.len()).all(|i| self.get(i) == other.get(i))
    }
}

impl Eq for Mapped {}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens up to {} in a file", self.len(), self.largest)
    }
}
