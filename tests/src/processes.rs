//! Ranks as processes: a test starts its own program again, as the ignored test that plays a rank, and watches it.
#![allow(unsafe_code)] // mincore

use std::fs;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// A process that plays a rank; killed when dropped. What it says goes to files.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Standard output.
    pub out: PathBuf,
    /// Standard error.
    pub err: PathBuf,
}

/// What the system says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Open files.
    pub files: usize,
    /// Threads.
    pub threads: usize,
    /// Resident memory, KiB.
    pub memory: usize,
}

impl Process {
    /// Starts the ignored test `role` of this program with these variables, and at most `files` open files; what it
    /// says goes into `folder`.
    pub fn start(
        role: &str,
        name: &str,
        variables: &[(&str, &str)],
        files: u64,
        folder: &std::path::Path,
    ) -> Process {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {files} && exec \"$0\" \"$@\"")]).arg(program);
        Process::run(command, role, name, variables, folder)
    }

    /// Runs a command that starts this program, to play that role.
    pub fn run(
        mut command: Command,
        role: &str,
        name: &str,
        variables: &[(&str, &str)],
        folder: &std::path::Path,
    ) -> Process {
        let (out, err) = (folder.join(format!("{name}.out")), folder.join(format!("{name}.err")));
        let child = command
            .args(["--exact", role, "--ignored", "--nocapture", "--test-threads=1"])
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(fs::File::create(&out).expect("a file"))
            .stderr(fs::File::create(&err).expect("a file"))
            .spawn()
            .expect("it starts");
        Process { child, out, err }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it is told on its standard input, which ends when this is dropped.
    pub fn input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The same, and it goes on.
    pub fn to(&self) -> Option<&ChildStdin> {
        self.child.stdin.as_ref()
    }

    /// Everything that it has said so far.
    pub fn said(&self) -> String {
        let read = |path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        format!("{}{}", read(&self.out), read(&self.err))
    }

    /// Waits until it has said `word`; panics with all that it said if it ends before, or says it not within two
    /// minutes.
    pub fn wait_for(&mut self, word: &str) {
        self.wait_until(&format!("says {word}"), |process| process.said().contains(word));
    }

    /// Waits until something holds.
    pub fn wait_until(&mut self, what: &str, mut done: impl FnMut(&Process) -> bool) {
        let until = Instant::now() + Duration::from_secs(120);
        while !done(self) {
            let ended = self.child.try_wait().expect("its state");
            if let Some(status) = ended.filter(|_| !done(self)) {
                panic!("it ended ({status}) before it {what}:\n{}", self.said());
            }
            assert!(Instant::now() < until, "it never {what}:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end; whether it was a success.
    pub fn end(&mut self) -> bool {
        drop(self.child.stdin.take());
        self.child.wait().expect("its end").success()
    }

    /// What it has at present.
    pub fn usage(&self) -> Usage {
        let count =
            |what: &str| fs::read_dir(format!("/proc/{}/{what}", self.id())).map_or(0, Iterator::count);
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap_or_default();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let memory = memory.and_then(|m| m.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0);
        Usage { files: count("fd"), threads: self.threads(), memory }
    }

    /// Its threads. One that was joined may be on its way out for a while yet, on a busy machine; it counts no more.
    fn threads(&self) -> usize {
        const EXITING: u64 = 4;
        let tasks = fs::read_dir(format!("/proc/{}/task", self.id()));
        let stats = tasks.into_iter().flatten().flatten().filter_map(|task| {
            // pid (name) state ppid pgrp session tty_nr tpgid flags …; see proc_pid_stat(5).
            let stat = fs::read_to_string(task.path().join("stat")).ok()?;
            stat.rsplit_once(')')?.1.split_whitespace().nth(6)?.parse::<u64>().ok()
        });
        stats.filter(|flags| flags & EXITING == 0).count()
    }

    /// The TCP ports that it listens on.
    pub fn ports(&self) -> Vec<u16> {
        ports(self.id())
    }
}

/// The TCP ports that a process listens on.
pub fn ports(process: u32) -> Vec<u16> {
    let sockets: Vec<String> = fs::read_dir(format!("/proc/{process}/fd"))
        .into_iter()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()?.into_os_string().into_string().ok())
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.trim_end_matches(']').to_owned()))
        .collect();
    let mut ports = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            // sl local_address rem_address st … inode; see proc_net_tcp(5). 0A: it listens.
            let fields: Vec<&str> = line.split_whitespace().collect();
            let inode = fields.get(9).is_some_and(|inode| sockets.iter().any(|s| s == inode));
            if inode && fields.get(3) == Some(&"0A") {
                let port = fields[1].rsplit_once(':').map(|(_, port)| u16::from_str_radix(port, 16));
                ports.extend(port.and_then(Result::ok));
            }
        }
    }
    ports
}

/// How many MiB of the memory file of this process's host are in memory, whoever wrote them: those whose first page is.
/// What `/proc/self/map_files` would say of the file needs a privilege that root in a container may lack, and to look at
/// every page of its hundreds of GiB takes seconds.
pub fn shared_memory() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("this process's mappings");
    // start-end permissions offset device inode path; see proc_pid_maps(5).
    let ours = maps.lines().filter(|line| line.contains("/memfd:nd"));
    let addresses = ours.filter_map(|line| line.split_whitespace().next()?.split_once('-'));
    let in_memory = |address: &usize| {
        let mut state = 0;
        // SAFETY: the kernel reads no memory at the address; it writes one byte, for the one page.
        let done = unsafe { libc::mincore(*address as *mut _, 1, &mut state) };
        assert_eq!(done, 0, "mincore: {}", std::io::Error::last_os_error());
        state & 1 == 1
    };
    addresses
        .map(|(start, end)| {
            let [start, end] = [start, end].map(|a| usize::from_str_radix(a, 16).expect("an address"));
            (start..end).step_by(1 << 20).filter(in_memory).count()
        })
        .sum()
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
