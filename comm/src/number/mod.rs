//! Element types and operations.
