//! Ends a communicator, or its start, from any thread.

use std::fmt;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use nd_transport::{Forked, Stop};

use super::Communicator;
use crate::config::Config;
use crate::exec::ending::Ending;
use crate::exec::engine::Engine;

/// How long whoever aborts waits until the other ranks were told, which mostly takes microseconds; what takes longer
/// goes on without them.
const PROMPT: Duration = Duration::from_millis(50);

/// How long whoever aborts a start waits until it has ended, which looks every 50 ms whether to: the program may exit next,
/// and the others would see this rank leave without a word.
const ENDING: Duration = Duration::from_millis(80);

impl Communicator {
    /// Ends this communicator at once, for all its ranks: from any thread, in a call, between calls, or again. Returns
    /// in less than 100 ms.
    ///
    /// From then on every call on this rank is [`Error::Aborted`](crate::Error::Aborted), the one that goes on among them
    /// as soon as it has noticed (within some milliseconds; half a second if a peer that does not answer is just then
    /// storing into its buffer). The other ranks are told: their calls fail with the same error, which names this rank
    /// with its host and process. Buffers of a call that was going on hold anything.
    ///
    /// Parts that [`Communicator::split`] made are communicators of their own, and go on. A start that is still going
    /// on is ended by [`Config::abort_handle`].
    pub fn abort(&self) {
        self.shared.worker.aborting().abort();
    }
}

/// Ends starts that are going on, and aborts the communicators that came of them, from any thread: of the [`Config`]
/// that gave it, and of its clones.
///
/// ```
/// # use nd_comm::prelude::*;
/// let config = Config::default();
/// let handle = config.abort_handle();
/// let ranks = Communicator::local_with(2, &config)?;
/// handle.abort();
/// assert!(matches!(ranks[1].barrier(), Err(Error::Aborted { .. })));
/// assert!(Communicator::local_with(2, &config).is_err());
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct AbortHandle {
    stop: Stop,
}

impl Config {
    /// What ends the start of communicators with these settings (or a clone of them), and aborts those that have
    /// started.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { stop: self.transport.stop.clone() }
    }
}

impl AbortHandle {
    /// Ends them. Returns in less than 100 ms for each communicator that has started, see [`Communicator::abort`].
    ///
    /// A start returns [`Error::Aborted`](crate::Error::Aborted) within about 100 ms, unless it is just looking up a host's
    /// name, which cannot be interrupted; the ranks that wait for this one are told. Mostly it has ended when this returns.
    /// Starts with these settings that begin later end at once.
    pub fn abort(&self) {
        self.stop.ask();
        self.stop.settle(ENDING);
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("aborted", &self.stop.asked()).finish()
    }
}

/// What it takes to abort a communicator, without keeping it.
pub(crate) struct Aborting {
    rank: usize,
    ending: Arc<Ending>,
    /// Ends what the call that goes on waits for.
    stop: Stop,
    engine: Weak<Mutex<Engine>>,
    teller: Mutex<Teller>,
    forked: Forked,
}

/// The thread that tells the other ranks.
#[derive(Default)]
struct Teller {
    thread: Option<JoinHandle<()>>,
    /// The communicator is being dropped.
    closed: bool,
}

impl Aborting {
    pub fn new(rank: usize, engine: &Arc<Mutex<Engine>>) -> Aborting {
        let (ending, stop) = {
            let engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
            (engine.ending().clone(), engine.endpoint().stop().clone())
        };
        Aborting {
            rank,
            ending,
            stop,
            engine: Arc::downgrade(engine),
            teller: Mutex::default(),
            forked: Forked::here(),
        }
    }

    /// The call that goes on is to end; nobody will make another one.
    pub fn drop_calls(&self) {
        self.ending.set_dropped();
        self.stop.ask();
    }

    /// See [`Communicator::abort`].
    pub fn abort(&self) {
        if self.forked.since() || !self.ending.set_aborted() {
            return;
        }
        // Whoever is in a call notices, tells the others, and leaves.
        self.stop.ask();
        let mut teller = self.teller();
        let Some(engine) = self.engine.upgrade().filter(|_| !teller.closed) else { return };
        let (done, told) = channel();
        let work = move || {
            engine.lock().unwrap_or_else(PoisonError::into_inner).abort();
            drop(engine);
            let _ = done.send(());
        };
        // Without a thread whoever calls or drops the communicator next tells the others.
        let name = format!("nd-abort-{}", self.rank);
        teller.thread = std::thread::Builder::new().name(name).spawn(work).ok();
        let there = teller.thread.is_some();
        drop(teller);
        if there {
            let _ = told.recv_timeout(PROMPT);
        }
    }

    /// Waits for the thread; no other one begins.
    pub fn close(&self) {
        let mut teller = self.teller();
        teller.closed = true;
        let thread = teller.thread.take();
        drop(teller);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    /// In the child of a fork: the thread is the parent's.
    pub fn forget(&self) {
        std::mem::forget(self.teller().thread.take());
    }

    fn teller(&self) -> MutexGuard<'_, Teller> {
        self.teller.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
