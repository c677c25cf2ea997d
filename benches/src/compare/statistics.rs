//! Medians, and ratios of pairs.

use serde::Serialize;

/// A ratio nearer to 1 than this is noise: the same program differs from itself by as much.
pub const NOISE: f64 = 0.1;

/// Times of ours and of another, measured next to each other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// Median of ours, µs.
    pub ours: f64,
    /// Median of the other's, µs.
    pub theirs: f64,
    /// Median of ours over the other's, of the same pair: below 1 ours is faster.
    pub ratio: f64,
    /// The lowest of the ratios,
    pub lowest: f64,
    /// and the highest.
    pub highest: f64,
    /// How many pairs.
    pub pairs: usize,
}

impl Summary {
    /// Of pairs (ours, the other's); none of no pairs.
    pub fn of(pairs: &[(f64, f64)]) -> Option<Summary> {
        let ratios: Vec<f64> = pairs.iter().filter(|p| p.0 > 0.0 && p.1 > 0.0).map(|p| p.0 / p.1).collect();
        Some(Summary {
            ours: median(pairs.iter().map(|p| p.0))?,
            theirs: median(pairs.iter().map(|p| p.1))?,
            ratio: median(ratios.iter().copied())?,
            lowest: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            highest: ratios.iter().copied().fold(0.0, f64::max),
            pairs: ratios.len(),
        })
    }

    /// Whether the ratio says nothing.
    pub fn is_noise(&self) -> bool {
        (1.0 - NOISE..=1.0 + NOISE).contains(&self.ratio)
    }
}

/// The middle one, or the mean of the two in the middle.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn ratios_are_of_pairs() {
        let s = Summary::of(&[(1.0, 2.0), (10.0, 10.0), (3.0, 2.0)]).unwrap();
        assert_eq!((s.ours, s.theirs, s.ratio, s.lowest, s.highest, s.pairs), (3.0, 2.0, 1.0, 0.5, 1.5, 3));
        assert!(s.is_noise());
        assert!(Summary::of(&[]).is_none() && Summary::of(&[(0.0, 1.0)]).is_none());
        let of = |ratio| Summary { ratio, ..s }.is_noise();
        assert!(of(0.91) && of(1.09) && !of(0.89) && !of(1.2));
    }
}
