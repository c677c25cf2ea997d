//! Memory that is read or written by the kernel behind Rust's back: pieces waiting to be sent, payload received in
//! place. The only file of this transport that dereferences pointers of the caller.
#![allow(unsafe_code)] // memory lent by Link::put, memory of the region

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::time::Duration;

use super::seal::Source;
use super::wire::HEAD;
use crate::Part;
use crate::link::INLINE_PART;

/// Pieces handed to the kernel at once.
const PIECES: usize = 64;

/// Pieces for which there is room from the start: three for each slot of a peer's lanes.
const ROOM: usize = 128;

/// The longest piece that is copied: a small part, or a frame's head.
const COPY: usize = if INLINE_PART > HEAD { INLINE_PART } else { HEAD };

/// Bytes that wait to be sent on one connection, in order.
#[derive(Debug, Default)]
pub struct Pending {
    pieces: VecDeque<Piece>,
}

// Inline, so that waiting allocates nothing once the queue has grown.
#[allow(clippy::large_enum_variant)]
enum Piece {
    Copied { bytes: [u8; COPY], first: u16, end: u16 },
    Lent { ptr: *const u8, len: usize },
}

// SAFETY: lent memory is only read, and its owner keeps it unchanged until it was sent, on whichever thread.
unsafe impl Send for Pending {}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Piece {
    fn copied(bytes: &[u8]) -> Piece {
        let mut copy = [0; COPY];
        copy[..bytes.len()].copy_from_slice(bytes);
        Piece::Copied { bytes: copy, first: 0, end: bytes.len() as u16 }
    }

    /// Adds `bytes` to copied ones, if there is room.
    fn append(&mut self, more: &[u8]) -> bool {
        let Piece::Copied { bytes, end, .. } = self else { return false };
        let at = usize::from(*end);
        let room = bytes.get_mut(at..at + more.len());
        room.is_some_and(|room| {
            room.copy_from_slice(more);
            *end += more.len() as u16;
            true
        })
    }

    fn len(&self) -> usize {
        match self {
            Piece::Copied { first, end, .. } => usize::from(end - first),
            Piece::Lent { len, .. } => *len,
        }
    }

    fn part(&self) -> Part {
        match self {
            Piece::Copied { bytes, first, end } => Part::of(&bytes[usize::from(*first)..usize::from(*end)]),
            Piece::Lent { ptr, len } => Part { ptr: *ptr, len: *len },
        }
    }

    fn advance(&mut self, n: usize) {
        match self {
            Piece::Copied { first, .. } => *first += n as u16,
            Piece::Lent { ptr, len } => {
                *ptr = ptr.wrapping_add(n);
                *len -= n;
            }
        }
    }
}

impl Pending {
    /// Room for what a communicator ever has waiting, made when something first has to wait.
    fn make_room(&mut self) {
        if self.pieces.capacity() == 0 {
            self.pieces.reserve(ROOM);
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether memory of somebody else is still to be sent.
    pub fn lends(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Lent { .. }))
    }

    /// Forgets everything, lent memory too.
    pub fn clear(&mut self) {
        self.pieces.clear();
    }

    /// Adds a copy of `bytes`.
    pub fn push_copy(&mut self, bytes: &[u8]) {
        self.make_room();
        self.pieces.extend(bytes.chunks(COPY).map(Piece::copied));
    }

    /// Adds a head and parts.
    ///
    /// # Safety
    /// As [`crate::Link::put`]: every part is valid; those beyond [`INLINE_PART`] bytes stay so until they were sent
    /// or [`Pending::clear`] was called.
    pub unsafe fn push(&mut self, head: &[u8; HEAD], parts: &[Part]) {
        self.make_room();
        let mut copied = Piece::copied(head);
        for part in parts.iter().filter(|part| part.len > 0) {
            if part.len > INLINE_PART {
                self.pieces.push_back(std::mem::replace(&mut copied, Piece::copied(&[])));
                self.pieces.push_back(Piece::Lent { ptr: part.ptr, len: part.len });
                continue;
            }
            // SAFETY: valid by the caller's promise, copied here.
            let bytes = unsafe { std::slice::from_raw_parts(part.ptr, part.len) };
            if !copied.append(bytes) {
                self.pieces.push_back(std::mem::replace(&mut copied, Piece::copied(bytes)));
            }
        }
        if copied.len() > 0 {
            self.pieces.push_back(copied);
        }
    }

    /// Hands over what the kernel takes now; 0 if it takes nothing.
    pub fn flush(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let mut vectors = Vectors::new();
        self.pieces.iter().take(PIECES).for_each(|p| vectors.push(p.part()));
        // SAFETY: copies live in `self`; lent memory is valid until it was sent, by the promise to `put`.
        let sent = unsafe { vectors.send(fd) }?;
        self.advance(sent);
        Ok(sent)
    }

