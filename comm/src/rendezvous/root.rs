//! The side that listens: gathers the ranks' hellos and tells everyone the outcome.
//!
//! Every connection is greeted by a thread of its own with a time limit, so that strangers, silent or slow, hold up
//! nobody; when too many are unproven at once, the oldest goes. The roll itself is pure ([`super::roll`]).

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nd_transport::secure::{self, Secret, Session};
use nd_transport::strangers::{Strangers, more};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::CONTEXT;
use super::roll::{Failure, Hello, Roll, place};
use super::stream::{Listener, Stream};
use super::wire::{self, ABORTED, Verdict};

/// How long a connection may take to prove that it is a rank.
const GREETING: Duration = Duration::from_secs(10);
/// Connections that are accepted before all else is looked at again: strangers may come faster than they are sent away.
const TURN: usize = 64;
/// How many may be at it at once, fewer where few files may be open; a rank that is pushed out tries again.
const UNPROVEN_MAX: usize = 256;
/// The same, however few files may be open.
const UNPROVEN_MIN: usize = 8;
/// Files that a process has open besides those of the ranks.
const OTHERS: u64 = 40;
/// How often to look whether a rank that has joined is still there, and whether to stop.
const TICK: Duration = Duration::from_millis(100);
/// From so long on it is said that this process, which looks every [`TICK`], did not run.
const IDLE: Duration = Duration::from_secs(1);
/// How long ranks that come late still hear why the start failed.
const LINGER: Duration = Duration::from_secs(1);
/// The same where a rank has said that it cannot take part, which it does before most have come: hosts do not begin at the
/// same moment.
const LINGER_LONG: Duration = super::member::TELLING_WHY;
/// How long telling the outcome to one rank may take.
const TELLING: Duration = Duration::from_secs(10);
/// Handshake and hello need little.
const STACK: usize = 256 << 10;

/// All cards, and the secret of the new communicator.
pub type Outcome = Result<(Vec<Vec<u8>>, Secret), Failure>;

/// Tells a root that runs in another thread to give up.
#[derive(Debug, Clone)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    wake: Arc<UnixStream>,
}

impl Stop {
    /// Asks; the root ends within moments.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        ring(&self.wake);
    }
}

/// Listens, and gathers one job.
pub struct Root {
    listener: Listener,
    secret: Secret,
    inbox: UnixStream,
    stop: Stop,
}

/// A rank, or who was refused and why.
type Arrival = Result<(Session<Stream>, Hello), (String, String)>;

impl Root {
    /// Whoever proves to know `secret` may join.
    pub fn new(listener: Listener, secret: Secret) -> io::Result<Root> {
        let (inbox, wake) = UnixStream::pair()?;
        inbox.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let stop = Stop { asked: Arc::new(AtomicBool::new(false)), wake: Arc::new(wake) };
        Ok(Root { listener, secret, inbox, stop })
    }

