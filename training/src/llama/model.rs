//! The model: its units, and its stages.

use candle_core::Tensor;

use super::Batch;
use super::config::{Config, EMBEDDING, HEAD, LayerTensor, NORM};
use super::freeze::{check_freeze, freeze};
use super::split::{Asked, Split};
use crate::context_parallel::{Balance, ContextParallel, Form, ring_attention};
use crate::error::Result;
use crate::group::{Group, Groups};
use crate::mesh::{Axis, Mesh};
use crate::model::{Init, Model, Parameter, Unit};
use crate::ops::{Rope, add_bias, dropout, rms_norm, rope, silu_mul};
use crate::tensor_parallel::{
    ColumnParallel, RowParallel, VocabParallelEmbedding, vocab_parallel_cross_entropy,
};

/// How a Llama is computed, beside what its [`Config`] says.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Whether ranks of `tp` divide the positions between the matrices too: activations there are a `tp`-th in size, and
    /// what is sent stays the same.
    pub sequence_parallel: bool,
    /// On how many ranks of `tp` each key and value head is, for more ranks than heads; 1 if `tp` divides them.
    pub kv_replicas: usize,
    /// The probability with which what the embedding and the two halves of each block give is dropped, per element; 0
    /// for none.
    pub dropout: f64,
    /// The seed of dropout's numbers.
    pub seed: u64,
    /// How attention works over the ranks of `cp`.
    pub attention: Form,
    /// How sequences are dealt out over the ranks of `cp`.
    pub balance: Balance,
    /// Names of parameters that training leaves as they are; `*` stands for anything.
    pub freeze: Vec<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            sequence_parallel: false,
            kv_replicas: 1,
            dropout: 0.0,
            seed: 0,
            attention: Form::default(),
            balance: Balance::default(),
            freeze: Vec::new(),
        }
    }
}

/// A Llama under tensor and context parallelism: this rank's part of it.
///
/// Its units are `embedding`, `layers.0` and so on, and `head`; with tied embeddings `embedding` holds the last norm too
/// and is the head. Activations have the type of the weights; the loss is f32, or f64 for f64.
pub struct Llama {
    config: Config,
    options: Options,
    split: Split,
    /// What a block's weights are, in their order.
    tensors: Vec<LayerTensor>,
    units: Vec<Unit>,
    rope: Rope,
    tp: Group,
    cp: ContextParallel,
}

impl Llama {
    /// The part of the rank that `groups` belong to; all ranks call this.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) with the numbers and a remedy when the model cannot be dealt out over the
    /// mesh.
    pub fn new(config: Config, options: Options, groups: &Groups) -> Result<Llama> {
        let tp = groups.tp().clone();
        check_freeze(&config, &options.freeze)?;
        let split = Split::new(&config, tp.size(), tp.rank(), options.kv_replicas)?;
        let rope = Rope::new(config.head_dim, config.rope_theta, config.rope_scaling)?;
        // Dropout's range is checked before training rather than in its first step.
        if !(0.0..1.0).contains(&options.dropout) {
            let text = format!("dropout={}: a probability is at least 0 and below 1", options.dropout);
            return Err(crate::Error::Config(text));
        }
        let mut units = Units::new(&config, &options, &split, groups)?.all();
        freeze(&mut units, &options.freeze);
        let cp =
            ContextParallel { group: groups.cp().clone(), form: options.attention, balance: options.balance };
        let tensors = LayerTensor::of(&config);
        Ok(Llama { config, options, split, tensors, units, rope, tp, cp })
    }

    /// Whether a model can be dealt out over the ranks of `tp`, before there are any.
    ///
    /// # Errors
    /// As [`Llama::new`].
    pub fn check(config: &Config, options: &Options, mesh: &Mesh) -> Result<()> {
        check_freeze(config, &options.freeze)?;
        Split::new(config, mesh.size(Axis::Tp), 0, options.kv_replicas).map(drop)
    }

    /// What the model is like.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Scores of every entry of the vocabulary for the token after each: `[b, s, vocabulary / tp]`, from what the last
    /// block gave and the weights of the last stage's unit.
    ///
    /// # Errors
    /// Of the tensors and of communication.
    pub fn logits(&self, weights: &[Tensor], x: &Tensor) -> Result<Tensor> {
        let (norm, head) = if self.config.tie_word_embeddings {
            (&weights[1], &weights[0])
        } else {
            (&weights[0], &weights[1])
        };
        let x = rms_norm(x, norm, self.config.rms_norm_eps)?;
        self.columns().forward(&x, head)
    }

    fn sequence_parallel(&self) -> bool {
        self.options.sequence_parallel && self.tp.size() > 1
    }

