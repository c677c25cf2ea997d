//! Slots and grants: whoever was told that memory is its own has it for itself.

#[path = "../../../comm/src/exec/grant_words.rs"]
mod grant_words;

#[path = "../../../comm/src/exec/slot_words.rs"]
mod slot_words;

pub mod stamp {
    pub use nd_comm::exec::stamp::Stamp;
}

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use self::grant_words::GrantWords;
use crate::all_orders;
use crate::atomics::AtomicU64;

/// The words of a grant, and two places that it may be about.
#[derive(Default)]
struct Shared {
    number: AtomicU64,
    at: AtomicU64,
    len: AtomicU64,
    places: [UnsafeCell<u64>; 2],
}

impl Shared {
    fn words(&self) -> GrantWords<'_> {
        GrantWords { number: &self.number, at: &self.at, len: &self.len }
    }

    /// Changes a place; the checker objects if anyone else uses it at the same time.
    #[allow(unsafe_code)] // the checker's cell
    fn add(&self, place: u64, value: u64) {
        // SAFETY: the checker sees to it that nobody else has it.
        self.places[place as usize].with_mut(|at| unsafe { *at += value });
    }

    #[allow(unsafe_code)] // the checker's cell
    fn read(&self, place: u64) -> u64 {
        // SAFETY: as above.
        self.places[place as usize].with(|at| unsafe { *at })
    }

    /// What a sender does that has a message: whether it stored it.
    fn send(&self, message: u64) -> bool {
        let Some((at, len)) = self.words().offered(message) else { return false };
        let claimed = self.words().claim(message);
        if claimed {
            // Only of an offer that was claimed is it certain that both words are its own.
            assert_eq!(len, message + 100);
            self.add(at, message);
            self.words().stored();
        }
        claimed
    }
}

#[test]
fn what_is_taken_back_is_not_stored_into() {
    all_orders(4, || {
        let shared = Arc::new(Shared::default());
        let sender = thread::spawn({
            let shared = shared.clone();
            move || shared.send(1)
        });
        shared.words().offer(1, 0, 101);
        while !shared.words().take_back(1) {
            thread::yield_now();
        }
        // Its owner's own again.
        shared.add(0, 10);
        let stored = sender.join().expect("no panic");
        assert_eq!(shared.read(0), if stored { 11 } else { 10 });
    });
}

#[test]
fn an_offer_for_a_later_message_is_not_taken_for_an_earlier_one() {
    all_orders(3, || {
        let shared = Arc::new(Shared::default());
        let sender = thread::spawn({
            let shared = shared.clone();
            move || (shared.send(1), shared.send(5))
        });
        shared.words().offer(1, 0, 101);
        while !shared.words().take_back(1) {
            thread::yield_now();
        }
        shared.add(0, 10);
        shared.words().offer(5, 1, 105);
        while !shared.words().take_back(5) {
            thread::yield_now();
        }
        shared.add(1, 10);
        let (first, second) = sender.join().expect("no panic");
        assert_eq!(shared.read(0), if first { 11 } else { 10 });
        assert_eq!(shared.read(1), if second { 15 } else { 10 });
    });
}

#[test]
fn what_was_stored_is_seen_by_who_finds_the_grant_closed() {
    all_orders(4, || {
        let shared = Arc::new(Shared::default());
        shared.words().offer(1, 0, 101);
        let sender = thread::spawn({
            let shared = shared.clone();
            move || assert!(shared.send(1))
        });
        // Whoever waits for the message itself sees that the sender is done.
        while shared.words().offered(0).is_none() {
            thread::yield_now();
        }
        assert_eq!(shared.read(0), 1);
        sender.join().expect("no panic");
    });
}

/// Slots, fewer than there are descriptors.
const SLOTS: u64 = 2;
const DESCRIPTORS: u64 = 4;

#[derive(Default)]
struct Inbox {
    numbers: [AtomicU64; SLOTS as usize],
    credit: AtomicU64,
    slots: [UnsafeCell<u64>; SLOTS as usize],
}

#[test]
#[allow(unsafe_code)] // the checker's cells
fn a_slot_has_one_owner_at_a_time_and_descriptors_come_in_order() {
    all_orders(3, || {
        let inbox = Arc::new(Inbox::default());
        let sender = thread::spawn({
            let inbox = inbox.clone();
            move || {
                for posted in 0..DESCRIPTORS {
                    while posted - slot_words::freed(&inbox.credit) >= SLOTS {
                        thread::yield_now();
                    }
                    let at = (posted % SLOTS) as usize;
                    // SAFETY: the checker sees to it that nobody else has it.
                    inbox.slots[at].with_mut(|slot| unsafe { *slot = 100 + posted });
                    slot_words::post(&inbox.numbers[at], posted + 1);
                }
            }
        });
        for taken in 0..DESCRIPTORS {
            let at = (taken % SLOTS) as usize;
            while !slot_words::is_posted(&inbox.numbers[at], taken + 1) {
                thread::yield_now();
            }
            // SAFETY: as above.
            assert_eq!(inbox.slots[at].with(|slot| unsafe { *slot }), 100 + taken);
            slot_words::free(&inbox.credit, taken + 1);
        }
        sender.join().expect("no panic");
    });
}