    /// Forgets the first `n` bytes.
    fn advance(&mut self, mut n: usize) {
        while let Some(front) = self.pieces.front_mut() {
            let len = front.len();
            if n < len {
                front.advance(n);
                return;
            }
            n -= len;
            self.pieces.pop_front();
        }
    }
}

/// Long pieces of lent memory are left where they lie; whoever lent it may use it again only once told.
impl Source for Pending {
    fn take(&mut self, room: &mut [u8]) -> (usize, &[u8]) {
        let mut here = 0;
        while let Some(front) = self.pieces.front()
            && here < room.len()
        {
            let (part, lent) = (front.part(), matches!(front, Piece::Lent { .. }));
            let n = part.len.min(room.len() - here);
            // SAFETY: copies live in `self` until they are taken off, and are copied before; lent memory is valid until it
            // was sent, by the promise to `put`.
            let bytes = unsafe { std::slice::from_raw_parts(part.ptr, n) };
            if lent && n >= LONG {
                self.advance(n);
                return (here, bytes);
            }
            let to = &mut room[here..here + n];
            to.chunks_mut(SHORT).zip(bytes.chunks(SHORT)).for_each(|(to, from)| to.copy_from_slice(from));
            self.advance(n);
            here += n;
        }
        (here, &[])
    }
}

/// What one system call sends.
struct Vectors {
    vectors: [MaybeUninit<libc::iovec>; PIECES],
    count: usize,
    total: usize,
}

impl Vectors {
    fn new() -> Vectors {
        Vectors { vectors: [const { MaybeUninit::uninit() }; PIECES], count: 0, total: 0 }
    }

    fn push(&mut self, part: Part) {
        self.vectors[self.count]
            .write(libc::iovec { iov_base: part.ptr.cast_mut().cast(), iov_len: part.len });
        self.count += 1;
        self.total += part.len;
    }

    /// Sends without waiting; a full socket takes 0 bytes.
    ///
    /// # Safety
    /// All parts are valid.
    unsafe fn send(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        // SAFETY: a plain structure of the C library, for which zero is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.vectors.as_mut_ptr().cast();
        message.msg_iovlen = self.count as _;
        // SAFETY: the first `count` vectors are initialised and point to valid memory, which is only read.
        taken(|| unsafe { libc::sendmsg(fd.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) })
    }
}

/// Receives without waiting: first into `len` bytes from `to` on, then into `rest`. `None` when nothing is there; 0 at
/// the end of the stream.
///
/// The first bytes are what `receive` looked up: an exposed window, or memory that was lent and not withdrawn.
pub fn receive_in_place(
    fd: BorrowedFd<'_>,
    (to, len): (NonNull<u8>, usize),
    rest: &mut [u8],
) -> io::Result<Option<usize>> {
    let mut vectors = [
        libc::iovec { iov_base: to.as_ptr().cast(), iov_len: len },
        libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
    ];
    // SAFETY: as in `Vectors::send`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = if rest.is_empty() { 1 } else { 2 };
    // SAFETY: peers may write an exposed window at any time, and lent memory until it is withdrawn; `rest` is ours.
    some(|| unsafe { libc::recvmsg(fd.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) })
}

/// Receives without waiting: `None` when nothing is there, 0 at the end of the stream.
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: the buffer is ours for writes.
    some(|| unsafe {
        libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
    })
}

/// What is there, without taking it off; `None` when nothing is, 0 at the end of the stream.
pub fn peek(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the buffer is ours for writes.
    some(|| unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) })
}

