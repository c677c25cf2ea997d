//! Calls that were started, and how long they took.

use std::time::Instant;

use super::ledger::Open;
use crate::error::Result;

/// A call that was started in a [`Group`](super::Group). The ledger learns how long it took when it is waited for.
#[must_use = "wait for it to get the buffers back"]
#[derive(Debug)]
pub struct Pending<B> {
    call: nd_comm::prelude::Pending<B>,
    open: Option<Open>,
}

impl<B: Send + 'static> Pending<B> {
    pub(super) fn new(call: nd_comm::prelude::Pending<B>, open: Option<Open>) -> Pending<B> {
        Pending { call, open }
    }

    /// Waits for the call and gives its buffers back.
    ///
    /// # Errors
    /// Of the call.
    pub fn wait(self) -> Result<B> {
        let waited = Instant::now();
        let (buffers, ended) = self.call.wait_timed()?;
        if let Some(open) = self.open {
            open.close(waited, ended);
        }
        Ok(buffers)
    }

    /// Whether [`Pending::wait`] would return at once.
    pub fn is_done(&self) -> bool {
        self.call.is_done()
    }
}
