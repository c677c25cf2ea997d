//! What can be wrong with a description of a machine, a cluster or a mesh.

/// One error of this crate. Each message names the thing, its value, the limit and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not what its format demands, at a place that can be pointed at.
    #[error("{format}, line {line}, column {column}: {message}")]
    Parse {
        /// The format that was being read, such as `NCCL topology XML`.
        format: &'static str,
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// What is wrong there and what to do.
        message: String,
    },
    /// The file is of another format than the one asked for, or of none that is known.
    #[error("{0}")]
    WrongFormat(String),
    /// The description is well formed and yet contradicts itself.
    #[error("{0}")]
    Invalid(String),
    /// A name that nothing in the machine, the library or the cluster carries.
    #[error("no {what} called `{name}`; there are: {known}")]
    Unknown {
        /// `device`, `machine`, `host`, …
        what: &'static str,
        /// The name that was asked for.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// A name that several things carry.
    #[error("`{name}` may be any of {candidates}; name one of them")]
    Ambiguous {
        /// The name that was asked for.
        name: String,
        /// What it may stand for.
        candidates: String,
    },
    /// A mesh that does not fit the ranks there are.
    #[error("{0}")]
    Mesh(String),
    /// A file that cannot be read.
    #[error("cannot read {path}: {message}")]
    Io {
        /// The file.
        path: String,
        /// The system's reason.
        message: String,
    },
    /// Providers saw nothing.
    #[error("{0}")]
    Provider(String),
}

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The same with the file's name in front, where it does not name one.
    pub fn in_file(self, path: &str) -> Error {
        match self {
            Error::Parse { format, line, column, message } => {
                Error::Invalid(format!("{path}:{line}:{column}: {message} (read as {format})"))
            }
            Error::WrongFormat(m) => Error::WrongFormat(format!("{path}: {m}")),
            io @ Error::Io { .. } => io,
            other => Error::Invalid(format!("{path}: {other}")),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Error::Invalid(message.into())
    }

    pub(crate) fn unknown<'a>(
        what: &'static str,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        let shown = known.iter().take(40).copied().collect::<Vec<_>>().join(", ");
        let known = match known.len() {
            0 => "none".to_owned(),
            n if n > 40 => format!("{shown}, and {} more", n - 40),
            _ => shown,
        };
        Error::Unknown { what, name: name.to_owned(), known }
    }
}
