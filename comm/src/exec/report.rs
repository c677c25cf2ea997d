//! What a rank tells its peers when it gives up, in [`REPORT`] bytes.

use super::layout::REPORT;
use super::stamp::Stamp;
use super::standstill::Standstill;

/// What a rank tells its peers when it gives up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A rank found that another one is in another call.
    Mismatch {
        /// Which rank found it.
        rank: usize,
        /// What it called.
        ours: Stamp,
        /// The other rank.
        peer: usize,
        /// What that one called.
        theirs: Stamp,
    },
    /// The time for a call was up.
    Standstill(Box<Standstill>),
    /// Something else.
    Failed {
        /// The rank that failed first.
        culprit: usize,
        /// What, cut to fit.
        why: String,
    },
    /// A rank's program aborted the communicator.
    Aborted {
        /// Which rank's.
        culprit: usize,
    },
    /// Nothing failed: its communicator is no more.
    Left,
}

const MISMATCH: u8 = 1;
const FAILED: u8 = 2;
const LEFT: u8 = 3;
const STANDSTILL: u8 = 4;
const ABORTED: u8 = 5;
const HEAD: usize = 8;

impl Report {
    /// As bytes.
    pub fn encode(&self) -> [u8; REPORT] {
        let mut bytes = [0u8; REPORT];
        match self {
            Report::Mismatch { rank, ours, peer, theirs } => {
                bytes[0] = MISMATCH;
                let words = [
                    ours.head(),
                    ours.count,
                    u64::from(ours.root),
                    *peer as u64,
                    theirs.head(),
                    theirs.count,
                    u64::from(theirs.root),
                    *rank as u64,
                ];
                for (to, word) in bytes[HEAD..].chunks_exact_mut(8).zip(words) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
            }
            Report::Standstill(standstill) => {
                bytes[0] = STANDSTILL;
                bytes[HEAD..].copy_from_slice(&standstill.encode());
            }
            Report::Failed { culprit, why } => {
                bytes[0] = FAILED;
                bytes[4..HEAD].copy_from_slice(&(*culprit as u32).to_le_bytes());
                let room = REPORT - HEAD;
                let end = (0..=why.len().min(room)).rev().find(|&i| why.is_char_boundary(i)).unwrap_or(0);
                bytes[2..4].copy_from_slice(&(end as u16).to_le_bytes());
                bytes[HEAD..HEAD + end].copy_from_slice(&why.as_bytes()[..end]);
            }
            Report::Aborted { culprit } => {
                bytes[0] = ABORTED;
                bytes[4..HEAD].copy_from_slice(&(*culprit as u32).to_le_bytes());
            }
            Report::Left => bytes[0] = LEFT,
        }
        bytes
    }

    /// From bytes that a peer wrote, whatever they are.
    pub fn decode(bytes: &[u8; REPORT]) -> Report {
        let word = |i: usize| {
            u64::from_le_bytes(std::array::from_fn(|b| bytes.get(HEAD + 8 * i + b).copied().unwrap_or(0)))
        };
        let culprit = u32::from_le_bytes(std::array::from_fn(|i| bytes[4 + i])) as usize;
        match bytes[0] {
            MISMATCH => Report::Mismatch {
                ours: Stamp::from_wire(word(0), word(1), word(2) as u32),
                peer: word(3) as usize,
                theirs: Stamp::from_wire(word(4), word(5), word(6) as u32),
                rank: word(7) as usize,
            },
            LEFT => Report::Left,
            ABORTED => Report::Aborted { culprit },
            STANDSTILL => {
                let (_, standstill) = bytes.split_at(HEAD);
                let standstill = standstill.try_into().map(Standstill::decode);
                Report::Standstill(Box::new(standstill.expect("what follows the head is as long as it is")))
            }
            _ => {
                let end = (HEAD + usize::from(u16::from_le_bytes([bytes[2], bytes[3]]))).min(REPORT);
                Report::Failed { culprit, why: String::from_utf8_lossy(&bytes[HEAD..end]).into_owned() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_told_is_read(a: [u64; 3], b: [u64; 3], peer in 0usize..1000, why in ".{0,1500}") {
            let mask = |s: [u64; 3]| Stamp::from_wire(s[0] & 0xff_ffff_ffff_ffff, s[1], s[2] as u32);
            let report = Report::Mismatch { rank: 5, ours: mask(a), peer, theirs: mask(b) };
            for report in [report, Report::Aborted { culprit: peer }, Report::Left] {
                prop_assert_eq!(Report::decode(&report.encode()), report);
            }
            match Report::decode(&Report::Failed { culprit: peer, why: why.clone() }.encode()) {
                Report::Failed { culprit, why: read } => prop_assert!(
                    culprit == peer && why.starts_with(&read) && read.len() + 4 > why.len().min(REPORT - HEAD)),
                other => prop_assert!(false, "{:?}", other),
            }
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), REPORT)) {
            let _ = Report::decode(bytes[..].try_into().unwrap());
        }
    }
}
