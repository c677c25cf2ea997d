//! What the first rank of a host and the others say to each other while they come to share memory.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// With the memory file: bytes for each rank; what the first rank's region holds follows.
const FILE: u8 = 0;
/// All have mapped; from another rank: it has.
const GO: u8 = 1;
/// That rank is lost.
const LOST: u8 = 2;
/// It has failed; so many bytes follow that say why.
const FAILED: u8 = 3;
/// That rank's program has aborted the start.
const ABORTED: u8 = 4;
/// Bytes of the beginning of each word: which, and a number.
const HEAD: usize = 9;
/// Bytes that are said of a failure at most.
const WHY: usize = 4096;

fn head(word: u8, number: u64) -> [u8; HEAD] {
    let mut head = [word; HEAD];
    head[1..].copy_from_slice(&number.to_le_bytes());
    head
}

/// That all have mapped, or this rank has.
pub(super) fn go() -> Vec<u8> {
    head(GO, 0).to_vec()
}

/// That a rank is lost.
pub(super) fn lost(rank: usize) -> Vec<u8> {
    head(LOST, rank as u64).to_vec()
}

/// That a rank's program has aborted the start.
pub(super) fn aborted(rank: usize) -> Vec<u8> {
    head(ABORTED, rank as u64).to_vec()
}

/// That whoever says this has failed, and why.
pub(super) fn failed(why: &str) -> Vec<u8> {
    let why = &why.as_bytes()[..why.len().min(WHY)];
    [&head(FAILED, why.len() as u64), why].concat()
}

/// What is heard.
pub(super) enum Word {
    /// The memory file, bytes for each rank, and what the first rank's region holds.
    File(OwnedFd, u64, u64),
    /// All have mapped; from another rank: it has.
    Go,
    /// That rank is lost.
    Lost(usize),
    /// Whoever says this has failed, for this reason.
    Failed(String),
    /// That rank's program has aborted the start.
    Aborted(usize),
}

impl Word {
    /// Waits for the next, as long as the stream's own limit allows.
    pub(super) fn hear(stream: &mut UnixStream) -> io::Result<Word> {
        let mut head = [0u8; HEAD];
        let (got, file) = receive(stream, &mut head)?;
        stream.read_exact(&mut head[got..])?;
        let number = u64::from_le_bytes(std::array::from_fn(|i| head[1 + i]));
        match (head[0], file) {
            (FILE, Some(file)) => {
                let mut nonce = [0; 8];
                stream.read_exact(&mut nonce)?;
                Ok(Word::File(file, number, u64::from_le_bytes(nonce)))
            }
            (FILE, None) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "no memory file came (`ulimit -n` too low?)",
            )),
            (GO, _) => Ok(Word::Go),
            (LOST, _) => Ok(Word::Lost(number as usize)),
            (ABORTED, _) => Ok(Word::Aborted(number as usize)),
            (FAILED, _) => {
                let mut why = Vec::new();
                stream.take(number.min(WHY as u64)).read_to_end(&mut why)?;
                Ok(Word::Failed(String::from_utf8_lossy(&why).into_owned()))
            }
            (other, _) => Err(io::Error::other(format!("an answer that is none ({other})"))),
        }
    }
}

/// Passes the memory file on.
pub(super) fn pass(stream: &UnixStream, file: &OwnedFd, region_len: u64, nonce: u64) -> io::Result<()> {
    let message = [&head(FILE, region_len)[..], &nonce.to_le_bytes()].concat();
    let fds = [file.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let parts = [io::IoSlice::new(&message)];
    undisturbed(|| Ok(rustix::net::sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL)?))?;
    Ok(())
}

/// How many bytes came, at least one, and the file that came with them.
fn receive(stream: &UnixStream, into: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [io::IoSliceMut::new(into)];
    let got =
        undisturbed(|| Ok(rustix::net::recvmsg(stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?))?;
    let file = control.drain().find_map(|m| match m {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    if got.bytes == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok((got.bytes, file)) }
}

/// Once more whenever a signal came in between.
pub(super) fn undisturbed<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
