//! Element types, with values to test them on.

use std::fmt::Debug;

use half::{bf16, f16};
use nd_comm::number::{Element, F8E4M3, F8E5M2};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Stands for every NaN.
const NAN: u64 = u64::MAX;

/// A floating-point element type whose accumulator is `Acc`.
pub trait Float: Element + Debug {
    /// What sums are held in.
    type Acc: Copy + std::ops::Add<Output = Self::Acc>;
    /// Exactly.
    fn widen(self) -> Self::Acc;
    /// To the nearest, ties to even.
    fn round(acc: Self::Acc) -> Self;
    /// The bits, to compare; one number for every NaN.
    fn bits(self) -> u64;
    /// The element nearest to a number.
    fn from_f64(x: f64) -> Self;
}

macro_rules! narrow {
    ($($t:ty),*) => {$(impl Float for $t {
        type Acc = f32;
        fn widen(self) -> f32 { self.to_f32() }
        fn round(acc: f32) -> Self { <$t>::from_f32(acc) }
        fn bits(self) -> u64 { if self.is_nan() { NAN } else { self.to_bits().into() } }
        fn from_f64(x: f64) -> Self { <$t>::from_f32(x as f32) }
    })*};
}
narrow!(f16, bf16);

macro_rules! tiny {
    ($($t:ty),*) => {$(impl Float for $t {
        type Acc = f32;
        fn widen(self) -> f32 { self.to_f32() }
        fn round(acc: f32) -> Self { <$t>::from_f32(acc) }
        fn bits(self) -> u64 { if self.to_f32().is_nan() { NAN } else { self.0.into() } }
        fn from_f64(x: f64) -> Self { <$t>::from_f32(x as f32) }
    })*};
}
tiny!(F8E4M3, F8E5M2);

macro_rules! native {
    ($($t:ty),*) => {$(impl Float for $t {
        type Acc = $t;
        fn widen(self) -> $t { self }
        fn round(acc: $t) -> Self { acc }
        fn bits(self) -> u64 { if self.is_nan() { NAN } else { self.to_bits().into() } }
        fn from_f64(x: f64) -> Self { x as $t }
    })*};
}
native!(f32, f64);

/// `len` values of very different sizes, so that the order of additions shows; the same for the same seed and rank.
pub fn values<T: Float>(len: usize, rank: usize, seed: u64) -> Vec<T> {
    let mut random = SmallRng::seed_from_u64(seed.wrapping_mul(1_000_003) ^ rank as u64);
    (0..len)
        .map(|_| {
            let exponent: i32 = random.random_range(-9..9);
            T::from_f64(random.random_range(-1.0..1.0) * 2f64.powi(exponent))
        })
        .collect()
}
