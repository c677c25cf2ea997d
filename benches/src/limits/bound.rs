//! The least time a collective could take, from what the machine can do.

use super::Limits;
use crate::compare::case::{Case, Collective, Transport};

/// Of an Ethernet frame of 1514 bytes these are TCP's payload, with timestamps: what `tc` counts and what arrives.
const PAYLOAD: f64 = 1448.0 / 1514.0;

impl Limits {
    /// The least time of `case` with `bytes`, µs; none where nothing was measured that bounds it.
    ///
    /// Shared memory: an all-reduce cannot beat threads that see all buffers; other collectives cannot beat copying
    /// (or summing, for reductions) what must be written, by all threads. TCP on one host: all cores together move no
    /// more than two streams do. A shaped network: each host's traffic at the link's rate. Where every rank waits for
    /// another in every call, also one hop.
    pub fn bound(&self, case: &Case, bytes: u64) -> Option<f64> {
        let hop = match case.transport {
            Transport::Shm => self.cache_line,
            Transport::Tcp | Transport::Net => self.tcp_one_way,
        };
        let hop = hop.filter(|_| !matches!(case.collective, Collective::Broadcast | Collective::Reduce));
        let moved = match case.transport {
            Transport::Shm => self.in_memory(case, bytes),
            // A stream each way is twice its speed, all together.
            Transport::Tcp => self.tcp_stream.map(|each| on_wire(case, bytes) / (2.0 * each * 1e3)),
            Transport::Net => Some(per_link(case, bytes) / (f64::from(case.mbit) / 8.0 * PAYLOAD)),
        };
        match (hop, moved) {
            (Some(hop), Some(moved)) => Some(hop.max(moved)),
            (hop, moved) => moved.or(hop),
        }
    }

    fn in_memory(&self, case: &Case, bytes: u64) -> Option<f64> {
        let at = self.sizes.get(&bytes)?;
        let (ranks, threads) = (case.ranks as f64, self.threads as f64);
        Some(match case.collective {
            Collective::AllReduce => *at.all_reduce.get(&case.ranks)?,
            Collective::ReduceScatter | Collective::Reduce => at.sum / threads,
            Collective::AllGather | Collective::AllToAll | Collective::SendRecv => {
                at.copy_all * ranks / threads
            }
            Collective::Broadcast => at.copy_all * (ranks - 1.0) / threads,
        })
    }
}

/// Bytes that all ranks send together, at least. In nccl-tests' sense of size: of the larger side.
fn on_wire(case: &Case, bytes: u64) -> f64 {
    let (ranks, bytes) = (case.ranks as f64, bytes as f64);
    match case.collective {
        Collective::AllReduce => 2.0 * (ranks - 1.0) * bytes,
        Collective::SendRecv => ranks * bytes,
        _ => (ranks - 1.0) * bytes,
    }
}

/// Bytes that the busiest link carries in one direction, at least, where ranks of a host share what they can.
fn per_link(case: &Case, bytes: u64) -> f64 {
    let (hosts, bytes) = (case.hosts as f64, bytes as f64);
    let here = case.ranks as f64 / hosts;
    match case.collective {
        Collective::AllReduce => 2.0 * (hosts - 1.0) / hosts * bytes,
        Collective::AllGather | Collective::ReduceScatter => (hosts - 1.0) / hosts * bytes,
        // Each of the host's ranks sends the part of its buffer that is for others.
        Collective::AllToAll => here * (hosts - 1.0) / hosts * bytes,
        Collective::Broadcast | Collective::Reduce | Collective::SendRecv => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::super::AtSize;
    use super::*;
    use crate::compare::case::Buffers;

    fn limits() -> Limits {
        let at = AtSize { copy: 8.0, copy_all: 10.0, sum: 12.0, all_reduce: [(2, 25.0)].into() };
        Limits {
            threads: 2,
            sizes: [(1 << 20, at)].into(),
            cache_line: Some(0.1),
            tcp_one_way: Some(5.0),
            tcp_exchange: Some(7.0),
            tcp_stream: Some(2.0),
        }
    }

    fn case(collective: Collective, transport: Transport, ranks: usize) -> Case {
        Case { collective, transport, ranks, buffers: Buffers::Registered, hosts: 2, mbit: 1000 }
    }

    #[test]
    fn shared_memory() {
        let of = |c, ranks| limits().bound(&case(c, Transport::Shm, ranks), 1 << 20);
        assert_eq!(of(Collective::AllReduce, 2), Some(25.0));
        assert_eq!(of(Collective::AllGather, 4), Some(20.0));
        assert_eq!(of(Collective::Broadcast, 2), Some(5.0));
        assert_eq!(of(Collective::Reduce, 2), Some(6.0));
        // Not measured: only the hop is known.
        assert_eq!(limits().bound(&case(Collective::AllReduce, Transport::Shm, 2), 64), Some(0.1));
    }

    #[test]
    fn wires() {
        let of = |c, t, ranks, bytes| limits().bound(&case(c, t, ranks), bytes).unwrap();
        // 2 × 1 MB at 2 × 2 GB/s.
        assert_eq!(of(Collective::AllReduce, Transport::Tcp, 2, 1_000_000), 500.0);
        assert_eq!(of(Collective::AllReduce, Transport::Tcp, 4, 1_000_000), 1500.0);
        assert_eq!(of(Collective::AllReduce, Transport::Tcp, 2, 4), 5.0);
        // 1 MB at 125 MB/s, with headers.
        let net = of(Collective::AllReduce, Transport::Net, 4, 1_000_000);
        assert!((net - 8000.0 * 1514.0 / 1448.0).abs() < 1e-6, "{net}");
        assert_eq!(of(Collective::AllToAll, Transport::Net, 4, 1_000_000), net);
    }
}
