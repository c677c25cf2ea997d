//! Messages between this rank and one peer in one lane: descriptors, slots and credits, both directions.
#![allow(unsafe_code)] // writes into mapped inboxes, passes raw memory to links

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nd_transport::{Abilities, Error, Link, Part, Result, Signal, Ticket};

use super::layout::{
    BODY, CREDIT, DESCRIPTORS, GONE, GRANT_AT, GRANT_LEN, HEAD, INLINE, LINE, SEQUENCE, SHORT, SHORT_MAPPED,
    SLOT_BYTES, SLOTS, descriptor, grant, slot,
};
use super::memory::{LaneMemory, copy, prefetch_to_write};
use super::slot_words;
use super::stamp::{Stamp, comes_before};

/// From this many bytes on, a receiver that can map the sender's memory reads it there. Below, a copy through a
/// slot is cheaper than telling the sender that its memory was read.
pub const MAP_FROM: u64 = 4 << 10;
/// From this many bytes on, cross-memory attach beats a copy through slots: a system call and page look-ups cost
/// about a microsecond.
const READ_FROM: u64 = 64 << 10;

/// What a descriptor says of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// In the descriptor or its slot: so many bytes at this address.
    Here {
        /// The first byte.
        ptr: *const u8,
        /// Bytes.
        len: u64,
    },
    /// In the sender's region.
    Window {
        /// Offset of the first byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// At the sender's own address.
    Address {
        /// The first byte.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// Where it was granted that they go: the rest of the message.
    Placed {
        /// Bytes.
        len: u64,
    },
}

const KIND_SHIFT: u32 = 60;
const KIND_HERE: u64 = 0;
const KIND_WINDOW: u64 = 1;
const KIND_ADDRESS: u64 = 2;
const KIND_PLACED: u64 = 3;

impl Body {
    /// Bytes of data.
    pub fn len(&self) -> u64 {
        match self {
            Body::Here { len, .. }
            | Body::Window { len, .. }
            | Body::Address { len, .. }
            | Body::Placed { len } => *len,
        }
    }

    /// Whether the receiver reads the sender's memory, so that only the receiver's credit frees it.
    pub fn remote(&self) -> bool {
        matches!(self, Body::Window { .. } | Body::Address { .. })
    }
}

/// In a grant's length: only for what comes of the message that lies there.
const RETURNS: u64 = 1 << 63;

/// What a grant has opened to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// The peer may put there, by way of the link.
    Landing(u64),
    /// The peer may store this message at this offset of this rank's region.
    Mapped {
        /// Its number.
        message: u64,
        /// The offset.
        at: u64,
        /// Bytes.
        len: u64,
    },
}

/// The two directions between this rank and a peer in one lane.
#[derive(Debug)]
pub struct Channel {
    link: Arc<dyn Link>,
    /// This rank's inbox for the peer.
    own: LaneMemory,
    /// Offset in the peer's region of its inbox for this rank, and that inbox itself where it is mapped.
    remote: u64,
    mapped: Option<LaneMemory>,
    /// The most bytes that are not in a slot.
    short: u64,
    /// Nothing that is put waits for anything any more.
    ready: bool,
    /// How many descriptors were posted, and how many of them the peer is known to have consumed.
    posted: u64,
    credit: u64,
    /// How many slots were filled, and for each slot how many descriptors were posted with the last one in it.
    filled: u64,
    in_slots: [u64; SLOTS as usize],
    /// How many of the peer's descriptors were consumed, and how many of them the peer was told of; the same for slots.
    taken: u64,
    told: u64,
    emptied: u64,
    told_emptied: u64,
    /// How many messages were begun, and how many of the peer's have come whole.
    begun: u64,
    ended: u64,
}

impl Channel {
    /// `remote` is where the peer's inbox for this rank lies in the peer's region.
    pub fn new(link: Arc<dyn Link>, own: LaneMemory, remote: u64, lane_len: u64) -> Channel {
        // SAFETY: the peer's inbox lies in its region for as long as the link lives.
        let mapped = link.map(remote, lane_len).map(|ptr| unsafe { LaneMemory::new(ptr) });
        Channel {
            link,
            own,
            remote,
            short: if mapped.is_some() { SHORT_MAPPED } else { SHORT },
            ready: mapped.is_some(),
            mapped,
            posted: 0,
            credit: 0,
            filled: 0,
            in_slots: [0; SLOTS as usize],
            taken: 0,
            told: 0,
            emptied: 0,
            told_emptied: 0,
            begun: 0,
            ended: 0,
        }
    }

    /// The link below.
    pub fn link(&self) -> &Arc<dyn Link> {
        &self.link
    }

