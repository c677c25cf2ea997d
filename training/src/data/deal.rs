//! Which rank sees which sequence at which step. *Pure.*

use std::fmt;
use std::str::FromStr;

use super::permutation::{Permutation, mix};

/// In which order the windows of a text come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// As in the text.
    #[default]
    Sequential,
    /// Shuffled, anew in each epoch.
    Shuffled,
}

/// Sequences dealt out to data-parallel ranks. All ranks of one data-parallel rank (those along cp and tp) get the same, others
/// different ones.
///
/// A step takes the next `micro_batch × accumulation × ranks` windows; its micro-batch `m` takes the next `micro_batch × ranks` of
/// them, of which each rank takes `micro_batch` neighbours. An epoch that ends within a step leaves the rest of the step without
/// windows, for whichever ranks come last, and the next step begins a new epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deal {
    /// Windows of the text.
    pub windows: u64,
    /// Their order.
    pub order: Order,
    /// Decides the order, if shuffled.
    pub seed: u64,
    /// Sequences of a rank in a micro-batch.
    pub micro_batch: u64,
    /// Micro-batches of a step.
    pub accumulation: u64,
    /// Data-parallel ranks.
    pub ranks: u64,
}

impl Deal {
    /// Sequences of a step.
    pub fn batch(&self) -> u64 {
        self.micro_batch * self.accumulation * self.ranks
    }

    /// Steps of an epoch.
    pub fn steps_of_epoch(&self) -> u64 {
        self.windows.div_ceil(self.batch()).max(1)
    }

    /// The number, counted over the whole run, of sequence `index` of rank `rank` in micro-batch `micro` of step `step` (from 1).
    /// It depends on the place in the global batch alone, so it is the same however many ranks share that.
    pub fn sequence(&self, step: u64, micro: u64, rank: u64, index: u64) -> u64 {
        (step - 1) * self.batch() + (micro * self.ranks + rank) * self.micro_batch + index
    }

    /// The window that this sequence is, if the epoch still has one.
    pub fn window(&self, sequence: u64) -> Option<u64> {
        let (step, place) = (sequence / self.batch(), sequence % self.batch());
        let (epoch, step) = (step / self.steps_of_epoch(), step % self.steps_of_epoch());
        let at = step * self.batch() + place;
        if at >= self.windows {
            return None;
        }
        Some(match self.order {
            Order::Sequential => at,
            Order::Shuffled => Permutation::new(self.windows, mix(self.seed) ^ mix(!epoch)).of(at),
        })
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Order, String> {
        match text {
            "sequential" => Ok(Order::Sequential),
            "shuffled" => Ok(Order::Shuffled),
            _ => Err("is neither sequential nor shuffled".into()),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Sequential => "sequential",
            Order::Shuffled => "shuffled",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of_step(deal: &Deal, step: u64) -> Vec<Option<u64>> {
        let places = (0..deal.accumulation).flat_map(|micro| {
            (0..deal.ranks).flat_map(move |rank| (0..deal.micro_batch).map(move |i| (micro, rank, i)))
        });
        places.map(|(micro, rank, i)| deal.window(deal.sequence(step, micro, rank, i))).collect()
    }

    #[test]
    fn in_order_and_a_short_batch_at_the_end() {
        let deal = Deal {
            windows: 10,
            order: Order::Sequential,
            seed: 0,
            micro_batch: 2,
            accumulation: 1,
            ranks: 2,
        };
        let step = |n| of_step(&deal, n).into_iter().map(|w| w.map_or(-1, |w| w as i64)).collect::<Vec<_>>();
        assert_eq!(step(1), [0, 1, 2, 3]);
        assert_eq!(step(2), [4, 5, 6, 7]);
        assert_eq!(step(3), [8, 9, -1, -1]);
        assert_eq!(step(4), [0, 1, 2, 3]);
        // Rank 1 in step 3 has nothing, and knows it without asking.
        assert_eq!(deal.window(deal.sequence(3, 0, 1, 0)), None);
    }

    #[test]
    fn how_many_share_a_batch_does_not_change_it() {
        let deal = |micro_batch, accumulation, ranks| Deal {
            windows: 1000,
            order: Order::Shuffled,
            seed: 7,
            micro_batch,
            accumulation,
            ranks,
        };
        let one = of_step(&deal(8, 1, 1), 5);
        for other in [deal(1, 8, 1), deal(2, 1, 4), deal(1, 2, 4), deal(4, 2, 1)] {
            assert_eq!(of_step(&other, 5), one);
        }
        assert_ne!(of_step(&Deal { seed: 8, ..deal(8, 1, 1) }, 5), one);
    }

    proptest! {
        #[test]
        fn an_epoch_shows_every_window_once(
            windows in 1u64..200, micro_batch in 1u64..4, accumulation in 1u64..4, ranks in 1u64..5, shuffled: bool,
        ) {
            let order = if shuffled { Order::Shuffled } else { Order::Sequential };
            let deal = Deal { windows, order, seed: 3, micro_batch, accumulation, ranks };
            for epoch in 0..2 {
                let steps = (1..=deal.steps_of_epoch()).map(|s| s + epoch * deal.steps_of_epoch());
                let mut seen: Vec<u64> = steps.flat_map(|s| of_step(&deal, s)).flatten().collect();
                seen.sort_unstable();
                prop_assert_eq!(seen, (0..windows).collect::<Vec<_>>());
            }
        }
    }
}
