//! What can go wrong in a communicator.

use std::fmt;
use std::time::Duration;

use crate::exec::peers::DROPPED;
use crate::exec::stamp::Stamp;
use crate::exec::standstill::Standstill;
use crate::rendezvous::CANNOT;

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. Messages name the rank, the value, the limit and the remedy.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's arguments do not fit together; nothing was sent.
    #[error("rank {rank}: {call}: {problem}; {remedy}")]
    InvalidArgument {
        /// This rank.
        rank: usize,
        /// Which call.
        call: &'static str,
        /// The value and the limit.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// Ranks called different things.
    #[error(
        "rank {peer} called {}, rank {rank} called {}; every rank must make the same calls in the same order",
        theirs.beside(ours),
        ours.beside(theirs)
    )]
    Mismatch {
        /// This rank.
        rank: usize,
        /// What it called.
        ours: Stamp,
        /// The other rank.
        peer: usize,
        /// What that one called.
        theirs: Stamp,
    },
    /// A rank sent more or less than the other expected.
    #[error(
        "rank {rank}: {call}: rank {peer} sent {got} bytes where {expected} were expected; both sides must give the \
         same counts"
    )]
    Length {
        /// This rank.
        rank: usize,
        /// The sender.
        peer: usize,
        /// This rank's call.
        call: Stamp,
        /// Bytes that came.
        got: u64,
        /// Bytes that were expected.
        expected: u64,
    },
    /// The time for a call was up, on this rank or another; every rank that is alive is told the same.
    #[error("rank {rank}: {standstill}")]
    Timeout {
        /// This rank.
        rank: usize,
        /// Which call, who has entered it and who has not.
        standstill: Box<Standstill>,
        /// The rank that said so, unless this rank's own time was up.
        told_by: Option<usize>,
    },
    /// Another rank reported that it failed.
    #[error("rank {rank} gave up because {}: {why}", blame(*rank, *culprit))]
    PeerFailed {
        /// This rank.
        rank: usize,
        /// The rank that failed first.
        culprit: usize,
        /// What it said.
        why: String,
    },
    /// An earlier call failed, so the ranks are no longer in step.
    #[error("rank {rank}: this communicator failed earlier ({why}); make a new one")]
    Failed {
        /// This rank.
        rank: usize,
        /// The first failure.
        why: String,
    },
    /// A rank aborted the communicator: this one, or another that this one was told of.
    #[error("rank {rank}: {who} aborted this communicator; make a new one")]
    Aborted {
        /// This rank.
        rank: usize,
        /// The rank that aborted it.
        culprit: usize,
        /// The same, with its host and process.
        who: String,
    },
    /// The communicator cannot shrink or grow.
    #[error("rank {rank}: {call}: {problem}; {remedy}")]
    Membership {
        /// This rank.
        rank: usize,
        /// `shrink` or `grow`.
        call: &'static str,
        /// What happened, and which ranks are missing.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// The others have shrunk the communicator and go on without this rank.
    #[error(
        "rank {rank} was left out by shrink: {by} went on without it, because it did not take part in time; save what \
         is worth saving, and join again with Communicator::grow, or end"
    )]
    LeftOut {
        /// This rank.
        rank: usize,
        /// Who said so, and where that rank is.
        by: String,
    },
    /// The communicator was made before `fork`.
    #[error("rank {rank}: this communicator belongs to the parent process; make a new one after fork")]
    Forked {
        /// This rank.
        rank: usize,
    },
    /// The ranks did not find each other.
    #[error("{who}: {problem}; {remedy}")]
    Rendezvous {
        /// "rank 3 of 8", or what is known.
        who: String,
        /// What happened.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// A setting cannot be used.
    #[error("{setting}={value}: {problem}; {remedy}")]
    Config {
        /// Its name.
        setting: String,
        /// Its value.
        value: String,
        /// Why not.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// Bytes did not move.
    #[error("rank {rank}: {source}")]
    Transport {
        /// This rank.
        rank: usize,
        /// Why.
        source: nd_transport::Error,
    },
}

impl Error {
    /// Whether this rank only repeats what another one has found and tells itself: a program that prints the errors of all
    /// its ranks can leave it out.
    pub fn is_echo(&self) -> bool {
        match self {
            // One that leaves in order has nothing to tell; nor has anybody else what this rank knows of itself.
            Error::PeerFailed { rank, culprit, why } => why != DROPPED && rank != culprit,
            Error::Failed { .. } => true,
            // Who is missing itself has something to explain.
            Error::Timeout { rank, standstill, told_by } => {
                told_by.is_some() && standstill.missing.iter().all(|missing| missing.rank != *rank)
            }
            Error::Aborted { rank, culprit, .. } => rank != culprit,
            Error::Rendezvous { problem, .. } => problem.contains(CANNOT),
            _ => false,
        }
    }
}

/// Why a rank gave up, by the word of another.
fn blame(rank: usize, culprit: usize) -> String {
    if rank == culprit { "others have lost it".into() } else { format!("rank {culprit} failed") }
}

/// A time as messages tell it.
pub(crate) fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        short @ ..0.1 => format!("{} ms", (short * 1e4).round() / 10.0),
        long => format!("{long:.1} s"),
    }
}

/// The message: what a program prints whose `main` returns this error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
