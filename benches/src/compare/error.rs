//! What can go wrong.

use std::io;
use std::path::PathBuf;

/// Why the comparison could not be made. What goes wrong with a single peer is told in the report instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command line does not fit together.
    #[error("{0}")]
    Usage(String),
    /// A file cannot be written or read.
    #[error("{path}: {source}; choose another place with --out, or make room")]
    File {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The operating system refused something.
    #[error("cannot {what}: {source}; check the limits of this process (`ulimit -a`)")]
    System {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Hosts could not be made.
    #[error(
        "cannot make network namespaces: {0}; run as root with iproute2 and util-linux, or leave out --transport net"
    )]
    Hosts(String),
    /// Nothing was compared.
    #[error("nothing was compared: {0}")]
    Nothing(String),
    /// Elements of a result were wrong.
    #[error("wrong results: {0}; no time of theirs is to be trusted")]
    Wrong(String),
    /// Somebody pressed ctrl-C.
    #[error("interrupted; what had been measured by then is in {0}")]
    Interrupted(PathBuf),
}

impl Error {
    /// As a shell sees it: 2 for a wrong command line, 130 for an interruption, else 1.
    pub fn code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Interrupted(_) => 130,
            _ => 1,
        }
    }
}
