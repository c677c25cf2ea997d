//! `--fault`: what goes wrong on purpose, to which rank and when; and what the others say of it.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nd_comm::config::{duration, nearest};
use nd_comm::prelude::{Communicator, ReduceOp};
use rustix::process::{Signal, getpid, kill_process};

use super::error::Error;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Kill,
    Stop,
    Exit,
    Abort,
    Mismatch,
}

/// As on the command line, and in a sentence about a rank.
const KINDS: [(What, &str, &str); 5] = [
    (What::Kill, "kill", "gets SIGKILL"),
    (What::Stop, "stop", "gets SIGSTOP"),
    (What::Exit, "exit", "exits in the middle of a call"),
    (What::Abort, "abort", "aborts its communicator"),
    (What::Mismatch, "mismatch", "calls something else"),
];

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub what: What,
    pub rank: usize,
    /// After the first call.
    pub after: Duration,
}

/// When nobody says so.
const AFTER: Duration = Duration::from_secs(1);
/// How long a call may wait while something goes wrong on purpose, unless ND_TIMEOUT says so.
pub const TIMEOUT: Duration = Duration::from_secs(5);

impl What {
    /// Whether the process is no more of use afterwards.
    fn takes_the_process(self) -> bool {
        matches!(self, What::Kill | What::Stop | What::Exit)
    }
}

impl FromStr for Fault {
    type Err = String;

    /// `kill:2@3s`.
    fn from_str(text: &str) -> Result<Fault, String> {
        let wrong = |problem: String| format!("{text}: {problem}; write KIND:RANK@TIME, such as kill:2@3s");
        let names: Vec<_> = KINDS.iter().map(|kind| kind.1).collect();
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let Some(kind) = KINDS.iter().find(|kind| kind.1 == name) else {
            let hint = nearest(name, names.iter().copied());
            let hint = hint.map_or(String::new(), |n| format!(", did you mean {n}?"));
            return Err(wrong(format!("no fault is called '{name}'{hint} (there are {})", names.join(", "))));
        };
        let (rank, after) = match rest.split_once('@') {
            Some((rank, after)) => (rank, Some(after)),
            None => (rest, None),
        };
        let rank = rank.parse().map_err(|_| wrong(format!("'{rank}' is no rank")))?;
        let after = match after {
            None => AFTER,
            Some(after) => duration(after)
                .map_err(|bad| wrong(format!("'{after}' is {} ({})", bad.problem, bad.remedy)))?,
        };
        Ok(Fault { what: kind.0, rank, after })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let does = KINDS.iter().find(|kind| kind.0 == self.what).map_or("", |kind| kind.2);
        write!(f, "rank {} {does} {} s after the first call", self.rank, self.after.as_secs_f64())
    }
}

/// Checks what was asked for against how ranks are started.
pub fn check(faults: &[Fault], ranks: usize, threads: bool) -> Result<(), Error> {
    for fault in faults {
        let (name, rank) = (KINDS.iter().find(|kind| kind.0 == fault.what).map_or("", |k| k.1), fault.rank);
        if rank >= ranks {
            let most = ranks - 1;
            return Err(Error::Usage(format!("--fault {name}:{rank}: no such rank; ranks are 0 to {most}")));
        }
        if threads && fault.what.takes_the_process() {
            return Err(Error::Usage(format!(
                "--fault {name}:{rank} with --threads: it would take all ranks; leave out --threads, or use abort or \
                 mismatch"
            )));
        }
    }
    if !faults.is_empty() && (0..ranks).all(|rank| faults.iter().any(|fault| fault.rank == rank)) {
        let problem = "something happens to every rank, and none is left to say what it sees of it";
        return Err(Error::Usage(format!("--fault: {problem}; leave one out, or start more with --ranks")));
    }
    Ok(())
}

/// The ranks that go on whatever happens to others.
pub fn survivors(faults: &[Fault], ranks: usize) -> Vec<usize> {
    let taken = |rank: &usize| faults.iter().any(|f| f.rank == *rank && f.what.takes_the_process());
    (0..ranks).filter(|rank| !taken(rank)).collect()
}

/// When the last of them is over, counted from the first call.
pub fn last(faults: &[Fault]) -> Duration {
    faults.iter().map(|fault| fault.after).max().unwrap_or_default()
}

/// "rank 2", "ranks 1 and 2".
fn culprits(faults: &[Fault]) -> String {
    let mut ranks: Vec<_> = faults.iter().map(|fault| fault.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let words: Vec<_> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, words.join(" or "))
}

