//! Sums of f64 without rounding. *Pure.*
//!
//! A sum is held as an integer in units of the smallest f64, spread over limbs of 32 bits in words of 64, so that limbs of
//! many sums can be added without carrying: adding the limbs of all ranks adds their sums. (Kulisch's long accumulator.)

/// The exponent of the unit: 2^-1074, the smallest f64.
const UNIT: i32 = -1074;
/// Bits of a limb.
const BITS: usize = 32;
/// Limbs for all finite f64 (2,098 bits), and for 2^62 of them on top.
const LIMBS: usize = 68;

/// A sum of f64 that are not negative. Limbs hold less than 2^32 each between calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exact {
    limbs: [i64; LIMBS],
    /// Additions since carries were last passed on.
    added: u32,
    /// Addends that were no finite numbers.
    strange: i64,
}

impl Default for Exact {
    fn default() -> Exact {
        Exact { limbs: [0; LIMBS], added: 0, strange: 0 }
    }
}

impl Exact {
    /// Length of [`Exact::to_words`].
    pub const WORDS: usize = LIMBS + 1;

    /// Adds a number that is not negative. Infinity and NaN are counted, and make the sum NaN.
    pub fn add(&mut self, value: f64) {
        if !value.is_finite() {
            self.strange += 1;
            return;
        }
        let bits = value.to_bits();
        let (exponent, fraction) = ((bits >> 52) as usize & 0x7ff, bits & ((1 << 52) - 1));
        // A subnormal number has the exponent of the smallest normal one, and no hidden bit.
        let (place, mantissa) =
            if exponent == 0 { (0, fraction) } else { (exponent - 1, fraction | 1 << 52) };
        let shifted = u128::from(mantissa) << (place % BITS);
        for (limb, at) in self.limbs[place / BITS..].iter_mut().zip([0, BITS, 2 * BITS]) {
            *limb += (shifted >> at) as u32 as i64;
        }
        self.added += 1;
        if self.added == 1 << 30 {
            self.carry();
        }
    }

    /// The sum as words that may be added to those of other sums, word by word, of up to 2^30 of them.
    pub fn to_words(mut self) -> [i64; Exact::WORDS] {
        self.carry();
        let mut words = [0; Exact::WORDS];
        words[..LIMBS].copy_from_slice(&self.limbs);
        words[LIMBS] = self.strange;
        words
    }

    /// The sum of the sums whose words were added up to these.
    pub fn from_words(words: [i64; Exact::WORDS]) -> Exact {
        let mut sum = Exact { strange: words[LIMBS], ..Exact::default() };
        sum.limbs.copy_from_slice(&words[..LIMBS]);
        sum.carry();
        sum
    }

    /// The sum, rounded once to the nearest f64; NaN if an addend was infinite or NaN.
    pub fn value(&self) -> f64 {
        if self.strange != 0 {
            return f64::NAN;
        }
        let mut sum = self.clone();
        sum.carry();
        let Some(top) = sum.limbs.iter().rposition(|&limb| limb != 0) else { return 0.0 };
        // 65 to 96 bits are more than the 53 that stay; whether anything lies below decides between two neighbours.
        let low = top.saturating_sub(2);
        let head = sum.limbs[low..=top].iter().rev().fold(0u128, |all, &limb| all << BITS | limb as u128);
        let rest = u128::from(sum.limbs[..low].iter().any(|&limb| limb != 0));
        // Twice, as 2^-1074 times less than 2^1022 is still a number, and a greater factor may not be.
        let exponent = UNIT + (low * BITS) as i32;
        (head | rest) as f64 * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2)
    }

    fn carry(&mut self) {
        let mut carry = 0;
        for limb in &mut self.limbs {
            let all = *limb + carry;
            *limb = all & 0xffff_ffff;
            carry = all >> BITS;
        }
        self.added = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(values: &[f64]) -> f64 {
        let mut all = Exact::default();
        values.iter().for_each(|&v| all.add(v));
        all.value()
    }

    #[test]
    fn nothing_is_lost_beside_something_great() {
        let mut values = vec![1e300];
        values.extend([1.0; 1000]);
        let mut all = Exact::default();
        values.iter().for_each(|&v| all.add(v));
        let mut great = Exact::default();
        great.add(1e300);
        assert_ne!(all, great);
        assert_eq!(sum(&values), 1e300);
        assert_eq!(sum(&[0.1; 10]), 1.0);
        // Below the last bit of 1, and more than half of it.
        assert_eq!(sum(&[1.0, f64::EPSILON / 2.0, f64::MIN_POSITIVE]), 1.0 + f64::EPSILON);
        assert_eq!(sum(&[1.0, f64::EPSILON / 2.0]), 1.0);
    }

    #[test]
    fn ends_of_the_range() {
        for value in [0.0, 5e-324, f64::MIN_POSITIVE, 1.0, f64::MAX] {
            assert_eq!(sum(&[value]), value);
        }
        assert_eq!(sum(&[f64::MAX, f64::MAX]), f64::INFINITY);
        assert!(sum(&[1.0, f64::INFINITY]).is_nan() && sum(&[f64::NAN]).is_nan());
    }

    proptest! {
        #[test]
        fn order_and_division_do_not_matter(
            mut values in prop::collection::vec(prop::num::f64::POSITIVE | prop::num::f64::SUBNORMAL, 1..40),
            cut in 0usize..40,
        ) {
            let values_of = |v: &f64| v.abs() * 1e-10;
            values = values.iter().map(values_of).collect();
            let whole = sum(&values);
            let cut = cut.min(values.len());
            let parts = [&values[..cut], &values[cut..]].map(|part| {
                let mut all = Exact::default();
                part.iter().rev().for_each(|&v| all.add(v));
                all.to_words()
            });
            let mut words = parts[0];
            words.iter_mut().zip(parts[1]).for_each(|(a, b)| *a += b);
            prop_assert_eq!(Exact::from_words(words).value().to_bits(), whole.to_bits());
        }

        #[test]
        fn as_integers_add(values in prop::collection::vec(0u64..1 << 53, 0..50)) {
            let exact: u128 = values.iter().map(|&v| u128::from(v)).sum();
            let floats: Vec<f64> = values.iter().map(|&v| v as f64).collect();
            prop_assert_eq!(sum(&floats), exact as f64);
        }
    }
}
