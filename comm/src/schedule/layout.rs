//! Which ranks share a host, and the order that follows from it.

use std::hash::{Hash, Hasher};

use crate::fold::Fold;

/// Which ranks share a host. Hosts are ordered by their lowest rank; ranks of a host are ascending.
#[derive(Debug, Clone)]
pub struct Layout {
    hosts: Vec<Vec<u32>>,
    host_of: Vec<u32>,
    /// All ranks, host after host.
    order: Vec<u32>,
    /// Where each rank is in `order`.
    position: Vec<u32>,
    /// Where each host starts in `order`, and the end.
    starts: Vec<usize>,
}

impl Layout {
    /// From a host number for each rank (any numbers; only equality matters).
    pub fn new<H: PartialEq>(host_of_rank: &[H]) -> Layout {
        let mut firsts: Vec<usize> = Vec::new();
        let mut hosts: Vec<Vec<u32>> = Vec::new();
        let mut host_of = Vec::with_capacity(host_of_rank.len());
        for (rank, host) in host_of_rank.iter().enumerate() {
            // The host of the rank before is the likeliest.
            let last = host_of.last().map(|&at| at as usize).filter(|&at| host_of_rank[firsts[at]] == *host);
            let known = last.or_else(|| firsts.iter().position(|&first| host_of_rank[first] == *host));
            let at = known.unwrap_or_else(|| {
                firsts.push(rank);
                hosts.push(Vec::new());
                hosts.len() - 1
            });
            hosts[at].push(rank as u32);
            host_of.push(at as u32);
        }
        let order = hosts.concat();
        let mut position = vec![0; order.len()];
        for (at, &rank) in order.iter().enumerate() {
            position[rank as usize] = at as u32;
        }
        let mut starts = vec![0];
        for (i, ranks) in hosts.iter().enumerate() {
            starts.push(starts[i] + ranks.len());
        }
        Layout { hosts, host_of, order, position, starts }
    }

    /// All ranks on one host.
    pub fn single_host(world_size: usize) -> Layout {
        Layout::new(&vec![0; world_size])
    }

    /// The ranks of each host.
    pub fn hosts(&self) -> &[Vec<u32>] {
        &self.hosts
    }

    /// The index of the host that `rank` is on.
    pub fn host_of(&self, rank: usize) -> usize {
        self.host_of[rank] as usize
    }

    /// All ranks, host after host: the terms of [`Layout::canonical`].
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Where `rank` is in [`Layout::order`].
    pub fn position(&self, rank: usize) -> usize {
        self.position[rank] as usize
    }

    /// Where each host starts in [`Layout::order`], and the world size at the end.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.host_of.len()
    }

    /// The ranks of each host, if they are equally many everywhere and numbered host after host.
    pub fn uniform(&self) -> Option<usize> {
        let each = self.hosts[0].len();
        let uniform = self.hosts.iter().all(|ranks| ranks.len() == each);
        (uniform && self.order.iter().enumerate().all(|(at, &rank)| at == rank as usize)).then_some(each)
    }

    /// The reproducible order over all ranks: the fold, and which rank is which of its terms.
    pub fn canonical(&self) -> (Fold, Vec<u32>) {
        let sizes: Vec<_> = self.hosts.iter().map(Vec::len).collect();
        (Fold::canonical(&sizes), self.order.clone())
    }
}

// Everything else follows from `host_of`.
impl PartialEq for Layout {
    fn eq(&self, other: &Layout) -> bool {
        self.host_of == other.host_of
    }
}

impl Eq for Layout {}

impl Hash for Layout {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.host_of.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_come_in_the_order_of_their_lowest_rank() {
        let layout = Layout::new(&["b", "a", "b", "c", "a"]);
        assert_eq!(layout.hosts(), [vec![0, 2], vec![1, 4], vec![3]]);
        assert_eq!((layout.order(), layout.starts()), (&[0, 2, 1, 4, 3][..], &[0, 2, 4, 5][..]));
        assert!((0..5).all(|rank| layout.order()[layout.position(rank)] as usize == rank));
        assert_eq!(layout.uniform(), None);
        let uniform = |hosts: &[usize]| Layout::new(hosts).uniform();
        assert_eq!(
            (uniform(&[7, 7, 3, 3]), uniform(&[0, 1]), uniform(&[0, 1, 0, 1])),
            (Some(2), Some(1), None)
        );
        assert_eq!(layout, Layout::new(&[7, 1, 7, 3, 1]));
        assert_ne!(layout, Layout::new(&[7, 1, 7, 3, 3]));
    }
}
