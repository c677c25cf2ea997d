//! What shows whether the system of a peer is there that this rank has no connection with yet.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::raw;

/// After so long without a word a peer's system counts as silent: TCP sends again what was not acknowledged then.
const SILENCE: Duration = Duration::from_millis(200);

/// How far the two are.
#[derive(Debug, Default)]
pub enum Sign {
    #[default]
    Unknown,
    /// An attempt to connect is on its way since then, and nothing has answered.
    Awaited(Instant),
    /// The two shake hands by this.
    Stream(TcpStream),
}

impl Sign {
    /// Of two that shake hands.
    pub fn of(stream: &TcpStream) -> Sign {
        stream.try_clone().map_or(Sign::Unknown, Sign::Stream)
    }

    /// Whether the peer's system ought to have answered by now.
    pub fn is_silent(&self) -> bool {
        match self {
            Sign::Unknown => false,
            Sign::Awaited(since) => since.elapsed() >= SILENCE,
            Sign::Stream(stream) => raw::info(stream.as_fd()).repeats > 0,
        }
    }
}
