//! Who opens the one connection of two ranks: whoever first has something to say, and when both try at once, the
//! lower rank.
//!
//! A rank that connects says who it is, is told that it is welcome, and confirms; then both sides hold the stream for
//! good. The higher rank of two that try at once is told that the other is on its way, and waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connection::Connection;
use crate::Result;

/// After so long a rank that waits for a peer to arrive tries again itself: the peer may have given up, or be dead.
const PATIENCE: Duration = Duration::from_millis(500);

/// How often a rank that waits for a peer to arrive looks whether it should stop.
const TICK: Duration = Duration::from_millis(50);

/// How far two ranks have come.
#[derive(Debug)]
enum State {
    /// Nobody has tried.
    Apart,
    /// This rank connects.
    Dialing,
    /// The peer said that it connects.
    Expecting,
    /// The peer has connected, and is proving who it is.
    Answering,
    /// There is a connection.
    Together(Arc<Connection>),
    /// There was one.
    Over,
}

/// One rank's view of the two.
#[derive(Debug)]
pub struct Meeting {
    /// The peer's attempt holds when both try at once.
    yields: bool,
    state: Mutex<State>,
    changed: Condvar,
}

/// What a rank that has something to say does.
#[derive(Debug)]
pub enum Turn {
    /// It connects, and reports by [`Meeting::dialled`].
    Dial,
    /// There is a connection.
    Use,
    /// It gives up: the peer did not come in time, or there was a connection and it is over.
    Leave,
}

/// How connecting ended.
#[derive(Debug)]
pub enum Dialled {
    /// With a connection.
    Connection(Arc<Connection>),
    /// The peer is connecting too, and its attempt holds.
    Crossed,
    /// Without.
    Failed,
}

