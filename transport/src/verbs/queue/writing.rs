//! Long parts of puts: the device writes them straight to where they belong, on whichever rail is free.
#![allow(unsafe_code)] // memory lent by Link::put

use std::sync::Arc;

use super::lane::{Out, Posted};
use super::{Fault, Op, Queue, STAGE};
use crate::link::Part;
use crate::verbs::exported::Exported;
use crate::verbs::keys::FIRST;
use crate::verbs::post::{Source, Target};
use crate::verbs::sys::Memory;
use crate::verbs::wire::{self, HEAD, PAYLOAD};
use crate::voice::{self, Topic};
use crate::{Error, sys};

/// Bytes of one write: what is pipelined, and what comes in between others.
const PIECE: u64 = 1 << 20;
/// A part is divided among rails if each gets so many bytes: 10 µs of 100 Gb/s, against 1 µs or so for one more write and the
/// message that follows it.
const SPAN: u64 = 128 << 10;
/// Longer ones are divided again, so that all rails have something to do from the beginning to the end.
const LONGEST_SPAN: u64 = 8 << 20;

/// A long part on its way.
#[derive(Debug)]
pub(super) struct Write {
    from: *const u8,
    len: u64,
    at: u64,
    done: u64,
    ticket: u64,
    /// The rail on which it goes, once it has begun.
    lane: Option<usize>,
    /// The registration of the caller's own memory.
    memory: Option<Arc<Memory>>,
    /// It goes as messages.
    chopped: bool,
    /// Its memory cannot be registered: it is copied piece by piece.
    staged: bool,
    /// Another device's, which the processor cannot read: it is written from there or not at all.
    exported: Option<Arc<Exported>>,
    /// The peer was asked to tell what it has placed.
    waits: bool,
    /// Where `from` points, if it is a copy.
    pub own: Option<Box<[u8]>>,
}

// SAFETY: lent memory is only read, and its owner keeps it unchanged until it was sent, on whichever thread.
unsafe impl Send for Write {}

/// How many bytes of so many go on a rail at a time, of so many rails.
fn span(len: u64, rails: u64) -> u64 {
    let shares = rails.min(len / SPAN).max(1);
    if shares == 1 {
        return len;
    }
    let rounds = len.div_ceil(shares * LONGEST_SPAN);
    len.div_ceil(shares * rounds).next_multiple_of(sys::PAGE as u64)
}

impl Queue {
    /// Adds a long part, of another device's memory or of the caller's.
    pub(super) fn lend(&mut self, part: &Part, at: u64, exported: Option<Arc<Exported>>) {
        let len = part.len as u64;
        let span = span(len, self.lanes.len() as u64).max(1);
        let ticket = self.tickets.lend(len.div_ceil(span) as u32);
        for begin in (0..len).step_by(span as usize) {
            self.ops.push_back(Op::Write(Write {
                // SAFETY: inside the part.
                from: unsafe { part.ptr.add(begin as usize) },
                len: span.min(len - begin),
                at: at + begin,
                done: 0,
                ticket,
                lane: None,
                memory: None,
                chopped: false,
                staged: false,
                exported: exported.clone(),
                waits: false,
                own: None,
            }));
        }
    }

    /// Adds a piece of a write; whether anything was added or done, and whether that was the last.
    pub(super) fn write(&mut self, write: &mut Write, out: &mut Out) -> Result<(bool, bool), Fault> {
        let (to, rest) = (write.at + write.done, write.len - write.done);
        if rest == 0 {
            let told = self.tell_written(write, out);
            return Ok((told, told));
        }
        if write.done == 0 && !write.chopped {
            let overlaps = |&(_, at, len): &(u32, u64, u64)| at < write.at + write.len && write.at < at + len;
            write.chopped = self.unplaced.iter().any(overlaps);
            if write.chopped && write.exported.is_some() {
                // The processor cannot read it, so it waits until the peer says that those before it are in their place.
                write.chopped = false;
                if !std::mem::replace(&mut write.waits, true) {
                    self.urgent.push_back(wire::tell().into());
                }
                return Ok((false, false));
            }
        }
        if write.chopped {
            return Ok(self.chop(write, out));
        }
        let Some(key) = self.keys.of(write.at, write.len).map_err(Fault::Outside)? else {
            if write.at < FIRST {
                if self.keys.ask(write.at) {
                    self.urgent.push_back(wire::which_key(write.at).into());
                }
                return Ok((false, false));
            }
            // Withdrawn: nobody wants it any more. What was posted of it is still being read.
            self.tickets.release(write.ticket);
            return Ok((true, true));
        };
        let address = key.address + (to - key.begins);
        let lane = match write.lane {
            Some(lane) => lane,
            None => match self.choose(address, write.len) {
                Some(lane) => lane,
                None => return Ok((false, false)),
            },
        };
        if !self.fits(lane, out) {
            return Ok((false, false));
        }
        write.lane = Some(lane);
        let mut posted = Posted { id: self.next, ticket: write.ticket, ..Posted::default() };
        // SAFETY: inside what was lent.
        let from = unsafe { write.from.add(write.done as usize) };
        let registered = self.registration(write, lane)?;
        let n = rest.min(if registered.is_some() { PIECE } else { STAGE as u64 });
        let source = match registered {
            Some(memory) => {
                let source = Source { address: from as u64, len: n as u32, key: memory.local_key() };
                posted._memory = Some(memory);
                source
            }
            None => {
                let stages = self.lanes[lane].adapter.stages()?;
                let Some(stage) = stages.take() else { return Ok((false, false)) };
                posted.stage = Some(stage);
                // SAFETY: lent memory on one side, a piece that nobody else has on the other.
                unsafe { sys::copy(from, stages.block.at(stage), n as usize) };
                let key = stages.block.memory().local_key();
                Source { address: stages.block.at(stage) as u64, len: n as u32, key }
            }
        };
        posted.target = (address, n);
        out.lane = lane;
        out.telling = true;
        out.batch.push(self.next, source, Some(Target { address, key: key.keys[lane] }), false);
        self.tickets.hold(write.ticket);
        let lane = &mut self.lanes[lane];
        lane.posted.push_back(posted);
        lane.outstanding += n;
        lane.carried += n;
        self.next += 1;
        write.done += n;
        let posted_whole = write.done == write.len;
        if posted_whole {
            self.tickets.release(write.ticket);
        }
        Ok((true, posted_whole && write.lane == Some(0)))
    }

