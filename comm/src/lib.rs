//! Collective communication: rendezvous, communicators, schedules and their execution.
//!
//! May depend on `nd-transport` (how bytes move) and `nd-topology` (what the machines look like); never names a
//! transport. The parts marked *pure* do no IO, read no clock, start no thread.
//!
//! | module | what |
//! |---|---|
//! | [`config`] | every setting, read once |
//! | [`launch`] | which rank this is, by whichever launcher started it — *pure* but for `from_env` |
//! | [`rendezvous`] | how ranks find each other |
//! | [`number`] | element types (f16, bf16 and fp8 included), [`number::ReduceOp`], conversions — *pure* |
//! | [`fold`] | the order in which values are combined, as data — *pure* |
//! | [`kernel`] | reduction loops over memory, one table chosen at start |
//! | [`schedule`] | who sends what to whom: the instructions, one file per algorithm, and the verifier — *pure* |
//! | [`cost`] | what a schedule takes on given machines, before it is performed — *pure* |
//! | [`choose`] | which algorithm performs a call — *pure* |
//! | [`exec`] | runs schedules on host memory |
//! | [`membership`] | who goes on after some have failed — *pure* |
//! | [`communicator`] | the calls |
//! | [`recorder`] | the last calls of each communicator, traces, and who is to blame |
//! | [`buffer`] | memory that peers reach without a copy |

/// The atomic types of the lock-free parts, which the model checker in `nd-tests` compiles with its own.
mod atomics {
    pub use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
}
pub mod buffer;
pub mod choose;
pub mod communicator;
pub mod config;
pub mod cost;
mod error;
pub mod exec;
pub mod fold;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod kernel;
pub mod launch;
pub mod membership;
pub mod number;
pub mod recorder;
pub mod rendezvous;
pub mod schedule;

pub use error::{Error, Result};

/// What most users need.
pub mod prelude {
    pub use crate::buffer::{Buffer, Owned};
    pub use crate::communicator::Communicator;
    pub use crate::communicator::abort::AbortHandle;
    pub use crate::communicator::pending::{Pending, Returned};
    pub use crate::config::Config;
    pub use crate::error::{Error, Result};
    pub use crate::number::{DataType, Element, ReduceOp};
    pub use crate::rendezvous::UniqueId;
}
