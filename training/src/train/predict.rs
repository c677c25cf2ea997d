//! What a step is predicted to send, before it is done. *Pure.*
//!
//! Formulas: ZeRO (arXiv 1910.02054) for the groups that share state, Megatron (arXiv 1909.08053, 2205.05198) for tp, Ring
//! Attention (arXiv 2310.01889) for cp, each with what is computed again and in which type numbers travel.

use nd_topology::placement::{Model, Placement, Row};
use serde::Serialize;

use crate::context_parallel::Form;
use crate::llama::Options;
use crate::mesh::{Axis, Mesh};
use crate::shard::{Policy, Reshard};

/// What one rank sends in one of its groups in a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Predicted {
    /// The group's name, as in the [ledger](crate::group::Ledger).
    pub group: &'static str,
    /// Ranks in it.
    pub size: usize,
    /// Groups of this kind.
    pub groups: usize,
    /// Whether a hop of it leaves the host.
    pub between_hosts: bool,
    /// GB/s that its slowest hop gets while all groups run.
    pub gbps: f64,
    /// Bytes that each rank sends.
    pub bytes: f64,
    /// µs, with nothing hidden behind computation.
    pub us: f64,
    /// What the calls are.
    pub what: String,
}

/// For each group of more than one rank, the one with the most frequent calls first. `parameters` are those that a rank computes
/// with, all of the model divided by tp, `kept` those of them whose units stay gathered between the two passes, and `trained` those
/// that have gradients.
pub fn predict(
    placement: &Placement,
    mesh: &Mesh,
    policy: &Policy,
    model: &Model,
    (parameters, kept, trained): (f64, f64, f64),
    options: &Options,
) -> Vec<Predicted> {
    let row = |axis: Axis| placement.rows.iter().find(|row| row.axis == axis.name());
    let micro_batches = model.accumulation as f64;
    let reductions = if policy.reduce_each_micro_batch { micro_batches } else { 1.0 };
    let units = model.layers as f64 + 1.0;
    let (weights, gradients) = (model.weight_bytes as f64, model.gradient_bytes as f64);
    let mut all = Vec::new();
    if let Some(row) = row(Axis::Tp) {
        let (bytes, calls, what) = tp(mesh, policy, model, options);
        all.push(of("tp", mesh.world(), row.size, row, bytes, calls, what));
        let copies = options.kv_replicas;
        if (2..row.size).contains(&copies) {
            let (bytes, calls) = copied(mesh, model, copies);
            let what = "all-reduce of gradients of shared heads".into();
            all.push(of("kv_replicas", mesh.world(), copies, row, bytes, calls, what));
        }
    }
    if let Some(row) = row(Axis::Cp) {
        let (bytes, calls, what) = cp(mesh, policy, model, options);
        all.push(of("cp", mesh.world(), row.size, row, bytes, calls, what));
    }
    // cp's ranks hold the same weights, so they share the state too. The slower of both links decides.
    let shared = mesh.size(Axis::DpShard) * mesh.size(Axis::Cp);
    let slowest =
        [Axis::DpShard, Axis::Cp].into_iter().filter_map(row).min_by(|a, b| a.gbps.total_cmp(&b.gbps));
    let replicas = row(Axis::DpReplicate);
    if let (0, Some(_), Some(row)) = (policy.zero, slowest, replicas) {
        let ranks = shared * row.size;
        let (bytes, calls) = (2.0 * part(ranks) * trained * gradients * reductions, units * reductions);
        all.push(of("loss", mesh.world(), ranks, row, bytes, calls, "all-reduce of gradients".into()));
        return all;
    }
    if let Some(row) = slowest {
        let (gathered, scatters) = match (policy.zero, policy.reshard) {
            (0, _) => (0.0, 2.0 * reductions),
            (1, _) => (parameters, reductions),
            (2, _) => (parameters, micro_batches),
            (_, Reshard::Never | Reshard::Groups(_)) => (parameters * micro_batches, micro_batches),
            _ => ((2.0 * parameters - kept) * micro_batches, micro_batches),
        };
        let bytes = part(shared) * (gathered * weights + scatters * trained * gradients);
        let calls = units * (gathered / parameters + scatters);
        let what = match policy.zero {
            0 => "all-reduce of gradients",
            _ => "all-gather of weights, reduce-scatter of gradients",
        };
        all.push(of("fsdp", mesh.world(), shared, row, bytes, calls, what.into()));
        if let (3, Reshard::Groups(near)) = (policy.zero, policy.reshard) {
            let again = (parameters - kept) * micro_batches;
            let what = "all-gather of weights, again in the backward pass".into();
            let calls = units * again / parameters;
            all.push(of("fsdp_near", mesh.world(), near, row, part(near) * again * weights, calls, what));
        }
    }
    if let Some(row) = replicas {
        let own = trained / shared as f64;
        let (bytes, calls) = (2.0 * part(row.size) * own * gradients * reductions, units * reductions);
        all.push(of(
            "dp_replicate",
            mesh.world(),
            row.size,
            row,
            bytes,
            calls,
            "all-reduce of gradients".into(),
        ));
    }
    all
}

