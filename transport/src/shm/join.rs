//! How the ranks of a host come to share one memory file.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::words::{self, Word, pass, undisturbed};
use crate::region::{Neighbours, PROBE_ADDRESS, PROBE_NONCE, Region};
use crate::sys::{Mapping, keeps_length, memory_file};
use crate::{Error, Result, Stop};

/// Address space per rank, unless limits of the process leave less. It costs nothing until it is touched.
const REGION: u64 = 64 << 30;
/// Address space for all ranks of a host; x86-64 and 64-bit Arm give a process at least 128 TiB.
const ARENA: u64 = 16 << 40;
/// The least that a rank can do with, and what its address space is a multiple of.
const REGION_MIN: u64 = 4 << 20;
const REGION_UNIT: u64 = 2 << 20;
/// How long a process that connected may take to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(2);
/// How much longer than the first rank of their host the others wait: it knows who is missing, and its clock may have started
/// later.
const GRACE: Duration = Duration::from_secs(2);
/// How often a rank that waits for others looks whether it should stop.
const TICK: Duration = Duration::from_millis(50);

/// What a rank tells the others of its host.
#[derive(Clone, Serialize, Deserialize)]
pub struct ShmCard {
    /// Name of its abstract Unix socket.
    pub(crate) name: Vec<u8>,
    /// Whoever knows it is a rank of this job.
    pub(crate) token: [u8; 16],
}

