//! Opening the connection to a peer: its addresses in order, each with its own share of the time.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::accept::canonical;
use super::accept::{CONFIRMED, CONTEXT, CROSSED, Timed, WELCOME, encode_identity};
use super::address::Candidate;
use super::listen::{descriptors, set_buffers};
use crate::secure::{CLOSED, Secret, initiate};
use crate::{Error, Result};

/// How long one address may take while others remain.
const PER_ADDRESS: Duration = Duration::from_secs(3);

/// Whom to connect to.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    pub from: usize,
    pub to: usize,
    pub host: &'a str,
    pub candidates: &'a [Candidate],
}

/// What came of connecting.
#[derive(Debug)]
pub enum Connected {
    /// The stream, in non-blocking mode, and by which candidate.
    Stream(TcpStream, usize),
    /// The peer is connecting too, and its attempt holds.
    Crossed,
}

/// Connects and proves both sides.
pub fn connect(
    target: Target<'_>,
    secret: &Secret,
    buffer: Option<usize>,
    until: Instant,
) -> Result<Connected> {
    let mut tried = Vec::new();
    let mut refusal = None;
    for (at, candidate) in target.candidates.iter().enumerate() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            tried.push(format!("{} not tried, the time was over", candidate.to));
            continue;
        }
        let share = if at + 1 == target.candidates.len() { left } else { left.min(PER_ADDRESS) };
        let stream = match open(candidate, buffer, share) {
            Ok(stream) => stream,
            Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {
                return Err(descriptors(&format!("connecting to rank {}", target.to), e));
            }
            Err(e) => {
                tried.push(format!("{}{} ({}): {e}", candidate.to, via(candidate), candidate.reason));
                continue;
            }
        };
        // Whoever accepts the connection answers from a thread of its own; it may be busy with many others.
        match introduce(stream, target, secret, until) {
            Ok(Some(stream)) => return Ok(Connected::Stream(stream, at)),
            Ok(None) => return Ok(Connected::Crossed),
            Err(e) => {
                tried.push(format!("{}{}: {e}", candidate.to, via(candidate)));
                // One that closes without an answer is leaving, or no peer at all: another address may be right.
                if let Error::Refused { why, .. } = e
                    && !why.starts_with(CLOSED)
                {
                    let who = format!("rank {} on {} ({})", target.to, target.host, candidate.to);
                    refusal.get_or_insert(Error::Refused { who, why });
                }
            }
        }
    }
    if tried.is_empty() {
        tried
            .push(format!("rank {} on {} has no address that this host could reach", target.to, target.host));
    }
    let why = format!("tried {}", tried.join("; "));
    Err(refusal.unwrap_or(Error::Unreachable { from: target.from, to: target.to, why }))
}

fn open(candidate: &Candidate, buffer: Option<usize>, timeout: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(candidate.to), Type::STREAM, Some(Protocol::TCP))?;
    set_buffers(&socket, buffer)?;
    socket.connect_timeout(&candidate.to.into(), timeout)?;
    let stream = TcpStream::from(socket);
    // A port of the ephemeral range that nobody listens on can connect to itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    tune(&stream)?;
    Ok(stream)
}

/// Small messages go at once; a peer whose machine lost power is noticed although nothing is being sent. What stays on
/// this machine shares no wire with anybody, and is not paced.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if canonical(stream.local_addr()?).ip() == canonical(stream.peer_addr()?).ip() {
        // Every kernel has it; without it the connection is only slower.
        let _ = SockRef::from(stream).set_tcp_congestion(b"reno");
    }
    let alive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(4);
    SockRef::from(stream).set_tcp_keepalive(&alive)
}

/// The stream once both sides hold it; none where the peer's own attempt holds.
fn introduce(
    stream: TcpStream,
    target: Target<'_>,
    secret: &Secret,
    until: Instant,
) -> Result<Option<TcpStream>> {
    let mut session = initiate(Timed { stream, until, stop: None }, secret, CONTEXT)?;
    session.send(&encode_identity(target.from, target.to))?;
    let answer = session.receive(256)?;
    if answer == CROSSED {
        return Ok(None);
    }
    if answer != WELCOME {
        let why = String::from_utf8_lossy(&answer).into_owned();
        return Err(Error::Refused { who: "the other side".into(), why });
    }
    session.send(CONFIRMED)?;
    let stream = session.into_inner().stream;
    stream.set_nonblocking(true).map_err(|e| Error::system("preparing a connection", e))?;
    Ok(Some(stream))
}

fn via(candidate: &Candidate) -> String {
    candidate.via.as_ref().map_or_else(String::new, |v| format!(" by {v}"))
}
