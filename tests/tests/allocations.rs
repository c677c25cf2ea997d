//! A call whose shape was seen before allocates nothing.
#![allow(unsafe_code)] // counts allocations

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use nd_comm::choose::Chooser;
use nd_comm::number::ReduceOp;
use nd_tests::worlds::{Kind, each, world};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_repeated_call_allocates_nothing() {
    // Without the transports that delay puts on purpose, which copy them.
    for kind in [Kind::Local, Kind::Shm, Kind::ShmWithoutAttach, Kind::Tcp, Kind::Hosts(vec![0, 0, 1])] {
        for len in [1usize, 1000, 100_000] {
            let ranks = world(&kind, 3, &Chooser::default());
            each(&ranks, |comm| {
                let mut buffer = comm.alloc::<f32>(len).expect("memory");
                let (plain, mut out) = (vec![1f32; len], vec![0f32; len]);
                let mut calls = || {
                    comm.all_reduce(&mut buffer, ReduceOp::Max).expect("all_reduce");
                    comm.all_reduce_into(&plain, &mut out, ReduceOp::Sum).expect("all_reduce_into");
                    comm.broadcast(&mut out, 1).expect("broadcast");
                    comm.barrier().expect("barrier");
                };
                // Connections, plans and queues come with the first calls.
                (0..20).for_each(|_| calls());
                // A wait of more than 100 ms looks at the world, which allocates: on a busy machine not every window
                // is without one.
                let mut window = || {
                    let before = ALLOCATIONS.get();
                    (0..20).for_each(|_| calls());
                    ALLOCATIONS.get() - before
                };
                let mut windows: [u64; 5] = std::array::from_fn(|_| window());
                windows.sort_unstable();
                // Most of them: what every call allocates, or one in twenty, shows in each.
                let allocated: u64 = windows[..3].iter().sum();
                assert_eq!(allocated, 0, "{kind:?}, {len} elements, rank {}", comm.rank());
            });
        }
    }
}
