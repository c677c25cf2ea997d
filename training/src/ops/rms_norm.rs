//! Root mean square normalisation (Zhang and Sennrich, arXiv 1910.07467).

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, WithDType, bail};

use crate::kernel::{Real, Rows, by_type, dot, elements, room};

/// `x / sqrt(mean(x²) + eps) · weight` over the last dimension of `x`, which `weight` has as its only one.
///
/// # Errors
/// When shapes or types do not fit.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    if weight.dims() != x.dims().last().map_or(&[][..], std::slice::from_ref) {
        bail!("rms_norm: a weight of {:?} for {:?}: it needs the last dimension", weight.dims(), x.dims());
    }
    x.contiguous()?.apply_op2(&weight.contiguous()?, RmsNorm { eps })
}

struct RmsNorm {
    eps: f64,
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        by_type!(x.dtype(), self.name(), T => {
            let x = elements::<T>(x, x_layout)?;
            let weight = elements::<T>(weight, weight_layout)?;
            Ok((T::to_cpu_storage_owned(forward(&x, &weight, self.eps)), x_layout.shape().clone()))
        })
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let both = x.apply_op3_no_bwd(weight, &gradient.contiguous()?, &RmsNormGradient { eps: self.eps })?;
        let rows = both.dim(0)? - 1;
        let of_x = both.narrow(0, 0, rows)?.reshape(x.shape())?;
        Ok((Some(of_x), Some(both.get(rows)?)))
    }
}

/// The gradients of `x`, row by row, and after them that of the weight.
struct RmsNormGradient {
    eps: f64,
}

impl CustomOp3 for RmsNormGradient {
    fn name(&self) -> &'static str {
        "rms_norm gradient"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        gradient: &CpuStorage,
        gradient_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        by_type!(x.dtype(), self.name(), T => {
            let x = elements::<T>(x, x_layout)?;
            let weight = elements::<T>(weight, weight_layout)?;
            let gradient = elements::<T>(gradient, gradient_layout)?;
            let both = backward(&x, &weight, &gradient, self.eps);
            let shape = (both.len() / weight.len().max(1), weight.len());
            Ok((T::to_cpu_storage_owned(both), shape.into()))
        })
    }
}

/// `1 / sqrt(mean(row²) + eps)`.
fn scale<R: Real>(row: &[R], eps: f64) -> R {
    R::from_f64(1.0 / (dot(row, row).to_f64() / row.len() as f64 + eps).sqrt())
}

fn forward<T: Rows>(x: &[T], weight: &[T], eps: f64) -> Vec<T> {
    let n = weight.len();
    let (mut weight_room, mut x_room, mut y) = (room(n), room(n), room::<T::Real>(n));
    let weight = T::widen_row(weight, &mut weight_room);
    let mut out = vec![T::zero(); x.len()];
    for (x, out) in x.chunks_exact(n.max(1)).zip(out.chunks_exact_mut(n.max(1))) {
        let x = T::widen_row(x, &mut x_room);
        let scale = scale(x, eps);
        for ((y, &x), &w) in y.iter_mut().zip(x).zip(weight) {
            *y = x * scale * w;
        }
        T::narrow_row(&y, out);
    }
    out
}

/// With `s = scale(x)` and `p = gradient · weight`: `dx = s p - s³ mean(p x) x`, and `dweight` is the sum over the rows
/// of `gradient · s x`.
fn backward<T: Rows>(x: &[T], weight: &[T], gradient: &[T], eps: f64) -> Vec<T> {
    let n = weight.len();
    let (mut weight_room, mut x_room, mut gradient_room) = (room(n), room(n), room(n));
    let (mut product, mut of_x) = (room::<T::Real>(n), room(n));
    let weight = T::widen_row(weight, &mut weight_room);
    let mut of_weight = RowSum::new(n);
    let mut out = vec![T::zero(); x.len() + n];
    let rows = x.chunks_exact(n.max(1)).zip(gradient.chunks_exact(n.max(1)));
    for ((x, gradient), out) in rows.zip(out.chunks_exact_mut(n.max(1))) {
        let x = T::widen_row(x, &mut x_room);
        let gradient = T::widen_row(gradient, &mut gradient_room);
        let scale = scale(x, eps);
        for ((p, &g), &w) in product.iter_mut().zip(gradient).zip(weight) {
            *p = g * w;
        }
        let along = scale * scale * scale * dot(&product, x) / <T::Real as WithDType>::from_f64(n as f64);
        for ((of_x, &p), &x) in of_x.iter_mut().zip(&product).zip(x) {
            *of_x = scale * p - along * x;
        }
        T::narrow_row(&of_x, out);
        of_weight.add(|sum| {
            for ((sum, &g), &x) in sum.iter_mut().zip(gradient).zip(x) {
                *sum += g * scale * x;
            }
        });
    }
    let start = x.len();
    T::narrow_row(&of_weight.total(), &mut out[start..]);
    out
}

