//! The input of column-parallel products. In the backward pass its gradient is added up over the ranks while the gradients
//! of weights are made, as Megatron-LM does it: a product leaves its weight's gradient to the operation that copies the
//! input, which comes after all products.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Shape, Tensor, WithDType};
use nd_comm::prelude::ReduceOp;

use super::linear::{self, of_weight};
use super::mappings::dtype;
use crate::error::Result;
use crate::group::Group;
use crate::kernel::{by_type, elements, with_elements};

/// The gradient of a product, `[rows, out]`, from which its weight's is made later.
pub(super) type Later = Arc<Mutex<Option<Tensor>>>;

/// The products of one `x`, which every rank of the group has, with weights of which each has a part. Two weights' gradients,
/// as many as an operation can have operands, are made while the gradient of `x` is on its way.
pub(super) fn products(x: &Tensor, weights: &[&Tensor], group: &Group) -> Result<Vec<Tensor>> {
    let later: Vec<Later> = weights.iter().take(2).map(|_| Later::default()).collect();
    let copy = Copy { group: group.clone(), later: later.clone() };
    let x = match weights {
        [] => return Ok(Vec::new()),
        [one] => x.apply_op2(one, copy)?,
        [one, two, ..] => x.apply_op3(one, two, copy)?,
    };
    let later = later.into_iter().map(Some).chain(std::iter::repeat(None));
    weights.iter().zip(later).map(|(weight, later)| linear::of(&x, weight, None, later)).collect()
}

struct Copy {
    group: Group,
    later: Vec<Later>,
}

impl Copy {
    const NAME: &'static str = "copy_to_products";

    fn forward(x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let copy = by_type!(dtype(x), Copy::NAME, T => {
            Ok(<T as WithDType>::to_cpu_storage_owned(elements::<T>(x, layout)?.into_owned()))
        })?;
        Ok((copy, layout.shape().clone()))
    }

    /// The gradients of `x` and of the weights.
    fn backward(
        &self,
        x: &Tensor,
        weights: &[&Tensor],
        gradient: &Tensor,
    ) -> candle_core::Result<(Tensor, Vec<Option<Tensor>>)> {
        by_type!(gradient.dtype(), Copy::NAME, T => {
            let sum = with_elements::<T, _, crate::Error>(gradient, |own| {
                self.group.all_reduce_copy_start(own, ReduceOp::Sum)
            })?;
            let of_weights = weights.iter().zip(&self.later).map(|(weight, later)| {
                let gradient = later.lock().unwrap_or_else(PoisonError::into_inner).take();
                match gradient {
                    _ if !weight.track_op() => Ok(None),
                    Some(gradient) => of_weight(&gradient, &x.detach()).map(Some),
                    // Nothing depends on this product.
                    None => weight.zeros_like().map(Some),
                }
            });
            let of_weights = of_weights.collect::<candle_core::Result<_>>()?;
            let sum = sum.wait()?;
            let of_x = Tensor::from_slice(&sum, gradient.shape(), gradient.device())?;
            self.group.give_back(sum);
            Ok((of_x, of_weights))
        })
    }
}

impl CustomOp2 for Copy {
    fn name(&self) -> &'static str {
        Copy::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_at: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Copy::forward(x, x_at)
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let (of_x, mut of_weights) = self.backward(x, &[w], gradient)?;
        Ok((Some(of_x), of_weights.swap_remove(0)))
    }
}

impl CustomOp3 for Copy {
    fn name(&self) -> &'static str {
        Copy::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_at: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Copy::forward(x, x_at)
    }

    fn bwd(
        &self,
        x: &Tensor,
        one: &Tensor,
        two: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (of_x, mut of_weights) = self.backward(x, &[one, two], gradient)?;
        let of_two = of_weights.swap_remove(1);
        Ok((Some(of_x), of_weights.swap_remove(0), of_two))
    }
}
