//! Ranks that end together.

use std::time::{Duration, Instant};

use super::{Ended, Event, Group};

/// When a rank has failed, the others have so long to find out and say so.
const GRACE: Duration = Duration::from_secs(3);

impl Group {
    /// Waits until all ranks have succeeded, or one has failed: then also until the others have said what they know, and ends
    /// them. Returns the first that failed.
    pub fn wait_all(&mut self) -> Option<Ended> {
        while self.running() > 0 {
            let Event::Ended(first) = self.wait(None, None) else { continue };
            if first.code() != 0 {
                let until = Instant::now() + GRACE;
                while self.running() > 0 && matches!(self.wait(None, Some(until)), Event::Ended(_)) {}
                self.end(Duration::from_millis(200));
                return Some(first);
            }
        }
        None
    }
}

impl Ended {
    /// A sentence on the first of several ranks to fail.
    pub fn first(&self) -> String {
        format!(
            "rank {} (pid {}) failed first: {}; the other ranks were ended; look at what it said above",
            self.rank,
            self.pid,
            self.why()
        )
    }
}
