//! What ranks that wait tell each other, so that those who disagree find out although neither sends the other anything.
//!
//! Messages carry stamps, but ranks that disagree may each wait for a message of the other: two that both take themselves
//! for the root of a gather, or one that has nothing to send where the other expects something. So whoever has waited for
//! a while tells those it waits for which call that is, and which calls it has finished; and whoever is waited for in a
//! call that it has finished answers in the same way. Links keep the order, so of a call that a peer has finished nothing
//! can come any more. Where memory is mapped, the calls that a peer has finished are seen although it says nothing: its part of
//! such a call may need nobody, and its program may be busy elsewhere. A call that does not wait for long does none of this.
#![allow(unsafe_code)] // puts what it tells into the peers' inboxes

use std::sync::atomic::Ordering;

use nd_transport::{Part, Signal};

use super::called::Called;
use super::channel::Channel;
use super::history::History;
use super::layout::{WAITING, WAITING_BYTES};
use super::run::{Awaited, Channels, Failure, Segment};
use super::stamp::{Stamp, is_later, wire_number};

/// In a peer's inbox a counter, then two places for what was said: that of the odd and that of the even ones, so that the
/// last is not changed while it is read.
const PLACE: u64 = 8;
const WORDS: usize = 2 * Called::WORDS + 1;
/// Looks after which nothing is expected any more of a peer that does not remember the call.
const LOOKS: u32 = 5;

/// What was said so many calls ago says nothing any more: numbers of calls begin anew.
const FORGOTTEN: u64 = 1 << 30;

/// What a rank that waits says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Says {
    call: Called,
    /// So many collective calls are finished, the first ones.
    finished: u64,
    /// The finished call of the number in which it was said to be waited for, if it remembers.
    about: Option<Called>,
}

/// What was told and heard.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// What each peer was told last, and how often it was told something.
    told: Vec<Option<(Says, u64)>>,
    /// Peers that have finished a call in which this rank waits for them, that call, and for how many looks so.
    over: Vec<(usize, u32, u32)>,
}

/// Where this rank is.
pub(super) struct Now<'r> {
    /// Its number.
    pub rank: usize,
    pub segments: &'r [Segment],
    /// The first call that is not done.
    pub call: Called,
    /// So many collective calls are, the first ones.
    pub finished: u64,
    /// What was finished before.
    pub history: History,
    pub awaited: Vec<Awaited>,
}

impl Now<'_> {
    /// This rank's own call of that number, as far as it remembers.
    fn own(&self, sequence: u32) -> Option<Called> {
        let mut ours = self.segments.iter().map(|s| Called { stamp: s.stamp, ..Called::default() });
        ours.find(|own| own.stamp.sequence == sequence).or_else(|| self.history.find(sequence))
    }
}

impl Waiting {
    /// A look at the world during a long wait.
    pub fn look(&mut self, channels: &Channels, now: &Now<'_>) -> Result<(), Failure> {
        self.told.resize(channels.len(), None);
        let mut over = Vec::new();
        for (peer, lanes) in channels.iter().enumerate() {
            let Some(lanes) = lanes else { continue };
            let first = &lanes[0];
            let theirs = heard(first).filter(|says| says.finished.abs_diff(now.finished) < FORGOTTEN);
            let mut says = Says { call: now.call, finished: now.finished, about: None };
            let mut asks = now.awaited.iter().any(|a| a.peer == peer);
            if let Some(theirs) = theirs {
                compare(peer, Some(theirs.call), now)?;
                compare(peer, theirs.about, now)?;
                let sequence = theirs.call.stamp.sequence;
                if sequence > 0 && !is_later(sequence, wire_number(now.finished)) {
                    says.about = now.own(sequence);
                    asks = true;
                }
            }
            for awaited in now.awaited.iter().filter(|a| a.peer == peer) {
                let sequence = now.segments[awaited.segment].stamp.sequence;
                let seen = History::of_peer(channels, now.rank, peer);
                compare(peer, seen.and_then(|history| history.find_while_it_grows(sequence)), now)?;
                let later = lanes[awaited.lane].next().filter(|_| !awaited.sends);
                over.extend(self.over(now.segments[awaited.segment].stamp, theirs, later, awaited)?);
            }
            if asks && first.link().connected() {
                tell(first, says, &mut self.told[peer])?;
            }
        }
        self.over = over;
        Ok(())
    }

