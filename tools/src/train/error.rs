//! What can go wrong.

use std::io;
use std::path::PathBuf;

/// Why nothing, or not everything, was trained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command line, a file or the environment asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// The machine cannot do it.
    #[error("{0}")]
    Machine(String),
    /// Training cannot begin; where it is what the user wrote, all ranks know it.
    #[error("{0}")]
    Training(#[from] nd_training::Error),
    /// Training has begun, and failed on this rank.
    #[error("{}", step(*rank, error))]
    Step {
        /// Which.
        rank: usize,
        /// Why.
        error: nd_training::Error,
    },
    /// Training has begun, and a checkpoint cannot be written; all ranks know it.
    #[error("{0}")]
    Checkpoint(nd_training::Error),
    /// Of the checkpoints that were looked at, so many are not whole.
    #[error("{damaged} of {all} {} not whole; take away what is damaged, what is half-written goes with the next save", if *damaged == 1 { "is" } else { "are" })]
    Damaged {
        /// Not whole.
        damaged: usize,
        /// All.
        all: usize,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}; check {option}", .path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// The option that named it.
        option: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// Another rank has said it, or will.
    #[error("told by another rank")]
    Told(u8),
    /// Nobody reads what is printed.
    #[error("cannot write to standard output: {0}; check where it goes")]
    Output(io::Error),
}

impl Error {
    /// Of a checkpoint that was to be written.
    pub fn checkpoint(error: nd_training::Error) -> Error {
        match error {
            error @ nd_training::Error::Comm(_) => Error::Training(error),
            error => Error::Checkpoint(error),
        }
    }

    /// The exit code: 2 for what the user wrote, 1 for what happened.
    pub fn code(&self) -> u8 {
        use nd_training::Error::{Config, File, Mesh};
        match self {
            Error::Usage(_) | Error::Training(Config(_) | File { .. } | Mesh(_)) => 2,
            Error::Training(nd_training::Error::Comm(nd_comm::Error::Config { .. })) => 2,
            Error::Told(code) => *code,
            _ => 1,
        }
    }

    /// Whether all ranks know the same, so that it is enough if rank 0 tells it.
    pub fn is_common(&self) -> bool {
        self.code() == 2
            || matches!(self, Error::Checkpoint(_))
            || matches!(self, Error::Step { error: nd_training::Error::NotFinite { .. }, .. })
    }

    /// Whether it only follows from another rank's.
    pub fn is_echo(&self) -> bool {
        match self {
            // All ranks take the same steps: one that leaves before has failed, and tells why.
            Error::Training(nd_training::Error::Comm(e))
            | Error::Step { error: nd_training::Error::Comm(e), .. } => {
                e.is_echo() || matches!(e, nd_comm::Error::PeerFailed { .. })
            }
            Error::Step { error: nd_training::Error::Stuck { noticed, .. }, .. } => noticed.is_echo(),
            _ => false,
        }
    }

    /// Whether there is nobody to tell, or nothing new to tell.
    pub fn is_silent(&self) -> bool {
        match self {
            Error::Told(_) => true,
            Error::Output(e) => e.kind() == io::ErrorKind::BrokenPipe,
            _ => false,
        }
    }
}

/// With the rank, unless the error names it already.
fn step(rank: usize, error: &nd_training::Error) -> String {
    match error {
        nd_training::Error::NotFinite { .. } | nd_training::Error::Comm(_) => error.to_string(),
        error => format!("rank {rank}: {error}"),
    }
}

impl From<nd_comm::Error> for Error {
    fn from(error: nd_comm::Error) -> Error {
        Error::Training(error.into())
    }
}
