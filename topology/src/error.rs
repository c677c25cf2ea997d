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
        let all: Vec<&str> = known.into_iter().collect();
        let shown = all.iter().take(40).copied().collect::<Vec<_>>().join(", ");
        let known = match all.len() {
            0 => "none".to_owned(),
            n if n > 40 => format!("{shown}, and {} more", n - 40),
            _ => shown,
        };
        let known = match near(name, &all) {
            Some(near) => format!("{known}; did you mean {near}?"),
            None => known,
        };
        Error::Unknown { what, name: name.to_owned(), known }
    }
}

/// The name that is meant: the one with the fewest letters wrong, at most a third, or the only one that holds `name`.
fn near<'n>(name: &str, all: &[&'n str]) -> Option<&'n str> {
    let wanted = name.to_lowercase();
    if !(3..=64).contains(&wanted.chars().count()) {
        return None;
    }
    let mut holding = all.iter().filter(|n| n.to_lowercase().contains(&wanted));
    if let (Some(one), None) = (holding.next(), holding.next()) {
        return Some(one);
    }
    let close = all.iter().map(|n| (crate::edits(&wanted, &n.to_lowercase()), *n));
    let close = close.filter(|(d, _)| d * 3 <= wanted.chars().count());
    close.min_by_key(|(d, _)| *d).map(|(_, n)| n)
}

#[cfg(test)]
mod tests {
    #[test]
    fn near_names_are_offered() {
        let said = |name: &str| crate::library::machine(name).unwrap_err().to_string();
        assert!(said("dgx-h1000").ends_with("; did you mean dgx-h100?"), "{}", said("dgx-h1000"));
        assert!(said("mi300").ends_with("; did you mean mi300x?"));
        assert!(!said("toaster").contains("did you mean"));
    }
}