/// Bytes of numbers that are added up in f32.
const F32: f64 = 4.0;

/// Of what all have together, what is not a rank's own.
fn part(ranks: usize) -> f64 {
    (ranks - 1) as f64 / ranks as f64
}

/// Bytes, calls and what they are: of the activations between a block's halves, whole or as parts of the sequence; of the loss,
/// three numbers a token; of norms, whose gradients are parts under sequence parallelism; and of the copies of heads that all
/// ranks share.
fn tp(mesh: &Mesh, policy: &Policy, model: &Model, options: &Options) -> (f64, f64, String) {
    let (size, micro_batches, layers) = (mesh.size(Axis::Tp), model.accumulation as f64, model.layers as f64);
    let tokens = (model.micro_batch * model.sequence) as f64 / mesh.size(Axis::Cp) as f64;
    let whole = tokens * model.hidden as f64 * model.weight_bytes as f64;
    let again = if policy.checkpoint_activations { 1.0 } else { 0.0 };
    let loss = (3.0 * 2.0 * tokens * F32, 3.0);
    let (activations, norms, what) = if options.sequence_parallel {
        // Each half of a block gathers and scatters forward, scatters and gathers backward, and gathers once more what the
        // gradients of its weights need; the embedding scatters and gathers, and the head gathers, scatters and gathers.
        let calls = (10.0 + 4.0 * again) * layers + 5.0 + again;
        let norms = (2.0 * (2.0 * layers + 1.0) * model.hidden as f64 * F32, layers + 1.0);
        ((calls * whole, calls), norms, "all-gather and reduce-scatter of activations, 10 a block and 5")
    } else {
        // Each half of a block adds up forward and backward, the embedding forward and the head backward.
        let calls = (4.0 + 2.0 * again) * layers + 2.0 + again;
        ((2.0 * calls * whole, calls), (0.0, 0.0), "all-reduce of activations, 4 a block and 2")
    };
    let shared = if options.kv_replicas == size { heads(mesh, model, size) } else { (0.0, 0.0) };
    let bytes = activations.0 + loss.0 + norms.0 + shared.0;
    let calls = activations.1 + loss.1 + norms.1 + shared.1;
    let more = if policy.checkpoint_activations { "; those of the forward pass twice" } else { "" };
    (micro_batches * part(size) * bytes, micro_batches * calls, format!("{what}{more}"))
}

/// Of the groups that hold copies of the same heads of keys and values.
fn copied(mesh: &Mesh, model: &Model, copies: usize) -> (f64, f64) {
    let (bytes, calls) = heads(mesh, model, copies);
    (model.accumulation as f64 * part(copies) * bytes, model.accumulation as f64 * calls)
}

/// Twice the bytes of the gradients of a rank's keys' and values' matrices, and calls.
fn heads(mesh: &Mesh, model: &Model, copies: usize) -> (f64, f64) {
    let kept = (model.kv_heads as usize * copies / mesh.size(Axis::Tp)) as f64;
    let width = model.hidden as f64 / model.heads as f64;
    (2.0 * model.layers as f64 * 2.0 * kept * width * model.hidden as f64 * F32, model.layers as f64)
}

/// Bytes, calls and what they are: keys and values go round forward and backward, their gradients, in f32, back to their ranks.
fn cp(mesh: &Mesh, policy: &Policy, model: &Model, options: &Options) -> (f64, f64, String) {
    let (size, tp) = (mesh.size(Axis::Cp) as f64, mesh.size(Axis::Tp) as u64);
    let (own, each) = (model.heads / tp, model.heads / model.kv_heads);
    // Heads of keys and values that a rank's heads ask, see `Split::asked`.
    let asked = if own.is_multiple_of(each) {
        own / each
    } else if each.is_multiple_of(own) {
        1
    } else {
        own
    };
    let width = model.hidden as f64 / model.heads as f64;
    let tokens = (model.micro_batch * model.sequence) as f64 / size;
    let numbers = 2.0 * tokens * asked as f64 * width;
    let (values, gradients) = (numbers * model.weight_bytes as f64, numbers * F32);
    let times = if policy.checkpoint_activations { 3.0 } else { 2.0 };
    let others = size - 1.0;
    let (bytes, calls, what) = match options.attention {
        Form::Ring => (
            times * others * values + size * gradients,
            times * others + size,
            "ring of keys and values, and of their gradients",
        ),
        Form::AllGather => (
            times * others * values + others * gradients,
            times + 1.0,
            "all-gather of keys and values, reduce-scatter of their gradients",
        ),
    };
    let blocks = model.layers as f64 * model.accumulation as f64;
    (blocks * bytes, blocks * calls, what.into())
}

