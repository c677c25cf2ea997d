//! What one rank has sent, and how long that took.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::group::{Entry, Kind, Ledger, Times};

/// One rank's calls of a kind in a group, over some steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sent {
    /// The group's name.
    pub group: &'static str,
    /// What the calls were.
    pub kind: Kind,
    /// How many.
    pub calls: u64,
    /// Bytes that this rank sends for them in a ring.
    pub bytes: u64,
    /// From the start of each to its end, waiting for slower ranks included; written in µs.
    #[serde(rename = "us", serialize_with = "micros")]
    pub took: Duration,
    /// The part of it in which this rank did nothing but wait; written in µs.
    #[serde(rename = "exposed_us", serialize_with = "micros")]
    pub exposed: Duration,
}

impl Sent {
    /// All that is in a ledger, by group and kind.
    pub fn all(ledger: &Ledger) -> Vec<Sent> {
        let times = ledger.times();
        let sent = |(key, entry): (_, Entry)| {
            let (group, kind) = key;
            let Times { took, exposed } = times.get(&key).copied().unwrap_or_default();
            Sent { group, kind, calls: entry.calls, bytes: entry.bytes, took, exposed }
        };
        ledger.entries().into_iter().map(sent).collect()
    }

    /// What has come on top since `before`.
    pub(super) fn since(now: &[Sent], before: &[Sent]) -> Vec<Sent> {
        let more = |sent: &Sent| {
            let known = before.iter().find(|old| (old.group, old.kind) == (sent.group, sent.kind));
            let Some(old) = known else { return sent.clone() };
            Sent {
                calls: sent.calls - old.calls,
                bytes: sent.bytes - old.bytes,
                took: sent.took - old.took,
                exposed: sent.exposed - old.exposed,
                ..*sent
            }
        };
        now.iter().map(more).filter(|sent| sent.calls > 0).collect()
    }
}

fn micros<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_nanos() as f64 / 1000.0)
}
