//! Differentiable operations with their own backward pass.
//!
//! Each is one pass over its rows instead of a chain of elementary operations, keeps nothing for the backward pass but
//! its operands, and computes inside in f32 (in f64 for f64), rounding once. A result's bits depend on the operands
//! alone, not on threads.
//!
//! | function | what |
//! |---|---|
//! | [`rms_norm`] | `x / rms(x) · weight` |
//! | [`rope`] | rotary position embedding |
//! | [`add_bias`] | a vector added to every row |
//! | [`silu_mul`] | `silu(gate) · up` |
//! | [`embedding`] | rows of a table |
//! | [`dropout`] | zeros at random, by counters |
//! | [`random`] | numbers that depend on a key and a counter alone — *pure* |
//!
//! Tensors are on the CPU and of type f32, f64, bf16 or f16.

mod bias;
mod dropout;
mod embedding;
pub mod random;
mod rms_norm;
mod rope;
mod silu;
#[cfg(test)]
mod testing;

pub use bias::add_bias;
pub use dropout::{Counter, dropout};
pub use embedding::embedding;
pub use rms_norm::rms_norm;
pub use rope::{Rope, Scaling, rope};
pub use silu::silu_mul;
