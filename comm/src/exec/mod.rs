//! Runs programs on host memory, over the links of an endpoint.
//!
//! | file | what |
//! |---|---|
//! | [`stamp`] | what a call is, in 24 bytes: every message carries it, so that ranks that disagree find out |
//! | [`called`] | a call as its caller knows it |
//! | [`layout`] | how the inbox is laid out that every rank has for every peer |
//! | `memory` | the raw memory of inboxes and buffers |
//! | `channel` | messages between two ranks in one lane: descriptors, slots, credits, grants |
//! | [`plan`] | a program, made ready to run: addresses resolved, waits numbered |
//! | [`plans`] | the plans that a communicator has made, found again when calls repeat |
//! | `slot_words` | how a slot of shared memory changes hands: lock-free |
//! | `grant_words` | a grant in shared memory: lock-free |
//! | [`grants`] | when a message may be put where it belongs |
//! | `run` | the loop that runs plans |
//! | `sending` | what of a message is posted, and what became of it |
//! | `combine` | one fold, as far as its messages have come |
//! | `report` | what a rank tells its peers when it gives up |
//! | `peers` | what they tell it, and whom it names |
//! | `ending` | that the program wants no more of it |
//! | `history` | the last calls that a rank has finished |
//! | `waiting` | what ranks that wait tell each other |
//! | [`standstill`] | where all ranks are when the time for a call is up |
//! | `roll_call` | how they come to tell each other |
//! | [`engine`] | a communicator's channels and scratch: performs calls, reports failures to the peers |
//!
//! # How a message travels
//! A message is posted as one *descriptor* or several, each in the next of [`layout::DESCRIPTORS`] places of the
//! receiver's inbox. Where the receiver can reach the sender's memory (a mapped window, or cross-memory attach),
//! the descriptor of a long message only says where it lies, and the receiver reduces or copies from there; the
//! sender learns by the *credit* counter when it has. Otherwise the descriptor carries the data: up to
//! [`layout::INLINE`] bytes beside its sequence number, in one cache line, up to [`layout::SHORT`] after that line, else
//! up to [`layout::SLOT_BYTES`] bytes in the next of [`layout::SLOTS`] slots. A sender out of descriptors or slots waits
//! for credit; the lane goes on meanwhile.
//!
//! # Straight to where it belongs
//! A receiver that will only copy a long message *grants* its destination as soon as nothing else uses it, mostly at
//! the beginning of the call. Over a network the sender then puts all that is left of the message there, at once.
//! Where memory is mapped, a rank that reduces something and sends it next *claims* the grants and stores each block
//! of the result in all destinations while the block is in the first-level cache: nobody reads it back. A receiver
//! that gives up takes its grants back; if a sender that has claimed one does not end soon (it was stopped), the
//! receiver takes the buffer out of the shared memory instead, so that nothing is written behind its back.

pub mod called;
pub(crate) mod channel;
pub(crate) mod combine;
pub(crate) mod ending;
pub mod engine;
pub(crate) mod grant_words;
pub mod grants;
pub(crate) mod history;
#[cfg(test)]
mod hostile;
pub mod layout;
pub(crate) mod memory;
pub(crate) mod peers;
pub mod plan;
pub mod plans;
#[cfg(test)]
mod renumbering;
pub(crate) mod report;
pub(crate) mod roll_call;
pub(crate) mod run;
pub(crate) mod sending;
pub(crate) mod slot_words;
pub mod stamp;
pub mod standstill;
pub(crate) mod waiting;
