//! How the ranks of a host come to share one memory file.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use crate::region::{Neighbours, PROBE_ADDRESS, PROBE_NONCE, Region};
use crate::sys::{Mapping, memory_file};
use crate::{Error, Result};

/// Address space per rank, unless limits of the process leave less. It costs nothing until it is touched.
const REGION: u64 = 64 << 30;
/// Address space for all ranks of a host; x86-64 and 64-bit Arm give a process at least 128 TiB.
const ARENA: u64 = 16 << 40;
/// How long a process that connected may take to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(2);

/// What a rank tells the others of its host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ShmCard {
    /// Name of its abstract Unix socket.
    pub(crate) name: Vec<u8>,
    /// Whoever knows it is a rank of this job.
    pub(crate) token: [u8; 16],
}

/// The socket over which this rank would pass the memory file, should it turn out to be the lowest of its host.
#[derive(Debug)]
pub(crate) struct Listening {
    socket: UnixListener,
    pub card: ShmCard,
}

impl Listening {
    pub fn open() -> Result<Listening> {
        let token: [u8; 16] = rand::random();
        let name = format!("nd-{:032x}", rand::random::<u128>()).into_bytes();
        let socket = SocketAddr::from_abstract_name(&name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
            .map_err(|e| Error::system("opening a Unix socket", e))?;
        Ok(Listening { socket, card: ShmCard { name, token } })
    }
}

/// Address space for each of `ranks` ranks of a host.
pub(crate) fn region_len(ranks: usize) -> Result<u64> {
    let ranks = ranks as u64;
    let limit = |r| getrlimit(r).current.unwrap_or(u64::MAX);
    let total = ARENA.min(limit(Resource::As) / 4).min(limit(Resource::Fsize));
    let len = (total / ranks).min(REGION) & !((2 << 20) - 1);
    if len < 4 << 20 {
        return Err(Error::Limit {
            what: format!("shared memory of {ranks} ranks"),
            needed: "4 MiB of address space per rank".into(),
            limit: format!("{total} bytes for all"),
            remedy: "raise `ulimit -v` and `ulimit -f`".into(),
        });
    }
    Ok(len)
}

/// The memory that the ranks of a host share, and how much of it each rank has.
#[derive(Debug)]
pub(crate) struct Arena {
    mapping: Arc<Mapping>,
    region_len: u64,
}

impl Arena {
    /// Joins the ranks `locals` (ascending) in one arena. All of them call this.
    pub fn join(
        listening: &Listening,
        me: usize,
        locals: &[(usize, &ShmCard)],
        deadline: Instant,
    ) -> Result<Arena> {
        match locals {
            [] | [_] => Arena::alone(),
            [(leader, _), ..] if *leader == me => Arena::lead(listening, locals, deadline),
            [leader, ..] => {
                let index = locals.iter().position(|l| l.0 == me).expect("a rank is one of its host's");
                Arena::follow(me, index, *leader, locals.len(), deadline)
            }
        }
    }

    fn alone() -> Result<Arena> {
        let len = region_len(1)?;
        Arena::map(&memory_file(len)?, len, 1)
    }

    fn lead(listening: &Listening, locals: &[(usize, &ShmCard)], deadline: Instant) -> Result<Arena> {
        let region_len = region_len(locals.len())?;
        let file = memory_file(region_len * locals.len() as u64)?;
        let arena = Arena::map(&file, region_len, locals.len())?;
        let nonce = publish_probe(&arena.region(0));
        let mut followers: Vec<(usize, UnixStream)> = Vec::new();
        while followers.len() + 1 < locals.len() {
            let missing = || {
                let here = |rank: usize| followers.iter().any(|f| f.0 == rank);
                locals[1..].iter().map(|l| l.0).filter(|&r| !here(r)).collect::<Vec<_>>()
            };
            let stream = accept(&listening.socket, deadline, || {
                format!("joining of ranks {:?} to their host's shared memory", missing())
            })?;
            // Whoever does not introduce itself is a stranger, not a reason to fail.
            let Some(rank) = introduced(&stream, &listening.card.token) else { continue };
            if missing().contains(&rank) {
                pass(&stream, &file, region_len, nonce)
                    .map_err(|e| Error::system(format!("passing shared memory to rank {rank}"), e))?;
                followers.push((rank, stream));
            }
        }
        for (rank, stream) in &mut followers {
            set_deadline(stream, deadline)
                .and_then(|()| stream.read_exact(&mut [0]))
                .map_err(|e| Error::system(format!("rank {rank} did not map its host's shared memory"), e))?;
        }
        for (rank, stream) in &mut followers {
            stream.write_all(&[1]).map_err(|e| Error::system(format!("starting rank {rank}"), e))?;
        }
        Ok(arena)
    }

