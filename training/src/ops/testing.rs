//! What the tests of the operations share.

use candle_core::{DType, Device, Result, Tensor, Var};

use super::random::Random;

/// The types, and how far a result may be from the exact one of the rounded operands, beside the largest value.
pub(crate) const TOLERANCES: [(DType, f64); 4] =
    [(DType::F64, 1e-14), (DType::F32, 1e-6), (DType::BF16, 4e-3), (DType::F16, 5e-4)];

/// Normal numbers.
pub(crate) fn numbers(seed: u64, n: usize) -> Vec<f64> {
    let random = Random::new(seed, 0);
    (0..n as u64).map(|i| random.normal(i)).collect()
}

pub(crate) fn tensor(values: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    Tensor::from_slice(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Whether no difference is above `tolerance` times the largest expected value.
pub(crate) fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= tolerance * largest,
            "element {i} is {found}, not {expected} (of up to {largest})"
        );
    }
}

/// The gradients, with respect to each operand, of the sum of `f`'s result times fixed numbers.
fn gradients(operands: &[Tensor], f: &dyn Fn(&[Tensor]) -> Result<Tensor>) -> Vec<Vec<f64>> {
    let vars: Vec<Var> = operands.iter().map(|t| Var::from_tensor(t).unwrap()).collect();
    let tensors: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let grads = weighted_sum(&f(&tensors).unwrap()).backward().unwrap();
    vars.iter().map(|v| values(grads.get(v).expect("every operand has a gradient"))).collect()
}

fn weighted_sum(y: &Tensor) -> Tensor {
    let weights = tensor(&numbers(99, y.elem_count()), y.dims(), y.dtype());
    (y * weights).unwrap().sum_all().unwrap()
}

/// Compares the gradients of `f` in f64 with central differences.
pub(crate) fn check_gradients(operands: &[(Vec<f64>, Vec<usize>)], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
    const STEP: f64 = 1e-5;
    let tensors: Vec<Tensor> = operands.iter().map(|(v, shape)| tensor(v, shape, DType::F64)).collect();
    let found = gradients(&tensors, &f);
    for (operand, found) in found.iter().enumerate() {
        let (origin, shape) = &operands[operand];
        let at = |i: usize, step: f64| {
            let mut moved = origin.clone();
            moved[i] += step;
            let mut tensors = tensors.clone();
            tensors[operand] = tensor(&moved, shape, DType::F64);
            weighted_sum(&f(&tensors).unwrap()).to_scalar::<f64>().unwrap()
        };
        // All elements of small operands, every so many of large ones.
        let places = (0..origin.len()).step_by(origin.len().div_ceil(200)).collect::<Vec<_>>();
        let expected: Vec<f64> =
            places.iter().map(|&i| (at(i, STEP) - at(i, -STEP)) / (2.0 * STEP)).collect();
        let found: Vec<f64> = places.iter().map(|&i| found[i]).collect();
        assert_close(&found, &expected, 1e-8);
    }
}

/// Compares the gradients of `f` in the lower types with those in f64 of the same operands.
pub(crate) fn check_low_precision(shapes: &[&[usize]], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
    for (dtype, tolerance) in &TOLERANCES[1..] {
        let operands: Vec<Tensor> = shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| tensor(&numbers(i as u64 + 50, shape.iter().product()), shape, *dtype))
            .collect();
        let exact: Vec<Tensor> = operands.iter().map(|t| t.to_dtype(DType::F64).unwrap()).collect();
        for (found, expected) in gradients(&operands, &f).iter().zip(gradients(&exact, &f)) {
            // The incoming gradient is rounded to the type too.
            assert_close(found, &expected, 4.0 * tolerance);
        }
    }
}
