//! What time it is, as cheaply as the processor can tell.
//!
//! Measured on one machine: the time-stamp counter 11 ns, the system's clock 31 ns. A call of 4 bytes may cost 20 ns more
//! for being recorded, so there it is the counter, and both are compared when someone wants to see times.
#![allow(unsafe_code)] // reads the time-stamp counter

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A moment as [`Clock::ticks`] gives it; 0 is none.
pub(super) type Ticks = u64;

/// Counts from when it was made.
#[derive(Debug)]
pub(super) struct Clock {
    counts: bool,
    began: Instant,
    began_unix_ns: u64,
    began_ticks: Ticks,
}

impl Clock {
    /// By the processor's counter where that runs at one rate on all cores.
    pub fn new() -> Clock {
        Clock::with(counter::steady())
    }

    /// By the system's clock: ticks are nanoseconds.
    pub fn of_system() -> Clock {
        Clock::with(false)
    }

    fn with(counts: bool) -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock {
            counts,
            began: Instant::now(),
            began_unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX),
            began_ticks: if counts { counter::read() } else { 0 },
        }
    }

    /// Now; never 0.
    #[inline]
    pub fn ticks(&self) -> Ticks {
        match self.counts {
            true => counter::read(),
            false => self.elapsed().max(1),
        }
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// When the clock was made, ns since 1970 by the system's clock.
    pub fn began_unix_ns(&self) -> u64 {
        self.began_unix_ns
    }

    /// Nanoseconds since the clock was made, for ticks of until now.
    pub fn scale(&self) -> impl Fn(Ticks) -> u64 {
        let (now_ticks, now) = (self.ticks(), self.elapsed());
        let (first, counts) = (self.began_ticks, self.counts);
        let rate = now as f64 / now_ticks.saturating_sub(first).max(1) as f64;
        move |ticks| match counts {
            true => (ticks.saturating_sub(first) as f64 * rate) as u64,
            false => ticks,
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{__cpuid, _rdtsc};

    #[inline]
    pub fn read() -> u64 {
        // SAFETY: every x86-64 processor has the counter, and Linux lets programs read it.
        unsafe { _rdtsc() }
    }

    /// Whether the counter neither stops nor changes its rate: AMD64 Architecture Programmer's Manual, volume 3,
    /// CPUID 8000_0007h, EDX bit 8 (Intel has the same).
    #[allow(unused_unsafe)] // newer compilers have it as a safe function
    pub fn steady() -> bool {
        // SAFETY: every x86-64 processor has these leaves or says that it has not.
        unsafe { __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & 1 << 8 != 0 }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub fn read() -> u64 {
        0
    }

    pub fn steady() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_is_more_and_never_in_the_future() {
        for clock in [Clock::new(), Clock::of_system()] {
            let ticks: Vec<Ticks> = (0..100).map(|_| clock.ticks()).collect();
            assert!(ticks[0] > 0 && ticks.is_sorted());
            let ns = clock.scale();
            let times: Vec<u64> = ticks.iter().map(|t| ns(*t)).collect();
            assert!(times.is_sorted() && times[99] <= clock.elapsed(), "{times:?}");
        }
    }
}