    /// To end [`Root::run`] early.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Gathers the job and tells every rank the outcome. `own` is this process's rank, if it is one; `deadline`
    /// starts with the first rank if it is not given. A rank whose patience ends sooner sets the deadline for all.
    pub fn run(mut self, own: Option<Hello>, deadline: Option<Instant>) -> Outcome {
        let mut job = Job::new(own.as_ref(), deadline);
        let given_up = match &own {
            Some(own) => Failure {
                problem: format!("rank {} ({}) aborted the start", own.rank, place(own)),
                remedy: "start again".into(),
            },
            None => Failure {
                problem: "the process that made the UniqueId gave it up before all ranks had joined".into(),
                remedy: "keep the UniqueId until then".into(),
            },
        };
        let itself = match &own {
            Some(own) => format!("rank {} ({}) itself, which gathers them,", own.rank, place(own)),
            None => "the process that made the UniqueId".into(),
        };
        if let Some(own) = own {
            make_room(own.world_size)?;
            job.admit(own);
        }
        let (arrivals, arrived) = mpsc::channel();
        let mut greeters = Greeters::default();
        let (mut looked, mut idle) = (Instant::now(), None);
        loop {
            if job.roll.complete() && job.failed.is_none() {
                break;
            }
            let now = Instant::now();
            match &job.failed {
                Some((_, until)) if now >= *until || job.all_know() => break,
                None if job.deadline.is_some_and(|d| now >= d) => {
                    job.overdue(idle.as_deref(), Duration::ZERO);
                    continue;
                }
                None if self.stop.asked.load(Ordering::Acquire) => {
                    job.fail(given_up.clone(), Duration::ZERO);
                    continue;
                }
                _ => {}
            }
            self.sleep(job.deadline);
            let slept = std::mem::replace(&mut looked, Instant::now()).elapsed();
            if slept >= IDLE {
                let took = super::seconds(slept);
                idle = Some(format!(
                    "{itself} did not run for {took} meanwhile: it was stopped, or had no core"
                ));
            }
            self.accept(&mut job, &mut greeters, &arrivals);
            while let Ok(arrival) = arrived.try_recv() {
                job.arrive(arrival);
            }
            match job.lost() {
                None => {}
                // They have waited as long as they could.
                Some(_)
                    if slept >= IDLE && job.deadline.is_some_and(|d| looked >= d) && job.failed.is_none() =>
                {
                    job.overdue(idle.as_deref(), LINGER);
                }
                Some(lost) => job.lose(lost),
            }
            greeters.reap();
        }
        // From here on, whoever connects belongs to another job.
        drop(self.listener);
        greeters.end();
        job.last_word();
        if let Some((failure, _)) = job.failed {
            return Err(failure);
        }
        let sessions = job.sessions;
        let cards = job.roll.into_cards().unwrap_or_default();
        let secret = Secret::random();
        let verdict = Verdict::complete(&secret, cards);
        tell(sessions, &wire::encode_verdict(&verdict));
        match verdict {
            Verdict::Complete { cards, .. } => Ok((cards, secret)),
            Verdict::Failed(failure) => Err(failure),
        }
    }

    /// Until something happens, or the tick.
    fn sleep(&mut self, deadline: Option<Instant>) {
        let left = deadline.map_or(TICK, |d| d.saturating_duration_since(Instant::now()).min(TICK));
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.as_nanos().min(999_999_999) as i64 };
        let mut fds = [PollFd::new(&self.inbox, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&timeout));
        while self.inbox.read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
    }

    fn accept(&self, job: &mut Job, greeters: &mut Greeters, arrivals: &mpsc::Sender<Arrival>) {
        for _ in 0..TURN {
            let limit = Instant::now() + GREETING;
            let (stream, from) = match self.listener.accept(limit) {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    job.refuse("a local process", &e.to_string());
                    continue;
                }
                Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    if greeters.make_room() {
                        continue;
                    }
                    let problem =
                        format!("no more connections can be accepted after {}: {e}", job.sessions.len());
                    job.fail(
                        Failure { problem, remedy: "raise the limit on open files (`ulimit -n`)".into() },
                        Duration::ZERO,
                    );
                    return;
                }
                // The connection broke before it was accepted: accept(2) says to go on.
                Err(_) => continue,
            };
            let (secret, arrivals, wake) = (self.secret.clone(), arrivals.clone(), self.stop.wake.clone());
            let theirs = stream.clone();
            let greeted = Arc::new(AtomicBool::new(false));
            let done = greeted.clone();
            let greeter =
                thread::Builder::new().name("nd-greeter".into()).stack_size(STACK).spawn(move || {
                    let arrival = greet(theirs, &secret, &from);
                    done.store(true, Ordering::Release);
                    let _ = arrivals.send(arrival);
                    ring(&wake);
                });
            match greeter {
                Ok(thread) => greeters.add(Greeter { stream, greeted, thread }, job.room()),
                Err(e) => job.refuse("a connection", &format!("no thread to greet it: {e}")),
            }
        }
    }
}

/// Handshake and hello.
fn greet(stream: Stream, secret: &Secret, from: &str) -> Arrival {
    let refused = |e: nd_transport::Error| match e {
        nd_transport::Error::Refused { why, .. } => (from.to_owned(), why),
        other => (from.to_owned(), other.to_string()),
    };
    let mut session = secure::respond(stream, secret, CONTEXT).map_err(refused)?;
    let hello = session.receive(wire::HELLO_MAX).map_err(refused)?;
    let hello =
        wire::decode_hello(&hello).ok_or_else(|| (from.to_owned(), "its hello is malformed".to_owned()))?;
    Ok((session, hello))
}