    /// Adds a message that follows a write where messages do not, and says that it is in its place.
    fn tell_written(&mut self, write: &Write, out: &mut Out) -> bool {
        let lane = write.lane.unwrap_or_default();
        if !self.has_credit() {
            return false;
        }
        let Some(place) = self.place(lane, HEAD, out) else { return false };
        place.copy(&wire::written(), &[]);
        self.send(place, out, 0);
        out.telling = true;
        true
    }

    /// Adds a piece of a write that goes as messages; answers as [`Queue::write`].
    fn chop(&mut self, write: &mut Write, out: &mut Out) -> (bool, bool) {
        if !self.has_credit() {
            return (false, false);
        }
        let rest = write.len - write.done;
        let n = rest.min(PAYLOAD as u64);
        let Some(place) = self.place(0, HEAD + n as usize, out) else { return (false, false) };
        // SAFETY: lent, and unchanged until the ticket is flushed.
        let payload = unsafe { std::slice::from_raw_parts(write.from.add(write.done as usize), n as usize) };
        place.copy(&wire::put(write.at + write.done, None), payload);
        let last = n == rest;
        self.send(place, out, if last { write.ticket } else { 0 });
        out.telling |= last;
        write.done += n;
        if last {
            self.tickets.release(write.ticket);
        }
        (true, last)
    }

    /// The rail for a write to these bytes of the peer, if there is room on one: where the fewest bytes are on their way, and
    /// of several such where the fewest went. Where some of these bytes are being written, it follows on that rail.
    fn choose(&self, address: u64, len: u64) -> Option<usize> {
        if self.lanes.len() == 1 {
            return Some(0);
        }
        let mut before = (0..self.lanes.len()).filter(|&lane| self.lanes[lane].writes_to(address, len));
        if let Some(lane) = before.next() {
            return before.next().is_none().then_some(lane);
        }
        let room = |lane: &usize| self.lanes[*lane].posted.len() < self.lanes[*lane].adapter.depth;
        let load = |lane: &usize| (self.lanes[*lane].outstanding, self.lanes[*lane].carried);
        (0..self.lanes.len()).filter(room).min_by_key(load)
    }

    /// The registration of what a write sends on a rail: its window's, or its own; none where it is short, or cannot be
    /// registered.
    fn registration(&self, write: &mut Write, lane: usize) -> Result<Option<Arc<Memory>>, Error> {
        if write.staged || write.memory.is_some() {
            return Ok(write.memory.clone());
        }
        let adapter = &self.lanes[lane].adapter;
        if let Some(exported) = &write.exported {
            write.memory = Some(exported.with(&adapter.device)?);
            return Ok(write.memory.clone());
        }
        let window = self
            .region
            .offset_of(write.from, write.len as usize)
            .and_then(|offset| self.region.window(offset, write.len));
        let memory = match window {
            Some((at, size, _)) => adapter.device.window(&self.region, at, size),
            None if write.len <= STAGE as u64 => return Ok(None),
            None => {
                let (from, len) = (write.from.cast_mut(), write.len as usize);
                // SAFETY: lent, so it stays mapped until the put is flushed, until when the registration is kept.
                unsafe { adapter.device.register(from, len) }.map(Arc::new)
            }
        };
        match memory {
            Ok(memory) => write.memory = Some(memory),
            Err(e) => {
                write.staged = true;
                let text =
                    format_args!("buffers are copied before they are sent by RDMA, which is slower: {e}");
                voice::warn(&self.region, Topic::Copies, text);
            }
        }
        Ok(write.memory.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_parts_are_divided_among_rails() {
        const M: u64 = 1 << 20;
        assert_eq!([span(M, 1), span(255 << 10, 2), span(2000, 4)], [M, 255 << 10, 2000]);
        assert_eq!([span(256 << 10, 2), span(256 << 10, 4), span(M, 4)], [128 << 10, 128 << 10, 256 << 10]);
        assert_eq!([span(16 * M, 2), span(17 * M, 2), span(1024 * M, 4)], [8 * M, 17 * M / 4, 8 * M]);
        // Whole pages, and nothing is left over.
        for len in [300_000, 300_001, 5 * M + 1, 100 * M - 1] {
            for rails in 1..=4 {
                let span = span(len, rails);
                assert!(span == len || span.is_multiple_of(sys::PAGE as u64), "{len} over {rails}: {span}");
                assert!(
                    len.div_ceil(span) <= rails * len.div_ceil(rails * LONGEST_SPAN),
                    "{len} over {rails}: {span}"
                );
            }
        }
    }
}
