//! Opening the connection to a peer: its addresses in order, each with its own share of the time.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::accept::{CONFIRMED, CONTEXT, CROSSED, HANDSHAKE, TICK, Timed, WELCOME, WITHDRAWN};
use super::address::Candidate;
use super::connection::Connection;
use super::identity::{Identity, Side, keys};
use super::link::Common;
use super::listen::{descriptors, set_buffers};
use super::meeting::Meeting;
use super::pacing::{self, Preferred};
use crate::secure::{CLOSED, initiate};
use crate::{Error, Result, Stop};

/// How long one address may take while others remain.
const PER_ADDRESS: Duration = Duration::from_secs(3);
/// How long an address may take once another was refused: the peer's own system has said that nobody listens, and what
/// remains is that this was some other machine. An IPv6 address that is still being checked for duplicates takes 2 s.
const AFTER_REFUSAL: Duration = Duration::from_millis(250);
/// How long an answer may take: whoever accepts lets a connection wait for so long, and then be proven for so long.
const ANSWERING: Duration = HANDSHAKE.saturating_mul(2);
/// Between two tries of a peer that hung up, at first and at most.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Whom to connect to.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub from: usize,
    pub to: usize,
    pub host: &'a str,
    pub candidates: &'a [Candidate],
    /// Told when something answers at one of them, and of the stream if it does not refuse.
    pub answered: &'a dyn Fn(Option<&TcpStream>),
    /// Says whether the peer's own connection is used instead.
    pub meeting: &'a Meeting,
}

/// What came of connecting.
#[derive(Debug)]
pub enum Connected {
    /// The connection, in non-blocking mode, and by which candidate.
    Connection(Arc<Connection>, usize),
    /// The peer is connecting too, and its attempt holds.
    Crossed,
}

/// Connects and proves both sides. A peer that hangs up in the middle, or answers nothing, may have had to make room for
/// others: it is tried again as long as somebody listens there.
pub fn connect(
    target: Target<'_>,
    common: &Common,
    until: Instant,
    stop: &dyn Fn() -> bool,
) -> Result<Connected> {
    let mut pause = PAUSE;
    loop {
        let mut tried = Tried::default();
        if let Some(connected) = once(target, common, (until, stop), &mut tried)? {
            return Ok(connected);
        }
        let left = until.saturating_duration_since(Instant::now());
        if tried.hung_up && !stop() && tried.refusal.is_none() && !left.is_zero() {
            // Jitter, so that those who were sent away together do not come back together.
            let enough = || stop() || target.meeting.is_settled();
            rest(pause.mul_f64(0.5 + rand::random::<f64>()).min(left), &enough);
            pause = (pause * 2).min(PAUSE_MAX);
            continue;
        }
        let why = match &tried.what[..] {
            [] => "it has no address that this host could reach".into(),
            what => format!("it does not answer; tried {}", what.join("; ")),
        };
        return Err(tried.refusal.unwrap_or(Error::Unreachable { from: target.from, to: target.to, why }));
    }
}

/// Sleeps for so long, or until told to stop.
fn rest(time: Duration, stop: &dyn Fn() -> bool) {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stop() {
            return;
        }
        std::thread::sleep(left.min(TICK));
    }
}

/// What came of one round through the addresses, if it was no connection.
#[derive(Debug, Default)]
struct Tried {
    what: Vec<String>,
    refusal: Option<Error>,
    /// Somebody listened, and ended the connection without an answer or gave none.
    hung_up: bool,
}

/// Tries every address once.
fn once(
    target: Target<'_>,
    common: &Common,
    (until, stop): (Instant, &dyn Fn() -> bool),
    tried: &mut Tried,
) -> Result<Option<Connected>> {
    let mut refused = false;
    for (at, candidate) in target.candidates.iter().enumerate() {
        if target.meeting.is_settled() {
            return Ok(Some(Connected::Crossed));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            tried.what.push(format!("{} not tried, the time was over", candidate.to));
            continue;
        }
        let share = match at + 1 == target.candidates.len() {
            _ if refused => left.min(AFTER_REFUSAL),
            true => left,
            false => left.min(PER_ADDRESS),
        };
        let stream = match open(candidate, common.buffer, share, stop) {
            Ok(stream) => stream,
            Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {
                return Err(descriptors(&format!("connecting to rank {}", target.to), e));
            }
            Err(e) => {
                if e.kind() == io::ErrorKind::ConnectionRefused {
                    refused = true;
                    (target.answered)(None);
                }
                let by = via(candidate);
                tried.what.push(format!("{}{by} ({}): {e}", candidate.to, candidate.reason));
                continue;
            }
        };
        (target.answered)(Some(&stream));
        // Whoever accepts the connection answers from a thread of its own; it may be busy with many others.
        let by = until.min(Instant::now() + ANSWERING);
        match introduce(stream, target, common, (by, stop)) {
            Ok(Introduced::Connection(connection)) => {
                return Ok(Some(Connected::Connection(connection, at)));
            }
            Ok(Introduced::Crossed) => return Ok(Some(Connected::Crossed)),
            Ok(Introduced::Declined(why)) => {
                let why = format!("it answers at {} and refuses: {why}", candidate.to);
                let (from, to) = (target.from, target.to);
                tried.refusal.get_or_insert(Error::Unreachable { from, to, why });
            }
            Err(e) => {
                tried.what.push(format!("{}{}: {e}", candidate.to, via(candidate)));
                match e {
                    // It is there, and there is no other way for the payload as there must be.
                    Error::Unreachable { .. } => return Err(e),
                    // Leaving, or making room, or no peer at all: another address may be right.
                    Error::Refused { why, .. } if why.starts_with(CLOSED) => tried.hung_up = true,
                    Error::System { source, .. } => tried.hung_up |= hung_up(&source),
                    Error::Timeout { .. } => tried.hung_up = true,
                    Error::Refused { why, .. } => {
                        let who = format!("rank {} on {} ({})", target.to, target.host, candidate.to);
                        tried.refusal.get_or_insert(Error::Refused { who, why });
                    }
                    _ => {}
                }
            }
        }
    }
    Ok(None)
}

