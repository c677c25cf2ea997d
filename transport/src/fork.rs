//! Notices that the process was forked: connections and shared counters belong to the parent alone.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Remembers in which process it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forked {
    generation: u32,
}

impl Forked {
    /// In this process.
    pub fn here() -> Forked {
        static REGISTER: Once = Once::new();
        REGISTER.call_once(|| sys::after_fork_in_child(forked));
        Forked { generation: GENERATION.load(Ordering::Relaxed) }
    }

    /// Whether this is a child of the process it was made in. Costs one load.
    pub fn since(self) -> bool {
        GENERATION.load(Ordering::Relaxed) != self.generation
    }
}
