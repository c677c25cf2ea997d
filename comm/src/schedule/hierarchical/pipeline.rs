//! The order of stages and pieces.
//!
//! A composition is a sequence of stages, and every stage is done for every piece. What is sent in one stage is
//! received in the next. A lane runs them diagonally: stage k of piece p together with stage k + 1 of a piece that
//! is [`SKEW`] pieces ahead, so that what waits for the network never keeps back what could be sent. Pieces are
//! dealt out to the lanes, so that one is busy on the network while the other is busy inside the host.
//!
//! Both ends of a message run its stages in this order, so the k-th message is the k-th on both sides; and a stage
//! waits only for what others do earlier in the order, so nothing waits for ever.

use super::super::lane::{self, Lane};
use super::super::{MAX_LANES, Program};
use super::columns::Place;

/// How many pieces of a lane are between two stages.
const SKEW: usize = 1;
/// Pieces of a program at most.
const MOST_PIECES: u64 = 128;
/// Instructions of a program that pieces may lead to, roughly.
const MOST_INSTRUCTIONS: u64 = 2048;

/// How many pieces: of about `piece` elements of the `len` that a rank handles, but not so many that programs with
/// `each` instructions for a piece become long. All ranks must come to the same number.
pub(super) fn pieces(len: u64, piece: u64, each: usize) -> usize {
    let most = (MOST_INSTRUCTIONS / each.max(1) as u64).clamp(1, MOST_PIECES);
    len.div_ceil(piece.max(1)).clamp(1, most) as usize
}

/// Which piece it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// Among all.
    pub(super) number: usize,
    /// The stretch of scratch that it may use: by no piece that is under way at the same time.
    pub(super) slot: usize,
}

fn lanes(pieces: usize) -> usize {
    pieces.min(MAX_LANES)
}

/// Stretches of scratch that a lane's pieces go through in turn, when each is needed for so many stages: one more than
/// are needed at once, since the last messages from a stretch are consumed a little later.
fn slots_of_lane(pieces: usize, stages: usize) -> usize {
    (SKEW * stages + 2).min(pieces.div_ceil(lanes(pieces)))
}

/// Writes the program of `stages` stages over `pieces` pieces; a piece holds its scratch for `held` stages.
pub(super) fn run(
    place: &Place<'_>,
    pieces: usize,
    stages: usize,
    held: usize,
    mut stage: impl FnMut(&mut Lane<'_>, usize, Piece),
) -> Program {
    let lanes = lanes(pieces);
    let slots = slots_of_lane(pieces, held);
    let write = |at: usize| {
        let mut lane = Lane::new(place.shape, place.rank as usize);
        let count = (pieces - at).div_ceil(lanes);
        for step in 0..count + SKEW * (stages - 1) {
            // Only the stages that some piece is in.
            let first = (step + 1).saturating_sub(count).div_ceil(SKEW);
            for k in first..stages.min(step / SKEW + 1) {
                let nth = step - SKEW * k;
                let piece = Piece { number: nth * lanes + at, slot: at * slots + nth % slots };
                stage(&mut lane, k, piece);
            }
        }
        lane
    };
    lane::finish((0..lanes).map(write).collect::<Vec<_>>())
}
