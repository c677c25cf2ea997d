//! Loops over slices that the operations share, on the CPU.
//!
//! | file | what |
//! |---|---|
//! | `scalar` | the types that tensors have, and those that are computed in |
//! | `exp` | a row's largest element, its exponentials and their sum |
//! | `product` | products of matrices that lie in slices |
//! | `rows` | rows that are worked on one at a time |
//! | `tensors` | tensors as slices |

mod exp;
mod product;
mod rows;
mod scalar;
mod tensors;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use product::{Matrix, product};
pub(crate) use rows::{Rows, dot, room};
pub(crate) use scalar::{Real, Scalar};
pub(crate) use tensors::{by_type, elements, with_elements};
