//! One case: ranks are started, one is struck, and what the others say and leave behind is looked at.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::case::{Case, Fault, Joined, named};
use super::rank::{ROLE, now};
use crate::hosts::Hosts;

/// How long the start of a world may take, and ranks may take to end beyond what they wait for, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// `ND_START_TIMEOUT` where a rank is lost during the start.
const START: Duration = Duration::from_secs(5);
/// How often it is looked what ranks have said.
const LOOK: Duration = Duration::from_millis(1);

/// Where worlds are made.
#[derive(Debug)]
pub struct Place {
    /// This program.
    pub program: PathBuf,
    /// For everything that is written.
    pub folder: PathBuf,
    /// Two of them, where this process may make hosts.
    pub hosts: Option<Hosts>,
}

/// What came of a case.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Of each rank that had to learn of it: how long that took.
    pub learnt: Vec<Duration>,
    /// Of these, how many named the right rank.
    pub right: usize,
    /// How many there were.
    pub survivors: usize,
    /// How long aborting took.
    pub abort: Option<Duration>,
    /// How long the slowest drop took.
    pub dropped: Duration,
    /// What is not as it must be.
    pub problems: Vec<String>,
}

/// The ranks of a world; killed when dropped.
struct World {
    ranks: Vec<(Child, PathBuf)>,
}

