//! Packs of bfloat16 in AVX-512 registers, narrowed by the processor's own instruction.
//!
//! `vcvtne2ps2bf16` takes subnormals for zero and keeps what a NaN carries. One instruction tells whether a register has
//! either; those packs, of which there hardly ever is one, are rounded by integer arithmetic, so that the bits are those
//! of every other processor.
//!
//! Other types gain nothing from wider registers: f32 waits for the second-level cache, and conversions of f16 take as
//! long an element.
#![allow(unsafe_op_in_unsafe_fn)] // every operation here rests on the one promise of `Pack` and `Numeric`

use std::arch::x86_64::*;

use super::pack::{Numeric, Pack, vectors};

/// The features that these packs need.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bf16")
}

/// 16 × `N` accumulators of type f32.
#[derive(Clone, Copy)]
pub(super) struct Singles<const N: usize>([__m512; N]);

#[inline(always)]
unsafe fn int(bits: u32) -> __m512i {
    _mm512_set1_epi32(bits.cast_signed())
}

/// Replaces NaN by the one NaN.
#[inline(always)]
unsafe fn canonical(x: __m512) -> __m512 {
    let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    _mm512_mask_mov_ps(x, is_nan, _mm512_castsi512_ps(int(0x7fc0_0000)))
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

impl<const N: usize> Numeric for Singles<N> {
    // As in `avx2`: both orders of the operands together tell NaN and zeros of unlike sign.
    lanewise! {
        add: |a, b| _mm512_add_ps(a, b);
        multiply: |a, b| _mm512_mul_ps(a, b);
        min: |a, b| _mm512_or_ps(_mm512_min_ps(a, b), _mm512_min_ps(b, a));
        max: |a, b| {
            let greatest = _mm512_and_ps(_mm512_max_ps(a, b), _mm512_max_ps(b, a));
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, b);
            _mm512_mask_mov_ps(greatest, is_nan, _mm512_castsi512_ps(int(u32::MAX)))
        };
    }

    #[inline(always)]
    unsafe fn divide(mut self, by: u64) -> Self {
        let by = _mm512_set1_ps(by as f32);
        for i in 0..N {
            self.0[i] = _mm512_div_ps(self.0[i], by);
        }
        self
    }

    #[inline(always)]
    unsafe fn scale(mut self, by: f64) -> Self {
        let by = _mm512_set1_ps(by as f32);
        for i in 0..N {
            self.0[i] = _mm512_mul_ps(self.0[i], by);
        }
        self
    }
}

/// bfloat16. Of the two registers of a vector, the first holds the elements of even index, the second those of odd
/// index: a shift and a mask widen them.
pub(super) struct BF16;

/// The lanes of odd index among 32 of 16 bits.
const ODD: __mmask32 = 0xaaaa_aaaa;

/// Where 16 elements of even index and then 16 of odd index belong.
const IN_ORDER: [u16; 32] = {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 32 {
        order[i] = (i / 2 + i % 2 * 16) as u16;
        i += 1;
    }
    order
};

/// Rounds by integer arithmetic.
#[inline(always)]
unsafe fn round([even, odd]: [__m512; 2]) -> __m512i {
    let (even, odd) = (_mm512_castps_si512(canonical(even)), _mm512_castps_si512(canonical(odd)));
    let upper = _mm512_mask_mov_epi16(_mm512_srli_epi32::<16>(even), ODD, odd);
    let lower = _mm512_mask_mov_epi16(even, ODD, _mm512_slli_epi32::<16>(odd));
    // What is cut off is more than half, or half of an odd number, if its uppermost bit is set after 1 was taken from it
    // where the number is even.
    let is_even = _mm512_andnot_si512(upper, _mm512_set1_epi16(1));
    let up = _mm512_srli_epi16::<15>(_mm512_subs_epu16(lower, is_even));
    _mm512_add_epi16(upper, up)
}

impl Pack for BF16 {
    type Vector = Singles<2>;
    vectors!(2);
    const LANES: usize = 32;
    const SIZE: usize = 2;
    const WIDE: usize = 4;

    #[inline(always)]
    unsafe fn ahead(src: *const u8) {
        for line in [0, 64] {
            _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(512 + line).cast());
        }
    }

    #[inline(always)]
    unsafe fn load(src: *const u8) -> Singles<2> {
        let both = _mm512_loadu_si512(src.cast());
        let (even, odd) = (_mm512_slli_epi32::<16>(both), _mm512_and_si512(both, int(0xffff_0000)));
        Singles([_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd)])
    }

    #[inline(always)]
    unsafe fn store(dst: *mut u8, pack: Self::Pack) {
        /// Quiet NaN, subnormal, signalling NaN.
        const SPECIAL: i32 = 1 << 0 | 1 << 5 | 1 << 7;
        let mut special = 0;
        for v in pack {
            for x in v.0 {
                special |= _mm512_fpclass_ps_mask::<SPECIAL>(x);
            }
        }
        if special != 0 {
            std::hint::cold_path();
            for i in 0..2 {
                _mm512_storeu_si512(dst.wrapping_add(64 * i).cast(), round(pack[i].0));
            }
            return;
        }
        let order = _mm512_loadu_si512(IN_ORDER.as_ptr().cast());
        for i in 0..2 {
            let [even, odd] = pack[i].0;
            let rounded: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(odd, even));
            _mm512_storeu_si512(dst.wrapping_add(64 * i).cast(), _mm512_permutexvar_epi16(order, rounded));
        }
    }

    #[inline(always)]
    unsafe fn load_wide(src: *const u8) -> Singles<2> {
        let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        let odd = _mm512_add_epi32(even, int(1));
        let (first, second) = (_mm512_loadu_ps(src.cast()), _mm512_loadu_ps(src.wrapping_add(64).cast()));
        Singles([_mm512_permutex2var_ps(first, even, second), _mm512_permutex2var_ps(first, odd, second)])
    }

    #[inline(always)]
    unsafe fn store_wide(dst: *mut u8, pack: Self::Pack) {
        let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        let high = _mm512_add_epi32(low, int(8));
        for i in 0..2 {
            let [even, odd] = pack[i].0;
            let (even, odd) = (canonical(even), canonical(odd));
            let dst = dst.wrapping_add(128 * i);
            _mm512_storeu_ps(dst.cast(), _mm512_permutex2var_ps(even, low, odd));
            _mm512_storeu_ps(dst.wrapping_add(64).cast(), _mm512_permutex2var_ps(even, high, odd));
        }
    }
}
