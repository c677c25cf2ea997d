//! Ranks that end together.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use signal_hook::SigId;

use super::{Ended, Event, Group, Stopped};

/// When a rank has failed, the others have so long to find out and say so.
const GRACE: Duration = Duration::from_secs(3);

/// What came of ranks of which one failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The first that failed.
    pub first: Ended,
    /// Ranks that were stopped then: what failed may only have waited for them.
    pub stopped: Stopped,
    /// The exit code of rank 0, if it failed by itself: it has said why.
    pub rank_zero: Option<i32>,
}

impl Group {
    /// Waits until all ranks have succeeded, or one has failed: then also until the others have said what they know, and ends
    /// them.
    pub fn wait_all(&mut self) -> Option<Failure> {
        let pauses = Pauses::new();
        let first = loop {
            if self.running() == 0 {
                return None;
            }
            match self.wait(pauses.as_ref().map(|pauses| pauses.inbox.as_fd()), None) {
                Event::Ended(ended) if ended.code() != 0 => break ended,
                Event::Other if pauses.as_ref().is_some_and(Pauses::take) => self.pause(),
                _ => {}
            }
        };
        let mut failure = Failure { first, stopped: self.stopped(), rank_zero: None };
        failure.note(&first);
        let until = Instant::now() + GRACE;
        while self.running() > 0 {
            match self.wait(None, Some(until)) {
                Event::Ended(ended) => failure.note(&ended),
                _ => break,
            }
        }
        self.end(Duration::from_millis(200));
        Some(failure)
    }
}

/// Ctrl-Z: the ranks are in process groups of their own, to which the terminal does not pass it on.
struct Pauses {
    inbox: UnixStream,
    id: SigId,
}

impl Pauses {
    /// None: the system gives no socket; then only this process stops.
    fn new() -> Option<Pauses> {
        let (inbox, outbox) = UnixStream::pair().ok()?;
        inbox.set_nonblocking(true).ok()?;
        let id = signal_hook::low_level::pipe::register(libc::SIGTSTP, outbox).ok()?;
        Some(Pauses { inbox, id })
    }

    /// Whether it was pressed since the last call.
    fn take(&self) -> bool {
        (&self.inbox).read(&mut [0; 64]).is_ok_and(|n| n > 0)
    }
}

impl Drop for Pauses {
    fn drop(&mut self) {
        signal_hook::low_level::unregister(self.id);
    }
}

impl Failure {
    fn note(&mut self, ended: &Ended) {
        if ended.rank == 0 {
            self.rank_zero = ended.status.code().filter(|code| *code != 0);
        }
    }
}

impl Failure {
    /// A sentence on the first of several ranks to fail.
    pub fn first(&self) -> String {
        format!(
            "rank {} (pid {}) failed first: {}{}; the other ranks were ended; look at what it said above",
            self.first.rank,
            self.first.pid,
            self.first.why(),
            self.stopped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Plan;

    fn failure(script: &str) -> Option<Failure> {
        let mut plan = Plan::new("/bin/sh", 2);
        plan.arguments = vec!["-c".into(), script.into()];
        Group::spawn(&plan, 0).unwrap().wait_all()
    }

    #[test]
    fn the_first_to_fail_and_what_rank_0_made_of_it() {
        assert_eq!(failure("exit 0"), None);
        let both = failure("test $RANK = 0 && sleep 0.3 && exit 1; exit 4").unwrap();
        assert_eq!((both.first.rank, both.first.code(), both.rank_zero), (1, 4, Some(1)));
        let killed = failure("test $RANK = 0 && exit 0; kill -9 $$").unwrap();
        assert_eq!((killed.first.rank, killed.first.code(), killed.rank_zero), (1, 137, None));
        let waited = failure("test $RANK = 1 && kill -STOP $$; sleep 1; exit 3").unwrap();
        assert_eq!((waited.first.rank, waited.stopped.0.len()), (0, 1));
        let said = waited.first();
        let pid = waited.stopped.0[0].1;
        assert!(said.contains(&format!("; rank 1 (pid {pid}) is stopped, as by SIGSTOP")), "{said}");
    }
}
