//! Messages of a run: what of them is posted, and what became of them.
#![allow(unsafe_code)] // lends the caller's buffers to links

use nd_transport::{Part, Ticket};

use super::channel::{Body, Channel};
use super::layout::LANES;
use super::run::{Channels, Failure, channel};
use super::stamp::Stamp;

/// A message that is not wholly posted.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) message: usize,
    pub(super) stamp: Stamp,
    pub(super) ptr: *const u8,
    pub(super) registered: Option<u64>,
    pub(super) width: u64,
    pub(super) count: u64,
    pub(super) chunk: u64,
    pub(super) done: u64,
    /// Its number among those to the peer in this lane.
    pub(super) number: u64,
    /// The peer has it, and is to be told.
    pub(super) stored: bool,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sent {
    pub(super) queue: usize,
    pub(super) posted: bool,
    /// Whether the receiver reads this rank's memory.
    pub(super) remote: bool,
    /// The number of descriptors posted up to and including its last.
    pub(super) until: u64,
    pub(super) ticket: Ticket,
}

impl Sent {
    /// Whether it was posted and the receiver or the link still has to do with its memory.
    pub(super) fn is_awaited(&self, channels: &Channels) -> bool {
        let Some(lanes) = channels[self.queue / LANES].as_ref().filter(|_| self.posted) else { return false };
        let channel = &lanes[self.queue % LANES];
        match self.remote {
            true => channel.freed() < self.until,
            false => self.ticket != Ticket::default() && !channel.link().flushed(self.ticket),
        }
    }

    /// Whether the memory it was sent from may be used again.
    #[inline]
    pub(super) fn is_complete(&self, channels: &mut Channels) -> bool {
        self.posted && {
            let channel = channel(channels, self.queue);
            match self.remote {
                true => channel.consumed(self.until),
                // Written at once.
                false => self.ticket == Ticket::default() || channel.link().flushed(self.ticket),
            }
        }
    }
}

impl Pending {
    /// Posts as much as there are slots for; whether that is all.
    pub(super) fn push(&mut self, channel: &mut Channel, sent: &mut Sent) -> Result<bool, Failure> {
        let body = channel.route(self.ptr, self.registered, self.count * self.width);
        while self.done < self.count {
            let ptr = self.ptr.wrapping_add((self.done * self.width) as usize);
            let rest = (self.count - self.done) * self.width;
            let granted =
                if self.stored { None } else { channel.granted(self.number, self.count * self.width) };
            let (n, next) = match body {
                _ if self.stored || granted.is_some() => (self.count - self.done, Body::Placed { len: rest }),
                body if body.remote() => (self.count, body),
                _ => {
                    let n = (self.count - self.done).min(self.chunk);
                    (n, Body::Here { ptr, len: n * self.width })
                }
            };
            if !channel.has_room(&next) {
                return Ok(false);
            }
            // SAFETY: the message's memory stays unchanged until it is complete: instructions that write it wait,
            // and a run ends when all messages are complete.
            sent.ticket = unsafe {
                match granted {
                    Some(at) => {
                        let rest = Part { ptr, len: rest as usize };
                        channel.place(&self.stamp, rest, at + self.done * self.width)?
                    }
                    None => channel.post(&self.stamp, next)?,
                }
            };
            sent.remote = next.remote();
            self.done += n;
        }
        sent.until = channel.posted();
        sent.posted = true;
        Ok(true)
    }
}
