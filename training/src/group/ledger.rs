//! What the ranks of each group have sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A kind of collective call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The sum of all at all.
    AllReduce,
    /// Everybody's part at all.
    AllGather,
    /// To each its part of the sum.
    ReduceScatter,
    /// Everybody's part for everybody.
    AllToAll,
    /// One rank's at all.
    Broadcast,
    /// To the next rank, from the one before.
    Shift,
}

impl Kind {
    /// Bytes that each of `size` ranks sends in a ring, when the whole buffer has `bytes`: the whole sum, the gathered
    /// whole, all that is scattered, one rank's buffer of an all-to-all, what is broadcast, what one rank passes on.
    pub fn sent(self, bytes: u64, size: usize) -> u64 {
        let n = size as u64;
        match self {
            Kind::AllReduce => 2 * (n - 1) * bytes / n,
            Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll => (n - 1) * bytes / n,
            Kind::Broadcast | Kind::Shift => bytes,
        }
    }
}

/// Calls of a kind on an axis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// How many.
    pub calls: u64,
    /// Bytes that this rank sends for them in a ring.
    pub bytes: u64,
}

/// Calls and bytes by axis and kind; all groups of a rank share one.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    entries: Arc<Mutex<BTreeMap<(&'static str, Kind), Entry>>>,
}

impl Ledger {
    /// Writes down one call about `bytes` (see [`Kind::sent`]) among `size` ranks.
    pub fn record(&self, axis: &'static str, kind: Kind, bytes: u64, size: usize) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.entry((axis, kind)).or_default();
        entry.calls += 1;
        entry.bytes += kind.sent(bytes, size);
    }

    /// All entries so far, by axis and kind.
    pub fn entries(&self) -> BTreeMap<(&'static str, Kind), Entry> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does something whose calls are not written down.
    pub fn aside<R>(&self, what: impl FnOnce() -> R) -> R {
        let kept = self.entries();
        let result = what();
        *self.entries.lock().unwrap_or_else(PoisonError::into_inner) = kept;
        result
    }

    /// The entries since the last call of this, which begins anew.
    pub fn take(&self) -> BTreeMap<(&'static str, Kind), Entry> {
        std::mem::take(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_a_ring() {
        let ledger = Ledger::default();
        ledger.record("tp", Kind::AllReduce, 400, 4);
        ledger.record("tp", Kind::AllReduce, 400, 4);
        ledger.record("tp", Kind::AllGather, 400, 4);
        ledger.aside(|| ledger.record("tp", Kind::AllReduce, 400, 4));
        let entries = ledger.take();
        assert_eq!(entries[&("tp", Kind::AllReduce)], Entry { calls: 2, bytes: 1200 });
        assert_eq!(entries[&("tp", Kind::AllGather)], Entry { calls: 1, bytes: 300 });
        assert!(ledger.entries().is_empty());
    }
}