/// What is to befall this rank.
pub struct Strikes {
    began: Instant,
    first: Duration,
    /// When this rank began its last call: between calls it prepares its buffers, and cannot be told of anything.
    called: Cell<Instant>,
    mistakes: Arc<AtomicBool>,
    /// Dropped to call off what has not happened.
    call_off: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Strikes {
    /// Makes the first call, together with all ranks, and counts from there. Also gives what came of that call: what happens
    /// to a rank at once may be seen by another that is still in it.
    pub fn begin(comm: &Communicator, faults: &[Fault]) -> Result<(Strikes, nd_comm::Result<()>), Error> {
        let met = comm.barrier();
        let began = Instant::now();
        let mut own: Vec<_> = faults.iter().copied().filter(|fault| fault.rank == comm.rank()).collect();
        own.sort_by_key(|fault| fault.after);
        let mistakes = Arc::new(AtomicBool::new(false));
        let (call_off, called_off) = channel::<()>();
        let (comm, flag) = (comm.clone(), mistakes.clone());
        let strike = move || {
            for Fault { what, after, .. } in own {
                let left = (began + after).saturating_duration_since(Instant::now());
                if called_off.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                match what {
                    What::Kill => drop(kill_process(getpid(), Signal::KILL)),
                    What::Stop => drop(kill_process(getpid(), Signal::STOP)),
                    What::Exit => std::process::exit(0),
                    What::Abort => comm.abort(),
                    What::Mismatch => flag.store(true, Ordering::Release),
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("nd-bench-fault".into())
            .spawn(strike)
            .map_err(|e| Error::Machine(format!("cannot start a thread: {e}; raise `ulimit -u`")))?;
        let first = faults.iter().map(|fault| fault.after).min().unwrap_or_default();
        let strikes = Strikes {
            began,
            first,
            called: Cell::new(began),
            mistakes,
            call_off: Some(call_off),
            thread: Some(thread),
        };
        Ok((strikes, met))
    }

    /// Before each call: calls something else, if this is to be.
    pub fn before_call(&self, comm: &Communicator) -> nd_comm::Result<()> {
        self.called.set(Instant::now());
        match self.mistakes.load(Ordering::Acquire) {
            true => comm.all_reduce(&mut [0u16; 3], ReduceOp::Max),
            false => Ok(()),
        }
    }

    /// Tells what this rank was told, and after how long it was in a call; whether it names one of those to whom something happened.
    pub fn tell(&self, rank: usize, faults: &[Fault], error: &nd_comm::Error) -> Result<bool, Error> {
        let struck = self.began + self.first;
        let called = self.called.get();
        let after = called.max(struck).elapsed().as_secs_f64();
        let call = match called.saturating_duration_since(struck).as_secs_f64() {
            ..0.05 => String::new(),
            later => format!(" in a call that it began {later:.3} s later"),
        };
        let own = if faults.iter().any(|fault| fault.rank == rank) { ", itself to blame" } else { "" };
        print(&format!("# rank {rank}{own}, after {after:.3} s{call}: {error}\n"))?;
        Ok(faults.iter().any(|fault| names(&error.to_string(), fault.rank)))
    }
}

impl Drop for Strikes {
    fn drop(&mut self) {
        self.call_off = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Tells how many of `all` ranks that went on named the right one; whether all did.
pub fn verdict(right: usize, all: usize, faults: &[Fault], more: &str) -> Result<bool, Error> {
    print(&format!("# {right} of {all} ranks that went on named {}{more}\n", culprits(faults)))?;
    Ok(right == all)
}

/// Whole lines, whoever else prints.
pub fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
}

/// Whether the text names the rank.
fn names(text: &str, rank: usize) -> bool {
    let word = format!("rank {rank}");
    let whole = |(at, _): (usize, &str)| !text[at + word.len()..].starts_with(|c: char| c.is_ascii_digit());
    text.match_indices(&word).any(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_shown() {
        let fault: Fault = "kill:2@3s".parse().unwrap();
        assert_eq!(fault, Fault { what: What::Kill, rank: 2, after: Duration::from_secs(3) });
        assert_eq!(fault.to_string(), "rank 2 gets SIGKILL 3 s after the first call");
        assert_eq!("mismatch:0".parse::<Fault>().unwrap().after, AFTER);
        assert_eq!("abort:11@250ms".parse::<Fault>().unwrap().to_string().split(' ').nth(5), Some("0.25"));
        for (text, said) in [
            ("kil:2@3s", "did you mean kill?"),
            ("quake", "there are kill, stop, exit, abort, mismatch"),
            ("stop:x@1s", "'x' is no rank"),
            ("stop:@1s", "'' is no rank"),
            ("stop:1@soon", "'soon' is not a duration"),
            ("stop:1@0s", "'0s' is out of range (write a duration above 0"),
        ] {
            let error = text.parse::<Fault>().unwrap_err();
            assert!(error.contains(said) && error.ends_with("such as kill:2@3s"), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let faults = ["kill:2@3s", "abort:0@1s"].map(|text| text.parse().unwrap());
        assert!(check(&faults, 3, false).is_ok() && check(&faults[1..], 3, true).is_ok());
        let said = |ranks, threads| check(&faults, ranks, threads).unwrap_err().to_string();
        assert!(said(2, false).contains("kill:2: no such rank; ranks are 0 to 1"));
        assert!(said(3, true).contains("leave out --threads"));
        let all = ["kill:0@1s", "mismatch:1@1s"].map(|text| text.parse().unwrap());
        assert!(check(&all, 3, false).is_ok());
        assert!(check(&all, 2, false).unwrap_err().to_string().contains("none is left"));
        assert_eq!(survivors(&faults, 4), [0, 1, 3]);
        assert_eq!((culprits(&faults), culprits(&faults[..1])), ("ranks 0 or 2".into(), "rank 2".into()));
        assert_eq!(last(&faults), Duration::from_secs(3));
    }

    #[test]
    fn a_name_is_a_whole_number() {
        assert!(names("rank 0: rank 12 is lost", 12) && names("rank 2", 2));
        assert!(!names("rank 0: rank 12 is lost", 1) && !names("ranks 2", 2));
    }
}
