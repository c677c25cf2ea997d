//! What peers report, who is there, and whom to name when something fails.
#![allow(unsafe_code)] // reads reports in the inbox, puts them into the peers'

use std::iter;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use nd_transport::{Abilities, Endpoint, INLINE_PART, Part, Signal, Step, Ticket, Transport};

use super::channel::Channel;
use super::ending::aborted;
use super::layout::{self, FAILURE, LANES, REPORT, WENT_ON};
use super::memory::copy;
use super::report::Report;
use super::run::{Channels, Failure, Storing};
use super::stamp::is_later;
use crate::error::{Error, Result};

/// How long a rank that gives up waits for connections to the peers that it has not spoken to, to tell them so: one that
/// stopped does not answer. Who is reached later is told then.
const REACHING: Duration = Duration::from_millis(100);

/// How long a rank that gives up waits for its report to leave.
const TELLING: Duration = Duration::from_millis(500);

/// What could not be sent to a peer for so long it does not take, or nothing gets there.
const STUCK: Duration = Duration::from_millis(250);

/// How long a rank that lost a peer listens whether one has reported why.
const LISTENING: Duration = Duration::from_millis(200);

/// How long a rank that gives up waits for a peer that is storing a result in its memory, which takes some milliseconds;
/// one that stopped in the middle may go on at any time.
const STORING: Duration = Duration::from_millis(500);
/// The same where the peer is a thread of this process, which nothing stops but a busy machine.
const STORING_THREAD: Duration = Duration::from_secs(10);

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

/// What this rank adds to another's reason, for its own caller alone.
pub(super) const WAITED: &str = "; this rank was waiting for ";

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
    if channels[peer].is_none() {
        return Stance::Silent;
    }
    // The end is looked at first: what was said before it has come by then.
    let ended = endpoint.ended(peer);
    if went_on(channels, peer) {
        Stance::WentOn
    } else if has_left(channels, peer) {
        Stance::Ended("it has dropped its communicator".into())
    } else {
        ended.map_or(Stance::Silent, Stance::Ended)
    }
}

/// That a peer of this host is no more and has not said so, as one does that leaves. Of others the connections tell.
pub(super) fn death(endpoint: &Endpoint, channels: &Channels, peer: usize) -> Option<nd_transport::Error> {
    let [first, ..] = channels[peer].as_ref()?;
    let maps = first.link().abilities().contains(Abilities::MAP);
    // The end is looked at first: what was said before it is there by then.
    let death = endpoint.death(peer).filter(|_| maps)?;
    (!has_left(channels, peer)).then_some(death)
}

/// Whether a peer has said that it has dropped its communicator.
fn has_left(channels: &Channels, peer: usize) -> bool {
    let dropped =
        |[first, ..]: &[Channel; LANES]| first.own().word(FAILURE).load(Ordering::Acquire) == layout::DROPPED;
    channels[peer].as_ref().is_some_and(dropped) || reported(channels, peer) == Some(Report::Left)
}

/// Ranks as people look for them.
pub(super) fn everyone(endpoint: &Endpoint, ranks: &[usize]) -> String {
    ranks.iter().map(|&r| endpoint.who(r)).collect::<Vec<_>>().join(", ")
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

/// Whether a peer has said that it gives up: what it lends may have changed.
#[inline]
pub(super) fn has_given_up(channels: &Channels, peer: usize) -> bool {
    let Some([first, ..]) = &channels[peer] else { return false };
    // What was read before is what was there before it said so.
    fence(Ordering::Acquire);
    first.own().word(FAILURE).load(Ordering::Relaxed) != 0
}

/// Has all these peers connected to at once, and says until when [`is_reached`] is to wait for them.
pub(super) fn reach_all<'a>(firsts: impl Iterator<Item = &'a Channel>) -> Instant {
    firsts.for_each(|first| drop(first.link().reach(Duration::ZERO)));
    Instant::now() + REACHING
}

