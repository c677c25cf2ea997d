//! Another way for the payload of two ranks, which they agree on while they connect.

use std::fmt;
use std::io::{Read, Write};

use crate::Result;
use crate::secure::Session;

/// Messages inside the authenticated session of two ranks that are connecting.
pub trait Talk {
    /// Sends one.
    fn send(&mut self, message: &[u8]) -> Result<()>;
    /// Receives one, of at most so many bytes.
    fn receive(&mut self, most: usize) -> Result<Vec<u8>>;
}

impl<S: Read + Write> Talk for Session<S> {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        Session::send(self, message)
    }

    fn receive(&mut self, most: usize) -> Result<Vec<u8>> {
        Session::receive(self, most)
    }
}

/// Another way for the payload. Whoever connects initiates, the other one responds; both may also agree that the payload
/// goes by the connection after all. Then the connection stands, and says when the peer leaves or is lost.
pub trait Rider: Send + Sync + fmt::Debug {
    /// Whether the two ranks talk about it when they connect; the same on both sides.
    fn rides(&self, peer: usize) -> bool;

    /// Whether the payload goes the other way at present.
    fn carries(&self, peer: usize) -> bool;

    /// Talks to a peer that was connected to; the number of this attempt.
    ///
    /// # Errors
    /// The session's, or that there must be another way and is none.
    fn initiate(&self, peer: usize, talk: &mut dyn Talk) -> Result<u64>;

    /// Talks to a peer that has connected; answer and errors as above.
    fn respond(&self, peer: usize, talk: &mut dyn Talk) -> Result<u64>;

    /// That attempt has come to nothing after all: there is no connection.
    fn retreat(&self, peer: usize, attempt: u64);

    /// A descriptor that is watched for it has become readable.
    fn stir(&self);
}
