//! Matrices dealt out over the ranks of `tp`.
