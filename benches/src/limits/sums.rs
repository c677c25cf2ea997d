//! Our own sums of two buffers, of 16-bit floats beside f32.
#![allow(unsafe_code)] // kernels work on raw memory

use std::hint::black_box;
use std::time::Instant;

use nd_comm::fold::Fold;
use nd_comm::kernel::{Destination, Kernel, Source};
use nd_comm::number::{DataType, ReduceOp};

use super::kernels::Memory;
use super::threads::stay_on;

/// A measurement takes about so long, s.
const ENOUGH: f64 = 4e-3;

/// µs for our sum of two buffers of `bytes` by one thread, `pairs` times: (of `data_type`, of f32 right beside it, now
/// before and now after it). None if there is no such sum.
pub fn beside_f32(data_type: DataType, bytes: usize, pairs: usize) -> Option<Vec<(f64, f64)>> {
    let measured = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                stay_on(0);
                let (mut half, mut f32) = (Sum::new(data_type, bytes)?, Sum::new(DataType::F32, bytes)?);
                let mut pair = |round: usize| match round % 2 {
                    0 => (half.time(), f32.time()),
                    _ => {
                        let f32 = f32.time();
                        (half.time(), f32)
                    }
                };
                Some((0..pairs).map(&mut pair).collect())
            })
            .join()
    });
    measured.ok().flatten()
}

/// Two inputs and an output, of zeros, which every type writes alike.
struct Sum {
    kernel: Kernel,
    fold: Fold,
    count: usize,
    inputs: [Memory; 2],
    output: Memory,
    rounds: u32,
}

impl Sum {
    fn new(data_type: DataType, bytes: usize) -> Option<Sum> {
        let kernel = Kernel::new(data_type, ReduceOp::Sum, 2).ok()?;
        let memory = || Memory::new(bytes / size_of::<f32>());
        let mut sum = Sum {
            kernel,
            fold: Fold::balanced(2),
            count: bytes / data_type.size(),
            inputs: [memory(), memory()],
            output: memory(),
            rounds: 1,
        };
        let once = sum.time().max(1e-3);
        sum.rounds = (ENOUGH * 1e6 / once).clamp(1.0, 1e6) as u32;
        Some(sum)
    }

    /// µs of one sum, the mean of some in a row.
    fn time(&mut self) -> f64 {
        let sources =
            self.inputs.each_ref().map(|m| Source { ptr: m.as_slice().as_ptr().cast(), wide: false });
        let to =
            Destination { ptr: self.output.as_mut_slice().as_mut_ptr().cast(), wide: false, finish: true };
        let began = Instant::now();
        for _ in 0..self.rounds {
            // SAFETY: all three have `count` elements and are separate.
            unsafe { self.kernel.fold(&self.fold, black_box(&sources), to, self.count) };
        }
        began.elapsed().as_secs_f64() * 1e6 / f64::from(self.rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_measured() {
        let pairs = beside_f32(DataType::BF16, 4096, 3).unwrap();
        assert!(pairs.len() == 3 && pairs.iter().all(|(half, f32)| *half > 0.0 && *f32 > 0.0), "{pairs:?}");
    }
}
