//! Whether a model fits into the memory of the host, before any of it is taken.

use nd_topology::providers::memory;

use super::Config;
use crate::error::{Error, Result};
use crate::llama;
use crate::mesh::{Axis, Mesh};

/// Refuses what cannot fit: the least that one rank needs, times the ranks of its host, against what the host has left.
///
/// # Errors
/// [`Error::Config`] with both numbers.
pub fn check(model: &llama::Config, config: &Config, mesh: &Mesh, local_ranks: usize) -> Result<()> {
    match memory::available() {
        Some(available) => fits(least(model, config, mesh)?, local_ranks, available as f64),
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
    let parameters = model.parameters() / tp;
    let compute = config.dtype.size_in_bytes() as f64;
    let of = |from: u8| if config.zero >= from { parameters / shards } else { parameters };
    let state = of(1) * 12.0 + of(2) * 4.0 + if compute < 4.0 { of(3) * compute } else { 0.0 };
    let (micro_batch, _) = config.batching(mesh)?;
    let tokens = micro_batch as f64 * config.seq_len as f64 / cp;
    let blocks = model.num_hidden_layers as f64 * model.hidden_size as f64
        / if config.sequence_parallel { tp } else { 1.0 };
    Ok(state + tokens * (blocks * compute + model.vocab_size as f64 / tp * compute))
}

#[cfg(test)]
mod tests {
    use super::*;

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
