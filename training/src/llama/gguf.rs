//! A Llama in a GGUF file: what it is like, and what its tensors are called there.

use std::path::Path;

use super::Config;
use super::config::{EMBEDDING, HEAD, NORM};
use super::weights::checkpoint::{Checkpoint, Rows, Stored, file_error};
use crate::error::{Error, Result};
use crate::gguf::Header;
use crate::model::{Init, Parameter};
use crate::ops::{Rope, Scaling};

/// What llama.cpp calls a block's tensors, and Hugging Face.
const OF_BLOCK: [(&str, &str); 9] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
/// The factors by which Llama 3 stretches its rotary frequencies: they say what `rope_scaling` is, and are no weights.
const ROPE_FACTORS: &str = "rope_freqs.weight";
/// The lengths that Llama 3's models were first trained for, and the parts of those at which stretching ends and begins.
const LLAMA_3: (usize, f64, f64) = (8192, 1.0, 4.0);
/// How exactly factors in f32 are known.
const EXACT: f64 = 1e-4;

/// What the model in a file is like.
///
/// # Errors
/// [`Error::File`] when it is no Llama, or one that would be computed otherwise than here.
pub(super) fn config(path: &Path) -> Result<Config> {
    config_of(path, &Header::open(path)?)
}

fn config_of(path: &Path, header: &Header) -> Result<Config> {
    let config = read(header).map_err(|problem| file_error(path, problem))?;
    match header.tensors.contains_key(ROPE_FACTORS) {
        false => Ok(config),
        true => stretched(path, header, config),
    }
}

/// The model in a file, with its tensors under Hugging Face's names.
///
/// # Errors
/// [`Error::File`] as for [`config`], and naming the tensors that are missing, too many, or have the wrong shape.
pub(super) fn open(path: &Path) -> Result<Checkpoint> {
    let header = Header::open(path)?;
    let mut checkpoint = all(path, &header, config_of(path, &header)?)?;
    checkpoint.leave_out(ROPE_FACTORS);
    checkpoint.check()?;
    Ok(checkpoint)
}

fn all(path: &Path, header: &Header, config: Config) -> Result<Checkpoint> {
    let head_dim = config.head_dim;
    let mut checkpoint = Checkpoint::new(config, path);
    let stored = header.tensors.iter().map(|(name, tensor)| {
        let ours = hugging_face(name);
        let turned = [".q_proj.", ".k_proj."].iter().any(|part| ours.contains(part));
        let stored = Stored {
            file: 0,
            shape: tensor.shape.clone(),
            encoding: Ok(tensor.encoding),
            start: tensor.start,
            bytes: tensor.bytes,
            rows: if turned { Rows::Interleaved(head_dim) } else { Rows::InOrder },
        };
        (ours, stored)
    });
    let file = std::fs::File::open(path).map_err(|e| file_error(path, e))?;
    let bytes = file.metadata().map_err(|e| file_error(path, e))?.len();
    checkpoint.add(path, (file, bytes, header.digest), stored)?;
    Ok(checkpoint)
}

/// Hugging Face's name for a tensor; its own where there is none.
fn hugging_face(name: &str) -> String {
    let of_block = || {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (module, tensor) = rest.rsplit_once('.')?;
        let (_, ours) = OF_BLOCK.iter().find(|(theirs, _)| *theirs == module)?;
        let layer: usize = layer.parse().ok()?;
        Some(format!("model.layers.{layer}.{ours}.{tensor}"))
    };
    match name {
        "token_embd.weight" => EMBEDDING.to_owned(),
        "output_norm.weight" => NORM.to_owned(),
        "output.weight" => HEAD.to_owned(),
        _ => of_block().unwrap_or_else(|| name.to_owned()),
    }
}

