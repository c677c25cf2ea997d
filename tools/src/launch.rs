//! Starting ranks on this host as child processes, and ending them together.

mod child;
mod given;
mod lines;
mod together;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nd_transport::process_is_stopped;
use nd_transport::secure::Secret;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, kill_process_group, pidfd_open};
use rustix::thread::{CpuSet, sched_getaffinity};

use child::Watchdog;
pub use given::{given, settings};
use lines::{Lines, To};
pub use together::Failure;

/// What to start.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program: a path, or a name to look for in `PATH`.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// How many ranks to start here.
    pub ranks: usize,
    /// How many hosts start as many.
    pub nodes: usize,
    /// Which of them this is.
    pub node_rank: usize,
    /// Where rank 0 listens; none (only with one node): a free port on loopback.
    pub rendezvous: Option<(String, u16)>,
    /// Variables to set besides those of the launch.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether the first rank here reads the launcher's standard input, unless that is a terminal.
    pub input: bool,
    /// What happens to the output.
    pub output: Output,
    /// Whether each rank stays on cores of its own.
    pub bind: Bind,
    /// How long a rank may take to end after SIGTERM, before SIGKILL.
    pub grace: Duration,
}

/// What happens to the ranks' output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Whole lines with `[rank] ` in front; what comes on stdout goes to stdout, stderr to stderr.
    Prefixed,
    /// The ranks write where the launcher writes.
    Inherited,
}

/// Whether each rank stays on cores of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bind {
    /// No.
    None,
    /// Yes, if there are at least as many cores as ranks.
    Core,
}

impl Plan {
    /// `ranks` ranks of `program` on this host.
    pub fn new(program: impl Into<OsString>, ranks: usize) -> Plan {
        Plan {
            program: program.into(),
            arguments: Vec::new(),
            ranks,
            nodes: 1,
            node_rank: 0,
            rendezvous: None,
            environment: Vec::new(),
            input: true,
            output: Output::Prefixed,
            bind: Bind::None,
            grace: Duration::from_secs(5),
        }
    }

    /// All ranks on all hosts.
    pub fn world_size(&self) -> usize {
        self.ranks * self.nodes
    }
}

/// Why ranks could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program cannot be started.
    #[error("rank {rank}: cannot start {program}: {source}; {}", remedy(.source))]
    Program {
        /// For which rank.
        rank: usize,
        /// Which program.
        program: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Several hosts, but nothing that proves that ranks belong together.
    #[error(
        "no secret is set for {nodes} nodes; set ND_SECRET or ND_SECRET_FILE to the same on all of them (`openssl rand -hex 32` makes one), or ND_AUTH=none if everyone who reaches the port may join"
    )]
    NoSecret {
        /// How many hosts.
        nodes: usize,
    },
    /// The plan does not fit together.
    #[error("{problem}; {remedy}")]
    Plan {
        /// What is wrong.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// The operating system refused something.
    #[error("cannot {what}: {source}; check the limits of this process (`ulimit -a`)")]
    System {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

fn remedy(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::NotFound => "check its name, and write ./NAME for a file of this directory",
        io::ErrorKind::PermissionDenied => "make it executable (`chmod +x`)",
        io::ErrorKind::WouldBlock => "raise the limit on processes (`ulimit -u`)",
        _ => "try to run it by hand",
    }
}

/// How a rank ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Which rank.
    pub rank: usize,
    /// Which process it was.
    pub pid: u32,
    /// How it ended.
    pub status: ExitStatus,
    /// How long it ran.
    pub after: Duration,
}

impl Ended {
    /// As a shell reports it: the exit code, or 128 + the signal.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// "exit code 3", "SIGSEGV (signal 11)".
    pub fn why(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => {
                let dump = if self.status.core_dumped() { ", core dumped" } else { "" };
                format!("{} (signal {signal}{dump})", signal_name(signal))
            }
            (None, None) => "unknown".into(),
        }
    }
}

/// What woke [`Group::wait`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A rank ended.
    Ended(Ended),
    /// `other` has something to read.
    Other,
    /// Time is up.
    Time,
}