    fn columns(&self) -> ColumnParallel {
        ColumnParallel { group: self.tp.clone(), sequence_parallel: self.sequence_parallel() }
    }

    fn rows(&self) -> RowParallel {
        RowParallel { group: self.tp.clone(), sequence_parallel: self.sequence_parallel() }
    }

    fn embed(&self, table: &Tensor, batch: &Batch) -> Result<Tensor> {
        let embedding =
            VocabParallelEmbedding { group: self.tp.clone(), sequence_parallel: self.sequence_parallel() };
        self.dropout(&embedding.forward(table, &batch.tokens)?, 0, batch)
    }

    fn layer(&self, layer: usize, weights: &[Tensor], x: &Tensor, batch: &Batch) -> Result<Tensor> {
        let weights = Weights { tensors: &self.tensors, all: weights };
        let attended = self.attend(weights, x, batch)?;
        let x = (x + self.dropout(&attended, 2 * layer + 1, batch)?)?;
        let fed = self.feed(weights, &x)?;
        Ok((&x + self.dropout(&fed, 2 * layer + 2, batch)?)?)
    }

    fn attend(&self, weights: Weights<'_>, x: &Tensor, batch: &Batch) -> Result<Tensor> {
        use LayerTensor::{Key, KeyBias, Output, OutputBias, Query, QueryBias, Value, ValueBias};
        let x = rms_norm(x, weights.of(LayerTensor::AttentionNorm), self.config.rms_norm_eps)?;
        let projections = [Query, Key, Value].map(|tensor| weights.of(tensor));
        let mut projected = self.columns().forward_all(&x, &projections)?;
        weights.add(&mut projected, &[QueryBias, KeyBias, ValueBias])?;
        let heads = |x: &Tensor| {
            let (b, s, channels) = x.dims3()?;
            x.reshape((b, s, channels / self.config.head_dim, self.config.head_dim))?.transpose(1, 2)
        };
        let q = rope(&heads(&projected[0])?, &self.rope, &batch.positions)?;
        let k = rope(&self.asked(&heads(&projected[1])?)?, &self.rope, &batch.positions)?;
        let v = self.asked(&heads(&projected[2])?)?;
        let (b, heads, s, head_dim) = q.dims4()?;
        let attended = ring_attention(&q, &k, &v, &self.cp)?;
        let attended = attended.transpose(1, 2)?.reshape((b, s, heads * head_dim))?;
        self.rows_and_bias(&attended, weights, Output, OutputBias)
    }

    /// The bias is added to the sum over all ranks, so once.
    fn rows_and_bias(
        &self,
        x: &Tensor,
        weights: Weights<'_>,
        matrix: LayerTensor,
        bias: LayerTensor,
    ) -> Result<Tensor> {
        let mut sum = [self.rows().forward(x, weights.of(matrix))?];
        weights.add(&mut sum, &[bias])?;
        let [sum] = sum;
        Ok(sum)
    }

    /// The key or value heads `[b, heads, s, head_dim]` that this rank's heads ask.
    fn asked(&self, heads: &Tensor) -> Result<Tensor> {
        Ok(match self.split.asked(&self.config) {
            Asked::All => heads.clone(),
            Asked::Some(range) => heads.narrow(1, range.start, range.len())?,
            Asked::OneByOne(which) => {
                let which = Tensor::new(which, heads.device())?;
                heads.contiguous()?.index_select(&which, 1)?
            }
        })
    }

    fn feed(&self, weights: Weights<'_>, x: &Tensor) -> Result<Tensor> {
        use LayerTensor::{Down, DownBias, FeedForwardNorm, Gate, GateBias, Up, UpBias};
        let x = rms_norm(x, weights.of(FeedForwardNorm), self.config.rms_norm_eps)?;
        let mut both = self.columns().forward_all(&x, &[Gate, Up].map(|tensor| weights.of(tensor)))?;
        weights.add(&mut both, &[GateBias, UpBias])?;
        self.rows_and_bias(&silu_mul(&both[0], &both[1])?, weights, Down, DownBias)
    }

    fn dropout(&self, x: &Tensor, site: usize, batch: &Batch) -> Result<Tensor> {
        if self.options.dropout == 0.0 {
            return Ok(x.clone());
        }
        let part = if self.sequence_parallel() { (self.tp.rank(), self.tp.size()) } else { (0, 1) };
        Ok(dropout(x, self.options.dropout, &batch.counter(self.options.seed, site, part))?)
    }
}

/// A block's weights by what they are.
#[derive(Clone, Copy)]
struct Weights<'a> {
    tensors: &'a [LayerTensor],
    all: &'a [Tensor],
}

