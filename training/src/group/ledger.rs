//! What the ranks of each group have sent, and how long that took.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// A kind of collective call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
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
    /// As people write it: `all-reduce`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all-reduce",
            Kind::AllGather => "all-gather",
            Kind::ReduceScatter => "reduce-scatter",
            Kind::AllToAll => "all-to-all",
            Kind::Broadcast => "broadcast",
            Kind::Shift => "shift",
        }
    }

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

/// How long calls of a kind on an axis took: those that have been waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// From the start of each call to its end, waiting for other ranks and for earlier calls included.
    pub took: Duration,
    /// The part of it in which this rank did nothing but wait.
    pub exposed: Duration,
}

/// Calls, bytes and times by axis and kind; all groups of a rank share one.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    records: Arc<Mutex<Records>>,
}

type Key = (&'static str, Kind);
type Records = BTreeMap<Key, (Entry, Times)>;

/// A call that was written down and is not over.
#[derive(Debug)]
pub(crate) struct Open {
    ledger: Ledger,
    key: Key,
    began: Instant,
}

impl Ledger {
    /// Writes down one call about `bytes` (see [`Kind::sent`]) among `size` ranks.
    pub fn record(&self, axis: &'static str, kind: Kind, bytes: u64, size: usize) {
        let mut records = self.lock();
        let (entry, _) = records.entry((axis, kind)).or_default();
        entry.calls += 1;
        entry.bytes += kind.sent(bytes, size);
    }

    /// As [`Ledger::record`], of a call that begins now.
    pub(crate) fn open(&self, axis: &'static str, kind: Kind, bytes: u64, size: usize) -> Open {
        self.record(axis, kind, bytes, size);
        Open { ledger: self.clone(), key: (axis, kind), began: Instant::now() }
    }

    /// Calls and bytes so far, by axis and kind.
    pub fn entries(&self) -> BTreeMap<(&'static str, Kind), Entry> {
        self.lock().iter().map(|(key, (entry, _))| (*key, *entry)).collect()
    }

    /// How long they took, by axis and kind.
    pub fn times(&self) -> BTreeMap<(&'static str, Kind), Times> {
        self.lock().iter().map(|(key, (_, times))| (*key, *times)).collect()
    }

    /// Does something whose calls are not written down.
    pub fn aside<R>(&self, what: impl FnOnce() -> R) -> R {
        let kept = self.lock().clone();
        let result = what();
        *self.lock() = kept;
        result
    }

    /// The entries since the last call of this, which begins anew, times too.
    pub fn take(&self) -> BTreeMap<(&'static str, Kind), Entry> {
        std::mem::take(&mut *self.lock()).into_iter().map(|(key, (entry, _))| (key, entry)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// The call was over at `ended`, and this rank has waited for it since `waited`.
    pub(crate) fn close(self, waited: Instant, ended: Instant) {
        let times = Times {
            took: ended.saturating_duration_since(self.began),
            exposed: ended.saturating_duration_since(waited.max(self.began)),
        };
        if let Some((_, sum)) = self.ledger.lock().get_mut(&self.key) {
            sum.took += times.took;
            sum.exposed += times.exposed;
        }
    }

    /// The call is over, and this rank has done nothing else meanwhile.
    pub(crate) fn close_blocking(self) {
        let began = self.began;
        self.close(began, Instant::now());
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

    #[test]
    fn a_call_is_exposed_as_long_as_it_is_waited_for() {
        let ledger = Ledger::default();
        let ms = Duration::from_millis;
        let [hidden, late, blocking] = [(); 3].map(|()| ledger.open("tp", Kind::AllReduce, 400, 4));
        let began = hidden.began;
        // Waited for when it was long over, and from its half on.
        hidden.close(began + ms(5), began + ms(2));
        let times = || ledger.times()[&("tp", Kind::AllReduce)];
        assert_eq!(times(), Times { took: ms(2), exposed: ms(0) });
        let began = late.began;
        late.close(began + ms(2), began + ms(4));
        assert_eq!(times(), Times { took: ms(6), exposed: ms(2) });
        blocking.close_blocking();
        assert_eq!(times().took - ms(6), times().exposed - ms(2));
        let before = times();
        ledger.aside(|| ledger.open("tp", Kind::AllReduce, 400, 4).close_blocking());
        assert_eq!(times(), before);
        assert_eq!(ledger.entries()[&("tp", Kind::AllReduce)].calls, 3);
        ledger.take();
        assert!(ledger.times().is_empty());
    }
}
