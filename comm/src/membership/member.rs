//! One rank's side of the agreement.

use std::collections::{BTreeMap, BTreeSet};

use super::message::{Accepted, Ballot, Message, Offer, Proposal, Seed};
use super::quorum::enough;

/// What is believed of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It is waited for.
    Awaited,
    /// It was waited for long enough; it counts again when it is heard of.
    Suspected,
    /// It cannot take part, but may live.
    Gone,
    /// It certainly is no more.
    Dead,
}

/// How the agreement ended for this rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// These go on.
    Decided(Proposal),
    /// Too few took part.
    Hopeless {
        /// Who did.
        present: Vec<usize>,
        /// Who certainly is no more.
        dead: Vec<usize>,
    },
}

/// How far a ballot is that this rank leads.
#[derive(Debug)]
struct Leading {
    ballot: Ballot,
    /// By rank, what it had accepted and how it is reached.
    promises: BTreeMap<usize, (Option<Accepted>, Vec<u8>)>,
    proposed: Option<Proposed>,
}

#[derive(Debug)]
struct Proposed {
    proposal: Proposal,
    /// It was made for this ballot, rather than taken over from another leader.
    new: bool,
    accepts: BTreeSet<usize>,
}

/// One rank in the agreement of ranks `0..size`.
#[derive(Debug)]
pub struct Member {
    me: usize,
    card: Vec<u8>,
    seed: Seed,
    standing: Vec<Standing>,
    /// Ranks that might lead and have not done so for too long; they may still take part.
    passed: Vec<bool>,
    promised: Ballot,
    accepted: Option<Accepted>,
    /// The highest round that this rank knows of.
    round: u64,
    leading: Option<Leading>,
    /// Ballots of this rank whose proposal was new. It alone could have decided them, and has not.
    undecided: Vec<Ballot>,
    outcome: Option<Outcome>,
    steps: u64,
    out: Vec<(usize, Message)>,
}

impl Member {
    /// Rank `me` of `size` begins; `card` is what the others need to reach it in the new group, `seed` random.
    pub fn new(me: usize, size: usize, card: Vec<u8>, seed: Seed) -> Member {
        let mut member = Member {
            me,
            card,
            seed,
            standing: vec![Standing::Awaited; size],
            passed: vec![false; size],
            promised: Ballot::default(),
            accepted: None,
            round: 0,
            leading: None,
            undecided: Vec::new(),
            outcome: None,
            steps: 0,
            out: Vec::new(),
        };
        member.consider();
        member
    }

    /// What is to be sent, in this order, to whom.
    pub fn messages(&mut self) -> Vec<(usize, Message)> {
        std::mem::take(&mut self.out)
    }

    /// How it ended, if it has.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Grows whenever something happened that brings the end nearer.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether ranks that have not been heard of may still join: no proposal has been made or seen.
    pub fn gathers(&self) -> bool {
        self.accepted.is_none() && self.leading.as_ref().is_none_or(|leading| leading.proposed.is_none())
    }

    /// Whether this rank leads at present.
    pub fn leads(&self) -> bool {
        self.leading.is_some()
    }

    /// For whom this rank waits.
    pub fn awaited(&self) -> Vec<usize> {
        match &self.leading {
            Some(leading) => self.unanswered(leading),
            None => vec![self.leader()],
        }
    }

    /// The ranks that certainly are no more, as far as this one has learned.
    pub fn buried(&self) -> Vec<usize> {
        (0..self.standing.len()).filter(|&rank| self.standing[rank] == Standing::Dead).collect()
    }

    /// The rank cannot take part any more, although it may live.
    pub fn gone(&mut self, rank: usize) {
        if matches!(self.standing(rank), Some(Standing::Awaited | Standing::Suspected)) {
            self.standing[rank] = Standing::Gone;
            self.steps += 1;
            self.consider();
        }
    }

    /// The rank certainly is no more.
    pub fn dead(&mut self, rank: usize) {
        self.bury(&[rank]);
        self.consider();
    }

    /// Whoever is waited for has been waited for long enough.
    pub fn overdue(&mut self) {
        match &self.leading {
            Some(leading) => {
                for rank in self.unanswered(leading) {
                    self.standing[rank] = Standing::Suspected;
                }
            }
            // All that might lead have had as long as the first of them.
            None => self.passed[..self.me].fill(true),
        }
        self.consider();
    }

    /// Says again what was not answered; for now and then, as messages may be lost.
    pub fn remind(&mut self) {
        let Some(leading) = &self.leading else { return self.ask_again() };
        let unanswered = self.unanswered(leading);
        let message = match &leading.proposed {
            None => Message::Ask { ballot: leading.ballot, dead: self.buried() },
            Some(proposed) => {
                Message::Propose { ballot: leading.ballot, proposal: proposed.proposal.clone() }
            }
        };
        for rank in unanswered {
            self.send(rank, message.clone());
        }
    }

