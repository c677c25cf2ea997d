//! What ranks say to each other in order to agree.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// An attempt to decide. Of two the higher round counts, then the higher rank; no two leaders share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Ballot {
    /// From 1; 0: none.
    pub round: u64,
    /// Who leads it.
    pub rank: usize,
}

/// A rank that goes on, and how the others of the new group reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Its number in the old group.
    pub rank: usize,
    /// For the layer above; not looked at here.
    pub card: Vec<u8>,
}

/// Random bytes that a leader draws for itself.
pub type Seed = [u8; 32];

/// Who goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// By rising rank.
    pub members: Vec<Offer>,
    /// Goes into the new group's secret: random, and told to nobody but those who were asked to accept this.
    pub salt: [u8; 32],
}

impl Proposal {
    /// Of these, for a ballot. Every ballot has a salt of its own: who was in an earlier proposal and is not in this
    /// one must not know this one's.
    pub(super) fn new(members: Vec<Offer>, seed: &Seed, ballot: Ballot) -> Proposal {
        let mut hash = Sha256::new();
        hash.update(b"nd membership salt\0");
        hash.update(seed);
        hash.update(ballot.round.to_le_bytes());
        hash.update((ballot.rank as u64).to_le_bytes());
        Proposal { members, salt: hash.finalize().into() }
    }

    /// The ranks, ascending.
    pub fn ranks(&self) -> Vec<usize> {
        self.members.iter().map(|m| m.rank).collect()
    }

    /// Whether it is one of a group of that size: somebody, each once, in order.
    pub(super) fn is_of(&self, size: usize) -> bool {
        let ranks = self.ranks();
        ranks.is_sorted_by(|a, b| a < b) && ranks.last().is_some_and(|last| *last < size)
    }

    /// Whether the rank is one of them.
    pub fn has(&self, rank: usize) -> bool {
        self.members.iter().any(|m| m.rank == rank)
    }
}

/// A proposal that a rank has accepted, and in which ballot.
pub type Accepted = (Ballot, Proposal);

/// What ranks say. Any message may come late, twice, in another order, or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// A leader asks whether the receiver takes part.
    Ask {
        /// Its ballot.
        ballot: Ballot,
        /// The ranks that certainly are no more.
        dead: Vec<usize>,
    },
    /// The receiver is followed, and no lower ballot.
    Promise {
        /// The ballot asked about.
        ballot: Ballot,
        /// The highest proposal accepted so far.
        accepted: Option<Accepted>,
        /// How the sender can be reached, should it be one of those who go on.
        card: Vec<u8>,
        /// The ranks that certainly are no more.
        dead: Vec<usize>,
    },
    /// The leader's proposal.
    Propose {
        /// Its ballot.
        ballot: Ballot,
        /// Who goes on.
        proposal: Proposal,
    },
    /// The sender has accepted.
    Accept {
        /// Which ballot's proposal.
        ballot: Ballot,
    },
    /// A higher ballot was promised.
    Refuse {
        /// That one.
        promised: Ballot,
    },
    /// This is decided.
    Decided {
        /// Who goes on.
        proposal: Proposal,
    },
    /// Too few are left to decide.
    Hopeless {
        /// Who took part, by whose count.
        present: Vec<usize>,
        /// The ranks that certainly are no more.
        dead: Vec<usize>,
    },
}

impl Message {
    /// Whether it can have been said in a group of that size.
    pub(super) fn is_of(&self, size: usize) -> bool {
        match self {
            Message::Promise { accepted, .. } => accepted.as_ref().is_none_or(|a| a.1.is_of(size)),
            Message::Propose { proposal, .. } | Message::Decided { proposal } => proposal.is_of(size),
            Message::Ask { .. }
            | Message::Accept { .. }
            | Message::Refuse { .. }
            | Message::Hopeless { .. } => true,
        }
    }
}
