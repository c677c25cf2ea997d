//! The four ways between what all ranks have, what each has a summand of, and what each has a part of. Two and two are
//! each other's backward pass.

use std::borrow::Cow;

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Shape, Tensor};
use nd_comm::prelude::ReduceOp;

use crate::error::{Error, Result};
use crate::group::Group;
use crate::kernel::{Scalar, by_type, elements};

/// `x` as it is, which every rank has; its gradient is the sum of all ranks' gradients. In front of products that are
/// dealt out: each rank's gives a summand of the gradient.
///
/// # Errors
/// Of communication, in the backward pass; types other than f32, f64, bf16, f16.
pub fn copy_to(x: &Tensor, group: &Group) -> Result<Tensor> {
    apply(x, group, Way::Copy)
}

/// The sum of all ranks' `x`, on all; the gradient of `x` is the sum's. Behind products that are dealt out.
///
/// # Errors
/// Of communication; types other than f32, f64, bf16, f16.
pub fn reduce_from(x: &Tensor, group: &Group) -> Result<Tensor> {
    apply(x, group, Way::Reduce)
}

/// All ranks' `[b, s, ..]` one after the other along the sequence, `[b, T·s, ..]`; the gradient of `x` is this rank's
/// part of the sum of all ranks' gradients.
///
/// # Errors
/// Of communication; [`Error::Config`] for fewer than two dimensions.
pub fn gather_sequence(x: &Tensor, group: &Group) -> Result<Tensor> {
    apply(x, group, Way::Gather)
}

/// This rank's part `[b, s / T, ..]` of the sum of all ranks' `[b, s, ..]`; the gradient of `x` is all ranks' gradients
/// one after the other.
///
/// # Errors
/// Of communication; [`Error::Config`] for fewer than two dimensions, and where T does not divide s.
pub fn scatter_sequence(x: &Tensor, group: &Group) -> Result<Tensor> {
    apply(x, group, Way::Scatter)
}

fn apply(x: &Tensor, group: &Group, way: Way) -> Result<Tensor> {
    if group.size() == 1 {
        return Ok(x.clone());
    }
    Ok(x.apply_op1(Mapping::new(x.dims(), group, way)?)?)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Copy,
    Reduce,
    Gather,
    Scatter,
}

impl Way {
    fn back(self) -> Way {
        match self {
            Way::Copy => Way::Reduce,
            Way::Reduce => Way::Copy,
            Way::Gather => Way::Scatter,
            Way::Scatter => Way::Gather,
        }
    }
}

pub(super) struct Mapping {
    group: Group,
    way: Way,
}

impl Mapping {
    pub(super) fn new(dims: &[usize], group: &Group, way: Way) -> Result<Mapping> {
        let (name, size) = (group.name(), group.size());
        if matches!(way, Way::Gather | Way::Scatter) && dims.len() < 2 {
            return Err(Error::Config(format!(
                "a tensor of shape {dims:?} has no sequence: give [b, s, ..]"
            )));
        }
        if way == Way::Scatter && !dims[1].is_multiple_of(size) {
            return Err(Error::Config(format!(
                "{name}={size} does not divide a sequence of {} tokens: pad it to {}",
                dims[1],
                dims[1].next_multiple_of(size)
            )));
        }
        Ok(Mapping { group: group.clone(), way })
    }

    fn run<T: Scalar>(&self, x: Cow<'_, [T]>, dims: &[usize]) -> Result<Vec<T>> {
        let (group, len, size) = (&self.group, x.len(), self.group.size());
        match self.way {
            Way::Copy => Ok(x.into_owned()),
            Way::Reduce => group.registered(len, |sum| {
                sum.copy_from_slice(&x);
                group.all_reduce(sum, ReduceOp::Sum)?;
                Ok(sum.to_vec())
            }),
            Way::Gather => group.registered(len + len * size, |memory| {
                let (part, all) = memory.split_at_mut(len);
                part.copy_from_slice(&x);
                group.all_gather(part, all)?;
                let mut result = Vec::with_capacity(all.len());
                exchanged(all, size, dims[0]).for_each(|part| result.extend_from_slice(part));
                Ok(result)
            }),
            Way::Scatter => group.registered(len + len / size, |memory| {
                let (parts, part) = memory.split_at_mut(len);
                let mut left = &mut *parts;
                for from in exchanged(&x, dims[0], size) {
                    let (to, rest) = left.split_at_mut(from.len());
                    to.copy_from_slice(from);
                    left = rest;
                }
                group.reduce_scatter(parts, part)?;
                Ok(part.to_vec())
            }),
        }
    }
}

impl CustomOp1 for Mapping {
    fn name(&self) -> &'static str {
        match self.way {
            Way::Copy => "copy_to",
            Way::Reduce => "reduce_from",
            Way::Gather => "gather_sequence",
            Way::Scatter => "scatter_sequence",
        }
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let mut dims = layout.dims().to_vec();
        let result = by_type!(dtype(storage), self.name(), T => {
            self.run(elements::<T>(storage, layout)?, &dims)
                .map(<T as candle_core::WithDType>::to_cpu_storage_owned)
                .map_err(Into::into)
        })?;
        match self.way {
            Way::Copy | Way::Reduce => {}
            Way::Gather => dims[1] *= self.group.size(),
            Way::Scatter => dims[1] /= self.group.size(),
        }
        Ok((result, dims.into()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(Some(match self.way.back() {
            Way::Copy => gradient.clone(),
            way => gradient.apply_op1_no_bwd(&Mapping { group: self.group.clone(), way })?,
        }))
    }
}

pub(super) fn dtype(storage: &CpuStorage) -> DType {
    use candle_core::backend::BackendStorage;
    storage.dtype()
}

/// The pieces of `[outer, inner, ..]`, row after row, in the order of `[inner, outer, ..]`.
fn exchanged<T>(x: &[T], outer: usize, inner: usize) -> impl Iterator<Item = &[T]> {
    let len = x.len() / (outer * inner).max(1);
    (0..inner).flat_map(move |i| (0..outer).map(move |o| &x[(o * inner + i) * len..][..len]))
}
