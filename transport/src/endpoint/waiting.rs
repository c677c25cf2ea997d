//! How a rank waits: it spins, then lets others run, then sleeps until a peer wakes it.

use std::hint::spin_loop;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Endpoint;
use crate::bell;
use crate::{Error, Result};

/// How long a wait spins before it sleeps.
const SPIN: Duration = Duration::from_micros(200);
/// The same for an answer by way of an RDMA device, where every rank has a core of its own and the last answer came within
/// this time: waking a sleeper costs part of a message's time.
const SPIN_FOR_DEVICE: Duration = Duration::from_millis(10);
/// How much of that it spins without letting others run, when every rank of the machine has a core of its own: within
/// this time an answer comes from a rank that is running: by memory, and by way of the kernel.
const SPIN_ALONE: Duration = Duration::from_micros(10);
const SPIN_ALONE_TCP: Duration = Duration::from_micros(50);
/// How often a long wait looks at the world: lost peers, reported failures.
const TICK: Duration = Duration::from_millis(100);
/// Longer timeouts are cut to a century, which every clock can hold.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Polls between two looks at the clock.
const POLLS: u32 = 64;
/// The same where others wait for the core.
const FEW_POLLS: u32 = 4;
/// The same where a poll makes system calls, each of which costs more than the look.
const ONE_POLL: u32 = 1;
/// The same while something moves: a peer may never stop sending.
const BUSY_POLLS: u32 = 256;

/// What a look at a condition found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It holds.
    Done,
    /// Not yet, but something moved.
    Moved,
    /// Nothing moved.
    Idle,
}

/// How long a wait does what.
#[derive(Debug)]
pub(super) struct Patience {
    /// Polls between two looks at the clock.
    polls: u32,
    /// Until it sleeps.
    spin: Duration,
    /// The same after an answer that came within this time.
    longer: Duration,
    /// Whether the last one did.
    quick: AtomicBool,
    /// How much of that it spins without letting others run.
    alone: Duration,
}

impl Patience {
    /// For an endpoint that has sockets, and perhaps RDMA devices, whose ranks outnumber their cores, that is to spin so
    /// long.
    pub(super) fn new(sockets: bool, devices: bool, crowded: bool, spin: Option<Duration>) -> Patience {
        let shorter = spin.unwrap_or(SPIN);
        Patience {
            polls: match (sockets, crowded) {
                // Payload goes past the sockets.
                (true, false) if devices => POLLS,
                (true, _) => ONE_POLL,
                (false, true) => FEW_POLLS,
                (false, false) => POLLS,
            },
            alone: match (sockets, crowded) {
                (_, true) => Duration::ZERO,
                (true, false) => SPIN_ALONE_TCP,
                (false, false) => SPIN_ALONE,
            },
            spin: shorter,
            longer: if devices && !crowded && spin.is_none() { SPIN_FOR_DEVICE } else { shorter },
            quick: AtomicBool::new(true),
        }
    }

    /// How long a wait spins before it sleeps.
    fn spin(&self) -> Duration {
        if self.quick.load(Ordering::Relaxed) { self.longer } else { self.spin }
    }

    /// Something moved after nothing had moved since then, if that was long enough to look at the clock.
    fn ended(&self, since: Option<Instant>) {
        if let Some(since) = since.filter(|_| self.longer > self.spin) {
            self.quick.store(since.elapsed() <= self.longer, Ordering::Relaxed);
        }
    }
}

