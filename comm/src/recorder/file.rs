//! What is written to a file, and how it is read back.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::identity::Peer;
use super::ring::Entry;
use super::standstill::Standstill;
use crate::error::Error;
use crate::exec::called::Called;
use crate::exec::peers::DROPPED;
use crate::exec::stamp::Stamp;
use crate::number::{DataType, ReduceOp};
use crate::schedule::{Collective, algorithms};

/// In [`Dump::format`].
pub const FORMAT: &str = "nd flight recorder";
/// In [`Dump::version`]; other versions are not read.
pub const VERSION: u32 = 1;
/// Longer files are not read: 65536 calls and 4096 ranks take 17 MB.
pub const FILE_MAX: u64 = 64 << 20;
/// A world of more ranks is not believed.
const WORLD_MAX: usize = 1 << 24;

/// What one rank knows of one communicator. Times are nanoseconds since the communicator was made, by this rank's own
/// clock; those of different hosts cannot be compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dump {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The version of nd that wrote it.
    pub program: String,
    /// The job, the same on all its ranks and for all its communicators.
    pub job: String,
    /// The communicator: `world`, or for parts `world-1c0`: of its first split, color 0.
    pub communicator: String,
    /// The rank in this communicator.
    pub rank: usize,
    /// How many ranks the communicator has.
    pub world_size: usize,
    /// The rank in the job's first communicator.
    pub world_rank: usize,
    /// Its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When the communicator was made, ns since 1970 by this host's clock.
    pub made_unix_ns: u64,
    /// When this was written.
    pub written_ns: u64,
    /// Why it was written; none: the program asked for it.
    pub failure: Option<Failure>,
    /// The call that is not done.
    pub current: Option<Current>,
    /// Calls that are no longer among `calls`.
    pub forgotten: u64,
    /// The last calls, the oldest first.
    pub calls: Vec<Call>,
    /// All ranks; in large worlds only those that the failure is about.
    pub ranks: Vec<Peer>,
}

/// The call that is not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Current {
    /// Which; the first of a group.
    pub call: Call,
    /// How long it had lasted when it failed or, if it has not, when this was written, ns.
    pub lasted_ns: u64,
    /// Ranks without which it could not go on when that was last looked at.
    pub awaited: Vec<usize>,
    /// Ranks from which something had come for this call.
    pub heard: Vec<usize>,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Its number on the communicator, from 1; 0 for sends and receives, which only two ranks count.
    pub call: u32,
    /// `all_reduce`, with `_v` for v-variants; `send` or `recv`; `split's all_gather` where it is part of something else.
    pub collective: String,
    /// The element type; none for a barrier.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub data_type: Option<String>,
    /// The operation, where values are combined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// Elements, as the fingerprint has them: of the buffer, or of a rank's part; of all parts for v-variants.
    pub count: u64,
    /// The root, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<u32>,
    /// The other rank of a send or receive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<u32>,
    /// A hash of the counts of a v-variant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts_hash: Option<u32>,
    /// By which algorithm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<String>,
    /// Bytes: of the buffer, or of all parts together.
    pub bytes: u64,
    /// When it was entered.
    pub entered_ns: u64,
    /// When it was done; none: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_ns: Option<u64>,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It is done.
    Done,
    /// It is going on.
    Running,
    /// It gave an error.
    Failed,
}

/// Why calls fail from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of error it is.
    pub kind: Kind,
    /// The error's text.
    pub error: String,
    /// The rank that it is about, other than this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<usize>,
    /// The two sides of a mismatch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sides: Vec<Side>,
    /// Where the ranks were, if the time was up; files of older versions have it only in the error's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standstill: Option<Standstill>,
}

/// What one rank called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// The rank.
    pub rank: usize,
    /// Its call.
    pub call: Call,
}

/// Kinds of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The time was up.
    Timeout,
    /// Ranks called different things.
    Mismatch,
    /// The peer sent more or less than this rank expected.
    Length,
    /// The peer is gone.
    Lost,
    /// The peer dropped its communicator.
    Left,
    /// The peer failed, and said so.
    Told,
    /// This rank's own program ended the call.
    Aborted,
    /// Something else went wrong on this rank; with a peer: it found no way to it. (Not a kind of its own, which older
    /// versions could not read.)
    Other,
}

