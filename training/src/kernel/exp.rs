//! A row's largest element, its exponentials and their sum: most of the time of a softmax that is not products.
//!
//! Additions and multiplications alone, in an order that does not depend on the processor, so that its vectors do the
//! work and every machine gets the same bits.
#![allow(unsafe_code)] // chooses a function by what the processor has

/// How many sums and maxima are kept beside each other: two vectors of eight.
const LANES: usize = 16;

pub(super) fn largest_f32(row: &[f32]) -> f32 {
    let mut largest = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (largest, &x) in largest.iter_mut().zip(chunk) {
            *largest = if x > *largest { x } else { *largest };
        }
    }
    largest.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
}

pub(super) fn largest_f64(row: &[f64]) -> f64 {
    row.iter().fold(f64::NEG_INFINITY, |a, &b| if b > a { b } else { a })
}

pub(super) fn exponentials_f64(row: &mut [f64], shift: f64) -> f64 {
    let mut sum = 0.0;
    for x in row {
        *x = (*x - shift).exp();
        sum += *x;
    }
    sum
}

pub(super) fn exponentials_f32(row: &mut [f32], shift: f32) -> f32 {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn in_vectors_of_eight(row: &mut [f32], shift: f32) -> f32 {
            exponentials(row, shift)
        }

        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has it.
            return unsafe { in_vectors_of_eight(row, shift) };
        }
    }
    exponentials(row, shift)
}

#[inline(always)]
fn exponentials(row: &mut [f32], shift: f32) -> f32 {
    let mut sums = [0.0; LANES];
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for (x, sum) in chunk.iter_mut().zip(&mut sums) {
            *x = exp(*x - shift);
            *sum += *x;
        }
    }
    for (x, sum) in rest.iter_mut().zip(&mut sums) {
        *x = exp(*x - shift);
        *sum += *x;
    }
    sums.iter().sum()
}

/// Powers of two times a polynomial of what is left, which is at most half of ln 2 in size: there Taylor's polynomial of
/// degree 7 is off by 5e-9. Arguments are at most 88, which a difference from the largest of a row is by far; results
/// below the least normal number are 0.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// 1.5 · 2²³: added to a number, it leaves the nearest integer in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts, of which the first has so few bits that its products with integers are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    const LEAST: f32 = -87.0;

    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (x - n * LN_2[0]) - n * LN_2[1];
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x < LEAST { 0.0 } else { p * power }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_right_to_two_units_in_the_last_place() {
        let arguments: Vec<f32> = (0..200_003).map(|i| i as f32 * -0.000_45).collect();
        for arguments in arguments.chunks(1000) {
            let mut row = arguments.to_vec();
            let sum = f64::from(exponentials_f32(&mut row, 1.5));
            let mut expected = 0.0;
            for (x, y) in arguments.iter().zip(&row) {
                let exact = f64::from(x - 1.5).exp();
                expected += f64::from(*y);
                if x - 1.5 < -87.0 {
                    assert_eq!(*y, 0.0, "{x}");
                } else {
                    assert!((f64::from(*y) / exact - 1.0).abs() < 2.4e-7, "{x}: {y} for {exact}");
                }
            }
            assert!((sum - expected).abs() <= 1e-6 * expected, "{sum} for {expected}");
        }
    }

    #[test]
    fn what_is_no_number_stays_none_and_minus_infinity_gives_nothing() {
        let mut row = [0.0, f32::NEG_INFINITY];
        assert_eq!(exponentials_f32(&mut row, 0.0), 1.0);
        assert_eq!(row, [1.0, 0.0]);
        assert!(exponentials_f32(&mut [0.0, f32::NAN], 0.0).is_nan());
        assert_eq!(largest_f32(&[]), f32::NEG_INFINITY);
        let row: Vec<f32> = (0..100).map(|i| ((i * 37) % 100) as f32).collect();
        assert_eq!(largest_f32(&row), 99.0);
    }

    #[test]
    fn the_bits_are_those_of_a_processor_without_wide_vectors() {
        let row: Vec<f32> = (0..1001).map(|i| (i as f32 * 0.37).sin() * 20.0).collect();
        let (mut a, mut b) = (row.clone(), row);
        assert_eq!(exponentials_f32(&mut a, 20.0), exponentials(&mut b, 20.0));
        assert_eq!(a, b);
    }
}
