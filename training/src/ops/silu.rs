//! The gated activation of SwiGLU (Shazeer, arXiv 2002.05202).

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, WithDType, bail};

use crate::kernel::{Real, Rows, by_type, elements};

/// `gate · sigmoid(gate) · up`, element by element.
///
/// # Errors
/// When shapes or types differ.
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if gate.dims() != up.dims() {
        bail!("silu_mul: a gate of {:?} for {:?}: both need one shape", gate.dims(), up.dims());
    }
    gate.contiguous()?.apply_op2(&up.contiguous()?, SiluMul)
}

/// Elements that are worked on at a time.
const PIECE: usize = 256;

struct SiluMul;

impl CustomOp2 for SiluMul {
    fn name(&self) -> &'static str {
        "silu_mul"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        by_type!(gate.dtype(), self.name(), T => {
            let gate = elements::<T>(gate, gate_layout)?;
            let up = elements::<T>(up, up_layout)?;
            Ok((T::to_cpu_storage_owned(forward(&gate, &up)), gate_layout.shape().clone()))
        })
    }

    fn bwd(
        &self,
        gate: &Tensor,
        up: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let both = gate.apply_op3_no_bwd(up, &gradient.contiguous()?, &SiluMulGradient)?;
        let one = |i| both.get(i)?.reshape(gate.shape());
        Ok((Some(one(0)?), Some(one(1)?)))
    }
}

/// The gradient of the gate, and after it that of `up`.
struct SiluMulGradient;

impl CustomOp3 for SiluMulGradient {
    fn name(&self) -> &'static str {
        "silu_mul gradient"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
        gradient: &CpuStorage,
        gradient_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        by_type!(gate.dtype(), self.name(), T => {
            let gate = elements::<T>(gate, gate_layout)?;
            let up = elements::<T>(up, up_layout)?;
            let gradient = elements::<T>(gradient, gradient_layout)?;
            Ok((T::to_cpu_storage_owned(backward(&gate, &up, &gradient)), (2, gate.len()).into()))
        })
    }
}

/// Of each element `x`, `1 / (1 + e^-x)`.
fn sigmoids<'a, R: Real>(row: &[R], out: &'a mut [R]) -> &'a [R] {
    // Beyond it a sigmoid is 0 beside any number that is multiplied with it, and exponentials end.
    let most = R::from_f64(88.0);
    let (zero, one) = (R::from_f64(0.0), R::from_f64(1.0));
    let out = &mut out[..row.len()];
    for (out, &x) in out.iter_mut().zip(row) {
        *out = if zero - x > most { most } else { zero - x };
    }
    R::exponentials(out, zero);
    out.iter_mut().for_each(|e| *e = one / (one + *e));
    out
}

/// Room for a piece.
fn piece<R: Real>() -> [R; PIECE] {
    [R::from_f64(0.0); PIECE]
}

fn forward<T: Rows>(gate: &[T], up: &[T]) -> Vec<T> {
    let [mut gate_room, mut up_room, mut s_room, mut y] = [piece::<T::Real>(); 4];
    let mut out = vec![T::zero(); gate.len()];
    for ((gate, up), out) in gate.chunks(PIECE).zip(up.chunks(PIECE)).zip(out.chunks_mut(PIECE)) {
        let (gate, up) = (T::widen_row(gate, &mut gate_room), T::widen_row(up, &mut up_room));
        let y = &mut y[..out.len()];
        let s = sigmoids(gate, &mut s_room);
        for (((y, &gate), &up), &s) in y.iter_mut().zip(gate).zip(up).zip(s) {
            *y = gate * s * up;
        }
        T::narrow_row(y, out);
    }
    out
}

/// With `s = sigmoid(gate)`: `dgate = gradient · up · s (1 + gate (1 - s))` and `dup = gradient · gate · s`.
fn backward<T: Rows>(gate: &[T], up: &[T], gradient: &[T]) -> Vec<T> {
    let [mut gate_room, mut up_room, mut gradient_room] = [piece::<T::Real>(); 3];
    let [mut s_room, mut of_gate, mut of_up] = [piece::<T::Real>(); 3];
    let one = <T::Real as WithDType>::from_f64(1.0);
    let mut out = vec![T::zero(); 2 * gate.len()];
    let (out_gate, out_up) = out.split_at_mut(gate.len());
    let operands = gate.chunks(PIECE).zip(up.chunks(PIECE)).zip(gradient.chunks(PIECE));
    let results = out_gate.chunks_mut(PIECE).zip(out_up.chunks_mut(PIECE));
    for (((gate, up), gradient), (out_gate, out_up)) in operands.zip(results) {
        let (gate, up) = (T::widen_row(gate, &mut gate_room), T::widen_row(up, &mut up_room));
        let gradient = T::widen_row(gradient, &mut gradient_room);
        let (of_gate, of_up) = (&mut of_gate[..gate.len()], &mut of_up[..gate.len()]);
        let s = sigmoids(gate, &mut s_room);
        for i in 0..gate.len() {
            of_gate[i] = gradient[i] * up[i] * s[i] * (one + gate[i] * (one - s[i]));
            of_up[i] = gradient[i] * gate[i] * s[i];
        }
        T::narrow_row(of_gate, out_gate);
        T::narrow_row(of_up, out_up);
    }
    out
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::super::testing::*;
    use super::*;

    #[test]
    fn is_what_the_formula_says_in_every_type() {
        let shape = [3, 7, 41];
        let (gate, up) = (numbers(1, 3 * 7 * 41), numbers(2, 3 * 7 * 41));
        for (dtype, tolerance) in TOLERANCES {
            let (gate, up) = (tensor(&gate, &shape, dtype), tensor(&up, &shape, dtype));
            let expected: Vec<f64> =
                values(&gate).iter().zip(values(&up)).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            let y = silu_mul(&gate, &up).unwrap();
            assert_eq!((y.dtype(), y.dims()), (dtype, &shape[..]));
            assert_close(&values(&y), &expected, tolerance);
        }
    }

    #[test]
    fn gradients_are_finite_differences() {
        let operands = [(numbers(3, 600), vec![2, 300]), (numbers(4, 600), vec![2, 300])];
        check_gradients(&operands, |t| silu_mul(&t[0], &t[1]));
    }

    #[test]
    fn gradients_in_low_precision_are_close() {
        check_low_precision(&[&[5, 33], &[5, 33]], |t| silu_mul(&t[0], &t[1]));
    }

    #[test]
    fn far_values_neither_overflow_nor_hide_what_is_no_number() {
        let far = [-1e30, -200.0, 0.0, 200.0, 1e30, f64::NAN];
        let y =
            values(&silu_mul(&tensor(&far, &[6], DType::F32), &tensor(&[1.0; 6], &[6], DType::F32)).unwrap());
        assert!(y[0].abs() < 1e-6 && y[1].abs() < 1e-30 && y[2] == 0.0, "{y:?}");
        assert_eq!(y[3], 200.0);
        assert_eq!(y[4] as f32, 1e30);
        assert!(y[5].is_nan());
    }
}
