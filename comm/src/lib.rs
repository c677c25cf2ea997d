//! Collective communication: rendezvous, communicators, schedules and their execution.
//!
//! May depend on `nd-transport` (how bytes move) and `nd-topology` (what the machines look like); never names a
//! transport. The parts marked *pure* do no IO, read no clock, start no thread.
//!
//! | module | what |
//! |---|---|
//! | [`number`] | element types (f16, bf16 and fp8 included), [`number::ReduceOp`], conversions — *pure* |
//! | [`fold`] | the order in which values are combined, as data — *pure* |
//! | [`kernel`] | reduction loops over memory, one table chosen at start |
//! | [`schedule`] | who sends what to whom: the instructions, one file per algorithm, and the verifier — *pure* |

pub mod fold;
pub mod kernel;
pub mod number;
pub mod schedule;
