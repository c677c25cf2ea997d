//! Between threads of one process: the contract in its plainest form, and the one that tests break on purpose.
#![allow(unsafe_code)] // the peer's memory is this process's own

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::bell::Bell;
use crate::cores;
use crate::endpoint::{Endpoint, Parts, Way};
use crate::link::{Abilities, Cost, Link, Part, Signal, Ticket, Transport};
use crate::mapped::Mapped;
use crate::region::{Region, SLEEP};
use crate::sys::{self, Mapping, memory_file};
use crate::verbs::Ports;
use crate::{Config, Error, Result, Stop};

/// What goes wrong, on purpose.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Links cannot map or read: everything must be put, as over a network.
    pub put_only: bool,
    /// With `put_only`: a put takes effect only after some further calls of [`Endpoint::progress`], drawn from 0 to
    /// this number by a generator with this seed. Puts of one link keep their order.
    pub delay: Option<(u32, u64)>,
    /// This rank is lost once it has put this many times.
    pub lose: Option<(usize, u64)>,
}

/// Endpoints for `n` threads of this process.
pub fn group(n: usize, config: &Config) -> Result<Vec<Endpoint>> {
    faulty_group(n, config, &Faults::default())
}

/// The same, with faults.
pub fn faulty_group(n: usize, config: &Config, faults: &Faults) -> Result<Vec<Endpoint>> {
    let len = crate::shm::region_len(n)?;
    let file = memory_file(len * n as u64)?;
    let mapping = Arc::new(Mapping::new(&file, len as usize * n)?);
    let regions: Vec<_> = (0..n).map(|r| Region::new(mapping.clone(), r * len as usize, len)).collect();
    let group = rand::random::<u128>();
    let name = |rank: usize| format!("nd-{group:032x}-{rank}").into_bytes();
    let lost: Arc<[AtomicBool]> = (0..n).map(|_| AtomicBool::new(false)).collect();
    let endpoint = |me: usize| {
        let puts = Arc::new(AtomicU64::new(0));
        let link = |peer: usize| LocalLink {
            me,
            peer,
            name: name(peer),
            mapped: Mapped { region: regions[peer].clone(), sleep: SLEEP, bell: Bell::default() },
            faults: faults.clone(),
            delayed: Mutex::new(Delayed::new(faults.delay.map_or(0, |d| d.1) ^ (me * 1009 + peer) as u64)),
            lost: lost.clone(),
            puts: puts.clone(),
            reads: config.cross_memory && sys::can_read_own_process(),
        };
        let way = |peer: usize| if peer == me { Way::Own } else { Way::Local(Arc::new(link(peer))) };
        Endpoint::assemble(Parts {
            rank: me,
            ways: (0..n).map(way).collect(),
            region: regions[me].clone(),
            sleep: SLEEP,
            header: None,
            first: None,
            verbs: None,
            tcp: None,
            ports: Ports::default(),
            bell_socket: None,
            name: name(me),
            cards: Vec::new(),
            crowded: n > cores::available(),
            config: Config { stop: Stop::default(), ..config.clone() },
        })
    };
    Ok((0..n).map(endpoint).collect())
}

/// A link between two threads.
#[derive(Debug)]
pub(crate) struct LocalLink {
    me: usize,
    peer: usize,
    /// With what the names of the peer's sockets begin.
    pub(crate) name: Vec<u8>,
    pub(crate) mapped: Mapped,
    faults: Faults,
    delayed: Mutex<Delayed>,
    lost: Arc<[AtomicBool]>,
    puts: Arc<AtomicU64>,
    /// Whether plain memory is read through the kernel.
    reads: bool,
}

/// Puts that have not taken effect yet.
#[derive(Debug)]
struct Delayed {
    queue: VecDeque<DelayedPut>,
    random: u64,
    tickets: u64,
    flushed: u64,
}

#[derive(Debug)]
struct DelayedPut {
    bytes: Vec<u8>,
    at: u64,
    signal: Option<Signal>,
    countdown: u64,
}

impl Delayed {
    fn new(seed: u64) -> Delayed {
        Delayed { queue: VecDeque::new(), random: seed | 1, tickets: 0, flushed: 0 }
    }

    /// From 0 to `most`; xorshift64, so that a seed gives the same delays again.
    fn draw(&mut self, most: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % (most + 1)
    }
}

impl LocalLink {
    /// The same peer, in a smaller group, where it has another number and sleeps on another word.
    pub(crate) fn derive(&self, me: usize, peer: usize, sleep: u64) -> LocalLink {
        LocalLink {
            me,
            peer,
            name: self.name.clone(),
            mapped: Mapped { region: self.mapped.region.clone(), sleep, bell: Bell::default() },
            faults: Faults { lose: None, ..self.faults.clone() },
            delayed: Mutex::new(Delayed::new(self.faults.delay.map_or(0, |d| d.1))),
            lost: self.lost.clone(),
            puts: Arc::default(),
            reads: self.reads,
        }
    }

