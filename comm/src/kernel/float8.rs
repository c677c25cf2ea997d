//! Sums of fp8 with AVX2.
//!
//! The fields of an fp8 number, moved to where an f32 has its own, are that number times a power of two that is the
//! same for all, subnormals included. Sums have the same bits at either scale: an f32 sum that is subnormal is exact.
//! So a sum is rounded to fp8 as if the format had one range: by adding to its bits and cutting off.
//!
//! Registers hold every fourth element: 0, 4, … and 2, 6, … in one pair, 1, 5, … and 3, 7, … in the other.
#![allow(unsafe_op_in_unsafe_fn)] // every operation here rests on the one promise of `Pack`

use std::arch::x86_64::*;

use super::avx2::{Singles, from_upper_halves, halves, int};
use super::pack::{Pack, vectors};

/// Trees of sums of fp8 with 4 bits of exponent.
pub(super) struct SumE4M3;

/// Trees of sums of fp8 with 5 bits of exponent.
pub(super) struct SumE5M2;

macro_rules! sums {
    ($name:ident: $low:literal, $down:literal, $special:literal, $as:literal, $top:literal) => {
        impl Pack for $name {
            type Vector = Singles<4>;
            vectors!(1);
            const LANES: usize = 32;
            const SIZE: usize = 1;
            // Nothing is wide in a tree, so there is no other width.
            const WIDE: usize = 1;

            #[inline(always)]
            unsafe fn load(src: *const u8) -> Singles<4> {
                load::<$low, $down, $special, $as>(src)
            }

            #[inline(always)]
            unsafe fn store(dst: *mut u8, [v]: [Singles<4>; 1]) {
                store::<$low, $down, $top>(dst, v)
            }

            #[inline(always)]
            unsafe fn load_wide(src: *const u8) -> Singles<4> {
                Self::load(src)
            }

            #[inline(always)]
            unsafe fn store_wide(dst: *mut u8, v: [Singles<4>; 1]) {
                Self::store(dst, v)
            }
        }
    };
}

// LOW: where the lowest bit of a magnitude is in the upper half of an f32. DOWN: 8 - LOW. SPECIAL: bits that all are
// set in what is no finite number, which becomes an f32 that is none by setting the bits AS. TOP: the magnitude that
// greater ones become.
sums!(SumE4M3: 4, 4, 0x7f, 0x7fc0_0000, 0x7f);
sums!(SumE5M2: 5, 3, 0x7c, 0x7f80_0000, 0x7c);

/// The magnitude of the NaN that is written, which no number has.
const NAN: i16 = 0x7f;

#[inline(always)]
unsafe fn load<const LOW: i32, const DOWN: i32, const SPECIAL: u32, const AS: u32>(
    src: *const u8,
) -> Singles<4> {
    let x = _mm256_loadu_si256(src.cast());
    // An arithmetic shift leaves the sign in place.
    let fields = _mm256_set1_epi16(i16::MIN | 0x7f << LOW);
    let even = _mm256_and_si256(_mm256_srai_epi16::<DOWN>(_mm256_slli_epi16::<8>(x)), fields);
    let odd = _mm256_and_si256(_mm256_srai_epi16::<DOWN>(x), fields);
    let ([a, b], [c, d]) = (from_upper_halves(even), from_upper_halves(odd));
    let mut out = [a, b, c, d];
    let special = _mm256_set1_epi8(SPECIAL as i8);
    let is_special = _mm256_cmpeq_epi8(_mm256_and_si256(x, special), special);
    if _mm256_movemask_epi8(is_special) != 0 {
        std::hint::cold_path();
        let special = int(SPECIAL << (16 + LOW));
        for v in &mut out {
            let bits = _mm256_castps_si256(*v);
            let is_special = _mm256_cmpeq_epi32(_mm256_and_si256(bits, special), special);
            *v = _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_and_si256(is_special, int(AS))));
        }
    }
    Singles(out)
}

#[inline(always)]
unsafe fn store<const LOW: i32, const DOWN: i32, const TOP: i16>(dst: *mut u8, v: Singles<4>) {
    let (even, odd) = (round::<LOW>(v.0[0], v.0[1]), round::<LOW>(v.0[2], v.0[3]));
    let (low, high) = (magnitudes::<LOW, TOP>(even), magnitudes::<LOW, TOP>(odd));
    let high = _mm256_and_si256(_mm256_slli_epi16::<DOWN>(high), _mm256_set1_epi16(0x7f00));
    let magnitudes = _mm256_or_si256(_mm256_srli_epi16::<LOW>(low), high);
    let signs = _mm256_blendv_epi8(_mm256_srli_epi16::<8>(even), odd, _mm256_set1_epi16(0xff00u16 as i16));
    let signs = _mm256_and_si256(signs, _mm256_set1_epi8(i8::MIN));
    let is_nan = _mm256_cmpeq_epi8(magnitudes, _mm256_set1_epi8(NAN as i8));
    _mm256_storeu_si256(dst.cast(), _mm256_or_si256(magnitudes, _mm256_andnot_si256(is_nan, signs)));
}

/// The upper halves of the lanes, in two registers' order, rounded to what is at and above the bit LOW; the bits
/// below are garbage.
#[inline(always)]
unsafe fn round<const LOW: i32>(even: __m256, odd: __m256) -> __m256i {
    let (upper, lower) = halves(even, odd);
    // All that matters of the lower half is whether anything is set.
    let rest = _mm256_min_epu16(lower, _mm256_set1_epi16(1));
    let is_odd = _mm256_and_si256(_mm256_srli_epi16::<LOW>(upper), _mm256_set1_epi16(1));
    let half_less_one = _mm256_set1_epi16((1 << (LOW - 1)) - 1);
    let up = _mm256_add_epi16(is_odd, half_less_one);
    _mm256_add_epi16(_mm256_or_si256(upper, rest), up)
}

/// The magnitudes of what was rounded, at the bit LOW and with garbage below: TOP where they are greater, NAN where
/// it is NaN.
#[inline(always)]
unsafe fn magnitudes<const LOW: i32, const TOP: i16>(rounded: __m256i) -> __m256i {
    let abs = _mm256_and_si256(rounded, _mm256_set1_epi16(i16::MAX));
    let top = _mm256_min_epi16(abs, _mm256_set1_epi16(((TOP + 1) << LOW) - 1));
    if TOP == NAN {
        return top;
    }
    // Infinity became 0x7f80 and garbage.
    let is_nan = _mm256_cmpgt_epi16(abs, _mm256_set1_epi16(0x7f80 | ((1 << LOW) - 1)));
    _mm256_or_si256(top, _mm256_and_si256(is_nan, _mm256_set1_epi16(NAN << LOW)))
}
