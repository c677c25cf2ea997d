//! What comes from the peer, and what it is let write to.
#![allow(unsafe_code)] // memory that peers write

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nd_topology::rdma::MOST_RAILS;

use super::{At, Fault, Lane, MESSAGES, Queue};
use crate::link::Signal;
use crate::verbs::keys::{FIRST, Given, Keys, Registered, keys_of};
use crate::verbs::memory::Device;
use crate::verbs::sys::Memory;
use crate::verbs::wire::{self, Message, What};
use crate::{Error, sys};

/// Messages that may wait before all others when a peer asks for a key: far more than grants and windows make.
const ANSWERS: usize = 4096;

impl Queue {
    /// Keeps a message that came while the way was being tried, which the peer has found open.
    pub fn receive_later(&mut self, at: At, message: &[u8]) -> Result<(), Fault> {
        if self.before.len() >= MESSAGES as usize {
            return Err(Fault::Protocol(format!("more than {MESSAGES} messages before the way was open")));
        }
        self.before.push((at, message.into()));
        Ok(())
    }

    /// Takes what was kept.
    pub fn receive_kept(&mut self) -> Result<(), Fault> {
        let kept = std::mem::take(&mut self.before);
        kept.iter().try_for_each(|(at, message)| self.receive(*at, message))
    }

    /// Takes a message of the peer, or keeps it until its turn comes.
    pub fn receive(&mut self, at: At, message: &[u8]) -> Result<(), Fault> {
        let Some(lane) = self.lanes.iter().position(|lane| lane.at == at) else { return Ok(()) };
        let Message { taken, number, what } =
            wire::parse(message).map_err(|e| Fault::Protocol(e.to_string()))?;
        if lane == 0 {
            self.credit(taken)?;
        }
        match what {
            // It is not counted.
            What::Count => return Ok(()),
            What::Written if lane > 0 => {}
            What::Written => {
                return Err(Fault::Protocol("it tells of writes on a rail that needs no word".into()));
            }
            _ if lane == 0 => {}
            _ => return Err(Fault::Protocol("a message on a rail that is for long puts".into())),
        }
        if number == self.due() {
            self.take(what)?;
            return if self.lanes.len() > 1 { self.take_early() } else { Ok(()) };
        }
        let due = self.due();
        let ahead = |number: u16| number.wrapping_sub(due);
        let in_order = self.lanes[lane].early.back().is_none_or(|(last, _)| ahead(*last) < ahead(number));
        if self.lanes.len() == 1 || u32::from(ahead(number)) > MESSAGES || !in_order {
            return Err(Fault::Protocol(format!("message number {number}, where number {due} is due")));
        }
        self.lanes[lane].early.push_back((number, message.into()));
        Ok(())
    }

    /// The number of the message whose turn it is.
    fn due(&self) -> u16 {
        self.taken.wrapping_add(1) as u16
    }

    /// Takes what came before its turn, as far as it has come.
    fn take_early(&mut self) -> Result<(), Fault> {
        loop {
            let due = self.due();
            let mut lanes = self.lanes.iter_mut();
            let next = lanes.find_map(|lane| lane.early.pop_front_if(|(number, _)| *number == due));
            let Some((_, message)) = next else { return Ok(()) };
            let parsed = wire::parse(&message).map_err(|e| Fault::Protocol(e.to_string()))?;
            self.take(parsed.what)?;
        }
    }

    /// The peer has taken so many messages.
    fn credit(&mut self, taken: u32) -> Result<(), Fault> {
        let [behind, before] = [taken, self.credited].map(|n| self.sent.wrapping_sub(n));
        if behind > before {
            let what = format!("it says that it has taken {taken} messages of {}", self.sent);
            return Err(Fault::Protocol(what));
        }
        self.credited = taken;
        let placed = |number: u32| self.sent.wrapping_sub(number) >= behind;
        while self.unplaced.front().is_some_and(|&(number, ..)| placed(number)) {
            self.unplaced.pop_front();
        }
        Ok(())
    }

    /// Does what a message says.
    fn take(&mut self, what: What<'_>) -> Result<(), Fault> {
        self.taken = self.taken.wrapping_add(1);
        match what {
            What::Put { at, payload, signal } => self.arrive(at, payload, signal)?,
            What::WhichKey { at } => self.give_window(at)?,
            What::Key(key) => self.keys.learn(key).map_err(Fault::Protocol)?,
            What::Forget { number } => self.keys.forget(number),
            What::Tell => self.asked = true,
            What::Written | What::Count => {}
        }
        Ok(())
    }