/// Ranks that run. Dropping it kills them, and all they started.
#[derive(Debug)]
pub struct Group {
    running: Vec<Running>,
    /// Not yet reported; the next one last.
    ended: Vec<Ended>,
    groups: Vec<Pid>,
    lines: Option<Lines>,
    started: Instant,
    /// Where the ranks meet.
    pub rendezvous: (String, u16),
    /// Dropped last: it stands by until all are gone.
    _watchdog: Watchdog,
}

/// Ranks that are stopped, and their processes. Shown as the end of a sentence; empty if there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stopped(pub Vec<(usize, u32)>);

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|(rank, pid)| write!(f, "; rank {rank} (pid {pid}) is stopped, as by SIGSTOP"))
    }
}

#[derive(Debug)]
struct Running {
    rank: usize,
    child: Child,
    pidfd: OwnedFd,
}

impl Group {
    /// Starts all ranks of the plan; `restart` counts from 0 and is passed on as `ND_RESTART_COUNT`. Call it from a
    /// thread that lives as long as the ranks (see PR_SET_PDEATHSIG), such as the main thread.
    ///
    /// # Errors
    /// Nothing runs then.
    pub fn spawn(plan: &Plan, restart: usize) -> Result<Group, Error> {
        let wrong = |problem: String, remedy: &str| Err(Error::Plan { problem, remedy: remedy.into() });
        if plan.ranks == 0 || plan.nodes == 0 {
            return wrong(format!("{} ranks on {} nodes", plan.ranks, plan.nodes), "start at least one rank");
        }
        if plan.node_rank >= plan.nodes {
            return wrong(
                format!("node rank {} is not below the number of nodes, {}", plan.node_rank, plan.nodes),
                "node ranks count from 0",
            );
        }
        let (host, port) = match &plan.rendezvous {
            Some(given) => given.clone(),
            None if plan.nodes == 1 => ("127.0.0.1".to_owned(), free_port()?),
            None => {
                return wrong(
                    format!("{} nodes need a place to meet", plan.nodes),
                    "pass --rdzv HOST_OF_NODE_0:PORT",
                );
            }
        };
        let secret = secret(plan)?;
        let cpus = cpus(plan)?;
        let mut group = Group {
            running: Vec::new(),
            ended: Vec::new(),
            groups: Vec::new(),
            lines: Some(Lines::default()),
            started: Instant::now(),
            rendezvous: (host, port),
            _watchdog: Watchdog::over(&[]),
        };
        for local in 0..plan.ranks {
            let rank = plan.node_rank * plan.ranks + local;
            let mut command = Command::new(&plan.program);
            command
                .args(&plan.arguments)
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", plan.world_size().to_string())
                .env("LOCAL_RANK", local.to_string())
                .env("LOCAL_WORLD_SIZE", plan.ranks.to_string())
                .env("MASTER_ADDR", &group.rendezvous.0)
                .env("MASTER_PORT", port.to_string())
                .env("ND_RESTART_COUNT", restart.to_string())
                // An outer torchrun's; would move the port (see nd_comm::launch).
                .env_remove("TORCHELASTIC_USE_AGENT_STORE")
                .envs(plan.environment.iter().map(|(n, v)| (n, v)));
            if let Some(secret) = &secret {
                command.env("ND_SECRET", secret.reveal_hex());
            }
            if local > 0 || !plan.input || io::IsTerminal::is_terminal(&io::stdin()) {
                // Only one can read it, and a process group in the background may not read a terminal.
                command.stdin(Stdio::null());
            }
            if plan.output == Output::Prefixed {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            child::prepare(&mut command, cpus.get(local).copied());
            let child = command.spawn().map_err(|source| Error::Program {
                rank,
                program: plan.program.to_string_lossy().into_owned(),
                source,
            })?;
            group.adopt(rank, child)?;
        }
        group._watchdog = Watchdog::over(&group.groups);
        group.pass_lines()?;
        Ok(group)
    }

    /// Only once all are started: every thread makes the next fork slower.
    fn pass_lines(&mut self) -> Result<(), Error> {
        let refused = |source| Error::System { what: "start a thread".into(), source };
        for Running { rank, child, .. } in &mut self.running {
            let Some(lines) = &mut self.lines else { break };
            if let Some(out) = child.stdout.take() {
                lines.pass(*rank, out, To::Out).map_err(refused)?;
            }
            if let Some(err) = child.stderr.take() {
                lines.pass(*rank, err, To::Err).map_err(refused)?;
            }
        }
        Ok(())
    }

    fn adopt(&mut self, rank: usize, mut child: Child) -> Result<(), Error> {
        let refused = |what: &str| {
            let what = what.to_owned();
            move |source: io::Error| Error::System { what, source }
        };
        let pid = Pid::from_child(&child);
        self.groups.push(pid);
        let pidfd = pidfd_open(pid, PidfdFlags::empty());
        let pidfd = match pidfd {
            Ok(pidfd) => pidfd,
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(refused("watch a rank")(e.into()));
            }
        };
        self.running.push(Running { rank, child, pidfd });
        Ok(())
    }

