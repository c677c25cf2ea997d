//! Values for checking: every rank can compute every rank's input, and what a reduction of all must give, exactly
//! and in any order, without asking the communicator.
//!
//! Integers wrap, so any values do. Floats are small integers (for products powers of two), chosen so that every
//! partial result, in whatever order and however often it is rounded to the type, is a value of the type. Copied
//! data is arbitrary bits. All loops are over blocks and have no branches, so that they vectorise.

use half::{bf16, f16};
use nd_comm::number::{Element, F8E4M3, F8E5M2, ReduceOp, bf16_from_f32, f16_from_f32};

/// Elements that are computed at once.
pub const BLOCK: usize = 1024;

/// The largest integer drawn, so that 16 bits times the range fit 32.
const DRAW: u64 = 32767;
/// So many ranks contribute something other than ±1 to a product.
const FACTORS: usize = 3;

/// How inputs of a reduction are drawn.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// None: data that is only copied.
    pub op: Option<ReduceOp>,
    /// How many ranks contribute.
    pub ranks: usize,
    seed: u32,
    /// Floats: from minus this to this.
    magnitude: u32,
    /// Floats: a rank's element is drawn if its bits under this mask are all clear, otherwise it is neutral.
    sparse: u32,
}

impl Recipe {
    /// For `ranks` ranks.
    pub fn new<T: Sample>(op: Option<ReduceOp>, ranks: usize, seed: u32) -> Recipe {
        let n = ranks.max(1) as u64;
        let most = T::EXACT.min(DRAW);
        let one_in = |k: u64| (n.div_ceil(k).next_power_of_two() - 1) as u32;
        let (magnitude, sparse) = match op {
            Some(ReduceOp::Min | ReduceOp::Max) => (most, 0),
            Some(ReduceOp::Product) => (1, one_in(FACTORS as u64)),
            _ if n <= T::EXACT => ((T::EXACT / n).min(DRAW), 0),
            _ => (1, one_in(T::EXACT)),
        };
        Recipe { op, ranks, seed, magnitude: magnitude as u32, sparse }
    }

    /// The same for data that is only copied.
    pub fn of_bits(self) -> Recipe {
        Recipe { op: None, ..self }
    }

    /// The elements from `start` on of `rank`'s input.
    pub fn input<T: Sample>(&self, rank: usize, start: u64, out: &mut [T]) {
        let mut hashes = [0u32; BLOCK];
        for (i, out) in out.chunks_mut(BLOCK).enumerate() {
            let hashes = &mut hashes[..out.len()];
            self.hashes(start + (i * BLOCK) as u64, hashes);
            match self.op {
                None => {
                    let key = self.key(rank);
                    out.iter_mut().zip(&*hashes).for_each(|(o, h)| *o = T::any(turn(*h, key)));
                }
                Some(_) => {
                    let mut values = [T::Value::default(); BLOCK];
                    T::draw(self, self.key(rank), rank as u32, hashes, &mut values[..out.len()]);
                    out.iter_mut().zip(&values).for_each(|(o, v)| *o = T::from_value(*v));
                }
            }
        }
    }

    /// The elements from `start` on of the reduction of all ranks' inputs.
    pub fn reduced<T: Sample>(&self, start: u64, out: &mut [T]) {
        let mut hashes = [0u32; BLOCK];
        for (i, out) in out.chunks_mut(BLOCK).enumerate() {
            let hashes = &mut hashes[..out.len()];
            self.hashes(start + (i * BLOCK) as u64, hashes);
            let mut sum = [T::Value::default(); BLOCK];
            let mut values = [T::Value::default(); BLOCK];
            let (sum, values) = (&mut sum[..out.len()], &mut values[..out.len()]);
            T::draw(self, self.key(0), 0, hashes, sum);
            T::scale(self, sum);
            for rank in 1..self.ranks {
                T::draw(self, self.key(rank), rank as u32, hashes, values);
                T::scale(self, values);
                T::fold(self, sum, values);
            }
            out.iter_mut().zip(&*sum).for_each(|(o, v)| *o = T::finish(self, *v));
        }
    }

