//! Between any hosts: authenticated streams, payload received straight into its destination.
//!
//! Two ranks have one connection, made by the first put of either (`meeting`): what goes back acknowledges what came.
//!
//! | file | |
//! |---|---|
//! | `address` | which addresses to advertise and to try, and why; pure |
//! | `rails` | which of several equal interfaces a rank uses; pure |
//! | `interfaces` | what interfaces there are |
//! | `listen` | opening the port |
//! | `accept` | answering: strangers out, peers in; by threads |
//! | `connect` | opening a connection |
//! | `dialler` | the threads that do so, beside those who put |
//! | `meeting` | how two ranks come to have one |
//! | `crossing` | which holds when both open one; pure |
//! | `calls` | connections for talk beside the links |
//! | `connection` | one of them: its stream and keys |
//! | `identity` | who connects, and the keys that follow |
//! | `wire` | frames; pure |
//! | `seal` | encrypted records around them; pure |
//! | `pacing` | which congestion control |
//! | `outgoing`, `link` | sending |
//! | `leaving` | until what was sent is there |
//! | `receive` | receiving |
//! | `landing` | the caller's memory that a peer may put into |
//! | `rider` | another way for the payload, agreed on while connecting |
//! | `sign` | what shows whether a peer that is not connected is there |
//! | `raw` | lent and exposed memory in system calls |
//!
//! **Progress.** With few connections each is simply read, which costs one system call and no detour by way of the
//! poll: the fastest way to notice a small message. With more than `DIRECT` of them the poll says which are
//! ready. The poll is edge-triggered: a connection that it named stays `ready` until a read finds nothing.
//!
//! **Meeting.** Nobody waits here for a connection: what is put waits for it, and that there will be none is what progress
//! reports.
//!
//! **Sending.** Puts wait until the next progress, so that those of one step go with one system call, and the counters
//! that say what was consumed go along with data.
//!
//! **Leaving.** A peer is lost when its connection ends; with a goodbye it left in order. What it sent before is
//! received first, even where sending to it fails meanwhile. A rank that leaves waits until its peers' kernels have
//! what it sent, as long as it would wait to connect: closing before would take it back as soon as they say anything. Once
//! something has failed it waits only for those of which it sees that they take it.

mod accept;
pub mod address;
mod calls;
mod connect;
mod connection;
mod crossing;
mod dialler;
pub mod identity;
pub mod interfaces;
mod landing;
mod leaving;
mod link;
mod listen;
mod meeting;
mod outgoing;
mod pacing;
mod rails;
mod raw;
mod receive;
mod rider;
pub mod seal;
mod sign;
#[cfg(test)]
mod tests;
pub mod wire;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

pub use address::{Advertised, TcpCard};
pub(crate) use calls::{Called, Calls};
pub use connect::connect_within;
pub(crate) use link::TcpLink;
pub use listen::Listening;
pub(crate) use outgoing::Gone;
pub(crate) use rider::{Rider, Talk};

use crate::secure::Secret;
use crate::{Card, Config, Cost, Error, Forked, Link, Region, Result, Traffic};
use accept::Acceptor;
use address::{Candidate, Filter, Interface, candidates};
use calls::Callers;
use connection::Connection;
use dialler::Dialler;
use leaving::Leaving;
use link::Common;
use meeting::{Arrival, Arrivals};
use receive::{BUFFER, End, Incoming, Memory};

/// Up to this many connections are read without asking the poll first.
const DIRECT: usize = 4;
/// With few connections the poll is asked once in so many calls: for room to send.
const SELDOM: u32 = 64;
/// How long leaving may take, all peers together, once something has failed.
const FAREWELL: Duration = Duration::from_secs(1);
/// So often TCP has sent something again to a peer that is not there: what is merely lost arrives the second time, and what
/// is slow is acknowledged by then.
const REPEATS: u8 = 2;
/// How often it is looked meanwhile whether a peer has everything.
const FAREWELL_TICK: Duration = Duration::from_micros(100);

const WAKE: Token = Token(usize::MAX - 1);
const BELL: Token = Token(usize::MAX - 2);
/// Of all descriptors that are watched for the rider.
const STIR: Token = Token(usize::MAX - 3);