    /// Whether the two reach each other's memory.
    #[inline]
    pub fn maps(&self) -> bool {
        self.mapped.is_some()
    }

    /// This rank's inbox for the peer.
    pub fn own(&self) -> &LaneMemory {
        &self.own
    }

    /// Offset of the peer's inbox for this rank in the peer's region.
    pub fn remote(&self) -> u64 {
        self.remote
    }

    /// How a message from `ptr` should travel; `registered` is the offset of `ptr` in this rank's region, if it lies
    /// there.
    #[inline]
    pub fn route(&self, ptr: *const u8, registered: Option<u64>, len: u64) -> Body {
        if len >= MAP_FROM {
            let abilities = self.link.abilities();
            match registered {
                Some(offset) if abilities.contains(Abilities::MAP) => return Body::Window { offset, len },
                _ if abilities.contains(Abilities::READ) && len >= READ_FROM => {
                    return Body::Address { address: ptr as u64, len };
                }
                _ => {}
            }
        }
        Body::Here { ptr, len }
    }

    /// Whether a descriptor with this body can be posted now, or the peer says such nonsense that [`Channel::post`] refuses
    /// to.
    #[inline]
    pub fn has_room(&mut self, body: &Body) -> bool {
        let fits = self.fits(body) || {
            self.refresh();
            self.fits(body)
        };
        fits && self.is_ready()
    }

    /// Whether the link takes what is put without waiting for anything.
    #[inline]
    fn is_ready(&mut self) -> bool {
        self.ready = self.ready || self.link.ready();
        self.ready
    }

    /// Whether the data lies in a slot.
    #[inline]
    fn in_slot(&self, body: &Body) -> bool {
        matches!(body, Body::Here { len, .. } if *len > self.short)
    }

    #[inline]
    fn fits(&self, body: &Body) -> bool {
        let last = self.in_slots[(self.filled % SLOTS) as usize];
        self.posted.saturating_sub(self.credit) < DESCRIPTORS && (!self.in_slot(body) || last <= self.credit)
    }

    #[inline]
    fn refresh(&mut self) {
        self.credit = self.freed();
    }

    /// How many descriptors the peer has consumed, as far as it has told.
    #[inline]
    pub fn freed(&self) -> u64 {
        slot_words::freed(self.own.word(CREDIT))
    }

    /// How many descriptors were posted.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Whether the peer has consumed the first `count` descriptors.
    #[inline]
    pub fn consumed(&mut self, count: u64) -> bool {
        self.credit >= count || {
            self.refresh();
            self.credit >= count
        }
    }

    /// Posts a descriptor, for which [`Channel::has_room`] has found room.
    ///
    /// # Safety
    /// The memory that `body` names stays valid and unchanged: until the ticket is flushed for [`Body::Here`], else
    /// until the descriptor is consumed.
    #[inline]
    pub unsafe fn post(&mut self, stamp: &Stamp, body: Body) -> Result<Ticket> {
        debug_assert!(self.fits(&body));
        if self.credit > self.posted {
            return Err(self.overdrawn());
        }
        let at = descriptor(self.posted);
        self.posted += 1;
        let (filled, in_slot) = (slot(self.filled), self.in_slot(&body));
        if in_slot {
            self.in_slots[(self.filled % SLOTS) as usize] = self.posted;
            self.filled += 1;
        }
        let (kind, first, second) = match body {
            Body::Here { len, .. } => (KIND_HERE, 0, len),
            Body::Window { offset, len } => (KIND_WINDOW, offset, len),
            Body::Address { address, len } => (KIND_ADDRESS, address, len),
            Body::Placed { len } => (KIND_PLACED, 0, len),
        };
        let short = if kind == KIND_HERE { second } else { 0 };
        let words = [stamp.head(), stamp.count, u64::from(stamp.root) | short << 32 | kind << KIND_SHIFT];
        match (&self.mapped, body) {
            (Some(inbox), body) => {
                // The line that the peer looks at comes last, so that it is fetched once.
                match body {
                    Body::Here { ptr, len } => {
                        debug_assert!(len <= SLOT_BYTES);
                        let to = inbox.at(match len {
                            ..=INLINE => at + BODY,
                            _ if in_slot => filled,
                            _ => at + LINE,
                        });
                        // SAFETY: the caller's promise for `ptr`; the descriptor or slot has room.
                        unsafe { copy(ptr, to, len as usize) };
                    }
                    _ => {
                        inbox.set(at + BODY, first);
                        inbox.set(at + BODY + 8, second);
                    }
                }
                for (i, word) in words.into_iter().enumerate() {
                    inbox.set(at + HEAD + 8 * i as u64, word);
                }
                slot_words::post(inbox.word(at + SEQUENCE), self.posted);
                self.link.wake();
                Ok(Ticket(0))
            }
            (None, Body::Here { .. } | Body::Placed { .. }) => {
                let mut head = [0u8; (LINE - HEAD) as usize];
                for (i, word) in words.into_iter().chain([first, second]).enumerate() {
                    head[8 * i..8 * i + 8].copy_from_slice(&word.to_ne_bytes());
                }
                let signal = Some(Signal { at: self.remote + at + SEQUENCE, value: self.posted });
                let mut data = match body {
                    Body::Here { ptr, len } => Part { ptr, len: len as usize },
                    _ => Part::of(&[]),
                };
                if in_slot {
                    // SAFETY: the caller's promise.
                    unsafe { self.link.put(&[data], self.remote + filled, None)? };
                    data = Part::of(&[]);
                }
                let inline = kind == KIND_HERE && second <= INLINE;
                let head = if inline { &head[..(BODY - HEAD) as usize] } else { &head[..] };
                // SAFETY: the caller's promise for `data`; the head is short and copied.
                unsafe { self.link.put(&[Part::of(head), data], self.remote + at + HEAD, signal) }
            }
            (None, _) => unreachable!("only links that map or read are sent addresses"),
        }
    }

