//! Column- and row-parallel products.

use candle_core::Tensor;

use super::gathered::Gathered;
use super::linear::{self, linear};
use super::mappings::{reduce_from, scatter_sequence};
use super::products::products;
use crate::error::Result;
use crate::group::Group;

/// A product whose output features are dealt out: each rank has some rows of the weight `[out, in]`, the columns of the
/// matrix that is multiplied with, and gets those features for all tokens.
#[derive(Clone)]
pub struct ColumnParallel {
    /// The ranks among which they are dealt.
    pub group: Group,
    /// Whether the input is dealt out along the sequence. It is gathered, and gathered again in the backward pass rather
    /// than kept until then.
    pub sequence_parallel: bool,
}

impl ColumnParallel {
    /// `x [b, s, in]`, or `[b, s / T, in]` with sequence parallelism, times the transpose of `weight [out / T, in]`:
    /// `[b, s, out / T]`.
    ///
    /// # Errors
    /// When shapes do not fit, and of communication.
    pub fn forward(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let mut products = self.forward_all(x, &[weight])?;
        Ok(products.swap_remove(0))
    }

    /// The products of one `x` with several weights, such as those of queries, keys and values: `x` is copied or gathered
    /// once for all of them, and so is its gradient reduced: without sequence parallelism while the gradients of the first
    /// two weights are made.
    ///
    /// # Errors
    /// As [`ColumnParallel::forward`].
    pub fn forward_all(&self, x: &Tensor, weights: &[&Tensor]) -> Result<Vec<Tensor>> {
        if self.group.size() == 1 || !self.sequence_parallel {
            if self.group.size() > 1 {
                return products(x, weights, &self.group);
            }
            return weights.iter().map(|w| linear(x, w)).collect();
        }
        Gathered::with(x, &self.group, |all, gathered| {
            weights.iter().map(|w| linear::of(all, w, Some(gathered.clone()), None)).collect()
        })
    }
}

/// A product whose input features are dealt out, as a column-parallel one leaves them: each rank has some columns of the
/// weight, and a summand of the result.
#[derive(Clone)]
pub struct RowParallel {
    /// The ranks among which they are dealt.
    pub group: Group,
    /// Whether the output is dealt out along the sequence.
    pub sequence_parallel: bool,
}

impl RowParallel {
    /// `x [b, s, in / T]` times the transpose of `weight [out, in / T]`, added up over the ranks: `[b, s, out]`, or
    /// `[b, s / T, out]` with sequence parallelism.
    ///
    /// # Errors
    /// When shapes do not fit, and of communication.
    pub fn forward(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let summand = linear(x, weight)?;
        if self.sequence_parallel {
            scatter_sequence(&summand, &self.group)
        } else {
            reduce_from(&summand, &self.group)
        }
    }
}