    /// Counts a put of this rank; an error when one of the two is lost.
    fn count(&self) -> Result<()> {
        let Some((rank, after)) = self.faults.lose else { return Ok(()) };
        if rank == self.me && self.puts.fetch_add(1, Ordering::Relaxed) >= after {
            self.lost[rank].store(true, Ordering::SeqCst);
        }
        match [self.me, self.peer].into_iter().find(|&r| self.lost[r].load(Ordering::SeqCst)) {
            None => Ok(()),
            Some(rank) => {
                Err(Error::PeerLost { rank, host: crate::host::host_name(), cause: "lost on purpose".into() })
            }
        }
    }

    pub(crate) fn lost(&self) -> bool {
        self.lost[self.peer].load(Ordering::SeqCst)
    }

    /// Lets time pass for delayed puts; whether one took effect.
    pub(crate) fn tick(&self) -> bool {
        let mut delayed = self.delayed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut moved = false;
        while let Some(first) = delayed.queue.front_mut() {
            if first.countdown > 0 {
                first.countdown -= 1;
                break;
            }
            let Some(put) = delayed.queue.pop_front() else { break };
            // SAFETY: the bytes are owned.
            unsafe { self.mapped.put(&[Part::of(&put.bytes)], put.at, put.signal) };
            delayed.flushed += 1;
            moved = true;
        }
        moved
    }

    /// # Safety
    /// The parts are valid.
    unsafe fn delay(&self, parts: &[Part], at: u64, signal: Option<Signal>) -> Result<Ticket> {
        let total = parts.iter().map(|p| p.len).sum::<usize>();
        if total > 0 && self.mapped.region.exposed(at, total as u64).is_none() {
            return Err(Error::Protocol {
                rank: self.me,
                what: format!("a put of {total} bytes to {at}, outside every window of rank {}", self.peer),
            });
        }
        let mut bytes = vec![0u8; total];
        let mut filled = 0;
        for part in parts {
            // SAFETY: the caller's promise; `bytes` has room for all parts.
            unsafe { sys::copy(part.ptr, bytes[filled..].as_mut_ptr(), part.len) };
            filled += part.len;
        }
        let mut delayed = self.delayed.lock().unwrap_or_else(PoisonError::into_inner);
        let countdown = self.faults.delay.map_or(0, |(most, _)| delayed.draw(most.into()));
        delayed.queue.push_back(DelayedPut { bytes, at, signal, countdown });
        delayed.tickets += 1;
        Ok(Ticket(delayed.tickets))
    }
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        // What was put arrives, as with every other transport whose endpoint is dropped in order.
        let delayed = self.delayed.get_mut().unwrap_or_else(PoisonError::into_inner);
        for put in delayed.queue.drain(..) {
            // SAFETY: the bytes are owned.
            unsafe { self.mapped.put(&[Part::of(&put.bytes)], put.at, put.signal) };
        }
    }
}

impl Link for LocalLink {
    fn peer(&self) -> usize {
        self.peer
    }

    fn transport(&self) -> Transport {
        Transport::Local
    }

    fn abilities(&self) -> Abilities {
        match self.faults.put_only {
            true => Abilities::empty(),
            false if self.reads => Abilities::MAP | Abilities::READ,
            false => Abilities::MAP,
        }
    }

    fn cost(&self) -> Cost {
        Cost { latency_us: 0.2, bandwidth: 10.0 }
    }

    unsafe fn put(&self, parts: &[Part], at: u64, signal: Option<Signal>) -> Result<Ticket> {
        self.count()?;
        if self.faults.put_only {
            // SAFETY: the caller's promise.
            return unsafe { self.delay(parts, at, signal) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.mapped.put(parts, at, signal) };
        Ok(Ticket(0))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        // SAFETY: no parts.
        unsafe { self.put(&[], signal.at, Some(signal)) }.map(|_| ())
    }

    fn flushed(&self, ticket: Ticket) -> bool {
        !self.faults.put_only
            || self.delayed.lock().unwrap_or_else(PoisonError::into_inner).flushed >= ticket.0
    }

    fn map(&self, at: u64, len: u64) -> Option<NonNull<u8>> {
        self.mapped.map(at, len).filter(|_| !self.faults.put_only)
    }

    unsafe fn read(&self, from: u64, to: *mut u8, len: usize) -> Result<()> {
        // Through the kernel, although the address is this process's own: a thread that gave up may have freed it.
        // SAFETY: the caller's promise.
        unsafe { sys::read_process(std::process::id(), from, to, len) }
            .map_err(|e| Error::system(format!("reading {len} bytes of rank {}", self.peer), e))
    }

    fn wake(&self) {
        self.mapped.wake();
    }

    fn describe(&self) -> String {
        "local: two threads of one process".into()
    }
}
