//! That the program wants no more of a communicator.

use std::sync::atomic::{AtomicBool, Ordering};

use nd_transport::Endpoint;

use crate::error::Error;

/// What the program has asked for, from whichever thread.
#[derive(Debug, Default)]
pub struct Ending {
    dropped: AtomicBool,
    aborted: AtomicBool,
}

impl Ending {
    /// Nobody has the communicator any more, or its ranks go on with another one.
    pub fn set_dropped(&self) {
        self.dropped.store(true, Ordering::Release);
    }

    /// It is aborted; whether this was the first time.
    pub fn set_aborted(&self) -> bool {
        !self.aborted.swap(true, Ordering::AcqRel)
    }

    /// Whether it was aborted on this rank.
    pub fn aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Why calls of this rank are to end, if they are.
    pub fn error(&self, endpoint: &Endpoint) -> Option<Error> {
        let rank = endpoint.rank();
        if self.aborted() {
            return Some(aborted(endpoint, rank));
        }
        let dropped = self.dropped.load(Ordering::Acquire);
        dropped.then(|| Error::Failed { rank, why: "the communicator was dropped or shrunk".into() })
    }
}

/// The error of a communicator that this rank or another one has aborted.
pub fn aborted(endpoint: &Endpoint, culprit: usize) -> Error {
    Error::Aborted { rank: endpoint.rank(), culprit, who: endpoint.who(culprit) }
}
