//! How a sleeping rank is woken by a peer that wrote into its memory.
//!
//! A rank that is about to sleep says so in a word of its region, see [`sleep_word`], and sleeps: on the word itself
//! (futex), or, when it also waits for sockets, in `poll` with a datagram socket among them. A peer writes, then looks at
//! the word, and only if the rank sleeps makes a system call.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::sleep_word::{self, ASLEEP, IN_POLL, announce};
use crate::sys;
use crate::{Error, Result};

/// Rings at one peer.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    /// Where the peer's datagram socket is, for when it sleeps in `poll`.
    name: Option<Vec<u8>>,
    socket: OnceLock<Option<UnixDatagram>>,
}

impl Bell {
    pub fn new(name: Vec<u8>) -> Bell {
        Bell { name: Some(name), socket: OnceLock::new() }
    }

    /// Wakes the peer if it sleeps; called after writing what it may wait for.
    #[inline]
    pub fn ring(&self, word: &AtomicU32) {
        if sleep_word::may_sleep(word) {
            self.ring_sleeper(word);
        }
    }

    #[cold]
    fn ring_sleeper(&self, word: &AtomicU32) {
        match sleep_word::to_be_woken(word) {
            ASLEEP => sys::futex_wake(word),
            IN_POLL => {
                let socket = self.socket.get_or_init(|| self.dial().ok());
                if let Some(socket) = socket {
                    // A full queue means that the peer is being woken already; a dead peer needs no waking.
                    let _ = socket.send(&[1]);
                }
            }
            _ => {}
        }
    }

    fn dial(&self) -> io::Result<UnixDatagram> {
        let name = self.name.as_deref().ok_or(io::ErrorKind::NotFound)?;
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        Ok(socket)
    }
}

/// The socket that wakes a rank that sleeps in `poll`.
#[derive(Debug)]
pub(crate) struct BellSocket(UnixDatagram);

impl BellSocket {
    pub fn bind(name: &[u8]) -> Result<BellSocket> {
        let bind = || {
            let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
            socket.set_nonblocking(true)?;
            Ok::<_, io::Error>(socket)
        };
        bind().map(BellSocket).map_err(|e| Error::system("opening the socket that wakes this rank", e))
    }
}

impl AsFd for BellSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps on the word, unless `ready` turns out to hold.
pub(crate) fn sleep(word: &AtomicU32, timeout: Duration, ready: impl FnOnce() -> bool) {
    announce(word, ASLEEP, ready, || sys::futex_wait(word, ASLEEP, timeout));
}

/// Sleeps in `poll`, unless `ready` turns out to hold.
pub(crate) fn sleep_in_poll(word: &AtomicU32, ready: impl FnOnce() -> bool, poll: impl FnOnce()) {
    announce(word, IN_POLL, ready, poll);
}
