//! What a step is predicted to send, before it is done. *Pure.*
//!
//! Formulas: ZeRO (arXiv 1910.02054) for the groups that share state, Megatron (arXiv 1909.08053, 2205.05198) for tp, Ring
//! Attention (arXiv 2310.01889) for cp, each with what is computed again and in which type numbers travel.

use nd_topology::placement::{Model, Ring};
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
    /// µs, with nothing hidden behind computation. Of a collective between hosts, what is not a host's own crosses to it once, at
    /// `gbps`; the rest goes at the speed of links inside.
    pub us: f64,
    /// What the calls are.
    pub what: String,
}

/// For each group of more than one rank, the one with the most frequent calls first. `rings` tells what groups of so many ranks
/// that lie so far apart in the mesh get of the links. `parameters` are those that a rank computes with, all of the model divided
/// by tp, `kept` those of them whose units stay gathered between the two passes, and `trained` those that have gradients.
pub fn predict(
    rings: &dyn Fn(usize, usize) -> Ring,
    mesh: &Mesh,
    policy: &Policy,
    model: &Model,
    (parameters, kept, trained): (f64, f64, f64),
    options: &Options,
) -> Vec<Predicted> {
    let [replicas, shard, cp_size, tp_size] = Axis::ALL.map(|axis| mesh.size(axis));
    let micro_batches = model.accumulation as f64;
    let reductions = if policy.reduce_each_micro_batch { micro_batches } else { 1.0 };
    let units = model.layers as f64 + 1.0;
    let (weights, gradients) = (model.weight_bytes as f64, model.gradient_bytes as f64);
    let of = |group, size, stride, way, (bytes, calls, what): (f64, f64, String)| {
        Predicted::of(group, (size, mesh.world()), &rings(size, stride), way, bytes, calls, what)
    };
    let collective = |group, size, stride, sent| of(group, size, stride, Way::HostByHost, sent);
    let mut all = Vec::new();
    if tp_size > 1 {
        all.push(collective("tp", tp_size, 1, tp(mesh, policy, model, options)));
        let copies = options.kv_replicas;
        if (2..tp_size).contains(&copies) {
            let (bytes, calls) = copied(mesh, model, copies);
            let what = "all-reduce of gradients of shared heads".into();
            all.push(collective("kv_replicas", copies, 1, (bytes, calls, what)));
        }
    }
    if cp_size > 1 {
        let way = if options.attention == Form::Ring { Way::RoundTheRing } else { Way::HostByHost };
        all.push(of("cp", cp_size, tp_size, way, cp(mesh, policy, model, options)));
    }
    // cp's ranks hold the same weights, so they share the state too.
    let shared = shard * cp_size;
    let all_reduce = || "all-reduce of gradients".to_owned();
    if policy.zero == 0 && shared > 1 && replicas > 1 {
        let ranks = shared * replicas;
        let (bytes, calls) = (2.0 * part(ranks) * trained * gradients * reductions, units * reductions);
        all.push(collective("loss", ranks, tp_size, (bytes, calls, all_reduce())));
        return all;
    }
    if shared > 1 {
        let (gathered, scatters) = match (policy.zero, policy.reshard) {
            (0, _) => (0.0, 2.0 * reductions),
            (1, _) => (parameters, reductions),
            (2, _) => (parameters, micro_batches),
            (_, Reshard::Never | Reshard::Groups(_)) => (parameters * micro_batches, micro_batches),
            _ => ((2.0 * parameters - kept) * micro_batches, micro_batches),
        };
        let bytes = part(shared) * (gathered * weights + scatters * trained * gradients);
        // A sum over all is one call, of twice the bytes of one that scatters it.
        let calls = units * if policy.zero == 0 { reductions } else { gathered / parameters + scatters };
        let what = match policy.zero {
            0 => all_reduce(),
            _ => "all-gather of weights, reduce-scatter of gradients".into(),
        };
        all.push(collective("fsdp", shared, tp_size, (bytes, calls, what)));
        if let (3, Reshard::Groups(near)) = (policy.zero, policy.reshard) {
            let again = (parameters - kept) * micro_batches;
            let what = "all-gather of weights, again in the backward pass".into();
            let (bytes, calls) = (part(near) * again * weights, units * again / parameters);
            all.push(collective("fsdp_near", near, tp_size, (bytes, calls, what)));
        }
    }
    if replicas > 1 {
        let own = trained / shared as f64;
        let (bytes, calls) = (2.0 * part(replicas) * own * gradients * reductions, units * reductions);
        all.push(collective("dp_replicate", replicas, shared * tp_size, (bytes, calls, all_reduce())));
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

/// How bytes come to other hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Ranks of a host gather and add up among themselves: of what all ranks have together, what is not a host's own crosses the
    /// link to others, once.
    HostByHost,
    /// Every rank passes on to the next all that it is passed.
    RoundTheRing,
}

impl Predicted {
    /// Each of the `size` ranks of a group, of `world` in all, sends `bytes` in `calls`.
    fn of(
        group: &'static str,
        (size, world): (usize, usize),
        ring: &Ring,
        way: Way,
        bytes: f64,
        calls: f64,
        what: String,
    ) -> Predicted {
        let slow = match way {
            Way::HostByHost if ring.hosts > 1 => bytes * crossing(size, ring.hosts),
            Way::HostByHost | Way::RoundTheRing => bytes,
        };
        Predicted {
            group,
            size,
            groups: world / size,
            between_hosts: ring.hosts > 1,
            gbps: ring.gbps,
            bytes,
            us: slow / ring.gbps / 1000.0 + (bytes - slow) / ring.inside_gbps / 1000.0 + calls * ring.call_us,
            what,
        }
    }
}

/// Of the bytes that each of `size` ranks on `hosts` hosts sends in a ring, those that a host sends to others for all its ranks.
pub(super) fn crossing(size: usize, hosts: usize) -> f64 {
    part(hosts) / part(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Links of which all groups get as much.
    const EVEN: Ring = Ring { gbps: 1.0, inside_gbps: 1.0, call_us: 1.0, hosts: 1 };

    fn bytes(mesh: &str, world: usize, policy: Policy) -> Vec<(&'static str, f64)> {
        let mesh = Mesh::parse(mesh, world).unwrap();
        let model =
            Model { layers: 4, accumulation: 3, weight_bytes: 2, gradient_bytes: 4, ..Model::default() };
        predict(&|_, _| EVEN, &mesh, &policy, &model, (800.0, 80.0, 800.0), &Options::default())
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
    fn time_is_that_of_the_links_and_of_each_call() {
        let us = |ring: Ring, way| Predicted::of("g", (4, 8), &ring, way, 3000.0, 30.0, String::new()).us;
        assert_eq!([us(EVEN, Way::HostByHost), us(EVEN, Way::RoundTheRing)], [3.0 + 30.0; 2]);
        // Of 4000 bytes a half is another host's, which crosses the slow link; the rest of the 3000 is of this host.
        let two = Ring { gbps: 0.5, inside_gbps: 10.0, hosts: 2, ..EVEN };
        assert!((us(two, Way::HostByHost) - (2.0 / 0.5 + 1.0 / 10.0 + 30.0)).abs() < 1e-9);
        assert_eq!(us(two, Way::RoundTheRing), 3.0 / 0.5 + 30.0);
        let four = Ring { hosts: 4, ..two };
        assert!((us(four, Way::HostByHost) - (3.0 / 0.5 + 30.0)).abs() < 1e-9);
    }

    #[test]
    fn groups_are_asked_for_by_how_they_lie_in_the_mesh() {
        let mesh = Mesh::parse("dp_replicate=2,dp_shard=3,cp=2,tp=4", 48).unwrap();
        let asked = |zero: u8, reshard: Reshard| {
            let seen = std::cell::RefCell::new(Vec::new());
            let rings = |size: usize, stride: usize| {
                seen.borrow_mut().push((size, stride));
                EVEN
            };
            let policy = Policy { zero, reshard, ..Policy::default() };
            let options = Options { kv_replicas: 2, ..Options::default() };
            let model = Model { layers: 4, ..Model::default() };
            let all = predict(&rings, &mesh, &policy, &model, (8.0, 0.0, 8.0), &options);
            let groups: Vec<&str> = all.iter().map(|p| p.group).collect();
            (groups.join(" "), seen.into_inner())
        };
        let (groups, lie) = asked(3, Reshard::Groups(3));
        assert_eq!(groups, "tp kv_replicas cp fsdp fsdp_near dp_replicate");
        assert_eq!(lie, [(4, 1), (2, 1), (2, 4), (6, 4), (3, 4), (2, 24)]);
        let (groups, lie) = asked(0, Reshard::Always);
        assert_eq!((groups.as_str(), &lie[3..]), ("tp kv_replicas cp loss", &[(12, 4)][..]));
    }
}
