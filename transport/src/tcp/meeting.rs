//! How two ranks come to their one connection: whoever first has something to say opens it. What holds when both try at
//! once is decided by [`Crossing`]; here it is waited for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::crossing::{Crossing, Ended, Next};
use crate::Result;

/// After so long a rank that waits for a peer to arrive tries again itself: the peer may have given up, or be dead.
const PATIENCE: Duration = Duration::from_millis(500);

/// How often a rank that waits for a peer to arrive looks whether it should stop.
const TICK: Duration = Duration::from_millis(50);

/// One rank's view of the two.
#[derive(Debug)]
pub struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    crossing: Crossing,
    /// Since when attempts are of no use.
    settled: Option<Instant>,
    connection: Option<Arc<Connection>>,
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
        let state = State { crossing: Crossing::new(me, peer), settled: None, connection: None };
        Meeting { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it, and has whoever waits look.
    fn change<T>(&self, how: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = how(&mut state);
        if state.crossing.is_settled() {
            state.settled.get_or_insert_with(Instant::now);
        }
        drop(state);
        self.changed.notify_all();
        result
    }

    /// The connection, if there is one.
    pub fn connection(&self) -> Option<Arc<Connection>> {
        self.state().connection.clone()
    }

    /// Whether the peer's connection is here, or about to be.
    pub fn answering(&self) -> bool {
        self.state().crossing.comes()
    }

    /// Whether there is no use in connecting any more.
    pub fn is_settled(&self) -> bool {
        self.state().crossing.is_settled()
    }

    /// For how long there has been none.
    pub fn settled_for(&self) -> Duration {
        self.state().settled.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// What to do in order to have a connection; waits, until `until` or until stopped, for a peer that is about to
    /// arrive.
    pub fn approach(&self, until: Instant, stop: Option<&AtomicBool>) -> Turn {
        let stopped = || stop.is_some_and(|stop| stop.load(Ordering::SeqCst));
        let mut state = self.state();
        let again = Instant::now() + PATIENCE;
        loop {
            let next = state.crossing.next();
            let wait = match next {
                Next::Use => return Turn::Use,
                Next::Leave => return Turn::Leave,
                Next::Try => Duration::ZERO,
                Next::Wait => until.saturating_duration_since(Instant::now()),
                Next::Expect => again.min(until).saturating_duration_since(Instant::now()),
            };
            if wait.is_zero() || stopped() {
                if matches!(next, Next::Try | Next::Expect) && Instant::now() < until && !stopped() {
                    state.crossing.begin();
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
            match state.crossing.next() {
                Next::Use => return true,
                Next::Leave => return false,
                _ if left.is_zero() || enough() => return false,
                _ => {}
            }
            state =
                self.changed.wait_timeout(state, left.min(TICK)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether an attempt goes on, or the peer is welcome.
    #[cfg(test)]
    pub fn goes_on(&self) -> bool {
        self.state().crossing.next() == Next::Wait
    }

    /// Has whoever waits look again.
    pub fn nudge(&self) {
        self.change(|_| ());
    }

    /// Whether this rank, which has reached the peer and proved who is there, may ask for the connection; if not, the
    /// peer's holds.
    pub fn ask(&self) -> bool {
        self.state().crossing.ask()
    }

    /// Connecting has ended.
    pub fn dialled(&self, how: Dialled) {
        self.change(|state| match how {
            Dialled::Connection(connection) => {
                state.crossing.ended(Ended::Confirmed);
                state.hold(connection);
            }
            Dialled::Crossed => state.crossing.ended(Ended::Crossed),
            Dialled::Failed => state.crossing.ended(Ended::Failed),
        });
    }

    /// Whether a peer that has just connected is welcome; if so, [`Meeting::answered`] follows.
    pub fn answer(&self) -> bool {
        self.change(|state| state.crossing.asked())
    }

    /// The peer confirmed, and this is the connection; or it did not.
    pub fn answered(&self, connection: Option<Arc<Connection>>) {
        self.change(|state| {
            state.crossing.welcome_ended(connection.is_some());
            connection.into_iter().for_each(|connection| state.hold(connection));
        });
    }

    /// The connection is over, and there will be no other.
    pub fn end(&self) {
        self.change(|state| {
            state.crossing.end();
            state.connection = None;
        });
    }
}

impl State {
    /// The connection, unless there is one or was.
    fn hold(&mut self, connection: Arc<Connection>) {
        if self.connection.is_none() && self.crossing.next() == Next::Use {
            self.connection = Some(connection);
        }
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
    fn of_two_that_ask_at_once_the_lower_ranks_attempt_holds() {
        let (low, high) = (Meeting::new(0, 1), Meeting::new(1, 0));
        assert!(matches!(low.approach(soon(), None), Turn::Dial));
        assert!(matches!(high.approach(soon(), None), Turn::Dial));
        assert!(low.ask() && high.ask());
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
    fn the_lower_rank_takes_what_comes_before_it_has_asked() {
        let low = Meeting::new(0, 1);
        assert!(matches!(low.approach(soon(), None), Turn::Dial));
        assert!(low.answer() && low.answering() && !low.is_settled());
        assert!(!low.ask(), "it has welcomed the peer");
        low.dialled(Dialled::Crossed);
        std::thread::scope(|s| {
            let waits = s.spawn(|| low.approach(soon(), None));
            low.answered(Some(connection()));
            assert!(matches!(waits.join().unwrap(), Turn::Use));
        });
        assert!(low.connection().is_some() && low.is_settled());
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
