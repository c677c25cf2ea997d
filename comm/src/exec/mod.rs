//! Runs programs on host memory, over the links of an endpoint.
//!
//! | file | what |
//! |---|---|
//! | [`stamp`] | what a call is, in 24 bytes: every message carries it, so that ranks that disagree find out |
//! | [`layout`] | how the inbox is laid out that every rank has for every peer |
//! | `memory` | the raw memory of inboxes and buffers |
//! | `channel` | messages between two ranks in one lane: descriptors, slots, credits |
//! | [`plan`] | a program, made ready to run: addresses resolved, waits numbered |
//! | `run` | the loop that runs plans |
//! | `report` | what a rank tells its peers when it gives up |
//! | `peers` | what they tell it, and whom it names |
//! | [`engine`] | a communicator's channels, scratch and plans; reports failures to the peers |
//!
//! # How a message travels
//! A message is posted as one *descriptor* or several, each in the next of [`layout::SLOTS`] slots of the
//! receiver's inbox. Where the receiver can reach the sender's memory (a mapped window, or cross-memory attach),
//! the descriptor of a long message only says where it lies, and the receiver reduces or copies from there; the
//! sender learns by the *credit* counter when it has. Otherwise the descriptor carries the data: up to
//! [`layout::INLINE`] bytes beside its sequence number, in one cache line, else up to [`layout::SLOT_BYTES`] bytes
//! in the slot. A sender out of slots waits for credit; the lane goes on meanwhile.

pub(crate) mod channel;
pub mod engine;
pub mod layout;
pub(crate) mod memory;
pub(crate) mod peers;
pub mod plan;
pub(crate) mod report;
pub(crate) mod run;
pub mod stamp;