/// Whether a peer is connected to, or is by then.
pub(super) fn is_reached(first: &Channel, until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    first.link().connected() || first.link().reach(left).is_ok_and(|there| there)
}

/// Which peers are told that there is no connection to yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Those that are connected to within [`REACHING`], and the others when they are.
    All,
    /// The same, but they are not waited for: there was time enough, or is.
    Meanwhile,
    /// Those that connect to this rank: nobody connects to everybody in order to leave. Whoever still waits for this rank
    /// finds out when it tries to reach it, see [`reports`].
    Others,
}

/// Writes to `at` of every peer's first lane and raises the counter before it, and sees it on its way.
pub(super) fn say<'c>(
    endpoint: &Endpoint,
    channels: &'c Channels,
    (at, bytes): (u64, &[u8]),
    reach: Reach,
) -> Vec<(&'c Channel, Ticket)> {
    // Each is copied by the link.
    let parts: Vec<Part> = bytes.chunks(INLINE_PART).map(Part::of).collect();
    let signal = |first: &Channel| Signal { at: first.remote() + at, value: 1 };
    let put = |first: &'c Channel| {
        // SAFETY: the parts are short and copied by the link.
        let put = unsafe { first.link().put(&parts, first.remote() + at + 8, Some(signal(first))) };
        put.ok().map(|ticket| (first, ticket))
    };
    let firsts = channels.iter().flatten().map(|[first, ..]| first);
    let (near, far): (Vec<_>, Vec<_>) = firsts.partition(|first| first.link().connected());
    let reached_by = (reach != Reach::Others).then(|| reach_all(far.iter().copied()));
    let until = reached_by.filter(|_| reach == Reach::All).unwrap_or_else(Instant::now);
    let mut said: Vec<_> = near.into_iter().filter_map(put).collect();
    let _ = endpoint.progress();
    for first in far {
        let reached =
            if reach == Reach::Others { first.link().connected() } else { is_reached(first, until) };
        if reached {
            said.extend(put(first));
        } else {
            first.link().leave_word(bytes, first.remote() + at + 8, signal(first));
        }
    }
    let _ = endpoint.progress();
    said
}

/// The same, and waits until it has left, [`TELLING`] at most; not for peers to which nothing could be sent for [`STUCK`].
pub(super) fn tell(endpoint: &Endpoint, channels: &Channels, what: (u64, &[u8]), reach: Reach) {
    let until = Instant::now() + TELLING;
    let mut said = say(endpoint, channels, what, reach);
    let mut look = || {
        said.retain(|(first, ticket)| {
            let link = first.link();
            !link.flushed(*ticket) && endpoint.stuck(link.peer()) < STUCK
        });
        Ok::<_, nd_transport::Error>(if said.is_empty() { Step::Done } else { Step::Idle })
    };
    // What is found to be lost meanwhile is nothing to those who can be told.
    while let Some(left) = until.checked_duration_since(Instant::now())
        && endpoint.wait(left, &mut look, || Ok(())).is_err()
    {}
}

/// What a peer reports, if it does within [`LISTENING`].
pub(super) fn told(endpoint: &Endpoint, channels: &Channels) -> Option<Error> {
    let until = Instant::now() + LISTENING;
    loop {
        let _ = endpoint.progress();
        match reports(endpoint, channels, &[], iter::empty()) {
            Err(told) => return Some(told),
            Ok(()) if Instant::now() >= until => return None,
            Ok(()) => std::thread::yield_now(),
        }
    }
}