impl Failure {
    /// Of an error of a call.
    pub(super) fn of(error: &Error) -> Failure {
        let (kind, peer) = match error {
            Error::Timeout { told_by: None, .. } => (Kind::Timeout, None),
            Error::Timeout { told_by, .. } => (Kind::Told, *told_by),
            Error::Mismatch { .. } => (Kind::Mismatch, None),
            Error::Length { peer, .. } => (Kind::Length, Some(*peer)),
            Error::PeerFailed { culprit, why, .. } if why == DROPPED => (Kind::Left, Some(*culprit)),
            Error::PeerFailed { culprit, .. } => (Kind::Told, Some(*culprit)),
            Error::Transport { source: nd_transport::Error::PeerLost { rank, .. }, .. } => {
                (Kind::Lost, Some(*rank))
            }
            Error::Transport { source: nd_transport::Error::Unreachable { to, .. }, .. } => {
                (Kind::Other, Some(*to))
            }
            Error::Aborted { rank, culprit, .. } if rank != culprit => (Kind::Told, Some(*culprit)),
            Error::Aborted { .. } | Error::Failed { .. } => (Kind::Aborted, None),
            _ => (Kind::Other, None),
        };
        let side = |rank: usize, stamp: &Stamp| Side { rank, call: Call::of_stamp(stamp) };
        let sides = match error {
            Error::Mismatch { rank, ours, peer, theirs } => vec![side(*rank, ours), side(*peer, theirs)],
            _ => Vec::new(),
        };
        let standstill = match error {
            Error::Timeout { standstill, .. } => Some(Standstill::of(standstill)),
            _ => None,
        };
        Failure { kind, error: error.to_string(), peer, sides, standstill }
    }
}

impl Call {
    /// What the stamp tells; times and bytes are 0.
    fn of_stamp(stamp: &Stamp) -> Call {
        let (variable, collective) = (stamp.is_variable(), stamp.kind());
        let rooted = collective.is_ok_and(Collective::has_root);
        let typed = collective != Ok(Collective::Barrier);
        let op = ReduceOp::ALL.iter().find(|op| op.code() == stamp.op);
        let algorithm = algorithms().get(usize::from(stamp.algorithm).wrapping_sub(1));
        Call {
            call: stamp.sequence,
            collective: stamp.name(),
            data_type: typed.then(|| match DataType::try_from(stamp.data_type) {
                Ok(data_type) => data_type.name().to_owned(),
                Err(_) => format!("type {}", stamp.data_type),
            }),
            op: op.map(|op| op.name().to_owned()),
            count: stamp.count,
            root: rooted.then_some(stamp.root),
            peer: None,
            counts_hash: (variable && !rooted).then_some(stamp.root),
            algorithm: algorithm.map(|a| a.name().to_owned()),
            bytes: 0,
            entered_ns: 0,
            done_ns: None,
            outcome: Outcome::Failed,
        }
    }

    /// The same of a call of one rank.
    pub(super) fn of_called(called: &Called) -> Call {
        let call = Call::of_stamp(&called.stamp);
        match called.is_single() {
            true => {
                let collective = if called.sends { "send" } else { "recv" };
                Call { collective: collective.into(), peer: Some(called.peer), ..call }
            }
            false => call,
        }
    }

    /// Of what the ring has, with its ticks as nanoseconds.
    pub(super) fn of_entry(entry: &Entry, world_size: usize, failed: bool, ns: impl Fn(u64) -> u64) -> Call {
        let stamp = &entry.stamp;
        let mut call = Call::of_stamp(stamp);
        let collective = stamp.kind();
        if collective == Ok(Collective::SendRecv) {
            call.collective = if entry.sends { "send" } else { "recv" }.into();
            call.peer = Some(entry.peer);
        }
        call.bytes = match stamp.is_variable() {
            false => bytes(stamp, collective.ok(), world_size),
            true => entry.bytes,
        };
        let done = (entry.done > 0).then(|| ns(entry.done));
        call.entered_ns = match (entry.entered, done) {
            // It was short and never waited.
            (0, Some(done)) => done,
            (0, None) => 0,
            (entered, _) => ns(entered),
        };
        call.done_ns = done.map(|done| done.max(call.entered_ns));
        call.outcome = match done {
            Some(_) => Outcome::Done,
            None if failed => Outcome::Failed,
            None => Outcome::Running,
        };
        call
    }

    /// Whether both are the same call on two ranks.
    pub fn matches(&self, other: &Call) -> bool {
        self.same_arguments(other) && self.algorithm == other.algorithm
    }

