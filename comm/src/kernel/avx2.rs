//! Packs of floats in AVX registers, with F16C for f16 and integer arithmetic for bfloat16 and fp8.
//!
//! Packs are long enough for the search for NaN to be spread over many elements, and for the instructions of one
//! element to fill the gaps that those of another leave.
//!
//! `vcvtneps2bf16` is not used, although it is faster: it takes subnormals for zero.
//!
//! The functions are inlined into functions of `table` that enable AVX2, F16C and FMA. They carry no such attribute
//! themselves since methods of a trait may not.
#![allow(unsafe_op_in_unsafe_fn)] // every operation here rests on the one promise of `Pack` and `Numeric`

use std::arch::x86_64::*;

use super::evaluate::Stream;
use super::pack::{Numeric, Pack, vectors};

/// The features that these packs need.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") && is_x86_feature_detected!("fma")
}

/// Stores of AVX registers past the caches.
pub(super) struct Registers;

impl Stream for Registers {
    const REGISTER: usize = size_of::<__m256i>();

    #[inline(always)]
    unsafe fn store(from: *const u8, to: *mut u8, bytes: usize) {
        for at in (0..bytes).step_by(Self::REGISTER) {
            let register = _mm256_loadu_si256(from.wrapping_add(at).cast());
            _mm256_stream_si256(to.wrapping_add(at).cast(), register);
        }
    }
}

/// 8 × `N` accumulators of type f32. `MULTIPLIERS`: whether they take a part in additions.
#[derive(Clone, Copy)]
pub(super) struct Singles<const N: usize, const MULTIPLIERS: bool = false>(pub(super) [__m256; N]);

/// Replaces NaN by the one NaN. A branch costs less than blending: there hardly ever is one.
#[inline(always)]
unsafe fn canonical<const N: usize, const M: usize, const MULTIPLIERS: bool>(
    mut pack: [Singles<N, MULTIPLIERS>; M],
) -> [Singles<N, MULTIPLIERS>; M] {
    const { assert!(N.is_multiple_of(2)) }
    let mut any = _mm256_setzero_ps();
    for v in 0..M {
        // A comparison of two different registers tells whether either has a NaN.
        for i in (0..N).step_by(2) {
            let unordered = _mm256_cmp_ps::<_CMP_UNORD_Q>(pack[v].0[i], pack[v].0[i + 1]);
            any = if v == 0 && i == 0 { unordered } else { _mm256_or_ps(any, unordered) };
        }
    }
    if _mm256_movemask_ps(any) != 0 {
        std::hint::cold_path();
        for v in 0..M {
            for i in 0..N {
                let x = pack[v].0[i];
                let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x);
                pack[v].0[i] = _mm256_blendv_ps(x, bits(0x7fc0_0000), is_nan);
            }
        }
    }
    pack
}

impl<const N: usize, const MULTIPLIERS: bool> Singles<N, MULTIPLIERS> {
    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self {
        let src: *const f32 = src.cast();
        let mut out = [_mm256_setzero_ps(); N];
        for i in 0..N {
            out[i] = _mm256_loadu_ps(src.wrapping_add(8 * i));
        }
        Singles(out)
    }
}

/// Writes accumulators that are in order.
#[inline(always)]
unsafe fn store_singles<const N: usize, const M: usize, const MULTIPLIERS: bool>(
    dst: *mut u8,
    pack: [Singles<N, MULTIPLIERS>; M],
) {
    let (dst, pack): (*mut f32, _) = (dst.cast(), canonical(pack));
    for v in 0..M {
        for i in 0..N {
            _mm256_storeu_ps(dst.wrapping_add(8 * (N * v + i)), pack[v].0[i]);
        }
    }
}

#[inline(always)]
pub(super) unsafe fn int(bits: u32) -> __m256i {
    _mm256_set1_epi32(bits.cast_signed())
}

#[inline(always)]
unsafe fn bits(bits: u32) -> __m256 {
    _mm256_castsi256_ps(int(bits))
}

macro_rules! lanewise {
    ($($name:ident: |$a:ident, $b:ident| $result:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name(mut self, other: Self) -> Self {
            for i in 0..N {
                let ($a, $b) = (self.0[i], other.0[i]);
                self.0[i] = $result;
            }
            self
        }
    )*};
}