impl fmt::Debug for ShmCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShmCard({})", String::from_utf8_lossy(&self.name))
    }
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
    let len = (total / ranks).min(REGION) / REGION_UNIT * REGION_UNIT;
    if len < REGION_MIN {
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
        limit: Limit<'_>,
    ) -> Result<Arena> {
        match locals {
            [] | [_] => Arena::alone(),
            [(leader, _), ..] if *leader == me => Arena::lead(listening, locals, limit),
            [leader, ..] => {
                let index = locals.iter().position(|l| l.0 == me).expect("a rank is one of its host's");
                Arena::follow(me, index, *leader, locals.len(), limit)
            }
        }
    }

    fn alone() -> Result<Arena> {
        let len = region_len(1)?;
        Arena::map(&memory_file(len)?, len, 1)
    }

    fn lead(listening: &Listening, locals: &[(usize, &ShmCard)], limit: Limit<'_>) -> Result<Arena> {
        let mut followers = Vec::new();
        let arena = Arena::gather(listening, locals, limit, &mut followers);
        if let Err(e) = &arena {
            say_why(listening, locals, limit, &mut followers, e);
        }
        arena
    }

    fn gather(
        listening: &Listening,
        locals: &[(usize, &ShmCard)],
        limit: Limit<'_>,
        followers: &mut Vec<(usize, UnixStream)>,
    ) -> Result<Arena> {
        let began = Instant::now();
        let region_len = region_len(locals.len())?;
        let file = memory_file(region_len * locals.len() as u64)?;
        let arena = Arena::map(&file, region_len, locals.len())?;
        let nonce = publish_probe(&arena.region(0));
        let left = |e: &io::Error| {
            use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
            matches!(e.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
        };
        // It says why when it leaves: whose end of the connection is closed without a word is ending, if it has not ended.
        let gone = |rank: usize, e: io::Error| {
            let what = || joining(&[rank], &limit);
            (limit.gone)(rank, left(&e)).unwrap_or_else(|| limit.failed(what, began, e))
        };
        let mapped = |rank: usize, stream: &mut UnixStream| match limit.hear(stream) {
            Ok(Word::Go) => Ok(()),
            Ok(Word::Aborted(_)) => Err(limit.aborted(rank)),
            Ok(Word::Failed(why)) => {
                let why = format!("{} could not join its host's memory: {why}", (limit.who)(rank));
                Err(Error::Unreachable { from: locals[0].0, to: rank, why })
            }
            Ok(_) => Err(gone(rank, io::Error::other("it said what does not belong here"))),
            Err(e) => Err(gone(rank, e)),
        };
        while followers.len() + 1 < locals.len() {
            let missing = missing(locals, followers);
            let mut stream = limit.accept(&listening.socket, &missing, || joining(&missing, &limit))?;
            // Whoever does not introduce itself is a stranger, not a reason to fail.
            let Some(rank) = introduced(&stream, &listening.card.token) else { continue };
            if missing.contains(&rank) {
                match pass(&stream, &file, region_len, nonce) {
                    Ok(()) => {}
                    Err(e) if left(&e) => {
                        return Err(mapped(rank, &mut stream).err().unwrap_or_else(|| gone(rank, e)));
                    }
                    Err(e) => return Err(gone(rank, e)),
                }
                followers.push((rank, stream));
            }
        }
        for (rank, stream) in followers.iter_mut() {
            mapped(*rank, stream)?;
        }
        for (_, stream) in followers {
            // Whoever is gone by now is missed in the first call.
            let _ = stream.write_all(&words::go());
        }
        Ok(arena)
    }

    fn follow(
        me: usize,
        index: usize,
        (leader, card): (usize, &ShmCard),
        ranks: usize,
        limit: Limit<'_>,
    ) -> Result<Arena> {
        let limit = Limit { deadline: limit.deadline + GRACE, ..limit };
        let failed = |e| {
            let what = || format!("reaching {} for its host's shared memory", (limit.who)(leader));
            (limit.gone)(leader, false).unwrap_or_else(|| limit.failed(what, Instant::now(), e))
        };
        let mut stream = SocketAddr::from_abstract_name(&card.name)
            .and_then(|address| undisturbed(|| UnixStream::connect_addr(&address)))
            .map_err(failed)?;
        let mut hello = [0u8; 24];
        hello[..16].copy_from_slice(&card.token);
        hello[16..].copy_from_slice(&(me as u64).to_le_bytes());
        limit.set(&stream).and_then(|()| stream.write_all(&hello)).map_err(failed)?;
        let arena = Arena::take(&mut stream, (me, index), leader, ranks, limit);
        if let Err(why) = &arena {
            // Else the first rank would take this one for dead. One that hears no more has said why.
            let stopped = limit.stop.asked();
            let word = if stopped { words::aborted(me) } else { words::failed(&why.to_string()) };
            let _ = stream.write_all(&word);
        }
        arena
    }

    /// What the first rank of the host shares, once all have it.
    fn take(
        stream: &mut UnixStream,
        (me, index): (usize, usize),
        leader: usize,
        ranks: usize,
        limit: Limit<'_>,
    ) -> Result<Arena> {
        let began = Instant::now();
        let failed = |e| {
            let what = || format!("an answer of {} about its host's shared memory", (limit.who)(leader));
            (limit.gone)(leader, false).unwrap_or_else(|| limit.failed(what, began, e))
        };
        let unreachable = |why| Error::Unreachable { from: me, to: leader, why };
        let heard = |stream: &mut UnixStream| match limit.hear(stream).map_err(failed)? {
            Word::Lost(rank) => Err((limit.gone)(rank, true)
                .unwrap_or_else(|| unreachable(format!("it has lost {}", (limit.who)(rank))))),
            Word::Failed(why) => Err(unreachable(format!("it could not share its host's memory: {why}"))),
            Word::Aborted(rank) => Err(limit.aborted(rank)),
            word => Ok(word),
        };
        let out_of_turn = || failed(io::Error::other("it is another one than belongs here"));
        let Word::File(file, region_len, nonce) = heard(stream)? else { return Err(out_of_turn()) };
        check(&file, region_len, ranks)
            .map_err(|e| Error::system(format!("using the shared memory of {}", (limit.who)(leader)), e))?;
        let arena = Arena::map(&file, region_len, ranks)?;
        if arena.region(0).counter(PROBE_NONCE).load(Ordering::Acquire) != nonce {
            return Err(unreachable("its shared memory maps, but holds other contents".into()));
        }
        publish_probe(&arena.region(index));
        // A leader that hears no more has said why.
        let _ = stream.write_all(&words::go());
        match heard(stream)? {
            Word::Go => Ok(arena),
            _ => Err(out_of_turn()),
        }
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

/// How long a leader that has failed waits for those that have not come yet, to tell them.
const TELLING: Duration = Duration::from_secs(1);

/// Ranks that are named one by one.
const NAMED: usize = 16;

/// What is waited for while these ranks are.
fn joining(ranks: &[usize], limit: &Limit<'_>) -> String {
    let named: Vec<_> = ranks.iter().take(NAMED).map(|&rank| (limit.who)(rank)).collect();
    let more = match ranks.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("joining of {}{more} to the shared memory of their host", named.join(", "))
}

/// The ranks that have not come yet.
fn missing(locals: &[(usize, &ShmCard)], followers: &[(usize, UnixStream)]) -> Vec<usize> {
    let here = |rank: usize| followers.iter().any(|f| f.0 == rank);
    locals.iter().skip(1).map(|l| l.0).filter(|&rank| !here(rank)).collect()
}

/// Tells all others of the host why they wait in vain; those that have yet to come as well, unless this is to end at once.
fn say_why(
    listening: &Listening,
    locals: &[(usize, &ShmCard)],
    limit: Limit<'_>,
    followers: &mut Vec<(usize, UnixStream)>,
    why: &Error,
) {
    let until = limit.deadline.min(Instant::now() + TELLING);
    let limit = Limit { deadline: until, ..limit };
    loop {
        let mut missing = missing(locals, followers);
        missing.retain(|&rank| limit.lost(&[rank]).is_none());
        if missing.is_empty() {
            break;
        }
        match limit.accept(&listening.socket, &missing, String::new) {
            Ok(stream) => {
                followers.extend(introduced(&stream, &listening.card.token).map(|rank| (rank, stream)));
            }
            Err(Error::PeerLost { .. }) => {}
            Err(_) => break,
        }
    }
    let word = match why {
        _ if limit.stop.asked() => words::aborted(locals[0].0),
        Error::PeerLost { rank, .. } => words::lost(*rank),
        Error::Aborted { rank, .. } => words::aborted(*rank),
        other => words::failed(&other.to_string()),
    };
    for (_, stream) in followers {
        let _ = limit.set(stream).and_then(|()| stream.write_all(&word));
    }
}

/// How long ranks of a host wait for each other.
#[derive(Clone, Copy)]
pub(crate) struct Limit<'a> {
    /// Until then at most,
    pub deadline: Instant,
    /// and until this is asked,
    pub stop: &'a Stop,
    /// and until a rank is gone: what to say of it then, or in any case.
    pub gone: &'a dyn Fn(usize, bool) -> Option<Error>,
    /// A rank as people look for it.
    pub who: &'a dyn Fn(usize) -> String,
}

impl Limit<'_> {
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn lost(&self, ranks: &[usize]) -> Option<Error> {
        ranks.iter().find_map(|&rank| (self.gone)(rank, false))
    }

    /// The next word, if it comes in time.
    fn hear(&self, stream: &mut UnixStream) -> io::Result<Word> {
        self.wait(stream, &[])?;
        // From here on it comes at once.
        self.set(stream)?;
        Word::hear(stream)
    }

    /// The error of what was waited for since then.
    fn failed(&self, what: impl Fn() -> String, since: Instant, e: io::Error) -> Error {
        match e.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                Error::Timeout { what: what(), after: since.elapsed() }
            }
            _ => Error::system(what(), e),
        }
    }

    /// That the program of a rank has aborted the start.
    fn aborted(&self, rank: usize) -> Error {
        Error::Aborted { rank, who: (self.who)(rank) }
    }

    /// For what is sent, and received once it has begun to come.
    fn set(&self, stream: &UnixStream) -> io::Result<()> {
        let left = self.left().max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        stream.set_write_timeout(Some(left))
    }

    /// Waits until there is something to receive, or to accept, or one of these ranks is gone.
    fn wait(&self, socket: &impl AsFd, ranks: &[usize]) -> io::Result<()> {
        loop {
            if self.stop.asked() {
                return Err(io::Error::other("ended from this side"));
            }
            let left = self.left();
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let tick = left.min(TICK);
            let timeout = Timespec { tv_sec: tick.as_secs() as i64, tv_nsec: tick.subsec_nanos().into() };
            let ready = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout));
            if ready.is_ok_and(|n| n > 0) || self.lost(ranks).is_some() {
                return Ok(());
            }
        }
    }

    /// The next connection, unless one of these ranks will not make any.
    fn accept(
        &self,
        socket: &UnixListener,
        ranks: &[usize],
        what: impl Fn() -> String,
    ) -> Result<UnixStream> {
        let start = Instant::now();
        loop {
            // Every time: strangers may come faster than they are sent away.
            self.wait(socket, ranks).map_err(|e| self.failed(&what, start, e))?;
            match socket.accept() {
                Ok((stream, _)) => return Ok(stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(Error::system(what(), e)),
            }
            if let Some(lost) = self.lost(ranks) {
                return Err(lost);
            }
        }
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

/// Whether what came is memory for so many ranks: whoever has a rank's token may have any reason to send another.
fn check(file: &OwnedFd, region_len: u64, ranks: usize) -> io::Result<()> {
    let total = region_len
        .checked_mul(ranks as u64)
        .filter(|_| (REGION_MIN..=REGION).contains(&region_len) && region_len.is_multiple_of(REGION_UNIT));
    let wrong = || {
        let limits = format!("{REGION_MIN} to {REGION}, in multiples of {REGION_UNIT}");
        io::Error::other(format!("{region_len} bytes per rank are not possible ({limits})"))
    };
    keeps_length(file, total.ok_or_else(wrong)?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn only_memory_that_is_there_and_stays_is_used() {
        let file = |len| memory_file(len).unwrap();
        assert!(check(&file(2 * REGION_MIN), REGION_MIN, 2).is_ok());
        let refused = |file: &OwnedFd, len, ranks| check(file, len, ranks).unwrap_err().to_string();
        let short = refused(&file(2 * REGION_MIN), REGION_MIN, 3);
        assert!(short.contains("8388608 bytes where 12582912 belong"), "{short}");
        for len in [0, 1, REGION_MIN + 4096, 2 * REGION, u64::MAX, 1 << 63] {
            let e = refused(&file(2 * REGION_MIN), len, 2);
            assert!(e.contains("bytes per rank are not possible"), "{len}: {e}");
        }
        // One that its maker could cut off under those who have mapped it; and one that is cut off in vain.
        let loose = memfd_create(c"loose", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&loose, 2 * REGION_MIN).unwrap();
        let e = refused(&loose, REGION_MIN, 2);
        assert!(e.contains("could be made shorter"), "{e}");
        let ours = file(2 * REGION_MIN);
        assert!(ftruncate(&ours, 4096).is_err());
        assert!(check(&ours, REGION_MIN, 2).is_ok());
    }

    /// How ranks are named here.
    fn who(rank: usize) -> String {
        format!("rank {rank} (here, pid {})", 7 + rank)
    }

    /// That rank has come to the first rank of its host.
    fn come(leader: &ShmCard, rank: u64) -> UnixStream {
        let address = SocketAddr::from_abstract_name(&leader.name).unwrap();
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        stream.write_all(&[&leader.token[..], &rank.to_le_bytes()].concat()).unwrap();
        assert!(matches!(Word::hear(&mut stream), Ok(Word::File(..))));
        stream
    }

    /// Ranks 0 and 2 join, and rank 0 has so long; `one` plays rank 1. What they are told.
    fn joined<T>(patience: Duration, one: impl FnOnce(&ShmCard) -> T) -> [Error; 2] {
        let listening = [0, 1, 2].map(|_| Listening::open().unwrap());
        let locals: Vec<_> = listening.iter().map(|l| &l.card).enumerate().collect();
        let gone = |rank: usize, surely: bool| {
            surely.then(|| Error::PeerLost { rank, host: "here".into(), cause: "it is gone".into() })
        };
        let stop = Stop::default();
        let join = |me: usize, patience| {
            // The closure tells of what this test says, not of what the system does.
            let limit = Limit { deadline: Instant::now() + patience, stop: &stop, gone: &gone, who: &who };
            Arena::join(&listening[me], me, &locals, limit).map(drop).unwrap_err()
        };
        std::thread::scope(|s| {
            let others =
                [(0, patience), (2, Duration::from_secs(60))].map(|(me, p)| s.spawn(move || join(me, p)));
            let _one = one(&listening[0].card);
            others.map(|thread| thread.join().unwrap())
        })
    }

    #[test]
    fn all_are_told_why_they_wait_in_vain() {
        // It comes, and ends before it has mapped.
        let told = joined(Duration::from_secs(60), |leader| drop(come(leader, 1)));
        for error in told {
            assert!(matches!(error, Error::PeerLost { rank: 1, .. }), "{error}");
        }
        // It never comes, or comes and does nothing any more.
        for comes in [false, true] {
            let [leader, follower] = joined(Duration::from_millis(200), |card| comes.then(|| come(card, 1)));
            let said = leader.to_string();
            let named =
                "joining of rank 1 (here, pid 8) to the shared memory of their host did not happen within";
            assert!(matches!(leader, Error::Timeout { .. }) && said.starts_with(named), "{said}");
            let told = format!("no way from rank 2 to rank 0: it could not share its host's memory: {said}");
            assert_eq!(follower.to_string(), told);
        }
    }

    #[test]
    fn who_gives_up_by_itself_is_not_taken_for_dead() {
        let [leader, follower] = joined(Duration::from_secs(60), |leader| {
            come(leader, 1).write_all(&words::failed("no address space is left")).unwrap();
        });
        let why = "rank 1 (here, pid 8) could not join its host's memory: no address space is left";
        for error in [&leader, &follower] {
            assert!(error.to_string().contains(why), "{error}");
        }
        for error in joined(Duration::from_secs(60), |l| come(l, 1).write_all(&words::aborted(1)).unwrap()) {
            assert!(matches!(error, Error::Aborted { rank: 1, .. }), "{error}");
            assert_eq!(error.to_string(), "rank 1 (here, pid 8) aborted the start; start again");
        }
    }

    #[test]
    fn an_abort_is_told_as_one() {
        for aborts in [0, 1] {
            let listening = [0, 1, 2].map(|_| Listening::open().unwrap());
            let locals: Vec<_> = listening.iter().map(|l| &l.card).enumerate().collect();
            let (stop, others) = (Stop::default(), Stop::default());
            let gone = |_: usize, _: bool| -> Option<Error> { None };
            let (listening, locals) = (&listening, &locals);
            let join = |me: usize| {
                let deadline = Instant::now() + Duration::from_secs(60);
                let stop = if me == aborts { &stop } else { &others };
                let limit = Limit { deadline, stop, gone: &gone, who: &who };
                Arena::join(&listening[me], me, locals, limit).map(drop).unwrap_err()
            };
            std::thread::scope(|s| {
                let zero = s.spawn(|| join(0));
                // Played here, so that it is there when the first rank ends.
                let mut two = come(&listening[0].card, 2);
                let one = (aborts == 1).then(|| s.spawn(|| join(1)));
                stop.ask();
                // It may have been told by then.
                let _ = two.write_all(&words::go());
                assert!(matches!(Word::hear(&mut two), Ok(Word::Aborted(rank)) if rank == aborts));
                zero.join().unwrap();
                one.map(|thread| thread.join().unwrap());
            });
        }
    }

    #[test]
    fn of_a_first_rank_that_does_nothing_the_others_tell_host_and_process() {
        let listening = [0, 1].map(|_| Listening::open().unwrap());
        let locals: Vec<_> = listening.iter().map(|l| &l.card).enumerate().collect();
        let (stop, gone) = (Stop::default(), |_: usize, _: bool| -> Option<Error> { None });
        let limit = Limit { deadline: Instant::now(), stop: &stop, gone: &gone, who: &who };
        let told = Arena::join(&listening[1], 1, &locals, limit).map(drop).unwrap_err().to_string();
        assert!(
            told.starts_with("an answer of rank 0 (here, pid 7) about its host's shared memory did not"),
            "{told}"
        );
    }

    #[test]
    fn the_token_is_not_shown() {
        let card = Listening::open().unwrap().card;
        let shown = format!("{card:?}{:?}", card.token.map(|_| 0));
        assert!(!shown.contains(&format!("{:?}", &card.token[..4]).replace(['[', ']'], "")), "{shown}");
    }
}
