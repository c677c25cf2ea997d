//! What a model is to this crate.

use candle_core::Tensor;

use crate::error::Result;
use crate::group::Group;

/// What a parameter holds before training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Normally distributed about 0 with this standard deviation, by the parameter's name and each element's place in
    /// the *whole* tensor, so that every sharding starts from the same model.
    Normal(f64),
    /// Ones.
    Ones,
    /// Zeros.
    Zeros,
}

/// The part of a tensor that this rank computes with, under tensor parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The dimension that is divided.
    pub dim: usize,
    /// Where this rank's part begins.
    pub start: usize,
    /// How long it is.
    pub len: usize,
}

/// A tensor of a model, as this rank computes with it.
#[derive(Clone)]
pub struct Parameter {
    /// Its name, as Hugging Face has it: `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Shape of the whole tensor.
    pub shape: Vec<usize>,
    /// This rank's part; none if it computes with the whole.
    pub part: Option<Part>,
    /// What it holds before training.
    pub init: Init,
    /// Whether weight decay applies: matrices, by custom.
    pub decays: bool,
    /// The ranks whose gradients must be added up to have this tensor's: set where every rank computes with a copy but
    /// sees only a part of the tokens or heads (norms under sequence parallelism, shared key and value heads).
    pub partial_over: Option<Group>,
    /// Whether this rank counts its part in a global norm: exactly one of those that hold the same does.
    pub counts: bool,
    /// Whether training leaves it as it is: it has no gradient and no optimizer's state, and nothing is reduced for it.
    pub frozen: bool,
}

impl Parameter {
    /// A parameter that is the same on all ranks of tensor parallelism.
    pub fn whole(name: impl Into<String>, shape: &[usize], init: Init) -> Parameter {
        Parameter {
            name: name.into(),
            shape: shape.to_vec(),
            part: None,
            init,
            decays: shape.len() > 1,
            partial_over: None,
            counts: true,
            frozen: false,
        }
    }

    /// Shape of this rank's part.
    pub fn local_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let Some(part) = self.part {
            shape[part.dim] = part.len;
        }
        shape
    }

    /// Elements of this rank's part.
    pub fn len(&self) -> usize {
        self.local_shape().iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Parameters that are gathered, computed with and let go together: a transformer block.
#[derive(Clone)]
pub struct Unit {
    /// Its name, for people: `layers.0`.
    pub name: String,
    /// Its parameters, in the order in which stages get their weights.
    pub parameters: Vec<Parameter>,
    /// Whether its weights stay gathered from the forward to the backward pass whatever the policy says: for the last
    /// unit, which is needed again at once.
    pub keep: bool,
}

/// A model as a chain of stages. A stage's output is the next one's input; the first has none, and the last gives the
/// *sum* of the loss over this rank's tokens, a scalar in f32. Each stage computes with the weights of one unit; several
/// stages may share a unit (tied embeddings).
pub trait Model: Send + Sync {
    /// What a micro-batch is: tokens and labels, positions, and the counters that dropout draws from.
    type Batch;

    /// All parameters.
    fn units(&self) -> Vec<Unit>;

    /// For each stage the unit whose weights it computes with.
    fn stages(&self) -> Vec<usize>;

    /// One stage. Called again for the same micro-batch when activations are recomputed, and must give the same bits;
    /// collective calls in it are made by all ranks of their group in the same order.
    ///
    /// In the backward pass a weight's memory may go as soon as the last operation that has it for an operand is
    /// differentiated: an operation of your own reads no other weights then, and gives a gradient (zeros, if need be) for those
    /// of its operands that are trained.
    ///
    /// # Errors
    /// Of the tensors and of communication.
    fn forward(
        &self,
        stage: usize,
        weights: &[Tensor],
        input: Option<&Tensor>,
        batch: &Self::Batch,
    ) -> Result<Tensor>;
}
