//! Which rank has which tokens. *Pure.*
//!
//! Positions and labels go with their tokens: shift labels first, then deal.

use super::Balance;
use super::tiles::Span;
use crate::error::{Error, Result};
use crate::mesh::Mesh;

/// The places in the sequence of the tokens that a rank has, ascending.
///
/// # Errors
/// [`Error::Config`] where the length is not a multiple of the number of chunks: see [`padding`].
///
/// ```
/// use nd_training::context_parallel::{Balance, positions};
/// assert_eq!(positions(0, 2, 8, Balance::Zigzag)?, [0, 1, 6, 7]);
/// assert_eq!(positions(1, 2, 8, Balance::Zigzag)?, [2, 3, 4, 5]);
/// # Ok::<(), nd_training::Error>(())
/// ```
pub fn positions(rank: usize, size: usize, sequence: usize, balance: Balance) -> Result<Vec<u32>> {
    let spans = spans(rank, size, per_rank(size, sequence, balance)?, balance);
    Ok(spans.iter().flat_map(|s| (s.place * s.len..(s.place + 1) * s.len).map(|p| p as u32)).collect())
}

/// What a rank has of a sequence: of its tokens, or of its labels.
///
/// # Errors
/// As [`positions`].
pub fn deal<T: Copy>(sequence: &[T], rank: usize, size: usize, balance: Balance) -> Result<Vec<T>> {
    Ok(positions(rank, size, sequence.len(), balance)?.iter().map(|&p| sequence[p as usize]).collect())
}

/// The sequence of which each rank has what [`deal`] gave it.
///
/// # Errors
/// [`Error::Config`] when not all parts are of one length, and as [`positions`].
pub fn collect<T: Copy>(parts: &[Vec<T>], balance: Balance) -> Result<Vec<T>> {
    let lens: Vec<_> = parts.iter().map(Vec::len).collect();
    let sequence = lens.iter().sum();
    if lens.iter().any(|&l| l != lens[0]) {
        return Err(Error::Config(format!(
            "parts of {lens:?} tokens are not of one sequence: give equal ones"
        )));
    }
    let mut placed = Vec::with_capacity(sequence);
    for (rank, part) in parts.iter().enumerate() {
        placed.extend(positions(rank, parts.len(), sequence, balance)?.into_iter().zip(part.iter().copied()));
    }
    placed.sort_by_key(|&(position, _)| position);
    Ok(placed.into_iter().map(|(_, token)| token).collect())
}

/// How many tokens are to be added at the end of a sequence, with labels [`IGNORE`](crate::tensor_parallel::IGNORE), for
/// the mesh to divide it. Under a causal mask they change nothing for those before them.
pub fn padding(sequence: usize, mesh: &Mesh) -> usize {
    sequence.next_multiple_of(mesh.sequence_divisor()) - sequence
}

/// How many scores a rank has to compute, for one sequence and one head of queries: pairs of a query and a key that the
/// causal mask leaves.
///
/// # Errors
/// As [`positions`].
pub fn work(rank: usize, size: usize, sequence: usize, balance: Balance) -> Result<u64> {
    Ok(positions(rank, size, sequence, balance)?.iter().map(|&p| u64::from(p) + 1).sum())
}

/// The chunks that a rank has, one after the other in its part of `len` tokens.
pub(super) fn spans(rank: usize, size: usize, len: usize, balance: Balance) -> Vec<Span> {
    match balance {
        Balance::Zigzag if size > 1 => {
            let half = len / 2;
            vec![
                Span { place: rank, start: 0, len: half },
                Span { place: 2 * size - 1 - rank, start: half, len: half },
            ]
        }
        _ => vec![Span { place: rank, start: 0, len }],
    }
}

fn per_rank(size: usize, sequence: usize, balance: Balance) -> Result<usize> {
    let (chunks, name) = match balance {
        Balance::Zigzag if size > 1 => (2 * size, "2·cp"),
        _ => (size, "cp"),
    };
    if !sequence.is_multiple_of(chunks) {
        return Err(Error::Config(format!(
            "{name}={chunks} does not divide a sequence of {sequence} tokens: pad it to {}",
            sequence.next_multiple_of(chunks)
        )));
    }
    Ok(sequence / size)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mesh::Axis;

    const BALANCES: [Balance; 2] = [Balance::Zigzag, Balance::Contiguous];

    #[test]
    fn every_rank_has_as_much_to_do_under_zigzag_and_not_in_order() {
        for size in 2..9 {
            let work = |balance| -> Vec<_> {
                (0..size).map(|rank| work(rank, size, 48 * size, balance).unwrap()).collect()
            };
            let zigzag = work(Balance::Zigzag);
            assert!(zigzag.iter().all(|&w| w == zigzag[0]), "{zigzag:?}");
            let (contiguous, all) = (work(Balance::Contiguous), 24 * size as u64 * (48 * size as u64 + 1));
            assert_eq!(contiguous.iter().sum::<u64>(), all);
            assert_eq!(zigzag.iter().sum::<u64>(), all);
            assert!(contiguous[size - 1] > 2 * contiguous[0]);
        }
    }

    #[test]
    fn a_length_that_does_not_divide_is_refused_with_what_to_pad_it_to() {
        let error = positions(0, 4, 20, Balance::Zigzag).unwrap_err().to_string();
        assert!(error.contains("2·cp=8") && error.contains("20") && error.contains("24"), "{error}");
        assert_eq!(positions(3, 4, 20, Balance::Contiguous).unwrap(), [15, 16, 17, 18, 19]);
        assert!(collect(&[vec![1, 2], vec![3]], Balance::Contiguous).is_err());
        assert_eq!(positions(0, 1, 3, Balance::Zigzag).unwrap(), [0, 1, 2]);
    }

    #[test]
    fn padding_is_what_the_mesh_asks_for() {
        for (sizes, sequence, added) in [
            ([1, 1, 1, 1], 7, 0),
            ([2, 2, 1, 1], 7, 0),
            ([1, 1, 2, 1], 7, 1),
            ([1, 1, 2, 2], 9, 7),
            ([1, 1, 1, 4], 8, 0),
        ] {
            let mesh = Mesh::new(sizes).unwrap();
            assert_eq!(padding(sequence, &mesh), added, "{mesh}");
            assert!(positions(0, mesh.size(Axis::Cp), sequence + added, Balance::Zigzag).is_ok());
        }
    }

    proptest! {
        #[test]
        fn what_was_dealt_is_collected(size in 1usize..7, chunk in 0usize..5, pick in 0usize..2) {
            let sequence: Vec<u32> = (0..(2 * size * chunk) as u32).map(|t| t.wrapping_mul(2_654_435_761)).collect();
            let parts: Vec<_> = (0..size).map(|r| deal(&sequence, r, size, BALANCES[pick]).unwrap()).collect();
            prop_assert_eq!(collect(&parts, BALANCES[pick]).unwrap(), sequence);
        }
    }
}
