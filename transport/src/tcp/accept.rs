//! Answering whoever connects: one thread accepts, short-lived ones do the handshakes, and only streams whose other
//! end proved to be a peer reach the endpoint.
//!
//! A connection waits without a thread until it says something; a stranger that says nothing costs a descriptor
//! for [`HANDSHAKE`], one that says the wrong thing a thread for an instant.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::connect::tune;
use super::link::{Common, TcpLink};
use super::listen::descriptors;
use crate::secure::{Session, respond};
use crate::{Error, Result};

/// What both ends of a data connection agree on; who they are follows inside the session.
pub const CONTEXT: &[u8] = b"nd-tcp";

/// How long an accepted connection may take to prove itself.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at a time.
const WORKERS: usize = 16;
/// Connections that have not said anything yet; more wait in the kernel's backlog.
const SILENT: usize = 256;
/// At most one line about strangers in this time.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// What the threads share.
#[derive(Debug)]
struct Door {
    common: Arc<Common>,
    /// By rank.
    links: HashMap<usize, Arc<TcpLink>>,
    stop: AtomicBool,
    wake: OwnedFd,
    warned: Mutex<Option<(Instant, usize)>>,
}

impl Door {
    fn ring(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// One line now and then, however many strangers knock.
    fn stranger(&self, address: SocketAddr, why: &Error) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = match &mut *warned {
            Some((at, quiet)) if at.elapsed() < WARN_EVERY => {
                *quiet += 1;
                return;
            }
            Some((_, quiet)) => *quiet,
            None => 0,
        };
        *warned = Some((Instant::now(), 0));
        tracing::warn!(
            "rank {}: {address} connected and was sent away: {why} ({quiet} more since the last such line)",
            self.common.me
        );
    }

    /// Proves who is there, and hands the stream over.
    fn handshake(&self, stream: TcpStream, address: SocketAddr) -> Result<()> {
        let until = Instant::now() + HANDSHAKE;
        let timed = Timed { stream, until, stop: Some(&self.stop) };
        let mut session = respond(timed, &self.common.secret, CONTEXT)?;
        let identity = session.receive(IDENTITY)?;
        let (from, to) = decode_identity(&identity).ok_or_else(|| refused(address, "sent no identity"))?;
        let me = self.common.me;
        let problem = match self.links.get(&from) {
            _ if to != me => format!("looks for rank {to}, this is rank {me}"),
            None => format!("says it is rank {from}, which is no peer by TCP of rank {me}"),
            // This rank's own attempt holds, or both have a connection already.
            Some(link) if !link.meeting.answer() => return session.send(CROSSED),
            Some(link) => {
                let confirmed = confirm(session, address);
                if confirmed.is_err() {
                    link.meeting.answered(None);
                }
                link.answered(Arc::new(confirmed?));
                return Ok(());
            }
        };
        let _ = session.send(problem.as_bytes());
        Err(refused(address, &problem))
    }
}

