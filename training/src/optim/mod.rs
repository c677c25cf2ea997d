//! AdamW on shards, the gradient norm and clipping, loss scale, learning rate.
