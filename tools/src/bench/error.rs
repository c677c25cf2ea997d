//! What can go wrong.

use std::io;
use std::path::PathBuf;

/// Why nothing, or not everything, was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command line, or the environment, asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// The machine cannot do it.
    #[error("{0}")]
    Machine(String),
    /// A communicator failed.
    #[error("{0}")]
    Comm(#[from] nd_comm::Error),
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
    /// Nobody reads the table.
    #[error("cannot write the table: {0}; check where standard output goes")]
    Output(io::Error),
}

impl Error {
    /// The exit code: 2 for what the user wrote, 1 for what happened.
    pub fn code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Told(code) => *code,
            Error::Comm(nd_comm::Error::Config { .. }) => 2,
            _ => 1,
        }
    }

    /// Whether it only follows from another rank's.
    pub fn is_echo(&self) -> bool {
        matches!(self, Error::Comm(e) if e.is_echo())
    }

    /// Whether there is nobody to tell, as when the reader of the table went away (`| head`), or nothing new to tell.
    pub fn is_silent(&self) -> bool {
        match self {
            Error::Told(_) => true,
            Error::Output(e) => e.kind() == io::ErrorKind::BrokenPipe,
            _ => false,
        }
    }
}