    #[cold]
    fn overdrawn(&self) -> Error {
        let what = format!("it says that it has taken {} messages of {}", self.credit, self.posted);
        Error::Protocol { rank: self.link.peer(), what }
    }

    /// The next descriptor of the peer, if it has come; `Err` with the peer's stamp if it is not of this call.
    #[inline]
    pub fn peek(&self, stamp: &Stamp) -> Result<Option<Body>, Stamp> {
        let at = descriptor(self.taken);
        if !slot_words::is_posted(self.own.word(at + SEQUENCE), self.taken + 1) {
            return Ok(None);
        }
        let (head, count) = (self.own.get(at + HEAD), self.own.get(at + HEAD + 8));
        let last = self.own.get(at + HEAD + 16);
        if head != stamp.head() || count != stamp.count || last as u32 != stamp.root {
            return Err(Stamp::from_wire(head, count, last as u32));
        }
        let (first, second) = (self.own.get(at + BODY), self.own.get(at + BODY + 8));
        Ok(Some(match last >> KIND_SHIFT {
            KIND_WINDOW => Body::Window { offset: first, len: second },
            KIND_ADDRESS => Body::Address { address: first, len: second },
            KIND_PLACED => Body::Placed { len: second },
            _ => {
                let len = last << 4 >> 36;
                let place = match len {
                    ..=INLINE => at + BODY,
                    _ if len > self.short => slot(self.emptied),
                    _ => at + LINE,
                };
                Body::Here { ptr: self.own.at(place), len }
            }
        }))
    }

    /// Of the peer's descriptors that are still to be seen, the stamp of the latest.
    pub fn latest(&self) -> Option<Stamp> {
        let number = |at: u64| self.own.word(at + SEQUENCE).load(Ordering::Acquire);
        let at =
            (0..DESCRIPTORS).map(descriptor).filter(|at| number(*at) != 0).max_by_key(|at| number(*at))?;
        let [head, count, root] = self.own.read(at + HEAD);
        Some(Stamp::from_wire(head, count, root as u32))
    }

    /// The stamp of the peer's next descriptor, if it has come.
    #[inline]
    pub fn next(&self) -> Option<Stamp> {
        let at = descriptor(self.taken);
        if !slot_words::is_posted(self.own.word(at + SEQUENCE), self.taken + 1) {
            return None;
        }
        let [head, count, root] = self.own.read(at + HEAD);
        Some(Stamp::from_wire(head, count, root as u32))
    }

    /// Whether the next descriptor is of a collective call before that number: its stamp, and the bytes that it is about.
    #[inline]
    pub fn left_over(&self, oldest: u32) -> Option<(Stamp, u64)> {
        let stamp = self.next().filter(|stamp| comes_before(stamp.sequence, oldest))?;
        Some((stamp, self.peek(&stamp).ok().flatten().map_or(0, |body| body.len())))
    }