/// Closed with something unread.
fn hung_up(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

pub(super) fn open(
    candidate: &Candidate,
    buffer: Option<usize>,
    timeout: Duration,
    stop: &dyn Fn() -> bool,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(candidate.to), Type::STREAM, Some(Protocol::TCP))?;
    set_buffers(&socket, buffer)?;
    let preferred = pacing::off(&socket);
    let stream = reach(socket, candidate.to, timeout, stop)?;
    tune(&stream, &preferred)?;
    Ok(stream)
}

/// A connection to `to`, for any use; in so much time at most, unless told to stop.
///
/// # Errors
/// The system's; `TimedOut` when it took longer.
pub fn connect_within(to: SocketAddr, timeout: Duration, stop: &Stop) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    reach(socket, to, timeout, &|| stop.flag().load(Ordering::SeqCst))
}

/// Connects this new socket, in so much time at most, unless told to stop.
fn reach(
    socket: Socket,
    to: SocketAddr,
    timeout: Duration,
    stop: &dyn Fn() -> bool,
) -> io::Result<TcpStream> {
    socket.set_nonblocking(true)?;
    match socket.connect(&to.into()) {
        Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => {
            let connecting = Timed { stream: socket.into(), until: Instant::now() + timeout, stop };
            connecting.ready(PollFlags::OUT)?;
            finish(connecting.stream)
        }
        done => done.and_then(|()| finish(socket.into())),
    }
}

fn finish(stream: TcpStream) -> io::Result<TcpStream> {
    if let Some(e) = stream.take_error()? {
        return Err(e);
    }
    // A port of the ephemeral range that nobody listens on can connect to itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Small messages go at once; a peer whose machine lost power is noticed although nothing is being sent.
pub fn tune(stream: &TcpStream, preferred: &Preferred) -> io::Result<()> {
    stream.set_nodelay(true)?;
    preferred.unless_here(stream)?;
    let alive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(4);
    SockRef::from(stream).set_tcp_keepalive(&alive)
}

/// What came of a connection to a peer that has proved who it is.
enum Introduced {
    /// Both sides hold it.
    Connection(Arc<Connection>),
    /// The peer's own attempt holds.
    Crossed,
    /// It wants none, for this reason.
    Declined(String),
}

fn introduce(
    stream: TcpStream,
    target: Target<'_>,
    common: &Common,
    (until, stop): (Instant, &dyn Fn() -> bool),
) -> Result<Introduced> {
    let mut session = initiate(Timed { stream, until, stop }, &common.secret, CONTEXT)?;
    if !target.meeting.ask() {
        session.send(WITHDRAWN)?;
        return Ok(Introduced::Crossed);
    }
    let encrypts = common.records_per_key.is_some();
    let identity = Identity { from: target.from, to: target.to, encrypts, talks: false };
    session.send(&identity.encode())?;
    let answer = session.receive(256)?;
    if answer == CROSSED {
        return Ok(Introduced::Crossed);
    }
    if answer != WELCOME {
        return Ok(Introduced::Declined(String::from_utf8_lossy(&answer).into_owned()));
    }
    let rider = common.rider.as_ref().filter(|rider| rider.rides(target.to));
    let attempt = rider.map(|rider| rider.initiate(target.to, &mut session)).transpose()?;
    let confirm = || {
        session.send(CONFIRMED)?;
        let keys = keys(&session, common, identity, Side::Initiator);
        let stream = session.into_inner().stream;
        stream.set_nonblocking(true).map_err(|e| Error::system("preparing a connection", e))?;
        Ok(Introduced::Connection(Arc::new(Connection::new(stream, keys.as_ref()))))
    };
    confirm().inspect_err(|_| {
        if let (Some(rider), Some(attempt)) = (rider, attempt) {
            rider.retreat(target.to, attempt);
        }
    })
}

fn via(candidate: &Candidate) -> String {
    candidate.via.as_ref().map_or_else(String::new, |v| format!(" by {v}"))
}