/// Errors if a peer has reported a failure, or one that is awaited is gone.
pub(super) fn reports(
    endpoint: &Endpoint,
    channels: &Channels,
    awaited: &[usize],
    watched: impl Iterator<Item = usize>,
) -> Result<()> {
    let rank = endpoint.rank();
    // Looked for first: who failed and then ended has said why before.
    let lost = awaited.iter().find_map(|&peer| endpoint.lost(peer));
    let mut watched = watched.filter(|peer| !awaited.contains(peer));
    let gone = lost.or_else(|| watched.find_map(|peer| death(endpoint, channels, peer)));
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
                    why += &format!("{WAITED}{}", everyone(endpoint, &others));
                }
                return Err(Error::PeerFailed { rank, culprit, why });
            }
            Some(Report::Aborted { culprit }) => return Err(aborted(endpoint, culprit)),
            Some(Report::Mismatch { rank, ours, peer, theirs }) => {
                return Err(Error::Mismatch { rank, ours, peer, theirs });
            }
            Some(Report::Standstill(standstill)) if standstill.fits(channels.len()) => {
                let standstill = Box::new(standstill.named(|rank| endpoint.who(rank)));
                return Err(Error::Timeout { rank, standstill, told_by: Some(peer) });
            }
            Some(Report::Standstill(_)) => {
                let what = "a report about ranks that there are not".into();
                let source = nd_transport::Error::Protocol { rank: peer, what };
                return Err(Error::Transport { rank, source });
            }
        }
    }
    gone.map_or(Ok(()), |source| Err(Error::Transport { rank, source }))
}

/// That the time for a call was up for a peer, if it was for this call or an earlier one: this rank came late, and found all
/// that it needed.
pub(super) fn was_late(endpoint: &Endpoint, channels: &Channels, call: u32) -> Option<Error> {
    (0..channels.len()).find_map(|peer| match reported(channels, peer)? {
        Report::Standstill(standstill)
            if standstill.fits(channels.len())
                && standstill.call.stamp.sequence > 0
                && !is_later(standstill.call.stamp.sequence, call) =>
        {
            let standstill = Box::new(standstill.named(|rank| endpoint.who(rank)));
            Some(Error::Timeout { rank: endpoint.rank(), standstill, told_by: Some(peer) })
        }
        _ => None,
    })
}

/// Has those that are awaited connected to: who never was cannot be seen to leave. Errors if one of them is not there.
pub(super) fn reach(endpoint: &Endpoint, awaited: &[usize]) -> Result<(), nd_transport::Error> {
    let mut links = awaited.iter().filter_map(|&peer| endpoint.link(peer));
    links.try_for_each(|link| link.reach(Duration::ZERO).map(|_| ()))
}

/// An error of this rank.
pub(super) fn failure(endpoint: &Endpoint, failure: Failure) -> Error {
    let rank = endpoint.rank();
    match failure {
        Failure::Other(e) => *e,
        Failure::Transport(nd_transport::Error::Unreachable { from, to, why }) => {
            let source = endpoint.death(to).unwrap_or_else(|| {
                // With its host and process, as people look for it.
                let why = format!("{}: {why}", endpoint.who(to));
                nd_transport::Error::Unreachable { from, to, why }
            });
            Error::Transport { rank, source }
        }
        Failure::Transport(source) => Error::Transport { rank, source },
        Failure::Mismatch { peer, ours, theirs } => Error::Mismatch { rank, ours, peer, theirs },
        Failure::Length { peer, ours, got, expected } => {
            Error::Length { rank, peer, call: ours, got, expected }
        }
        // As the receiver sees it.
        Failure::Unmatched { peer, ours, bytes, sends: true } => {
            Error::Length { rank: peer, peer: rank, call: ours, got: bytes, expected: 0 }
        }
        Failure::Unmatched { peer, ours, bytes, sends: false } => {
            Error::Length { rank, peer, call: ours, got: 0, expected: bytes }
        }
        // Of the same call, as far as stamps tell, so it is the counts.
        Failure::LeftOver { peer, ours, theirs, bytes } if ours == theirs => {
            Error::Length { rank, peer, call: ours, got: bytes, expected: 0 }
        }
        Failure::LeftOver { peer, ours, theirs, .. } => Error::Mismatch { rank, ours, peer, theirs },
        Failure::GivenUp { peer } => Error::PeerFailed {
            rank,
            culprit: peer,
            why: "it gave up while this rank read its memory".into(),
        },
        Failure::TimeUp => unreachable!("a roll call is held when the time is up"),
    }
}
