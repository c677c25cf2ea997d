//! The lock-free parts under a model checker, loom: the very files, compiled with its atomics, run in every order that
//! their threads can take and with every value that a load can give.
//!
//! Of each part the orders are bounded to so many forced changes from one thread to another as stand with it.

mod exec;
mod recorder;
mod sleeping;

/// What the files take their atomics from.
mod atomics {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}

/// Runs in all orders with at most so many forced changes of threads.
fn all_orders(changes: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(changes);
    model.max_branches = 100_000;
    model.check(run);
}
