//! A job of processes on this host or on hosts made of namespaces, each of which plays a role, to be killed or stopped.

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::hosts::Hosts;
use crate::processes::Process;

/// How the ranks of a job are joined.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Links {
    /// Shared memory.
    Shm,
    /// TCP.
    Tcp,
    /// TCP, encrypted.
    TcpEncrypted,
    /// Two ranks on each of some hosts, by what they are told: shared memory and TCP.
    Mixed,
}

impl Links {
    /// The settings that make it so for a rank.
    pub fn settings(self, rank: usize) -> Vec<(&'static str, String)> {
        match self {
            Links::Shm => vec![("ND_TRANSPORT", "shm".into())],
            Links::Tcp => vec![("ND_TRANSPORT", "tcp".into())],
            Links::TcpEncrypted => vec![("ND_TRANSPORT", "tcp".into()), ("ND_ENCRYPT", "1".into())],
            Links::Mixed => vec![("ND_HOSTID", format!("test-host-{}", rank / 2))],
        }
    }
}

/// Processes that play the ranks of a job; gone when dropped.
#[derive(Debug)]
pub struct Job {
    /// By rank.
    pub ranks: Vec<Process>,
    _folder: TempDir,
}

impl Job {
    /// Starts the ignored test `role` of this program `size` times, with these settings for all.
    pub fn start(role: &str, size: usize, links: Links, settings: &[(&str, &str)]) -> Job {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let start = |rank: usize| {
            let mut own = variables(rank, size, "127.0.0.1", port);
            own.extend(links.settings(rank));
            let given: Vec<(&str, &str)> =
                own.iter().map(|(name, value)| (*name, &value[..])).chain(settings.iter().copied()).collect();
            Process::start(role, &format!("rank{rank}"), &given, 1024, folder.path())
        };
        Job { ranks: (0..size).map(start).collect(), _folder: folder }
    }

    /// The same, `each` ranks on each of these hosts.
    pub fn start_on(hosts: &Hosts, each: usize, role: &str, settings: &[(&str, &str)]) -> Job {
        let folder = tempfile::tempdir().expect("a folder");
        let size = hosts.count() * each;
        let start = |rank: usize| {
            let own = variables(rank, size, &hosts.v4(0), 29_500);
            let given: Vec<(&str, &str)> =
                own.iter().map(|(name, value)| (*name, &value[..])).chain(settings.iter().copied()).collect();
            let program = std::env::current_exe().expect("this program");
            let command = hosts.command(rank / each, program);
            Process::run(command, role, &format!("rank{rank}"), &given, folder.path())
        };
        Job { ranks: (0..size).map(start).collect(), _folder: folder }
    }

    /// Sends a signal to a rank.
    pub fn signal(&self, rank: usize, signal: Signal) {
        let pid = Pid::from_raw(self.ranks[rank].id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("it is there");
    }

    /// Waits until all these ranks have said `word`.
    pub fn wait(&mut self, ranks: &[usize], word: &str) {
        ranks.iter().for_each(|&rank| self.ranks[rank].wait_for(word));
    }

    /// Tells a rank something, if it still listens.
    pub fn tell(&self, rank: usize, line: &str) {
        use std::io::Write;
        if let Some(mut input) = self.ranks[rank].to() {
            let _ = writeln!(input, "{line}");
        }
    }

    /// Waits for the end of these ranks; all succeed.
    pub fn end(&mut self, ranks: &[usize]) {
        for &rank in ranks {
            let process = &mut self.ranks[rank];
            process.wait_until("ends", |p| p.said().contains("test result"));
            assert!(process.end(), "rank {rank}:\n{}", process.said());
        }
    }

    /// The process numbers of these ranks, in a line.
    pub fn pids(&self, ranks: &[usize]) -> String {
        ranks.iter().map(|&rank| self.ranks[rank].id().to_string()).collect::<Vec<_>>().join(" ")
    }
}

/// A port that nobody uses now.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port()
}

fn variables(rank: usize, size: usize, address: &str, port: u16) -> Vec<(&'static str, String)> {
    vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", size.to_string()),
        ("MASTER_ADDR", address.into()),
        ("MASTER_PORT", port.to_string()),
        ("ND_RECORDER_DIR", "none".into()),
    ]
}