impl<const N: usize, const MULTIPLIERS: bool> Numeric for Singles<N, MULTIPLIERS> {
    // `vminps` and `vmaxps` give the second operand for NaN and for zeros of unlike sign; both orders together tell.
    // The minimum of a NaN and a number is their bits or-ed, still a NaN; the maximum is set to all ones, a NaN too.
    lanewise! {
        add: |a, b| _mm256_add_ps(a, b);
        multiply: |a, b| _mm256_mul_ps(a, b);
        min: |a, b| _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a));
        max: |a, b| _mm256_or_ps(
            _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a)),
            _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b),
        );
    }

    /// a × 1 + b has the same bits as a + b, up to which NaN it is.
    #[inline(always)]
    unsafe fn add_product(mut self, other: Self, one: f32) -> Self {
        if !MULTIPLIERS {
            return self.add(other);
        }
        let one = _mm256_set1_ps(one);
        for i in 0..N {
            let (a, b) = (self.0[i], other.0[i]);
            self.0[i] = if i % 2 == 0 { _mm256_add_ps(a, b) } else { _mm256_fmadd_ps(a, one, b) };
        }
        self
    }

    #[inline(always)]
    unsafe fn divide(mut self, by: u64) -> Self {
        let by = _mm256_set1_ps(by as f32);
        for i in 0..N {
            self.0[i] = _mm256_div_ps(self.0[i], by);
        }
        self
    }

    #[inline(always)]
    unsafe fn scale(mut self, by: f64) -> Self {
        let by = _mm256_set1_ps(by as f32);
        for i in 0..N {
            self.0[i] = _mm256_mul_ps(self.0[i], by);
        }
        self
    }
}

/// Reading and writing accumulators in order.
macro_rules! wide_in_order {
    () => {
        #[inline(always)]
        unsafe fn load_wide(src: *const u8) -> Self::Vector {
            Singles::load(src)
        }

        #[inline(always)]
        unsafe fn store_wide(dst: *mut u8, pack: Self::Pack) {
            store_singles(dst, pack)
        }
    };
}

/// f32.
pub(super) struct F32;

impl Pack for F32 {
    type Vector = Singles<2>;
    vectors!(2);
    const LANES: usize = 16;
    const SIZE: usize = 4;
    const WIDE: usize = 4;

    #[inline(always)]
    unsafe fn load(src: *const u8) -> Singles<2> {
        Singles::load(src)
    }

    #[inline(always)]
    unsafe fn store(dst: *mut u8, pack: Self::Pack) {
        store_singles(dst, pack)
    }

    wide_in_order!();
}

/// Asks for the two cache lines of the pack four packs on, of 16-bit elements.
macro_rules! lines_ahead {
    () => {
        #[inline(always)]
        unsafe fn ahead(src: *const u8) {
            for line in [0, 64] {
                _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(512 + line).cast());
            }
        }
    };
}

/// f16. Conversions are most of the work. They share their execution units with the adders (AMD Zen 3), so
/// multipliers help to add.
pub(super) struct F16;

impl Pack for F16 {
    type Vector = Singles<2, true>;
    vectors!(4);
    lines_ahead!();
    const LANES: usize = 16;
    const SIZE: usize = 2;
    const WIDE: usize = 4;

    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self::Vector {
        let (low, high) = (_mm_loadu_si128(src.cast()), _mm_loadu_si128(src.wrapping_add(16).cast()));
        Singles([_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)])
    }

    #[inline(always)]
    unsafe fn store(dst: *mut u8, pack: Self::Pack) {
        let pack = canonical(pack);
        for i in 0..4 {
            for j in 0..2 {
                let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(pack[i].0[j]);
                _mm_storeu_si128(dst.wrapping_add(32 * i + 16 * j).cast(), rounded);
            }
        }
    }

    wide_in_order!();
}

/// bfloat16. Of the two registers of a vector, the first holds the elements of even index, the second those of odd
/// index. Widening and narrowing then take a shift, a mask and a blend.
pub(super) struct BF16;

/// The upper and the lower halves of the lanes of `even` and `odd`, in the order of the elements.
#[inline(always)]
pub(super) unsafe fn halves(even: __m256, odd: __m256) -> (__m256i, __m256i) {
    let (even, odd) = (_mm256_castps_si256(even), _mm256_castps_si256(odd));
    let upper = _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(even), odd);
    let lower = _mm256_blend_epi16::<0b1010_1010>(even, _mm256_slli_epi32::<16>(odd));
    (upper, lower)
}

