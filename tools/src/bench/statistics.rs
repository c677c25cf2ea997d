//! Times of single iterations, summed up.

use serde::Serialize;

/// In µs, but for the coefficient of variation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    #[serde(rename = "min_us")]
    pub min: f64,
    #[serde(rename = "max_us")]
    pub max: f64,
    #[serde(rename = "avg_us")]
    pub mean: f64,
    #[serde(rename = "p50_us")]
    pub p50: f64,
    #[serde(rename = "p95_us")]
    pub p95: f64,
    #[serde(rename = "p99_us")]
    pub p99: f64,
    #[serde(rename = "stdev_us")]
    pub deviation: f64,
    /// 100 × standard deviation over mean.
    #[serde(rename = "cv_pct")]
    pub variation: f64,
    /// One by one.
    #[serde(rename = "times_us")]
    pub times: Vec<f64>,
}

impl Spread {
    /// Of at least one time, with nccl-tests' definitions (`computeIterStats`).
    pub fn of(times: Vec<f64>) -> Spread {
        let n = times.len().max(1);
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
        let percentile = |p: usize| at(((n * p).div_ceil(100)).clamp(1, n) - 1);
        let mean = sorted.iter().sum::<f64>() / n as f64;
        let deviation = (sorted.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / n as f64).sqrt();
        Spread {
            min: at(0),
            max: at(n - 1),
            mean,
            p50: at(n / 2),
            p95: percentile(95),
            p99: percentile(99),
            deviation,
            variation: if mean > 0.0 { 100.0 * deviation / mean } else { 0.0 },
            times,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_hundred() {
        let s = Spread::of((1..=100).rev().map(f64::from).collect());
        assert_eq!((s.min, s.max, s.mean, s.p50, s.p95, s.p99), (1.0, 100.0, 50.5, 51.0, 95.0, 99.0));
        let s = Spread::of(vec![3.0]);
        assert_eq!((s.min, s.p99, s.variation), (3.0, 3.0, 0.0));
    }
}
