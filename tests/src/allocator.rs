//! An allocator that counts, for tests of how much memory something takes: `#[global_allocator] static COUNTING: Counting =
//! Counting;`.
#![allow(unsafe_code)] // counts bytes

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Counts what each thread, and all of them together, have allocated and not freed.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The same of all threads together.
static ALL_NOW: AtomicIsize = AtomicIsize::new(0);
static ALL_PEAK: AtomicIsize = AtomicIsize::new(0);

/// Bytes that this thread has allocated and not freed; what another has freed of them still counts.
pub fn allocated() -> isize {
    NOW.get()
}

/// The most that was since this thread called this the last time.
pub fn take_peak() -> isize {
    PEAK.replace(NOW.get())
}

/// What all threads together had at most while `f` ran, more than before. One test at a time may ask.
pub fn peak_of_all<R>(f: impl FnOnce() -> R) -> (R, isize) {
    let before = ALL_NOW.load(Ordering::SeqCst);
    ALL_PEAK.store(before, Ordering::SeqCst);
    let result = f();
    (result, ALL_PEAK.load(Ordering::SeqCst) - before)
}

fn count(bytes: isize) {
    let all = ALL_NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    ALL_PEAK.fetch_max(all, Ordering::Relaxed);
    let _ = NOW.try_with(|now| {
        now.set(now.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}
