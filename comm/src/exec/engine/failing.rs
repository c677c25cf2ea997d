//! How an engine comes to its end: a failure, an abort, others that go on without it; and what it tells its peers.

use std::sync::atomic::Ordering;

use nd_transport::{Abilities, Signal};

use super::Engine;
use crate::error::Error;
use crate::exec::ending;
use crate::exec::layout::{self, DROPPED, FAILURE, GONE, LATE, WENT_ON};
use crate::exec::peers::{Reach, Stance, WAITED, is_reached, reach_all, stance, tell};
use crate::exec::report::Report;

impl Engine {
    /// No call works any more, for this reason; the peers are told, unless they were told of a failure before.
    pub fn retire(&mut self, why: &Error) {
        self.fail(why);
    }

    /// What each peer has last said of itself, after all that has arrived.
    pub fn stances(&self) -> Vec<Stance> {
        // What is lost is seen below.
        let _ = self.endpoint.progress();
        (0..self.channels.len()).map(|peer| stance(&self.endpoint, &self.channels, peer)).collect()
    }

    /// Tells these peers that others of the group go on without them: at once where they are reached within a moment, the
    /// others when they are.
    pub fn leave_behind(&mut self, peers: &[usize]) {
        let first = |peer: &usize| self.channels.get(*peer)?.as_ref().map(|[first, ..]| first);
        let until = reach_all(peers.iter().filter_map(first));
        for &peer in peers {
            let Some(first) = first(&peer) else { continue };
            let signal = Signal { at: first.remote() + FAILURE, value: WENT_ON };
            if is_reached(first, until) {
                let _ = first.link().signal(signal);
            } else {
                first.link().leave_word(&[], signal.at, signal);
            }
            self.left_behind.push(peer);
        }
        let _ = self.endpoint.progress();
    }

    /// Tells the peers that this rank's program has aborted, unless they know of a failure before.
    pub(crate) fn abort(&mut self) {
        let error = ending::aborted(&self.endpoint, self.rank());
        if self.failed.is_none() {
            self.fail(&error);
            self.recorder.failed(&error);
        }
    }

    /// Why nothing can be called any more, if so.
    #[inline]
    pub(super) fn refusal(&mut self) -> Option<Error> {
        if self.failed.is_none() && !self.ending.aborted() { None } else { self.refused() }
    }

    #[cold]
    fn refused(&mut self) -> Option<Error> {
        let aborted = self.ending.aborted();
        if aborted {
            self.abort();
        }
        let by = if aborted { Some(self.rank()) } else { self.aborted_by };
        if let Some(by) = by {
            return Some(ending::aborted(&self.endpoint, by));
        }
        self.failed.as_ref().map(|why| Error::Failed { rank: self.rank(), why: why.clone() })
    }

    /// Tells the peers that this rank gives up, and why, in the words of whoever found out first.
    pub(super) fn fail(&mut self, error: &Error) {
        // Wrong arguments are found before anything is sent.
        if matches!(error, Error::InvalidArgument { .. } | Error::Config { .. } | Error::Failed { .. })
            && self.failed.is_none()
            && self.ending.error(&self.endpoint).is_none()
        {
            return;
        }
        if self.failed.is_some() {
            return;
        }
        tracing::debug!("no call works any more: {error}");
        self.failed = Some(error.to_string());
        self.endpoint.give_up();
        let report = match error {
            Error::Mismatch { rank, ours, peer, theirs } => {
                Report::Mismatch { rank: *rank, ours: *ours, peer: *peer, theirs: *theirs }
            }
            Error::Transport { source: nd_transport::Error::PeerLost { rank, .. }, .. } => {
                Report::Failed { culprit: *rank, why: error.to_string() }
            }
            Error::Timeout { standstill, .. } => Report::Standstill(standstill.clone()),
            Error::Aborted { culprit, .. } => {
                self.aborted_by = Some(*culprit);
                Report::Aborted { culprit: *culprit }
            }
            // Whoever listens no more has failed, not whoever would speak to it.
            Error::Transport { source: nd_transport::Error::Unreachable { to, .. }, .. } => {
                Report::Failed { culprit: *to, why: error.to_string() }
            }
            Error::PeerFailed { culprit, why, .. } => {
                let why = why.split_once(WAITED).map_or(why.as_str(), |(why, _)| why);
                Report::Failed { culprit: *culprit, why: why.to_owned() }
            }
            _ => Report::Failed { culprit: self.rank(), why: error.to_string() },
        };
        // A roll call has tried to reach everybody.
        let reach = if matches!(report, Report::Standstill(_)) { Reach::Meanwhile } else { Reach::All };
        tell(&self.endpoint, &self.channels, (FAILURE, &report.encode()), reach);
        if let Report::Standstill(_) = report {
            self.tell_late();
        }
        // The caller gets its buffers back.
        self.endpoint.let_go();
    }

    /// Whoever enters the call later, and finds all that it needs, learns nevertheless that it has failed.
    fn tell_late(&self) {
        for (peer, channels) in self.channels.iter().enumerate() {
            if let Some([first, ..]) = channels
                && first.link().connected()
            {
                let inbox = first.remote() - layout::lane(self.rank(), 0);
                let at = inbox + layout::lane(peer, 1) + LATE;
                let _ = first.link().signal(Signal { at, value: 1 });
            }
        }
        let _ = self.endpoint.progress();
    }

    /// After a failure: whoever is to go on with others need not wait for this rank.
    fn tell_dropped(&mut self) {
        for (peer, channels) in self.channels.iter().enumerate() {
            if let Some([first, ..]) = channels
                && first.link().connected()
                && !self.left_behind.contains(&peer)
            {
                let _ = first.link().signal(Signal { at: first.remote() + FAILURE, value: DROPPED });
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        match self.failed {
            None => tell(&self.endpoint, &self.channels, (FAILURE, &Report::Left.encode()), Reach::Others),
            Some(_) => self.tell_dropped(),
        }
        // Peers that map the inbox say there when they write no more, whenever that is, unless they are no more.
        if let Some(inbox) = self.inbox.take() {
            let last_words = self.channels.iter().enumerate().filter_map(|(peer, channels)| {
                let [first, ..] = channels.as_ref()?;
                if !first.link().abilities().contains(Abilities::MAP) {
                    return None;
                }
                first.last_word();
                let said = first.own().word(GONE).load(Ordering::Acquire) > 0;
                let will = said || self.endpoint.ended(peer).is_none();
                will.then(|| inbox.offset() + layout::lane(peer, 0) + GONE)
            });
            let last_words = last_words.collect();
            inbox.leave(self.endpoint.take_header(), last_words);
        }
    }
}
