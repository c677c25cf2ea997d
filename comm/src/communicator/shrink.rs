//! Those who are left after a failure.
//!
//! The ranks agree on who goes on ([`crate::membership`]) by messages beside the links, of which any may be broken; the
//! agreement carries all that is needed to make the new group, so that no rank can be held up by another one when it
//! makes it. At last the new group meets once: then all know that all know, and that its links work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use nd_transport::{DerivedCard, Deriving, Heard, Parley, Window};
use serde::{Deserialize, Serialize};

use super::Communicator;
use super::split::MemberCard;
use crate::error::{Error, Result};
use crate::exec::layout;
use crate::exec::peers::Stance;
use crate::membership::{Member, Message, Outcome, Proposal};
use crate::rendezvous::ranges;

/// How long one look at what was heard may wait.
const TICK: Duration = Duration::from_millis(20);
/// How often the system is asked who is still there.
const LOOK: Duration = Duration::from_millis(100);
/// How often what was not answered is said again.
const REMIND: Duration = Duration::from_millis(500);
/// How long a rank that takes part may take for one answer, where the deadline of the start leaves more.
const ANSWER: Duration = Duration::from_secs(5);

/// A message, and how long its sender will wait for ranks that have not called shrink yet.
#[derive(Serialize, Deserialize)]
struct Envelope {
    message: Message,
    patience_ms: u64,
}

/// What a rank prepares before it knows who else goes on.
struct Prepared {
    inbox: Window,
    deriving: Deriving,
    parley: Parley,
}

impl Communicator {
    /// A communicator of the ranks that are left, renumbered in their order; after a failure, or to let ranks go that do
    /// not call this. This communicator is of no more use, on any rank: calls that are going on end with an error.
    ///
    /// All ranks that go on call this, at any time within the deadline of the start (`ND_START_TIMEOUT`, which begins
    /// with the first of them). Ranks that are known to have ended are not waited for; others that do not call it
    /// in time are left out, and named in a warning. If such a rank comes to life again, its calls and its `shrink` fail
    /// with [`Error::LeftOut`]. A rank that fails meanwhile is left out as well, or, late, is the first failure
    /// of the new group, which then shrinks at once.
    ///
    /// Of ranks that cannot reach each other at most one group goes on: that of more than half of this communicator's
    /// ranks, or half of them with rank 0, or of all that are not certainly dead. The others get
    /// [`Error::Membership`].
    ///
    /// Memory of this communicator's [`alloc`](Communicator::alloc) is registered with the new one too. The new group has
    /// a secret of its own that nobody outside it was told. Threads of this rank, connections and memory that belong to
    /// the old group end when this communicator and its clones are dropped; the memory of a dead rank is given back when
    /// all ranks of its host have dropped what they shared with it.
    ///
    /// ```no_run
    /// # use nd_comm::prelude::*;
    /// # fn step(_: &Communicator) -> Result<()> { Ok(()) }
    /// # fn load_checkpoint(_: &Communicator) {}
    /// # fn main() -> Result<()> {
    /// let mut comm = Communicator::from_env()?;
    /// for _ in 0..1000 {
    ///     if let Err(error) = step(&comm) {
    ///         eprintln!("{error}");
    ///         comm = comm.shrink()?;
    ///         load_checkpoint(&comm);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::LeftOut`]; [`Error::Membership`] when too few take part, when ranks (named) do not answer within twice
    /// the start's deadline, or when this communicator was shrunk before.
    pub fn shrink(&self) -> Result<Communicator> {
        let mut group = self.shrink_once()?;
        // Every time somebody else has failed.
        for _ in 0..self.world_size() {
            let before = match group {
                (group, Ok(())) => return Ok(group),
                (group, Err(why)) => {
                    tracing::info!("rank {} shrinks once more: {why}", self.rank());
                    group
                }
            };
            group = before.shrink_once()?;
        }
        let problem = format!("it failed {} times", self.world_size() + 1);
        Err(self.membership(problem, "look at the network between the ranks that are left"))
    }

