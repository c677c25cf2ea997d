//! Asynchronous calls: they take their buffers and give them back.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::Communicator;
use super::worker::{Done, Ended, Keep};
use crate::error::{Error, Result};
use crate::exec::engine::Call;

/// A call that was started. Dropping it lets the call go on; its buffers are freed when it is done.
#[must_use = "wait for it to get the buffers back"]
pub struct Pending<B> {
    done: Arc<Done>,
    /// The call is performed as long as there is someone to perform it.
    communicator: Communicator,
    buffers: std::marker::PhantomData<fn() -> B>,
}

/// What starting a call gives: the call, or, when it cannot be started, the buffers back.
pub type Started<B> = Result<Pending<B>, Returned<B>>;

/// An error, and the buffers of the call that it belongs to. `?` makes an [`Error`] of it.
pub struct Returned<B> {
    /// Why the call failed.
    pub error: Error,
    /// Its buffers; their contents are undefined when the call had begun. None in the child of a fork: they are with
    /// the parent's call.
    pub buffers: Option<B>,
}

impl<B: Send + 'static> Pending<B> {
    /// Waits for the call and gives its buffers back.
    pub fn wait(self) -> Result<B, Returned<B>> {
        self.wait_timed().map(|(buffers, _)| buffers)
    }

    /// As [`Pending::wait`]; also says when the call was done, which may be long before it is waited for.
    pub fn wait_timed(self) -> Result<(B, Instant), Returned<B>> {
        let shared = &self.communicator.shared;
        if shared.forked.since() {
            return Err(Returned { error: Error::Forked { rank: shared.rank }, buffers: None });
        }
        let Ended { result, keep, at } = self.done.wait();
        let buffers = buffers(keep);
        match result {
            Ok(()) => Ok((buffers, at)),
            Err(error) => Err(Returned { error, buffers: Some(buffers) }),
        }
    }

    /// Whether [`Pending::wait`] would return at once.
    pub fn is_done(&self) -> bool {
        self.done.is_there()
    }
}

impl Communicator {
    /// Starts a call that owns its buffers.
    ///
    /// # Safety
    /// `call` is about `buffers` alone, which stay where they are when the value is moved.
    #[allow(unsafe_code)] // passes the promise on
    pub(super) unsafe fn start<B: Send + 'static>(&self, call: Result<Call>, buffers: B) -> Started<B> {
        let checked =
            if self.shared.forked.since() { Err(Error::Forked { rank: self.rank() }) } else { call };
        let call = match checked {
            Ok(call) => call,
            Err(error) => return Err(Returned { error, buffers: Some(buffers) }),
        };
        // SAFETY: the job keeps the buffers until the result is there.
        match unsafe { self.shared.worker.start(vec![call], self.timeout, Box::new(buffers)) } {
            Ok(done) => Ok(Pending { done, communicator: self.clone(), buffers: std::marker::PhantomData }),
            Err((error, keep)) => Err(Returned { error, buffers: Some(self::buffers(keep)) }),
        }
    }
}

fn buffers<B: 'static>(keep: Keep) -> B {
    *keep.downcast().expect("a job keeps the buffers that it was started with")
}

impl<B> From<Returned<B>> for Error {
    fn from(returned: Returned<B>) -> Error {
        returned.error
    }
}

impl<B> fmt::Display for Returned<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> fmt::Debug for Returned<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for Returned<B> {}

impl<B> fmt::Debug for Pending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("done", &self.done.is_there()).finish()
    }
}
