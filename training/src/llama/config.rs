//! What a Llama is like: read from a `config.json` as Hugging Face writes it.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::gguf;
use super::heads::{self, Names};
use crate::error::{Error, Result};
use crate::files;
use crate::model::Init;
use crate::ops::{Rope, Scaling};

/// The largest sizes there may be: so the bytes of every tensor can be counted in 64 bits, and the list of tensors and the
/// frequencies of a head stay short whatever a file asks for. Those of published models are far below.
pub(super) const MOST_HIDDEN: usize = 1 << 24;
pub(super) const MOST_HEADS: usize = 1 << 16;
pub(super) const MOST_CHANNELS: usize = 1 << 16;
const MOST_FEED_FORWARD: usize = 1 << 26;
const MOST_LAYERS: usize = 1 << 16;
/// Tokens and positions are counted in 32 bits.
const MOST_COUNTED: usize = u32::MAX as usize;

/// The numbers of a model, under Hugging Face's names. The default is a small one for bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// How many tokens there are.
    pub vocab_size: usize,
    /// Channels between blocks.
    pub hidden_size: usize,
    /// Channels inside a block's feed-forward part.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Heads that ask.
    pub num_attention_heads: usize,
    /// Heads that are asked: each by as many of the others.
    pub num_key_value_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// The longest sequence the model is made for.
    pub max_position_embeddings: usize,
    /// What is added to a mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How rotary frequencies are stretched.
    pub rope_scaling: Scaling,
    /// Whether queries, keys, values and what attention gives have something added.
    pub attention_bias: bool,
    /// Whether the feed-forward part's matrices have.
    pub mlp_bias: bool,
    /// Whether the embedding is the head too.
    pub tie_word_embeddings: bool,
    /// Standard deviation of matrices before training.
    pub initializer_range: f64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            vocab_size: 256,
            hidden_size: 128,
            intermediate_size: 352,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 32,
            max_position_embeddings: 2048,
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.0,
            rope_scaling: Scaling::Default,
            attention_bias: false,
            mlp_bias: false,
            tie_word_embeddings: true,
            initializer_range: 0.02,
        }
    }
}

