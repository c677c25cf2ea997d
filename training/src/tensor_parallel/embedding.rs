//! Rows of a table whose rows are dealt out.

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor, WithDType};

use super::cross_entropy::Vocabulary;
use super::mappings::{dtype, reduce_from, scatter_sequence};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::kernel::{Scalar, by_type, elements, with_elements};

/// An embedding whose table `[V, h]` is dealt out by rows: each rank has V / T entries of the vocabulary.
#[derive(Clone)]
pub struct VocabParallelEmbedding {
    /// The ranks among which they are dealt.
    pub group: Group,
    /// Whether the output is dealt out along the sequence.
    pub sequence_parallel: bool,
}

impl VocabParallelEmbedding {
    /// The rows of `tokens [b, s]`, u32, of which this rank has the `table [V / T, h]` of its part: `[b, s, h]`, or
    /// `[b, s / T, h]` with sequence parallelism.
    ///
    /// # Errors
    /// [`Error::Config`] for a token that the vocabulary does not have; when shapes do not fit; of communication.
    pub fn forward(&self, table: &Tensor, tokens: &Tensor) -> Result<Tensor> {
        let (entries, _) = table.dims2()?;
        let vocabulary = Vocabulary {
            first: self.group.rank() * entries,
            here: entries,
            size: self.group.size() * entries,
        };
        let rows = with_elements::<u32, _, Error>(tokens, |tokens| {
            tokens.iter().enumerate().map(|(place, &token)| vocabulary.find(token, "token", place)).collect()
        })?;
        let mut shape = tokens.dims().to_vec();
        shape.push(table.dim(1)?);
        let summand = table.contiguous()?.apply_op1(Lookup { rows, shape })?;
        if self.sequence_parallel {
            scatter_sequence(&summand, &self.group)
        } else {
            reduce_from(&summand, &self.group)
        }
    }
}

/// Rows of a table, and zeros for those that are elsewhere.
struct Lookup {
    rows: Vec<Option<usize>>,
    shape: Vec<usize>,
}

impl Lookup {
    fn forward<T: Scalar>(&self, table: &[T], width: usize) -> Vec<T> {
        let mut result = vec![T::from_f64(0.0); self.rows.len() * width];
        for (row, to) in self.rows.iter().zip(result.chunks_exact_mut(width)) {
            if let Some(row) = row {
                to.copy_from_slice(&table[row * width..][..width]);
            }
        }
        result
    }

    /// Adds up each row's gradients in the order of the tokens.
    fn backward<T: Scalar>(&self, gradient: &[T], entries: usize, width: usize) -> Vec<T> {
        let mut sums = vec![<T::Real as WithDType>::from_f64(0.0); entries * width];
        for (row, from) in self.rows.iter().zip(gradient.chunks_exact(width)) {
            if let Some(row) = row {
                for (sum, &x) in sums[row * width..][..width].iter_mut().zip(&*T::widen(from)) {
                    *sum += x;
                }
            }
        }
        T::narrow(sums)
    }
}

impl CustomOp1 for Lookup {
    fn name(&self) -> &'static str {
        "vocab_parallel_embedding"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let width = layout.dims()[1];
        let rows = by_type!(dtype(storage), self.name(), T => {
            Ok(<T as WithDType>::to_cpu_storage_owned(self.forward::<T>(&elements(storage, layout)?, width)))
        })?;
        Ok((rows, self.shape.clone().into()))
    }

    fn bwd(&self, table: &Tensor, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let (entries, width) = table.dims2()?;
        by_type!(table.dtype(), self.name(), T => {
            let sums = with_elements::<T, _, candle_core::Error>(gradient, |gradient| Ok(self.backward(gradient, entries, width)))?;
            Ok(Some(Tensor::from_vec(sums, table.shape(), table.device())?))
        })
    }
}
