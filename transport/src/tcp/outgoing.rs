//! The sending half of a connection: what waits, and the goodbye.

use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;

use super::raw::{self, Pending};
use super::wire::goodbye;

/// How a peer left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// It said goodbye.
    pub orderly: bool,
    /// What was seen.
    pub cause: String,
}

impl Gone {
    /// It said goodbye.
    pub fn goodbye() -> Gone {
        Gone {
            orderly: true,
            cause: "it closed its endpoint (it finished, or gave up for a reason of its own)".into(),
        }
    }

    /// It vanished.
    pub fn lost(cause: impl Into<String>) -> Gone {
        Gone { orderly: false, cause: cause.into() }
    }
}

/// Sends on a connection.
#[derive(Debug)]
pub struct Outgoing {
    pub stream: Arc<TcpStream>,
    pub pending: Pending,
    /// Why nothing can be sent any more. What the peer said before is still to be read, and tells whose fault it is.
    pub broken: Option<String>,
    /// Something that the peer should have got was not sent. Signals alone say what this rank can take from it: who
    /// leaves in order needs that no more.
    pub owes: bool,
}

/// After this many bytes the others get their turn.
const TURN: usize = 4 << 20;

impl Outgoing {
    pub fn new(stream: Arc<TcpStream>) -> Outgoing {
        Outgoing { stream, pending: Pending::default(), broken: None, owes: false }
    }

    /// Hands waiting bytes to the kernel: how many, and whether it would take no more.
    pub fn flush(&mut self) -> std::io::Result<(usize, bool)> {
        let mut total = 0;
        while !self.pending.is_empty() && total < TURN {
            match self.pending.flush(self.stream.as_fd())? {
                0 => return Ok((total, true)),
                n => total += n,
            }
        }
        Ok((total, false))
    }

    /// Sending failed: lent memory is not touched from here on, and the receiving half comes to its end.
    pub fn fail(&mut self, e: &std::io::Error) {
        self.broken = Some(format!("sending to it failed: {e}"));
        self.pending.clear();
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Adds the last frame.
    pub fn say_goodbye(&mut self) {
        self.pending.push_head(&goodbye());
    }

    /// Ends the stream after what was handed to the kernel.
    pub fn finish(&mut self) {
        self.pending.clear();
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Whether the peer's kernel has all that was sent: from then on nothing can take it back.
    pub fn arrived(&self) -> bool {
        raw::acknowledged(self.stream.as_fd())
    }
}
