//! Element types and operations.
//!
//! | file | what |
//! |---|---|
//! | `data_type` | [`DataType`], and [`Element`] for the Rust types behind it |
//! | `op` | [`ReduceOp`] |
//! | `float8` | [`F8E4M3`], [`F8E5M2`] |
//! | `round` | rounding an f32 to 16 and 8 bits, in integer arithmetic |
//!
//! The 16-bit types are [`half::f16`] and [`half::bf16`].

mod data_type;
mod float8;
mod op;
mod round;

pub use data_type::{DataType, Element, UnknownDataType};
pub use float8::{F8E4M3, F8E5M2};
pub use op::{ReduceOp, UnknownReduceOp};
pub use round::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};
