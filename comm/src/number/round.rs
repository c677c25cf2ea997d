//! Rounding an f32 to a shorter float, to nearest even with subnormals, without branches (so that loops over it
//! vectorise) and without asking the processor: the result does not depend on the machine.

/// The magnitude bits of a float with `EXPONENT` and `MANTISSA` bits that is nearest to the magnitude with the f32
/// bits `abs` (sign clear). Overflow goes on into the exponents above the format's own; the caller caps it. NaN and
/// infinity give something at or above the overflow.
#[inline(always)]
pub(super) fn round_magnitude<const EXPONENT: u32, const MANTISSA: u32>(abs: u32) -> u32 {
    let (bias, drop) = ((1 << (EXPONENT - 1)) - 1, 23 - MANTISSA);
    // Subnormal results: adding 2^k, of which the last mantissa bit weighs as much as the format's smallest
    // subnormal, leaves the rounded value in the mantissa. The exponent field of 2^k:
    let magic: u32 = (127 - bias + drop + 1) << 23;
    let subnormal = (f32::from_bits(abs) + f32::from_bits(magic)).to_bits().wrapping_sub(magic);
    // Normal results: half of what is dropped, less one, plus the bit that remains last; then move the bias.
    let odd = (abs >> drop) & 1;
    let half_less_one = (1 << (drop - 1)) - 1;
    let normal = abs.wrapping_add(half_less_one + odd).wrapping_sub((127 - bias) << 23) >> drop;
    if abs < (128 - bias) << 23 { subnormal } else { normal }
}

/// The bits of the nearest f16. NaN stays NaN: quiet, with its sign and the upper bits of its payload.
#[inline(always)]
pub fn f16_from_f32(x: f32) -> u16 {
    let (abs, sign) = (x.to_bits() & 0x7fff_ffff, (x.to_bits() >> 16) & 0x8000);
    let finite = round_magnitude::<5, 10>(abs).min(0x7c00);
    let nan = 0x7e00 | (abs >> 13) & 0x3ff;
    (sign | if abs > 0x7f80_0000 { nan } else { finite }) as u16
}

/// The exact value of an f16 given by its bits. NaN becomes quiet and keeps sign and payload.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let (abs, sign) = (u32::from(bits & 0x7fff), u32::from(bits & 0x8000) << 16);
    // A subnormal is an integer times 2^-24; both are exact in f32.
    let subnormal = (abs as f32 * f32::from_bits(0x3380_0000)).to_bits();
    let normal = (abs << 13).wrapping_add((127 - 15) << 23);
    let special = abs << 13 | 0x7f80_0000 | if abs > 0x7c00 { 0x0040_0000 } else { 0 };
    let magnitude = if abs < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | if abs >= 0x7c00 { special } else { magnitude })
}

/// The bits of the nearest bfloat16. NaN stays NaN: quiet, with its sign and the upper bits of its payload.
#[inline(always)]
pub fn bf16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    (if x.is_nan() { bits >> 16 | 0x0040 } else { rounded }) as u16
}

/// The exact value of a bfloat16 given by its bits.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// Every value of a 16-bit format, the points midway between neighbours, and what lies just beside both.
    fn probes(to_f32: fn(u16) -> f32) -> impl Iterator<Item = f32> {
        (0..=u16::MAX).flat_map(move |bits| {
            let (x, next) = (to_f32(bits), to_f32(bits.wrapping_add(1)));
            let middle = ((f64::from(x) + f64::from(next)) / 2.0) as f32;
            let beside = |x: f32| [-1i32, 0, 1].map(|d| f32::from_bits(x.to_bits().wrapping_add_signed(d)));
            [beside(x), beside(middle)].into_iter().flatten()
        })
    }

    #[test]
    fn f16_agrees_with_half() {
        for bits in 0..=u16::MAX {
            let theirs = f16::from_bits(bits).to_f32();
            assert_eq!(f16_to_f32(bits).to_bits(), theirs.to_bits(), "{bits:04x}");
        }
        for x in probes(f16_to_f32) {
            assert_eq!(f16_from_f32(x), f16::from_f32(x).to_bits(), "{x:e} {:08x}", x.to_bits());
        }
    }

    #[test]
    fn bf16_agrees_with_half() {
        for bits in 0..=u16::MAX {
            let theirs = bf16::from_bits(bits).to_f32();
            assert!(bf16_to_f32(bits).to_bits() == theirs.to_bits() || theirs.is_nan(), "{bits:04x}");
            assert_eq!(bf16_to_f32(bits).is_nan(), theirs.is_nan(), "{bits:04x}");
        }
        for x in probes(bf16_to_f32) {
            assert_eq!(bf16_from_f32(x), bf16::from_f32(x).to_bits(), "{x:e} {:08x}", x.to_bits());
        }
    }
}
