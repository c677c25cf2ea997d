//! What is compared: a collective, how ranks reach each other, how many there are.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

/// Collectives that ours and nearly all peers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum Collective {
    /// Everyone gets the sum of all.
    AllReduce,
    /// Everyone gets what all have.
    AllGather,
    /// Everyone gets its part of the sum.
    ReduceScatter,
    /// Everyone gets what rank 0 has.
    Broadcast,
    /// Rank 0 gets the sum of all.
    Reduce,
    /// Everyone gets its part of what all have.
    AllToAll,
    /// Everyone gets what its neighbour has.
    SendRecv,
}

impl Collective {
    /// Its name on every command line.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "allreduce",
            Collective::AllGather => "allgather",
            Collective::ReduceScatter => "reducescatter",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::AllToAll => "alltoall",
            Collective::SendRecv => "sendrecv",
        }
    }
}

/// How ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Processes of one host, through memory.
    Shm,
    /// Processes of one host, through loopback TCP and nothing else.
    Tcp,
    /// Network namespaces as hosts; inside one, whatever is fastest.
    Net,
}

/// What our calls are given. Peers have plain memory in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum Buffers {
    /// Memory that ranks of the same host reach without a copy.
    Registered,
    /// Any slice.
    Plain,
}

/// One of the comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Which call.
    pub collective: Collective,
    /// Over what.
    pub transport: Transport,
    /// All ranks.
    pub ranks: usize,
    /// Of ours.
    pub buffers: Buffers,
    /// Hosts, with [`Transport::Net`].
    pub hosts: usize,
    /// What a host's link carries in each direction, Mbit/s (1e6), with [`Transport::Net`].
    pub mbit: u32,
}

impl Case {
    /// Ranks of one host.
    pub fn ranks_per_host(&self) -> usize {
        if self.transport == Transport::Net { self.ranks / self.hosts } else { self.ranks }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (collective, ranks) = (self.collective.name(), self.ranks);
        match self.transport {
            Transport::Shm => write!(f, "{collective}, shm, {ranks} ranks"),
            Transport::Tcp => write!(f, "{collective}, tcp, {ranks} ranks"),
            Transport::Net => {
                write!(f, "{collective}, {} hosts at {} Mbit/s, {ranks} ranks", self.hosts, self.mbit)
            }
        }?;
        match self.buffers {
            Buffers::Registered => Ok(()),
            Buffers::Plain => f.write_str(", plain slices"),
        }
    }
}
