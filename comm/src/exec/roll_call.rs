//! How all ranks come to tell the same when the time for a call is up.
//!
//! The rank whose time is up first tells all others where it is; whoever is in a call sees that at its next look at the
//! world, ends the call and answers all others in the same way. The lowest rank that has answered makes a [`Standstill`] of
//! all answers and reports it; the others wait for that. Who enters a call later finds the report at once. When for
//! [`ANSWERING`] no further answer has come, the ranks that are left are busy elsewhere or stopped; of those, the others say
//! what they have seen. Where all that are left are dead or cut off, that is seen sooner; where the network to them is slow but
//! carries something, it is waited longer, see [`Pace`].
//!
//! # When two ranks tell two stories
//! The lowest that answers makes its story [`ANSWERING`] and a round trip after it last heard anything, the others would after
//! twice that; so a report has that much time to arrive, and more than its way takes. What is left is this: the rank that is
//! the lowest hears another answer so much later than the rest that both make theirs within the time that a report takes
//! between them; and [`AT_MOST_SLOWLY`] passes first.
#![allow(unsafe_code)] // reads answers in the inbox, and what peers show

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::iter;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nd_transport::Endpoint;

use super::called::Called;
use super::channel::Channel;
use super::history::History;
use super::layout::{self, TIME_UP, WHEREABOUTS};
use super::memory::copy;
use super::peers::{Reach, death, reports, say};
use super::run::Channels;
use super::stamp::{self, is_later};
use super::standstill::{AWAITED, Fate, Seen, Standstill, Whereabouts};
use crate::error::Error;

/// How long the next answer is waited for: every rank in a call looks at the world every 100 ms, once it has a core.
const ANSWERING: Duration = Duration::from_millis(500);
/// The same where none is expected: from hosts to which the network does not work.
const SILENT: Duration = Duration::from_millis(250);
/// How long all of them are waited for, however slowly they come.
const AT_MOST: Duration = Duration::from_secs(3);
/// The same where it is the network that is slow.
const AT_MOST_SLOWLY: Duration = Duration::from_secs(10);
/// A round trip that takes longer is not waited for any longer.
const ROUND_TRIP: Duration = Duration::from_secs(2);
/// How often it is looked what the network carries: for each rank a system call.
const LOOK: Duration = Duration::from_millis(20);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(200);

/// Whether a peer's time is up.
pub(super) fn is_called(channels: &Channels) -> bool {
    let up = |[first, ..]: &[Channel; layout::LANES]| first.own().word(TIME_UP).load(Ordering::Relaxed) != 0;
    channels.iter().flatten().any(up)
}

/// Where this rank is, in that call and after so many collective ones, and what it knows of the others.
pub(super) fn whereabouts(
    endpoint: &Endpoint,
    channels: &Channels,
    awaited: &[usize],
    mut heard: Vec<usize>,
    (call, entered): (Called, u32),
) -> Whereabouts {
    let me = endpoint.rank();
    let seen = |peer: usize| Seen {
        rank: peer,
        heard: latest(channels, me, peer),
        finished: finished(channels, me, peer),
    };
    let beyond = |peer: &usize| {
        let Seen { heard, finished, .. } = seen(*peer);
        let reaches = |c: Option<Called>| c.is_some_and(|c| !is_later(call.stamp.sequence, c.stamp.sequence));
        !call.is_single() && (reaches(heard) || reaches(finished))
    };
    heard.extend((0..channels.len()).filter(beyond));
    let awaited = awaited.iter().take(AWAITED).map(|&peer| seen(peer)).collect();
    Whereabouts { call, entered, awaited, heard, ..Whereabouts::default() }
}

/// Tells all others.
pub(super) fn answer(endpoint: &Endpoint, channels: &Channels, mine: &Whereabouts) {
    say(endpoint, channels, (TIME_UP, &mine.encode()), Reach::Meanwhile);
}

