//! Reduction loops over memory.