/// `bytes` in `calls` over a link of which the placement says what other bytes and calls take.
fn of(
    group: &'static str,
    world: usize,
    size: usize,
    row: &Row,
    bytes: f64,
    calls: f64,
    what: String,
) -> Predicted {
    let carry = |bytes: f64| bytes / row.gbps / 1000.0;
    let each = (row.us - carry(row.bytes)).max(0.0) / row.calls.max(1.0);
    Predicted {
        group,
        size,
        groups: world / size,
        between_hosts: row.link == "NET",
        gbps: row.gbps,
        bytes,
        us: carry(bytes) + calls * each,
        what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(axis: &str, size: usize, gbps: f64) -> Row {
        Row {
            axis: axis.into(),
            size,
            groups: 1,
            link: "SYS".into(),
            how: String::new(),
            gbps,
            bytes: 1000.0,
            calls: 10.0,
            what: "calls".into(),
            us: 11.0,
            default_us: 0.0,
            worst_us: 0.0,
        }
    }

    fn placement(rows: Vec<Row>) -> Placement {
        Placement {
            order: vec![],
            nesting: String::new(),
            rows,
            us: 0.0,
            default_us: 0.0,
            worst_us: 0.0,
            tried: 1,
        }
    }

    fn bytes(mesh: &str, world: usize, policy: Policy) -> Vec<(&'static str, f64)> {
        let mesh = Mesh::parse(mesh, world).unwrap();
        let axes = Axis::ALL.into_iter().filter(|&axis| mesh.size(axis) > 1);
        let placement = placement(axes.map(|axis| row(axis.name(), mesh.size(axis), 1.0)).collect());
        let model =
            Model { layers: 4, accumulation: 3, weight_bytes: 2, gradient_bytes: 4, ..Model::default() };
        predict(&placement, &mesh, &policy, &model, (800.0, 80.0, 800.0), &Options::default())
            .into_iter()
            .map(|p| (p.group, p.bytes))
            .collect()
    }

    #[test]
    fn bytes_are_those_of_the_papers() {
        let zero = |zero| Policy { zero, ..Policy::default() };
        assert_eq!(bytes("dp_shard=4", 4, zero(3)), [("fsdp", 600.0 * 3.0 * (1.9 * 2.0 + 4.0))]);
        let never = Policy { reshard: Reshard::Never, ..zero(3) };
        assert_eq!(bytes("dp_shard=4", 4, never), [("fsdp", 600.0 * 3.0 * (2.0 + 4.0))]);
        assert_eq!(bytes("dp_shard=4", 4, zero(2)), [("fsdp", 600.0 * (2.0 + 3.0 * 4.0))]);
        assert_eq!(bytes("dp_shard=4", 4, zero(0)), [("fsdp", 600.0 * 2.0 * 4.0)]);
        assert_eq!(bytes("dp_replicate=2,dp_shard=2", 4, zero(0)), [("loss", 600.0 * 2.0 * 4.0)]);
        let hybrid = bytes("dp_replicate=2,dp_shard=2,tp=2", 8, zero(3));
        assert_eq!(hybrid[2], ("dp_replicate", 800.0 / 2.0 * 4.0));
        assert_eq!(hybrid.iter().map(|p| p.0).collect::<Vec<_>>(), ["tp", "fsdp", "dp_replicate"]);
        // State is shared over cp as well.
        assert_eq!(bytes("cp=4", 4, zero(3))[1], ("fsdp", 600.0 * 3.0 * 7.8));
    }

    #[test]
    fn time_is_that_of_the_link_and_of_each_call() {
        let predicted = of("tp", 8, 2, &row("tp", 2, 1.0), 2000.0, 30.0, String::new());
        assert!((predicted.us - (2.0 + 30.0)).abs() < 1e-9 && predicted.groups == 4, "{predicted:?}");
    }
}