/// The socket counts as readable from `bytes` on, or at its end.
pub fn readable_from(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = bytes as libc::c_int;
    let (option, len) = (&raw const bytes, size_of_val(&bytes) as libc::socklen_t);
    // SAFETY: the option is read from `bytes`, which has that length.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, option.cast(), len) }
    {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends without waiting; a full socket takes 0 bytes.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the bytes are only read.
    taken(|| unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// What the kernel knows of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Info {
    /// The peer's system has all that was sent and knows that no more comes, or the connection broke.
    pub acknowledged: bool,
    /// The peer's system has not acknowledged something that was sent to it.
    pub unanswered: bool,
    /// The same, and it is on its way.
    pub under_way: bool,
    /// How often something was sent again since the peer's system has last acknowledged anything: the first time after 200
    /// ms at least, and each time twice as long. What could not be sent at all, as when this host's own interface is
    /// down, counts as well.
    pub repeats: u8,
    /// Bytes that it has ever acknowledged.
    pub acknowledged_bytes: u64,
    /// Bytes that have ever come from it.
    pub received_bytes: u64,
    /// How long its acknowledgements take, as TCP averages that.
    pub round_trip: Duration,
}

/// Asks the kernel.
pub fn info(fd: BorrowedFd<'_>) -> Info {
    // The beginning of `struct tcp_info` of linux/tcp.h up to `tcpi_snd_wnd` (Linux 5.4; older kernels leave the end as it is).
    let mut info = [0u64; 29];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, and the length to `len`.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    let [state, _, retransmits, probes, ..] = info[0].to_ne_bytes();
    let word = |pair: u64, which: usize| {
        let bytes = pair.to_ne_bytes();
        u32::from_ne_bytes(std::array::from_fn(|i| bytes[4 * which + i]))
    };
    let (unacknowledged, window) = (word(info[3], 0), word(info[28], 1));
    // What was sent is retransmitted. Where nothing is under way TCP probes: for what could not leave this host, and for what
    // the peer's window has no room for. A system that is there acknowledges probes of a full window, but only one in half a
    // second (tcp_invalid_ratelimit), and so not each of two in a row.
    let repeats = retransmits.max(if window > 0 { probes } else { probes.saturating_sub(1) });
    Info {
        acknowledged: done != 0 || matches!(state, FIN_WAIT2 | TIME_WAIT | CLOSE),
        unanswered: done != 0 || unacknowledged > 0 || repeats > 0,
        under_way: done == 0 && unacknowledged > 0,
        repeats,
        acknowledged_bytes: info[15],
        received_bytes: info[16],
        round_trip: Duration::from_micros(u64::from(word(info[8], 1))),
    }
}

// States of a connection, as the kernel numbers them, in which the end that this side sent was acknowledged.
const FIN_WAIT2: u8 = 5;
const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;

/// Copies payload to where `receive` found that it belongs.
#[inline]
pub fn place(to: NonNull<u8>, bytes: &[u8]) {
    let mut to = to.as_ptr();
    for piece in bytes.chunks(SHORT) {
        // SAFETY: as in `receive_in_place`; a read buffer is not part of it.
        unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len()) };
        to = to.wrapping_add(piece.len());
    }
}

/// From so many bytes on, lent memory is sealed from where it lies.
const LONG: usize = 4 << 10;

/// The memory that [`place`] would write, for whoever fills it at once.
///
/// As [`receive_in_place`], it is what `receive` looked up.
pub fn opened_in_place<R>((to, len): (NonNull<u8>, usize), fill: impl FnOnce(&mut [u8]) -> R) -> R {
    // SAFETY: as in `receive_in_place`; nobody reads it before the signal that follows, and nobody else writes it.
    fill(unsafe { std::slice::from_raw_parts_mut(to.as_ptr(), len) })
}

/// Copies are made of pieces of so many bytes. Measured on one AMD EPYC with glibc: longer ones took some 20 times as
/// long where the destination lay 1 to 63 bytes behind the source modulo the page, as heads and tags make it happen.
/// The likely cause is the processor's string move, which the C library uses from about 2 KiB on.
const SHORT: usize = 1 << 10;

fn taken(call: impl FnMut() -> isize) -> io::Result<usize> {
    Ok(some(call)?.unwrap_or(0))
}

fn some(mut call: impl FnMut() -> isize) -> io::Result<Option<usize>> {
    loop {
        let n = call();
        if n >= 0 {
            return Ok(Some(n as usize));
        }
        let e = io::Error::last_os_error();
        match e.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_peer_that_takes_nothing_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_peer, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let until = Instant::now() + Duration::from_secs(3);
        let mut full = false;
        while Instant::now() < until {
            let waits = stream.write(&[0; 1 << 16]).is_err();
            let info = info(stream.as_fd());
            full |= waits && !info.unanswered;
            assert!(!full || info.repeats == 0, "{info:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(full);
    }

    #[test]
    fn a_full_socket_keeps_the_rest_in_order() {
        let (a, mut b) = UnixStream::pair().unwrap();
        let large: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let small = [9u8; 100];
        let mut pending = Pending::default();
        let medium = [7u8; INLINE_PART];
        let parts =
            [Part::of(&small[..7]), Part::of(&large), Part::of(&small), Part::of(&[]), Part::of(&medium)];
        // SAFETY: the parts outlive `pending`'s use of them.
        unsafe { pending.push(&[1; HEAD], &parts) };
        let mut sent = pending.flush(a.as_fd()).unwrap();
        assert!(sent > HEAD && !pending.is_empty() && pending.lends());
        // SAFETY: as above.
        unsafe { pending.push(&[2; HEAD], &[Part::of(&small)]) };
        let expected = [&[1; HEAD][..], &small[..7], &large, &small, &medium, &[2; HEAD], &small].concat();
        let reader = std::thread::spawn(move || {
            let mut all = vec![];
            b.read_to_end(&mut all).unwrap();
            all
        });
        while !pending.is_empty() {
            sent += pending.flush(a.as_fd()).unwrap();
        }
        drop(a);
        assert!(!pending.lends());
        assert_eq!(sent, expected.len());
        assert!(reader.join().unwrap() == expected);
    }
}
