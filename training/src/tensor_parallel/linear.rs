//! `x · wᵀ`, with a backward pass that makes the weight's gradient in the weight's own layout: composed of a transpose
//! and a product, it would be made transposed and copied element by element.

use std::sync::{Arc, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, CustomOp2, Layout, Shape, Tensor};

use super::gathered::Gathered;
use super::products::Later;
use crate::error::Result;

/// `x [.., in]` times the transpose of `weight [out, in]`: `[.., out]`.
///
/// # Errors
/// When shapes or types do not fit.
pub fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    of(x, weight, None, None)
}

/// As [`linear`], of an `x` that may have been let go by the backward pass and can be gathered again, and of a weight whose
/// gradient may be made later from the product's.
pub(super) fn of(
    x: &Tensor,
    weight: &Tensor,
    gathered: Option<Arc<Gathered>>,
    later: Option<Later>,
) -> Result<Tensor> {
    Ok(x.contiguous()?.apply_op2(weight, Linear { gathered, later })?)
}

/// The gradient of the weight, from that of the product, `[rows, out]`.
pub(super) fn of_weight(gradient: &Tensor, x: &Tensor) -> candle_core::Result<Tensor> {
    let rows = gradient.dim(0)?;
    gradient.t()?.matmul(&x.reshape((rows, x.elem_count() / rows.max(1)))?)
}

struct Linear {
    gathered: Option<Arc<Gathered>>,
    later: Option<Later>,
}

impl Linear {
    fn forward<S: BackendStorage>(
        x: &S,
        x_at: &Layout,
        w: &S,
        w_at: &Layout,
    ) -> candle_core::Result<(S, Shape)> {
        let (inputs, outputs) = match (x_at.dims(), w_at.dims()) {
            ([.., inputs], &[outputs, columns]) if *inputs == columns => (columns, outputs),
            (x, w) => {
                candle_core::bail!("linear: x is {x:?} and the weight {w:?}; give [.., in] and [out, in]")
            }
        };
        let mut shape = x_at.dims().to_vec();
        let rows = shape.iter().product::<usize>() / inputs.max(1);
        if let Some(last) = shape.last_mut() {
            *last = outputs;
        }
        let flat = Layout::contiguous_with_offset((rows, inputs), x_at.start_offset());
        let product = x.matmul(w, (1, rows, outputs, inputs), &flat, &w_at.transpose(0, 1)?)?;
        Ok((product, shape.into()))
    }
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_at: &Layout,
        w: &CpuStorage,
        w_at: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Linear::forward(x, x_at, w, w_at)
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_at: &Layout,
        w: &CudaStorage,
        w_at: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        Linear::forward(x, x_at, w, w_at)
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let tracked = w.track_op();
        let (x, w) = (x.detach(), w.detach());
        let outputs = w.dim(0)?;
        let rows = gradient.elem_count() / outputs.max(1);
        let gradient = gradient.reshape((rows, outputs))?;
        let of_x = gradient.matmul(&w)?.reshape(x.shape())?;
        if let Some(later) = &self.later {
            *later.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradient.detach());
            return Ok((Some(of_x), None));
        }
        if !tracked {
            // Frozen: nobody asks for it.
            return Ok((Some(of_x), None));
        }
        if let Some(gathered) = &self.gathered {
            gathered.again(&x)?;
        }
        let of_w = of_weight(&gradient, &x)?;
        Ok((Some(of_x), Some(of_w)))
    }
}
