//! What HSDP keeps off the links between hosts. *Pure.*

use std::collections::{BTreeMap, BTreeSet};

use nd_topology::placement::Placement;

use super::{Predicted, predict};
use crate::mesh::{Axis, Mesh};

/// What crosses the links between hosts on a mesh that has copies of the shards, and what would if all of these ranks had one set
/// of shards; both as [`predict`](super::predict) has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Spared {
    /// As it is.
    pub own: Crossing,
    /// With one set of shards.
    pub flat: Crossing,
}

/// What the groups that share or copy the model's state send over links between hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct Crossing {
    /// The mesh.
    pub mesh: Mesh,
    /// Bytes that a host sends to others in a step: the one that sends most.
    pub bytes: f64,
    /// µs that the calls of these groups take, with nothing hidden behind computation.
    pub us: f64,
}

/// The mesh on which copies of shards have become shards; none where there are no copies, or no shards.
pub(super) fn flat(mesh: &Mesh) -> Option<Mesh> {
    let [replicate, shard, cp, tp] = Axis::ALL.map(|axis| mesh.size(axis));
    (replicate > 1 && shard * cp > 1).then(|| Mesh::new([1, replicate * shard, cp, tp]).ok()).flatten()
}

/// Of a mesh as it was placed and predicted. Ranks of a host add up and hand out among themselves first, so of what all have
/// together a host sends or is sent what is not its own, once.
pub(super) fn crossing(placement: &Placement, mesh: &Mesh, predicted: &[Predicted]) -> Crossing {
    let (mut bytes, mut us) = (0.0, 0.0);
    for p in predicted {
        let Some((groups, hosts)) = leaving(placement, mesh, p) else { continue };
        bytes += groups as f64 * p.bytes * predict::crossing(p.size, hosts);
        us += p.us;
    }
    Crossing { mesh: *mesh, bytes, us }
}

/// How many groups have ranks on one host and on others, on the host that has most of them, and on how many hosts such a group
/// is; none of groups that stay inside hosts, or move other things than the model's state.
fn leaving(placement: &Placement, mesh: &Mesh, predicted: &Predicted) -> Option<(usize, usize)> {
    let mut hosts: BTreeMap<[usize; 3], BTreeSet<usize>> = BTreeMap::new();
    for (place, slot) in placement.order.iter().enumerate() {
        let [replicate, shard, cp, tp] = mesh.coordinates(place);
        let part = shard * mesh.size(Axis::Cp) + cp;
        let group = match predicted.group {
            "fsdp" => [replicate, 0, tp],
            "fsdp_near" => [replicate, part / predicted.size, tp],
            "dp_replicate" => [part, 0, tp],
            _ => return None,
        };
        hosts.entry(group).or_default().insert(slot.host);
    }
    let mut leaving: BTreeMap<usize, usize> = BTreeMap::new();
    for host in hosts.values().filter(|hosts| hosts.len() > 1).flatten() {
        *leaving.entry(*host).or_default() += 1;
    }
    Some((leaving.into_values().max()?, hosts.values().map(BTreeSet::len).max()?))
}

#[cfg(test)]
mod tests {
    use nd_topology::cluster::Slot;

    use super::*;

    fn placement(hosts: &[usize]) -> Placement {
        Placement {
            order: hosts.iter().map(|&host| Slot { host, local: 0 }).collect(),
            nesting: String::new(),
            rows: Vec::new(),
            us: 0.0,
            default_us: 0.0,
            worst_us: 0.0,
            tried: 1,
        }
    }

    fn predicted(group: &'static str, size: usize, bytes: f64) -> Predicted {
        let (groups, between_hosts, gbps, us) = (1, true, 1.0, 10.0);
        Predicted { group, size, groups, between_hosts, gbps, bytes, us, what: String::new() }
    }

    #[test]
    fn one_rank_of_each_group_sends_to_another_host() {
        let mesh = Mesh::parse("dp_replicate=2,dp_shard=2", 4).unwrap();
        let all =
            [predicted("fsdp", 2, 100.0), predicted("dp_replicate", 2, 7.0), predicted("tp", 2, 1000.0)];
        let own = crossing(&placement(&[0, 0, 1, 1]), &mesh, &all);
        assert_eq!((own.bytes, own.us), (14.0, 10.0), "both shards are copied to the other host");
        let apart = crossing(&placement(&[0, 1, 0, 1]), &mesh, &all);
        assert_eq!((apart.bytes, apart.us), (200.0, 10.0), "and here both sets of shards lie on both");
        let flat = flat(&mesh).unwrap();
        assert_eq!(flat.to_string(), "dp_shard=4");
        // Of 400 bytes each host has a half, which crosses the link once.
        let crossed = crossing(&placement(&[0, 0, 1, 1]), &flat, &[predicted("fsdp", 4, 300.0)]);
        assert!((crossed.bytes - 200.0).abs() < 1e-9 && crossed.us == 10.0, "{crossed:?}");
        let near = predicted("fsdp_near", 2, 50.0);
        assert_eq!(crossing(&placement(&[0, 0, 1, 1]), &flat, std::slice::from_ref(&near)).bytes, 0.0);
        assert_eq!(crossing(&placement(&[0, 1, 1, 0]), &flat, &[near]).bytes, 100.0);
    }

    #[test]
    fn without_copies_or_shards_there_is_nothing_to_spare() {
        for (mesh, world) in [("dp_shard=4", 4), ("dp_replicate=4", 4), ("dp_replicate=2,tp=2", 4)] {
            assert_eq!(flat(&Mesh::parse(mesh, world).unwrap()), None, "{mesh}");
        }
        let mesh = Mesh::parse("dp_replicate=2,cp=2,tp=2", 8).unwrap();
        assert_eq!(flat(&mesh).unwrap().to_string(), "dp_shard=2,cp=2,tp=2");
    }
}