/// A sum of rows by parts of [`RowSum::PART`] rows, whose rounding errors grow with the number of parts and not of rows.
struct RowSum<R> {
    total: Vec<R>,
    part: Vec<R>,
    rows: usize,
}

impl<R: Real> RowSum<R> {
    const PART: usize = 64;

    fn new(n: usize) -> RowSum<R> {
        RowSum { total: room(n), part: room(n), rows: 0 }
    }

    fn add(&mut self, row: impl FnOnce(&mut [R])) {
        row(&mut self.part);
        self.rows += 1;
        if self.rows == RowSum::<R>::PART {
            self.flush();
        }
    }

    fn flush(&mut self) {
        for (total, part) in self.total.iter_mut().zip(&mut self.part) {
            *total += std::mem::replace(part, R::from_f64(0.0));
        }
        self.rows = 0;
    }

    fn total(mut self) -> Vec<R> {
        self.flush();
        self.total
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::super::testing::*;
    use super::*;

    fn plain(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
        let rows = x.chunks(weight.len());
        rows.flat_map(|row| {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            row.iter().zip(weight).map(move |(x, w)| x * w / (mean + eps).sqrt())
        })
        .collect()
    }

    #[test]
    fn is_what_the_formula_says_in_every_type() {
        let (x, weight) = (numbers(1, 2 * 3 * 37), numbers(2, 37));
        for (dtype, tolerance) in TOLERANCES {
            let (x, weight) = (tensor(&x, &[2, 3, 37], dtype), tensor(&weight, &[37], dtype));
            let y = rms_norm(&x, &weight, 1e-5).unwrap();
            assert_eq!((y.dtype(), y.dims()), (dtype, &[2, 3, 37][..]));
            assert_close(&values(&y), &plain(&values(&x), &values(&weight), 1e-5), tolerance);
        }
    }

    #[test]
    fn gradients_are_finite_differences() {
        let operands = [(numbers(3, 2 * 70 * 9), vec![2, 70, 9]), (numbers(4, 9), vec![9])];
        check_gradients(&operands, |t| rms_norm(&t[0], &t[1], 1e-3));
    }

    #[test]
    fn gradients_in_low_precision_are_close() {
        check_low_precision(&[&[5, 33], &[33]], |t| rms_norm(&t[0], &t[1], 1e-5));
    }

    #[test]
    fn a_strided_operand_is_taken_and_a_wrong_weight_refused() {
        let x = tensor(&numbers(5, 12), &[3, 4], DType::F64);
        let weight = tensor(&numbers(6, 3), &[3], DType::F64);
        let strided = rms_norm(&x.t().unwrap(), &weight, 1e-5).unwrap();
        let whole = rms_norm(&x.t().unwrap().contiguous().unwrap(), &weight, 1e-5).unwrap();
        assert_eq!(values(&strided), values(&whole));
        let error = rms_norm(&x, &weight, 1e-5).unwrap_err().to_string();
        assert!(error.contains("[3]") && error.contains("[3, 4]"), "{error}");
        let none = Tensor::zeros((0, 4), DType::F32, &Device::Cpu).unwrap();
        let weight = Tensor::ones(4, DType::F32, &Device::Cpu).unwrap();
        assert_eq!(rms_norm(&none, &weight, 1e-5).unwrap().dims(), [0, 4]);
    }
}
