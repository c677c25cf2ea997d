//! What the error of a call whose time was up says, as a file has it.

use serde::{Deserialize, Serialize};

use super::file::Call;
use crate::exec::standstill;

/// Where the ranks were when the time for a call was up; the same on all ranks that could tell each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standstill {
    /// The first call that was not done on all ranks; times and bytes are 0.
    pub call: Call,
    /// For how long it was waited for, ns.
    pub after_ns: u64,
    /// Who has entered it; of the first 1024 ranks.
    pub entered: Vec<usize>,
    /// For whom it was waited, and what is known of them; the first 16.
    pub missing: Vec<Missing>,
    /// How many more are missing.
    #[serde(default)]
    pub more_missing: usize,
}

/// A rank without which a call could not go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Which.
    pub rank: usize,
    /// Where it is instead.
    pub is: Is,
    /// The last call that it has finished or, unless `finished`, the latest of which a message came from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Call>,
    /// Whether `last` is known to be the last call that it has finished.
    #[serde(default)]
    pub finished: bool,
}

/// Where a missing rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Is {
    /// It has not entered the call.
    Absent,
    /// Nothing came from it, nor did its host acknowledge what it was sent.
    Unheard,
    /// It has entered the call, and does not answer since.
    Silent,
    /// Its process or its connection has ended without a word.
    Gone,
    /// It is in another call, and says so.
    Elsewhere,
    /// Something that only later versions tell.
    #[serde(other)]
    Unknown,
}

impl Standstill {
    /// Of the error's.
    pub(super) fn of(told: &standstill::Standstill) -> Standstill {
        let missing = |m: &standstill::Missing| Missing {
            rank: m.rank,
            is: match m.is {
                standstill::Is::Absent => Is::Absent,
                standstill::Is::Unheard => Is::Unheard,
                standstill::Is::Silent => Is::Silent,
                standstill::Is::Gone => Is::Gone,
                standstill::Is::In(_) => Is::Elsewhere,
            },
            last: m.last.as_ref().map(Call::of_called),
            finished: m.finished,
        };
        Standstill {
            call: Call::of_called(&told.call),
            after_ns: u64::try_from(told.after.as_nanos()).unwrap_or(u64::MAX),
            entered: told.entered.clone(),
            missing: told.missing.iter().map(missing).collect(),
            more_missing: told.more_missing,
        }
    }
}