/// One start as the root sees it.
struct Job {
    roll: Roll,
    sessions: Vec<(usize, Session<Stream>)>,
    started: Instant,
    deadline: Option<Instant>,
    /// A few of those who were refused, for the message if not all ranks come.
    refused: Vec<String>,
    strangers: Strangers,
    failed: Option<(Failure, Instant)>,
    /// Ranks that know why it failed; two processes may have said that they are one.
    told: BTreeSet<usize>,
}

impl Job {
    fn new(own: Option<&Hello>, deadline: Option<Instant>) -> Job {
        Job {
            roll: Roll::new(own.map(|o| o.world_size)),
            sessions: Vec::new(),
            started: Instant::now(),
            deadline,
            refused: Vec::new(),
            strangers: Strangers::default(),
            failed: None,
            told: own.map(|own| own.rank).into_iter().collect(),
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        let (session, hello) = match arrival {
            Ok(arrived) => arrived,
            Err((from, why)) => return self.refuse(&from, &why),
        };
        if let Some((failure, _)) = &self.failed {
            let verdict = wire::encode_verdict(&Verdict::Failed(failure.clone()));
            self.told.extend(tell(vec![(hello.rank, session)], &verdict));
            return;
        }
        let now = Instant::now();
        if self.roll.world_size().is_none() {
            self.started = now;
            if let Err(failure) = make_room(hello.world_size) {
                self.sessions.push((hello.rank, session));
                return self.fail(failure, LINGER);
            }
        }
        let theirs = now + Duration::from_millis(hello.patience_ms.min(1 << 40));
        self.deadline = Some(self.deadline.map_or(theirs, |d| d.min(theirs)));
        self.sessions.push((hello.rank, session));
        self.admit(hello);
    }

    fn admit(&mut self, hello: Hello) {
        let linger = if hello.card.is_err() { LINGER_LONG } else { LINGER };
        if let Err(failure) = self.roll.admit(hello) {
            self.fail(failure, linger);
        }
    }

    /// Remembers a few, and logs one for each source now and then; the rest costs nothing.
    fn refuse(&mut self, from: &str, why: &str) {
        const SHOWN: usize = 5;
        let source = from.rsplit_once(':').map_or("this host", |(host, _port)| host);
        if let Some(quiet) = self.strangers.refused(source, Instant::now()) {
            tracing::warn!("rendezvous: refused {from}: {why}{}", more(quiet));
        }
        match self.refused.len() {
            n if n < SHOWN => self.refused.push(format!("{from}: {why}")),
            SHOWN => self.refused.push("and more".into()),
            _ => {}
        }
    }

    /// Those who were refused without a line.
    fn last_word(&mut self) {
        for (source, count) in self.strangers.rest() {
            tracing::warn!("rendezvous: refused {count} more connections from {source}");
        }
    }

    /// How many may be unproven at once: what the ranks' own connections leave of the limit on open files.
    fn room(&self) -> usize {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let left = limit.saturating_sub(self.roll.world_size().unwrap_or(0) as u64 + OTHERS);
        usize::try_from(left).unwrap_or(UNPROVEN_MAX).clamp(UNPROVEN_MIN, UNPROVEN_MAX)
    }

    /// Whether nobody is left to be told why it failed.
    fn all_know(&self) -> bool {
        let ranks = self.roll.world_size().unwrap_or(0);
        self.told.range(..ranks).count() == ranks
    }

    /// Tells all who have joined; those who come within `linger` are told as well.
    fn fail(&mut self, failure: Failure, linger: Duration) {
        let verdict = wire::encode_verdict(&Verdict::Failed(failure.clone()));
        self.told.extend(tell(std::mem::take(&mut self.sessions), &verdict));
        self.failed = Some((failure, Instant::now() + linger));
    }

    /// A rank that waits says nothing: if its connection can be read, it has ended, or it says that it aborts.
    /// Gives the place of its session.
    fn lost(&self) -> Option<usize> {
        let watched = PollFlags::IN | PollFlags::RDHUP;
        let mut fds: Vec<PollFd<'_>> =
            self.sessions.iter().map(|(_, s)| PollFd::new(s.get_ref(), watched)).collect();
        let _ = poll(&mut fds, Some(&Timespec::default()));
        fds.iter().position(|f| !f.revents().is_empty())
    }

    fn lose(&mut self, place: usize) {
        let (rank, mut session) = self.sessions.swap_remove(place);
        session.get_ref().set_deadline(Instant::now() + TICK);
        let aborted = session.receive(ABORTED.len()).is_ok_and(|said| said == ABORTED);
        let failure = if aborted { self.roll.aborted(rank) } else { self.roll.left(rank) };
        self.fail(failure, LINGER);
    }

    /// Time is up; `idle` as in [`Roll::overdue`].
    fn overdue(&mut self, idle: Option<&str>, linger: Duration) {
        let within = self.deadline.map_or(Duration::ZERO, |d| d.saturating_duration_since(self.started));
        let failure = self.roll.overdue(&super::seconds(within), &self.refused, idle);
        self.fail(failure, linger);
    }
}

/// Sends the outcome to every session; a few threads, so that a stuck rank does not hold up many. Returns the ranks
/// that heard it.
fn tell(mut sessions: Vec<(usize, Session<Stream>)>, verdict: &[u8]) -> Vec<usize> {
    let say = |sessions: &mut [(usize, Session<Stream>)]| {
        let mut heard = Vec::new();
        for (rank, session) in sessions {
            session.get_ref().set_deadline(Instant::now() + TELLING);
            match session.send(verdict) {
                Ok(()) => heard.push(*rank),
                Err(e) => tracing::warn!("rendezvous: rank {rank} did not hear the outcome: {e}"),
            }
        }
        heard
    };
    if sessions.len() < 16 {
        return say(&mut sessions);
    }
    let share = sessions.len().div_ceil(4);
    thread::scope(|scope| {
        let tellers: Vec<_> = sessions
            .chunks_mut(share)
            .map(|share| thread::Builder::new().name("nd-teller".into()).spawn_scoped(scope, || say(share)))
            .collect();
        tellers.into_iter().flatten().flat_map(|t| t.join().unwrap_or_default()).collect()
    })
}

/// A thread that greets one connection.
struct Greeter {
    stream: Stream,
    /// The connection is the roll's now: it must not be ended here.
    greeted: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Greeter {
    fn end(self) {
        if !self.greeted.load(Ordering::Acquire) {
            self.stream.shut();
        }
        let _ = self.thread.join();
    }
}

/// Threads that greet, oldest first.
#[derive(Default)]
struct Greeters {
    all: VecDeque<Greeter>,
}

impl Greeters {
    fn add(&mut self, greeter: Greeter, room: usize) {
        self.all.push_back(greeter);
        self.reap();
        while self.all.len() > room && self.make_room() {}
    }