impl Config {
    /// Reads `config.json` in a directory, or the settings in a GGUF file.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read, or describes what is not a Llama.
    pub fn open(path: &Path) -> Result<Config> {
        if files::regular(path).is_ok() {
            return gguf::config(path);
        }
        let path = path.join("config.json");
        let error = |problem| Error::File { path: path.clone(), problem };
        let text = files::regular(&path).and_then(|()| std::fs::read_to_string(&path));
        let text = text.map_err(|e| error(format!("cannot be read: {e}; check --init")))?;
        Config::from_json(&text).map_err(|e| error(e.to_string()))
    }

    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// [`Error::Config`] naming the key: one is missing, or says what this Llama cannot do, or two do not fit together.
    pub fn from_json(text: &str) -> Result<Config> {
        let not_json = |e| Error::Config(format!("not JSON: {e}"));
        crate::json::check(text.as_bytes()).map_err(not_json)?;
        let root: Value = serde_json::from_str(text).map_err(not_json)?;
        let root = root.as_object().ok_or_else(|| Error::Config("not a JSON object".into()))?;
        let keys = Keys { map: root };
        keys.only_llama()?;
        let hidden_size = keys.required("hidden_size")?;
        let num_attention_heads = keys.required("num_attention_heads")?;
        let head_dim = keys.count("head_dim")?;
        let config = Config {
            vocab_size: keys.required("vocab_size")?,
            hidden_size,
            intermediate_size: keys.required("intermediate_size")?,
            num_hidden_layers: keys.required("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads: keys.count("num_key_value_heads")?.unwrap_or(num_attention_heads),
            head_dim: head_dim.unwrap_or(hidden_size / num_attention_heads.max(1)),
            max_position_embeddings: keys.count("max_position_embeddings")?.unwrap_or(2048),
            rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta: keys.rope_theta()?,
            rope_scaling: keys.rope_scaling()?,
            attention_bias: keys.flag("attention_bias")?,
            mlp_bias: keys.flag("mlp_bias")?,
            tie_word_embeddings: keys.flag("tie_word_embeddings")?,
            initializer_range: keys.number("initializer_range")?.unwrap_or(0.02),
        };
        config.check_sizes()?;
        if head_dim.is_none() {
            let (names, kv_heads) = (&Names::HUGGING_FACE, config.num_key_value_heads);
            heads::head_dim(names, hidden_size, num_attention_heads, kv_heads).map_err(|e| match e {
                Error::Config(text) => Error::Config(format!("{text} or say head_dim")),
                e => e,
            })?;
        }
        config.check()?;
        Ok(config)
    }

    /// The text of a `config.json` that gives this again, and that Hugging Face's libraries read too.
    pub fn to_json(&self) -> String {
        let scaling = match self.rope_scaling {
            Scaling::Default => Value::Null,
            scaling => json!(scaling),
        };
        let value = json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": self.attention_bias,
            "mlp_bias": self.mlp_bias,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": scaling,
            "tie_word_embeddings": self.tie_word_embeddings,
            "initializer_range": self.initializer_range,
        });
        format!("{value:#}\n")
    }

    /// Whether the numbers fit together.
    ///
    /// # Errors
    /// [`Error::Config`] with the numbers.
    pub fn check(&self) -> Result<()> {
        self.check_sizes()?;
        let (heads, kv_heads, head_dim) = (self.num_attention_heads, self.num_key_value_heads, self.head_dim);
        let problem = if !heads.is_multiple_of(kv_heads) {
            format!(
                "num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}: \
                 each key and value head serves as many heads; use num_key_value_heads={}",
                heads::divisors(heads, kv_heads)
            )
        } else if !(1..=MOST_CHANNELS).contains(&head_dim) {
            format!("head_dim={head_dim}; it is from 2 to {MOST_CHANNELS}")
        } else if !head_dim.is_multiple_of(2) {
            let (below, above) = (head_dim - 1, head_dim + 1);
            let below = if below == 0 { String::new() } else { format!("{below} or ") };
            format!(
                "head_dim={head_dim} is odd, and rotary positions turn pairs of channels; use head_dim={below}{above}"
            )
        } else if !(self.rms_norm_eps >= 0.0 && self.rms_norm_eps.is_finite()) {
            format!("rms_norm_eps={}; it is a small number, 1e-5 for example", self.rms_norm_eps)
        } else if !(self.initializer_range >= 0.0 && self.initializer_range.is_finite()) {
            format!("initializer_range={}; it is a small number, 0.02 for example", self.initializer_range)
        } else if let Err(e) = Rope::new(self.head_dim, self.rope_theta, self.rope_scaling) {
            Error::from(e).to_string()
        } else {
            return Ok(());
        };
        Err(Error::Config(problem))
    }

    /// Whether each size but that of a head is one that a model can have.
    fn check_sizes(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size, MOST_COUNTED),
            ("hidden_size", self.hidden_size, MOST_HIDDEN),
            ("intermediate_size", self.intermediate_size, MOST_FEED_FORWARD),
            ("num_hidden_layers", self.num_hidden_layers, MOST_LAYERS),
            ("num_attention_heads", self.num_attention_heads, MOST_HEADS),
            ("num_key_value_heads", self.num_key_value_heads, MOST_HEADS),
            ("max_position_embeddings", self.max_position_embeddings, MOST_COUNTED),
        ];
        match sizes.into_iter().find(|(_, size, most)| !(1..=*most).contains(size)) {
            Some((name, size, most)) => Err(Error::Config(format!("{name}={size}; it is from 1 to {most}"))),
            None => Ok(()),
        }
    }

    /// All tensors of the model, in the order of their units: name, shape, and what it holds before training.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>, Init)> {
        let hidden = self.hidden_size;
        let matrix = Init::Normal(self.initializer_range);
        let mut tensors = vec![(EMBEDDING.to_owned(), vec![self.vocab_size, hidden], matrix)];
        for layer in 0..self.num_hidden_layers {
            for tensor in LayerTensor::of(self) {
                tensors.push((tensor.name(layer), tensor.shape(self), tensor.init(self)));
            }
        }
        tensors.push((NORM.to_owned(), vec![hidden], Init::Ones));
        if !self.tie_word_embeddings {
            tensors.push((HEAD.to_owned(), vec![self.vocab_size, hidden], matrix));
        }
        tensors
    }

    /// How many numbers the model has, exactly up to 2^53. No tensor is listed, as a configuration may ask for any number of
    /// layers.
    pub fn parameters(&self) -> f64 {
        let len = |shape: &[usize]| shape.iter().map(|&n| n as f64).product::<f64>();
        let block: f64 = LayerTensor::of(self).into_iter().map(|tensor| len(&tensor.shape(self))).sum();
        let embeddings = if self.tie_word_embeddings { 1.0 } else { 2.0 };
        self.num_hidden_layers as f64 * block
            + embeddings * len(&[self.vocab_size, self.hidden_size])
            + len(&[self.hidden_size])
    }
}