/// What the settings say.
fn read(header: &Header) -> Result<Config, String> {
    match header.text("general.architecture")? {
        Some("llama") => {}
        other => return Err(format!("its architecture is {}; this is a Llama", other.unwrap_or("not said"))),
    }
    let count = |key: &str| header.count(&format!("llama.{key}"));
    let required =
        |key: &str| count(key)?.ok_or_else(|| format!("llama.{key} is missing: convert the model again"));
    if let Some(experts) = count("expert_count")?.filter(|experts| *experts > 0) {
        return Err(format!("llama.expert_count is {experts}; this is a Llama without experts"));
    }
    let hidden_size = required("embedding_length")?;
    let num_attention_heads = required("attention.head_count")?;
    let head_dim = count("attention.key_length")?.unwrap_or(hidden_size / num_attention_heads.max(1));
    for key in ["attention.value_length", "rope.dimension_count"] {
        if let Some(other) = count(key)?.filter(|other| *other != head_dim) {
            return Err(format!(
                "llama.{key} is {other} and a head has {head_dim} channels; this is a Llama where both are the same"
            ));
        }
    }
    let embedding =
        header.tensors.get("token_embd.weight").ok_or("token_embd.weight is missing: copy the file again")?;
    let bias = |tensor: &str| header.tensors.contains_key(&format!("blk.0.{tensor}.bias"));
    let number = |key: &str| header.number(&format!("llama.{key}"));
    let config = Config {
        vocab_size: embedding.shape.first().copied().unwrap_or(0),
        hidden_size,
        intermediate_size: required("feed_forward_length")?,
        num_hidden_layers: required("block_count")?,
        num_attention_heads,
        num_key_value_heads: count("attention.head_count_kv")?.unwrap_or(num_attention_heads),
        head_dim,
        max_position_embeddings: count("context_length")?.unwrap_or(2048),
        rms_norm_eps: number("attention.layer_norm_rms_epsilon")?
            .ok_or("llama.attention.layer_norm_rms_epsilon is missing: convert the model again")?,
        rope_theta: number("rope.freq_base")?.unwrap_or(10_000.0),
        rope_scaling: scaling(header)?,
        attention_bias: bias("attn_q"),
        mlp_bias: bias("ffn_gate"),
        tie_word_embeddings: !header.tensors.contains_key("output.weight"),
        initializer_range: Config::default().initializer_range,
    };
    config.check().map_err(|e| e.to_string())?;
    Ok(config)
}

fn scaling(header: &Header) -> Result<Scaling, String> {
    match header.text("llama.rope.scaling.type")? {
        None | Some("none") => Ok(Scaling::Default),
        Some("linear") => {
            let factor = header.number("llama.rope.scaling.factor")?.unwrap_or(1.0);
            Ok(if factor == 1.0 { Scaling::Default } else { Scaling::Linear { factor } })
        }
        Some(other) => Err(format!("llama.rope.scaling.type is {other}; it is none or linear")),
    }
}

