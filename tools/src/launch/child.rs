//! What happens in a child between fork and exec, and who ends it when the launcher is killed.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use rustix::thread::CpuSet;

/// Makes the child lead a process group of its own, die with the launcher, and run on `cpus` only.
///
/// The kernel ends the child when the *thread* that spawned it ends (PR_SET_PDEATHSIG): spawn from a thread that
/// lives on.
#[allow(unsafe_code)]
pub fn prepare(command: &mut Command, cpus: Option<CpuSet>) {
    let launcher = rustix::process::getpid();
    command.process_group(0);
    // SAFETY: after fork in a process that may have threads, the closure calls only functions that are
    // async-signal-safe: three system calls, without allocation or locks; errors are built from numbers.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The launcher may have died before that.
            if rustix::process::getppid() != Some(launcher) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            if let Some(cpus) = &cpus {
                rustix::thread::sched_setaffinity(None, cpus)?;
            }
            Ok(())
        });
    }
}

/// A shell that waits for the launcher to die and then kills the groups: a rank's own children (a shell's `sleep`)
/// do not get the signal that the rank gets. It knows of the death because its standard input ends.
#[derive(Debug)]
pub struct Watchdog(Option<Child>);

impl Watchdog {
    /// Watches over these groups. Without a shell there is no watchdog, and the ranks still die with the launcher.
    pub fn over(groups: &[Pid]) -> Watchdog {
        const SCRIPT: &str =
            r#"read -r word; [ "$word" = done ] || for g in "$@"; do kill -s KILL -- "-$g"; done"#;
        let child = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "nd-run-watchdog"])
            .args(groups.iter().map(|g| g.as_raw_nonzero().to_string()))
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Watchdog(child.ok())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            if let Some(mut input) = child.stdin.take() {
                let _ = io::Write::write_all(&mut input, b"done\n");
            }
            let _ = child.wait();
        }
    }
}
