//! The targets, and the cases that they need.

use crate::compare::case::{Buffers, Case, Collective, Transport};
use crate::compare::sizes::Sizes;
use crate::limits::Limits;

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

/// A bound on the ratio of our time to another, at some sizes of some cases.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Which call,
    pub collective: Collective,
    /// over what,
    pub transport: Transport,
    /// with which memory,
    pub buffers: Buffers,
    /// by how many ranks, each of these.
    pub ranks: &'static [usize],
    /// The sizes for which it holds, in words,
    pub range: &'static str,
    /// and in bytes: the first,
    pub from: u64,
    /// and the last.
    pub to: u64,
    /// Those of them that are measured to see whether it does.
    pub sizes: &'static [u64],
    /// To what our time is compared.
    pub against: Reference,
    /// The ratio may be so large.
    pub at_most: f64,
}

/// To what our time is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// The peer that comes nearest to ours at that size, of all that were measured.
    FastestPeer,
    /// Four times a cache line's way from one core to the other, and 100 ns for everything else that a call does.
    FourHops,
    /// An all-reduce by threads that see all buffers ([`crate::limits::AtSize::all_reduce`]): each input is read once,
    /// and what no cache keeps is stored past it.
    Ideal,
    /// A ping-pong of 4 B between two sockets whose owners spin: there *and back*, which is two one-way times. In an
    /// all-reduce of two ranks each waits for one message of the other, but both send at the same time, and either's
    /// system calls and protocol work delay the other's on loopback, which one after the other do not.
    PingPong,
    /// What an all-reduce of two ranks does and nothing more: both sockets send 4 B, then spin for the other's. It takes
    /// less than a ping-pong, and so is the stricter of the two.
    Exchange,
}

impl Reference {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Reference::FastestPeer => "fastest peer",
            Reference::FourHops => "4 hops+100 ns",
            Reference::Ideal => "ideal",
            Reference::PingPong => "ping-pong",
            Reference::Exchange => "exchange",
        }
    }

    /// The limit's time, µs; none where it was not measured, and for peers.
    pub fn time(self, limits: &Limits, case: &Case, bytes: u64) -> Option<f64> {
        match self {
            Reference::FastestPeer => None,
            Reference::FourHops => limits.cache_line.map(|hop| 4.0 * hop + 0.1),
            Reference::Ideal => limits.sizes.get(&bytes)?.all_reduce.get(&case.ranks).copied(),
            Reference::PingPong => limits.tcp_one_way.map(|way| 2.0 * way),
            Reference::Exchange => limits.tcp_exchange,
        }
    }
}

impl Target {
    /// Whether it is about such a case.
    pub fn concerns(&self, case: &Case) -> bool {
        let same = (self.collective, self.transport, self.buffers)
            == (case.collective, case.transport, case.buffers);
        same && self.ranks.contains(&case.ranks)
    }

    /// Whether it is about such a size.
    pub fn covers(&self, bytes: u64) -> bool {
        (self.from..=self.to).contains(&bytes)
    }

    /// "allreduce, shm, 2 ranks".
    pub fn group(&self) -> String {
        let ranks: Vec<_> = self.ranks.iter().map(usize::to_string).collect();
        let buffers = if self.buffers == Buffers::Plain { ", plain slices" } else { "" };
        let transport = match self.transport {
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
            Transport::Net => "hosts",
        };
        format!("{}, {transport}, {} ranks{buffers}", self.collective.name(), ranks.join(" and "))
    }
}

