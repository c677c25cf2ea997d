//! What the commands share: starting ranks, sizes, tables and plots.

pub mod topo;
