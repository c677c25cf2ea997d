//! The types that tensors have, and those that are computed in: f32, and f64 for f64.

use std::borrow::Cow;

use candle_core::WithDType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use nd_comm::prelude::Element;

use super::exp;

/// A type of tensors of floating-point numbers.
pub(crate) trait Scalar: WithDType + Element {
    /// What is computed in.
    type Real: Real;

    /// The same numbers, to compute with.
    fn widen(from: &[Self]) -> Cow<'_, [Self::Real]>;

    /// The numbers nearest to these.
    fn narrow(from: Vec<Self::Real>) -> Vec<Self>;

    /// The number nearest to this.
    fn rounded(from: Self::Real) -> Self;
}

/// A type that is computed in.
pub(crate) trait Real: Scalar<Real = Self> {
    /// Less than every number.
    const LOWEST: Self;

    /// The exponential.
    fn exp(self) -> Self;

    /// The natural logarithm.
    fn ln(self) -> Self;

    /// The largest element; [`Real::LOWEST`] of none. Elements that are no numbers are passed over.
    fn largest(row: &[Self]) -> Self;

    /// Replaces each element `x` by the exponential of `x - shift` and gives their sum. An element that is no number
    /// makes the sum none.
    fn exponentials(row: &mut [Self], shift: Self) -> Self;
}

macro_rules! real {
    ($type:ty, $largest:path, $exponentials:path) => {
        impl Scalar for $type {
            type Real = $type;

            fn widen(from: &[$type]) -> Cow<'_, [$type]> {
                Cow::Borrowed(from)
            }

            fn narrow(from: Vec<$type>) -> Vec<$type> {
                from
            }

            fn rounded(from: $type) -> $type {
                from
            }
        }

        impl Real for $type {
            const LOWEST: $type = <$type>::NEG_INFINITY;

            fn exp(self) -> $type {
                <$type>::exp(self)
            }

            fn ln(self) -> $type {
                <$type>::ln(self)
            }

            fn largest(row: &[$type]) -> $type {
                $largest(row)
            }

            fn exponentials(row: &mut [$type], shift: $type) -> $type {
                $exponentials(row, shift)
            }
        }
    };
}
real!(f32, exp::largest_f32, exp::exponentials_f32);
real!(f64, exp::largest_f64, exp::exponentials_f64);

macro_rules! half {
    ($type:ty) => {
        impl Scalar for $type {
            type Real = f32;

            fn widen(from: &[$type]) -> Cow<'_, [f32]> {
                let mut wide = vec![0.0; from.len()];
                from.convert_to_f32_slice(&mut wide);
                Cow::Owned(wide)
            }

            fn narrow(from: Vec<f32>) -> Vec<$type> {
                let mut narrow = vec![<$type>::ZERO; from.len()];
                narrow.convert_from_f32_slice(&from);
                narrow
            }

            fn rounded(from: f32) -> $type {
                <$type>::from_f32(from)
            }
        }
    };
}
half!(f16);
half!(bf16);