    /// Whether both are the same but for the algorithm.
    pub(super) fn same_arguments(&self, other: &Call) -> bool {
        let fingerprint = |c: &Call| (c.call, c.count, c.root, c.counts_hash);
        fingerprint(self) == fingerprint(other)
            && self.collective == other.collective
            && self.data_type == other.data_type
            && self.op == other.op
    }
}

fn bytes(stamp: &Stamp, collective: Option<Collective>, world_size: usize) -> u64 {
    let size = DataType::try_from(stamp.data_type).map_or(0, |t| t.size() as u64);
    let parts = match collective {
        Some(
            Collective::ReduceScatter
            | Collective::AllGather
            | Collective::Gather
            | Collective::Scatter
            | Collective::AllToAll,
        ) => world_size as u64,
        _ => 1,
    };
    stamp.count.saturating_mul(size).saturating_mul(parts)
}

/// As the caller wrote it: `all_reduce(1024 × float, sum)`.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.collective)?;
        if let Some(data_type) = &self.data_type {
            write!(f, "{} × {data_type}", self.count)?;
        }
        if let Some(op) = &self.op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        match self.peer {
            Some(peer) if self.collective == "send" => write!(f, " to rank {peer}")?,
            Some(peer) => write!(f, " from rank {peer}")?,
            None => {}
        }
        f.write_str(")")
    }
}

#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
    #[serde(default)]
    program: String,
}

impl Dump {
    /// From a file's content.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub fn parse(bytes: &[u8]) -> Result<Dump, String> {
        if bytes.is_empty() {
            return Err("it is empty; the disk may have been full when it was written".into());
        }
        let broken = |e: serde_json::Error| match e.is_eof() {
            true => format!("it ends in the middle ({} bytes); copy it anew", bytes.len()),
            false => format!("it is not a flight recorder's file: {e}"),
        };
        let head: Head = serde_json::from_slice(bytes).map_err(broken)?;
        if head.format != FORMAT {
            return Err(format!("it says that it is {:?}, not {FORMAT:?}", short(&head.format)));
        }
        if head.version != VERSION {
            return Err(format!(
                "it has version {} of the format (written by nd {}), and this program reads version {VERSION}; use \
                 the nd-topo of the version that wrote it",
                head.version,
                short(&head.program),
            ));
        }
        let dump: Dump = serde_json::from_slice(bytes).map_err(broken)?;
        match dump.world_size {
            n if n > WORLD_MAX => Err(format!("it tells of {n} ranks, and nobody has more than {WORLD_MAX}")),
            n if dump.rank >= n => {
                Err(format!("it is of rank {} of {n} ranks, which count from 0", dump.rank))
            }
            _ => Ok(dump),
        }
    }

    /// As a file's content.
    ///
    /// # Errors
    /// None that can be expected: it is plain data.
    pub(super) fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// The number of the last collective call that was entered; 0: none.
    pub(super) fn entered(&self) -> u32 {
        self.calls.iter().map(|c| c.call).max().unwrap_or(0)
    }

    /// What the rank called as number `call`.
    pub(super) fn call(&self, call: u32) -> Option<&Call> {
        self.calls.iter().find(|c| c.call == call)
    }
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_of_all_parts() {
        let stamp = |collective: Collective, count| Stamp {
            collective: collective as u8,
            data_type: DataType::F32 as u8,
            count,
            ..Stamp::default()
        };
        for (collective, expected) in [
            (Collective::AllReduce, 40),
            (Collective::Broadcast, 40),
            (Collective::AllGather, 120),
            (Collective::ReduceScatter, 120),
            (Collective::AllToAll, 120),
        ] {
            assert_eq!(bytes(&stamp(collective, 10), Some(collective), 3), expected, "{collective:?}");
        }
        assert_eq!(bytes(&stamp(Collective::AllGather, u64::MAX), Some(Collective::AllGather), 3), u64::MAX);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        for (text, say) in [
            ("", "it is empty"),
            ("{", "ends in the middle (1 bytes)"),
            ("[1]", "not a flight recorder's file"),
            ("{\"format\":\"x\",\"version\":1}", "it says that it is \"x\""),
            (
                "{\"format\":\"nd flight recorder\",\"version\":7,\"program\":\"9.9\"}",
                "version 7 of the format (written by nd 9.9)",
            ),
            ("{\"format\":\"nd flight recorder\",\"version\":1}", "missing field"),
        ] {
            let error = Dump::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(say), "{text}: {error}");
        }
    }
}
