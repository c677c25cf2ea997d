//! One connection from a peer: its frames become memory and counters of our region, or memory that was opened to it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::connection::Connection;
use super::landing::{self, Found, Landings};
use super::raw;
use super::seal::{Forged, Opener};
use super::wire::{Decoder, Put, Step};
use crate::Region;

/// Bytes of the buffer that small frames are read through; one for all connections.
pub const BUFFER: usize = 64 << 10;
/// From this many missing bytes on, payload is received in place.
const IN_PLACE: u64 = 4 << 10;
/// Bytes beyond a large payload that are read along with its end: the next head, small frames.
const TAIL: usize = 4 << 10;
/// After this many bytes the others get their turn.
const TURN: usize = 4 << 20;

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The peer left in order.
    Goodbye,
    /// It vanished.
    Lost {
        /// What was seen.
        cause: String,
        /// Its own system ended the connection.
        ended: bool,
    },
    /// It sent what nobody may send.
    Broke(String),
    /// It says that this rank did.
    Refused(String),
}

/// What a peer may write.
#[derive(Debug)]
pub struct Memory<'a> {
    /// Its exposed windows, and their counters.
    pub region: &'a Region,
    /// The caller's.
    pub landings: &'a Landings,
}

impl Memory<'_> {
    /// Where the payload belongs; nowhere if it is wanted no more.
    fn find(&self, put: &Put, done: u64, len: u64) -> Result<Option<NonNull<u8>>, End> {
        let at = put.at.saturating_add(done);
        if at < landing::FIRST {
            return self.region.exposed(at, len).map(Some).ok_or_else(|| outside(put));
        }
        match self.landings.find(at, len) {
            Found::Here(to) => Ok(Some(to)),
            Found::Withdrawn => Ok(None),
            Found::Never => Err(outside(put)),
        }
    }
}

/// A connection from a peer.
#[derive(Debug)]
pub struct Incoming {
    pub connection: Arc<Connection>,
    frames: Frames,
    /// The poll said that something is there, and it was not yet read to its end.
    pub ready: bool,
    /// It is read only when the poll says so.
    pub quiet: bool,
}

/// What comes, as frames.
#[derive(Debug, Default)]
struct Frames {
    decoder: Decoder,
    /// The last put was large, so the next one probably is.
    large: bool,
}

impl Incoming {
    pub fn new(connection: Arc<Connection>) -> Incoming {
        Incoming { connection, frames: Frames::default(), ready: true, quiet: false }
    }

    /// Receives what is there, up to one turn; whether anything was, and the end if it came.
    pub fn read(&mut self, memory: &Memory<'_>, buffer: &mut [u8]) -> (bool, Option<End>) {
        let mut total = 0;
        loop {
            match self.once(memory, buffer) {
                Ok(Some(got)) => {
                    total += got.bytes;
                    if !got.full || total >= TURN {
                        return (true, None);
                    }
                }
                Ok(None) => {
                    self.ready = false;
                    return (total > 0, None);
                }
                Err(end) => return (true, Some(end)),
            }
        }
    }

    fn once(&mut self, memory: &Memory<'_>, buffer: &mut [u8]) -> Result<Option<Got>, End> {
        let fd = self.connection.stream.as_fd();
        match self.connection.opener() {
            Some(mut opener) => self.frames.receive_sealed(fd, memory, &mut opener),
            None => self.frames.receive(fd, memory, buffer),
        }
    }
}

impl Frames {
    /// Records that hold nothing but payload are opened to where it belongs, the others where they were received.
    fn receive_sealed(
        &mut self,
        fd: BorrowedFd<'_>,
        memory: &Memory<'_>,
        opener: &mut Opener,
    ) -> Result<Option<Got>, End> {
        let room = opener.room();
        let len = room.len();
        let got = raw::receive(fd, room);
        let within = opener.within_record();
        let Some(n) = self.received(got, within)? else { return Ok(None) };
        opener.received(n);
        while let Some(len) = opener.next_len().map_err(forged)? {
            match self.decoder.awaited().filter(|(put, done)| put.len - done >= len as u64) {
                Some((put, done)) if let Some(to) = memory.find(&put, done, len as u64)? => {
                    raw::opened_in_place((to, len), |to| opener.open_to(to)).map_err(forged)?;
                    self.decoder.received(len as u64);
                    self.parse(memory, &[])?;
                }
                _ => self.parse(memory, opener.open().map_err(forged)?.unwrap_or_default())?,
            }
        }
        Ok(Some(Got { bytes: n, full: n == len }))
    }

    fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        memory: &Memory<'_>,
        buffer: &mut [u8],
    ) -> Result<Option<Got>, End> {
        let awaited = self.decoder.awaited().filter(|(put, done)| put.len - done >= IN_PLACE);
        let place = match awaited {
            Some((put, done)) => {
                let here = (put.len - done).min(TURN as u64);
                // Looked up for every piece: it may have been withdrawn meanwhile.
                memory.find(&put, done, here)?.map(|to| (to, here as usize, here == put.len - done))
            }
            None => None,
        };
        let (got, room, in_place) = match place {
            Some((to, here, ends)) => {
                let tail = if ends { TAIL } else { 0 };
                (raw::receive_in_place(fd, (to, here), &mut buffer[..tail]), here + tail, here)
            }
            None => {
                let room = if self.large && awaited.is_none() { TAIL } else { buffer.len() };
                (raw::receive(fd, &mut buffer[..room]), room, 0)
            }
        };
        let Some(n) = self.received(got, false)? else { return Ok(None) };
        self.decoder.received(n.min(in_place) as u64);
        self.parse(memory, &buffer[..n.saturating_sub(in_place)])?;
        Ok(Some(Got { bytes: n, full: n == room }))
    }

    /// How many bytes came, or why none will. `within` says that something was half received that no frame shows.
    fn received(&self, got: io::Result<Option<usize>>, within: bool) -> Result<Option<usize>, End> {
        let (cause, ended) = match got {
            Ok(Some(0)) => ("it closed the connection without a goodbye".into(), true),
            Ok(some) => return Ok(some),
            Err(e) => (e.to_string(), e.kind() == io::ErrorKind::ConnectionReset),
        };
        let between = self.decoder.between_frames() && !within;
        let cause = format!("{cause}{}", if between { "" } else { ", in the middle of a message" });
        Err(End::Lost { cause, ended })
    }

    fn parse(&mut self, memory: &Memory<'_>, mut input: &[u8]) -> Result<(), End> {
        loop {
            match self.decoder.next(&mut input).map_err(|e| End::Broke(e.to_string()))? {
                Step::More => return Ok(()),
                Step::Begin(put) => {
                    self.large = put.len >= BUFFER as u64;
                    memory.find(&put, 0, put.len)?;
                    if let Some(signal) = put.signal {
                        memory.region.exposed_counter(signal.at).ok_or_else(|| no_counter(signal.at))?;
                    }
                }
                Step::Payload { put, done, bytes } => {
                    if let Some(to) = memory.find(&put, done, bytes.len() as u64)? {
                        raw::place(to, bytes);
                    }
                }
                Step::Done(put) => {
                    if let Some(signal) = put.signal {
                        let counter =
                            memory.region.exposed_counter(signal.at).ok_or_else(|| no_counter(signal.at))?;
                        counter.store(signal.value, Ordering::Release);
                    }
                }
                Step::Goodbye => return Err(End::Goodbye),
                Step::Refusal => return Err(End::Refused(self.decoder.reason())),
            }
        }
    }
}

/// What one system call received.
struct Got {
    bytes: usize,
    /// As much as there was room for, so there may be more.
    full: bool,
}

fn forged(e: Forged) -> End {
    End::Broke(e.to_string())
}

fn outside(put: &Put) -> End {
    End::Broke(format!("a put of {} bytes to offset {:#x}, which no exposed window covers", put.len, put.at))
}

fn no_counter(at: u64) -> End {
    End::Broke(format!("a signal to offset {at:#x}, which is no counter of an exposed window"))
}
