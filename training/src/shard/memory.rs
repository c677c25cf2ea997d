//! What of a rank's memory is for what.

/// Bytes of one rank, by kind. What an optimizer keeps is its own; what operations of a stage keep for its backward pass
/// is the tensor library's, and not here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Shards of the parameters, f32.
    pub masters: usize,
    /// Shards of the gradients, f32: none between an update and the next backward pass.
    pub gradients: usize,
    /// Weights that a stage can compute with.
    pub gathered: usize,
    /// Gradients that are not reduced yet.
    pub unreduced: usize,
    /// Memory for communication: on its way, kept for the backward pass, or at hand for the next call.
    pub buffers: usize,
    /// Inputs of stages, and outputs where they are kept, for the backward pass.
    pub activations: usize,
}

impl Memory {
    /// All of them together.
    pub fn total(&self) -> usize {
        let Memory { masters, gradients, gathered, unreduced, buffers, activations } = *self;
        masters + gradients + gathered + unreduced + buffers + activations
    }
}
