//! The sending half of a connection: what waits, and the goodbye.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::raw::{self, Info, Pending};
use super::seal::Sealer;
use super::wire::{goodbye, refusal};

/// How a peer left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// It said goodbye.
    pub orderly: bool,
    /// Its own system said so: it said goodbye, or its kernel closed the connection.
    pub ended: bool,
    /// What was seen.
    pub cause: String,
}

impl Gone {
    /// It said goodbye.
    pub fn goodbye() -> Gone {
        Gone {
            orderly: true,
            ended: true,
            cause: "it closed its endpoint (it finished, or gave up for a reason of its own)".into(),
        }
    }

    /// It vanished.
    pub fn lost(cause: impl Into<String>) -> Gone {
        Gone { orderly: false, ended: false, cause: cause.into() }
    }
}

/// Sends on a connection, once there is one.
#[derive(Debug, Default)]
pub struct Outgoing {
    connection: Option<Arc<Connection>>,
    pub pending: Pending,
    /// Since when something waits for a connection.
    pub since: Option<Instant>,
    /// Since when the kernel has taken nothing of what waits.
    full: Option<Instant>,
    /// Why nothing can be sent any more. What the peer said before is still to be read, and tells whose fault it is.
    pub broken: Option<String>,
    /// The peer's system broke it.
    pub reset: bool,
    /// Something that the peer should have got was not sent. Signals alone say what this rank can take from it: who
    /// leaves in order needs that no more.
    pub owes: bool,
}

/// After this many bytes the others get their turn.
const TURN: usize = 4 << 20;

impl Outgoing {
    /// Whether there is a connection.
    pub fn is_joined(&self) -> bool {
        self.connection.is_some()
    }

    /// What waits goes by this connection.
    pub fn join(&mut self, connection: Arc<Connection>) {
        (self.connection, self.since) = (Some(connection), None);
    }

    /// Whether something waits that the kernel did not take.
    pub fn waits(&self) -> bool {
        let sealer = self.connection.as_ref().and_then(|connection| connection.sealer());
        !self.pending.is_empty() || sealer.is_some_and(|sealer| !sealer.rest().is_empty())
    }

    /// Hands waiting bytes to the kernel: how many, and whether it would take no more.
    pub fn flush(&mut self) -> io::Result<(usize, bool)> {
        let (sent, full) = self.hand_over()?;
        if !full {
            self.full = None;
        } else if sent > 0 || self.full.is_none() {
            self.full = Some(Instant::now());
        }
        Ok((sent, full))
    }

    fn hand_over(&mut self) -> io::Result<(usize, bool)> {
        let Some(connection) = &self.connection else { return Ok((0, true)) };
        if let Some(mut sealer) = connection.sealer() {
            return flush_sealed(connection, &mut sealer, &mut self.pending);
        }
        let mut total = 0;
        while !self.pending.is_empty() && total < TURN {
            match self.pending.flush(connection.stream.as_fd())? {
                0 => return Ok((total, true)),
                n => total += n,
            }
        }
        Ok((total, false))
    }

    /// Sending failed: lent memory is not touched from here on, and the receiving half comes to its end.
    pub fn fail(&mut self, e: &io::Error) {
        self.broken = Some(format!("sending to it failed: {e}"));
        self.reset = matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
        self.pending.clear();
        self.shut(Shutdown::Both);
    }

    /// Adds the last frame.
    pub fn say_goodbye(&mut self) {
        self.pending.push_copy(&goodbye());
    }

    /// Tells the peer why it is not listened to any more, unless the kernel does not even take what was put before.
    pub fn say_refusal(&mut self, why: &str) {
        let sent = |out: &mut Outgoing| out.flush().is_ok() && !out.waits();
        if sent(self) {
            self.pending.push_copy(&refusal(why));
            if sent(self) {
                self.finish();
            }
        }
    }

    /// Ends the stream after what was handed to the kernel.
    pub fn finish(&mut self) {
        self.pending.clear();
        self.shut(Shutdown::Write);
    }

    fn shut(&self, how: Shutdown) {
        if let Some(connection) = &self.connection {
            let _ = connection.stream.shutdown(how);
        }
    }

    /// Whether the peer's kernel has all that was sent: from then on nothing can take it back.
    pub fn arrived(&self) -> bool {
        self.info().is_none_or(|info| info.acknowledged)
    }

    /// What the kernel knows of the connection, if there is one.
    pub fn info(&self) -> Option<Info> {
        self.connection.as_ref().map(|connection| raw::info(connection.stream.as_fd()))
    }

    /// For how long the kernel has taken nothing of what waits.
    pub fn stuck(&self) -> Duration {
        self.full.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// The same, in encrypted records.
fn flush_sealed(
    connection: &Connection,
    sealer: &mut Sealer,
    pending: &mut Pending,
) -> io::Result<(usize, bool)> {
    let mut total = 0;
    while total < TURN {
        if sealer.rest().is_empty() {
            sealer.seal(pending);
            if sealer.rest().is_empty() {
                break;
            }
        }
        match raw::send(connection.stream.as_fd(), sealer.rest())? {
            0 => return Ok((total, true)),
            n => total += sealer.sent(n),
        }
    }
    Ok((total, false))
}