    /// Frees the descriptor that [`Channel::peek`] found, and its slot. The peer is told at once when its own memory
    /// was read, else when half its descriptors or half its slots are free again.
    #[inline]
    pub fn take(&mut self, body: &Body) -> Result<()> {
        self.taken += 1;
        self.emptied += u64::from(self.in_slot(body));
        // Whoever took a message mostly posts the next one: its line is fetched meanwhile.
        if let Some(inbox) = &self.mapped {
            prefetch_to_write(inbox.at(descriptor(self.posted)));
        }
        let few = self.taken - self.told < DESCRIPTORS / 2 && self.emptied - self.told_emptied < SLOTS / 2;
        if few && !body.remote() {
            return Ok(());
        }
        (self.told, self.told_emptied) = (self.taken, self.emptied);
        match &self.mapped {
            Some(inbox) => {
                slot_words::free(inbox.word(CREDIT), self.taken);
                self.link.wake();
                Ok(())
            }
            None => self.link.signal(Signal { at: self.remote + CREDIT, value: self.taken }),
        }
    }

    /// Tells a peer whose inbox is mapped that this rank writes there no more. Nobody is woken: that would be one more look
    /// at memory which the peer may have given back meanwhile.
    pub fn last_word(&self) {
        if let Some(inbox) = &self.mapped {
            inbox.word(GONE).store(1, Ordering::Release);
        }
    }

    /// Begins the next message to the peer: its number, from 1.
    #[inline]
    pub fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    /// The peer's message has come whole.
    #[inline]
    pub fn end(&mut self) {
        self.ended += 1;
    }

    /// Lets the peer put a message of `len` bytes straight to where it belongs: the one that comes after those that have
    /// come whole and `ahead` more. With `returns` that memory is a message to the peer as well, and it is for what the peer
    /// makes of it. `registered` is the offset of `to` in this rank's region, if it lies there. Gives what
    /// to close afterwards, if the link can do that.
    ///
    /// # Safety
    /// As for [`Link::land`], until it is closed.
    pub unsafe fn grant(
        &mut self,
        ahead: u64,
        (to, registered): (*mut u8, Option<u64>),
        (len, returns): (u64, bool),
    ) -> Result<Option<Open>> {
        let message = self.ended + ahead + 1;
        let entry = grant(message);
        if let Some(inbox) = &self.mapped {
            let Some(at) = registered else { return Ok(None) };
            inbox.grant(entry).offer(message, at, len | if returns { RETURNS } else { 0 });
            return Ok(Some(Open::Mapped { message, at, len }));
        }
        // What cannot be granted yet comes by the inbox.
        if !self.is_ready() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let Some(landing) = (unsafe { self.link.land(to, len) }) else { return Ok(None) };
        // Signals alone: a peer that has left meanwhile needs none.
        let at = self.remote + entry;
        let words = [(at + GRANT_AT, landing), (at + GRANT_LEN, len), (at, message)];
        let told = words.into_iter().try_for_each(|(at, value)| self.link.signal(Signal { at, value }));
        told.inspect_err(|_| self.link.withdraw(landing))?;
        Ok(Some(Open::Landing(landing)))
    }

    /// Where a message of `len` bytes may be put over a link that does not map, if the peer has said so: an offset for
    /// puts.
    #[inline]
    pub fn granted(&self, message: u64, len: u64) -> Option<u64> {
        let (at, for_what) = self.own.grant(grant(message)).offered(message)?;
        (for_what == len && self.mapped.is_none()).then_some(at)
    }

    /// Where the next message, of `len` bytes, may be stored at once, if the link maps and the peer has said so; `term` is
    /// what of the peer goes into it. Until [`Channel::stored`] the peer leaves that memory alone, whatever becomes of its
    /// call.
    pub fn claim(&self, len: u64, term: Option<Body>) -> Option<*mut u8> {
        let message = self.begun + 1;
        let grant = self.own.grant(grant(message));
        self.mapped?;
        let (offset, for_what) = grant.offered(message)?;
        let returned = for_what == len | RETURNS && term == Some(Body::Window { offset, len });
        if for_what != len && !returned {
            return None;
        }
        let to = self.link.map(offset, len)?;
        grant.claim(message).then_some(to.as_ptr())
    }

    /// Takes back what was opened as [`Open::Mapped`]; false as long as the peer is storing there.
    pub fn revoke(&self, message: u64) -> bool {
        self.mapped.as_ref().is_none_or(|inbox| inbox.grant(grant(message)).take_back(message))
    }

    /// Nothing more is stored where the next message belongs.
    pub fn stored(&self) {
        self.own.grant(grant(self.begun + 1)).stored();
    }

    /// Puts the rest of a message where it was granted, and posts a descriptor that says so.
    ///
    /// # Safety
    /// The rest stays valid and unchanged until the ticket is flushed.
    pub unsafe fn place(&mut self, stamp: &Stamp, rest: Part, at: u64) -> Result<Ticket> {
        // SAFETY: the caller's promise, and the descriptor, which is flushed last, lends nothing.
        unsafe {
            self.link.put(&[rest], at, None)?;
            self.post(stamp, Body::Placed { len: rest.len as u64 })
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
