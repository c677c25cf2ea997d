//! Parallel training on top of `nd-comm`: FSDP, HSDP, tensor parallelism and RingAttention on candle.
//!
//! Nothing lives here yet. Parameters will be flat shards per unit (a transformer block); optimizers and
//! clipping will work on the shards; the mesh order is `dp_replicate, dp_shard, cp, tp`.
