//! Answering whoever connects: one thread accepts, short-lived ones do the handshakes, and only streams whose other
//! end proved to be a peer reach the endpoint.
//!
//! A connection waits without a thread until its whole greeting is there; one that begins otherwise is closed at its
//! first byte. So strangers cost a descriptor each, and of these there are never more than [`UNPROVEN`]: one more, and
//! the oldest goes. Who greets as a peer and then falls silent costs a thread, of which there are [`WORKERS`]: when
//! others wait, the one that has been at it longest goes. A peer that was sent away so tries again.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Resource, getrlimit};

use super::connect::tune;
use super::connection::Connection;
use super::identity::{IDENTITY, Identity, Side, keys};
use super::link::{Common, TcpLink};
use super::listen::descriptors;
use super::raw;
use super::sign::Sign;
use crate::secure::{CLOSED, HELLO_LEN, Session, greets, respond};
use crate::strangers::{Strangers, more};
use crate::{Error, Result};

/// What both ends of a data connection agree on; who they are follows inside the session.
pub const CONTEXT: &[u8] = b"nd-tcp";

/// How long an accepted connection may take to greet, and then to prove itself.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a handshake is left alone although others wait for its thread.
const GRACE: Duration = Duration::from_secs(1);
/// Handshakes at a time.
pub const WORKERS: usize = 16;
/// Connections at a time that have not greeted yet; fewer where few files may be open.
pub const UNPROVEN: usize = 256;
/// Connections that are accepted before others get their turn.
const TURN: usize = 64;
/// Handshakes need little.
pub const STACK: usize = 256 << 10;

/// What the threads share.
#[derive(Debug)]
struct Door {
    common: Arc<Common>,
    /// By rank.
    links: HashMap<usize, Arc<TcpLink>>,
    stop: AtomicBool,
    wake: OwnedFd,
    strangers: Mutex<Strangers>,
}

