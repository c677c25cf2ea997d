//! What a micro-batch is.

use candle_core::{DType, Tensor};

use crate::error::{Error, Result};
use crate::ops::Counter;
use crate::ops::random::Random;

/// One micro-batch of this rank: `b` sequences, and `s` of each one's positions.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Tokens, u32, `[b, s]`.
    pub tokens: Tensor,
    /// The tokens that should come next, u32, `[b, s]`; [`IGNORE`](super::IGNORE) where none counts.
    pub labels: Tensor,
    /// Where in its sequence each of the `s` lies: 0, 1, …, or what context parallelism gave this rank.
    pub positions: Vec<u32>,
    /// Which sequence of the whole run each of the `b` is: what dropout's numbers depend on, with the positions and the
    /// seed of [`Options`](super::Options).
    pub sequences: Vec<u64>,
}

impl Batch {
    /// Whole sequences, which are the run's first ones.
    ///
    /// # Errors
    /// When `tokens` is not `[b, s]`.
    pub fn new(tokens: Tensor, labels: Tensor) -> Result<Batch> {
        let (b, s) = tokens.dims2()?;
        Ok(Batch { tokens, labels, positions: (0..s as u32).collect(), sequences: (0..b as u64).collect() })
    }

    /// Whether the parts have the lengths they should have, for `ranks` that divide the positions.
    pub(super) fn check(&self, ranks: usize) -> Result<()> {
        let (b, s) = self.tokens.dims2()?;
        let problem = if self.labels.dims() != [b, s] {
            format!("labels of {:?}", self.labels.dims())
        } else if self.tokens.dtype() != DType::U32 || self.labels.dtype() != DType::U32 {
            format!("{:?} tokens and {:?} labels; both are u32", self.tokens.dtype(), self.labels.dtype())
        } else if self.positions.len() != s || self.sequences.len() != b {
            format!("{} positions and {} sequence numbers", self.positions.len(), self.sequences.len())
        } else if !s.is_multiple_of(ranks) {
            format!(
                "sequence parallelism over tp={ranks}: use a length that is a multiple of {ranks}, or switch it off"
            )
        } else {
            return Ok(());
        };
        Err(Error::Config(format!("a batch of {b} sequences of {s} tokens, with {problem}")))
    }

    /// Dropout's numbers at a site of the model, for the positions of part `rank` of `ranks`.
    pub(super) fn counter(&self, seed: u64, site: usize, (rank, ranks): (usize, usize)) -> Counter {
        let length = self.positions.len() / ranks;
        Counter {
            random: Random::new(seed, site as u64),
            sequences: self.sequences.as_slice().into(),
            positions: self.positions[rank * length..][..length].into(),
        }
    }
}
