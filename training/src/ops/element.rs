//! The element types, and what the operations compute with inside.

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use candle_core::{CpuStorage, Error, Layout, Result, WithDType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// What is computed with: f32, or f64 for f64.
pub(crate) trait Wide:
    Copy
    + Default
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    const ONE: Self;

    fn of(value: f64) -> Self;

    fn sqrt(self) -> Self;

    fn exp(self) -> Self;
}

impl Wide for f32 {
    const ONE: f32 = 1.0;

    fn of(value: f64) -> f32 {
        value as f32
    }

    fn sqrt(self) -> f32 {
        self.sqrt()
    }

    /// Within 2 units in the last place where the result is a normal number; without a branch, so that a loop over it
    /// becomes vector instructions.
    #[inline(always)]
    fn exp(self) -> f32 {
        // e^x = 2^n · e^r with |r| ≤ ln2 / 2. Adding 1.5 · 2^23 rounds to a whole number, which is then found in the
        // low bits. ln 2 is taken off in two parts, of which the first has few bits, so that n times it is exact.
        const ROUND: f32 = 12_582_912.0;
        const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
        let x = if self > 88.0 { 88.0 } else { self };
        let x = if x < -87.0 { -87.0 } else { x };
        let shifted = x * std::f32::consts::LOG2_E + ROUND;
        let n = shifted - ROUND;
        let r = (x - n * LN_2[0]) - n * LN_2[1];
        let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
        // Taylor's series to the seventh power: what is left is below r^8 / 8!, 5e-9.
        const INVERSE_FACTORIALS: [f32; 7] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
        INVERSE_FACTORIALS.iter().fold(1.0 / 5040.0, |sum, c| sum * r + c) * power
    }
}

impl Wide for f64 {
    const ONE: f64 = 1.0;

    fn of(value: f64) -> f64 {
        value
    }

    fn sqrt(self) -> f64 {
        self.sqrt()
    }

    fn exp(self) -> f64 {
        self.exp()
    }
}

/// An element of a tensor.
pub(crate) trait Real: WithDType {
    type Wide: Wide;

    /// A row to compute with, in `room` if it must be converted.
    fn widen<'a>(row: &'a [Self], room: &'a mut [Self::Wide]) -> &'a [Self::Wide];

    /// Rounds a row.
    fn narrow(row: &[Self::Wide], out: &mut [Self]);
}

macro_rules! wide_real {
    ($type:ty) => {
        impl Real for $type {
            type Wide = $type;

            fn widen<'a>(row: &'a [$type], _: &'a mut [$type]) -> &'a [$type] {
                row
            }

            fn narrow(row: &[$type], out: &mut [$type]) {
                out.copy_from_slice(row);
            }
        }
    };
}

wide_real!(f32);
wide_real!(f64);

macro_rules! half_real {
    ($type:ty) => {
        impl Real for $type {
            type Wide = f32;

            fn widen<'a>(row: &'a [$type], room: &'a mut [f32]) -> &'a [f32] {
                let room = &mut room[..row.len()];
                row.convert_to_f32_slice(room);
                room
            }

            fn narrow(row: &[f32], out: &mut [$type]) {
                out.convert_from_f32_slice(row);
            }
        }
    };
}

half_real!(bf16);
half_real!(f16);

/// Calls what is generic over [`Real`] with the type that a tensor's elements have.
macro_rules! with_real {
    ($name:expr, $dtype:expr, $type:ident => $call:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $type = f32;
                $call
            }
            candle_core::DType::F64 => {
                type $type = f64;
                $call
            }
            candle_core::DType::BF16 => {
                type $type = half::bf16;
                $call
            }
            candle_core::DType::F16 => {
                type $type = half::f16;
                $call
            }
            other => Err(candle_core::Error::UnsupportedDTypeForOp(other, $name)),
        }
    };
}
pub(crate) use with_real;

/// The elements of an operand that lies in one piece.
pub(crate) fn elements<'a, T: WithDType>(
    op: &'static str,
    storage: &'a CpuStorage,
    layout: &Layout,
) -> Result<&'a [T]> {
    let (start, end) = layout.contiguous_offsets().ok_or(Error::RequiresContiguous { op })?;
    let all = storage.as_slice::<T>()?;
    all.get(start..end).ok_or_else(|| {
        let (here, needed) = (all.len(), end - start);
        Error::Msg(format!(
            "{op}: an operand of {needed} elements has {here} in memory: it was let go too early"
        ))
    })
}

/// The sum of the products, in an order that is the same for every row of this length.
pub(crate) fn dot<W: Wide>(a: &[W], b: &[W]) -> W {
    const LANES: usize = 16;
    let mut lanes = [W::default(); LANES];
    let (a_rows, a_rest) = a.as_chunks::<LANES>();
    let (b_rows, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_rows.iter().zip(b_rows) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i];
        }
    }
    for (lane, (&a, &b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += a * b;
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            let upper = lanes[i + half];
            lanes[i] += upper;
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_and_keeps_what_is_no_number() {
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let (ours, exact) = (f64::from(Wide::exp(x)), f64::from(x).exp());
            assert!((ours / exact - 1.0).abs() < 2.4e-7, "e^{x}: {ours}, not {exact}");
        }
        assert!(Wide::exp(f32::NAN).is_nan());
        assert!(Wide::exp(f32::INFINITY) > 1e38);
        assert!(Wide::exp(f32::NEG_INFINITY) < 1e-37);
        assert_eq!(Wide::exp(0f32), 1.0);
    }

    #[test]
    fn dot_takes_every_element_once() {
        for n in [0, 1, 15, 16, 17, 100] {
            let a: Vec<f64> = (1..=n).map(f64::from).collect();
            assert_eq!(dot(&a, &vec![1.0; n as usize]), f64::from(n * (n + 1) / 2));
        }
    }
}
