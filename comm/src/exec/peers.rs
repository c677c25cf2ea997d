//! What peers report, who is there, and whom to name when something fails.
#![allow(unsafe_code)] // reads reports in the inbox

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use nd_transport::{Endpoint, Transport};

use super::ending::aborted;
use super::layout::{FAILURE, REPORT};
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
            Report::Aborted { culprit } => Some(format!("; {} aborted", endpoint.who(culprit))),
            Report::Mismatch { .. } | Report::Left => None,
        });
        return everyone(endpoint, awaited) + &words.take(HEARD).collect::<String>();
    }
}

/// An error if a peer had given up before this rank has read its memory whole: whoever gives up says so first, and then its
/// memory may hold anything.
#[inline]
pub(super) fn still_there(channels: &Channels, peer: usize) -> Result<(), Failure> {
    // What was read was read before the word is.
    fence(Ordering::Acquire);
    let first = channels[peer].as_ref().map(|lanes| lanes[0].own().word(FAILURE));
    if first.is_none_or(|word| word.load(Ordering::Acquire) == 0) { Ok(()) } else { Err(gave_up(peer)) }
}

/// Said only where the peer's own words are not to be found.
#[cold]
fn gave_up(peer: usize) -> Failure {
    let cause = "it gave up before its message was read".into();
    Failure::Transport(nd_transport::Error::PeerLost { rank: peer, host: "its host".into(), cause })
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
    Some(Report::decode(&bytes))
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
            Some(Report::Aborted { culprit }) => return Err(aborted(endpoint, culprit)),
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