impl Door {
    fn ring(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// One line now and then, however many strangers knock.
    fn stranger(&self, address: SocketAddr, why: &Error) {
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = strangers.refused(&address.ip().to_string(), Instant::now());
        drop(strangers);
        if let Some(quiet) = quiet {
            let me = self.common.me;
            tracing::warn!("rank {me}: {address} connected and was sent away: {why}{}", more(quiet));
        }
    }

    /// The strangers that no line was about.
    fn last_word(&self) {
        for (source, count) in self.strangers.lock().unwrap_or_else(PoisonError::into_inner).rest() {
            tracing::warn!("rank {}: {count} more connections from {source} were sent away", self.common.me);
        }
    }

    /// Proves who is there, and hands the connection over.
    fn handshake(&self, stream: TcpStream, address: SocketAddr, state: &State) -> Result<()> {
        let until = Instant::now() + HANDSHAKE;
        let stop = || state.stop.load(Ordering::Acquire);
        let timed = Timed { stream, until, stop: &stop };
        let mut session = respond(timed, &self.common.secret, CONTEXT)?;
        state.proven.store(true, Ordering::Release);
        let identity = session.receive(IDENTITY)?;
        if identity == WITHDRAWN {
            return Ok(());
        }
        let identity = Identity::decode(&identity).ok_or_else(|| refused(address, "sent no identity"))?;
        let me = self.common.me;
        let problem = match self.links.get(&identity.from) {
            _ if identity.to != me => {
                format!("rank {} looks for rank {}, and this is rank {me}", identity.from, identity.to)
            }
            None => {
                format!("rank {} is no peer by TCP of rank {me}", identity.from)
            }
            Some(_) if identity.talks => {
                session.send(WELCOME)?;
                if session.receive(CONFIRMED.len())? != CONFIRMED {
                    return Err(refused(address, "did not confirm its call"));
                }
                self.common.callers.add(identity.from, session.map(|timed| timed.stream));
                return Ok(());
            }
            Some(link) => {
                if let Some(unlike) = identity.unlike(self.common.records_per_key.is_some()) {
                    // It knows the secret: what it says is for this rank's user, too.
                    let who = format!("rank {} ({address})", identity.from);
                    self.common.arrivals.push(Err(Error::Refused { who, why: unlike.clone() }));
                    unlike
                } else if link.meeting.answer() {
                    let confirmed = self.confirm(session, address, identity);
                    link.set_sign(Sign::Unknown);
                    if confirmed.is_err() {
                        link.meeting.answered(None);
                    }
                    link.answered(Arc::new(confirmed?));
                    return Ok(());
                } else {
                    // This rank's own attempt holds, or both have a connection already.
                    return session.send(CROSSED);
                }
            }
        };
        let _ = session.send(problem.as_bytes());
        Err(refused(address, &problem))
    }

    /// Welcomes a peer. Once it confirms, both sides hold the connection.
    fn confirm(
        &self,
        mut session: Session<Timed<'_>>,
        address: SocketAddr,
        identity: Identity,
    ) -> Result<Connection> {
        if let Some(link) = self.links.get(&identity.from) {
            link.set_sign(Sign::of(&session.get_mut().stream));
        }
        session.send(WELCOME)?;
        let Some(rider) = self.common.rider.as_ref().filter(|rider| rider.rides(identity.from)) else {
            return self.confirmed(session, address, identity);
        };
        let attempt = rider.respond(identity.from, &mut session).inspect_err(|e| {
            // That there is no other way is for this rank's user, too, before it tries itself a peer that may be gone by then.
            if let (Error::Unreachable { from, to, why }, Some(link)) = (e, self.links.get(&identity.from)) {
                link.unreached(Error::Unreachable { from: *from, to: *to, why: why.clone() });
            }
        })?;
        let from = identity.from;
        self.confirmed(session, address, identity).inspect_err(|_| rider.retreat(from, attempt))
    }

    fn confirmed(
        &self,
        mut session: Session<Timed<'_>>,
        address: SocketAddr,
        identity: Identity,
    ) -> Result<Connection> {
        if session.receive(CONFIRMED.len())? != CONFIRMED {
            return Err(refused(address, "did not confirm its connection"));
        }
        let keys = keys(&session, &self.common, identity, Side::Responder);
        let stream = session.into_inner().stream;
        let prepared = tune(&stream, &self.common.preferred).and_then(|()| stream.set_nonblocking(true));
        prepared.map_err(|e| Error::system("preparing a connection", e))?;
        Ok(Connection::new(stream, keys.as_ref()))
    }
}

/// The thread that accepts; stopped and joined when dropped.
#[derive(Debug)]
pub struct Acceptor {
    door: Arc<Door>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Starts to answer for the rank of these links.
    pub fn start(listener: TcpListener, common: &Arc<Common>, links: &[Arc<TcpLink>]) -> Result<Acceptor> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| descriptors("starting to accept connections", e.into()))?;
        let door = Arc::new(Door {
            common: common.clone(),
            links: links.iter().map(|link| (link.peer, link.clone())).collect(),
            stop: AtomicBool::new(false),
            wake,
            strangers: Mutex::default(),
        });
        let thread = (!links.is_empty()).then(|| {
            let accepting = Accepting {
                door: door.clone(),
                listener,
                room: room(),
                silent: VecDeque::new(),
                workers: Vec::new(),
                looked: Instant::now(),
            };
            let run = move || accepting.run();
            thread::Builder::new().name(format!("nd-accept-{}", common.me)).spawn(run)
        });
        let thread =
            thread.transpose().map_err(|e| Error::system("starting a thread to accept connections", e))?;
        Ok(Acceptor { door, thread })
    }

    /// Stops accepting; returns when all its threads have ended.
    pub fn stop(&mut self) {
        self.door.stop.store(true, Ordering::Release);
        self.door.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
            self.door.last_word();
        }
    }

    /// In a child after fork: the threads are the parent's.
    pub fn forget(&mut self) {
        std::mem::forget(self.thread.take());
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How many strangers there may be: strangers take at most a quarter of the files that this process may open.
fn room() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 4).unwrap_or(UNPROVEN).clamp(4, UNPROVEN)
}

struct Accepting {
    door: Arc<Door>,
    listener: TcpListener,
    room: usize,
    /// Those whose greeting is not all there, oldest first.
    silent: VecDeque<Silent>,
    workers: Vec<Worker>,
    /// When all of them were last looked at.
    looked: Instant,
}

struct Silent {
    stream: TcpStream,
    address: SocketAddr,
    since: Instant,
}

/// A thread that does a handshake.
struct Worker {
    thread: JoinHandle<()>,
    since: Instant,
    state: Arc<State>,
}

