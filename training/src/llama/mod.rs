//! The Llama family.
