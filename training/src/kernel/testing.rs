//! What tests of parallel operations share.

use candle_core::{DType, Device, Tensor, Var};
use nd_comm::prelude::Communicator;
use nd_tests::worlds::each;

use crate::group::{Group, Ledger};

/// Runs `f` on `n` ranks, threads of this process, with a group of all of them. Gives what they give, by rank.
pub(crate) fn ranks<R: Send>(n: usize, f: impl Fn(&Group, &Ledger) -> R + Sync) -> Vec<R> {
    let world = Communicator::local(n).unwrap();
    each(&world, |comm| {
        let ledger = Ledger::default();
        f(&Group::new("test", comm.clone(), ledger.clone()), &ledger)
    })
}

/// Numbers between -1 and 1 that look random.
pub(crate) fn numbers(seed: u64, len: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..8).for_each(|_| {
        next();
    });
    (0..len).map(|_| next()).collect()
}

/// A tensor of such numbers.
pub(crate) fn tensor(seed: u64, shape: &[usize], dtype: DType) -> Tensor {
    let numbers = numbers(seed, shape.iter().product());
    Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

/// A variable with the values of a tensor.
pub(crate) fn variable(tensor: &Tensor) -> Var {
    Var::from_tensor(&tensor.contiguous().unwrap()).unwrap()
}

/// The elements of a tensor, in order.
pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Asserts that all elements differ by less than `tolerance`, times the largest of them where that is more than 1.
pub(crate) fn assert_close(what: &str, found: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let (found, expected) = (values(found), values(expected));
    let largest = expected.iter().fold(1.0, |a: f64, &b| a.max(b.abs()));
    for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * largest,
            "{what}: element {i} is {a}, expected {b}, of at most {largest}"
        );
    }
}

/// Asserts that `gradient` is that of `loss` at `at`, by central differences of some elements; all in f64.
pub(crate) fn assert_derivative(what: &str, at: &Tensor, gradient: &Tensor, loss: impl Fn(&Tensor) -> f64) {
    let (at_values, gradient) = (values(at), values(gradient));
    let step = (at_values.len() / 12).max(1);
    for i in (0..at_values.len()).step_by(step) {
        const H: f64 = 1e-5;
        let moved = |by: f64| {
            let mut moved = at_values.clone();
            moved[i] += by;
            loss(&Tensor::from_vec(moved, at.shape(), &Device::Cpu).unwrap())
        };
        let expected = (moved(H) - moved(-H)) / (2.0 * H);
        assert!(
            (gradient[i] - expected).abs() < 1e-7,
            "{what}: element {i} is {}, expected {expected}",
            gradient[i]
        );
    }
}