    /// The leader's decision may have been lost.
    fn ask_again(&mut self) {
        if self.outcome.is_some() || self.promised.rank == self.me {
            return;
        }
        let message = match &self.accepted {
            Some((ballot, _)) if *ballot == self.promised => Message::Accept { ballot: *ballot },
            _ if self.promised.round > 0 => self.promise(self.promised),
            _ => return,
        };
        self.send(self.promised.rank, message);
    }

    fn promise(&self, ballot: Ballot) -> Message {
        let (accepted, card) = (self.accepted.clone(), self.card.clone());
        Message::Promise { ballot, accepted, card, dead: self.buried() }
    }

    /// A message came.
    pub fn handle(&mut self, from: usize, message: Message) {
        let size = self.standing.len();
        let possible = from != self.me && message.is_of(size);
        let Some(standing) = self.standing(from).filter(|_| possible) else { return };
        if matches!(message, Message::Ask { .. } | Message::Propose { .. }) {
            self.passed[from] = false;
        }
        if standing == Standing::Suspected {
            self.standing[from] = Standing::Awaited;
        }
        if let Some(outcome) = &self.outcome {
            // The sender does not know yet.
            let answer = match outcome {
                Outcome::Decided(proposal) => Message::Decided { proposal: proposal.clone() },
                Outcome::Hopeless { present, dead } => {
                    Message::Hopeless { present: present.clone(), dead: dead.clone() }
                }
            };
            if !matches!(message, Message::Decided { .. } | Message::Hopeless { .. }) {
                self.send(from, answer);
            }
            return;
        }
        self.take(from, message);
        self.consider();
    }

    fn take(&mut self, from: usize, message: Message) {
        match message {
            Message::Ask { ballot, dead } => {
                self.bury(&dead);
                if self.follow(from, ballot) {
                    let promise = self.promise(ballot);
                    self.send(from, promise);
                }
            }
            Message::Promise { ballot, accepted, card, dead } => {
                self.bury(&dead);
                // Said before it failed.
                let failed = self.standing[from] != Standing::Awaited;
                if let Some(leading) = self.leading.as_mut().filter(|_| !failed)
                    && leading.ballot == ballot
                    && leading.proposed.is_none()
                    && leading.promises.insert(from, (accepted, card)).is_none()
                {
                    self.steps += 1;
                }
            }
            Message::Propose { ballot, proposal } => {
                if self.follow(from, ballot) {
                    self.accepted = Some((ballot, proposal));
                    self.steps += 1;
                    self.send(from, Message::Accept { ballot });
                }
            }
            Message::Accept { ballot } => {
                if let Some(leading) = &mut self.leading
                    && leading.ballot == ballot
                    && let Some(proposed) = &mut leading.proposed
                    && proposed.accepts.insert(from)
                {
                    self.steps += 1;
                }
            }
            Message::Refuse { promised } => {
                self.round = self.round.max(promised.round);
                if self.leading.as_ref().is_some_and(|leading| leading.ballot < promised) {
                    self.leading = None;
                }
            }
            Message::Decided { proposal } => self.end(Outcome::Decided(proposal)),
            Message::Hopeless { present, dead } => self.end(Outcome::Hopeless { present, dead }),
        }
    }

    /// Whether this ballot is followed; if not, its leader is told.
    fn follow(&mut self, from: usize, ballot: Ballot) -> bool {
        self.round = self.round.max(ballot.round);
        if ballot < self.promised {
            let promised = self.promised;
            self.send(from, Message::Refuse { promised });
            return false;
        }
        if ballot > self.promised {
            self.promised = ballot;
            // Somebody else's does not bring nearer what is waited for: the one that is to lead may be gone.
            self.steps += u64::from(from == self.leader());
        }
        true
    }

    /// Does what follows from what is known.
    fn consider(&mut self) {
        while self.outcome.is_none() {
            if self.leader() != self.me {
                self.leading = None;
                return;
            }
            // Whoever has promised to follow a higher ballot accepts nothing in its own lower one.
            self.leading = self.leading.take().filter(|leading| leading.ballot == self.promised);
            let Some(leading) = &self.leading else {
                self.lead();
                continue;
            };
            // Somebody who failed and did not answer is waited for no more.
            let waits = !self.unanswered(leading).is_empty();
            match &leading.proposed {
                Some(proposed) if proposed.new && self.failed_before_accepting(proposed) => {
                    self.leading = None
                }
                _ if waits => return,
                None => self.propose(),
                Some(_) => self.decide(),
            }
        }
    }