    fn hashes(&self, start: u64, out: &mut [u32]) {
        for (j, out) in out.iter_mut().enumerate() {
            let i = start + j as u64;
            *out = mix(i as u32 ^ ((i >> 32) as u32).wrapping_mul(0x9e37_79b9) ^ self.seed);
        }
    }

    fn key(&self, rank: usize) -> u32 {
        mix((rank as u32).wrapping_add(1).wrapping_mul(0x9e37_79b9) ^ self.seed)
    }
}

/// A bijection that spreads bits (C. Wellons, "lowbias32").
fn mix(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// The hash of an element for one rank.
#[inline(always)]
fn turn(hash: u32, key: u32) -> u32 {
    let x = (hash ^ key).wrapping_mul(0x9e37_79b1);
    x ^ (x >> 15)
}

/// An element type that can be checked.
pub trait Sample: Element + Default {
    /// What is computed with: integers, the type itself or small ones that stand for floats.
    type Value: Copy + Default;
    /// Up to this, every integer is a value of the type.
    const EXACT: u64;
    /// Arbitrary bits.
    fn any(hash: u32) -> Self;
    /// Whether the bits are the same.
    fn same(self, other: Self) -> bool;
    /// As an element.
    fn from_value(value: Self::Value) -> Self;
    /// One rank's values.
    fn draw(recipe: &Recipe, key: u32, rank: u32, hashes: &[u32], out: &mut [Self::Value]);
    /// The first step of a pre-multiplied sum, where it matters.
    fn scale(recipe: &Recipe, values: &mut [Self::Value]);
    /// Combines.
    fn fold(recipe: &Recipe, into: &mut [Self::Value], values: &[Self::Value]);
    /// The last step: division for an average.
    fn finish(recipe: &Recipe, value: Self::Value) -> Self;
}

fn each<V: Copy>(into: &mut [V], values: &[V], f: impl Fn(V, V) -> V) {
    into.iter_mut().zip(values).for_each(|(a, b)| *a = f(*a, *b));
}

macro_rules! integers {
    ($($t:ty, $wide:ty);*) => {$(
        impl Sample for $t {
            type Value = $t;
            const EXACT: u64 = <$t>::MAX as u64;
            #[inline(always)]
            fn any(hash: u32) -> $t {
                ((u64::from(hash)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - <$t>::BITS)) as $t
            }
            fn same(self, other: $t) -> bool {
                self == other
            }
            fn from_value(value: $t) -> $t {
                value
            }
            fn draw(recipe: &Recipe, key: u32, _: u32, hashes: &[u32], out: &mut [$t]) {
                // Products of even numbers would soon be 0.
                let odd = <$t>::from(recipe.op == Some(ReduceOp::Product));
                out.iter_mut().zip(hashes).for_each(|(o, h)| *o = <$t>::any(turn(*h, key)) | odd);
            }
            fn scale(recipe: &Recipe, values: &mut [$t]) {
                if let Some(ReduceOp::PreMulSum(factor)) = recipe.op {
                    values.iter_mut().for_each(|v| *v = v.wrapping_mul(factor as $t));
                }
            }
            fn fold(recipe: &Recipe, into: &mut [$t], values: &[$t]) {
                match recipe.op {
                    Some(ReduceOp::Product) => each(into, values, <$t>::wrapping_mul),
                    Some(ReduceOp::Min) => each(into, values, Ord::min),
                    Some(ReduceOp::Max) => each(into, values, Ord::max),
                    Some(ReduceOp::BitAnd) => each(into, values, |a, b| a & b),
                    Some(ReduceOp::BitOr) => each(into, values, |a, b| a | b),
                    Some(ReduceOp::BitXor) => each(into, values, |a, b| a ^ b),
                    _ => each(into, values, <$t>::wrapping_add),
                }
            }
            fn finish(recipe: &Recipe, value: $t) -> $t {
                let averages = recipe.op == Some(ReduceOp::Avg);
                if averages { (value as $wide / recipe.ranks as $wide) as $t } else { value }
            }
        }
    )*};
}
integers!(i8, i64; u8, u64; i16, i64; u16, u64; i32, i64; u32, u64; i64, i64; u64, u64);

macro_rules! floats {
    ($($t:ty, $bits:ty, $exact:expr, $wide:ty, |$r:ident| $raw:expr, |$x:ident| $round:expr, |$v:ident| $show:expr);*) => {$(
        impl Sample for $t {
            type Value = i32;
            const EXACT: u64 = $exact;
            #[inline(always)]
            fn any(hash: u32) -> $t {
                let $r = <$bits>::any(hash);
                $raw
            }
            #[inline(always)]
            fn same(self, other: $t) -> bool {
                let bits = |$v: $t| $show;
                bits(self) == bits(other)
            }
            #[inline(always)]
            fn from_value(value: i32) -> $t {
                let $x = value as $wide;
                $round
            }
            fn draw(recipe: &Recipe, key: u32, rank: u32, hashes: &[u32], out: &mut [i32]) {
                draw_small(recipe, key, rank, hashes, out);
            }
            fn scale(_: &Recipe, _: &mut [i32]) {}
            fn fold(recipe: &Recipe, into: &mut [i32], values: &[i32]) {
                match recipe.op {
                    Some(ReduceOp::Product) => each(into, values, i32::wrapping_mul),
                    Some(ReduceOp::Min) => each(into, values, Ord::min),
                    Some(ReduceOp::Max) => each(into, values, Ord::max),
                    _ => each(into, values, i32::wrapping_add),
                }
            }
            #[inline(always)]
            fn finish(recipe: &Recipe, value: i32) -> $t {
                let $x = match recipe.op {
                    Some(ReduceOp::Avg) => value as $wide / recipe.ranks as $wide,
                    // A power of two, so that multiplying the sum is multiplying every term.
                    Some(ReduceOp::PreMulSum(factor)) => value as $wide * factor as $wide,
                    _ => value as $wide,
                };
                $round
            }
        }
    )*};
}
floats!(
    f64, u64, 1 << 53, f64, |r| f64::from_bits(r), |x| x, |v| v.to_bits();
    f32, u32, 1 << 24, f32, |r| f32::from_bits(r), |x| x, |v| v.to_bits();
    f16, u16, 1 << 11, f32, |r| f16::from_bits(r), |x| f16::from_bits(f16_from_f32(x)), |v| v.to_bits();
    bf16, u16, 1 << 8, f32, |r| bf16::from_bits(r), |x| bf16::from_bits(bf16_from_f32(x)), |v| v.to_bits();
    F8E4M3, u8, 1 << 4, f32, |r| F8E4M3(r), |x| F8E4M3::from_f32(x), |v| v.0;
    F8E5M2, u8, 1 << 3, f32, |r| F8E5M2(r), |x| F8E5M2::from_f32(x), |v| v.0
);

/// Small integers that stand for floats.
fn draw_small(recipe: &Recipe, key: u32, rank: u32, hashes: &[u32], out: &mut [i32]) {
    let (m, sparse) = (recipe.magnitude, recipe.sparse);
    if recipe.op == Some(ReduceOp::Product) {
        for (out, hash) in out.iter_mut().zip(hashes) {
            let h = turn(*hash, key) >> 16;
            let drawn = u32::from((hash.wrapping_add(rank) & sparse) == 0);
            *out = (1 << (h & drawn)) * (1 - (h & 2) as i32);
        }
    } else {
        for (out, hash) in out.iter_mut().zip(hashes) {
            let h = turn(*hash, key) >> 16;
            let drawn = i32::from((hash.wrapping_add(rank) & sparse) == 0);
            *out = (((h * (2 * m + 1)) >> 16) as i32 - m as i32) * drawn;
        }
    }
}

#[cfg(test)]
mod tests;
