//! How the state of training is divided and when it moves.

use candle_core::DType;

use crate::error::{Error, Result};
use crate::group::{Group, Groups};

/// What becomes of a unit's weights between the forward and the backward pass, under FSDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reshard {
    /// They are let go, and gathered again: least memory.
    Always,
    /// They stay: half the gathering.
    Never,
    /// They are let go but for a part that is one of so many neighbours', who gather it again among themselves: the
    /// slow links are spared in the backward pass.
    Groups(usize),
}

/// How the state is divided over `dp_shard` and `cp`, and when it moves. `dp_replicate` ranks hold copies of the shards.
///
/// Results do not depend on it, bit for bit, as long as gradients are reduced in one type and as often: `zero`,
/// `reshard`, `prefetch`, `checkpoint_activations` and `bucket_bytes` change memory and time alone. With several
/// micro-batches a step that holds for `reduce_each_micro_batch`; without it, DDP and ZeRO-1 add up a step's gradients
/// before they are reduced and the others after, which rounds differently.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// What is divided: 0 nothing (DDP); 1 masters, gradients after they are reduced, and the optimizer's state; 2 the
    /// same, and gradients are reduced in every micro-batch so that none stays whole; 3 weights too (FSDP).
    pub zero: u8,
    /// When FSDP lets weights go. Weights of ZeRO-0, 1 and 2 stay from one step to the next.
    pub reshard: Reshard,
    /// What weights are gathered and computed with: f32, bf16 or f16. Masters are f32.
    pub compute: DType,
    /// What gradients are reduced in: f32, bf16 or f16. Sums over micro-batches are f32.
    pub reduce: DType,
    /// Keeps the input of each stage alone for the backward pass, which computes the stage again.
    pub checkpoint_activations: bool,
    /// Whether what can wait for a step's last micro-batch is reduced in each: the gradients of DDP and ZeRO-1, and the
    /// sums over `dp_replicate`.
    pub reduce_each_micro_batch: bool,
    /// Gathers the next unit's weights while a stage computes, at the price of room for one more unit.
    pub prefetch: bool,
    /// How large the pieces are in which gradients of ZeRO-0, 1 and 2 are reduced, bytes; FSDP reduces by unit.
    pub bucket_bytes: usize,
}

impl Default for Policy {
    /// FSDP in f32, with weights that are gathered ahead and let go after each use.
    fn default() -> Policy {
        Policy {
            zero: 3,
            reshard: Reshard::Always,
            compute: DType::F32,
            reduce: DType::F32,
            checkpoint_activations: false,
            reduce_each_micro_batch: false,
            prefetch: true,
            bucket_bytes: 25 << 20,
        }
    }
}

impl Policy {
    /// The ranks that share the state, and those that hold copies of it; none where that is this rank alone.
    pub(super) fn ranks(&self, groups: &Groups) -> (Option<Group>, Option<Group>) {
        let several = |group: &Group| (group.size() > 1).then(|| group.clone());
        let (shard, replicate) = (several(groups.fsdp()), several(groups.dp_replicate()));
        match (self.zero, &shard, &replicate) {
            (1.., ..) => (shard, replicate),
            (0, Some(_), Some(_)) => (None, several(groups.loss())),
            (0, ..) => (None, shard.or(replicate)),
        }
    }

    /// # Errors
    /// [`Error::Config`] for a value that means nothing, with those that do.
    pub(super) fn check(&self, shard_ranks: usize) -> Result<()> {
        let refuse = |problem: String| Err(Error::Config(problem));
        if self.zero > 3 {
            return refuse(format!("zero={}; it is 0 (DDP), 1, 2 or 3 (FSDP)", self.zero));
        }
        for (what, dtype) in [("compute", self.compute), ("reduce", self.reduce)] {
            if !matches!(dtype, DType::F32 | DType::BF16 | DType::F16) {
                return refuse(format!("{what}={}; it is f32, bf16 or f16", dtype.as_str()));
            }
        }
        if self.bucket_bytes == 0 {
            return refuse("bucket_bytes=0; take some MiB, such as 25M".into());
        }
        match self.reshard {
            Reshard::Groups(k) if k == 0 || !shard_ranks.is_multiple_of(k) => refuse(format!(
                "weights cannot be kept by groups of {k} of the {shard_ranks} ranks of dp_shard×cp; take a divisor of \
                 {shard_ranks}"
            )),
            _ => Ok(()),
        }
    }
}