    /// The group that is agreed on, and whether it has met.
    fn shrink_once(&self) -> Result<(Communicator, Result<()>)> {
        let rank = self.rank();
        if self.shared.forked.since() {
            return Err(Error::Forked { rank });
        }
        let mut shrunk = self.shared.shrunk.lock().unwrap_or_else(PoisonError::into_inner);
        if *shrunk {
            return Err(self.membership(
                "this communicator was shrunk before".into(),
                "go on with what that gave, or make a new communicator",
            ));
        }
        *shrunk = true;
        self.shared.worker.interrupt();
        let Prepared { inbox, deriving, mut parley } = self.prepare()?;
        let card = MemberCard { card: deriving.card().clone(), inbox: inbox.offset() };
        let card = serde_json::to_vec(&card).expect("cards are plain data");
        let seed = *nd_transport::secure::Secret::random().as_bytes();
        let mut member = Member::new(rank, self.world_size(), card, seed);
        let proposal = self.agree(&mut member, &mut parley)?;
        if !proposal.has(rank) {
            return Err(Error::LeftOut { rank, by: self.everyone(&proposal.ranks()) });
        }
        let group = self.group_of(&proposal, &member.buried(), inbox, deriving)?;
        let met = group.meet(|stop| answer(&mut member, &mut parley, stop));
        Ok((group, met))
    }

    fn prepare(&self) -> Result<Prepared> {
        let rank = self.rank();
        let failed = |source| Error::Transport { rank, source };
        let everybody: Vec<usize> = (0..self.world_size()).collect();
        self.shared.worker.with_engine(|engine| {
            engine.retire(&self.membership(
                "it leaves this communicator to go on with those who are left".into(),
                "call Communicator::shrink on all ranks that go on",
            ));
            let endpoint = engine.endpoint();
            Ok(Prepared {
                inbox: self.shared.region.alloc(layout::inbox_len(everybody.len()), true).map_err(failed)?,
                deriving: endpoint.derive(&everybody).map_err(failed)?,
                parley: endpoint.parley(&self.shared.secret).map_err(failed)?,
            })
        })
    }

    /// Talks until it is decided who goes on.
    fn agree(&self, member: &mut Member, parley: &mut Parley) -> Result<Proposal> {
        let patience = self.shared.config.start_timeout();
        let mut clock = Clock::new(patience, Instant::now());
        loop {
            for (to, message) in member.messages() {
                self.say(parley, to, message, clock.patience_ms())?;
            }
            match member.outcome() {
                None => {}
                Some(Outcome::Decided(proposal)) => return Ok(proposal.clone()),
                Some(Outcome::Hopeless { present, dead }) => return Err(self.hopeless(present, dead)),
            }
            match parley.hear(TICK) {
                None => {}
                Some(Heard::Said { from, message }) => {
                    if let Ok(Envelope { message, patience_ms }) = serde_json::from_slice(&message) {
                        clock.heard(patience_ms);
                        member.handle(from, message);
                    }
                }
                Some(Heard::Left { peer } | Heard::Closed { peer }) => member.gone(peer),
                Some(Heard::Ended { peer }) => member.dead(peer),
            }
            let now = Instant::now();
            if clock.looks(now) {
                self.look(member)?;
            }
            if clock.reminds(now) {
                member.remind();
            }
            if now >= clock.end {
                let problem = format!(
                    "{} did not answer within {:.1} s",
                    self.everyone(&member.awaited()),
                    (2 * patience).as_secs_f64()
                );
                return Err(self.membership(problem, "look at what they do, and make a new communicator"));
            }
            if clock.is_overdue(member, now) {
                member.overdue();
            }
        }
    }

    /// Asks the system who is still there, and whether somebody goes on without this rank.
    fn look(&self, member: &mut Member) -> Result<()> {
        let stances = self.shared.worker.with_engine(|engine| engine.stances());
        for (peer, stance) in stances.into_iter().enumerate() {
            match stance {
                Stance::Silent => {}
                Stance::Ended(why) => {
                    if !member.buried().contains(&peer) {
                        tracing::info!("shrink goes on without {}: {why}", self.everyone(&[peer]));
                    }
                    member.dead(peer);
                }
                Stance::WentOn => {
                    return Err(Error::LeftOut { rank: self.rank(), by: self.everyone(&[peer]) });
                }
            }
        }
        Ok(())
    }