impl<'a> Weights<'a> {
    fn find(self, tensor: LayerTensor) -> Option<&'a Tensor> {
        let place = self.tensors.iter().position(|t| *t == tensor)?;
        Some(&self.all[place])
    }

    fn of(self, tensor: LayerTensor) -> &'a Tensor {
        self.find(tensor).expect("only biases may be missing")
    }

    /// Adds to each of `sums` its bias, if the model has one.
    fn add(self, sums: &mut [Tensor], biases: &[LayerTensor]) -> Result<()> {
        for (sum, bias) in sums.iter_mut().zip(biases) {
            if let Some(bias) = self.find(*bias) {
                *sum = add_bias(sum, bias)?;
            }
        }
        Ok(())
    }
}

impl Model for Llama {
    type Batch = Batch;

    fn units(&self) -> Vec<Unit> {
        self.units.clone()
    }

    fn stages(&self) -> Vec<usize> {
        let last = if self.config.tie_word_embeddings { 0 } else { self.config.num_hidden_layers + 1 };
        (0..=self.config.num_hidden_layers).chain([last]).collect()
    }

    fn forward(
        &self,
        stage: usize,
        weights: &[Tensor],
        input: Option<&Tensor>,
        batch: &Batch,
    ) -> Result<Tensor> {
        batch.check(if self.sequence_parallel() { self.tp.size() } else { 1 })?;
        match input {
            None => self.embed(&weights[0], batch),
            Some(x) if stage <= self.config.num_hidden_layers => self.layer(stage - 1, weights, x, batch),
            Some(x) => vocab_parallel_cross_entropy(&self.logits(weights, x)?, &batch.labels, &self.tp),
        }
    }
}

/// Describes the units.
struct Units<'a> {
    config: &'a Config,
    split: &'a Split,
    /// The ranks that hold the same key and value heads, if there are several.
    sharing: Option<Group>,
    /// The ranks that see a part of the positions between the matrices, if there are several.
    partial: Option<Group>,
}

impl Units<'_> {
    fn new<'a>(
        config: &'a Config,
        options: &Options,
        split: &'a Split,
        groups: &Groups,
    ) -> Result<Units<'a>> {
        let tp = groups.tp();
        let sharing = match split.replicas {
            1 => None,
            all if all == split.size => Some(tp.clone()),
            some => {
                let comm = tp.communicator().split((split.rank / some) as u64, split.rank as i64)?;
                Some(Group::new("kv_replicas", comm, groups.ledger().clone()))
            }
        };
        let partial = (options.sequence_parallel && split.size > 1).then(|| tp.clone());
        Ok(Units { config, split, sharing, partial })
    }

    fn all(&self) -> Vec<Unit> {
        let hidden = [self.config.hidden_size];
        let norm = self.whole(NORM.to_owned(), &hidden, Init::Ones);
        let mut first =
            Unit { name: "embedding".into(), parameters: vec![self.vocabulary(EMBEDDING)], keep: false };
        let mut last = None;
        if self.config.tie_word_embeddings {
            first.parameters.push(norm);
            first.keep = true;
        } else {
            let parameters = vec![norm, self.vocabulary(HEAD)];
            last = Some(Unit { name: "head".into(), parameters, keep: true });
        }
        let layers = (0..self.config.num_hidden_layers).map(|layer| self.layer(layer));
        std::iter::once(first).chain(layers).chain(last).collect()
    }

    fn layer(&self, layer: usize) -> Unit {
        let parameter = |tensor: LayerTensor| {
            let (name, shape) = (tensor.name(layer), tensor.shape(self.config));
            let init = tensor.init(self.config);
            if tensor.is_whole() {
                return self.whole(name, &shape, init);
            }
            let part = self.split.part(tensor, self.config);
            let mut parameter = Parameter { part, ..Parameter::whole(name, &shape, init) };
            if tensor.is_of_keys_or_values() {
                parameter.partial_over = self.sharing.clone();
                parameter.counts = self.split.rank.is_multiple_of(self.split.replicas);
            }
            parameter
        };
        let parameters = LayerTensor::of(self.config).into_iter().map(parameter).collect();
        Unit { name: format!("layers.{layer}"), parameters, keep: false }
    }

    fn vocabulary(&self, name: &str) -> Parameter {
        let shape = [self.config.vocab_size, self.config.hidden_size];
        let part = self.split.rows(self.config.vocab_size);
        Parameter { part, ..Parameter::whole(name, &shape, Init::Normal(self.config.initializer_range)) }
    }

    /// A norm, or what is added to a sum over ranks: whole on every rank, one of which counts it.
    fn whole(&self, name: String, shape: &[usize], init: Init) -> Parameter {
        Parameter {
            partial_over: self.partial.clone(),
            counts: self.split.rank == 0,
            ..Parameter::whole(name, shape, init)
        }
    }
}
