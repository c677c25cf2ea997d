//! Differentiable operations with their own backward pass, on the CPU.
