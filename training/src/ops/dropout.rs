//! Dropout whose zeros do not depend on how the tensor is divided.

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, WithDType, bail};

use super::random::Random;
use crate::kernel::{Real, Rows, by_type, elements, room};

/// Which of a training run's random numbers belong to the elements of a tensor `[sequences, positions, channels]`: each
/// element has its own, by where it lies in the whole batch and whole sequence.
#[derive(Debug, Clone)]
pub struct Counter {
    /// The key, of the run's seed, the step, and the place in the model.
    pub random: Random,
    /// For each row of the first dimension, which of the step's sequences it is.
    pub sequences: Arc<[u64]>,
    /// For each row of the second dimension, its position in the sequence.
    pub positions: Arc<[u32]>,
}

/// Zeros with probability `p`, and what is left divided by `1 - p`; `p = 0` gives `x` itself. The backward pass draws
/// the same numbers again instead of keeping them.
///
/// # Errors
/// When `p` is not in [0, 1), or `x` is not `[sequences, positions, channels]` of the counter's lengths.
pub fn dropout(x: &Tensor, p: f64, counter: &Counter) -> Result<Tensor> {
    if !(0.0..1.0).contains(&p) {
        bail!("dropout={p}: a probability is at least 0 and below 1");
    }
    if p == 0.0 {
        return Ok(x.clone());
    }
    let (sequences, positions, _) = x.dims3()?;
    if (sequences, positions) != (counter.sequences.len(), counter.positions.len()) {
        bail!(
            "dropout: {:?} with numbers of {} sequences and {} positions",
            x.dims(),
            counter.sequences.len(),
            counter.positions.len()
        );
    }
    let threshold = (p * (1u64 << 32) as f64) as u32;
    x.contiguous()?.apply_op1(Dropout { threshold, scale: 1.0 / (1.0 - p), counter: counter.clone() })
}

#[derive(Clone)]
struct Dropout {
    /// A number below this drops its element.
    threshold: u32,
    scale: f64,
    counter: Counter,
}

impl CustomOp1 for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let channels = layout.shape().dims3()?.2;
        by_type!(x.dtype(), self.name(), T => {
            let x = elements::<T>(x, layout)?;
            Ok((T::to_cpu_storage_owned(self.apply(&x, channels)), layout.shape().clone()))
        })
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(gradient.contiguous()?.apply_op1_no_bwd(self)?))
    }
}

impl Dropout {
    fn apply<T: Rows>(&self, x: &[T], channels: usize) -> Vec<T> {
        let positions = self.counter.positions.len();
        let (mut factors, mut x_room) = (room(channels), room(channels));
        let mut out = vec![T::zero(); x.len()];
        let rows = x.chunks_exact(channels.max(1)).zip(out.chunks_exact_mut(channels.max(1)));
        for (row, (x, out)) in rows.enumerate() {
            let sequence = self.counter.sequences[row / positions];
            self.factors(sequence, self.counter.positions[row % positions], &mut factors);
            for (factor, &x) in factors.iter_mut().zip(T::widen_row(x, &mut x_room)) {
                *factor *= x;
            }
            T::narrow_row(&factors, out);
        }
        out
    }

    /// What each channel of one position is multiplied by. Eight blocks of four numbers at a time: the first word of
    /// each belongs to eight channels in a row, the second to the next eight, and so on.
    fn factors<R: Real>(&self, sequence: u64, position: u32, factors: &mut [R]) {
        const BLOCKS: usize = 8;
        let scale = R::from_f64(self.scale);
        for (i, factors) in factors.chunks_mut(4 * BLOCKS).enumerate() {
            let first = [(i * BLOCKS) as u32, position, sequence as u32, (sequence >> 32) as u32];
            let numbers = self.counter.random.blocks::<BLOCKS>(first);
            for (factor, &number) in factors.iter_mut().zip(numbers.as_flattened()) {
                *factor = if number < self.threshold { R::from_f64(0.0) } else { scale };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::super::testing::*;
    use super::*;

    fn counter(sequences: &[u64], positions: &[u32]) -> Counter {
        Counter { random: Random::new(5, 3), sequences: sequences.into(), positions: positions.into() }
    }

    fn ones(shape: (usize, usize, usize)) -> Tensor {
        Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap()
    }

    #[test]
    fn a_part_drops_what_the_whole_drops_there() {
        let whole =
            dropout(&ones((4, 6, 70)), 0.3, &counter(&[7, 8, 9, 1 << 40], &[0, 1, 2, 3, 4, 5])).unwrap();
        let part = dropout(&ones((2, 3, 70)), 0.3, &counter(&[8, 1 << 40], &[5, 0, 3])).unwrap();
        let index = |list: &[u32]| Tensor::new(list, &Device::Cpu).unwrap();
        let chosen =
            whole.index_select(&index(&[1, 3]), 0).unwrap().index_select(&index(&[5, 0, 3]), 1).unwrap();
        assert_eq!(values(&part), values(&chosen));
    }

    #[test]
    fn as_many_are_dropped_as_asked_and_the_mean_stays() {
        for p in [0.1, 0.5, 0.9] {
            let positions: Vec<u32> = (0..50).collect();
            let y = values(&dropout(&ones((2, 50, 512)), p, &counter(&[0, 1], &positions)).unwrap());
            let dropped = y.iter().filter(|&&y| y == 0.0).count() as f64 / y.len() as f64;
            assert!((dropped - p).abs() < 0.01, "p={p}: {dropped}");
            assert!(y.iter().all(|&y| y == 0.0 || (y - 1.0 / (1.0 - p)).abs() < 1e-6));
        }
    }

    #[test]
    fn gradients_are_finite_differences() {
        let counter = counter(&[3, 4], &[1, 0, 2]);
        check_gradients(&[(numbers(1, 2 * 3 * 5), vec![2, 3, 5])], |t| dropout(&t[0], 0.4, &counter));
    }

    #[test]
    fn every_type_drops_the_same() {
        let x = numbers(1, 2 * 3 * 40);
        let dropped = |dtype| {
            let y = dropout(&tensor(&x, &[2, 3, 40], dtype), 0.5, &counter(&[0, 1], &[0, 1, 2])).unwrap();
            assert_eq!(y.dtype(), dtype);
            values(&y).iter().map(|&y| y == 0.0).collect::<Vec<_>>()
        };
        for (dtype, _) in TOLERANCES {
            assert_eq!(dropped(dtype), dropped(DType::F64));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_numbers() {
        let x = ones((1, 2, 3));
        let error = dropout(&x, 1.0, &counter(&[0], &[0, 1])).unwrap_err().to_string();
        assert!(error.contains("dropout=1"), "{error}");
        let error = dropout(&x, 0.5, &counter(&[0], &[0])).unwrap_err().to_string();
        assert!(error.contains("[1, 2, 3]") && error.contains("1 positions"), "{error}");
        assert_eq!(dropout(&x, 0.0, &counter(&[], &[])).unwrap().id(), x.id());
    }
}
