//! Hears what peers say: a thread that waits for those who call, and one for each who does.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::line::{Ending, Line, Socket, TICK};
use super::{CONTEXT, Heard, introduction};
use crate::secure::{CLOSED, Secret, Session, respond};
use crate::tcp::Calls;
use crate::{Error, Result};

/// How long a process of this user may take to prove that it is a peer.
const PROOF: Duration = Duration::from_secs(10);
/// Connections that are accepted before all else is looked at again.
const TURN: usize = 64;
/// Callers beyond two for each peer, before they have proved that they are.
const UNPROVEN: usize = 64;
/// The longest message: a table of all ranks of a large job.
const MESSAGE_MAX: usize = 256 << 20;
const STACK: usize = 256 << 10;

#[derive(Debug)]
pub struct Ear {
    thread: Option<JoinHandle<()>>,
}

impl Ear {
    pub fn open(
        me: usize,
        size: usize,
        listener: Option<UnixListener>,
        calls: Option<Arc<Calls>>,
        secret: Secret,
        ending: &Arc<Ending>,
        hears: Sender<Heard>,
    ) -> Result<Ear> {
        let hearing = Hearing { me, size, secret, ending: ending.clone(), hears, threads: Vec::new() };
        let thread = Builder::new()
            .name(format!("nd-hears-{me}"))
            .stack_size(STACK)
            .spawn(move || hearing.run(listener.as_ref(), calls.as_deref()))
            .map_err(|e| Error::system("starting a thread to hear other ranks", e))?;
        Ok(Ear { thread: Some(thread) })
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Hearing {
    me: usize,
    size: usize,
    secret: Secret,
    ending: Arc<Ending>,
    hears: Sender<Heard>,
    threads: Vec<JoinHandle<()>>,
}

impl Hearing {
    fn run(mut self, listener: Option<&UnixListener>, calls: Option<&Calls>) {
        while !self.ending.since(Duration::ZERO) {
            let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
            match listener {
                Some(listener) => {
                    let _ =
                        poll(&mut [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)], Some(&tick));
                    for _ in 0..TURN {
                        let Ok((stream, _)) = listener.accept() else { break };
                        self.answer(stream);
                    }
                }
                None => std::thread::sleep(TICK),
            }
            for (from, session) in calls.map(Calls::take).unwrap_or_default() {
                let session = session.map(|stream| Line::tcp(stream, &self.ending, Duration::ZERO));
                self.spawn(move |hears| listen(session, from, hears));
            }
            self.threads.retain(|thread| !thread.is_finished());
        }
        for thread in self.threads {
            let _ = thread.join();
        }
    }

    /// Whoever it is proves to be a peer in a thread of its own. Only processes of this user get that far.
    fn answer(&mut self, stream: UnixStream) {
        let same_user = rustix::net::sockopt::socket_peercred(&stream)
            .is_ok_and(|peer| peer.uid == rustix::process::geteuid());
        if !same_user
            || stream.set_nonblocking(true).is_err()
            || self.threads.len() >= 2 * self.size + UNPROVEN
        {
            return;
        }
        let (ending, until) = (self.ending.clone(), Some(Instant::now() + PROOF));
        let line = Line { socket: Socket::Unix(stream), ending, longer: Duration::ZERO, until };
        let (secret, me, size) = (self.secret.clone(), self.me, self.size);
        self.spawn(move |hears| {
            let Ok(mut session) = respond(line, &secret, CONTEXT) else { return };
            let Ok(said) = session.receive(introduction(0, 0).len()) else { return };
            let Some(from) = (0..size).find(|&from| said == introduction(from, me)) else { return };
            session.get_mut().until = None;
            listen(session, from, hears);
        });
    }

    fn spawn(&mut self, listens: impl FnOnce(&Sender<Heard>) + Send + 'static) {
        let hears = self.hears.clone();
        let name = format!("nd-hears-{}", self.me);
        // Without a thread the caller finds its connection closed, and calls again.
        self.threads.extend(Builder::new().name(name).stack_size(STACK).spawn(move || listens(&hears)));
    }
}

/// Until there is nothing more to hear.
fn listen(mut session: Session<Line>, from: usize, hears: &Sender<Heard>) {
    loop {
        let heard = match session.receive(MESSAGE_MAX) {
            Ok(message) if message.is_empty() => Heard::Left { peer: from },
            Ok(message) => {
                let _ = hears.send(Heard::Said { from, message });
                continue;
            }
            // Only the other end's kernel closes what was not taken leave of.
            Err(Error::Refused { why, .. }) if why == CLOSED => Heard::Ended { peer: from },
            Err(Error::System { source, .. }) if source.kind() == std::io::ErrorKind::ConnectionReset => {
                Heard::Ended { peer: from }
            }
            Err(_) => return,
        };
        let _ = hears.send(heard);
        return;
    }
}
