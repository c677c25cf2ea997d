//! What a rank of a world does, in a process of its own: it calls until something fails, looks at every result, and at
//! what it has left when all is over. What it has to say goes to standard output, a line each.

use std::fs;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nd_comm::communicator::Communicator;
use nd_comm::config::Config;
use nd_comm::launch::Launch;
use nd_comm::{Error, Result};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::calls::{Drawn, Went};
use super::case::{Case, Fault};

/// The variable that makes a process a rank: seed, fault and links of the case, and the process that watches.
pub const ROLE: &str = "TORTURE_RANK";

/// How long threads that were joined may still be listed.
const GONE: Duration = Duration::from_secs(5);

/// Now, by the clock that all processes of a machine share, ns.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn say(words: &str) {
    println!("{}", words.replace('\n', " "));
}

/// What a process has open.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    files: usize,
    threads: usize,
    /// Mappings of memory files.
    mapped: usize,
}

impl Held {
    fn now() -> Held {
        let count = |folder: &str| fs::read_dir(folder).map_or(0, Iterator::count);
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        Held {
            files: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            mapped: maps.lines().filter(|line| line.contains("/memfd:nd")).count(),
        }
    }
}

/// Plays the rank that the environment says.
pub fn main(role: &str) -> ExitCode {
    match play(role) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            say(&format!("cannot {why}"));
            ExitCode::FAILURE
        }
    }
}

fn play(role: &str) -> std::result::Result<bool, String> {
    let words: Vec<&str> = role.split_whitespace().collect();
    let [seed, fault, joined, parent] = words[..] else { return Err(format!("be {role:?}")) };
    let seed = seed.parse().map_err(|e| format!("read the seed {seed:?}: {e}"))?;
    let case = Case::draw(seed, fault.parse()?, joined.parse()?);
    // Whoever watches ends, then so does this.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| format!("watch its parent: {e}"))?;
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().to_string() != parent) {
        return Err("find its parent".into());
    }
    let config = Config::from_env().map_err(|e| e.to_string())?;
    let launch = Launch::from_env().map_err(|e| e.to_string())?;
    let held = Held::now();
    let victim = case.victim == launch.rank && case.fault != Fault::Cable;
    let right = Rank { case: &case, config: &config, launch: &launch }.run(victim);
    let until = Instant::now() + GONE;
    while Held::now().threads > held.threads && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    let left = Held::now();
    if left != held {
        say(&format!("leak {left:?} instead of {held:?}"));
    }
    say("end");
    Ok(right && left == held)
}

struct Rank<'a> {
    case: &'a Case,
    config: &'a Config,
    launch: &'a Launch,
}

impl Rank<'_> {
    /// Whether all results were right.
    fn run(&self, victim: bool) -> bool {
        let told = Arc::new(AtomicBool::new(false));
        let early = (victim && self.case.at_start).then(|| self.listen(None, told.clone()));
        let comm = match Communicator::from_launch(self.launch, self.config) {
            Ok(comm) => comm,
            Err(e) => {
                say(&format!("failed {} 0 {e}", now()));
                join(early);
                return true;
            }
        };
        let listening = match victim && !self.case.at_start {
            true => Some(self.listen(Some(comm.clone()), told.clone())),
            false => early,
        };
        say(&format!("ready {}", now()));
        let right = self.call(&comm, victim.then_some(&*told));
        join(listening);
        if victim && self.case.fault == Fault::Deaf {
            // Until nobody waits any more.
            let _ = io::stdin().read_line(&mut String::new());
        }
        let began = Instant::now();
        drop(comm);
        say(&format!("dropped {}", began.elapsed().as_nanos()));
        right
    }

    /// Does, when told so, what befalls this rank.
    fn listen(&self, comm: Option<Communicator>, told: Arc<AtomicBool>) -> JoinHandle<()> {
        let (fault, handle) = (self.case.fault, self.config.abort_handle());
        std::thread::spawn(move || {
            let _ = io::stdin().read_line(&mut String::new());
            told.store(true, Ordering::Release);
            let began = Instant::now();
            match fault {
                Fault::Exit => std::process::exit(0),
                Fault::Abort => {
                    match &comm {
                        Some(comm) => comm.abort(),
                        None => handle.abort(),
                    }
                    say(&format!("aborted {}", began.elapsed().as_nanos()));
                }
                _ => {}
            }
        })
    }

    /// Calls until something fails; whether all results before were right.
    fn call(&self, comm: &Communicator, told: Option<&AtomicBool>) -> bool {
        let fault = self.case.fault;
        for number in 0.. {
            let told = told.is_some_and(|told| told.load(Ordering::Acquire));
            if told && matches!(fault, Fault::Leave | Fault::Deaf) {
                return true;
            }
            let call = Drawn::new(self.case.seed, number, comm.world_size());
            let mistaken = told && fault == Fault::Mismatch && !call.is_between_two();
            let went: Result<Went, Error> = match mistaken {
                true => call.mistaken().perform(comm),
                false => call.perform(comm),
            };
            match went {
                Ok(Went::Right) => {}
                // What others sent for another call is no input of this one.
                Ok(Went::Wrong(what)) => {
                    say(&format!("wrong {call}: {what}"));
                    return false;
                }
                Err(e) => {
                    say(&format!("failed {} {number} {e}", now()));
                    return true;
                }
            }
        }
        true
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread {
        let _ = thread.join();
    }
}
