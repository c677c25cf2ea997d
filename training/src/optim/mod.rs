//! The optimizer and what it is told: AdamW on shards, the gradients' norm and clipping, the loss scale of f16, and the
//! learning rate.
//!
//! | file | what |
//! |---|---|
//! | [`AdamW`] | the update, element by element, so that the bits do not depend on the sharding |
//! | [`norm`], [`clip`] | the global L2 norm, the same bits on every mesh that shards the same gradients |
//! | `exact` | sums of f64 without rounding — *pure* |
//! | [`LossScale`] | the scale that keeps f16 gradients from vanishing — *pure* |
//! | [`Schedule`] | the learning rate of each step — *pure* |

mod adamw;
mod exact;
mod norm;
mod scale;
mod schedule;

pub use adamw::{AdamW, Options};
pub use exact::Exact;
pub use norm::{clip, norm};
pub use scale::LossScale;
pub use schedule::{Decay, Scaling, Schedule};

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use crate::shard::{Piece, ShardView};

    /// What of parameters that end at `cuts` lies in a shard at `range`; whether each decays and counts.
    pub fn pieces(cuts: &[usize], range: Range<usize>, about: impl Fn(usize) -> (bool, bool)) -> Vec<Piece> {
        let piece = |(parameter, ends): (usize, &[usize])| {
            let (from, to) = (ends[0].max(range.start), ends[1].min(range.end));
            let (decays, counts) = about(parameter);
            (from < to).then(|| Piece {
                parameter,
                range: from - range.start..to - range.start,
                start: from - ends[0],
                decays,
                counts,
            })
        };
        cuts.windows(2).enumerate().filter_map(piece).collect()
    }

    pub fn view<'a>(master: &'a mut [f32], gradient: &'a mut [f32], pieces: &'a [Piece]) -> ShardView<'a> {
        ShardView { unit: 0, master, gradient, pieces }
    }
}