impl Endpoint {
    /// Waits until `look` says done; false when `timeout` passed first. In between, everything that can move moves.
    /// `tick` is called now and then during long waits, and at once, one time, when [`Endpoint::stop`] was asked; its
    /// error ends the wait.
    ///
    /// Spins for a while, then sleeps until a peer signals.
    pub fn wait<E: From<Error>>(
        &self,
        timeout: Duration,
        mut look: impl FnMut() -> Result<Step, E>,
        mut tick: impl FnMut() -> Result<(), E>,
    ) -> Result<bool, E> {
        let (mut idle, mut busy) = (0u32, 0u32);
        // The clock is read only once a wait has become long.
        let mut deadline = None;
        let mut since = None;
        let mut next_tick = None;
        let stop = &self.config.stop;
        let mut stopped = false;
        loop {
            let moved = self.progress()?;
            match look()? {
                Step::Done => {
                    self.patience.ended(since);
                    self.flush();
                    return Ok(true);
                }
                Step::Idle if !moved => idle += 1,
                Step::Moved | Step::Idle => {
                    self.patience.ended(since.take());
                    idle = 0;
                }
            }
            let moves = idle == 0;
            busy = if moves { busy.wrapping_add(1) } else { busy };
            let (polls, every) = if moves { (busy, BUSY_POLLS) } else { (idle, self.patience.polls) };
            if polls % every != 0 {
                spin_loop();
                continue;
            }
            let now = Instant::now();
            let deadline = *deadline.get_or_insert(now + timeout.min(LONGEST));
            if now >= deadline {
                return Ok(false);
            }
            let tick_at = *next_tick.get_or_insert(now + TICK);
            if now >= tick_at || (stop.asked() && !stopped) {
                stopped = stop.asked();
                tick()?;
                next_tick = Some(now + TICK);
            }
            if moves {
                continue;
            }
            let spun = now.duration_since(*since.get_or_insert(now));
            if spun >= self.patience.spin() || self.dials() {
                let mut found = Ok(Step::Idle);
                self.sleep((deadline - now).min(TICK), || {
                    found = look();
                    !matches!(found, Ok(Step::Idle)) || (stop.asked() && !stopped)
                })?;
                match found? {
                    Step::Done => {
                        self.patience.ended(since);
                        self.flush();
                        return Ok(true);
                    }
                    Step::Moved => {
                        self.patience.ended(since.take());
                        idle = 0;
                    }
                    Step::Idle => {}
                }
            } else if spun >= self.patience.alone {
                std::thread::yield_now();
            }
        }
    }

    /// Whether connections are being opened, by threads that need a core.
    fn dials(&self) -> bool {
        self.tcp.as_ref().is_some_and(|tcp| tcp.dials())
    }

    /// Sleeps until a peer signals, unless `ready` turns out to hold.
    fn sleep(&self, timeout: Duration, ready: impl FnOnce() -> bool) -> Result<()> {
        // Delayed puts of the local transport only move when this thread moves them.
        let timeout = if self.delays { timeout.min(Duration::from_micros(100)) } else { timeout };
        let word = self.region.word(self.sleep);
        match &self.tcp {
            None => {
                bell::sleep(word, timeout, ready);
                Ok(())
            }
            Some(tcp) => {
                let mut slept = Ok(());
                bell::sleep_in_poll(word, ready, || {
                    slept = match &self.verbs {
                        Some(verbs) => verbs.arm(),
                        None => Ok(true),
                    }
                    .and_then(|sleeps| match sleeps {
                        true => tcp.park(self.bell_socket.as_ref().map(AsFd::as_fd), timeout),
                        false => Ok(()),
                    })
                });
                slept
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_device_spins_longer_after_an_answer_that_came_soon() {
        let before = |ago: Duration| Instant::now().checked_sub(ago);
        let patience = Patience::new(true, true, false, None);
        assert_eq!(patience.spin(), SPIN_FOR_DEVICE);
        patience.ended(before(2 * SPIN_FOR_DEVICE));
        assert_eq!(patience.spin(), SPIN);
        // Shorter than a look at the clock: it says nothing.
        patience.ended(None);
        assert_eq!(patience.spin(), SPIN);
        patience.ended(before(Duration::ZERO));
        assert_eq!(patience.spin(), SPIN_FOR_DEVICE);
        let said = Some(Duration::from_micros(7));
        for (devices, crowded, said) in [(false, false, None), (true, true, None), (true, false, said)] {
            let patience = Patience::new(true, devices, crowded, said);
            patience.ended(before(Duration::ZERO));
            assert_eq!(patience.spin(), said.unwrap_or(SPIN), "{devices} {crowded}");
        }
    }
}
