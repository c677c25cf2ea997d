//! One connection to a peer: opened by the first put, sends what is put, and listens for the peer's goodbye.

use std::net::Shutdown;
use std::os::fd::AsFd;

use mio::net::TcpStream;

use super::raw::{self, Pending};
use super::wire::{Decoder, Step, goodbye};

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

/// A connection to a peer.
#[derive(Debug)]
pub struct Outgoing {
    pub stream: TcpStream,
    pub pending: Pending,
    /// What the peer says on it: a goodbye at most.
    back: Decoder,
}

/// After this many bytes the others get their turn.
const TURN: usize = 4 << 20;

impl Outgoing {
    pub fn new(stream: TcpStream) -> Outgoing {
        Outgoing { stream, pending: Pending::default(), back: Decoder::default() }
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

    /// What the peer says, if it says that it leaves, or if it is gone.
    pub fn listen(&mut self) -> Option<Gone> {
        let mut buffer = [0; 256];
        loop {
            let n = match raw::receive(self.stream.as_fd(), &mut buffer) {
                Ok(None) => return None,
                Ok(Some(0)) => return Some(Gone::lost("it closed the connection without a goodbye")),
                Ok(Some(n)) => n,
                Err(e) => return Some(Gone::lost(e.to_string())),
            };
            match self.back.next(&mut &buffer[..n]) {
                Ok(Step::More) => {}
                Ok(Step::Goodbye) => return Some(Gone::goodbye()),
                Ok(_) => return Some(Gone::lost("it broke the protocol: data on a connection of ours")),
                Err(e) => return Some(Gone::lost(format!("it broke the protocol: {e}"))),
            }
        }
    }

    /// Adds the last frame.
    pub fn say_goodbye(&mut self) {
        self.pending.push_head(&goodbye());
    }

    /// Ends the stream after what was handed to the kernel. What the peer said meanwhile is read off, since closing
    /// over unread bytes would throw away what is still on its way out.
    pub fn close(mut self) {
        self.pending.clear();
        let _ = self.stream.shutdown(Shutdown::Write);
        let _ = self.listen();
    }
}
