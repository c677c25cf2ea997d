//! Child processes with a deadline, of which nothing is left.
//!
//! A launcher's ranks are often in process groups and sessions of their own, and outlive it when it is killed. This
//! process therefore adopts whatever its children leave behind, and ends all its descendants after each run.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, waitpid,
};

use super::error::Error;

/// How often children are looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How long launchers may take to end their ranks and clear up, after one has failed or was told to.
const GRACE: Duration = Duration::from_secs(2);
/// Shared memory that MPIs leave in /dev/shm when they are killed.
const SEGMENTS: [&str; 7] = [
    "vader_segment.",
    "sm_segment.",
    "Intel_MPI_",
    "shm-col-space-",
    "mpich_shar_tmp",
    "mpich_shm_",
    "ucx_shm_posix_",
];
const SHARED_MEMORY: &str = "/dev/shm";

/// What came of some processes.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What the first one printed.
    pub stdout: String,
    /// Why it was no success.
    pub failure: Option<Failure>,
}

/// Why a run was no success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// In one line.
    pub why: String,
    /// The deadline had passed: it would again.
    pub late: bool,
}

/// Runs processes; knows when to stop.
pub struct Runner {
    stop: Arc<AtomicBool>,
    deadline: Duration,
}

impl Runner {
    /// From here on ctrl-C and the other polite signals are only noted.
    pub fn new(deadline: Duration) -> Result<Runner, Error> {
        let system = |what: &str| {
            let what = what.to_owned();
            move |source| Error::System { what, source }
        };
        set_child_subreaper(Some(getpid()))
            .map_err(|e| system("adopt processes that peers leave behind")(e.into()))?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, stop.clone()).map_err(system("note signals"))?;
        }
        Ok(Runner { stop, deadline })
    }

    /// Whether somebody wants this to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs `commands` at the same time until all have ended, one has failed, or the deadline. Afterwards none of
    /// their processes is left; `spared` are children of this process that have nothing to do with it.
    pub fn run(&self, commands: Vec<Command>, spared: &[u32]) -> Outcome {
        let segments = segments();
        let started = captured().and_then(|out| Ok((out, captured()?)));
        let (out, err) = match started {
            Ok(files) => files,
            Err(e) => return Outcome::failed(format!("no memory for its output: {e}")),
        };
        let mut children = Children { running: Vec::new(), spared: spared.to_vec() };
        for (index, mut command) in commands.into_iter().enumerate() {
            let program = command.get_program().to_string_lossy().into_owned();
            let output = if index == 0 { out.try_clone().map(Stdio::from) } else { Ok(Stdio::null()) };
            let ready = output.and_then(|out| Ok((out, err.try_clone()?)));
            let spawned = ready.and_then(|(out, err)| {
                command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0).spawn()
            });
            match spawned {
                Ok(child) => children.running.push(child),
                Err(e) => return Outcome::failed(format!("cannot start {program}: {e}")),
            }
        }
        let failure = self.wait(&mut children);
        let killed = failure.is_some();
        drop(children);
        if killed {
            remove_segments(&segments);
        }
        let said = content(&err);
        let failure = failure.map(|mut failure| {
            if let Some(line) = last_line(&said) {
                failure.why = format!("{}: {line}", failure.why);
            }
            failure
        });
        Outcome { stdout: content(&out), failure }
    }

    fn wait(&self, children: &mut Children) -> Option<Failure> {
        let began = Instant::now();
        let mut failed: Option<(Instant, String)> = None;
        loop {
            match children.look() {
                Ok(Some(status)) if !status.success() && failed.is_none() => {
                    failed = Some((Instant::now(), status.to_string()));
                }
                Err(e) if failed.is_none() => failed = Some((Instant::now(), e.to_string())),
                _ => {}
            }
            let late = began.elapsed() > self.deadline;
            let gone = children.running.is_empty();
            match &failed {
                Some((since, why)) if gone || late || since.elapsed() > GRACE => {
                    return Some(Failure { why: why.clone(), late: false });
                }
                None if gone => return None,
                None if late => {
                    let why = format!("killed after {} s", self.deadline.as_secs());
                    return Some(Failure { why, late: true });
                }
                _ if self.stopped() => return Some(Failure { why: "interrupted".into(), late: false }),
                _ => std::thread::sleep(LOOK),
            }
        }
    }
}

impl Outcome {
    fn failed(why: String) -> Outcome {
        Outcome { stdout: String::new(), failure: Some(Failure { why, late: false }) }
    }
}

/// Those that run; with all their descendants gone when dropped.
struct Children {
    running: Vec<Child>,
    spared: Vec<u32>,
}

impl Children {
    /// The status of one that has ended since.
    fn look(&mut self) -> io::Result<Option<ExitStatus>> {
        let ended = |(index, child): (usize, &mut Child)| Some((index, child.try_wait().transpose()?));
        let Some((index, status)) = self.running.iter_mut().enumerate().find_map(ended) else {
            return Ok(None);
        };
        status?;
        // It has ended: this returns at once.
        self.running.swap_remove(index).wait().map(Some)
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        // Launchers that are asked end their ranks and remove their files.
        for child in &self.running {
            if let Some(group) = Pid::from_raw(child.id() as i32) {
                let _ = kill_process_group(group, Signal::TERM);
            }
        }
        let until = Instant::now() + GRACE;
        while !self.running.is_empty() && Instant::now() < until {
            if let Ok(None) = self.look() {
                std::thread::sleep(LOOK);
            }
        }
        // Killing one may leave others to adopt, and a killed one takes a moment to go.
        let until = Instant::now() + GRACE;
        loop {
            let left = descendants(std::process::id(), &self.spared);
            if left.is_empty() || Instant::now() > until {
                break;
            }
            for pid in left.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
                let _ = kill_process(pid, Signal::KILL);
                if self.running.iter().all(|c| c.id() != pid.as_raw_nonzero().get() as u32) {
                    let _ = waitpid(Some(pid), WaitOptions::NOHANG);
                }
            }
            for child in &mut self.running {
                let _ = child.try_wait();
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// All processes that `root` or one of its descendants started, without `spared` and theirs.
fn descendants(root: u32, spared: &[u32]) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in parentheses may hold anything; behind it come state and parent.
        let parent =
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        if let Some(parent) = parent {
            parents.push((pid, parent));
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|p| p.1 == parent && !spared.contains(&p.0)).map(|p| p.0));
        next += 1;
    }
    found.split_off(1)
}

fn captured() -> io::Result<File> {
    Ok(File::from(memfd_create(c"output", MemfdFlags::CLOEXEC)?))
}

fn content(file: &File) -> String {
    let length = file.metadata().map_or(0, |m| m.len());
    // Whoever prints more than this prints no table.
    let mut bytes = vec![0; length.min(16 << 20) as usize];
    let read = file.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// The last line that says something.
fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| line.chars().any(char::is_alphanumeric))
}

fn segments() -> Vec<std::ffi::OsString> {
    std::fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten().map(|e| e.file_name()).collect()
}

/// Removes what MPI programs that were killed have left, if it was not there `before`.
fn remove_segments(before: &[std::ffi::OsString]) {
    for name in segments() {
        let text = name.to_string_lossy();
        if !before.contains(&name) && SEGMENTS.iter().any(|prefix| text.starts_with(prefix)) {
            let _ = std::fs::remove_file(std::path::Path::new(SHARED_MEMORY).join(&name));
        }
    }
}
