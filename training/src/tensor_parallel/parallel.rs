//! Column- and row-parallel products.

use std::cell::Cell;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, InplaceOp1, Layout, Shape, Tensor, WithDType};

use super::linear;
use super::mappings::{Mapping, Way, copy_to, dtype, reduce_from, scatter_sequence};
use crate::error::Result;
use crate::group::Group;
use crate::kernel::by_type;

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
    /// once for all of them, and so is its gradient reduced.
    ///
    /// # Errors
    /// As [`ColumnParallel::forward`].
    pub fn forward_all(&self, x: &Tensor, weights: &[&Tensor]) -> Result<Vec<Tensor>> {
        if self.group.size() == 1 || !self.sequence_parallel {
            let x = copy_to(x, &self.group)?;
            return weights.iter().map(|w| linear::of(&x, w, None)).collect();
        }
        let x = x.contiguous()?;
        let gathered = Arc::new(Gathered {
            part: x.detach(),
            mapping: Mapping::new(x.dims(), &self.group, Way::Gather)?,
        });
        let all = x.apply_op1(GatherToUse(gathered.clone()))?;
        let products: Result<Vec<_>> =
            weights.iter().map(|w| linear::of(&all, w, Some(gathered.clone()))).collect();
        all.inplace_op1(&Put(Cell::new(None)))?;
        products
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

/// A tensor that is gathered when it is needed and let go in between.
pub(super) struct Gathered {
    part: Tensor,
    mapping: Mapping,
}

impl Gathered {
    /// Puts the elements back into `all`, unless they are there.
    pub(super) fn again(&self, all: &Tensor) -> candle_core::Result<()> {
        let there = {
            let (storage, layout) = all.storage_and_layout();
            match &*storage {
                candle_core::Storage::Cpu(storage) => len(storage) >= layout.shape().elem_count(),
                _ => true,
            }
        };
        if there {
            return Ok(());
        }
        let (storage, layout) = self.part.storage_and_layout();
        let candle_core::Storage::Cpu(storage) = &*storage else { return Ok(()) };
        let (elements, _) = self.mapping.cpu_fwd(storage, layout)?;
        all.inplace_op1(&Put(Cell::new(Some(elements))))
    }
}

/// Gathers along the sequence. What it gives is let go after the forward pass, and again after the backward pass of all
/// that used it.
struct GatherToUse(Arc<Gathered>);

impl CustomOp1 for GatherToUse {
    fn name(&self) -> &'static str {
        self.0.mapping.name()
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        self.0.mapping.cpu_fwd(storage, layout)
    }

    fn bwd(&self, x: &Tensor, all: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        all.inplace_op1(&Put(Cell::new(None)))?;
        self.0.mapping.bwd(x, all, gradient)
    }
}

/// Puts elements into a tensor's memory, or lets go of those that are there.
struct Put(Cell<Option<CpuStorage>>);

impl InplaceOp1 for Put {
    fn name(&self) -> &'static str {
        "put"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        *storage = match self.0.take() {
            Some(elements) => elements,
            None => by_type!(dtype(storage), "put", T => Ok(T::to_cpu_storage_owned(Vec::new())))?,
        };
        Ok(())
    }
}

fn len(storage: &CpuStorage) -> usize {
    match storage {
        CpuStorage::F32(x) => x.len(),
        CpuStorage::F64(x) => x.len(),
        CpuStorage::BF16(x) => x.len(),
        CpuStorage::F16(x) => x.len(),
        _ => 0,
    }
}
