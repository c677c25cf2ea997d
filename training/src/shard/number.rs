//! The types that weights are computed with and gradients are reduced in.

use candle_core::{CpuStorage, WithDType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use nd_comm::prelude::Element;

/// f32, bf16 or f16.
pub trait Number: Element + WithDType {
    /// Rounds to the nearest, ties to even. Both slices are equally long.
    fn narrow(from: &[f32], to: &mut [Self]);

    /// The same values in f32, in chunks, with where they begin.
    fn widen(from: &[Self], each: impl FnMut(usize, &[f32]));

    /// The elements of a storage of this type.
    fn elements(storage: CpuStorage) -> Option<Vec<Self>>;
}

impl Number for f32 {
    fn narrow(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn widen(from: &[f32], mut each: impl FnMut(usize, &[f32])) {
        each(0, from);
    }

    fn elements(storage: CpuStorage) -> Option<Vec<f32>> {
        if let CpuStorage::F32(values) = storage { Some(values) } else { None }
    }
}

macro_rules! half {
    ($number:ty, $kind:ident) => {
        impl Number for $number {
            fn narrow(from: &[f32], to: &mut [$number]) {
                to.convert_from_f32_slice(from);
            }

            fn widen(from: &[$number], mut each: impl FnMut(usize, &[f32])) {
                let mut wide = [0.0; CHUNK];
                for (i, chunk) in from.chunks(CHUNK).enumerate() {
                    let wide = &mut wide[..chunk.len()];
                    chunk.convert_to_f32_slice(wide);
                    each(i * CHUNK, wide);
                }
            }

            fn elements(storage: CpuStorage) -> Option<Vec<$number>> {
                if let CpuStorage::$kind(values) = storage { Some(values) } else { None }
            }
        }
    };
}
half!(bf16, BF16);
half!(f16, F16);

/// Elements that are converted at a time: they stay in the first-level cache.
const CHUNK: usize = 1024;

/// Adds `from` to `to`, element by element.
pub fn add(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}