/// How far a handshake is.
#[derive(Debug, Default)]
struct State {
    /// It is to end.
    stop: AtomicBool,
    /// The other end knows the secret.
    proven: AtomicBool,
}

/// What the first bytes of a connection say.
enum First {
    /// Too little to tell.
    Little,
    /// A whole greeting.
    Greeting,
    Wrong(Error),
}

impl Accepting {
    fn run(mut self) {
        while !self.door.stop.load(Ordering::Acquire) {
            let spoke = self.sleep();
            let mut counter = [0; 8];
            let _ = rustix::io::read(&self.door.wake, &mut counter);
            let (done, busy): (Vec<_>, Vec<_>) =
                self.workers.drain(..).partition(|worker| worker.thread.is_finished());
            self.workers = busy;
            for worker in done {
                let _ = worker.thread.join();
            }
            self.serve(&spoke);
            self.accept();
        }
        // They notice within a tick.
        self.workers.iter().for_each(|worker| worker.state.stop.store(true, Ordering::Release));
        for worker in self.workers {
            let _ = worker.thread.join();
        }
    }

    /// Sleeps until something happens; which of the silent ones may have something to say.
    fn sleep(&mut self) -> Vec<bool> {
        let now = Instant::now();
        // While all threads are busy, those who speak wait, and are looked at now and then.
        let busy = self.workers.len() >= WORKERS;
        let ends = self.silent.front().map(|oldest| oldest.since + HANDSHAKE);
        let next = if busy && !self.silent.is_empty() { Some(self.looked + TICK) } else { ends };
        let timeout = next.map(|at| timespec(at.saturating_duration_since(now)));
        let watched = if busy { PollFlags::empty() } else { PollFlags::IN | PollFlags::RDHUP };
        let mut fds = vec![PollFd::new(&self.door.wake, PollFlags::IN)];
        fds.push(PollFd::new(&self.listener, PollFlags::IN));
        fds.extend(self.silent.iter().map(|silent| PollFd::new(&silent.stream, watched)));
        let polled = poll(&mut fds, timeout.as_ref());
        let look = busy && self.looked.elapsed() >= TICK;
        let spoke = match polled {
            Ok(_) => fds[2..].iter().map(|fd| look || !fd.revents().is_empty()).collect(),
            Err(_) => vec![look; self.silent.len()],
        };
        if look {
            self.looked = Instant::now();
        }
        spoke
    }

    /// Starts handshakes with those who have greeted, and sends the others away in time.
    fn serve(&mut self, spoke: &[bool]) {
        let mut spoke = spoke.iter();
        for silent in std::mem::take(&mut self.silent) {
            let first =
                if *spoke.next().unwrap_or(&false) { first_word(&silent.stream) } else { First::Little };
            match first {
                First::Wrong(why) => self.door.stranger(silent.address, &why),
                First::Greeting if self.workers.len() < WORKERS => self.spawn(silent.stream, silent.address),
                _ if silent.since.elapsed() >= HANDSHAKE => {
                    let what = "a greeting".into();
                    self.door.stranger(silent.address, &Error::Timeout { what, after: HANDSHAKE });
                }
                First::Greeting => {
                    self.hurry();
                    self.silent.push_back(silent);
                }
                First::Little => self.silent.push_back(silent),
            }
        }
    }

    /// Others wait: ends the handshake that has been going on longest, if that is long.
    fn hurry(&self) {
        let slow = |worker: &&Worker| {
            !worker.state.proven.load(Ordering::Acquire) && !worker.state.stop.load(Ordering::Acquire)
        };
        let oldest = self.workers.iter().filter(slow).min_by_key(|worker| worker.since);
        if let Some(oldest) = oldest.filter(|worker| worker.since.elapsed() >= GRACE) {
            oldest.state.stop.store(true, Ordering::Release);
        }
    }

