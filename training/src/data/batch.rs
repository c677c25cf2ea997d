//! What one rank computes with in one micro-batch. *Pure.*

use super::{Deal, Tokens, Windows};
use crate::tensor_parallel::IGNORE;

/// Inputs and labels of one rank for one micro-batch: `rows` sequences, of each the tokens at `positions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroBatch {
    /// Sequences.
    pub rows: usize,
    /// Inputs, row after row; 0 where there is no token.
    pub tokens: Vec<u32>,
    /// For each input the token after it; [`IGNORE`] where there is none.
    pub labels: Vec<u32>,
    /// The place of each column in its sequence.
    pub positions: Vec<u32>,
    /// The number of each sequence, counted over the whole run (see [`Deal::sequence`]).
    pub sequences: Vec<u64>,
}

impl MicroBatch {
    /// What data-parallel rank `rank` gets in micro-batch `micro` of step `step`, of each sequence the columns `positions`: all
    /// of them, or those of one rank along cp. Positions past the end of a sequence are padding.
    pub fn new(
        text: &Tokens,
        windows: &Windows,
        deal: &Deal,
        (step, micro, rank): (u64, u64, u64),
        positions: &[u32],
    ) -> MicroBatch {
        let sequences: Vec<u64> =
            (0..deal.micro_batch).map(|index| deal.sequence(step, micro, rank, index)).collect();
        let len = sequences.len() * positions.len();
        let (mut tokens, mut labels) = (Vec::with_capacity(len), Vec::with_capacity(len));
        for &sequence in &sequences {
            let row = deal.window(sequence).map_or(0..0, |window| windows.range(window));
            for &position in positions {
                let at = row.start + position as usize;
                let both = if at + 1 < row.end { text.get(at).zip(text.get(at + 1)) } else { None };
                let (token, label) = both.unwrap_or((0, IGNORE));
                tokens.push(token);
                labels.push(label);
            }
        }
        MicroBatch { rows: sequences.len(), tokens, labels, positions: positions.to_vec(), sequences }
    }

    /// Labels that count.
    pub fn count(&self) -> u64 {
        self.labels.iter().filter(|&&label| label != IGNORE).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::Order;
    use super::*;

    #[test]
    fn labels_are_one_ahead_and_positions_are_dealt() {
        let text = Tokens::from((100..111).collect::<Vec<u32>>());
        let windows = Windows::new(text.len(), 4);
        let deal = Deal {
            windows: windows.count(),
            order: Order::Sequential,
            seed: 0,
            micro_batch: 2,
            accumulation: 1,
            ranks: 1,
        };
        let first = MicroBatch::new(&text, &windows, &deal, (1, 0, 0), &[0, 1, 2, 3]);
        assert_eq!(first.tokens, [100, 101, 102, 103, 105, 106, 107, 108]);
        assert_eq!(first.labels, [101, 102, 103, 104, 106, 107, 108, 109]);
        assert_eq!((first.count(), first.sequences), (8, vec![0, 1]));
        // The last window has one token too few; and five columns are padded to six, of which two ranks have three each.
        let parts = [[0, 1, 5], [2, 3, 4]].map(|p| MicroBatch::new(&text, &windows, &deal, (1, 0, 0), &p));
        assert_eq!(parts[0].tokens, [100, 101, 0, 105, 106, 0]);
        assert_eq!(parts[0].labels, [101, 102, IGNORE, 106, 107, IGNORE]);
        assert_eq!(parts[1].labels, [103, 104, IGNORE, 108, 109, IGNORE]);
    }

    #[test]
    fn a_rank_without_sequences_has_labels_that_do_not_count() {
        let text = Tokens::from(vec![1, 2, 3]);
        let windows = Windows::new(3, 2);
        let deal =
            Deal { windows: 1, order: Order::Sequential, seed: 0, micro_batch: 1, accumulation: 1, ranks: 2 };
        let batch = MicroBatch::new(&text, &windows, &deal, (1, 0, 1), &[0, 1]);
        assert_eq!((batch.tokens, batch.labels), (vec![0, 0], vec![IGNORE, IGNORE]));
    }
}
