//! What of which parameters lies on a rank, for checkpoints.

use std::ops::Range;

use super::sharded::Sharded;
use crate::group::Group;
use crate::model::{Model, Parameter};

/// What of a parameter lies on this rank.
pub struct Own<'a> {
    /// Which unit it belongs to, and how long that unit's shard is, without what is frozen.
    pub unit: (usize, usize),
    /// The parameter.
    pub parameter: &'a Parameter,
    /// Elements of this rank's part of it, flattened.
    pub range: Range<usize>,
    /// Where they lie in the unit's shard, or in that of what is frozen.
    pub place: Range<usize>,
    /// The elements.
    pub masters: &'a [f32],
}

impl<M: Model> Sharded<M> {
    /// What this rank has of all parameters, those that are frozen too.
    pub fn own(&self) -> Vec<Own<'_>> {
        let rank = self.shard.as_ref().map_or(0, Group::rank);
        let mut all = Vec::new();
        for (index, of_unit) in self.units.iter().enumerate() {
            let parameters = &of_unit.unit.parameters;
            for (layout, masters) in
                [(&of_unit.layout, &of_unit.masters), (&of_unit.frozen.layout, &of_unit.frozen.masters)]
            {
                all.extend(layout.pieces(rank, parameters).into_iter().map(|piece| Own {
                    unit: (index, of_unit.layout.shard()),
                    parameter: &parameters[piece.parameter],
                    range: piece.start..piece.start + piece.range.len(),
                    masters: &masters[piece.range.clone()],
                    place: piece.range,
                }));
            }
        }
        all
    }
}
