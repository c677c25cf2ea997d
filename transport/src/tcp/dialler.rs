//! Opens connections beside those who put: threads that end when nothing is left to open.
//!
//! Mostly it is one, which opens one connection after the other. Where an attempt takes long, as with a host that answers
//! nothing, another thread goes on with the rest. Of those there are never more than [`THREADS`]: when others wait, the
//! attempt that has been going on longest gives way, and takes its next turn after them.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::accept::STACK;
use super::link::{Common, TcpLink};

/// Attempts at a time.
const THREADS: usize = 8;
/// How long an attempt is left alone before another thread goes on with those that wait: many times what one takes
/// between hosts that answer.
const SLOW: Duration = Duration::from_millis(100);
/// How long an attempt is left alone although others wait and no thread is free.
const GRACE: Duration = Duration::from_secs(1);

/// What is to be opened, and the threads that do it. Its owner stops it.
#[derive(Debug)]
pub struct Dialler {
    me: usize,
    /// Something waits for a thread.
    waits: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Arc<TcpLink>>,
    workers: Vec<Worker>,
    closed: bool,
}

/// A thread that opens connections.
#[derive(Debug)]
struct Worker {
    /// Tells it to give way.
    stop: Arc<AtomicBool>,
    /// When its present attempt began.
    since: Instant,
    /// It found nothing more to open, and ends.
    done: bool,
    thread: JoinHandle<()>,
}

impl Dialler {
    /// Of this rank.
    pub fn new(me: usize) -> Dialler {
        Dialler { me, waits: AtomicBool::new(false), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has this link take its turns.
    ///
    /// # Errors
    /// There is no thread, and none can be started.
    pub fn add(&self, link: Arc<TcpLink>) -> io::Result<()> {
        let mut state = self.state();
        if state.closed {
            return Ok(());
        }
        state.queue.push_back(link);
        let staffed = self.staff(&mut state);
        match staffed {
            Err(e) if state.workers.iter().all(|worker| worker.done) => {
                state.queue.clear();
                Err(e)
            }
            _ => Ok(()),
        }
    }

    /// Sees to it that those who wait do so for no longer than they must; called now and then.
    #[inline]
    pub fn hurry(&self) {
        if self.waits.load(Ordering::Acquire) {
            // As long as there is a thread, they get their turn without another one.
            let _ = self.staff(&mut self.state());
        }
    }

    fn staff(&self, state: &mut State) -> io::Result<()> {
        for at in (0..state.workers.len()).rev() {
            if state.workers[at].thread.is_finished() {
                let _ = state.workers.swap_remove(at).thread.join();
            }
        }
        self.waits.store(!state.queue.is_empty(), Ordering::Release);
        let mut busy: Vec<&Worker> = state.workers.iter().filter(|worker| !worker.done).collect();
        if state.closed || state.queue.is_empty() || busy.iter().any(|worker| worker.since.elapsed() < SLOW) {
            return Ok(());
        }
        busy.sort_by_key(|worker| worker.since);
        match busy.first() {
            Some(oldest) if busy.len() >= THREADS => {
                if oldest.since.elapsed() >= GRACE {
                    oldest.stop.store(true, Ordering::Release);
                }
            }
            _ => {
                let worker = self.spawn(state.queue[0].common.clone())?;
                state.workers.push(worker);
            }
        }
        Ok(())
    }

    /// Starts a thread, which reaches this dialler through what the links share.
    fn spawn(&self, common: Arc<Common>) -> io::Result<Worker> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let work = move || common.dialler.run(&told);
        let name = format!("nd-dial-{}", self.me);
        let thread = thread::Builder::new().name(name).stack_size(STACK).spawn(work)?;
        Ok(Worker { stop, since: Instant::now(), done: false, thread })
    }

    fn run(&self, stop: &Arc<AtomicBool>) {
        while let Some(link) = self.next(stop) {
            if !link.dial(stop) {
                let mut state = self.state();
                if !state.closed {
                    state.queue.push_back(link);
                }
            }
        }
    }

    /// Whose turn it is, if anybody's.
    fn next(&self, stop: &Arc<AtomicBool>) -> Option<Arc<TcpLink>> {
        let mut state = self.state();
        let next = if state.closed { None } else { state.queue.pop_front() };
        self.waits.store(!state.queue.is_empty(), Ordering::Release);
        let worker = state.workers.iter_mut().find(|worker| Arc::ptr_eq(&worker.stop, stop));
        if let Some(worker) = worker {
            (worker.since, worker.done) = (Instant::now(), next.is_none());
            if next.is_some() {
                stop.store(false, Ordering::Release);
            }
        }
        next
    }

    /// Opens nothing more; returns when all threads have ended, which they do within some ten milliseconds.
    pub fn stop(&self) {
        let workers = {
            let mut state = self.state();
            state.closed = true;
            state.queue.clear();
            state.workers.iter().for_each(|worker| worker.stop.store(true, Ordering::Release));
            std::mem::take(&mut state.workers)
        };
        for worker in workers {
            let _ = worker.thread.join();
        }
    }

    /// Whether nothing is being opened and no thread is left.
    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        state.queue.is_empty() && state.workers.iter().all(|worker| worker.thread.is_finished())
    }

    /// In a child after fork: the threads are the parent's. One of them may have held the lock.
    pub fn forget(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            std::mem::forget(std::mem::take(&mut *state));
        }
    }
}