/// With Llama 3's scaling, of which the file has the factors of every frequency instead of the few numbers that make them.
fn stretched(path: &Path, header: &Header, config: Config) -> Result<Config> {
    let pairs = config.head_dim / 2;
    let mut factors = vec![0.0; pairs];
    let factor_of = Parameter::whole(ROPE_FACTORS, &[pairs], Init::Ones);
    all(path, header, config.clone())?.reader(&factor_of.name, &factor_of.shape)?.read(0, &mut factors)?;
    let factors: Vec<f64> = factors.into_iter().map(f64::from).collect();
    let (original, low, high) = LLAMA_3;
    let rope_scaling = Scaling::Llama3 {
        factor: factors.iter().copied().fold(1.0, f64::max),
        low_freq_factor: low,
        high_freq_factor: high,
        original_max_position_embeddings: original,
    };
    let frequencies = |scaling| Rope::new(config.head_dim, config.rope_theta, scaling).map_err(Error::from);
    let (plain, scaled) = (frequencies(Scaling::Default)?, frequencies(rope_scaling)?);
    let ratios = plain.frequencies().iter().zip(scaled.frequencies()).map(|(plain, scaled)| plain / scaled);
    let same = ratios.zip(&factors).all(|(ratio, factor)| (ratio - factor).abs() <= EXACT * ratio);
    if !same || config.rope_scaling != Scaling::Default {
        return Err(file_error(
            path,
            format!(
                "its {ROPE_FACTORS} are not those of Llama 3 ({original} positions, from {low} to {high}): take the model in Hugging Face's layout"
            ),
        ));
    }
    Ok(Config { rope_scaling, ..config })
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::{GgmlDType, QTensor};
    use candle_core::{Device, Tensor};

    use super::super::Weights;
    use super::*;
    use crate::encoding::Encoding;
    use crate::gguf::testing::{Setting, Writer};
    use crate::model::Part;

    /// Wide enough for blocks of 256.
    fn small() -> Config {
        Config {
            vocab_size: 12,
            hidden_size: 256,
            intermediate_size: 256,
            num_hidden_layers: 1,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 64,
            rope_theta: 1e5,
            ..Config::default()
        }
    }

    fn settings(config: &Config) -> Writer {
        use Setting::{Count, Number, Text};
        let count = |n: usize| Count(n as u32);
        Writer::default()
            .set("general.architecture", Text("llama"))
            .set("llama.block_count", count(config.num_hidden_layers))
            .set("llama.context_length", count(config.max_position_embeddings))
            .set("llama.embedding_length", count(config.hidden_size))
            .set("llama.feed_forward_length", count(config.intermediate_size))
            .set("llama.attention.head_count", count(config.num_attention_heads))
            .set("llama.attention.head_count_kv", count(config.num_key_value_heads))
            .set("llama.rope.freq_base", Number(config.rope_theta as f32))
            .set("llama.attention.layer_norm_rms_epsilon", Number(config.rms_norm_eps as f32))
    }

    /// As llama.cpp's converter does it: `[heads, 2, head_dim / 2, …]` becomes `[heads, head_dim / 2, 2, …]`.
    fn permuted(values: &[f32], shape: &[usize], heads: usize) -> Vec<f32> {
        let inner: usize = shape[1..].iter().product();
        let split = [heads, 2, shape[0] / heads / 2, inner];
        let tensor = Tensor::from_slice(values, &split, &Device::Cpu).unwrap();
        tensor.transpose(1, 2).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    /// What llama.cpp calls a tensor, and what it writes for it.
    fn theirs(config: &Config, name: &str, shape: &[usize], values: &[f32]) -> (String, Vec<f32>) {
        let mut theirs = name.replace("model.layers.", "blk.");
        OF_BLOCK.iter().for_each(|(short, ours)| theirs = theirs.replace(ours, short));
        let theirs = match name {
            EMBEDDING => "token_embd.weight".into(),
            NORM => "output_norm.weight".into(),
            HEAD => "output.weight".into(),
            _ => theirs,
        };
        let values = match name {
            _ if name.contains("q_proj") => permuted(values, shape, config.num_attention_heads),
            _ if name.contains("k_proj") => permuted(values, shape, config.num_key_value_heads),
            _ => values.to_vec(),
        };
        (theirs, values)
    }

    /// ggml's number of a type, and the bytes of some numbers in it.
    fn encoded(encoding: Encoding, values: &[f32]) -> (u32, Vec<u8>) {
        use GgmlDType::*;
        let kind = |kind| match kind {
            Q4_0 => 2,
            Q4_1 => 3,
            Q5_0 => 6,
            Q5_1 => 7,
            Q8_0 => 8,
            Q2K => 10,
            Q3K => 11,
            Q4K => 12,
            Q5K => 13,
            _ => 14,
        };
        match encoding {
            Encoding::Blocks(blocks) => {
                let tensor = Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap();
                let blocked = QTensor::quantize(&tensor, blocks).unwrap();
                (kind(blocks), blocked.data().unwrap().into_owned())
            }
            plain => {
                let mut bytes = Vec::new();
                values.iter().for_each(|x| plain.encode(*x, &mut bytes));
                (
                    if plain == Encoding::F32 {
                        0
                    } else if plain == Encoding::F16 {
                        1
                    } else {
                        30
                    },
                    bytes,
                )
            }
        }
    }

    /// A model drawn by seed 3; matrices in an encoding, all else in f32.
    fn written(config: &Config, encoding: Encoding) -> (tempfile::TempDir, std::path::PathBuf) {
        let mut writer = settings(config);
        let random = Weights::random(3);
        for (name, shape, init) in config.tensors() {
            let parameter = Parameter::whole(&name, &shape, init);
            let mut values = vec![0.0; parameter.len()];
            random.fill(&parameter, 0..values.len(), &mut values).unwrap();
            let (name, values) = theirs(config, &name, &shape, &values);
            let encoding = if shape.len() == 1 { Encoding::F32 } else { encoding };
            let (kind, bytes) = encoded(encoding, &values);
            writer.tensor(&name, &shape, kind, bytes);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        writer.write(&path);
        (folder, path)
    }

    #[test]
    fn every_encoding_gives_hugging_face_s_numbers_by_any_parts() {
        use GgmlDType::*;
        let blocks = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K].map(Encoding::Blocks);
        // The most that a number of deviation 0.02 may be off, in the mean.
        let off = [2e-3, 2e-3, 1e-3, 1e-3, 1e-4, 8e-3, 4e-3, 2e-3, 1e-3, 6e-4];
        let plain = [(Encoding::F32, 0.0), (Encoding::F16, 1e-5), (Encoding::BF16, 1e-4)];
        let config = Config { tie_word_embeddings: false, ..small() };
        for (encoding, most) in plain.into_iter().chain(blocks.into_iter().zip(off)) {
            let (_folder, path) = written(&config, encoding);
            let weights = Weights::open(&path).unwrap();
            assert_eq!(weights.config(), Some(&config));
            for (name, shape, init) in config.tensors() {
                let mut parameter = Parameter::whole(&name, &shape, init);
                let mut whole = vec![0.0; parameter.len()];
                weights.fill(&parameter, 0..whole.len(), &mut whole).unwrap();
                let mut drawn = whole.clone();
                Weights::random(3).fill(&parameter, 0..drawn.len(), &mut drawn).unwrap();
                let mean = whole.iter().zip(&drawn).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>()
                    / whole.len() as f64;
                assert!(mean <= most, "{name} in {encoding} is off by {mean}");
                // Parts are cut out of the whole, wherever blocks begin.
                for (dim, &size) in shape.iter().enumerate() {
                    parameter.part = Some(Part { dim, start: size / 3, len: size / 2 });
                    let range = 1..parameter.len() - 1;
                    let mut part = vec![0.0; range.len()];
                    weights.fill(&parameter, range.clone(), &mut part).unwrap();
                    let tensor = Tensor::from_slice(&whole, &*shape, &Device::Cpu).unwrap();
                    let cut = tensor.narrow(dim, size / 3, size / 2).unwrap().flatten_all().unwrap();
                    assert_eq!(
                        part,
                        cut.to_vec1::<f32>().unwrap()[range],
                        "{name} in {encoding}, dimension {dim}"
                    );
                }
            }
        }
    }

    #[test]
    fn biases_are_permuted_as_matrices_are() {
        let config = Config { attention_bias: true, mlp_bias: true, ..small() };
        let mut writer = settings(&config);
        let values = |shape: &[usize]| (0..shape.iter().product()).map(|i| i as f32).collect::<Vec<f32>>();
        for (name, shape, _) in config.tensors() {
            let (name, values) = theirs(&config, &name, &shape, &values(&shape));
            writer.tensor(&name, &shape, 0, encoded(Encoding::F32, &values).1);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        writer.write(&path);
        let weights = Weights::open(&path).unwrap();
        assert_eq!(weights.config(), Some(&config));
        for (name, shape, init) in config.tensors() {
            let parameter = Parameter::whole(&name, &shape, init);
            let mut found = vec![0.0; parameter.len()];
            weights.fill(&parameter, 0..found.len(), &mut found).unwrap();
            assert_eq!(found, values(&shape), "{name}");
        }
    }

    #[test]
    fn what_is_no_such_llama_is_refused_by_setting_and_value() {
        let config = small();
        let (_folder, path) = written(&config, Encoding::F32);
        let said = |more: &dyn Fn(Writer) -> Writer| {
            let mut writer = more(settings(&config));
            writer.tensor("token_embd.weight", &[12, 256], 0, vec![0; 4 * 12 * 256]);
            writer.write(&path);
            Weights::open(&path).err().expect("an error").to_string()
        };
        use Setting::{Count, Flag, Text};
        for (key, value, words) in [
            ("llama.expert_count", Count(8), "llama.expert_count is 8"),
            ("llama.rope.dimension_count", Count(32), "llama.rope.dimension_count is 32 and a head has 64"),
            ("llama.attention.value_length", Count(32), "llama.attention.value_length is 32"),
            ("llama.rope.scaling.type", Text("yarn"), "llama.rope.scaling.type is yarn"),
            ("llama.attention.key_length", Flag(true), "llama.attention.key_length is not a count"),
            ("llama.attention.key_length", Count(63), "head_dim=63 is odd"),
        ] {
            let value = std::cell::Cell::new(Some(value));
            let error = said(&|writer| writer.set(key, value.take().expect("once")));
            assert!(error.contains(words) && error.contains("model.gguf"), "{error}");
        }
        let error = said(&|writer| writer);
        assert!(error.contains("10 missing: model.layers.0.input_layernorm.weight"), "{error}");
        Writer::default().set("general.architecture", Text("gemma")).write(&path);
        assert!(Config::open(&path).unwrap_err().to_string().contains("architecture is gemma"));
    }

    #[test]
    fn llama_3_s_factors_give_its_scaling_and_others_are_refused() {
        let rope_scaling = Scaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        let config = Config { rope_theta: 5e5, rope_scaling, ..small() };
        let frequencies = |scaling| Rope::new(64, 5e5, scaling).unwrap();
        let (plain, scaled) = (frequencies(Scaling::Default), frequencies(rope_scaling));
        let mut factors: Vec<f32> =
            plain.frequencies().iter().zip(scaled.frequencies()).map(|(a, b)| (a / b) as f32).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let read = |factors: &[f32]| {
            let mut writer = settings(&config);
            writer.tensor("token_embd.weight", &[12, 256], 0, vec![0; 4 * 12 * 256]);
            writer.tensor(ROPE_FACTORS, &[32], 0, encoded(Encoding::F32, factors).1);
            writer.write(&path);
            Config::open(&path)
        };
        assert_eq!(read(&factors).unwrap(), config);
        factors[20] *= 1.01;
        assert!(read(&factors).unwrap_err().to_string().contains("not those of Llama 3"));
    }
}
