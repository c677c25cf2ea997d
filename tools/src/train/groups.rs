//! Which ranks form the groups of each axis, and where they sit. *Pure.*

use std::collections::BTreeSet;

use nd_training::{Axis, Mesh};

/// Groups that are named of each axis, and ranks of each group.
const GROUPS: usize = 8;
const RANKS: usize = 16;

/// A line for each axis of more than one rank, by the launcher's numbers, and one for the hosts where there are several.
/// `order[r]` is the place of rank `r` in the mesh; `hosts` are the ranks of each host.
pub fn lines(mesh: &Mesh, order: &[usize], hosts: &[Vec<u32>]) -> String {
    let mut ranks = vec![0; order.len()];
    order.iter().enumerate().for_each(|(rank, &place)| ranks[place] = rank);
    let mut lines = String::new();
    if hosts.len() > 1 {
        let hosts = hosts.iter().map(|host| host.iter().map(|&rank| rank as usize).collect());
        lines += &line("hosts", hosts.collect());
    }
    for axis in Axis::ALL.into_iter().rev().filter(|&axis| mesh.size(axis) > 1) {
        let group = |place| mesh.group(place, &[axis]).into_iter().map(|place| ranks[place]).collect();
        let groups: BTreeSet<Vec<usize>> = (0..mesh.world()).map(group).collect();
        lines += &line(axis.name(), groups.into_iter().collect());
    }
    lines
}

fn line(name: &str, groups: Vec<Vec<usize>>) -> String {
    let more = |all: usize, most: usize| if all > most { " …" } else { "" };
    let group = |ranks: &Vec<usize>| {
        let shown: Vec<String> = ranks.iter().take(RANKS).map(usize::to_string).collect();
        format!("{}{}", shown.join(" "), more(ranks.len(), RANKS))
    };
    let shown: Vec<String> = groups.iter().take(GROUPS).map(group).collect();
    format!("Ranks by {name}: {}{}\n", shown.join(" | "), more(groups.len(), GROUPS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_by_the_launcher_s_numbers() {
        let mesh = Mesh::parse("dp_shard=2,tp=2", 4).unwrap();
        // Ranks 0 and 2 share a host, and tp with it.
        let said = lines(&mesh, &[0, 2, 1, 3], &[vec![0, 2], vec![1, 3]]);
        assert_eq!(said, "Ranks by hosts: 0 2 | 1 3\nRanks by tp: 0 2 | 1 3\nRanks by dp_shard: 0 1 | 2 3\n");
        assert_eq!(lines(&Mesh::parse("", 1).unwrap(), &[0], &[vec![0]]), "");
        let order: Vec<usize> = (0..64).collect();
        let many = lines(&Mesh::parse("dp_shard=2,tp=32", 64).unwrap(), &order, &[]);
        assert!(many.contains("14 15 … | 32 33") && many.contains("7 39 …\n"), "{many}");
    }
}
