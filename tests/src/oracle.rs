//! The reproducible order of reduction, in a few lines: what every algorithm is held against.

/// Inside a host the ranks' values are combined in a balanced binary tree and rounded once; the hosts' results are
/// combined in a balanced binary tree and rounded at each node. `hosts` holds each host's values by local index, in
/// the accumulator type.
pub fn canonical_reduce<A: Copy>(hosts: &[Vec<A>], op: impl Fn(A, A) -> A, round: impl Fn(A) -> A) -> A {
    let per_host: Vec<A> = hosts.iter().map(|ranks| round(tree(ranks, &op))).collect();
    tree(&per_host, &|a, b| round(op(a, b)))
}

/// A tree over n values splits at the largest power of two below n.
fn tree<A: Copy>(values: &[A], op: &impl Fn(A, A) -> A) -> A {
    if let [value] = values {
        return *value;
    }
    let middle = values.len().next_power_of_two() / 2;
    op(tree(&values[..middle], op), tree(&values[middle..], op))
}
