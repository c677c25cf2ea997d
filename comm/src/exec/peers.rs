//! What peers report, who is there, and whom to name when something fails.
#![allow(unsafe_code)] // reads reports in the inbox

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nd_transport::{Endpoint, Transport};

use super::layout::{self, FAILURE, REPORT, WENT_ON};
use super::memory::copy;
use super::report::Report;
use super::run::{Channels, Failure, Storing};
use crate::error::{Error, Result};

/// How long a rank tries to connect to a peer that it has not spoken to, to see whether it is there or to tell it that
/// it gives up: one that stopped does not answer.
pub(super) const REACHING: Duration = Duration::from_millis(100);

/// How long a rank that lost a peer listens whether one has reported why.
const LISTENING: Duration = Duration::from_millis(200);

/// How long a rank that gives up waits for a peer that is storing a result in its memory, which takes some milliseconds;
/// one that stopped in the middle may go on at any time.
const STORING: Duration = Duration::from_millis(500);
/// The same where the peer is a thread of this process, which nothing stops but a busy machine.
const STORING_THREAD: Duration = Duration::from_secs(10);

/// What so many peers said is repeated.
const HEARD: usize = 2;

/// What is said of a rank that left.
pub(crate) const DROPPED: &str = "it dropped its communicator while this rank still waits for it";