impl Drop for World {
    fn drop(&mut self) {
        for (rank, _) in &mut self.ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

impl World {
    fn said(&self, rank: usize) -> String {
        String::from_utf8_lossy(&fs::read(&self.ranks[rank].1).unwrap_or_default()).into_owned()
    }

    fn signal(&self, rank: usize, signal: Signal) -> io::Result<()> {
        let pid = Pid::from_child(&self.ranks[rank].0);
        Ok(kill_process(pid, signal)?)
    }

    /// Says a line to a rank, if it is still there.
    fn tell(&mut self, rank: usize) {
        if let Some(input) = &mut self.ranks[rank].0.stdin {
            let _ = input.write_all(b"now\n");
        }
    }

    /// Waits until `done`; whether that was in time.
    fn wait(&mut self, time: Duration, mut done: impl FnMut(&mut World) -> bool) -> bool {
        let until = Instant::now() + time;
        while !done(self) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    fn ended(&mut self, rank: usize) -> bool {
        self.ranks[rank].0.try_wait().is_ok_and(|status| status.is_some())
    }
}

impl Place {
    /// Plays a case. Its files are in `folder`, which is left there only if something is not as it must be.
    ///
    /// # Errors
    /// When ranks cannot be started or struck: nothing is known then.
    pub fn play(&self, case: &Case, folder: &Path) -> io::Result<Outcome> {
        let temporary = folder.join("tmp");
        let recorder = folder.join("recorder");
        fs::create_dir_all(&temporary)?;
        let mut outcome = Outcome::default();
        let mut world = World { ranks: Vec::new() };
        let port = free_port()?;
        for rank in 0..case.ranks {
            let path = folder.join(format!("rank{rank}.out"));
            let mut command = self.command(case, rank, port);
            command
                .env("TMPDIR", &temporary)
                .env("ND_RECORDER_DIR", &recorder)
                .stdin(Stdio::piped())
                .stdout(File::create(&path)?)
                .stderr(File::create(folder.join(format!("rank{rank}.err")))?);
            world.ranks.push((command.spawn()?, path));
        }
        let Some(moment) = self.strike(case, &mut world, &mut outcome)? else { return Ok(outcome) };
        let survives = |rank: usize| rank != case.victim || case.fault == Fault::Cable;
        let limit = case.timeout + PATIENCE;
        let all = world.wait(limit, |world| (0..case.ranks).filter(|&r| survives(r)).all(|r| world.ended(r)));
        if case.fault == Fault::Deaf {
            world.tell(case.victim);
        }
        if case.fault == Fault::Stop {
            let _ = world.signal(case.victim, Signal::KILL);
        }
        let victim = world.wait(PATIENCE, |world| world.ended(case.victim));
        if let (Fault::Cable, Some(hosts)) = (case.fault, &self.hosts) {
            hosts.ip(1, &["link", "set", "eth0", "up"]);
        }
        if !all || !victim {
            let late: Vec<_> = (0..case.ranks).filter(|&rank| !world.ended(rank)).collect();
            outcome.problems.push(format!("ranks {late:?} hang"));
        }
        for rank in 0..case.ranks {
            outcome.read(case, rank, &mut world, moment);
        }
        drop(world);
        outcome.look_for_files(&temporary, &recorder);
        Ok(outcome)
    }

    fn command(&self, case: &Case, rank: usize, port: u16) -> Command {
        let (mut command, address) = match (&self.hosts, case.joined) {
            (Some(hosts), Joined::Mix) => (hosts.command(case.host(rank), &self.program), hosts.v4(0)),
            _ => (Command::new(&self.program), "127.0.0.1".into()),
        };
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("ND_") || name.starts_with("NCCL_")) {
                command.env_remove(name);
            }
        }
        let start = if case.at_start { START } else { PATIENCE };
        let Case { seed, fault, joined, .. } = case;
        let parent = std::process::id();
        command
            .env(ROLE, format!("{seed} {} {} {parent}", fault.name(), joined.name()))
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", case.ranks.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("MASTER_ADDR", address)
            .env("MASTER_PORT", port.to_string())
            .env("ND_SECRET", "70".repeat(32))
            .env("ND_TIMEOUT", format!("{}ms", case.timeout.as_millis()))
            .env("ND_START_TIMEOUT", format!("{}ms", start.as_millis()))
            .env("ND_CMA", if case.attach { "1" } else { "0" })
            .env("ND_ENCRYPT", if case.encrypt { "1" } else { "0" })
            .env(
                "ND_TRANSPORT",
                match joined {
                    Joined::Mix => "auto",
                    other => other.name(),
                },
            );
        if *joined == Joined::Mix && self.hosts.is_none() {
            command.env("ND_HOSTID", format!("torture-{}", case.host(rank)));
        }
        command
    }

    /// Strikes; when that was. None if the world did not get so far.
    fn strike(&self, case: &Case, world: &mut World, outcome: &mut Outcome) -> io::Result<Option<u64>> {
        if !case.at_start {
            let all = |world: &mut World| (0..case.ranks).all(|rank| world.said(rank).contains("ready"));
            let mut gone = None;
            world.wait(PATIENCE, |world| {
                gone = (0..case.ranks).find(|&rank| world.ended(rank));
                gone.is_some() || all(world)
            });
            if !all(world) {
                outcome.problems.push(match gone {
                    Some(rank) => format!("the start failed: rank {rank} said {}", world.said(rank)),
                    None => "the start hangs".into(),
                });
                return Ok(None);
            }
        }
        std::thread::sleep(case.after);
        let moment = now();
        match case.fault {
            Fault::Kill => world.signal(case.victim, Signal::KILL)?,
            Fault::Stop => world.signal(case.victim, Signal::STOP)?,
            Fault::Cable => {
                if let Some(hosts) = &self.hosts {
                    hosts.ip(1, &["link", "set", "eth0", "down"]);
                }
            }
            _ => world.tell(case.victim),
        }
        Ok(Some(moment))
    }
}

impl Outcome {
    /// What a rank has said.
    fn read(&mut self, case: &Case, rank: usize, world: &mut World, moment: u64) {
        let struck = rank == case.victim && case.fault != Fault::Cable;
        let status = world.ranks[rank].0.try_wait().ok().flatten();
        if struck && !case.fault.leaves_the_rank() {
            return;
        }
        let said = world.said(rank);
        let mut failed = None;
        let ns = |text: &str| text.trim().parse().map(Duration::from_nanos).unwrap_or_default();
        for line in said.lines() {
            let Some((word, rest)) = line.split_once(' ') else { continue };
            match word {
                "failed" => failed = Some(rest),
                "aborted" => self.abort = Some(ns(rest)),
                "dropped" => self.dropped = self.dropped.max(ns(rest)),
                "wrong" | "leak" | "cannot" => self.problems.push(format!("rank {rank}: {line}")),
                _ => {}
            }
        }
        if !said.lines().any(|line| line == "end") || !status.is_some_and(|status| status.success()) {
            self.problems.push(format!("rank {rank} ended badly: {status:?}"));
        }
        // Who leaves or is deaf has no error of its own.
        if struck && matches!(case.fault, Fault::Leave | Fault::Deaf) {
            return;
        }
        self.survivors += usize::from(!struck);
        let Some((at, text)) = failed.and_then(|failed| failed.split_once(' ')) else {
            self.problems.push(format!("rank {rank} got no error"));
            return;
        };
        let after = Duration::from_nanos(at.parse::<u64>().unwrap_or(moment).saturating_sub(moment));
        let limit = if case.fault.is_told() && !case.at_start {
            case.timeout / 2
        } else {
            case.timeout + PATIENCE / 2
        };
        if after > limit {
            self.problems.push(format!("rank {rank} learnt of it after {after:?}: {text}"));
        }
        let right = case.is_right(rank, &named(text));
        if !right {
            self.problems.push(format!("rank {rank} does not name the culprit: {text}"));
        }
        if !struck {
            self.learnt.push(after);
            self.right += usize::from(right);
        }
    }

    /// Nothing is left in the temporary folder, and of the recorder's only whole files.
    fn look_for_files(&mut self, temporary: &Path, recorder: &Path) {
        let names = |folder: &Path| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let left = names(temporary);
        if !left.is_empty() {
            self.problems.push(format!("left in the temporary folder: {left:?}"));
        }
        let whole = |name: &String| name.starts_with("nd-recorder.") && name.ends_with(".json");
        let odd: Vec<_> = names(recorder).into_iter().filter(|name| !whole(name)).collect();
        if !odd.is_empty() {
            self.problems.push(format!("left by the recorder: {odd:?}"));
        }
    }
}

/// A port that nobody listens on, below those that the system gives out by itself.
fn free_port() -> io::Result<u16> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..100 {
        match std::net::TcpListener::bind(("127.0.0.1", rand::random_range(20_000..32_000))) {
            Ok(listener) => return listener.local_addr().map(|address| address.port()),
            Err(e) => last = e,
        }
    }
    Err(last)
}
