//! What can go wrong in training.

use std::path::PathBuf;

/// The result of anything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why training cannot start or go on. Messages name the value, the limit and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The mesh and the ranks, or the mesh and the model, do not fit together.
    #[error("{0}")]
    Mesh(String),
    /// A setting, a model's configuration or a batch is not usable.
    #[error("{0}")]
    Config(String),
    /// A file is not what it should be.
    #[error("{}: {problem}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A loss or a gradient is no number any more.
    #[error("step {step}: rank {rank}: {what}; lower --lr, set --clip, or look at the data of this step")]
    NotFinite {
        /// The step, from 1.
        step: u64,
        /// The rank that saw it first.
        rank: usize,
        /// What it saw.
        what: String,
    },
    /// Communication failed.
    #[error(transparent)]
    Comm(#[from] nd_comm::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

impl<B> From<nd_comm::communicator::pending::Returned<B>> for Error {
    fn from(returned: nd_comm::communicator::pending::Returned<B>) -> Error {
        Error::Comm(returned.error)
    }
}

/// Inside a tensor operation only the tensor library's errors can be returned.
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> candle_core::Error {
        match error {
            Error::Tensor(error) => error,
            error => candle_core::Error::wrap(error),
        }
    }
}