/// All connections of one rank.
#[derive(Debug)]
pub struct Tcp {
    common: Arc<Common>,
    /// By rank, the place among the peers.
    slots: HashMap<usize, usize>,
    links: Vec<Arc<TcpLink>>,
    region: Arc<Region>,
    inbox: Mutex<Inbox>,
    acceptor: Mutex<Acceptor>,
    forked: Forked,
}

/// What is received, and from whom.
#[derive(Debug)]
struct Inbox {
    poll: Poll,
    events: Events,
    /// By place.
    incoming: Vec<Option<Incoming>>,
    /// The places that have one, and of how many the payload goes another way.
    live: Vec<usize>,
    quiet: usize,
    buffer: Box<[u8]>,
    calls: u32,
    /// What progress has not reported yet.
    errors: Vec<Error>,
}

impl Tcp {
    /// Starts to answer and to connect. `cards` by rank; `peers` are the ranks to be reached this way.
    pub fn start(
        listening: Listening,
        me: usize,
        cards: &[Card],
        peers: &[usize],
        secret: &Secret,
        (region, rider): (Arc<Region>, Option<Arc<dyn Rider>>),
        config: &Config,
    ) -> Result<Tcp> {
        let poll = Poll::new().map_err(|e| listen::descriptors("starting to watch connections", e))?;
        let watch = |e| Error::system("starting to watch connections", e);
        let waker = Waker::new(poll.registry(), WAKE).map_err(watch)?;
        let common = Arc::new(Common {
            me,
            secret: secret.clone(),
            buffer: config.socket_buffer,
            preferred: listening.preferred,
            timeout: config.start_timeout,
            records_per_key: config.encrypt.then_some(config.records_per_key),
            arrivals: Arrivals::new(waker),
            callers: Callers::default(),
            waiting: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            dialler: Dialler::new(me),
            dialling: AtomicUsize::new(0),
            given_up: AtomicBool::new(false),
            stop: config.stop.clone(),
            rider,
            ends: AtomicUsize::new(0),
        });
        let filter = Filter::parse(&config.interfaces);
        let index = cards[..me].iter().filter(|card| card.host == cards[me].host).count();
        let link = |(slot, &peer): (usize, &usize)| {
            let card = &cards[peer];
            let same_host = card.network == cards[me].network;
            let mut ways = candidates(&listening.interfaces, &filter, config.family, &card.tcp, same_host);
            rails::take_turns(&mut ways, &listening.interfaces, &filter, index);
            let cost = cost(&listening.interfaces, ways.first(), same_host);
            TcpLink::new(common.clone(), slot, (peer, card.host_name.clone()), ways, cost)
        };
        let links: Vec<_> = peers.iter().enumerate().map(link).collect();
        let acceptor = Acceptor::start(listening.listener, &common, &links)?;
        Ok(Tcp {
            common,
            slots: peers.iter().enumerate().map(|(slot, &peer)| (peer, slot)).collect(),
            region,
            inbox: Mutex::new(Inbox {
                poll,
                events: Events::with_capacity(256),
                incoming: links.iter().map(|_| None).collect(),
                live: Vec::with_capacity(links.len()),
                quiet: 0,
                buffer: vec![0; BUFFER].into(),
                calls: 0,
                errors: Vec::new(),
            }),
            links,
            acceptor: Mutex::new(acceptor),
            forked: Forked::here(),
        })
    }

    /// The way to `peer`, which is one of those that [`Tcp::start`] was given.
    pub fn link(&self, peer: usize) -> Arc<dyn Link> {
        self.tcp_link(peer)
    }

    /// The same, for whoever rides on it.
    pub(crate) fn tcp_link(&self, peer: usize) -> Arc<TcpLink> {
        self.links[self.slots[&peer]].clone()
    }

    /// How many peers have left or were lost.
    #[inline]
    pub(crate) fn ends(&self) -> usize {
        self.common.ends.load(Ordering::Acquire)
    }

    /// Whether connections are being opened: whoever spins meanwhile takes the core from those who do.
    #[inline]
    pub(crate) fn dials(&self) -> bool {
        self.common.dialling.load(Ordering::Relaxed) > 0
    }

