//! How many bytes each axis of a mesh moves in one training step.
//!
//! Formulas: ZeRO (arXiv 1910.02054), Megatron (arXiv 1909.08053), Ring Attention (arXiv 2310.01889). Bytes are those
//! one rank sends in a ring.

use serde::Deserialize;

use super::mesh::Mesh;
use crate::{Error, Result};

/// The shape of a transformer and of its batch. The defaults are Llama 3.1 8B with 8,192 tokens a sequence, bf16
/// weights and fp32 gradients in reduction.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// Name, for people.
    pub name: String,
    /// Transformer blocks.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width of the feed-forward part.
    pub ffn: u64,
    /// Attention heads.
    pub heads: u64,
    /// Heads of keys and values.
    pub kv_heads: u64,
    /// Vocabulary.
    pub vocab: u64,
    /// Tokens in a sequence.
    pub sequence: u64,
    /// Sequences in a micro-batch of one rank.
    pub micro_batch: u64,
    /// Micro-batches in a step.
    pub accumulation: u64,
    /// Bytes of a gathered weight and of an activation.
    pub weight_bytes: u64,
    /// Bytes of a gradient in reduction.
    pub gradient_bytes: u64,
}

impl Default for Model {
    fn default() -> Self {
        Model {
            name: "Llama 3.1 8B".into(),
            layers: 32,
            hidden: 4096,
            ffn: 14336,
            heads: 32,
            kv_heads: 8,
            vocab: 128_256,
            sequence: 8192,
            micro_batch: 1,
            accumulation: 1,
            weight_bytes: 2,
            gradient_bytes: 4,
        }
    }
}

impl Model {
    /// Reads a model's TOML: the names of the fields; what is left out is as in [`Model::default`].
    pub fn from_toml(text: &str) -> Result<Model> {
        use crate::formats::detect::{TomlKind, expect_toml};
        expect_toml(text, TomlKind::Model)?;
        let model: Model =
            toml::from_str(text).map_err(|e| crate::library::toml_error("model TOML", text, &e))?;
        let all = [
            ("layers", model.layers),
            ("hidden", model.hidden),
            ("ffn", model.ffn),
            ("heads", model.heads),
            ("kv_heads", model.kv_heads),
            ("vocab", model.vocab),
            ("sequence", model.sequence),
            ("micro_batch", model.micro_batch),
            ("accumulation", model.accumulation),
            ("weight_bytes", model.weight_bytes),
            ("gradient_bytes", model.gradient_bytes),
        ];
        for (name, value) in all {
            if value == 0 || value > 1 << 32 {
                return Err(Error::invalid(format!("model.{name} is {value}; it is 1 to {}", 1u64 << 32)));
            }
        }
        for (big, n, small, d) in [
            ("hidden", model.hidden, "heads", model.heads),
            ("heads", model.heads, "kv_heads", model.kv_heads),
        ] {
            if n % d != 0 {
                return Err(Error::invalid(format!(
                    "model.{small} is {d}, which does not divide model.{big} = {n}"
                )));
            }
        }
        Ok(model)
    }

    /// Whether the mesh divides this model: each of `tp` ranks holds whole heads and an equal part of the feed-forward
    /// width, and each of `cp` an equal part of the sequence. `tp` need not divide the heads of keys and values: ranks
    /// then hold copies, if need be of all.
    ///
    /// # Errors
    /// [`Error::Mesh`] with the numbers.
    pub fn check(&self, mesh: &Mesh) -> Result<()> {
        let (tp, cp) = (mesh.size("tp") as u64, mesh.size("cp") as u64);
        for (axis, size, name, value) in [
            ("tp", tp, "heads", self.heads),
            ("tp", tp, "ffn", self.ffn),
            ("cp", cp, "sequence", self.sequence),
        ] {
            if value % size != 0 {
                return Err(Error::Mesh(format!(
                    "{axis}={size} does not divide {name} = {value} of {}; choose another {axis}, or give the model's \
                     shape with --model",
                    self.name
                )));
            }
        }
        Ok(())
    }

    /// Weights of one block: query, key, value and output projections, and three feed-forward matrices.
    pub fn block_parameters(&self) -> f64 {
        let (h, f) = (self.hidden as f64, self.ffn as f64);
        let kv = self.kv_heads as f64 / self.heads as f64;
        h * h * (2.0 + 2.0 * kv) + 3.0 * h * f
    }

    /// All weights, embedding and output head among them.
    pub fn parameters(&self) -> f64 {
        self.layers as f64 * self.block_parameters() + 2.0 * (self.vocab * self.hidden) as f64
    }
}