    /// Waits until a rank ends, `other` can be read, or `until` has passed. With nothing running and no `other`, the
    /// answer is `Time` at once.
    pub fn wait(&mut self, other: Option<BorrowedFd<'_>>, until: Option<Instant>) -> Event {
        loop {
            if self.ended.is_empty() {
                self.reap();
            }
            if let Some(ended) = self.ended.pop() {
                return Event::Ended(ended);
            }
            if self.running.is_empty() && other.is_none() {
                return Event::Time;
            }
            let left = until.map(|u| u.saturating_duration_since(Instant::now()));
            let timeout =
                left.map(|l| Timespec { tv_sec: l.as_secs() as i64, tv_nsec: l.subsec_nanos().into() });
            let mut fds: Vec<PollFd<'_>> = self
                .running
                .iter()
                .map(|r| PollFd::from_borrowed_fd(r.pidfd.as_fd(), PollFlags::IN))
                .collect();
            let ranks = fds.len();
            fds.extend(other.map(|o| PollFd::from_borrowed_fd(o, PollFlags::IN)));
            let _ = poll(&mut fds, timeout.as_ref());
            if fds[ranks..].iter().any(|f| !f.revents().is_empty()) {
                return Event::Other;
            }
            if left.is_some_and(|l| l.is_zero()) && fds.iter().all(|f| f.revents().is_empty()) {
                return Event::Time;
            }
        }
    }

    /// Takes note of all ranks that have ended. Of several at once, one that a signal ended counts as the first, then
    /// one that failed: the others often fail because of it.
    fn reap(&mut self) {
        let after = self.started.elapsed();
        for mut rank in std::mem::take(&mut self.running) {
            match rank.child.try_wait() {
                Ok(Some(status)) => {
                    self.ended.push(Ended { rank: rank.rank, pid: rank.child.id(), status, after })
                }
                _ => self.running.push(rank),
            }
        }
        self.ended.sort_by_key(|e| (e.status.signal().is_some(), !e.status.success()));
    }

    /// Ranks that are stopped, as by SIGSTOP.
    pub fn stopped(&self) -> Stopped {
        let all = self.running.iter().map(|running| (running.rank, running.child.id()));
        Stopped(all.filter(|(_, pid)| process_is_stopped(*pid)).collect())
    }

    /// How many ranks [`Group::wait`] has not yet reported as ended.
    pub fn running(&self) -> usize {
        self.running.len() + self.ended.len()
    }

    /// Sends a signal to every rank that runs, and to what it started.
    pub fn signal(&self, signal: Signal) {
        for running in &self.running {
            let _ = kill_process_group(Pid::from_child(&running.child), signal);
        }
    }

    /// Stops every rank and this process, as Ctrl-Z asks for, until this process is told to go on; so do they then.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let _ = kill_process(getpid(), Signal::STOP);
        self.signal(Signal::CONT);
    }

    /// Ends all: SIGTERM, and SIGKILL to those that still run after `grace`. Returns how they ended.
    pub fn end(&mut self, grace: Duration) -> Vec<Ended> {
        let mut ended = Vec::new();
        self.signal(Signal::TERM);
        // A stopped process hears nothing but SIGKILL.
        self.signal(Signal::CONT);
        let until = Instant::now() + grace;
        while self.running() > 0 {
            match self.wait(None, Some(until)) {
                Event::Ended(e) => ended.push(e),
                _ => break,
            }
        }
        self.signal(Signal::KILL);
        while let Event::Ended(e) = self.wait(None, None) {
            ended.push(e);
        }
        ended
    }
}

