//! Ends from another thread what waits.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Tells everything that was given a clone of it to end soon, from any thread; it cannot be taken back.
#[derive(Clone, Default)]
pub struct Stop(Arc<Shared>);

#[derive(Default)]
struct Shared {
    asked: AtomicBool,
    actions: Mutex<Actions>,
    now: Condvar,
}

#[derive(Default)]
struct Actions {
    next: u64,
    all: Vec<(u64, Arc<dyn Fn() + Send + Sync>)>,
    /// How many go on that end when it is asked.
    going: usize,
}

/// Something goes on that ends soon after a [`Stop`] is asked, until this is dropped.
#[derive(Debug)]
pub struct Going(Stop);

/// What is done when a [`Stop`] is asked, until this is dropped.
#[must_use = "nothing is done once it is dropped"]
pub struct OnStop {
    stop: Stop,
    number: u64,
}

impl Stop {
    /// Asks, and does at once what [`Stop::on_ask`] was given; whether it was the first time.
    pub fn ask(&self) -> bool {
        let first = !self.0.asked.swap(true, Ordering::SeqCst);
        if first {
            let actions: Vec<_> = self.actions().all.iter().map(|(_, action)| action.clone()).collect();
            self.0.now.notify_all();
            actions.iter().for_each(|action| action());
        }
        first
    }

    /// Whether it was asked. Costs one load.
    #[inline]
    pub fn asked(&self) -> bool {
        self.0.asked.load(Ordering::SeqCst)
    }

    /// The same, for those who look by themselves.
    pub fn flag(&self) -> &AtomicBool {
        &self.0.asked
    }

    /// Has `action` done when it is asked, by whoever asks; now, if it was asked before.
    pub fn on_ask(&self, action: impl Fn() + Send + Sync + 'static) -> OnStop {
        let action: Arc<dyn Fn() + Send + Sync> = Arc::new(action);
        let mut actions = self.actions();
        let number = actions.next;
        actions.next += 1;
        actions.all.push((number, action.clone()));
        drop(actions);
        // Whoever asks either sees the action, or is seen here; or both, so actions may be done twice.
        if self.asked() {
            action();
        }
        OnStop { stop: self.clone(), number }
    }

    /// Something begins that ends soon after this is asked: see [`Stop::settle`].
    pub fn begin(&self) -> Going {
        self.actions().going += 1;
        Going(self.clone())
    }

    /// Waits until all that [`Stop::begin`] told of has ended, for so long at most; whether it has.
    pub fn settle(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        let mut actions = self.actions();
        while actions.going > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            actions = self.0.now.wait_timeout(actions, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Sleeps for so long, or until it is asked.
    pub fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut actions = self.actions();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.asked() || left.is_zero() {
                return;
            }
            actions = self.0.now.wait_timeout(actions, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn actions(&self) -> MutexGuard<'_, Actions> {
        self.0.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OnStop {
    fn drop(&mut self) {
        self.stop.actions().all.retain(|(number, _)| *number != self.number);
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.0.actions().going -= 1;
        self.0.0.now.notify_all();
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stop(asked: {})", self.asked())
    }
}

impl fmt::Debug for OnStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OnStop({:?})", self.stop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn what_was_given_is_done_once_asked_unless_it_was_taken_back() {
        let (stop, count) = (Stop::default(), Arc::new(AtomicUsize::new(0)));
        let adds = |n: usize| {
            let count = count.clone();
            move || {
                count.fetch_add(n, Ordering::SeqCst);
            }
        };
        let kept = stop.on_ask(adds(1));
        drop(stop.on_ask(adds(10)));
        assert!(!stop.asked());
        assert!(stop.clone().ask());
        assert!(!stop.ask());
        assert!(stop.asked() && count.load(Ordering::SeqCst) == 1);
        drop(kept);
        let _late = stop.on_ask(adds(100));
        assert_eq!(count.load(Ordering::SeqCst), 101);
    }

    #[test]
    fn what_goes_on_is_waited_for() {
        let stop = Stop::default();
        assert!(stop.settle(Duration::ZERO));
        let (one, other) = (stop.begin(), stop.clone().begin());
        drop(other);
        assert!(!stop.settle(Duration::from_millis(1)));
        std::thread::scope(|s| {
            let waits = s.spawn(|| stop.settle(Duration::from_secs(600)));
            drop(one);
            assert!(waits.join().unwrap());
        });
    }

    #[test]
    fn who_sleeps_is_woken() {
        let stop = Stop::default();
        let began = Instant::now();
        std::thread::scope(|s| {
            let sleeper = s.spawn(|| stop.sleep(Duration::from_secs(600)));
            stop.ask();
            sleeper.join().unwrap();
        });
        stop.sleep(Duration::from_secs(600));
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}