/// Lanes of f32 from their upper halves: those of even index, and those of odd index.
#[inline(always)]
pub(super) unsafe fn from_upper_halves(both: __m256i) -> [__m256; 2] {
    let even = _mm256_slli_epi32::<16>(both);
    let odd = _mm256_and_si256(both, int(0xffff_0000));
    [_mm256_castsi256_ps(even), _mm256_castsi256_ps(odd)]
}

impl Pack for BF16 {
    type Vector = Singles<2>;
    vectors!(4);
    lines_ahead!();
    const LANES: usize = 16;
    const SIZE: usize = 2;
    const WIDE: usize = 4;

    #[inline(always)]
    unsafe fn load(src: *const u8) -> Singles<2> {
        Singles(from_upper_halves(_mm256_loadu_si256(src.cast())))
    }

    #[inline(always)]
    unsafe fn store(dst: *mut u8, pack: Self::Pack) {
        let pack = canonical(pack);
        for i in 0..4 {
            let (upper, lower) = halves(pack[i].0[0], pack[i].0[1]);
            // Sixteen at once: what is cut off is more than half, or half of an odd number, if its uppermost bit is
            // set after 1 was taken from it where the number is even.
            let even = _mm256_andnot_si256(upper, _mm256_set1_epi16(1));
            let up = _mm256_srli_epi16::<15>(_mm256_subs_epu16(lower, even));
            _mm256_storeu_si256(dst.wrapping_add(32 * i).cast(), _mm256_add_epi16(upper, up));
        }
    }

    #[inline(always)]
    unsafe fn load_wide(src: *const u8) -> Singles<2> {
        let Singles([a, b]): Self::Vector = Singles::load(src); // 0…7, 8…15
        let low = _mm256_permute2f128_ps::<0x20>(a, b); // 0…3, 8…11
        let high = _mm256_permute2f128_ps::<0x31>(a, b); // 4…7, 12…15
        let even = _mm256_shuffle_ps::<0b10_00_10_00>(low, high);
        Singles([even, _mm256_shuffle_ps::<0b11_01_11_01>(low, high)])
    }

    #[inline(always)]
    unsafe fn store_wide(dst: *mut u8, mut pack: Self::Pack) {
        for v in &mut pack {
            let Singles([even, odd]) = *v;
            let low = _mm256_unpacklo_ps(even, odd); // 0…3, 8…11
            let high = _mm256_unpackhi_ps(even, odd); // 4…7, 12…15
            let first = _mm256_permute2f128_ps::<0x20>(low, high);
            *v = Singles([first, _mm256_permute2f128_ps::<0x31>(low, high)]);
        }
        store_singles(dst, pack)
    }
}

/// The magnitudes of `v`, rounded to a float with `EXPONENT` and `MANTISSA` bits (and `DROP` = 23 − `MANTISSA`), as
/// [`crate::number`] does it: overflow goes on into the exponents above.
#[inline(always)]
unsafe fn round_magnitude<const EXPONENT: u32, const MANTISSA: u32, const DROP: i32>(
    abs: __m256i,
) -> __m256i {
    let bias = (1 << (EXPONENT - 1)) - 1;
    let magic = (127 - bias + 23 - MANTISSA + 1) << 23;
    let sum = _mm256_add_ps(_mm256_castsi256_ps(abs), bits(magic));
    let subnormal = _mm256_sub_epi32(_mm256_castps_si256(sum), int(magic));
    let odd = _mm256_and_si256(_mm256_srli_epi32::<DROP>(abs), int(1));
    let offset = ((1u32 << (DROP - 1)) - 1).wrapping_sub((127 - bias) << 23);
    let normal = _mm256_srli_epi32::<DROP>(_mm256_add_epi32(_mm256_add_epi32(abs, int(offset)), odd));
    let is_normal = _mm256_cmpgt_epi32(abs, int(((128 - bias) << 23) - 1));
    _mm256_blendv_epi8(subnormal, normal, is_normal)
}

#[inline(always)]
unsafe fn magnitude(v: __m256) -> __m256i {
    _mm256_and_si256(_mm256_castps_si256(v), int(0x7fff_ffff))
}