    /// Wakes whoever is in [`Tcp::park`] when this can be read, and tells the rider.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let fd = fd.as_raw_fd();
        let inbox = self.inbox();
        let watched = inbox.poll.registry().register(&mut SourceFd(&fd), STIR, Interest::READABLE);
        watched.map_err(|e| Error::system("watching a device", e))
    }

    /// The peers, to talk to beside the links; works as long as this answers its port.
    pub(crate) fn calls(&self) -> Calls {
        Calls::new(self.common.clone(), self.links.iter().map(|link| (link.peer, link.clone())).collect())
    }

    /// Moves what can move without waiting: receives, and sends what waits. True if something moved.
    ///
    /// A peer that vanished or broke the protocol is an error, once; one that left in order is an error only if
    /// something was still to be sent to it. See [`Tcp::lost`].
    pub fn progress(&self) -> Result<bool> {
        let mut moved = self.flush();
        let mut inbox = self.inbox();
        if self.common.arrivals.any() {
            self.adopt(&mut inbox);
            moved = true;
        }
        // Those whose payload goes another way have nothing to say but a last word.
        let busy = inbox.live.len() - inbox.quiet;
        let direct = busy <= DIRECT;
        inbox.calls = inbox.calls.wrapping_add(1);
        if !direct || inbox.calls.is_multiple_of(SELDOM) {
            self.poll(&mut inbox, Duration::ZERO)?;
        }
        let mut at = 0;
        while let Some(&slot) = inbox.live.get(at) {
            moved |= self.receive(&mut inbox, slot, direct);
            // One that ended has left the list.
            at += usize::from(inbox.live.get(at) == Some(&slot));
        }
        if inbox.errors.is_empty() { Ok(moved) } else { Err(inbox.errors.remove(0)) }
    }

    /// Hands what was put to the kernel, as far as it takes it; whether it took anything.
    pub fn flush(&self) -> bool {
        let mut moved = false;
        if self.common.waiting.load(Ordering::Acquire) > 0 {
            for link in self.links.iter().filter(|l| l.may_flush()) {
                moved |= link.flush();
            }
        }
        moved
    }

    /// Sleeps until something can be read or written that matters, or `doorbell` (a datagram socket, emptied here)
    /// rings, at most for `timeout`. May return early.
    pub fn park(&self, doorbell: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<()> {
        self.common.dialler.hurry();
        let mut inbox = self.inbox();
        let ready = inbox.live.iter().any(|&slot| inbox.incoming[slot].as_ref().is_some_and(|i| i.ready));
        let sending =
            self.common.waiting.load(Ordering::Acquire) > 0 && self.links.iter().any(|l| l.may_flush());
        if ready || sending || self.common.arrivals.any() || !inbox.errors.is_empty() {
            return Ok(());
        }
        if let Some(bell) = doorbell {
            inbox.watch(bell)?;
        }
        let rung = self.poll(&mut inbox, timeout)?;
        if let (Some(bell), true) = (doorbell, rung) {
            let mut datagram = [0; 64];
            while raw::receive(bell, &mut datagram).is_ok_and(|got| got.is_some()) {}
        }
        Ok(())
    }

    /// Wakes whoever is in [`Tcp::park`], from any thread.
    pub fn waker(&self) -> impl Fn() + Send + Sync + 'static {
        let common = self.common.clone();
        move || common.arrivals.wake()
    }

    /// Why `peer` is gone, if it is, in order or not: nothing more comes from it.
    pub fn lost(&self, peer: usize) -> Option<String> {
        let link = &self.links[*self.slots.get(&peer)?];
        link.gone().map(|gone| gone.cause.clone())
    }

    /// Why the peer's end of the connection is no more, if its own system has said so.
    pub fn ended(&self, peer: usize) -> Option<String> {
        let link = &self.links[*self.slots.get(&peer)?];
        link.gone().filter(|gone| gone.ended).map(|gone| gone.cause.clone())
    }

    /// Whether nothing shows that what `peer` sends comes here: the two have not met, or its system has not acknowledged
    /// what was sent last, which takes milliseconds where the network works.
    pub(crate) fn unheard(&self, peer: usize) -> bool {
        let connection = self.slots.get(&peer).and_then(|slot| self.links[*slot].meeting.connection());
        connection.is_none_or(|connection| raw::info(connection.stream.as_fd()).unanswered)
    }

    /// Whether the network to `peer` seems not to work: its system has acknowledged nothing although something was sent twice again,
    /// which takes 0.6 s at least, or not for a fifth of a second that this rank connects; or the peer is lost.
    pub(crate) fn cut_off(&self, peer: usize) -> bool {
        self.slots.get(&peer).is_some_and(|slot| self.links[*slot].cut_off())
    }

    /// What the connection with `peer` carries, if there is one.
    pub(crate) fn traffic(&self, peer: usize) -> Option<Traffic> {
        let connection = self.links[*self.slots.get(&peer)?].meeting.connection()?;
        let info = raw::info(connection.stream.as_fd());
        Some(Traffic {
            carried: info.acknowledged_bytes.wrapping_add(info.received_bytes),
            round_trip: info.round_trip,
            under_way: info.under_way && info.repeats < REPEATS,
        })
    }

    /// For how long nothing of what waits for `peer` could be sent.
    pub(crate) fn stuck(&self, peer: usize) -> Duration {
        self.slots.get(&peer).map_or(Duration::ZERO, |slot| self.links[*slot].stuck())
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the connections that were made, and notes why others were not.
    #[cold]
    fn adopt(&self, inbox: &mut Inbox) {
        for arrival in self.common.arrivals.take() {
            let taken = arrival.and_then(|Arrival { slot, connection }| match connection {
                Some(connection) => self.take(inbox, slot, connection),
                None => self.links[slot].take_refusal().map_or(Ok(()), Err),
            });
            inbox.errors.extend(taken.err());
        }
    }

    fn take(&self, inbox: &mut Inbox, slot: usize, connection: Arc<Connection>) -> Result<()> {
        let fd = connection.stream.as_raw_fd();
        let both = Interest::READABLE | Interest::WRITABLE;
        inbox.poll.registry().register(&mut SourceFd(&fd), Token(slot), both).map_err(|e| {
            Error::system(format!("watching the connection with rank {}", self.links[slot].peer), e)
        })?;
        inbox.live.push(slot);
        let mut incoming = Incoming::new(connection);
        let peer = self.links[slot].peer;
        incoming.quiet = self.common.rider.as_ref().is_some_and(|rider| rider.carries(peer));
        inbox.quiet += usize::from(incoming.quiet);
        inbox.incoming[slot] = Some(incoming);
        Ok(())
    }

    /// Receives from one peer.
    #[inline]
    fn receive(&self, inbox: &mut Inbox, slot: usize, direct: bool) -> bool {
        let Some(incoming) = &mut inbox.incoming[slot] else { return false };
        if !((direct && !incoming.quiet) || incoming.ready) {
            return false;
        }
        // Held meanwhile: what is withdrawn is not being written.
        let landings = self.links[slot].landings();
        let (moved, end) =
            incoming.read(&Memory { region: &self.region, landings: &landings }, &mut inbox.buffer);
        drop(landings);
        if let Some(end) = end {
            self.over(inbox, slot, end);
        }
        moved
    }

    #[cold]
    fn over(&self, inbox: &mut Inbox, slot: usize, end: End) {
        inbox.live.retain(|&s| s != slot);
        let ended = inbox.incoming[slot].take();
        inbox.quiet -= usize::from(ended.is_some_and(|incoming| incoming.quiet));
        let link = &self.links[slot];
        let error = match end {
            End::Goodbye => link.end(Gone::goodbye()),
            End::Lost { cause, ended } => link.end(Gone { ended, ..Gone::lost(cause) }),
            End::Refused(why) => {
                let cause = format!("it refused what came from this rank, or was changed on the way: {why}");
                link.end(Gone { ended: true, ..Gone::lost(cause) })
            }
            End::Broke(what) => {
                link.refuse(&what);
                let _ = link.end(Gone::lost(format!("it broke the protocol: {what}")));
                Some(Error::Protocol { rank: link.peer, what })
            }
        };
        inbox.errors.extend(error);
    }

    /// Asks the poll and notes what it says; whether the doorbell rang.
    fn poll(&self, inbox: &mut Inbox, timeout: Duration) -> Result<bool> {
        match inbox.poll.poll(&mut inbox.events, Some(timeout)) {
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(false),
            done => done.map_err(|e| Error::system("watching connections", e))?,
        }
        let mut rung = false;
        for event in &inbox.events {
            match event.token() {
                WAKE => {}
                BELL => rung = true,
                STIR => {
                    if let Some(rider) = &self.common.rider {
                        rider.stir();
                    }
                }
                Token(slot) => {
                    if event.is_writable() {
                        self.links[slot].unblock();
                    }
                    if let Some(incoming) = &mut inbox.incoming[slot]
                        && (event.is_readable() || event.is_read_closed() || event.is_error())
                    {
                        incoming.ready = true;
                    }
                }
            }
        }
        Ok(rung)
    }

    /// Something has failed: peers may never take what was sent to them, and leaving does not wait for that.
    pub fn give_up(&self) {
        self.common.given_up.store(true, Ordering::Release);
    }

    /// What was put is read no more: a connection on which some of it still waits ends.
    pub fn let_go(&self) {
        self.links.iter().for_each(|link| link.let_go());
    }

    /// Leaves in order: what waits is sent, then a goodbye, and the peers' kernels have it.
    fn farewell(&self, inbox: &mut Inbox) {
        self.adopt(inbox);
        let given_up = self.common.given_up.load(Ordering::Acquire);
        let until = Instant::now() + if given_up { FAREWELL } else { self.common.timeout.max(FAREWELL) };
        for link in &self.links {
            let mut out = link.out();
            if link.joined(&mut out) {
                out.say_goodbye();
            }
        }
        let mut left: Vec<Leaving<'_>> = self.links.iter().map(|link| Leaving::of(link)).collect();
        loop {
            left.retain_mut(|leaving| {
                // Peers that leave as well may be waiting for us to receive before they can send.
                inbox.drain(leaving.link.slot);
                !(leaving.has_left() || (given_up && leaving.is_in_vain()))
            });
            if left.is_empty() || Instant::now() >= until {
                return;
            }
            std::thread::sleep(FAREWELL_TICK);
        }
    }

    /// Whoever leaves with data for peers that it has not met waits for that, as long as it would have waited for room.
    fn meet(&self) {
        let until = Instant::now() + self.common.timeout;
        let owes = || self.links.iter().any(|link| link.owes_first());
        while !self.common.given_up.load(Ordering::Acquire) && owes() && Instant::now() < until {
            self.common.dialler.hurry();
            std::thread::sleep(FAREWELL_TICK);
        }
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.common.closed.store(true, Ordering::Release);
        let mut acceptor = self.acceptor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut inbox = self.inbox();
        if self.forked.since() {
            acceptor.forget();
            self.common.dialler.forget();
        } else {
            self.meet();
            self.common.stopped.store(true, Ordering::Release);
            acceptor.stop();
            self.common.dialler.stop();
            self.farewell(&mut inbox);
        }
        for link in &self.links {
            // In a child after fork the connections are the parent's: only our copies of the descriptors go.
            drop(std::mem::take(&mut *link.out()));
            link.meeting.end();
            link.forget();
        }
    }
}