/// Welcomes a peer. Once it confirms, both sides hold the stream.
fn confirm(mut session: Session<Timed<'_>>, address: SocketAddr) -> Result<TcpStream> {
    session.send(WELCOME)?;
    if session.receive(CONFIRMED.len())? != CONFIRMED {
        return Err(refused(address, "did not confirm its connection"));
    }
    let stream = session.into_inner().stream;
    let prepared = tune(&stream).and_then(|()| stream.set_nonblocking(true));
    prepared.map_err(|e| Error::system("preparing a connection", e))?;
    Ok(stream)
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
            warned: Mutex::new(None),
        });
        let thread = (!links.is_empty()).then(|| {
            let door = door.clone();
            let run = move || Accepting { door, listener, silent: Vec::new(), workers: Vec::new() }.run();
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

struct Accepting {
    door: Arc<Door>,
    listener: TcpListener,
    silent: Vec<(TcpStream, SocketAddr, Instant)>,
    workers: Vec<JoinHandle<()>>,
}

impl Accepting {
    fn run(mut self) {
        while !self.door.stop.load(Ordering::Acquire) {
            let spoke = self.sleep();
            let mut counter = [0; 8];
            let _ = rustix::io::read(&self.door.wake, &mut counter);
            let (done, busy) = self.workers.drain(..).partition(JoinHandle::is_finished);
            self.workers = busy;
            for worker in Vec::from_iter::<Vec<JoinHandle<()>>>(done) {
                let _ = worker.join();
            }
            self.serve(&spoke);
            self.accept();
        }
        // They notice the flag within a tick.
        for worker in self.workers {
            let _ = worker.join();
        }
    }

    /// Sleeps until something happens; which of the silent ones have something to say.
    fn sleep(&self) -> Vec<bool> {
        let may_serve = self.workers.len() < WORKERS;
        let may_accept = self.silent.len() < SILENT;
        let none = PollFlags::empty();
        let mut fds = vec![PollFd::new(&self.door.wake, PollFlags::IN)];
        fds.push(PollFd::new(&self.listener, if may_accept { PollFlags::IN } else { none }));
        let served = if may_serve { PollFlags::IN } else { none };
        fds.extend(self.silent.iter().map(|(stream, ..)| PollFd::new(stream, served)));
        let oldest = self.silent.iter().map(|(.., since)| *since + HANDSHAKE).min();
        let timeout = oldest.map(|at| timespec(at.saturating_duration_since(Instant::now())));
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return vec![false; self.silent.len()];
        }
        fds[2..].iter().map(|fd| may_serve && !fd.revents().is_empty()).collect()
    }

    /// Starts handshakes with those who spoke, and sends the silent away.
    fn serve(&mut self, spoke: &[bool]) {
        let mut spoke = spoke.iter();
        let mut still = Vec::new();
        for (stream, address, since) in std::mem::take(&mut self.silent) {
            let speaks = *spoke.next().unwrap_or(&false);
            if speaks && self.workers.len() < WORKERS {
                self.spawn(stream, address);
            } else if since.elapsed() < HANDSHAKE {
                still.push((stream, address, since));
            } else {
                let what = "a first word".into();
                self.door.stranger(address, &Error::Timeout { what, after: HANDSHAKE });
            }
        }
        self.silent = still;
    }

    fn spawn(&mut self, stream: TcpStream, address: SocketAddr) {
        let door = self.door.clone();
        let work = move || {
            if let Err(why) = door.handshake(stream, address)
                && !door.stop.load(Ordering::Acquire)
            {
                door.stranger(address, &why);
            }
            door.ring();
        };
        match thread::Builder::new().name(format!("nd-hello-{}", self.door.common.me)).spawn(work) {
            Ok(worker) => self.workers.push(worker),
            Err(e) => {
                self.door.common.arrivals.push(Err(Error::system("starting a thread for a handshake", e)))
            }
        }
    }

    fn accept(&mut self) {
        while self.silent.len() < SILENT {
            match self.listener.accept() {
                Ok((stream, address)) => self.silent.push((stream, canonical(address), Instant::now())),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e)
                    if matches!(
                        e.raw_os_error(),
                        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
                    ) =>
                {
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
}

/// A stream whose every read and write ends by one time, or when told to stop.
#[derive(Debug)]
pub struct Timed<'a> {
    pub stream: TcpStream,
    pub until: Instant,
    pub stop: Option<&'a AtomicBool>,
}

impl Timed<'_> {
    fn ready(&self, flags: PollFlags) -> io::Result<()> {
        loop {
            if self.stop.is_some_and(|stop| stop.load(Ordering::Acquire)) {
                return Err(io::Error::other("this rank is closing"));
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
const TICK: Duration = Duration::from_millis(50);

/// What the acceptor says to a peer.
pub const WELCOME: &[u8] = b"welcome";
/// The same, when it is about to connect to that peer itself.
pub const CROSSED: &[u8] = b"crossed";
/// What a welcome peer says.
pub const CONFIRMED: &[u8] = b"confirmed";
/// The length of an identity.
const IDENTITY: usize = 16;

/// Who connects, and to whom.
pub fn encode_identity(from: usize, to: usize) -> [u8; IDENTITY] {
    let mut bytes = [0; IDENTITY];
    bytes[..8].copy_from_slice(&(from as u64).to_le_bytes());
    bytes[8..].copy_from_slice(&(to as u64).to_le_bytes());
    bytes
}

fn decode_identity(bytes: &[u8]) -> Option<(usize, usize)> {
    let (from, to) = bytes.split_first_chunk()?;
    let to = to.try_into().ok()?;
    Some((u64::from_le_bytes(*from).try_into().ok()?, u64::from_le_bytes(to).try_into().ok()?))
}

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