/// Writes the lowest byte of each lane (the others are zero), with the sign of `v` unless the magnitude is `nan`.
#[inline(always)]
unsafe fn store_bytes(dst: *mut u8, v: [__m256; 4], magnitudes: [__m256i; 4], nan: u8) {
    // Lanes become 16 and then 8 bits, in an order that one permutation puts right.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let [a, b, c, d] = magnitudes;
    let magnitudes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    // Signs are packed with signed saturation: only the uppermost bit of a byte matters.
    let [a, b, c, d] = v;
    let ab = _mm256_packs_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b));
    let cd = _mm256_packs_epi32(_mm256_castps_si256(c), _mm256_castps_si256(d));
    let signs = _mm256_and_si256(_mm256_packs_epi16(ab, cd), _mm256_set1_epi8(i8::MIN));
    let is_nan = _mm256_cmpeq_epi8(magnitudes, _mm256_set1_epi8(nan.cast_signed()));
    let signed = _mm256_or_si256(magnitudes, _mm256_andnot_si256(is_nan, signs));
    _mm256_storeu_si256(dst.cast(), _mm256_permutevar8x32_epi32(signed, order));
}

/// fp8 with 4 bits of exponent.
pub(super) struct F8E4M3;

impl Pack for F8E4M3 {
    type Vector = Singles<4>;
    vectors!(1);
    const LANES: usize = 32;
    const SIZE: usize = 1;
    const WIDE: usize = 4;

    #[inline(always)]
    unsafe fn load(src: *const u8) -> Singles<4> {
        let mut out = [_mm256_setzero_ps(); 4];
        for i in 0..2 {
            let x = _mm256_cvtepi8_epi16(_mm_loadu_si128(src.wrapping_add(16 * i).cast()));
            // As an f16 the same fields mean 2^-8 of the value, subnormals included.
            let abs = _mm256_and_si256(_mm256_slli_epi16::<7>(x), _mm256_set1_epi16(0x3f80));
            let sign = _mm256_and_si256(x, _mm256_set1_epi16(i16::MIN));
            let is_nan = _mm256_cmpeq_epi16(abs, _mm256_set1_epi16(0x3f80));
            let nan = _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00));
            let half = _mm256_or_si256(_mm256_or_si256(abs, sign), nan);
            let (low, high) = (_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
            out[2 * i] = _mm256_mul_ps(_mm256_cvtph_ps(low), _mm256_set1_ps(256.0));
            out[2 * i + 1] = _mm256_mul_ps(_mm256_cvtph_ps(high), _mm256_set1_ps(256.0));
        }
        Singles(out)
    }

    #[inline(always)]
    unsafe fn store(dst: *mut u8, [v]: [Singles<4>; 1]) {
        // Beyond 448 come NaN, infinity and what overflows: all are cut off to NaN.
        let mut rounded = [_mm256_setzero_si256(); 4];
        for i in 0..4 {
            rounded[i] = _mm256_min_epu32(round_magnitude::<4, 3, 20>(magnitude(v.0[i])), int(0x7f));
        }
        store_bytes(dst, v.0, rounded, 0x7f);
    }

    wide_in_order!();
}

/// fp8 with 5 bits of exponent: the upper byte of an f16.
pub(super) struct F8E5M2;

impl Pack for F8E5M2 {
    type Vector = Singles<4>;
    vectors!(1);
    const LANES: usize = 32;
    const SIZE: usize = 1;
    const WIDE: usize = 4;

    #[inline(always)]
    unsafe fn load(src: *const u8) -> Singles<4> {
        let mut out = [_mm256_setzero_ps(); 4];
        for i in 0..2 {
            let x = _mm_loadu_si128(src.wrapping_add(16 * i).cast());
            out[2 * i] = _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), x));
            out[2 * i + 1] = _mm256_cvtph_ps(_mm_unpackhi_epi8(_mm_setzero_si128(), x));
        }
        Singles(out)
    }

    #[inline(always)]
    unsafe fn store(dst: *mut u8, [v]: [Singles<4>; 1]) {
        let mut rounded = [_mm256_setzero_si256(); 4];
        for i in 0..4 {
            let abs = magnitude(v.0[i]);
            let finite = _mm256_min_epu32(round_magnitude::<5, 2, 21>(abs), int(0x7c));
            // NaN: 0x7c | 3.
            let is_nan = _mm256_cmpgt_epi32(abs, int(0x7f80_0000));
            rounded[i] = _mm256_or_si256(finite, _mm256_and_si256(is_nan, int(3)));
        }
        store_bytes(dst, v.0, rounded, 0x7f);
    }

    wide_in_order!();
}
