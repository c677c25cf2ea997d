//! Sockets whose every operation has one common deadline.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nd_transport::Stop;
use nd_transport::tcp::connect_within;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// A connected socket with a deadline; clones share both.
#[derive(Debug, Clone)]
pub struct Stream(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: Socket,
    deadline: Mutex<Instant>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn new(socket: Socket, deadline: Instant) -> Stream {
        Stream(Arc::new(Shared { socket, deadline: Mutex::new(deadline) }))
    }

    /// Connects by TCP, unless `stop` is asked meanwhile.
    pub fn tcp(address: SocketAddr, deadline: Instant, stop: &Stop) -> io::Result<Stream> {
        let socket = connect_within(address, left(deadline)?.min(Duration::from_secs(5)), stop)?;
        socket.set_nodelay(true)?;
        Ok(Stream::new(Socket::Tcp(socket), deadline))
    }

    /// Connects to an abstract name, and checks that a process of this user listens there.
    pub fn unix(name: &str, deadline: Instant) -> io::Result<Stream> {
        let socket = UnixStream::connect_addr(&UnixAddr::from_abstract_name(name)?)?;
        same_user(&socket)?;
        Ok(Stream::new(Socket::Unix(socket), deadline))
    }

    /// Changes the deadline for all clones.
    pub fn set_deadline(&self, deadline: Instant) {
        *self.0.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    /// Ends the connection; whoever reads or writes on a clone gets an error at once.
    pub fn shut(&self) {
        let _ = match &self.0.socket {
            Socket::Tcp(s) => s.shutdown(Shutdown::Both),
            Socket::Unix(s) => s.shutdown(Shutdown::Both),
        };
    }

    /// Nothing more is read: whoever reads on a clone finds the end at once, and may still write.
    pub fn deafen(&self) {
        let _ = match &self.0.socket {
            Socket::Tcp(s) => s.shutdown(Shutdown::Read),
            Socket::Unix(s) => s.shutdown(Shutdown::Read),
        };
    }

    /// This end's address, for TCP.
    pub fn local_ip(&self) -> Option<IpAddr> {
        match &self.0.socket {
            Socket::Tcp(s) => s.local_addr().ok().map(|a| a.ip().to_canonical()),
            Socket::Unix(_) => None,
        }
    }

    fn prepare(&self) -> io::Result<()> {
        let deadline = *self.0.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        let left = Some(left(deadline)?);
        match &self.0.socket {
            Socket::Tcp(s) => s.set_read_timeout(left).and(s.set_write_timeout(left)),
            Socket::Unix(s) => s.set_read_timeout(left).and(s.set_write_timeout(left)),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0.socket {
            Socket::Tcp(s) => s.as_fd(),
            Socket::Unix(s) => s.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.prepare()?;
        let n = match &self.0.socket {
            Socket::Tcp(s) => (&mut &*s).read(buffer),
            Socket::Unix(s) => (&mut &*s).read(buffer),
        };
        n.map_err(late)
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.prepare()?;
        let n = match &self.0.socket {
            Socket::Tcp(s) => (&mut &*s).write(buffer),
            Socket::Unix(s) => (&mut &*s).write(buffer),
        };
        n.map_err(late)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where connections arrive.
#[derive(Debug)]
pub enum Listener {
    /// By TCP.
    Tcp(TcpListener),
    /// On an abstract name.
    Unix(UnixListener),
}

impl Listener {
    /// Listens on `address` (port 0: any). A port that a finished run used a moment ago can be used again
    /// (`SO_REUSEADDR`). `::` takes IPv4 as well.
    pub fn tcp(address: SocketAddr) -> io::Result<Listener> {
        let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        rustix::net::bind(&socket, &address)?;
        // As many as the kernel allows (net.core.somaxconn): all ranks may arrive at once.
        rustix::net::listen(&socket, 65_535)?;
        Ok(Listener::Tcp(socket.into()))
    }

    /// Listens on an abstract name.
    pub fn unix(name: &str) -> io::Result<Listener> {
        let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        // std asks for a short queue; asking again lengthens it.
        rustix::net::listen(&listener, 65_535)?;
        Ok(Listener::Unix(listener))
    }

    /// The port, for TCP.
    pub fn port(&self) -> io::Result<u16> {
        match self {
            Listener::Tcp(l) => Ok(l.local_addr()?.port()),
            Listener::Unix(_) => Ok(0),
        }
    }

    /// The next connection and who it is from, without waiting. On an abstract name another user is refused.
    pub fn accept(&self, deadline: Instant) -> io::Result<(Stream, String)> {
        match self {
            Listener::Tcp(l) => {
                let (socket, from) = l.accept()?;
                socket.set_nonblocking(false)?;
                socket.set_nodelay(true)?;
                Ok((
                    Stream::new(Socket::Tcp(socket), deadline),
                    SocketAddr::new(from.ip().to_canonical(), from.port()).to_string(),
                ))
            }
            Listener::Unix(l) => {
                let (socket, _) = l.accept()?;
                socket.set_nonblocking(false)?;
                let pid = sockopt::socket_peercred(&socket)?.pid;
                same_user(&socket)?;
                Ok((Stream::new(Socket::Unix(socket), deadline), format!("pid {}", pid.as_raw_nonzero())))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(l) => l.as_fd(),
            Listener::Unix(l) => l.as_fd(),
        }
    }
}

fn same_user(socket: &UnixStream) -> io::Result<()> {
    let (theirs, ours) = (sockopt::socket_peercred(socket)?.uid, rustix::process::geteuid());
    if theirs == ours {
        return Ok(());
    }
    let text = format!("user {} is at the other end, not user {}", theirs.as_raw(), ours.as_raw());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left < Duration::from_micros(1) { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A socket whose timeout has passed says "would block".
fn late(e: io::Error) -> io::Error {
    if e.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { e }
}
