//! The mesh: how the ranks of a job are arranged along the axes of parallelism. *Pure.*

use std::fmt;

use crate::error::{Error, Result};

/// A way in which work is divided, outermost first: neighbours along [`Axis::Tp`] have consecutive ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Copies of the whole model state, each with its own part of the batch.
    DpReplicate,
    /// Shards of the model state, each with its own part of the batch.
    DpShard,
    /// Parts of every sequence.
    Cp,
    /// Parts of every matrix.
    Tp,
}

impl Axis {
    /// All of them, outermost first.
    pub const ALL: [Axis; 4] = [Axis::DpReplicate, Axis::DpShard, Axis::Cp, Axis::Tp];

    /// `dp_replicate`, `dp_shard`, `cp`, `tp`.
    pub fn name(self) -> &'static str {
        match self {
            Axis::DpReplicate => "dp_replicate",
            Axis::DpShard => "dp_shard",
            Axis::Cp => "cp",
            Axis::Tp => "tp",
        }
    }
}

/// Sizes along the axes; their product is the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mesh {
    sizes: [usize; 4],
}

impl Mesh {
    /// Reads `dp_shard=2,tp=2` for `world` ranks, in any order; an axis that is left out has size 1, and one may be
    /// -1, which is what is left. The names of other frameworks are taken too (`fsdp`, `tensor_parallel_size`, …).
    ///
    /// # Errors
    /// [`Error::Mesh`] with the numbers, when the product is not `world`.
    pub fn parse(text: &str, world: usize) -> Result<Mesh> {
        let mesh =
            nd_topology::placement::Mesh::parse(text, world).map_err(|e| Error::Mesh(e.to_string()))?;
        Ok(Mesh { sizes: Axis::ALL.map(|axis| mesh.size(axis.name())) })
    }

    /// A mesh of these sizes, in the order of [`Axis::ALL`].
    ///
    /// # Errors
    /// [`Error::Mesh`] for a size of 0.
    pub fn new(sizes: [usize; 4]) -> Result<Mesh> {
        match sizes.iter().position(|&s| s == 0) {
            Some(axis) => Err(Error::Mesh(format!("{}=0; a size is at least 1", Axis::ALL[axis].name()))),
            None => Ok(Mesh { sizes }),
        }
    }

    /// Ranks along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes[axis as usize]
    }

    /// All ranks.
    pub fn world(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Where a rank of the mesh is along each axis.
    pub fn coordinates(&self, rank: usize) -> [usize; 4] {
        let mut left = rank;
        let mut at = [0; 4];
        for axis in (0..4).rev() {
            at[axis] = left % self.sizes[axis];
            left /= self.sizes[axis];
        }
        at
    }

    /// Where a rank is along one axis.
    pub fn coordinate(&self, rank: usize, axis: Axis) -> usize {
        self.coordinates(rank)[axis as usize]
    }

    /// The rank at these coordinates.
    pub fn rank(&self, at: [usize; 4]) -> usize {
        at.iter().zip(&self.sizes).fold(0, |rank, (at, size)| rank * size + at)
    }

    /// The ranks that differ from `rank` along `axes` alone, ascending: its group there.
    pub fn group(&self, rank: usize, axes: &[Axis]) -> Vec<usize> {
        let mine = self.coordinates(rank);
        let same = |other: &[usize; 4]| {
            Axis::ALL.iter().all(|&a| axes.contains(&a) || other[a as usize] == mine[a as usize])
        };
        (0..self.world()).filter(|&other| same(&self.coordinates(other))).collect()
    }

    /// How many parts of the batch there are: ranks along cp and tp share theirs.
    pub fn data_parallel_size(&self) -> usize {
        self.size(Axis::DpReplicate) * self.size(Axis::DpShard)
    }

    /// Which part of the batch a rank works on.
    pub fn data_parallel_rank(&self, rank: usize) -> usize {
        let at = self.coordinates(rank);
        at[0] * self.sizes[1] + at[1]
    }

    /// Sequences of one step: `micro_batch × accumulation × dp_replicate × dp_shard`.
    pub fn effective_batch(&self, micro_batch: usize, accumulation: usize) -> usize {
        micro_batch * accumulation * self.data_parallel_size()
    }

    /// What a sequence's length must be a multiple of, for sequence parallelism over tp and the two chunks that each
    /// rank of cp has of a causal sequence.
    pub fn sequence_divisor(&self) -> usize {
        let (cp, tp) = (self.size(Axis::Cp), self.size(Axis::Tp));
        tp * if cp > 1 { 2 * cp } else { 1 }
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for axis in Axis::ALL.into_iter().filter(|&a| self.size(a) > 1) {
            write!(f, "{comma}{}={}", axis.name(), self.size(axis))?;
            comma = ",";
        }
        if comma.is_empty() { f.write_str("dp_shard=1") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_order_and_what_is_left() {
        let mesh = Mesh::parse("tp=2,dp_shard=-1,dp_replicate=2", 16).unwrap();
        assert_eq!(mesh.to_string(), "dp_replicate=2,dp_shard=4,tp=2");
        assert_eq!(mesh.group(5, &[Axis::Tp]), [4, 5]);
        assert_eq!(mesh.group(5, &[Axis::DpShard]), [1, 3, 5, 7]);
        assert_eq!(mesh.group(5, &[Axis::DpReplicate]), [5, 13]);
        assert_eq!(Mesh::parse("", 1).unwrap().to_string(), "dp_shard=1");
    }

    #[test]
    fn tp_and_cp_do_not_multiply_the_batch() {
        for (text, world, batch) in [
            ("dp_shard=8", 8, 48),
            ("dp_shard=4,tp=2", 8, 24),
            ("dp_shard=2,cp=2,tp=2", 8, 12),
            ("dp_replicate=2,dp_shard=2,cp=2", 8, 24),
            ("tp=8", 8, 6),
        ] {
            assert_eq!(Mesh::parse(text, world).unwrap().effective_batch(2, 3), batch, "{text}");
        }
    }

    #[test]
    fn a_product_that_is_not_the_world_is_refused_with_numbers() {
        let error = Mesh::parse("tp=4,dp_shard=2", 4).unwrap_err().to_string();
        assert!(error.contains('8') && error.contains('4'), "{error}");
        assert!(Mesh::new([1, 0, 1, 1]).unwrap_err().to_string().contains("dp_shard=0"));
    }

    proptest! {
        #[test]
        fn every_rank_has_one_place_and_ranks_that_share_data_share_it_all(
            sizes in prop::array::uniform4(1usize..4),
        ) {
            let mesh = Mesh::new(sizes).unwrap();
            for rank in 0..mesh.world() {
                prop_assert_eq!(mesh.rank(mesh.coordinates(rank)), rank);
                let sharing = mesh.group(rank, &[Axis::Cp, Axis::Tp]);
                for other in 0..mesh.world() {
                    let same = mesh.data_parallel_rank(other) == mesh.data_parallel_rank(rank);
                    prop_assert_eq!(sharing.contains(&other), same);
                }
            }
        }
    }
}