    /// The lowest rank that is expected to lead.
    fn leader(&self) -> usize {
        let awaited = |rank: &usize| {
            *rank == self.me || (self.standing[*rank] == Standing::Awaited && !self.passed[*rank])
        };
        (0..self.standing.len()).find(awaited).unwrap_or(self.me)
    }

    /// Begins a ballot.
    fn lead(&mut self) {
        self.round = self.round.max(self.promised.round).saturating_add(1);
        let ballot = Ballot { round: self.round, rank: self.me };
        self.promised = ballot;
        let own = (self.accepted.clone(), self.card.clone());
        self.leading = Some(Leading { ballot, promises: BTreeMap::from([(self.me, own)]), proposed: None });
        self.steps += 1;
        let dead = self.buried();
        self.tell(|_| Message::Ask { ballot, dead: dead.clone() });
    }

    /// Everybody who can has promised.
    fn propose(&mut self) {
        let (dead, size) = (self.buried(), self.standing.len());
        let Some(leading) = &mut self.leading else { return };
        let present: Vec<usize> = leading.promises.keys().copied().collect();
        if !enough(size, &present, &dead) {
            self.tell(|_| Message::Hopeless { present: present.clone(), dead: dead.clone() });
            return self.end(Outcome::Hopeless { present, dead });
        }
        let before = leading.promises.values().filter_map(|p| p.0.as_ref()).max_by_key(|a| a.0);
        // What this rank itself has proposed and not decided, nobody has decided; nor anything before it, or it would
        // have been proposed again.
        let before = before.filter(|(ballot, _)| !self.undecided.contains(ballot));
        let (ballot, new) = (leading.ballot, before.is_none());
        let proposal = match before {
            Some((_, proposal)) => proposal.clone(),
            None => {
                let members =
                    leading.promises.iter().map(|(&rank, p)| Offer { rank, card: p.1.clone() }).collect();
                Proposal::new(members, &self.seed, ballot)
            }
        };
        leading.proposed =
            Some(Proposed { proposal: proposal.clone(), new, accepts: BTreeSet::from([self.me]) });
        if new {
            self.undecided.push(ballot);
        }
        self.accepted = Some((ballot, proposal.clone()));
        self.steps += 1;
        let me = self.me;
        for rank in present.into_iter().filter(|&rank| rank != me) {
            self.send(rank, Message::Propose { ballot, proposal: proposal.clone() });
        }
    }

    /// A member of the proposal that did not accept it and cannot be waited for.
    fn failed_before_accepting(&self, proposed: &Proposed) -> bool {
        let failed = |rank: usize| {
            self.standing[rank] != Standing::Awaited && rank != self.me && !proposed.accepts.contains(&rank)
        };
        proposed.proposal.members.iter().any(|m| failed(m.rank))
    }

    /// Everybody who can has accepted.
    fn decide(&mut self) {
        let dead = self.buried();
        let Some(Leading { proposed: Some(proposed), .. }) = &self.leading else { return };
        let accepts: Vec<usize> = proposed.accepts.iter().copied().collect();
        if !enough(self.standing.len(), &accepts, &dead) {
            self.tell(|_| Message::Hopeless { present: accepts.clone(), dead: dead.clone() });
            return self.end(Outcome::Hopeless { present: accepts, dead });
        }
        let proposal = proposed.proposal.clone();
        self.tell(|_| Message::Decided { proposal: proposal.clone() });
        self.end(Outcome::Decided(proposal));
    }

    /// Who has not answered what the leader said last.
    fn unanswered(&self, leading: &Leading) -> Vec<usize> {
        let answered = |rank: &usize| match &leading.proposed {
            None => leading.promises.contains_key(rank),
            // Only who has promised can have accepted something that must not be lost.
            Some(proposed) => proposed.accepts.contains(rank) || !leading.promises.contains_key(rank),
        };
        let awaited = |rank: &usize| self.standing[*rank] == Standing::Awaited;
        (0..self.standing.len()).filter(awaited).filter(|rank| !answered(rank)).collect()
    }

    fn standing(&self, rank: usize) -> Option<Standing> {
        self.standing.get(rank).copied()
    }

    fn bury(&mut self, ranks: &[usize]) {
        for &rank in ranks {
            // Whoever says so of this rank is wrong.
            if rank != self.me && self.standing(rank).is_some_and(|s| s != Standing::Dead) {
                self.standing[rank] = Standing::Dead;
                self.steps += 1;
            }
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
        self.leading = None;
        self.steps += 1;
    }

    fn send(&mut self, to: usize, message: Message) {
        self.out.push((to, message));
    }

    /// Says something to all who may hear it.
    fn tell(&mut self, message: impl Fn(usize) -> Message) {
        for rank in 0..self.standing.len() {
            let may = matches!(self.standing[rank], Standing::Awaited | Standing::Suspected);
            if may && rank != self.me {
                self.send(rank, message(rank));
            }
        }
    }
}