/// Waits for what comes of it.
pub(super) fn hold(endpoint: &Endpoint, channels: &Channels, mine: Whereabouts) -> Error {
    let me = endpoint.rank();
    let own = !mine.after.is_zero();
    let began = Instant::now();
    let mut heard = began;
    let mut said = BTreeMap::from([(me, mine)]);
    let mut pace = Pace::default();
    loop {
        let _ = endpoint.progress();
        match reports(endpoint, channels, &[], iter::empty()) {
            Ok(()) => {}
            Err(Error::Timeout { rank, standstill, told_by }) => {
                return Error::Timeout { rank, standstill, told_by: told_by.filter(|_| !own) };
            }
            Err(e) => return e,
        }
        for peer in 0..channels.len() {
            if let Entry::Vacant(place) = said.entry(peer)
                && let Some(theirs) = answered(channels, peer)
            {
                place.insert(theirs);
                heard = Instant::now();
            }
        }
        if pace.look(endpoint, |peer| said.contains_key(&peer)) {
            heard = Instant::now();
        }
        let most = if pace.is_slow() { AT_MOST_SLOWLY } else { AT_MOST };
        let late = began.elapsed().saturating_sub(most);
        let quiet = heard.elapsed().max(late);
        // It is looked only when it has become quiet: of some of them each look reads a file.
        let in_vain =
            |peer| quiet >= SILENT && (endpoint.cut_off(peer) || death(endpoint, channels, peer).is_some());
        let lowest = said.keys().find(|&&rank| rank == me || !in_vain(rank)) == Some(&me);
        let nobody_comes = || (0..channels.len()).all(|peer| said.contains_key(&peer) || in_vain(peer));
        let answering = ANSWERING + pace.round_trip;
        let over = |patience: Duration| quiet >= patience && (!pace.under_way || !late.is_zero());
        // Should the lowest not manage to, others do.
        if over(2 * answering) || (lowest && (over(answering) || nobody_comes())) {
            let fate = |peer: usize| match death(endpoint, channels, peer) {
                Some(_) => Fate::Gone,
                None if endpoint.unheard(peer) => Fate::Unheard,
                None => Fate::Unknown,
            };
            let silent = (0..channels.len()).filter(|peer| !said.contains_key(peer));
            let silent = silent.map(|peer| (peer, fate(peer))).collect();
            let standstill = Standstill::of(channels.len(), &said, &silent).named(|rank| endpoint.who(rank));
            let others = said.iter().find(|(rank, w)| **rank != me && !w.after.is_zero());
            let told_by = others.map(|(rank, _)| *rank).filter(|_| !own);
            return Error::Timeout { rank: me, standstill: Box::new(standstill), told_by };
        }
        std::thread::sleep(if quiet < SILENT { PAUSE } else { 10 * PAUSE });
    }
}

/// What the network carries to and from the ranks that have not answered. Where it is slow, their answers come behind what was
/// sent before, and only after they have heard this rank.
#[derive(Default)]
struct Pace {
    looked: Option<Instant>,
    /// When something was last seen to have moved.
    moved: Option<Instant>,
    /// Bytes, those of all of them together.
    carried: u64,
    /// Something that this rank has said may still reach one of them.
    under_way: bool,
    /// The longest round trip to any rank.
    round_trip: Duration,
}

impl Pace {
    /// Looks, now and then; whether something has moved.
    fn look(&mut self, endpoint: &Endpoint, answered: impl Fn(usize) -> bool) -> bool {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return false;
        }
        let mut now = Pace { looked: Some(Instant::now()), moved: self.moved, ..Pace::default() };
        for peer in 0..endpoint.world_size() {
            let Some(traffic) = endpoint.traffic(peer) else { continue };
            now.round_trip = now.round_trip.max(traffic.round_trip.min(ROUND_TRIP));
            if !answered(peer) {
                now.carried = now.carried.wrapping_add(traffic.carried);
                now.under_way |= traffic.under_way;
            }
        }
        let moved = self.looked.is_some() && now.carried != self.carried;
        if moved {
            now.moved = now.looked;
        }
        *self = now;
        moved
    }

    /// Whether the network is what they wait for.
    fn is_slow(&self) -> bool {
        let patience = ANSWERING + self.round_trip;
        self.under_way || self.moved.is_some_and(|moved| moved.elapsed() < patience)
    }
}

/// What a peer has answered.
fn answered(channels: &Channels, peer: usize) -> Option<Whereabouts> {
    let [first, ..] = channels[peer].as_ref()?;
    if first.own().word(TIME_UP).load(Ordering::Acquire) == 0 {
        return None;
    }
    let mut bytes = [0; WHEREABOUTS];
    // SAFETY: the answer lies in this rank's inbox.
    unsafe { copy(first.own().at(TIME_UP + 8), bytes.as_mut_ptr(), WHEREABOUTS) };
    let answer = Whereabouts::decode(&bytes);
    let ranks = answer.awaited.iter().map(|seen| &seen.rank).chain(&answer.heard);
    ranks.into_iter().all(|rank| *rank < channels.len()).then_some(answer)
}

/// The latest call of which a message of the peer has come.
fn latest(channels: &Channels, me: usize, peer: usize) -> Option<Called> {
    let lanes = channels[peer].as_ref()?;
    let messages = lanes.iter().filter_map(Channel::latest);
    let stamp = stamp::latest(messages, |stamp| stamp.sequence)?;
    Some(Called { stamp, peer: me as u32, sends: true })
}

/// The last call that the peer has finished, if its memory is mapped.
fn finished(channels: &Channels, me: usize, peer: usize) -> Option<Called> {
    History::of_peer(channels, me, peer)?.last()
}
