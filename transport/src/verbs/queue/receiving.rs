//! What comes from the peer, and what it is let write to.
#![allow(unsafe_code)] // memory that peers write

use std::sync::atomic::Ordering;

use super::{Fault, Queue};
use crate::link::Signal;
use crate::verbs::keys::{FIRST, Given, Keys};
use crate::verbs::wire::{self, Message, What};
use crate::{Error, sys};

/// Messages that may wait before all others when a peer asks for a key: far more than grants and windows make.
const ANSWERS: usize = 4096;

impl Queue {
    /// Takes a message of the peer.
    pub fn receive(&mut self, message: &[u8]) -> Result<(), Fault> {
        let Message { taken, what } = wire::parse(message).map_err(|e| Fault::Protocol(e.to_string()))?;
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
        if !matches!(what, What::Count) {
            self.taken = self.taken.wrapping_add(1);
        }
        match what {
            What::Put { at, payload, signal } => self.arrive(at, payload, signal)?,
            What::WhichKey { at } => self.give_window(at)?,
            What::Key(key) => self.keys.learn(key).map_err(Fault::Protocol)?,
            What::Forget { number } => self.keys.forget(number),
            What::Tell => self.asked = true,
            What::Count => {}
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

    /// Lets the peer write to a window of this rank; the number of the key.
    fn give(&mut self, start: u64, size: u64, exposed: bool) -> Result<u32, Error> {
        let memory = self.device().window(&self.region, start, size)?;
        let base = self.region.at(start, size).as_ptr();
        let given = Given::window(base, size, memory.remote_key(), start);
        let (number, new) = self.keys.give(given);
        if new || exposed {
            let key = wire::Key {
                number,
                window: exposed.then_some(start),
                address: base as u64,
                len: size,
                key: memory.remote_key(),
            };
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
        let exported = self.device().exported(to as u64, len)?;
        let given = match &exported {
            Some(memory) => Given::exported(to, len, memory.clone()),
            // SAFETY: the caller's promise: it stays there until it is withdrawn.
            None => Given::plain(to, len, unsafe { self.device().register(to, len as usize)? }),
        };
        let key = given.key();
        let (number, _) = self.keys.give(given);
        let key = wire::Key { number, window: None, address: to as u64, len, key };
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
        let forgotten = self.device().forgotten();
        if forgotten != self.forgotten {
            self.forgotten = forgotten;
            let device = self.adapter.device.clone();
            for number in self.keys.take_back(|at, key| !device.has(at, key)) {
                self.urgent.push_back(wire::forget(number).into());
            }
        }
    }
}
