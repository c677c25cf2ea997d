//! Says what is to be said to one peer: a thread that connects, and connects again.
//!
//! It never leaves a connection that works without a parting word: who finds one closed without takes the process for
//! dead.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::line::{Ending, Line, Socket, TICK};
use super::{CONTEXT, Heard, Number, introduction};
use crate::secure::{Secret, Session, initiate};
use crate::tcp::Called;
use crate::{Error, Result};

/// How long one attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// How long what was said before the parley ended may take to be handed to the kernel.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Between two attempts, at first and at most.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Handshakes need little.
const STACK: usize = 256 << 10;

#[derive(Debug)]
pub struct Courier {
    messages: Option<Sender<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Courier {
    pub fn start(
        from: usize,
        to: usize,
        number: Number,
        secret: Secret,
        ending: Arc<Ending>,
        hears: Sender<Heard>,
    ) -> Result<Courier> {
        let (messages, queue) = channel();
        let round = Round { from, to, number, secret, ending, hears, session: None, closed: false };
        let thread = Builder::new()
            .name(format!("nd-says-{from}"))
            .stack_size(STACK)
            .spawn(move || round.run(&queue))
            .map_err(|e| Error::system("starting a thread to talk to another rank", e))?;
        Ok(Courier { messages: Some(messages), thread: Some(thread) })
    }

    pub fn take(&self, message: Vec<u8>) {
        if let Some(messages) = &self.messages {
            // Its thread ends only with the parley.
            let _ = messages.send(message);
        }
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        drop(self.messages.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Round {
    from: usize,
    to: usize,
    number: Number,
    secret: Secret,
    ending: Arc<Ending>,
    hears: Sender<Heard>,
    session: Option<Session<Line>>,
    /// Nobody listens there any more, and this was said.
    closed: bool,
}

impl Round {
    fn run(mut self, queue: &Receiver<Vec<u8>>) {
        loop {
            match queue.recv_timeout(TICK) {
                Ok(message) => self.say(&message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Some(session) = &mut self.session {
            let _ = session.send(&[]);
        }
    }

    /// Until it is said, or the parley is over.
    fn say(&mut self, message: &[u8]) {
        let mut pause = PAUSE;
        // Who was called and has not answered when the parley ends is called no more.
        while !self.closed && (self.session.is_some() || !self.ending.since(Duration::ZERO)) {
            if self.session.is_none() {
                self.session = self.call();
            }
            if let Some(session) = &mut self.session {
                if session.send(message).is_ok() {
                    return;
                }
                self.session = None;
            }
            std::thread::sleep(pause.min(PAUSE_MAX));
            pause = pause.mul_f64(1.0 + rand::random::<f64>());
        }
    }

    fn line(&self, socket: Socket) -> Line {
        let until = Some(Instant::now() + ATTEMPT);
        Line { socket, ending: self.ending.clone(), longer: LAST_WORDS, until }
    }

    fn call(&mut self) -> Option<Session<Line>> {
        let mut session = match &self.number {
            Number::Name(name) => {
                let line = self.line(Socket::Unix(dial(name).ok()?));
                let mut session = initiate(line, &self.secret, CONTEXT).ok()?;
                session.send(&introduction(self.from, self.to)).ok()?;
                session
            }
            Number::Port(calls) => match calls.call(self.to, Instant::now() + ATTEMPT, &self.ending.over) {
                Called::Answered(session) => {
                    session.map(|stream| Line::tcp(stream, &self.ending, LAST_WORDS))
                }
                Called::Closed => {
                    self.closed = true;
                    let _ = self.hears.send(Heard::Closed { peer: self.to });
                    return None;
                }
                Called::Missed => return None,
            },
        };
        // What is said now may take as long as the other side needs to listen.
        session.get_mut().until = None;
        Some(session)
    }
}

fn dial(name: &[u8]) -> io::Result<UnixStream> {
    let socket = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    let peer = rustix::net::sockopt::socket_peercred(&socket)?;
    if peer.uid != rustix::process::geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}
