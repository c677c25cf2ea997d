//! The model once more, in loops over f64 without anything clever: what the tests compare with.

use std::collections::BTreeMap;

use super::{Config, IGNORE};
use crate::ops::Scaling;

/// Tensors by name.
pub(super) type Named = BTreeMap<String, Vec<f64>>;

/// What comes out of one sequence from its beginning.
pub(super) struct Outcome {
    /// Scores, `[s, vocabulary]`.
    pub logits: Vec<f64>,
    /// Sum of the loss over the labels that count.
    pub loss: f64,
}

/// Forward, for one sequence.
pub(super) fn forward(config: &Config, weights: &Named, tokens: &[u32], labels: &[u32]) -> Outcome {
    let hidden = config.hidden_size;
    let weight = |name: &str| weights[name].as_slice();
    let table = weight("model.embed_tokens.weight");
    let mut x: Vec<Vec<f64>> =
        tokens.iter().map(|&t| table[t as usize * hidden..][..hidden].to_vec()).collect();
    for layer in 0..config.num_hidden_layers {
        let bias = |name: &str| weights.get(&format!("model.layers.{layer}.{name}.bias"));
        let weight = |name: &str| weight(&format!("model.layers.{layer}.{name}.weight"));
        let linear = |x: &[f64], name: &str| {
            let mut y = product(x, weight(name));
            bias(name).inspect(|bias| add(&mut y, bias));
            y
        };
        let normed: Vec<_> =
            x.iter().map(|x| norm(x, weight("input_layernorm"), config.rms_norm_eps)).collect();
        let project =
            |name: &str| normed.iter().map(|x| linear(x, &format!("self_attn.{name}"))).collect::<Vec<_>>();
        let attended = attend(config, project("q_proj"), project("k_proj"), project("v_proj"));
        for (x, attended) in x.iter_mut().zip(attended) {
            add(x, &linear(&attended, "self_attn.o_proj"));
            let normed = norm(x, weight("post_attention_layernorm"), config.rms_norm_eps);
            let gate = linear(&normed, "mlp.gate_proj");
            let up = linear(&normed, "mlp.up_proj");
            let inner: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            add(x, &linear(&inner, "mlp.down_proj"));
        }
    }
    let head = if config.tie_word_embeddings { table } else { weight("lm_head.weight") };
    let mut outcome = Outcome { logits: Vec::new(), loss: 0.0 };
    for (x, &label) in x.iter().zip(labels) {
        let logits = product(&norm(x, weight("model.norm.weight"), config.rms_norm_eps), head);
        if label != IGNORE {
            let sum: f64 = logits.iter().map(|l| l.exp()).sum();
            outcome.loss += sum.ln() - logits[label as usize];
        }
        outcome.logits.extend(logits);
    }
    outcome
}

/// Causal attention of all heads, positions counted from 0.
fn attend(config: &Config, mut q: Vec<Vec<f64>>, mut k: Vec<Vec<f64>>, v: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let d = config.head_dim;
    for (position, row) in q.iter_mut().chain(&mut k).enumerate() {
        row.chunks_mut(d).for_each(|head| turn(head, (position % v.len()) as f64, config));
    }
    let group = config.num_attention_heads / config.num_key_value_heads;
    let mut out = vec![vec![0.0; q[0].len()]; q.len()];
    for i in 0..q.len() {
        for head in 0..config.num_attention_heads {
            let of = |row: &[f64], head: usize| row[head * d..][..d].to_vec();
            let q = of(&q[i], head);
            let score = |j: usize| {
                let k = of(&k[j], head / group);
                (q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() / (d as f64).sqrt()).exp()
            };
            let scores: Vec<f64> = (0..=i).map(score).collect();
            let sum: f64 = scores.iter().sum();
            for (j, score) in scores.iter().enumerate() {
                for (out, v) in out[i][head * d..][..d].iter_mut().zip(of(&v[j], head / group)) {
                    *out += score / sum * v;
                }
            }
        }
    }
    out
}

fn turn(head: &mut [f64], position: f64, config: &Config) {
    let half = head.len() / 2;
    for i in 0..half {
        let frequency = scaled(config.rope_theta.powf(-(i as f64) / half as f64), config.rope_scaling);
        let (sin, cos) = (position * frequency).sin_cos();
        let (a, b) = (head[i], head[i + half]);
        head[i] = a * cos - b * sin;
        head[i + half] = a * sin + b * cos;
    }
}

/// As Hugging Face's `modeling_rope_utils` says it: by wavelengths.
fn scaled(frequency: f64, scaling: Scaling) -> f64 {
    let (factor, low, high, original) = match scaling {
        Scaling::Default => return frequency,
        Scaling::Linear { factor } => return frequency / factor,
        Scaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original,
        } => (factor, low, high, original as f64),
    };
    let wavelength = 2.0 * std::f64::consts::PI / frequency;
    if wavelength < original / high {
        frequency
    } else if wavelength > original / low {
        frequency / factor
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

fn norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(x, w)| x / (mean + eps).sqrt() * w).collect()
}

/// `x · wᵀ` for `w` `[outputs, inputs]`.
fn product(x: &[f64], w: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