/// The embedding's name.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
/// The last norm's name.
pub(crate) const NORM: &str = "model.norm.weight";
/// The head's name.
pub(crate) const HEAD: &str = "lm_head.weight";

/// The tensors of a block, in the order in which its stage gets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerTensor {
    AttentionNorm,
    Query,
    QueryBias,
    Key,
    KeyBias,
    Value,
    ValueBias,
    Output,
    OutputBias,
    FeedForwardNorm,
    Gate,
    GateBias,
    Up,
    UpBias,
    Down,
    DownBias,
}

impl LayerTensor {
    const ALL: [LayerTensor; 16] = {
        use LayerTensor::*;
        [
            AttentionNorm,
            Query,
            QueryBias,
            Key,
            KeyBias,
            Value,
            ValueBias,
            Output,
            OutputBias,
            FeedForwardNorm,
            Gate,
            GateBias,
            Up,
            UpBias,
            Down,
            DownBias,
        ]
    };

    /// Those that a model has.
    pub(crate) fn of(config: &Config) -> Vec<LayerTensor> {
        use LayerTensor::{DownBias, GateBias, KeyBias, OutputBias, QueryBias, UpBias, ValueBias};
        let has = |tensor: &LayerTensor| match tensor {
            QueryBias | KeyBias | ValueBias | OutputBias => config.attention_bias,
            GateBias | UpBias | DownBias => config.mlp_bias,
            _ => true,
        };
        LayerTensor::ALL.into_iter().filter(has).collect()
    }

    /// Whether it is applied to features that all ranks have: norms, and what is added to the sum over ranks.
    pub(crate) fn is_whole(self) -> bool {
        use LayerTensor::{AttentionNorm, DownBias, FeedForwardNorm, OutputBias};
        matches!(self, AttentionNorm | FeedForwardNorm | OutputBias | DownBias)
    }

    /// Whether it makes keys or values.
    pub(crate) fn is_of_keys_or_values(self) -> bool {
        use LayerTensor::{Key, KeyBias, Value, ValueBias};
        matches!(self, Key | KeyBias | Value | ValueBias)
    }

    pub(crate) fn name(self, layer: usize) -> String {
        use LayerTensor::*;
        let (module, tensor) = match self {
            AttentionNorm => ("input_layernorm", "weight"),
            Query => ("self_attn.q_proj", "weight"),
            QueryBias => ("self_attn.q_proj", "bias"),
            Key => ("self_attn.k_proj", "weight"),
            KeyBias => ("self_attn.k_proj", "bias"),
            Value => ("self_attn.v_proj", "weight"),
            ValueBias => ("self_attn.v_proj", "bias"),
            Output => ("self_attn.o_proj", "weight"),
            OutputBias => ("self_attn.o_proj", "bias"),
            FeedForwardNorm => ("post_attention_layernorm", "weight"),
            Gate => ("mlp.gate_proj", "weight"),
            GateBias => ("mlp.gate_proj", "bias"),
            Up => ("mlp.up_proj", "weight"),
            UpBias => ("mlp.up_proj", "bias"),
            Down => ("mlp.down_proj", "weight"),
            DownBias => ("mlp.down_proj", "bias"),
        };
        format!("model.layers.{layer}.{module}.{tensor}")
    }

    pub(crate) fn shape(self, config: &Config) -> Vec<usize> {
        use LayerTensor::*;
        let hidden = config.hidden_size;
        let heads = config.num_attention_heads.saturating_mul(config.head_dim);
        let kv_heads = config.num_key_value_heads.saturating_mul(config.head_dim);
        match self {
            AttentionNorm | FeedForwardNorm | OutputBias | DownBias => vec![hidden],
            Query => vec![heads, hidden],
            QueryBias => vec![heads],
            Key | Value => vec![kv_heads, hidden],
            KeyBias | ValueBias => vec![kv_heads],
            Output => vec![hidden, heads],
            Gate | Up => vec![config.intermediate_size, hidden],
            GateBias | UpBias => vec![config.intermediate_size],
            Down => vec![hidden, config.intermediate_size],
        }
    }

    pub(crate) fn init(self, config: &Config) -> Init {
        use LayerTensor::{AttentionNorm, FeedForwardNorm};
        match self {
            AttentionNorm | FeedForwardNorm => Init::Ones,
            _ if self.shape(config).len() == 1 => Init::Zeros,
            _ => Init::Normal(config.initializer_range),
        }
    }
}

