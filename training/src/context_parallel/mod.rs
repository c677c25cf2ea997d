//! Sequences dealt out over the ranks of `cp`, and attention over them.