    fn say(&self, parley: &mut Parley, to: usize, message: Message, patience_ms: u64) -> Result<()> {
        let envelope =
            serde_json::to_vec(&Envelope { message, patience_ms }).expect("messages are plain data");
        parley.say(to, envelope).map_err(|source| Error::Transport { rank: self.rank(), source })
    }

    /// Makes the group that was decided on.
    fn group_of(
        &self,
        proposal: &Proposal,
        dead: &[usize],
        inbox: Window,
        deriving: Deriving,
    ) -> Result<Communicator> {
        let rank = self.rank();
        let members = proposal.ranks();
        let card = |offer: &crate::membership::Offer| {
            serde_json::from_slice(&offer.card).map_err(|e| Error::Transport {
                rank,
                source: nd_transport::Error::Protocol { rank: offer.rank, what: format!("its card: {e}") },
            })
        };
        let cards = proposal.members.iter().map(card).collect::<Result<Vec<MemberCard>>>()?;
        let derived: Vec<DerivedCard> = cards.iter().map(|c| c.card.clone()).collect();
        let inboxes: Vec<u64> = cards.iter().map(|c| c.inbox).collect();
        let label = [format!("shrink {members:?} ").as_bytes(), &proposal.salt].concat();
        let secret = self.shared.secret.derive(&label);
        let recorder = self.shared.recorder.rest(&members).expect("a rank that goes on is one of its group");
        let left: Vec<usize> = (0..self.world_size()).filter(|r| !members.contains(r)).collect();
        let (endpoint, behind) = self.shared.worker.with_engine(|engine| {
            let ended = |peer: &usize| dead.contains(peer) || engine.endpoint().ended(*peer).is_some();
            let behind: Vec<usize> = left.iter().copied().filter(|peer| !ended(peer)).collect();
            engine.leave_behind(&behind);
            (deriving.connect(engine.endpoint(), &members, &derived, &secret), behind)
        });
        let endpoint = endpoint.map_err(|source| Error::Transport { rank, source })?;
        if endpoint.rank() == 0 && !behind.is_empty() {
            tracing::warn!("left out by shrink, although perhaps alive: {}", self.everyone(&behind));
        }
        tracing::info!("rank {rank} goes on as rank {} of {}", endpoint.rank(), members.len());
        let (chooser, config) = (self.shared.chooser.clone(), self.shared.config.clone());
        Ok(Communicator::assemble(endpoint, inbox, &inboxes, secret, chooser, config, recorder))
    }

    /// The ranks of a new group meet; `meanwhile` runs until it is told to stop.
    fn meet(&self, meanwhile: impl FnOnce(&AtomicBool) + Send) -> Result<()> {
        let config = &self.shared.config;
        let patient = self.with_timeout(config.start_timeout());
        let stop = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let stopped = stop.clone();
            let name = format!("nd-shrinks-{}", self.rank());
            let thread =
                std::thread::Builder::new().name(name).spawn_scoped(scope, move || meanwhile(&stopped));
            let met = match thread {
                Ok(_) => patient.barrier(),
                Err(source) => {
                    let source = nd_transport::Error::System { what: "starting a thread".into(), source };
                    Err(Error::Transport { rank: self.rank(), source })
                }
            };
            stop.store(true, Ordering::Release);
            met
        })
    }

    fn everyone(&self, ranks: &[usize]) -> String {
        self.shared.worker.with_engine(|engine| {
            ranks.iter().map(|&rank| engine.endpoint().who(rank)).collect::<Vec<_>>().join(", ")
        })
    }

    fn hopeless(&self, present: &[usize], dead: &[usize]) -> Error {
        let size = self.world_size();
        let silent: Vec<usize> =
            (0..size).filter(|rank| !present.contains(rank) && !dead.contains(rank)).collect();
        let named = |ranks: &[usize]| if ranks.is_empty() { "none".into() } else { ranges(ranks) };
        self.membership(
            format!(
                "{} of {size} ranks take part ({}); dead for certain: {}; nothing is known of {}, which may go on \
                 without them",
                present.len(),
                named(present),
                named(dead),
                self.everyone(&silent)
            ),
            "more than half must take part, or half with rank 0, or all that are not certainly dead: end these ranks and \
             start again from what was saved",
        )
    }

    fn membership(&self, problem: String, remedy: &str) -> Error {
        Error::Membership { rank: self.rank(), call: "shrink", problem, remedy: remedy.into() }
    }
}

