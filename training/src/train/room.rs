//! Whether a model fits into the memory of the host, before any of it is taken.

use std::path::Path;

use super::Config;
use crate::error::{Error, Result};
use crate::llama;
use crate::mesh::{Axis, Mesh};

/// Refuses what cannot fit: the least that one rank needs, times the ranks of its host, against what the host has left.
///
/// # Errors
/// [`Error::Config`] with both numbers.
pub fn check(model: &llama::Config, config: &Config, mesh: &Mesh, local_ranks: usize) -> Result<()> {
    match available() {
        Some(available) => fits(least(model, config, mesh)?, local_ranks, available),
        None => Ok(()),
    }
}

fn fits(each: f64, local_ranks: usize, available: f64) -> Result<()> {
    let needed = each * local_ranks as f64;
    if needed <= available {
        return Ok(());
    }
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    Err(Error::Config(format!(
        "{local_ranks} rank{} of this host need {:.1} GiB of memory at least, and it has {:.1} GiB left; shard over more ranks \
         (--mesh), or lower --hidden, --layers, the vocabulary, --micro-batch or --seq-len",
        if local_ranks == 1 { "" } else { "s" },
        gib(needed),
        gib(available)
    )))
}

/// Bytes that a rank needs whatever else it does: of each parameter its part of the master, the two means, the gradient and the
/// weight it computes with; of the activations each block's input, and the last logits.
fn least(model: &llama::Config, config: &Config, mesh: &Mesh) -> Result<f64> {
    let size = |axis| mesh.size(axis) as f64;
    let (tp, cp) = (size(Axis::Tp), size(Axis::Cp));
    let shards = size(Axis::DpShard) * cp;
    let parameters = parameters(model) / tp;
    let compute = config.dtype.size_in_bytes() as f64;
    let of = |from: u8| if config.zero >= from { parameters / shards } else { parameters };
    let state = of(1) * 12.0 + of(2) * 4.0 + if compute < 4.0 { of(3) * compute } else { 0.0 };
    let (micro_batch, _) = config.batching(mesh)?;
    let tokens = micro_batch as f64 * config.seq_len as f64 / cp;
    let blocks = model.num_hidden_layers as f64 * model.hidden_size as f64
        / if config.sequence_parallel { tp } else { 1.0 };
    Ok(state + tokens * (blocks * compute + model.vocab_size as f64 / tp * compute))
}

/// As [`llama::Config::parameters`], of any numbers: nothing is listed, and nothing overflows.
fn parameters(model: &llama::Config) -> f64 {
    let [hidden, ffn, heads, kv_heads, width] = [
        model.hidden_size,
        model.intermediate_size,
        model.num_attention_heads,
        model.num_key_value_heads,
        model.head_dim,
    ]
    .map(|n| n as f64);
    let block = hidden * width * (2.0 * heads + 2.0 * kv_heads) + 3.0 * hidden * ffn + 2.0 * hidden;
    let ends = if model.tie_word_embeddings { 1.0 } else { 2.0 } * model.vocab_size as f64 * hidden + hidden;
    model.num_hidden_layers as f64 * block + ends
}

/// Bytes that the host has left: of all its memory, and of what the container may use. None: the system does not say.
fn available() -> Option<f64> {
    let number = |path: &str| std::fs::read_to_string(Path::new(path)).ok()?.trim().parse::<f64>().ok();
    let all = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let host = line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0;
    // What is used there may be files, which make room.
    let container = number("/sys/fs/cgroup/memory.max");
    Some(container.map_or(host, |limit| limit.min(host)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_without_listing_them() {
        for tie_word_embeddings in [true, false] {
            let model = llama::Config { tie_word_embeddings, ..llama::Config::default() };
            assert_eq!(parameters(&model), model.parameters() as f64);
        }
    }

    #[test]
    fn what_cannot_fit_is_refused_with_both_numbers() {
        let mesh = |text: &str, world| Mesh::parse(text, world).unwrap();
        let config = Config::default();
        let small = least(&llama::Config::default(), &config, &mesh("", 1)).unwrap();
        fits(small, 4, 1e9).unwrap();
        let wide = llama::Config { hidden_size: 1_000_000, head_dim: 1_000_000, ..llama::Config::default() };
        let each = least(&wide, &config, &mesh("", 1)).unwrap();
        let error = fits(each, 2, 24.0 * f64::from(1 << 30)).unwrap_err().to_string();
        assert!(error.contains("2 ranks") && error.contains("and it has 24.0 GiB left"), "{error}");
        // State goes with the shards.
        let sharded = least(&wide, &config, &mesh("dp_shard=4", 4)).unwrap();
        assert!((each / sharded - 4.0).abs() < 0.01, "{each} {sharded}");
        for layers in [100_000_000, usize::MAX] {
            let deep = llama::Config { num_hidden_layers: layers, ..wide.clone() };
            assert!(check(&deep, &config, &mesh("", 1), 1).is_err());
        }
    }
}