impl Meeting {
    pub fn new(me: usize, peer: usize) -> Meeting {
        Meeting { yields: me > peer, state: Mutex::new(State::Apart), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: &mut State, to: State) {
        *state = to;
        self.changed.notify_all();
    }

    /// The connection, if there is one.
    pub fn connection(&self) -> Option<Arc<Connection>> {
        match &*self.state() {
            State::Together(connection) => Some(connection.clone()),
            _ => None,
        }
    }

    /// Whether the peer's connection is here, or about to be.
    pub fn answering(&self) -> bool {
        matches!(*self.state(), State::Answering | State::Together(_))
    }

    /// What to do in order to have a connection; waits, until `until` or until stopped, for a peer that is about to
    /// arrive.
    pub fn approach(&self, until: Instant, stop: Option<&AtomicBool>) -> Turn {
        let stopped = || stop.is_some_and(|stop| stop.load(Ordering::SeqCst));
        let mut state = self.state();
        let again = Instant::now() + PATIENCE;
        loop {
            let wait = match &*state {
                State::Together(_) => return Turn::Use,
                State::Over => return Turn::Leave,
                State::Apart => Duration::ZERO,
                State::Dialing | State::Answering => until.saturating_duration_since(Instant::now()),
                State::Expecting => again.min(until).saturating_duration_since(Instant::now()),
            };
            if wait.is_zero() || stopped() {
                if matches!(*state, State::Apart | State::Expecting) && Instant::now() < until && !stopped() {
                    self.set(&mut state, State::Dialing);
                    return Turn::Dial;
                }
                return Turn::Leave;
            }
            let wait = if stop.is_some() { wait.min(TICK) } else { wait };
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until there is a connection, or there was one, or `enough` says so, or until `until`; tells whether there is
    /// one.
    pub fn wait(&self, until: Instant, enough: impl Fn() -> bool) -> bool {
        let mut state = self.state();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match &*state {
                State::Together(_) => return true,
                State::Over => return false,
                _ if left.is_zero() || enough() => return false,
                _ => {}
            }
            state =
                self.changed.wait_timeout(state, left.min(TICK)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has whoever waits look again.
    pub fn nudge(&self) {
        drop(self.state());
        self.changed.notify_all();
    }

    /// Connecting has ended.
    pub fn dialled(&self, how: Dialled) {
        let mut state = self.state();
        let to = match (&*state, how) {
            (State::Over, _) => return,
            (_, Dialled::Connection(connection)) => State::Together(connection),
            (State::Dialing, Dialled::Crossed) => State::Expecting,
            (State::Dialing, Dialled::Failed) => State::Apart,
            _ => return,
        };
        self.set(&mut state, to);
    }

    /// Whether a peer that has just connected is welcome; if so, [`Meeting::answered`] follows.
    pub fn answer(&self) -> bool {
        let mut state = self.state();
        let welcome = match *state {
            State::Apart | State::Expecting => true,
            State::Dialing => self.yields,
            State::Answering | State::Together(_) | State::Over => false,
        };
        if welcome {
            self.set(&mut state, State::Answering);
        }
        welcome
    }

    /// The peer confirmed, and this is the connection; or it did not.
    pub fn answered(&self, connection: Option<Arc<Connection>>) {
        let mut state = self.state();
        if matches!(*state, State::Answering) {
            self.set(&mut state, connection.map_or(State::Apart, State::Together));
        }
    }

    /// The connection is over, and there will be no other.
    pub fn end(&self) {
        let mut state = self.state();
        self.set(&mut state, State::Over);
    }
}

/// A connection that the endpoint does not receive from yet, or that there will be none.
#[derive(Debug)]
pub struct Arrival {
    /// The peer's place.
    pub slot: usize,
    /// To read from, in non-blocking mode; none: its link knows why.
    pub connection: Option<Arc<Connection>>,
}

/// Connections on their way to the endpoint.
#[derive(Debug)]
pub struct Arrivals {
    waker: mio::Waker,
    arrived: Mutex<Vec<Result<Arrival>>>,
    any: AtomicBool,
}

impl Arrivals {
    pub fn new(waker: mio::Waker) -> Arrivals {
        Arrivals { waker, arrived: Mutex::default(), any: AtomicBool::new(false) }
    }

    /// Whether [`Arrivals::take`] has something. Costs one load.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The connections that arrived; an error is one that keeps others from arriving.
    pub fn take(&self) -> Vec<Result<Arrival>> {
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *self.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes the endpoint, too.
    pub fn push(&self, arrival: Result<Arrival>) {
        {
            let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
            // One error is enough until somebody reads it: running out of descriptors repeats itself.
            if arrival.is_ok() || arrived.iter().all(|a| a.is_ok()) {
                arrived.push(arrival);
            }
        }
        self.any.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the endpoint.
    pub fn wake(&self) {
        let _ = self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn connection() -> Arc<Connection> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Arc::new(Connection::new(stream, None))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn of_two_that_try_at_once_the_lower_ranks_attempt_holds() {
        let (low, high) = (Meeting::new(0, 1), Meeting::new(1, 0));
        assert!(matches!(low.approach(soon(), None), Turn::Dial));
        assert!(matches!(high.approach(soon(), None), Turn::Dial));
        assert!(!low.answer());
        assert!(high.answer());
        high.dialled(Dialled::Crossed);
        std::thread::scope(|s| {
            let waits = s.spawn(|| high.approach(soon(), None));
            high.answered(Some(connection()));
            assert!(matches!(waits.join().unwrap(), Turn::Use));
        });
        low.dialled(Dialled::Connection(connection()));
        assert!(matches!(low.approach(soon(), None), Turn::Use));
        assert!(!low.answer() && !high.answer(), "one connection is enough");
    }

    #[test]
    fn told_that_the_other_is_on_its_way_before_it_is_here() {
        let high = Meeting::new(1, 0);
        assert!(matches!(high.approach(soon(), None), Turn::Dial));
        high.dialled(Dialled::Crossed);
        assert!(matches!(high.approach(Instant::now(), None), Turn::Leave), "it never came");
        assert!(high.answer());
        high.answered(Some(connection()));
        assert!(high.connection().is_some());
    }

    #[test]
    fn what_fails_may_be_tried_again_by_either() {
        let low = Meeting::new(0, 1);
        assert!(matches!(low.approach(soon(), None), Turn::Dial));
        low.dialled(Dialled::Failed);
        assert!(low.answer());
        assert!(!low.answer(), "one at a time");
        low.dialled(Dialled::Failed);
        assert!(low.answering());
        low.answered(None);
        assert!(matches!(low.approach(soon(), None), Turn::Dial));
        low.end();
        low.dialled(Dialled::Connection(connection()));
        assert!(low.connection().is_none());
        assert!(matches!(low.approach(soon(), None), Turn::Leave));
    }
}
