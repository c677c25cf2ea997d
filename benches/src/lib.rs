//! Side-by-side benchmarks: nd against what a user would pick instead, in the same run on the same machine.
//!
//! | module | what |
//! |---|---|
//! | [`compare`] | `make compare`: nd-bench in turn with Open MPI, MPICH, Intel MPI, oneCCL and Gloo |
//! | [`idle`] | ranks that start a communicator and then have nothing to do: how long, how much memory |
//! | [`limits`] | what the machine itself can do: copies, sums, cache lines, loopback TCP |
//! | [`prediction`] | `make predict`: the cost model's times beside measured ones |
//!
//! The other side of the comparison, programs written against those libraries, lies in `benches/peers/`;
//! `benches/benches/kernels.rs` measures the reduction loops, `calls.rs` what small calls cost. This crate may use
//! everything; nothing uses it.

pub mod compare;
pub mod idle;
pub mod limits;
pub mod prediction;