impl Group {
    /// Ends what is left of the ranks and waits until all that they said is passed on.
    ///
    /// # Errors
    /// When some of it could not be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.close()
    }

    fn close(&mut self) -> io::Result<()> {
        // Also what ranks left behind when they ended: while a group has members, its number is not given again.
        for group in &self.groups {
            let _ = kill_process_group(*group, Signal::KILL);
        }
        for running in &mut self.running {
            let _ = running.child.wait();
        }
        self.lines.take().map_or(Ok(()), |lines| lines.finish(Duration::from_secs(2)))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

/// "SIGTERM" and so on.
pub fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// A port that nobody listens on, below those that the system gives out by itself (32768 and up on Linux,
/// ip_local_port_range), so that it stays free until rank 0 takes it.
fn free_port() -> Result<u16, Error> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..100 {
        let random = Secret::random();
        let number = u16::from_le_bytes([random.as_bytes()[0], random.as_bytes()[1]]);
        match TcpListener::bind(("127.0.0.1", 20_000 + number % 12_000)) {
            Ok(listener) => {
                return listener
                    .local_addr()
                    .map(|a| a.port())
                    .map_err(|source| Error::System { what: "ask for a port".into(), source });
            }
            Err(e) => last = e,
        }
    }
    Err(Error::System { what: "find a free port".into(), source: last })
}

/// One for this start, unless the user has set one.
fn secret(plan: &Plan) -> Result<Option<Secret>, Error> {
    let set = |name: &str| {
        let given = plan.environment.iter().any(|(n, _)| n == name);
        given || std::env::var_os(name).is_some_and(|v| !v.is_empty())
    };
    let none = std::env::var("ND_AUTH").is_ok_and(|v| v.eq_ignore_ascii_case("none"));
    match plan.nodes {
        _ if set("ND_SECRET") || set("ND_SECRET_FILE") => Ok(None),
        1 => Ok(Some(Secret::random())),
        _ if none => Ok(None),
        nodes => Err(Error::NoSecret { nodes }),
    }
}

/// For each rank its share of the cores that this process may use; empty: no binding.
fn cpus(plan: &Plan) -> Result<Vec<CpuSet>, Error> {
    if plan.bind == Bind::None {
        return Ok(Vec::new());
    }
    let ours = sched_getaffinity(None)
        .map_err(|e| Error::System { what: "ask for the cores".into(), source: e.into() })?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|c| ours.is_set(*c)).collect();
    if cores.len() < plan.ranks {
        tracing::warn!("{} cores for {} ranks: ranks are not bound", cores.len(), plan.ranks);
        return Ok(Vec::new());
    }
    Ok(shares(&cores, plan.ranks)
        .map(|share| {
            let mut set = CpuSet::new();
            share.iter().for_each(|c| set.set(*c));
            set
        })
        .collect())
}

/// Equal, neighbouring shares.
fn shares(cores: &[usize], ranks: usize) -> impl Iterator<Item = &[usize]> {
    let each = cores.len() / ranks;
    cores.chunks(each.max(1)).take(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_shared() {
        let all: Vec<_> = shares(&[0, 1, 2, 3, 8], 2).collect();
        assert_eq!(all, [&[0, 1][..], &[2, 3][..]]);
    }

    #[test]
    fn ends_by_signal_and_by_code() {
        let mut plan = Plan::new("/bin/sh", 2);
        plan.arguments = vec!["-c".into(), "test $RANK = 0 && exit 3; kill -9 $$".into()];
        let mut group = Group::spawn(&plan, 0).unwrap();
        let mut ended: Vec<Ended> = Vec::new();
        while let Event::Ended(e) = group.wait(None, None) {
            ended.push(e);
        }
        ended.sort_by_key(|e| e.rank);
        assert_eq!((ended[0].code(), ended[0].why().as_str()), (3, "exit code 3"));
        assert_eq!((ended[1].code(), ended[1].why().as_str()), (137, "SIGKILL (signal 9)"));
    }

    #[test]
    fn dropping_a_group_leaves_nothing() {
        let mut plan = Plan::new("/bin/sh", 2);
        plan.arguments = vec!["-c".into(), "sleep 1000 & wait".into()];
        let group = Group::spawn(&plan, 0).unwrap();
        let groups = group.groups.clone();
        drop(group);
        // The shells' children are dead now, but last until their new parent has reaped them.
        let until = Instant::now() + Duration::from_secs(20);
        while groups.iter().any(|g| rustix::process::test_kill_process_group(*g).is_ok()) {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
