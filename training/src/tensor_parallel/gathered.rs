//! What is gathered along the sequence for products, and not kept from the forward to the backward pass.

use std::cell::Cell;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, InplaceOp1, Layout, Shape, Storage, Tensor, WithDType};

use super::mappings::{Mapping, Way, dtype};
use crate::error::Result;
use crate::group::Group;
use crate::kernel::by_type;

/// A tensor that is gathered when it is needed and let go in between.
pub(super) struct Gathered {
    part: Tensor,
    mapping: Mapping,
}

impl Gathered {
    /// Calls `f` with what is gathered of `x`, which is let go afterwards: operations that keep it call
    /// [`Gathered::again`] before they use it in the backward pass.
    pub(super) fn with<R>(
        x: &Tensor,
        group: &Group,
        f: impl FnOnce(&Tensor, &Arc<Gathered>) -> Result<R>,
    ) -> Result<R> {
        let x = x.contiguous()?;
        let mapping = Mapping::new(x.dims(), group, Way::Gather)?;
        let gathered = Arc::new(Gathered { part: x.detach(), mapping });
        let all = x.apply_op1(GatherToUse(gathered.clone()))?;
        let result = f(&all, &gathered)?;
        all.inplace_op1(&Put(Cell::new(None)))?;
        Ok(result)
    }

    /// Puts the elements back into `all`, unless they are there.
    pub(super) fn again(&self, all: &Tensor) -> candle_core::Result<()> {
        let there = {
            let (storage, layout) = all.storage_and_layout();
            match &*storage {
                Storage::Cpu(storage) => len(storage) >= layout.shape().elem_count(),
                _ => true,
            }
        };
        if there {
            return Ok(());
        }
        let (storage, layout) = self.part.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { return Ok(()) };
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
