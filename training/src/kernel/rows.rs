//! Rows that are worked on one at a time, in memory that is used again.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::{Real, Scalar};

/// Rows of a type of tensors.
pub(crate) trait Rows: Scalar {
    /// The same numbers, to compute with; in `room`, which is no shorter, if they must be converted.
    fn widen_row<'a>(row: &'a [Self], room: &'a mut [Self::Real]) -> &'a [Self::Real];

    /// The numbers nearest to these, into `out` of the same length.
    fn narrow_row(row: &[Self::Real], out: &mut [Self]);
}

macro_rules! real {
    ($type:ty) => {
        impl Rows for $type {
            fn widen_row<'a>(row: &'a [$type], _: &'a mut [$type]) -> &'a [$type] {
                row
            }

            fn narrow_row(row: &[$type], out: &mut [$type]) {
                out.copy_from_slice(row);
            }
        }
    };
}
real!(f32);
real!(f64);

macro_rules! half {
    ($type:ty) => {
        impl Rows for $type {
            fn widen_row<'a>(row: &'a [$type], room: &'a mut [f32]) -> &'a [f32] {
                let room = &mut room[..row.len()];
                row.convert_to_f32_slice(room);
                room
            }

            fn narrow_row(row: &[f32], out: &mut [$type]) {
                out.convert_from_f32_slice(row);
            }
        }
    };
}
half!(f16);
half!(bf16);

/// Room for a row.
pub(crate) fn room<R: Real>(len: usize) -> Vec<R> {
    vec![R::from_f64(0.0); len]
}

/// The sum of the products, in an order that is the same for all rows of a length.
pub(crate) fn dot<R: Real>(a: &[R], b: &[R]) -> R {
    const LANES: usize = 16;
    let mut lanes = [R::from_f64(0.0); LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    for ((lane, &a), &b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane += a * b;
    }
    let mut half = LANES / 2;
    while half > 0 {
        let (lower, upper) = lanes.split_at_mut(half);
        lower.iter_mut().zip(upper).for_each(|(lower, upper)| *lower += *upper);
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_takes_every_element_once() {
        for n in [0, 1, 15, 16, 17, 100] {
            let a: Vec<f64> = (1..=n).map(f64::from).collect();
            assert_eq!(dot(&a, &vec![1.0; n as usize]), f64::from(n * (n + 1) / 2));
        }
    }

    #[test]
    fn rows_are_rounded_to_the_nearest() {
        let mut room = [0.0; 4];
        let row = [bf16::from_f32(1.5), bf16::from_f32(-2.0)];
        assert_eq!(bf16::widen_row(&row, &mut room), [1.5, -2.0]);
        let mut out = [f16::ZERO; 2];
        f16::narrow_row(&[1.0 + 1.0 / 4096.0, 65_504.0], &mut out);
        assert_eq!(out.map(f16::to_f32), [1.0, 65_504.0]);
    }
}
