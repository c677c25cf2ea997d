//! The best an all-reduce on one host could do: threads that see all buffers, and no protocol but a barrier.

use super::kernels::{self, BLOCK, Memory};
use super::threads::timed;

/// µs for an all-reduce of `bytes` between `ranks` ranks, done by `threads` threads: each sums its share of all inputs
/// and writes it into all outputs, then they meet. Ordinary or streaming stores, whichever is faster.
pub fn all_reduce(bytes: usize, ranks: usize, threads: usize) -> f64 {
    let length = bytes / size_of::<f32>();
    let inputs: Vec<Memory> = (0..ranks).map(|_| Memory::new(length)).collect();
    let mut outputs: Vec<Memory> = (0..ranks).map(|_| Memory::new(length)).collect();
    let mut least = f64::INFINITY;
    for streaming in [false, true] {
        let mut rests: Vec<&mut [f32]> = outputs.iter_mut().map(Memory::as_mut_slice).collect();
        let mut works = Vec::new();
        for share in shares(length, threads) {
            let from: Vec<&[f32]> = inputs.iter().map(|i| &i.as_slice()[share.clone()]).collect();
            let (mut to, mut after) = (Vec::new(), Vec::new());
            for rest in rests {
                let (own, others) = rest.split_at_mut(share.len());
                to.push(own);
                after.push(others);
            }
            rests = after;
            works.push(move || kernels::sum(&from, &mut to, streaming));
        }
        least = least.min(timed(works, true));
    }
    least
}

/// Equal shares of `length` elements, cut at whole blocks; the last ones may be empty.
fn shares(length: usize, parts: usize) -> Vec<std::ops::Range<usize>> {
    let part = length.div_ceil(parts).next_multiple_of(BLOCK);
    (0..parts).map(|i| (i * part).min(length)..((i + 1) * part).min(length)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for (length, parts) in [(0, 2), (1, 2), (64, 2), (65, 2), (1000, 3), (1 << 20, 7)] {
            let shares = shares(length, parts);
            assert_eq!(shares.len(), parts);
            assert_eq!((shares[0].start, shares[parts - 1].end), (0, length));
            assert!(shares.windows(2).all(|w| w[0].end == w[1].start), "{shares:?}");
        }
    }
}