    /// Sends the oldest away; false if there is none.
    fn make_room(&mut self) -> bool {
        self.all.pop_front().map(Greeter::end).is_some()
    }

    /// Joins those that are through: a thread that was merely forgotten may still be there for a while.
    fn reap(&mut self) {
        for _ in 0..self.all.len() {
            match self.all.pop_front() {
                Some(greeter) if greeter.thread.is_finished() => greeter.end(),
                Some(greeter) => self.all.push_back(greeter),
                None => {}
            }
        }
    }

    fn end(self) {
        self.all.into_iter().for_each(Greeter::end);
    }
}

/// One connection a rank: raises the soft limit on open files if that is needed and allowed.
fn make_room(world_size: usize) -> Result<(), Failure> {
    let needed = world_size as u64 + OTHERS;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|c| c >= needed) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(maximum.map_or(needed, |m| m.min(needed))), maximum };
    if maximum.is_none_or(|m| m >= needed) && setrlimit(Resource::Nofile, raised).is_ok() {
        return Ok(());
    }
    Err(Failure {
        problem: format!(
            "a start of {world_size} ranks needs {needed} open files in the process of rank 0, the limit is {}",
            current.unwrap_or(0)
        ),
        remedy: "raise it there (`ulimit -n`)".into(),
    })
}

fn ring(wake: &UnixStream) {
    // Full: then it is awake already.
    let _ = (&mut &*wake).write(&[1]);
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    /// However many wait, the deadline is looked at in between.
    #[test]
    fn strangers_are_accepted_in_turns() {
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = listener.port().unwrap();
        let root = Root::new(listener, Secret::random()).unwrap();
        let strangers: Vec<_> =
            (0..TURN + 10).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        let (mut job, mut greeters) = (Job::new(None, None), Greeters::default());
        let (arrivals, _arrived) = mpsc::channel();
        root.accept(&mut job, &mut greeters, &arrivals);
        assert_eq!(greeters.all.len(), TURN);
        root.accept(&mut job, &mut greeters, &arrivals);
        assert_eq!(greeters.all.len(), strangers.len());
        greeters.end();
    }
}