/// All of them, in the order of the table.
pub fn targets() -> Vec<Target> {
    use Reference::{Exchange, FastestPeer, FourHops, Ideal, PingPong};
    let base = Target {
        collective: Collective::AllReduce,
        transport: Transport::Shm,
        buffers: Buffers::Registered,
        ranks: &[2],
        range: "all sizes",
        from: 0,
        to: u64::MAX,
        sizes: &[],
        against: FastestPeer,
        at_most: 1.0,
    };
    let small = Target { range: "4 B–1 KiB", to: K, sizes: &[4, 64, K], ..base.clone() };
    let middle = Target {
        range: "4 KiB–1 MiB",
        from: 4 * K,
        to: M,
        sizes: &[4 * K, 16 * K, 64 * K, 256 * K, M],
        ..base.clone()
    };
    let large = Target { range: "≥ 4 MiB", from: 4 * M, sizes: &[4 * M, 16 * M, 64 * M], ..base.clone() };
    let mut all = vec![
        small.clone(),
        Target { against: FourHops, ..small.clone() },
        Target { at_most: 0.6, ..middle.clone() },
        Target { against: Ideal, at_most: 1.6, ..middle },
        Target { at_most: 0.5, ..large.clone() },
        Target { against: Ideal, at_most: 1.3, ..large },
        Target {
            buffers: Buffers::Plain,
            range: "≥ 64 KiB",
            from: 64 * K,
            sizes: &[64 * K, 256 * K, M, 4 * M, 16 * M, 64 * M],
            at_most: 0.8,
            ..base.clone()
        },
    ];
    for ranks in [&[4], &[8]] {
        let sizes = &[4, 64, K, 16 * K, 256 * K, 4 * M, 64 * M];
        all.push(Target { ranks, sizes, at_most: 0.8, ..base.clone() });
    }
    let tcp = Target { transport: Transport::Tcp, ..small };
    all.push(tcp.clone());
    all.push(Target { against: PingPong, at_most: 1.3, ..tcp.clone() });
    all.push(Target { against: Exchange, at_most: 1.3, ..tcp.clone() });
    for ranks in [&[2], &[4], &[8]] {
        let sizes = &[256 * K, 4 * M, 64 * M];
        all.push(Target {
            ranks,
            range: "≥ 256 KiB",
            from: 256 * K,
            to: u64::MAX,
            sizes,
            at_most: 0.8,
            ..tcp.clone()
        });
    }
    for transport in [Transport::Shm, Transport::Tcp] {
        for collective in [
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::Broadcast,
            Collective::AllToAll,
            Collective::SendRecv,
        ] {
            // 4 ranks' parts, which are multiples of 16 bytes, begin at 64 bytes in all.
            let sizes = match collective {
                Collective::Broadcast | Collective::SendRecv => &[4, 64, K, 16 * K][..],
                _ => &[64, K, 16 * K],
            };
            let below = Target {
                collective,
                transport,
                ranks: &[2, 4],
                range: "< 64 KiB",
                to: 64 * K - 1,
                sizes,
                ..base.clone()
            };
            let sizes = &[64 * K, M, 16 * M];
            let above = Target {
                range: "≥ 64 KiB",
                from: 64 * K,
                to: u64::MAX,
                sizes,
                at_most: 0.7,
                ..below.clone()
            };
            all.extend([below, above]);
        }
    }
    all
}

/// Whether a case has a target that is not about peers: the machine's limits are to be measured beside it.
pub fn has_limit(case: &Case) -> bool {
    targets().iter().any(|target| target.against != Reference::FastestPeer && target.concerns(case))
}

/// Every case that has a target, with the sizes at which it is measured.
pub fn cases() -> Vec<(Case, Sizes)> {
    let mut cases: Vec<(Case, Sizes)> = Vec::new();
    for target in targets() {
        for &ranks in target.ranks {
            let (collective, transport, buffers) = (target.collective, target.transport, target.buffers);
            let case = Case { collective, transport, ranks, buffers, hosts: 1, mbit: 0 };
            let index = cases.iter().position(|(other, _)| *other == case).unwrap_or_else(|| {
                cases.push((case, Sizes(Vec::new())));
                cases.len() - 1
            });
            let sizes = &mut cases[index].1.0;
            sizes.extend(target.sizes);
            sizes.sort_unstable();
            sizes.dedup();
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_once_with_all_its_sizes() {
        let cases = cases();
        assert_eq!(cases.len(), 7 + 20);
        let shown: Vec<_> =
            cases[..3].iter().map(|(case, sizes)| format!("{case}: {}", sizes.list())).collect();
        assert_eq!(shown[0].matches(',').count(), 2 + 10, "{shown:?}");
        assert!(shown[1].starts_with("allreduce, shm, 2 ranks, plain slices: 65536,"), "{shown:?}");
        for (case, sizes) in &cases {
            assert!(sizes.0.windows(2).all(|w| w[0] < w[1]), "{case}");
        }
    }

    #[test]
    fn sizes_lie_where_their_target_holds() {
        for target in targets() {
            assert!(!target.sizes.is_empty() && target.sizes.iter().all(|s| target.covers(*s)), "{target:?}");
        }
    }

    #[test]
    fn two_cases_are_held_against_the_machine() {
        let bounded = cases().iter().filter(|(case, _)| has_limit(case)).count();
        assert_eq!(bounded, 2);
    }

    #[test]
    fn limits() {
        let at = crate::limits::AtSize { all_reduce: [(2, 7.0)].into(), ..Default::default() };
        let limits = Limits {
            sizes: [(4 * M, at)].into(),
            cache_line: Some(0.06),
            tcp_one_way: Some(4.5),
            tcp_exchange: Some(7.5),
            ..Limits::default()
        };
        let case = cases()[0].0;
        let of = |reference: Reference, bytes| reference.time(&limits, &case, bytes);
        assert!((of(Reference::FourHops, 4).unwrap() - 0.34).abs() < 1e-9);
        assert_eq!(of(Reference::Ideal, 4 * M), Some(7.0));
        assert_eq!(of(Reference::Ideal, M), None);
        assert_eq!((of(Reference::PingPong, K), of(Reference::Exchange, K)), (Some(9.0), Some(7.5)));
    }
}
