//! A vector that is added to every row.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, WithDType, bail};

use crate::kernel::{Rows, by_type, elements, room};

/// `x [.., n]` with `bias [n]` added to each row.
///
/// # Errors
/// When shapes or types do not fit.
pub fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    match (x.dims(), bias.dims()) {
        ([.., columns], [n]) if columns == n => x.contiguous()?.apply_op2(&bias.contiguous()?, AddBias),
        (x, bias) => bail!("add_bias: a bias of {bias:?} for {x:?}: it needs one number for each column"),
    }
}

struct AddBias;

impl CustomOp2 for AddBias {
    fn name(&self) -> &'static str {
        "add_bias"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        by_type!(x.dtype(), self.name(), T => {
            let bias = elements::<T>(bias, bias_layout)?;
            let sums = add(&elements::<T>(x, x_layout)?, &bias);
            Ok((T::to_cpu_storage_owned(sums), x_layout.shape().clone()))
        })
    }

    fn bwd(
        &self,
        _: &Tensor,
        bias: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let of_bias = gradient.contiguous()?.apply_op1_no_bwd(&ColumnSums { columns: bias.elem_count() })?;
        Ok((Some(gradient.clone()), Some(of_bias)))
    }
}

/// The sum of all rows.
struct ColumnSums {
    columns: usize,
}

impl CustomOp1 for ColumnSums {
    fn name(&self) -> &'static str {
        "add_bias gradient"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        by_type!(x.dtype(), self.name(), T => {
            let sums = column_sums(&elements::<T>(x, layout)?, self.columns);
            Ok((T::to_cpu_storage_owned(sums), self.columns.into()))
        })
    }
}

fn add<T: Rows>(x: &[T], bias: &[T]) -> Vec<T> {
    let n = bias.len().max(1);
    let [mut row_room, mut bias_room, mut sum] = [(); 3].map(|()| room::<T::Real>(n));
    let bias = T::widen_row(bias, &mut bias_room);
    let mut out = vec![T::zero(); x.len()];
    for (row, out) in x.chunks(n).zip(out.chunks_mut(n)) {
        let row = T::widen_row(row, &mut row_room);
        for ((sum, &x), &b) in sum.iter_mut().zip(row).zip(bias) {
            *sum = x + b;
        }
        T::narrow_row(&sum[..out.len()], out);
    }
    out
}

fn column_sums<T: Rows>(x: &[T], columns: usize) -> Vec<T> {
    let mut row_room = room::<T::Real>(columns);
    let mut sums = room::<T::Real>(columns);
    for row in x.chunks(columns.max(1)) {
        let row = T::widen_row(row, &mut row_room);
        sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += x);
    }
    let mut out = vec![T::zero(); columns];
    T::narrow_row(&sums, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::super::testing::*;
    use super::*;

    #[test]
    fn every_row_gets_the_same_added() {
        for (dtype, tolerance) in TOLERANCES {
            let (x, bias) = (tensor(&numbers(1, 42), &[2, 3, 7], dtype), tensor(&numbers(2, 7), &[7], dtype));
            let of_bias = values(&bias);
            let expected: Vec<f64> = values(&x).iter().enumerate().map(|(i, x)| x + of_bias[i % 7]).collect();
            let y = add_bias(&x, &bias).unwrap();
            assert_eq!((y.dtype(), y.dims()), (dtype, &[2, 3, 7][..]));
            assert_close(&values(&y), &expected, tolerance);
        }
        let wrong = tensor(&[1.0; 6], &[6], DType::F32);
        let error = add_bias(&tensor(&[1.0; 7], &[7], DType::F32), &wrong).unwrap_err().to_string();
        assert!(error.contains("[6]") && error.contains("[7]"), "{error}");
    }

    #[test]
    fn gradients_are_finite_differences() {
        let operands = [(numbers(3, 60), vec![3, 4, 5]), (numbers(4, 5), vec![5])];
        check_gradients(&operands, |t| add_bias(&t[0], &t[1]));
    }

    /// A sum in bf16 stands still at 256.
    #[test]
    fn sums_over_many_rows_are_made_in_f32() {
        let ones = vec![half::bf16::ONE; 1000];
        assert_eq!(column_sums(&ones, 1)[0].to_f32(), 1000.0);
    }
}
