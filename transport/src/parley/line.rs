//! A stream whose every wait ends with the parley.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How often a wait looks whether it should end.
pub const TICK: Duration = Duration::from_millis(20);

/// When the parley ended.
#[derive(Debug, Default)]
pub struct Ending {
    at: OnceLock<Instant>,
    /// For whoever only asks whether.
    pub over: AtomicBool,
}

impl Ending {
    /// It ends.
    pub fn begin(&self, now: Instant) {
        let _ = self.at.set(now);
        self.over.store(true, Ordering::Release);
    }

    /// Whether it has, so long ago.
    pub fn since(&self, ago: Duration) -> bool {
        self.at.get().is_some_and(|at| at.elapsed() >= ago)
    }
}

#[derive(Debug)]
pub enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// A stream, to the end of the parley and so much longer.
#[derive(Debug)]
pub struct Line {
    pub socket: Socket,
    pub ending: Arc<Ending>,
    pub longer: Duration,
    /// Until when every wait ends anyway.
    pub until: Option<Instant>,
}

impl Line {
    /// Of a connection that was made, in whatever mode.
    pub fn tcp(stream: TcpStream, ending: &Arc<Ending>, longer: Duration) -> Line {
        // Where that fails, a wait is as long as the kernel makes it.
        let _ = stream.set_nonblocking(true);
        Line { socket: Socket::Tcp(stream), ending: ending.clone(), longer, until: None }
    }

    fn ready(&self, flags: PollFlags) -> io::Result<()> {
        let fd: BorrowedFd<'_> = match &self.socket {
            Socket::Unix(s) => s.as_fd(),
            Socket::Tcp(s) => s.as_fd(),
        };
        loop {
            if self.ending.since(self.longer) {
                return Err(io::Error::other("ended from this side"));
            }
            if self.until.is_some_and(|until| Instant::now() >= until) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
            match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&tick)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.ready(PollFlags::IN)?;
            let read = match &mut self.socket {
                Socket::Unix(s) => s.read(buffer),
                Socket::Tcp(s) => s.read(buffer),
            };
            match read {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.ready(PollFlags::OUT)?;
            let written = match &mut self.socket {
                Socket::Unix(s) => s.write(bytes),
                Socket::Tcp(s) => s.write(bytes),
            };
            match written {
                // There is less room than these bytes need.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
