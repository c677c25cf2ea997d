//! How the inbox is laid out that every rank has for every peer: a few lanes, each with a credit counter, lines for
//! reports of failure and for grants, descriptors, and slots for the data of some of them.

use crate::schedule::MAX_LANES;

/// Bytes of a cache line; counters that different ranks write lie in different ones.
pub const LINE: u64 = 64;
/// Descriptors of a lane: a rank that shares its core with others may post so many before it waits for its turn to come
/// again. Half of them may be consumed before their sender is told.
pub const DESCRIPTORS: u64 = 32;
/// Slots of a lane. Half of them may be consumed before their sender is told.
pub const SLOTS: u64 = 8;
/// Data that a slot holds: small enough that all slots of a few peers stay in the second-level cache.
pub const SLOT_BYTES: u64 = 32 << 10;
/// Data that a descriptor itself holds, in its line.
pub const INLINE: u64 = 32;
/// Data that the room after a descriptor's line holds.
pub const SHORT: u64 = 1 << 10;
/// As much of it as is used where memory is mapped: what comes back to the same few slots stays in the first-level cache.
pub const SHORT_MAPPED: u64 = 1 << 8;
/// Lanes of an inbox: those of the programs, and one for single sends and receives.
pub const LANES: usize = MAX_LANES + 1;
/// The lane of single sends and receives.
pub const P2P_LANE: usize = MAX_LANES;

/// Offset of the credit counter in a lane: how many of this rank's descriptors the peer has consumed.
pub const CREDIT: u64 = 0;
/// Offset, in the first lane, of the counter by which a peer that maps the inbox tells that it writes there no more.
pub const GONE: u64 = 8;
/// Offset of the counter, and after it the report, by which the peer tells that it failed; in the first lane.
pub const FAILURE: u64 = LINE;
/// What the counter says: there is a report.
pub const REPORTED: u64 = 1;
/// The peer had failed, and has dropped its communicator since.
pub const DROPPED: u64 = 2;
/// The peer goes on with others, without this rank.
pub const WENT_ON: u64 = 3;
/// Bytes of a report, after its counter.
pub const REPORT: usize = 20 * LINE as usize - 8;
/// Offset of the counter, and after it the whereabouts, by which the peer tells that its time is up; in the first lane.
pub const TIME_UP: u64 = FAILURE + 20 * LINE;
/// Bytes of whereabouts, after their counter.
pub const WHEREABOUTS: usize = 11 * LINE as usize - 8;
/// Offset, in the first lane, of what the peer says that waits for this rank; its counter first.
pub const WAITING: u64 = TIME_UP + 11 * LINE;
/// Bytes that it takes.
pub const WAITING_BYTES: u64 = 2 * LINE;
/// Offset, in the first lane of the inbox that a rank has for itself, of the last calls that it has finished.
pub const HISTORY: u64 = 0;
/// Offset, in the second lane of the inbox that a rank has for itself, of the counter by which any peer tells that it has
/// reported that the time for a call was up.
pub const LATE: u64 = 0;
/// Offset of the first of [`GRANTS`] grants: in each the number of a message, then [`GRANT_AT`] and [`GRANT_LEN`].
const GRANT: u64 = WAITING + WAITING_BYTES;
/// Grants that a peer may give ahead.
pub const GRANTS: u64 = 4;
const GRANT_BYTES: u64 = 32;
/// In a grant: the offset by which puts name the memory that the message is for.
pub const GRANT_AT: u64 = 8;
/// In a grant: how many bytes it is for.
pub const GRANT_LEN: u64 = 16;
const FIRST_DESCRIPTOR: u64 = GRANT + GRANTS * GRANT_BYTES;
const DESCRIPTOR_STRIDE: u64 = LINE + SHORT;
const FIRST_SLOT: u64 = FIRST_DESCRIPTOR + DESCRIPTORS * DESCRIPTOR_STRIDE;
/// Not a power of two, so that slots do not all begin in the same set of a cache.
const SLOT_STRIDE: u64 = LINE + SLOT_BYTES;
/// Bytes of a lane.
pub const LANE: u64 = (FIRST_SLOT + SLOTS * SLOT_STRIDE).next_multiple_of(4096);

/// Bytes of the inbox for one peer; under 1 MB.
pub const PEER: u64 = LANES as u64 * LANE;

/// Bytes of a rank's inboxes.
pub const fn inbox_len(world_size: usize) -> u64 {
    world_size as u64 * PEER
}

/// Offset of a lane of the inbox for `peer`, in the window of all inboxes.
pub const fn lane(peer: usize, lane: usize) -> u64 {
    peer as u64 * PEER + lane as u64 * LANE
}

/// Offset in its lane of the descriptor with this number.
pub const fn descriptor(number: u64) -> u64 {
    FIRST_DESCRIPTOR + (number % DESCRIPTORS) * DESCRIPTOR_STRIDE
}

/// Offset in its lane of the slot for the data of the descriptor that is the `number`-th with data in a slot.
pub const fn slot(number: u64) -> u64 {
    FIRST_SLOT + (number % SLOTS) * SLOT_STRIDE
}

/// Offset in its lane of the grant for the message with this number.
pub const fn grant(message: u64) -> u64 {
    GRANT + (message % GRANTS) * GRANT_BYTES
}

// Fields of a descriptor, a line.

/// Its number plus one; written last.
pub const SEQUENCE: u64 = 0;
/// [`super::stamp::Stamp::head`]; the stamp's count, its root, and the number of bytes with the kind on top follow.
pub const HEAD: u64 = 8;
/// Inline data, or the address and length of data that the receiver reads.
pub const BODY: u64 = 32;

const _: () = assert!(PEER < 1_000_000 && BODY + INLINE == LINE && FIRST_DESCRIPTOR.is_multiple_of(LINE));