    /// Whether a peer for which this rank waits in a call has finished it, as it says or as a message of a `later` one shows,
    /// and for how many looks so.
    fn over(
        &self,
        ours: Stamp,
        theirs: Option<Says>,
        later: Option<Stamp>,
        awaited: &Awaited,
    ) -> Result<Option<(usize, u32, u32)>, Failure> {
        let (peer, sequence) = (awaited.peer, ours.sequence);
        let later = later.filter(|later| is_later(later.sequence, sequence));
        if sequence == 0
            || (later.is_none() && theirs.is_none_or(|says| is_later(sequence, wire_number(says.finished))))
        {
            return Ok(None);
        }
        let before = self.over.iter().find(|(p, number, _)| (*p, *number) == (peer, sequence));
        let looks = before.map_or(0, |(.., looks)| *looks);
        // That it is not another call has been seen before.
        let same = theirs.and_then(|says| says.about).is_some_and(|about| about.stamp.sequence == sequence);
        // What came before it said so has been looked at since.
        if looks < if same { 1 } else { LOOKS } {
            return Ok(Some((peer, sequence, looks + 1)));
        }
        Err(match later {
            Some(theirs) if !same => Failure::Mismatch { peer, ours, theirs },
            _ => Failure::Unmatched { peer, ours, bytes: awaited.bytes, sends: awaited.sends },
        })
    }
}

/// Checks that nothing has come of the collective calls before that number which this rank did not expect then; it is in
/// this call now.
pub(super) fn left_overs(channels: &Channels, oldest: u32, ours: Stamp) -> Result<(), Failure> {
    for (peer, lanes) in channels.iter().enumerate() {
        let found = lanes.iter().flatten().find_map(|channel| channel.left_over(oldest));
        if let Some((theirs, bytes)) = found {
            return Err(Failure::LeftOver { peer, ours, theirs, bytes });
        }
    }
    Ok(())
}

/// A call of the same number as one of this rank's is the same call.
fn compare(peer: usize, theirs: Option<Called>, now: &Now<'_>) -> Result<(), Failure> {
    let Some(theirs) = theirs else { return Ok(()) };
    let sequence = theirs.stamp.sequence;
    let own = now.own(sequence).filter(|own| sequence > 0 && own.stamp != theirs.stamp);
    own.map_or(Ok(()), |own| Err(Failure::Mismatch { peer, ours: own.stamp, theirs: theirs.stamp }))
}

fn tell(first: &Channel, says: Says, told: &mut Option<(Says, u64)>) -> Result<(), Failure> {
    if told.is_some_and(|(before, _)| before == says) {
        return Ok(());
    }
    let number = told.map_or(0, |(_, number)| number) + 1;
    let mut bytes = [0; 8 * WORDS];
    let about = says.about.map_or([0; Called::WORDS], |about| about.words());
    let words = says.call.words().into_iter().chain(about).chain([says.finished]);
    bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_ne_bytes()));
    let at = first.remote() + WAITING;
    // SAFETY: the part is short and copied by the link.
    unsafe { first.link().put(&[Part::of(&bytes)], at + place(number), Some(Signal { at, value: number }))? };
    *told = Some((says, number));
    Ok(())
}

/// What a peer said last, if anything.
fn heard(first: &Channel) -> Option<Says> {
    let own = first.own();
    let number = own.word(WAITING).load(Ordering::Acquire);
    if number == 0 {
        return None;
    }
    let at = WAITING + place(number);
    let call = Called::from_words(own.read(at))?;
    let about = Called::from_words(own.read(at + 8 * Called::WORDS as u64));
    Some(Says { call, about, finished: own.get(at + 16 * Called::WORDS as u64) })
}

const fn place(number: u64) -> u64 {
    PLACE + number % 2 * 8 * WORDS as u64
}

const _: () = assert!(place(1) + 8 * WORDS as u64 <= WAITING_BYTES);