/// Tells those who ask late what was decided.
fn answer(member: &mut Member, parley: &mut Parley, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        if let Some(Heard::Said { from, message }) = parley.hear(TICK)
            && let Ok(Envelope { message, .. }) = serde_json::from_slice(&message)
        {
            member.handle(from, message);
        }
        for (to, message) in member.messages() {
            let envelope = Envelope { message, patience_ms: u64::MAX };
            let bytes = serde_json::to_vec(&envelope).expect("messages are plain data");
            // Whoever does not hear it asks again.
            let _ = parley.say(to, bytes);
        }
    }
}

/// When to do what.
struct Clock {
    /// Until when ranks are waited for that have not been heard of.
    gathers_until: Instant,
    /// How long one answer may take.
    answer: Duration,
    end: Instant,
    looked: Option<Instant>,
    reminded: Instant,
    steps: u64,
    stepped: Instant,
}

impl Clock {
    fn new(patience: Duration, now: Instant) -> Clock {
        Clock {
            gathers_until: now + patience,
            answer: (patience / 4).min(ANSWER),
            end: now + 2 * patience,
            looked: None,
            reminded: now,
            steps: 0,
            stepped: now,
        }
    }

    fn patience_ms(&self) -> u64 {
        self.gathers_until.saturating_duration_since(Instant::now()).as_millis() as u64
    }

    /// Nobody waits longer than the one whose patience ends first.
    fn heard(&mut self, patience_ms: u64) {
        if let Some(theirs) = Instant::now().checked_add(Duration::from_millis(patience_ms.min(1 << 40))) {
            self.gathers_until = self.gathers_until.min(theirs);
        }
    }

    fn looks(&mut self, now: Instant) -> bool {
        let due = self.looked.is_none_or(|looked| now >= looked + LOOK);
        if due {
            self.looked = Some(now);
        }
        due
    }

    fn reminds(&mut self, now: Instant) -> bool {
        let due = now >= self.reminded + REMIND;
        if due {
            self.reminded = now;
        }
        due
    }

    /// Whether whoever is waited for has had long enough.
    fn is_overdue(&mut self, member: &Member, now: Instant) -> bool {
        if member.steps() != self.steps {
            (self.steps, self.stepped) = (member.steps(), now);
        }
        let answered_by = self.stepped + self.answer;
        let by = match (member.gathers(), member.leads()) {
            (true, true) => answered_by.max(self.gathers_until),
            // The leader's patience may end with this rank's, and then it needs a moment.
            (true, false) => answered_by.max(self.gathers_until + self.answer),
            (false, _) => answered_by,
        };
        let due = now >= by;
        if due {
            self.stepped = now;
            // The next one that is waited for has as long as it takes to answer.
            self.gathers_until = self.gathers_until.max(now + self.answer);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_waited_for_longer_than_the_least_patient_waits_and_an_answer_takes_a_moment() {
        let (second, start) = (Duration::from_secs(1), Instant::now());
        let mut clock = Clock::new(60 * second, start);
        let leader = Member::new(0, 3, vec![], [0; 32]);
        assert!(leader.leads() && !clock.is_overdue(&leader, start));
        clock.heard(10_000);
        assert!(clock.gathers_until <= Instant::now() + 10 * second);
        clock.heard(20_000);
        let until = clock.gathers_until;
        assert!(!clock.is_overdue(&leader, until - second) && clock.is_overdue(&leader, until));
        // From then on whoever is asked anew has the time that an answer takes.
        assert!(
            !clock.is_overdue(&leader, until + 4 * second) && clock.is_overdue(&leader, until + 5 * second)
        );

        let mut clock = Clock::new(60 * second, start);
        let mut follower = Member::new(1, 3, vec![], [0; 32]);
        assert!(!follower.leads() && !clock.is_overdue(&follower, start + 64 * second));
        assert!(clock.is_overdue(&follower, start + 65 * second));
        follower.overdue();
        assert!(follower.leads());
    }
}
