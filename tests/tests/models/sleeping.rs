//! Sleeping: nobody sleeps through what was written for it. There is no timeout here: whoever is not woken sleeps for ever,
//! which the checker finds.

#[path = "../../../transport/src/sleep_word.rs"]
mod sleep_word;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use self::sleep_word::{ASLEEP, AWAKE, IN_POLL, announce, may_sleep, to_be_woken};
use crate::all_orders;
use crate::atomics::{AtomicU32, AtomicU64, Ordering};

/// A rank's word, what it waits for, and the kernel: futex and a socket.
struct Rank {
    word: AtomicU32,
    written: AtomicU64,
    /// Datagrams that wait.
    socket: Mutex<u32>,
    woken: Condvar,
}

impl Rank {
    fn new() -> Rank {
        Rank {
            word: AtomicU32::new(AWAKE),
            written: AtomicU64::new(0),
            socket: Mutex::new(0),
            woken: Condvar::new(),
        }
    }

    /// As the kernel does: it compares and sleeps in one step, as far as those who wake can see.
    fn sleep(&self, how: u32) {
        let mut datagrams = self.socket.lock().expect("no panic");
        if how == ASLEEP {
            if self.word.load(Ordering::SeqCst) == ASLEEP {
                drop(self.woken.wait(datagrams).expect("no panic"));
            }
            return;
        }
        while *datagrams == 0 {
            datagrams = self.woken.wait(datagrams).expect("no panic");
        }
        *datagrams = 0;
    }

    fn write(&self) {
        self.written.fetch_add(1, Ordering::Release);
        if !may_sleep(&self.word) {
            return;
        }
        let how = to_be_woken(&self.word);
        if how != AWAKE {
            let mut datagrams = self.socket.lock().expect("no panic");
            *datagrams += u32::from(how == IN_POLL);
            self.woken.notify_all();
        }
    }

    fn wait(&self, how: u32, until: u64) {
        let there = || self.written.load(Ordering::Acquire) >= until;
        while !there() {
            announce(&self.word, how, there, || self.sleep(how));
        }
    }
}

fn nobody_oversleeps(how: u32, writers: u64) {
    all_orders(3, move || {
        let rank = Arc::new(Rank::new());
        let writers: Vec<_> = (0..writers)
            .map(|_| {
                let rank = rank.clone();
                thread::spawn(move || rank.write())
            })
            .collect();
        rank.wait(how, writers.len() as u64);
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
    });
}

#[test]
fn nobody_sleeps_through_one_write() {
    nobody_oversleeps(ASLEEP, 1);
    nobody_oversleeps(IN_POLL, 1);
}

#[test]
fn nobody_sleeps_through_the_second_of_two() {
    nobody_oversleeps(ASLEEP, 2);
    nobody_oversleeps(IN_POLL, 2);
}
