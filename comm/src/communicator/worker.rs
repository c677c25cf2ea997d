//! Who performs calls, one after the other: the calling thread, or, once an asynchronous call was started, a thread
//! of the communicator.
#![allow(unsafe_code)] // passes on what callers promise of their buffers

use std::any::Any;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::abort::Aborting;
use crate::error::{Error, Result};
use crate::exec::engine::{Call, Engine};

/// Performs calls in their order.
pub(crate) struct Worker {
    rank: usize,
    engine: ManuallyDrop<Arc<Mutex<Engine>>>,
    aborting: Arc<Aborting>,
    queue: Mutex<Queue>,
    /// Jobs that were started and are not finished.
    waiting: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Queue {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Owns the buffers of a call.
pub(crate) type Keep = Box<dyn Any + Send>;

struct Job {
    calls: Vec<Call>,
    /// How long they may take once they begin.
    timeout: Duration,
    done: Arc<Done>,
    /// Keeps the calls' buffers.
    keep: Keep,
}

/// A job's result, its buffers, and when it was there.
pub(crate) struct Ended {
    pub result: Result<()>,
    pub keep: Keep,
    pub at: Instant,
}

/// Where a job's result will be.
#[derive(Default)]
pub(crate) struct Done {
    result: Mutex<Option<Ended>>,
    there: Condvar,
}

impl Done {
    /// Whether the result is there.
    pub fn is_there(&self) -> bool {
        lock(&self.result).is_some()
    }

    /// Waits for it; every call has a deadline, so it comes.
    pub fn wait(&self) -> Ended {
        let mut result = lock(&self.result);
        loop {
            match result.take() {
                Some(ended) => return ended,
                None => result = self.there.wait(result).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn set(&self, result: Result<()>, keep: Keep) {
        *lock(&self.result) = Some(Ended { result, keep, at: Instant::now() });
        self.there.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    pub fn new(rank: usize, engine: Engine) -> Worker {
        let engine = Arc::new(Mutex::new(engine));
        Worker {
            rank,
            aborting: Arc::new(Aborting::new(rank, &engine)),
            engine: ManuallyDrop::new(engine),
            queue: Mutex::default(),
            waiting: Arc::default(),
        }
    }

    /// What ends it from other threads.
    pub fn aborting(&self) -> &Arc<Aborting> {
        &self.aborting
    }

    /// Looks at the engine, between calls.
    pub fn with_engine<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        f(&mut lock(&self.engine))
    }

    /// Ends calls that are going on, and those that were started.
    pub fn interrupt(&self) {
        self.aborting.drop_calls();
    }

    /// Performs calls now, after those that were started.
    ///
    /// # Safety
    /// As for [`Engine::perform`].
    pub unsafe fn perform(&self, calls: &[Call], timeout: Duration) -> Result<()> {
        if self.waiting.load(Ordering::Acquire) > 0 {
            // SAFETY: the caller's promise holds until this returns, and it waits for the result.
            let done = unsafe { self.start(calls.to_vec(), timeout, Box::new(())) };
            return done.map_err(|(error, _)| error)?.wait().result;
        }
        // SAFETY: the caller's promise.
        unsafe { lock(&self.engine).perform(calls, timeout) }
    }

    /// Has calls performed later, in their order.
    ///
    /// # Safety
    /// As for [`Engine::perform`], until the result is there; `keep` may own the buffers.
    pub unsafe fn start(
        &self,
        calls: Vec<Call>,
        timeout: Duration,
        keep: Keep,
    ) -> Result<Arc<Done>, (Error, Keep)> {
        let done = Arc::new(Done::default());
        let mut queue = lock(&self.queue);
        if queue.jobs.is_none() {
            let (jobs, to_do) = channel();
            let (engine, waiting) = (Arc::clone(&self.engine), self.waiting.clone());
            let thread = std::thread::Builder::new()
                .name(format!("nd-rank-{}", self.rank))
                .spawn(move || work(&to_do, &engine, &waiting));
            match thread {
                Ok(thread) => (queue.jobs, queue.thread) = (Some(jobs), Some(thread)),
                Err(source) => {
                    let source = nd_transport::Error::System { what: "starting a thread".into(), source };
                    return Err((Error::Transport { rank: self.rank, source }, keep));
                }
            }
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let job = Job { calls, timeout, done: done.clone(), keep };
        let sent = queue.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        debug_assert!(sent, "the thread lives as long as its queue");
        Ok(done)
    }

    /// Leaves everything as it is, in the child of a fork.
    pub fn forget(&mut self) {
        let queue = std::mem::take(&mut *lock(&self.queue));
        std::mem::forget(queue);
        self.aborting.forget();
        std::mem::forget(Arc::clone(&self.engine));
    }
}

fn work(jobs: &Receiver<Job>, engine: &Mutex<Engine>, waiting: &AtomicUsize) {
    while let Ok(Job { calls, timeout, done, keep }) = jobs.recv() {
        // SAFETY: promised to `start`; the job keeps the buffers.
        let result = unsafe { lock(engine).perform(&calls, timeout) };
        waiting.fetch_sub(1, Ordering::AcqRel);
        done.set(result, keep);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Queue { jobs, thread } = std::mem::take(&mut *lock(&self.queue));
        drop(jobs);
        if let Some(thread) = thread {
            // Whatever is still going on ends at its next look at the world.
            self.aborting.drop_calls();
            let _ = thread.join();
        }
        self.aborting.close();
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.engine) };
    }
}
