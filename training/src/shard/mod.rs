//! Flat shards of units: gather, reduce, and what DDP, ZeRO and FSDP make of them.