    fn follow(
        me: usize,
        index: usize,
        (leader, card): (usize, &ShmCard),
        ranks: usize,
        deadline: Instant,
    ) -> Result<Arena> {
        let failed = |verb: &str| {
            let what = format!("{verb} the shared memory of rank {leader}");
            move |e: io::Error| Error::system(what, e)
        };
        let mut stream = SocketAddr::from_abstract_name(&card.name)
            .and_then(|address| UnixStream::connect_addr(&address))
            .map_err(failed("reaching"))?;
        let mut hello = [0u8; 24];
        hello[..16].copy_from_slice(&card.token);
        hello[16..].copy_from_slice(&(me as u64).to_le_bytes());
        set_deadline(&stream, deadline)
            .and_then(|()| stream.write_all(&hello))
            .map_err(failed("asking for"))?;
        let (file, region_len, nonce) = receive(&stream).map_err(failed("receiving"))?;
        let arena = Arena::map(&file, region_len, ranks)?;
        if arena.region(0).counter(PROBE_NONCE).load(Ordering::Acquire) != nonce {
            let why = "its shared memory maps, but holds other contents".into();
            return Err(Error::Unreachable { from: me, to: leader, why });
        }
        publish_probe(&arena.region(index));
        stream.write_all(&[1]).map_err(failed("confirming"))?;
        stream.read_exact(&mut [0]).map_err(failed("waiting for all to map"))?;
        Ok(arena)
    }

    fn map(file: &OwnedFd, region_len: u64, ranks: usize) -> Result<Arena> {
        let mapping = Arc::new(Mapping::new(file, region_len as usize * ranks)?);
        Ok(Arena { mapping, region_len })
    }

    /// The region of the host's `index`-th rank, which is a peer of this one.
    pub fn peer(&self, index: usize, neighbours: Neighbours) -> Arc<Region> {
        let start = index * self.region_len as usize;
        Region::of_peer(self.mapping.clone(), start, self.region_len, (index, neighbours))
    }

    /// The region of the host's `index`-th rank.
    pub fn region(&self, index: usize) -> Arc<Region> {
        Region::new(self.mapping.clone(), index * self.region_len as usize, self.region_len)
    }
}

/// Writes down where peers can try to read this process's memory, and what they must find there.
fn publish_probe(region: &Region) -> u64 {
    static NONCE: OnceLock<u64> = OnceLock::new();
    let nonce = NONCE.get_or_init(|| rand::random::<u64>() | 1);
    region.counter(PROBE_ADDRESS).store(std::ptr::from_ref(nonce) as u64, Ordering::Release);
    region.counter(PROBE_NONCE).store(*nonce, Ordering::Release);
    *nonce
}

fn set_deadline(stream: &UnixStream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))
}

fn accept(socket: &UnixListener, deadline: Instant, what: impl Fn() -> String) -> Result<UnixStream> {
    let start = Instant::now();
    loop {
        match socket.accept() {
            Ok((stream, _)) => return Ok(stream),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(Error::system(what(), e)),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Timeout { what: what(), after: start.elapsed() });
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout));
    }
}

/// The rank that connected: the same user, with this job's token.
fn introduced(mut stream: &UnixStream, token: &[u8; 16]) -> Option<usize> {
    let peer = rustix::net::sockopt::socket_peercred(stream).ok()?;
    if peer.uid != rustix::process::geteuid() {
        return None;
    }
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(INTRODUCTION)).ok()?;
    let mut hello = [0u8; 24];
    stream.read_exact(&mut hello).ok()?;
    let (theirs, rank) = hello.split_at(16);
    let rank = u64::from_le_bytes(rank.try_into().ok()?);
    (theirs == token).then_some(rank as usize)
}

fn pass(stream: &UnixStream, file: &OwnedFd, region_len: u64, nonce: u64) -> io::Result<()> {
    let mut message = [0u8; 16];
    message[..8].copy_from_slice(&region_len.to_le_bytes());
    message[8..].copy_from_slice(&nonce.to_le_bytes());
    let fds = [file.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(stream, &[io::IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(stream: &UnixStream) -> io::Result<(OwnedFd, u64, u64)> {
    let mut message = [0u8; 16];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [io::IoSliceMut::new(&mut message)];
    let got = rustix::net::recvmsg(stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let file = control.drain().find_map(|m| match m {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| message[at + i]));
    match file {
        Some(file) if got.bytes == message.len() => Ok((file, number(0), number(8))),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no memory file came (`ulimit -n` too low?)")),
    }
}
