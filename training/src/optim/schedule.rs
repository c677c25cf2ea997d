//! The learning rate. *Pure.*

use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

/// How the learning rate goes on after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Decay {
    /// It stays.
    #[default]
    Constant,
    /// It falls to zero as half a cosine.
    Cosine,
    /// It falls to zero in a straight line.
    Linear,
}

/// How the learning rate grows with the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scaling {
    /// Not.
    #[default]
    None,
    /// In proportion (SGD; Goyal et al., arXiv 1706.02677).
    Linear,
    /// With the square root (Adam; Malladi et al., arXiv 2205.10287).
    Sqrt,
}

/// The learning rate of each step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The highest.
    pub lr: f64,
    /// How it goes on.
    pub decay: Decay,
    /// Steps in which it rises to it.
    pub warmup: u64,
    /// All steps.
    pub steps: u64,
}

impl Schedule {
    /// For step `step`, from 1. With W steps of warm-up and T in all: `lr · step / W` up to step W; then, with
    /// `p = (step - 1 - W) / (T - W)`, cosine `lr · (1 + cos πp) / 2`, linear `lr · (1 - p)`. The decay is that of Hugging
    /// Face's schedules; warm-up begins with lr / W, not with 0, so that no step is lost.
    pub fn at(&self, step: u64) -> f64 {
        if step <= self.warmup {
            return self.lr * step as f64 / self.warmup as f64;
        }
        let all = self.steps.saturating_sub(self.warmup).max(1);
        let done = ((step - 1 - self.warmup) as f64 / all as f64).min(1.0);
        match self.decay {
            Decay::Constant => self.lr,
            Decay::Cosine => self.lr * 0.5 * (1.0 + (PI * done).cos()),
            Decay::Linear => self.lr * (1.0 - done),
        }
    }
}

impl Scaling {
    /// What the learning rate is multiplied by when a step has `batch` sequences and the rate was found with `reference`.
    pub fn factor(self, batch: usize, reference: usize) -> f64 {
        let times = batch as f64 / reference as f64;
        match self {
            Scaling::None => 1.0,
            Scaling::Linear => times,
            Scaling::Sqrt => times.sqrt(),
        }
    }
}

/// Names as in configurations.
macro_rules! names {
    ($type:ident: $($name:literal => $value:ident),*) => {
        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<$type, String> {
                match text {
                    $($name => Ok($type::$value),)*
                    _ => Err(format!("is none of {}", [$($name),*].join(", "))),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($type::$value => $name),* })
            }
        }
    };
}

names!(Decay: "constant" => Constant, "cosine" => Cosine, "linear" => Linear);
names!(Scaling: "none" => None, "linear" => Linear, "sqrt" => Sqrt);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_then_falls() {
        let cosine = Schedule { lr: 1.0, decay: Decay::Cosine, warmup: 4, steps: 12 };
        let rates: Vec<f64> = (1..=12).map(|step| cosine.at(step)).collect();
        assert_eq!(rates[..5], [0.25, 0.5, 0.75, 1.0, 1.0]);
        assert!((rates[8] - 0.5).abs() < 1e-12);
        assert!(rates[4..].windows(2).all(|r| r[0] > r[1]) && rates[11] > 0.0);
        let linear = Schedule { decay: Decay::Linear, ..cosine };
        assert_eq!([linear.at(5), linear.at(9), linear.at(12), linear.at(99)], [1.0, 0.5, 0.125, 0.0]);
        let constant = Schedule { decay: Decay::Constant, warmup: 0, ..cosine };
        assert_eq!([constant.at(1), constant.at(12)], [1.0, 1.0]);
        // All of it warm-up.
        assert_eq!(Schedule { warmup: 12, ..cosine }.at(12), 1.0);
    }

    #[test]
    fn grows_with_the_batch() {
        assert_eq!(Scaling::Linear.factor(64, 16), 4.0);
        assert_eq!(Scaling::Sqrt.factor(64, 16), 2.0);
        assert_eq!(Scaling::None.factor(64, 16), 1.0);
        assert_eq!("sqrt".parse(), Ok(Scaling::Sqrt));
        assert!("cubic".parse::<Decay>().unwrap_err().contains("cosine"));
    }
}