/// A JSON object, whose keys may be absent or null.
struct Keys<'a> {
    map: &'a Map<String, Value>,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn count(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
        count.map(Some).ok_or_else(|| Error::Config(format!("{key}: {value} is not a count")))
    }

    fn required(&self, key: &str) -> Result<usize> {
        self.count(key)?.ok_or_else(|| Error::Config(format!("{key} is missing")))
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| Error::Config(format!("{key}: {value} is not a number")))
    }

    fn flag(&self, key: &str) -> Result<bool> {
        let Some(value) = self.get(key) else { return Ok(false) };
        value.as_bool().ok_or_else(|| Error::Config(format!("{key}: {value} is not true or false")))
    }

    /// Refuses what would be computed otherwise than here.
    fn only_llama(&self) -> Result<()> {
        let other = |key: &str, value: &Value, only: &str| {
            Err(Error::Config(format!("{key}: {value}; this is a Llama with {key} {only}")))
        };
        for (key, only) in [("model_type", "llama"), ("hidden_act", "silu")] {
            match self.get(key) {
                Some(value) if value.as_str() != Some(only) => return other(key, value, only),
                _ => {}
            }
        }
        for key in ["rope_interleaved", "qk_layernorm", "use_qk_norm", "use_sliding_window"] {
            if self.flag(key)? {
                return other(key, &Value::Bool(true), "false");
            }
        }
        for (key, only) in [
            ("attention_dropout", 0.0),
            ("resid_pdrop", 0.0),
            ("embd_pdrop", 0.0),
            ("partial_rotary_factor", 1.0),
            ("logit_scale", 1.0),
        ] {
            match self.number(key)? {
                Some(number) if number != only => return other(key, &json!(number), &only.to_string()),
                _ => {}
            }
        }
        let full =
            |layers: &Value| layers.as_array().is_some_and(|l| l.iter().all(|l| l == "full_attention"));
        match self.get("layer_types") {
            Some(layers) if !full(layers) => {
                return other("layer_types", layers, "full_attention throughout");
            }
            _ => {}
        }
        let absent =
            ["quantization_config", "sliding_window", "num_local_experts", "num_experts", "clip_qkv"];
        match absent.into_iter().find_map(|key| Some((key, self.get(key)?))) {
            Some((key, value)) => other(key, value, "absent"),
            None => Ok(()),
        }
    }

    /// `rope_parameters` in newer files, `rope_scaling` in older ones.
    fn rope(&self) -> Option<&Map<String, Value>> {
        ["rope_parameters", "rope_scaling"].iter().find_map(|key| self.get(key)?.as_object())
    }

    fn rope_theta(&self) -> Result<f64> {
        let inside = match self.rope() {
            Some(map) => Keys { map }.number("rope_theta")?,
            None => None,
        };
        Ok(inside.or(self.number("rope_theta")?).unwrap_or(10_000.0))
    }

    fn rope_scaling(&self) -> Result<Scaling> {
        let Some(map) = self.rope() else { return Ok(Scaling::Default) };
        let mut map = map.clone();
        if let Some(kind) = map.remove("type") {
            map.entry("rope_type").or_insert(kind);
        }
        map.entry("rope_type").or_insert_with(|| json!("default"));
        let text = Value::Object(map.clone());
        serde_json::from_value(Value::Object(map)).map_err(|e| {
            Error::Config(format!("rope_scaling: {text}: {e}; rope_type is default, linear or llama3"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"{
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 576,
        "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "vocab_size": 49152, "rms_norm_eps": 1e-05, "rope_theta": 100000, "rope_scaling": null,
        "rope_interleaved": false, "max_position_embeddings": 8192, "tie_word_embeddings": true,
        "attention_bias": false, "torch_dtype": "bfloat16", "is_llama_config": true
    }"#;

    fn with(change: &str) -> Result<Config> {
        let mut value: Value = serde_json::from_str(SMALL).unwrap();
        let change: Value = serde_json::from_str(change).unwrap();
        for (key, new) in change.as_object().unwrap() {
            value[key] = new.clone();
        }
        Config::from_json(&value.to_string())
    }

    #[test]
    fn a_published_model_has_its_published_size() {
        let config = Config::from_json(SMALL).unwrap();
        assert_eq!((config.head_dim, config.rope_theta), (64, 1e5));
        assert_eq!(config.tensors().len(), 272);
        assert_eq!(config.parameters(), 134_515_008.0);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let stretched = Scaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        for rope_scaling in [Scaling::Default, Scaling::Linear { factor: 2.0 }, stretched] {
            let config = Config { rope_scaling, tie_word_embeddings: false, ..Config::default() };
            assert_eq!(Config::from_json(&config.to_json()).unwrap(), config);
        }
        for (attention_bias, mlp_bias, tensors) in [(true, false, 13), (false, true, 12), (true, true, 16)] {
            let config = Config { attention_bias, mlp_bias, num_hidden_layers: 1, ..Config::default() };
            assert_eq!(Config::from_json(&config.to_json()).unwrap(), config);
            let all = config.tensors();
            assert_eq!(all.len(), 2 + tensors);
            let listed: usize = all.iter().map(|(_, shape, _)| shape.iter().product::<usize>()).sum();
            assert_eq!(config.parameters(), listed as f64);
        }
    }

    #[test]
    fn both_ways_to_say_rope_are_understood() {
        let old = with(r#"{"rope_scaling": {"type": "linear", "factor": 2.0}}"#).unwrap();
        assert_eq!((old.rope_scaling, old.rope_theta), (Scaling::Linear { factor: 2.0 }, 1e5));
        let new = with(r#"{"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}"#).unwrap();
        assert_eq!((new.rope_scaling, new.rope_theta), (Scaling::Default, 5e5));
    }

    #[test]
    fn what_is_no_llama_is_refused_by_key_and_value() {
        for (change, words) in [
            (r#"{"model_type": "gemma"}"#, "gemma"),
            (r#"{"hidden_act": "gelu"}"#, "hidden_act"),
            (r#"{"attention_bias": 1}"#, "attention_bias: 1 is not true or false"),
            (r#"{"rope_interleaved": true}"#, "rope_interleaved: true"),
            (r#"{"sliding_window": 4096}"#, "sliding_window: 4096"),
            (r#"{"layer_types": ["sliding_attention"]}"#, "sliding_attention"),
            (r#"{"num_local_experts": 8}"#, "num_local_experts: 8"),
            (r#"{"attention_dropout": 0.1}"#, "attention_dropout: 0.1"),
            (r#"{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}"#, "yarn"),
            (r#"{"rope_scaling": {"rope_type": "linear", "factor": 0.5}}"#, r#""factor":0.5"#),
            (r#"{"rope_theta": -1}"#, "rope_theta=-1"),
            (r#"{"quantization_config": {"bits": 4}}"#, "quantization_config"),
            (r#"{"hidden_size": null}"#, "hidden_size is missing"),
            (r#"{"vocab_size": "many"}"#, "vocab_size"),
            (r#"{"num_key_value_heads": 2}"#, "num_key_value_heads=2 does not divide num_attention_heads=9"),
            (r#"{"num_hidden_layers": 0}"#, "num_hidden_layers=0"),
            (r#"{"num_key_value_heads": 2}"#, "use num_key_value_heads=1 or 3"),
            (r#"{"hidden_size": 48, "head_dim": 7}"#, "head_dim=7 is odd, and"),
            (r#"{"hidden_size": 48, "head_dim": 7}"#, "; use head_dim=6 or 8"),
            (r#"{"head_dim": 1}"#, "; use head_dim=2"),
            (r#"{"head_dim": 0}"#, "head_dim=0; it is from 2"),
            (r#"{"hidden_size": 570}"#, "hidden_size=570 is no multiple of 2 × num_attention_heads = 18"),
            (r#"{"hidden_size": 570}"#, "; use hidden_size=558 or hidden_size=576 or"),
            (r#"{"hidden_size": 570}"#, " or say head_dim"),
        ] {
            let error = with(change).unwrap_err().to_string();
            assert!(error.contains(words), "{change}: {error}");
        }
        assert!(Config::from_json("[1]").unwrap_err().to_string().contains("object"));
        let twice =
            Config::from_json(&SMALL.replacen('{', r#"{"hidden_size": 64,"#, 1)).unwrap_err().to_string();
        assert!(twice.contains("hidden_size is there twice"), "{twice}");
        // A width that heads do not divide is a model's own business where it says how wide its heads are.
        assert_eq!(with(r#"{"hidden_size": 570, "head_dim": 64}"#).unwrap().head_dim, 64);
    }

    /// Whatever number a file has: nothing as long as that number is listed or made.
    #[test]
    fn sizes_beyond_all_bounds_are_refused_before_anything_is_made() {
        for key in [
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
        ] {
            for size in [1_000_000_000_000_000, u64::MAX] {
                let error = with(&format!(r#"{{"{key}": {size}}}"#)).unwrap_err().to_string();
                assert!(error.contains(&format!("{key}={size}; it is from ")), "{error}");
            }
        }
    }
}
