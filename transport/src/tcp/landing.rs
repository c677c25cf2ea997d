//! Memory of the caller that one peer may put into for a while: where it lies, by the offsets that stand for it. Pure.

use std::ptr::NonNull;

/// The first offset that stands for such memory; those of a region are far below.
pub const FIRST: u64 = 1 << 63;

/// What an offset from [`FIRST`] on stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Memory.
    Here(NonNull<u8>),
    /// Memory that was withdrawn.
    Withdrawn,
    /// Nothing that the peer was ever told of.
    Never,
}

/// The memory that one peer may put into.
#[derive(Debug)]
pub struct Landings {
    /// Beyond all offsets that were given away.
    end: u64,
    open: Vec<Landing>,
}

#[derive(Debug)]
struct Landing {
    at: u64,
    len: u64,
    to: NonNull<u8>,
}

// SAFETY: addresses, nothing more: who follows them is promised that the memory is there until it is withdrawn.
#[allow(unsafe_code)]
unsafe impl Send for Landings {}

impl Default for Landings {
    fn default() -> Landings {
        Landings { end: FIRST, open: Vec::new() }
    }
}

impl Landings {
    /// Adds `len` bytes from `to` on; their offset. None when there are no more offsets.
    pub fn open(&mut self, to: NonNull<u8>, len: u64) -> Option<u64> {
        let at = self.end;
        // One byte stays between them, so that nothing runs from one into the next.
        self.end = at.checked_add(len)?.checked_add(1)?;
        self.open.push(Landing { at, len, to });
        Some(at)
    }

    /// Takes back what began at this offset.
    pub fn withdraw(&mut self, at: u64) {
        self.open.retain(|landing| landing.at != at);
    }

    /// What `len` bytes from this offset on stand for.
    pub fn find(&self, at: u64, len: u64) -> Found {
        let Some(end) = at.checked_add(len).filter(|&end| at >= FIRST && end < self.end) else {
            return Found::Never;
        };
        match self.open.iter().find(|l| l.at < end.max(at + 1) && at < l.at + l.len) {
            Some(l) if l.at <= at && end <= l.at + l.len => {
                let to = l.to.as_ptr().wrapping_add((at - l.at) as usize);
                NonNull::new(to).map_or(Found::Never, Found::Here)
            }
            Some(_) => Found::Never,
            None => Found::Withdrawn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_open_and_only_whole() {
        let mut memory = [0u8; 100];
        let to = NonNull::new(memory.as_mut_ptr()).unwrap();
        let at = |offset: usize| Found::Here(to.map_addr(|a| a.checked_add(offset).unwrap()));
        let mut landings = Landings::default();
        assert_eq!(landings.find(FIRST, 0), Found::Never);
        let a = landings.open(to, 40).unwrap();
        let b = landings.open(to.map_addr(|a| a.checked_add(40).unwrap()), 60).unwrap();
        assert_eq!(landings.find(a, 40), at(0));
        assert_eq!(landings.find(a + 39, 1), at(39));
        assert_eq!(landings.find(b + 1, 59), at(41));
        // From one into the next, beyond the last, before the first, round the end.
        assert_eq!(landings.find(a, 41), Found::Never);
        assert_eq!(landings.find(a + 39, 3), Found::Never);
        assert_eq!(landings.find(b, 61), Found::Never);
        assert_eq!(landings.find(FIRST - 1, 2), Found::Never);
        assert_eq!(landings.find(u64::MAX, 2), Found::Never);
        landings.withdraw(a);
        assert_eq!(landings.find(a, 40), Found::Withdrawn);
        assert_eq!(landings.find(a + 10, 1), Found::Withdrawn);
        assert_eq!(landings.find(a, 42), Found::Never);
        assert_eq!(landings.find(b, 60), at(40));
    }

    #[test]
    fn offsets_end() {
        let mut memory = [0u8; 1];
        let to = NonNull::new(memory.as_mut_ptr()).unwrap();
        let mut landings = Landings::default();
        assert_eq!(landings.open(to, u64::MAX), None);
        assert!(landings.open(to, 1).is_some());
    }
}