    fn spawn(&mut self, stream: TcpStream, address: SocketAddr) {
        let (door, state) = (self.door.clone(), Arc::new(State::default()));
        let shared = state.clone();
        let work = move || {
            if let Err(why) = door.handshake(stream, address, &shared)
                && !door.stop.load(Ordering::Acquire)
            {
                door.stranger(address, &why);
            }
            door.ring();
        };
        let name = format!("nd-hello-{}", self.door.common.me);
        match thread::Builder::new().name(name).stack_size(STACK).spawn(work) {
            Ok(thread) => self.workers.push(Worker { thread, since: Instant::now(), state }),
            Err(e) => {
                self.door.common.arrivals.push(Err(Error::system("starting a thread for a handshake", e)))
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..TURN {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    if self.silent.len() >= self.room {
                        self.make_room();
                    }
                    let address = canonical(address);
                    self.silent.push_back(Silent { stream, address, since: Instant::now() });
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e)
                    if matches!(
                        e.raw_os_error(),
                        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
                    ) =>
                {
                    if self.make_room() {
                        continue;
                    }
                    self.door.common.arrivals.push(Err(descriptors("accepting a connection", e)));
                    // The connection stays in the backlog: the listener would be ready again at once.
                    thread::sleep(TICK);
                    return;
                }
                // Whoever it was gave up meanwhile.
                Err(_) => {}
            }
        }
    }

    /// Sends the oldest away; false if there is none.
    fn make_room(&mut self) -> bool {
        let Some(oldest) = self.silent.pop_front() else { return false };
        let why = format!("said nothing while more than {} others waited", self.room);
        self.door.stranger(oldest.address, &refused(oldest.address, &why));
        true
    }
}

/// Looks at the first bytes without taking them off.
fn first_word(stream: &TcpStream) -> First {
    let mut bytes = [0; HELLO_LEN];
    let stranger = |why: &str| First::Wrong(Error::Refused { who: "a stranger".into(), why: why.into() });
    match raw::peek(stream.as_fd(), &mut bytes) {
        Ok(None) => First::Little,
        Ok(Some(0)) => stranger(&format!("{CLOSED} without a word")),
        Ok(Some(n)) => match greets(&bytes[..n]) {
            Err(why) => First::Wrong(why),
            Ok(true) => First::Greeting,
            Ok(false) if ended(stream) => stranger(&format!("{CLOSED} in its greeting")),
            // From here on it counts as readable once all of it is there.
            Ok(false) => match raw::readable_from(stream.as_fd(), HELLO_LEN) {
                Ok(()) => First::Little,
                Err(e) => First::Wrong(Error::system("watching a connection", e)),
            },
        },
        Err(e) => First::Wrong(Error::system("reading a greeting", e)),
    }
}

/// Whether no more comes.
fn ended(stream: &TcpStream) -> bool {
    ready(stream.as_fd(), PollFlags::RDHUP, Duration::ZERO).unwrap_or(true)
}

/// A stream whose every read and write ends by one time, or when told to stop.
pub struct Timed<'a> {
    pub stream: TcpStream,
    pub until: Instant,
    pub stop: &'a dyn Fn() -> bool,
}

impl Timed<'_> {
    /// Waits until one of these holds.
    pub fn ready(&self, flags: PollFlags) -> io::Result<()> {
        loop {
            if (self.stop)() {
                let why =
                    "ended from this side: others wait, or the peer has connected, or this rank is closing";
                return Err(io::Error::other(why));
            }
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            if ready(self.stream.as_fd(), flags, left.min(TICK))? {
                return Ok(());
            }
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.ready(PollFlags::IN)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.ready(PollFlags::OUT)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the descriptor becomes ready within `timeout`.
pub fn ready(fd: BorrowedFd<'_>, flags: PollFlags, timeout: Duration) -> io::Result<bool> {
    match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&timespec(timeout))) {
        Ok(n) => Ok(n > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// How often a blocked handshake looks whether it should stop.
pub const TICK: Duration = Duration::from_millis(50);

/// What the acceptor says to a peer.
pub const WELCOME: &[u8] = b"welcome";
/// The same, when it is about to connect to that peer itself.
pub const CROSSED: &[u8] = b"crossed";
/// Said in place of an identity by a rank whose peer has connected meanwhile.
pub const WITHDRAWN: &[u8] = b"withdrawn";
/// What a welcome peer says.
pub const CONFIRMED: &[u8] = b"confirmed";
fn refused(who: SocketAddr, why: &str) -> Error {
    Error::Refused { who: who.to_string(), why: why.into() }
}

/// IPv4 as IPv4, although a socket of both families accepted it.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn timespec(d: Duration) -> Timespec {
    Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() }
}