/// Waits for the peers that store in this rank's memory. What one of them may still write that cannot be waited for is
/// taken out of its reach.
pub(super) fn settle(endpoint: &Endpoint, channels: &mut Channels, mut storing: Vec<Storing>) {
    let began = Instant::now();
    while !storing.is_empty() {
        storing.retain(|storing| {
            if !storing.goes_on(channels) || endpoint.lost(storing.peer()).is_some() {
                return false;
            }
            let thread = endpoint.link(storing.peer()).is_some_and(|l| l.transport() == Transport::Local);
            if began.elapsed() < if thread { STORING_THREAD } else { STORING } {
                return true;
            }
            if let Err(e) = endpoint.region().detach(storing.at, storing.len) {
                let rank = endpoint.rank();
                tracing::warn!(
                    "rank {rank}: rank {} may still write into a buffer of a call that failed: {e}",
                    storing.peer()
                );
            }
            false
        });
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What is known of a peer beside what it has to say of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stance {
    /// Nothing: it may be there.
    Silent,
    /// It takes no further part, and has not gone on with others: its communicator or its process is no more.
    Ended(String),
    /// It goes on with others, without this rank.
    WentOn,
}

/// See [`Stance`]; of what has arrived. Whoever goes on without this rank says so before it ends.
pub(super) fn stance(endpoint: &Endpoint, channels: &Channels, peer: usize) -> Stance {
    let Some([first, ..]) = channels[peer].as_ref() else { return Stance::Silent };
    // The end is looked at first: what was said before it has come by then.
    let ended = endpoint.ended(peer);
    match first.own().word(FAILURE).load(Ordering::Acquire) {
        WENT_ON => Stance::WentOn,
        layout::DROPPED => Stance::Ended("it has dropped its communicator".into()),
        _ if reported(channels, peer) == Some(Report::Left) => {
            Stance::Ended("it has dropped its communicator".into())
        }
        _ => ended.map_or(Stance::Silent, Stance::Ended),
    }
}

/// Ranks as people look for them.
pub(super) fn everyone(endpoint: &Endpoint, ranks: &[usize]) -> String {
    ranks.iter().map(|&r| endpoint.who(r)).collect::<Vec<_>>().join(", ")
}

/// Whom to look at when the time is up: each of the peers may wait for yet another, and says so within [`LISTENING`];
/// the one that all wait for says nothing. Otherwise those that this rank waits for, and what is said.
pub(super) fn listen(endpoint: &Endpoint, channels: &Channels, awaited: &[usize]) -> String {
    let until = Instant::now() + LISTENING;
    loop {
        let _ = endpoint.progress();
        let peers = (0..channels.len()).filter(|&peer| channels[peer].is_some());
        let (said, silent): (Vec<_>, Vec<_>) = peers.partition(|&peer| reported(channels, peer).is_some());
        if !silent.is_empty() && Instant::now() < until {
            std::thread::yield_now();
            continue;
        }
        let waited_for: Vec<_> = silent.iter().copied().filter(|peer| awaited.contains(peer)).collect();
        let culprits = if waited_for.is_empty() { silent } else { waited_for };
        if !culprits.is_empty() && !said.is_empty() {
            return everyone(endpoint, &culprits) + ", of whom nothing is heard while others give up";
        }
        let words = said.into_iter().filter_map(|peer| match reported(channels, peer)? {
            Report::Failed { culprit, why } => Some(format!("; rank {culprit} says: {why}")),
            Report::Mismatch { .. } | Report::Left => None,
        });
        return everyone(endpoint, awaited) + &words.take(HEARD).collect::<String>();
    }
}

/// Whether a peer goes on with others, without this rank.
fn went_on(channels: &Channels, peer: usize) -> bool {
    channels[peer]
        .as_ref()
        .is_some_and(|[first, ..]| first.own().word(FAILURE).load(Ordering::Acquire) == WENT_ON)
}

/// What a peer has reported, if anything.
fn reported(channels: &Channels, peer: usize) -> Option<Report> {
    let [first, ..] = channels[peer].as_ref()?;
    if first.own().word(FAILURE).load(Ordering::Acquire) == 0 {
        return None;
    }
    let mut bytes = [0u8; REPORT];
    // SAFETY: the report lies in this rank's inbox.
    unsafe { copy(first.own().at(FAILURE + 8), bytes.as_mut_ptr(), REPORT) };
    // Of a peer that goes or went on, the words may never have come.
    let words = first.own().word(FAILURE).load(Ordering::Acquire) == layout::REPORTED || bytes[0] != 0;
    Some(if words { Report::decode(&bytes) } else { Report::Left })
}

/// What a peer reports, if it does within [`LISTENING`].
pub(super) fn told(endpoint: &Endpoint, channels: &Channels) -> Option<Error> {
    let until = Instant::now() + LISTENING;
    loop {
        let _ = endpoint.progress();
        match reports(endpoint, channels, &[]) {
            Err(told) => return Some(told),
            Ok(()) if Instant::now() >= until => return None,
            Ok(()) => std::thread::yield_now(),
        }
    }
}

/// Errors if a peer has reported a failure, or one that is awaited is gone.
pub(super) fn reports(endpoint: &Endpoint, channels: &Channels, awaited: &[usize]) -> Result<()> {
    let rank = endpoint.rank();
    for peer in 0..channels.len() {
        if went_on(channels, peer) {
            return Err(Error::LeftOut { rank, by: endpoint.who(peer) });
        }
        match reported(channels, peer) {
            None => {}
            Some(Report::Left) if !awaited.contains(&peer) => {}
            Some(Report::Left) => {
                return Err(Error::PeerFailed { rank, culprit: peer, why: DROPPED.into() });
            }
            Some(Report::Failed { culprit, mut why }) => {
                // Whoever gives up first may have waited for this rank, which waits for others.
                let others: Vec<_> = awaited.iter().copied().filter(|&r| r != peer && r != culprit).collect();
                if !others.is_empty() {
                    why += &format!("; this rank was waiting for {}", everyone(endpoint, &others));
                }
                return Err(Error::PeerFailed { rank, culprit, why });
            }
            Some(Report::Mismatch { rank, ours, peer, theirs }) => {
                return Err(Error::Mismatch { rank, ours, peer, theirs });
            }
        }
    }
    for &peer in awaited {
        if let Some(source) = endpoint.lost(peer) {
            return Err(Error::Transport { rank, source });
        }
        // One that never was connected to cannot be seen to leave.
        if let Some(link) = endpoint.link(peer) {
            link.reach(REACHING).map_err(|source| Error::Transport { rank, source })?;
        }
    }
    Ok(())
}

/// An error of this rank.
pub(super) fn failure(endpoint: &Endpoint, failure: Failure) -> Error {
    let rank = endpoint.rank();
    match failure {
        Failure::Other(e) => *e,
        Failure::Transport(source) => Error::Transport { rank, source },
        Failure::Mismatch { peer, ours, theirs } => Error::Mismatch { rank, ours, peer, theirs },
        Failure::Length { peer, ours, got, expected } => {
            Error::Length { rank, peer, call: ours, got, expected }
        }
    }
}
