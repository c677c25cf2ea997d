//! Who of a communicator's ranks go on together after some have failed — *pure*: events go in, messages and a decision
//! come out.
//!
//! | file | what |
//! |---|---|
//! | `message` | what ranks say to each other |
//! | `quorum` | how many ranks may decide for all |
//! | `member` | one rank's side of the agreement |
//!
//! # How ranks agree
//! It is one instance of Paxos (Lamport, *The Part-Time Parliament*, 1998, and *Paxos Made Simple*, 2001) whose leader is
//! the lowest rank that is not believed to have failed (the detector Ω of Chandra, Hadzilacos and Toueg, 1996), and
//! whose value is a list of ranks with what is needed to reach each of them:
//!
//! 1. The leader *asks* everybody with a new ballot. A rank that takes part *promises* to listen to no lower ballot,
//!    says what it has accepted before, and offers how it can be reached.
//! 2. When all have promised of whom it is not known that they cannot, the leader *proposes*: those who promised,
//!    unless one of them has accepted a proposal that may have been decided already; then that one again.
//! 3. When they have *accepted*, it is decided, and the leader says so.
//!
//! A leader that fails is followed by the next rank, with a higher ballot. A rank that fails after it has promised
//! and before it has accepted makes the leader begin again without it. One that fails later is in the decision: the
//! decision stays the same for all, and its failure is the next one, of the new group.
//!
//! Unlike User Level Failure Mitigation's agreement for MPI (Herault et al., *Practical scalable consensus for
//! pseudo-synchronous distributed systems*, 2015), which assumes that a suspected process is dead, this must be right
//! also where ranks were merely stopped, or are behind a broken link. Hence the quorum.
//!
//! # What holds
//! * All who decide, and live, decide the same.
//! * Who is in the decision has taken part; who takes part, is not suspected and does not fail is in it.
//! * At most one group goes on, also if the network is parted: the part with more than half of the ranks, or with half
//!   of them and the lowest, or with all that are not certainly dead (`quorum`). The other parts end with an error.
//! * Every wait ends when the caller says that it has lasted too long ([`Member::overdue`]).

mod member;
mod message;
mod quorum;
#[cfg(test)]
mod tests;

pub use member::{Member, Outcome};
pub use message::{Accepted, Ballot, Message, Offer, Proposal, Seed};
pub use quorum::enough;