    fn arrive(&self, at: u64, payload: &[u8], signal: Option<Signal>) -> Result<(), Fault> {
        let len = payload.len() as u64;
        let outside = || {
            Fault::Protocol(format!("a put of {len} bytes to offset {at:#x}, which no exposed window covers"))
        };
        if len > 0 {
            let to = if at < FIRST {
                Some(self.region.exposed(at, len).ok_or_else(outside)?.as_ptr())
            } else {
                self.keys.given(at, len).map_err(|_| outside())?
            };
            // What was withdrawn is thrown away.
            if let Some(to) = to {
                // SAFETY: an exposed window, which peers may write at any time, or memory that was granted and not
                // withdrawn; a receive buffer is not part of either.
                unsafe { sys::copy(payload.as_ptr(), to, payload.len()) };
            }
        }
        if let Some(signal) = signal {
            let no_counter = || {
                let at = signal.at;
                Fault::Protocol(format!(
                    "a signal to offset {at:#x}, which is no counter of an exposed window"
                ))
            };
            let counter = self.region.exposed_counter(signal.at).ok_or_else(no_counter)?;
            counter.store(signal.value, Ordering::Release);
        }
        Ok(())
    }

    /// Tells the peer by what it may write to the window there.
    fn give_window(&mut self, at: u64) -> Result<(), Fault> {
        let window = self.region.window(at, 1).filter(|(.., exposed)| *exposed);
        let Some((start, size, _)) = window else {
            return Err(Fault::Protocol(format!(
                "it would write to offset {at:#x}, which no exposed window covers"
            )));
        };
        // Nobody asks for a second key before the first has come.
        if self.urgent.len() >= ANSWERS {
            let why = format!("it asks for keys and takes none: {ANSWERS} messages wait for it");
            return Err(Fault::Protocol(why));
        }
        self.give(start, size, true)?;
        Ok(())
    }

    /// Registers memory with the device of every rail, with each device once.
    fn registered(&self, with: impl Fn(&Device) -> Result<Arc<Memory>, Error>) -> Result<Registered, Error> {
        let mut memories = Registered::default();
        for (i, lane) in self.lanes.iter().enumerate() {
            let same = self.lanes[..i].iter().position(|other| Arc::ptr_eq(other.device(), lane.device()));
            memories[i] = match same {
                Some(other) => memories[other].clone(),
                None => Some(with(lane.device())?),
            };
        }
        Ok(memories)
    }

    /// Lets the peer write to a window of this rank; the number of the key.
    fn give(&mut self, start: u64, size: u64, exposed: bool) -> Result<u32, Error> {
        let keys = keys_of(&self.registered(|device| device.window(&self.region, start, size))?);
        let base = self.region.at(start, size).as_ptr();
        let (number, new) = self.keys.give(Given::window(base, size, keys, start));
        if new || exposed {
            let window = exposed.then_some(start);
            let key = wire::Key { number, window, address: base as u64, len: size, keys };
            self.urgent.push_back(wire::key(&key).into());
        }
        Ok(number)
    }

    /// Lets the peer put to memory of this rank, until it is withdrawn: the offset by which puts name it.
    ///
    /// # Safety
    /// As for [`crate::Link::land`].
    pub unsafe fn land(&mut self, to: *mut u8, len: u64) -> Result<u64, Error> {
        let window =
            self.region.offset_of(to, len as usize).and_then(|at| Some((at, self.region.window(at, len)?)));
        if let Some((at, (start, size, _))) = window {
            let number = self.give(start, size, false)?;
            return Ok(Keys::offset(number, at - start));
        }
        let exported = self.lanes[0].device().exports().find(to as u64, len)?;
        let given = match &exported {
            Some(exported) => Given::exported(to, len, self.registered(|device| exported.with(device))?),
            None => {
                // SAFETY: the caller's promise: it stays there until it is withdrawn.
                let register = |device: &Device| unsafe { device.register(to, len as usize) }.map(Arc::new);
                Given::plain(to, len, self.registered(register)?)
            }
        };
        let keys = given.keys();
        let (number, _) = self.keys.give(given);
        let key = wire::Key { number, window: None, address: to as u64, len, keys };
        self.urgent.push_back(wire::key(&key).into());
        Ok(if exported.is_some() { Keys::device_offset(number) } else { Keys::offset(number, 0) })
    }

    /// The caller's own memory is the peer's no more.
    pub fn withdraw(&mut self, at: u64) {
        if let Some(number) = self.keys.withdraw(at) {
            self.urgent.push_back(wire::forget(number).into());
        }
    }

    /// Tells the peer of windows that are no more.
    pub fn forget_windows(&mut self) {
        let forgotten = self.lanes.iter().map(|lane| lane.device().forgotten()).sum();
        if forgotten != self.forgotten {
            self.forgotten = forgotten;
            let devices = self.lanes.iter().map(Lane::device);
            let has =
                |at: u64, keys: &[u32; MOST_RAILS]| devices.clone().zip(keys).all(|(d, key)| d.has(at, *key));
            for number in self.keys.take_back(|at, keys| !has(at, keys)) {
                self.urgent.push_back(wire::forget(number).into());
            }
        }
    }
}