/// What one axis moves in one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Traffic {
    /// Bytes that each rank sends to its neighbour along the axis.
    pub bytes: f64,
    /// Collective calls.
    pub calls: f64,
    /// What they are, for people.
    pub what: String,
}

/// The traffic of each axis, in the mesh's order.
pub fn of(mesh: &Mesh, model: &Model) -> Vec<Traffic> {
    let (tp, cp) = (mesh.size("tp") as f64, mesh.size("cp") as f64);
    let shard = mesh.size("dp_shard") as f64;
    let replicate = mesh.size("dp_replicate") as f64;
    let (layers, steps) = (model.layers as f64, model.accumulation as f64);
    let (w, g) = (model.weight_bytes as f64, model.gradient_bytes as f64);
    let tokens = (model.micro_batch * model.sequence) as f64 / cp;
    let part = |n: f64| (n - 1.0) / n;
    let of = |name: &str| match name {
        // Two all-reduces forward and two backward in each block (or the same bytes as all-gather and
        // reduce-scatter with sequence parallelism).
        "tp" => Traffic {
            bytes: 4.0 * layers * steps * 2.0 * part(tp) * tokens * model.hidden as f64 * w,
            calls: 4.0 * layers * steps,
            what: "all-reduce of activations, 4 a block".into(),
        },
        // Keys and values go round W-1 times forward and backward, their gradients W times.
        "cp" => {
            let kv = model.hidden as f64 * model.kv_heads as f64 / model.heads as f64 / tp;
            Traffic {
                bytes: layers * steps * (3.0 * cp - 2.0) * 2.0 * tokens * kv * w,
                calls: layers * steps * (3.0 * cp - 2.0) / (cp - 1.0).max(1.0),
                what: "ring of keys and values, forward and backward".into(),
            }
        }
        // Weights are gathered forward and backward, gradients scattered, for every micro-batch.
        "dp_shard" => Traffic {
            bytes: steps * part(shard) * model.parameters() / tp * (2.0 * w + g),
            calls: 3.0 * layers * steps,
            what: "all-gather of weights ×2, reduce-scatter of gradients".into(),
        },
        // Once a step, each its shard.
        _ => Traffic {
            bytes: 2.0 * part(replicate) * model.parameters() / (tp * shard) * g,
            calls: layers,
            what: "all-reduce of gradient shards".into(),
        },
    };
    mesh.axes.iter().map(|a| of(&a.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_has_eight_billion() {
        let p = Model::default().parameters();
        assert!((p / 8.03e9 - 1.0).abs() < 0.01, "{p}");
    }

    #[test]
    fn bytes_follow_the_formulas() {
        let mesh = Mesh::parse("tp=2,dp_shard=4,dp_replicate=2", 16).unwrap();
        let model = Model {
            layers: 1,
            hidden: 8,
            ffn: 8,
            heads: 2,
            kv_heads: 2,
            vocab: 1,
            sequence: 4,
            ..Model::default()
        };
        let t = of(&mesh, &model);
        let psi = 8.0 * 8.0 * 4.0 + 3.0 * 64.0 + 2.0 * 8.0;
        assert_eq!(t[0].bytes, 2.0 * 0.5 * psi / 8.0 * 4.0);
        assert_eq!(t[1].bytes, 0.75 * psi / 2.0 * 8.0);
        assert_eq!(t[2].bytes, 4.0 * 2.0 * 0.5 * 4.0 * 8.0 * 2.0);
    }

    #[test]
    fn a_mesh_that_does_not_divide_the_model_is_refused() {
        let error = |mesh: &str, world| {
            Model::default().check(&Mesh::parse(mesh, world).unwrap()).unwrap_err().to_string()
        };
        let e = error("tp=72", 72);
        assert!(e.contains("tp=72") && e.contains("heads = 32"), "{e}");
        assert!(error("cp=3", 3).contains("sequence = 8192"));
        // More ranks than heads of keys and values share them, and so do ranks that do not divide them.
        assert!(Model::default().check(&Mesh::parse("tp=16", 16).unwrap()).is_ok());
        let three = Model { heads: 12, kv_heads: 3, ..Model::default() };
        for (mesh, world) in [("tp=2", 2), ("tp=4", 4)] {
            assert!(three.check(&Mesh::parse(mesh, world).unwrap()).is_ok(), "{mesh}");
        }
        let e = Model::from_toml("heads = 7\nkv_heads = 7").unwrap_err().to_string();
        assert!(e.contains("heads is 7") && e.contains("hidden = 4096"), "{e}");
    }

    #[test]
    fn nonsense_is_named() {
        assert!(Model::from_toml("layers = 0").unwrap_err().to_string().contains("model.layers is 0"));
        assert!(Model::from_toml("layer = 1").unwrap_err().to_string().contains("line 1"));
    }
}
