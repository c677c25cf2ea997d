//! The global norm of the gradients.

use nd_comm::prelude::ReduceOp;

use super::Exact;
use crate::error::Result;
use crate::group::Group;
use crate::shard::ShardView;

/// Elements that are added up with rounding, before all is added without. Shards are multiples of it, so no block lies on
/// two ranks.
const BLOCK: usize = 64;

/// The L2 norm of all gradients, over the shards of this rank and the ranks of these groups (see
/// `Sharded::norm_groups`); the same on all of them. Blocks of 64 elements are summed in f64 and their sums added exactly, so
/// that the bits depend on the gradients and their units' layout, not on how many ranks there are. NaN if a gradient is
/// infinite or NaN.
///
/// # Errors
/// Of communication.
pub fn norm(shards: &[ShardView<'_>], groups: &[Group]) -> Result<f64> {
    let mut sum = Exact::default();
    for shard in shards {
        for piece in shard.pieces.iter().filter(|piece| piece.counts) {
            let mut at = piece.range.start;
            while at < piece.range.end {
                let end = (at / BLOCK + 1).saturating_mul(BLOCK).min(piece.range.end);
                sum.add(squares(&shard.gradient[at..end]));
                at = end;
            }
        }
    }
    let mut words = sum.to_words();
    for group in groups {
        group.all_reduce(&mut words, ReduceOp::Sum)?;
        words = Exact::from_words(words).to_words();
    }
    Ok(Exact::from_words(words).value().sqrt())
}

/// What gradients are multiplied by so that their norm is at most `limit`: PyTorch's `limit / (norm + 1e-6)`, at most 1; 1
/// without a limit (0).
pub fn clip(norm: f64, limit: f64) -> f64 {
    if limit > 0.0 { (limit / (norm + 1e-6)).min(1.0) } else { 1.0 }
}

/// The sum of squares, in an order that depends on the length alone.
fn squares(values: &[f32]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0f64; LANES];
    let chunks = values.chunks_exact(LANES);
    for (sum, &value) in sums.iter_mut().zip(chunks.remainder()) {
        *sum = f64::from(value) * f64::from(value);
    }
    for chunk in chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(value) * f64::from(value);
        }
    }
    ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]))
}

#[cfg(test)]
mod tests {
    use nd_comm::prelude::Communicator;

    use super::super::tests::{pieces, view};
    use super::*;
    use crate::group::Ledger;

    /// What one rank says about `gradients`, of which a piece of every 100 elements does not count.
    fn norm_of_part(gradients: &mut [f32], at: usize, groups: &[Group]) -> f64 {
        let cuts: Vec<usize> = (0..=10).map(|i| i * 100).collect();
        let mut master = vec![0.0; gradients.len()];
        let pieces = pieces(&cuts, at..at + gradients.len(), |parameter| (true, parameter % 3 != 1));
        norm(&[view(&mut master, gradients, &pieces)], groups).unwrap()
    }

    fn gradients() -> Vec<f32> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 3e6 - 2.7
        };
        (0..1024).map(|i| if i < 1000 { next() * 10f32.powi(i % 7 - 3) } else { f32::NAN }).collect()
    }

    #[test]
    fn the_same_bits_for_every_sharding() {
        let mut all = gradients();
        let counted = all.iter().enumerate().filter(|(i, _)| *i < 1000 && i / 100 % 3 != 1);
        let plain = counted.map(|(_, g)| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        let whole = norm_of_part(&mut all, 0, &[]);
        assert!((whole / plain - 1.0).abs() < 1e-12, "{whole} {plain}");
        for ranks in [2, 4, 8, 16] {
            let comms = Communicator::local(ranks).unwrap();
            let mut parts: Vec<Vec<f32>> = all.chunks(1024 / ranks).map(<[f32]>::to_vec).collect();
            let norms: Vec<f64> = std::thread::scope(|scope| {
                let threads: Vec<_> = comms
                    .into_iter()
                    .zip(&mut parts)
                    .map(|(comm, part)| {
                        scope.spawn(move || {
                            let at = comm.rank() * part.len();
                            norm_of_part(part, at, &[Group::new("fsdp", comm, Ledger::default())])
                        })
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert!(norms.iter().all(|n| n.to_bits() == whole.to_bits()), "{ranks}: {norms:?} {whole}");
        }
    }

    #[test]
    fn a_gradient_that_is_no_number_is_seen_and_padding_is_not() {
        let mut all = gradients();
        assert!(norm_of_part(&mut all, 0, &[]).is_finite());
        all[3] = f32::INFINITY;
        assert!(norm_of_part(&mut all, 0, &[]).is_nan());
    }

    #[test]
    fn clipping_only_makes_smaller() {
        assert_eq!(clip(0.5, 1.0), 1.0);
        assert_eq!(clip(3.0, 0.0), 1.0);
        assert_eq!(clip(4.0, 1.0), 1.0 / (4.0 + 1e-6));
    }
}