impl Inbox {
    /// Watches the doorbell from now on; if it has rung already, the next poll says so.
    fn watch(&mut self, bell: BorrowedFd<'_>) -> Result<()> {
        let fd = bell.as_raw_fd();
        let registry = self.poll.registry();
        registry
            .reregister(&mut SourceFd(&fd), BELL, Interest::READABLE)
            .or_else(|_| registry.register(&mut SourceFd(&fd), BELL, Interest::READABLE))
            .map_err(|e| Error::system("watching the doorbell", e))
    }

    /// Reads and throws away what a peer still sends.
    fn drain(&mut self, slot: usize) {
        for _ in 0..64 {
            let Some(incoming) = &self.incoming[slot] else { return };
            match raw::receive(incoming.connection.stream.as_fd(), &mut self.buffer) {
                Ok(None) => return,
                Ok(Some(0)) | Err(_) => self.incoming[slot] = None,
                Ok(Some(_)) => {}
            }
        }
    }
}

/// What a way costs, before anything was measured: the wire's speed where the kernel knows it.
fn cost(interfaces: &[Interface], first: Option<&Candidate>, same_host: bool) -> Cost {
    if same_host {
        // Loopback: two system calls and two copies.
        return Cost { latency_us: 15.0, bandwidth: 2.0 };
    }
    let via = first.and_then(|c| c.via.as_ref());
    let speed = via.and_then(|v| interfaces.iter().find(|i| &i.name == v)).and_then(|i| i.speed);
    // 10 Gb/s where it does not: virtual cards say nothing, or -1.
    let megabits = speed.filter(|&s| s > 0).unwrap_or(10_000);
    Cost { latency_us: 30.0, bandwidth: megabits as f64 / 8000.0 }
}
