//! The 8-bit floats of the Open Compute Project's "OCP 8-bit Floating Point Specification (OFP8)", revision 1.0.

use std::cmp::Ordering;
use std::fmt;

use super::f16_to_f32;
use super::round::round_magnitude;

/// 4 bits of exponent (bias 7), 3 of mantissa. No infinities; NaN is `0x7f` and `0xff`; the greatest value is 448.
/// PyTorch's `float8_e4m3fn`.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// 5 bits of exponent (bias 15), 2 of mantissa: the upper byte of an f16. Has infinities; the greatest value is
/// 57344. PyTorch's `float8_e5m2`.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

impl F8E4M3 {
    /// The greatest finite value, 448.
    pub const MAX: F8E4M3 = F8E4M3(0x7e);
    /// The quiet NaN that kernels write.
    pub const NAN: F8E4M3 = F8E4M3(0x7f);

    /// The nearest value, ties to even. What would round beyond 448, infinities and NaN give NaN with their sign.
    #[inline(always)]
    pub fn from_f32(x: f32) -> F8E4M3 {
        let (abs, sign) = (x.to_bits() & 0x7fff_ffff, (x.to_bits() >> 24) & 0x80);
        F8E4M3((sign | round_magnitude::<4, 3>(abs).min(0x7f)) as u8)
    }

    /// The exact value.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let abs = self.0 & 0x7f;
        // As an f16 the same fields mean 2^-8 of the value, subnormals included.
        let magnitude = f16_to_f32(u16::from(abs) << 7) * 256.0;
        let sign = u32::from(self.0 & 0x80) << 24;
        f32::from_bits(sign | if abs == 0x7f { f32::NAN.to_bits() } else { magnitude.to_bits() })
    }

    /// Whether it is NaN.
    pub fn is_nan(self) -> bool {
        self.0 & 0x7f == 0x7f
    }
}

impl F8E5M2 {
    /// The greatest finite value, 57344.
    pub const MAX: F8E5M2 = F8E5M2(0x7b);
    /// Positive infinity.
    pub const INFINITY: F8E5M2 = F8E5M2(0x7c);
    /// The quiet NaN that kernels write.
    pub const NAN: F8E5M2 = F8E5M2(0x7f);

    /// The nearest value, ties to even. What would round beyond 57344 gives infinity; NaN gives NaN with its sign.
    #[inline(always)]
    pub fn from_f32(x: f32) -> F8E5M2 {
        let (abs, sign) = (x.to_bits() & 0x7fff_ffff, (x.to_bits() >> 24) & 0x80);
        let finite = round_magnitude::<5, 2>(abs).min(0x7c);
        F8E5M2((sign | if abs > 0x7f80_0000 { 0x7f } else { finite }) as u8)
    }

    /// The exact value.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        f16_to_f32(u16::from(self.0) << 8)
    }

    /// Whether it is NaN.
    pub fn is_nan(self) -> bool {
        self.0 & 0x7f > 0x7c
    }
}

macro_rules! compare_and_print_as_f32 {
    ($($type:ty),*) => {$(
        impl PartialEq for $type {
            fn eq(&self, other: &$type) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl PartialOrd for $type {
            fn partial_cmp(&self, other: &$type) -> Option<Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }

        impl From<$type> for f32 {
            fn from(x: $type) -> f32 {
                x.to_f32()
            }
        }
    )*};
}

compare_and_print_as_f32!(F8E4M3, F8E5M2);

#[cfg(test)]
mod tests {
    use super::*;

    /// The magnitude with the bits `abs`, from the definition of the format.
    fn by_definition(abs: u8, mantissa: i32, bias: i32) -> f64 {
        let (e, m) = (i32::from(abs >> mantissa), f64::from(abs & ((1 << mantissa) - 1)));
        let fraction = m / f64::from(1 << mantissa);
        if e == 0 { fraction * 2f64.powi(1 - bias) } else { (1.0 + fraction) * 2f64.powi(e - bias) }
    }

    fn signed(bits: u8, magnitude: f64) -> f64 {
        if bits & 0x80 != 0 { -magnitude } else { magnitude }
    }

    #[test]
    fn all_bits_have_the_value_of_the_definition() {
        for bits in 0..=u8::MAX {
            let abs = bits & 0x7f;
            let (e4m3, e5m2) = (F8E4M3(bits).to_f32(), F8E5M2(bits).to_f32());
            if abs == 0x7f {
                assert!(e4m3.is_nan() && F8E4M3(bits).is_nan());
            } else {
                let expected = signed(bits, by_definition(abs, 3, 7)) as f32;
                assert_eq!(e4m3.to_bits(), expected.to_bits(), "{bits:02x}");
            }
            if abs > 0x7c {
                assert!(e5m2.is_nan() && F8E5M2(bits).is_nan());
            } else {
                let expected = if abs == 0x7c { f64::INFINITY } else { by_definition(abs, 2, 15) };
                assert_eq!(e5m2.to_bits(), (signed(bits, expected) as f32).to_bits(), "{bits:02x}");
            }
        }
    }

    /// Rounds by searching all magnitudes: the nearest, of two equally near the even one. `top` is the greatest
    /// finite; above it lies `over`, reached from the point midway to where the next value would be.
    fn by_search(x: f32, mantissa: i32, bias: i32, top: u8, over: u8) -> u8 {
        // Beyond 1e6 all magnitudes would look equally far.
        let (abs, sign) = (f64::from(x).abs().min(1e6), if x.is_sign_negative() { 0x80 } else { 0 });
        let nearest = (0..=top + 1).min_by(|&a, &b| {
            let distance = |bits| (by_definition(bits, mantissa, bias) - abs).abs();
            distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))
        });
        sign | nearest.map_or(over, |bits| if bits > top { over } else { bits })
    }

    #[test]
    fn rounding_is_to_nearest_even_around_every_value() {
        type Format = (fn(f32) -> u8, i32, i32, u8, u8);
        let formats: [Format; 2] =
            [(|x| F8E4M3::from_f32(x).0, 3, 7, 0x7e, 0x7f), (|x| F8E5M2::from_f32(x).0, 2, 15, 0x7b, 0x7c)];
        for (round, mantissa, bias, top, over) in formats {
            let mut probes = vec![f32::MIN_POSITIVE, f32::from_bits(1), f32::MAX, f32::INFINITY, 1e6, 1e-30];
            for bits in 0..=top {
                let (x, next) =
                    (by_definition(bits, mantissa, bias), by_definition(bits + 1, mantissa, bias));
                for at in [x, (x + next) / 2.0, x + (next - x) / 4.0] {
                    let bits = (at as f32).to_bits();
                    probes.extend((-2..=2).filter_map(|d| bits.checked_add_signed(d)).map(f32::from_bits));
                }
            }
            for x in probes.into_iter().flat_map(|x| [x, -x]) {
                let expected = by_search(x, mantissa, bias, top, over);
                assert_eq!(round(x), expected, "{x:e} to e?m{mantissa}");
            }
        }
    }

    #[test]
    fn nan_keeps_its_sign() {
        for bits in [0x7f80_0001u32, 0x7fff_ffff, 0x7fc0_0000] {
            let (x, minus) = (f32::from_bits(bits), f32::from_bits(bits | 0x8000_0000));
            assert_eq!([F8E4M3::from_f32(x).0, F8E4M3::from_f32(minus).0], [0x7f, 0xff]);
            assert_eq!([F8E5M2::from_f32(x).0, F8E5M2::from_f32(minus).0], [0x7f, 0xff]);
        }
    }
}
