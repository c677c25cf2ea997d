//! What can go wrong in training.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

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
    /// A call was not finished in time, and some ranks of the job do not answer at all.
    #[error(
        "{missing} did not answer the other ranks of the job within {}, after a call of some of them, which number \
         themselves, was not finished: {noticed}",
        seconds(*.within)
    )]
    Stuck {
        /// Who does not answer, by the numbers of the job.
        missing: String,
        /// For how long they were asked.
        within: Duration,
        /// The call.
        noticed: Box<nd_comm::Error>,
    },
    /// A tensor operation failed. Errors of this crate and of communication that have passed through the tensor library
    /// are not here: `?` takes them out again.
    #[error("{0}")]
    Tensor(candle_core::Error),
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
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
            error => candle_core::Error::WrappedContext {
                wrapped: Box::new(Carried(error)),
                context: "in a tensor operation".into(),
            },
        }
    }
}

/// Takes out what a tensor operation has carried, and leaves out backtraces, which are logged: they are about the tensor
/// library's insides.
impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Error {
        use candle_core::Error::{Context, WithBacktrace, WithPath, WrappedContext};
        match error {
            WithBacktrace { inner, backtrace } => {
                tracing::debug!(%backtrace, "a tensor operation failed: {inner}");
                Error::from(*inner)
            }
            WrappedContext { wrapped, context } => match wrapped.downcast::<Carried>() {
                Ok(carried) => carried.0,
                Err(wrapped) => Error::Tensor(WrappedContext { wrapped, context }),
            },
            Context { inner, context } => match Error::from(*inner) {
                Error::Tensor(inner) => Error::Tensor(Context { inner: Box::new(inner), context }),
                error => error,
            },
            WithPath { inner, path } => match Error::from(*inner) {
                Error::Tensor(inner) => Error::Tensor(WithPath { inner: Box::new(inner), path }),
                error => error,
            },
            error => Error::Tensor(error),
        }
    }
}

/// An error on its way through the tensor library, which writes it as it does for debugging.
struct Carried(Error);

impl fmt::Debug for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for Carried {}

#[cfg(test)]
mod tests {
    use std::backtrace::Backtrace;

    use super::*;

    fn aborted() -> nd_comm::Error {
        let comms = nd_comm::prelude::Communicator::local(2).unwrap();
        comms[0].abort();
        comms[0].barrier().unwrap_err()
    }

    #[test]
    fn what_has_passed_through_the_tensor_library_is_what_it_was() {
        let carried = candle_core::Error::from(Error::Comm(aborted()));
        assert!(carried.to_string().starts_with(&aborted().to_string()), "{carried}");
        let backtrace = Box::new(Backtrace::force_capture());
        let traced = candle_core::Error::WithBacktrace { inner: Box::new(carried), backtrace };
        let told = traced.context("the third stage").with_path("a file");
        assert!(matches!(Error::from(told), Error::Comm(nd_comm::Error::Aborted { .. })));
        let own = candle_core::Error::from(Error::Config("no".into())).bt();
        assert!(matches!(Error::from(own), Error::Config(text) if text == "no"));
    }

    #[test]
    fn errors_of_tensors_keep_their_words_and_lose_their_backtraces() {
        let backtrace = Box::new(Backtrace::force_capture());
        let inner = Box::new(candle_core::Error::Msg("shapes differ".into()));
        let traced = candle_core::Error::WithBacktrace { inner, backtrace };
        let error = Error::from(traced.context("the third stage").with_path("x"));
        assert_eq!(error.to_string(), "path: \"x\" the third stage\nshapes differ");
    }
}
