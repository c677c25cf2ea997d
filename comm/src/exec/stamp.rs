//! What a call is, in 24 bytes.

use std::fmt;

use crate::number::{DataType, ReduceOp};
use crate::schedule::{Collective, algorithms};

/// What a call belongs to, as in [`Stamp::collective`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Within {
    /// The program made it.
    #[default]
    Program = 0,
    /// By a split the ranks tell each other of their new groups.
    Split = 0x20,
    /// By a grow they agree on what it is to become.
    Grow = 0x40,
}

impl Within {
    const BITS: u8 = 0x60;

    /// As in "split's all_gather"; with the space.
    fn prefix(code: u8) -> &'static str {
        match code & Within::BITS {
            0 => "",
            code if code == Within::Split as u8 => "split's ",
            code if code == Within::Grow as u8 => "grow's ",
            _ => "unknown ",
        }
    }
}

/// Identifies a call. Every message carries its call's stamp; a receiver that is in another call finds out at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    /// The number of the collective call on its communicator, from 1; 0 for sends and receives, which only the two
    /// ranks concerned count.
    pub sequence: u32,
    /// [`Collective`] as a number; with [`Stamp::VARIABLE`] for a v-variant and with what it belongs to ([`Within`]).
    pub collective: u8,
    /// [`DataType`] as a number; 0 for a barrier.
    pub data_type: u8,
    /// [`ReduceOp::code`]; 0 where nothing is reduced.
    pub op: u8,
    /// The number of the algorithm, from 1, as [`algorithms`] lists them; 0 for sends and receives.
    pub algorithm: u8,
    /// Elements: of the buffer, or of a rank's part; of all parts for a v-variant.
    pub count: u64,
    /// The root where there is one; a hash of the counts for v-variants.
    pub root: u32,
}

impl Stamp {
    /// Marks a v-variant in [`Stamp::collective`].
    pub const VARIABLE: u8 = 0x80;

    /// The first 8 bytes on the wire.
    pub fn head(&self) -> u64 {
        u64::from(self.sequence)
            | u64::from(self.collective) << 32
            | u64::from(self.data_type) << 40
            | u64::from(self.op) << 48
            | u64::from(self.algorithm) << 56
    }

    /// From its parts on the wire.
    pub fn from_wire(head: u64, count: u64, root: u32) -> Stamp {
        Stamp {
            sequence: head as u32,
            collective: (head >> 32) as u8,
            data_type: (head >> 40) as u8,
            op: (head >> 48) as u8,
            algorithm: (head >> 56) as u8,
            count,
            root,
        }
    }
}

impl Stamp {
    /// Which collective; a number that none has is given back.
    pub fn kind(&self) -> Result<Collective, u8> {
        Collective::try_from(self.collective & !(Stamp::VARIABLE | Within::BITS))
    }

    /// Whether it is a v-variant.
    pub fn is_variable(&self) -> bool {
        self.collective & Stamp::VARIABLE != 0
    }

    /// The call's name: `all_gather_v`, `split's all_gather`.
    pub fn name(&self) -> String {
        let variable = if self.is_variable() { "_v" } else { "" };
        let within = Within::prefix(self.collective);
        match self.kind() {
            Ok(collective) => format!("{within}{}{variable}", collective.function()),
            Err(code) => format!("{within}unknown collective {code}"),
        }
    }

    /// As text; with the algorithm where that is all that differs from `other`.
    pub fn beside(&self, other: &Stamp) -> String {
        let algorithm = algorithms().get(usize::from(self.algorithm).wrapping_sub(1));
        match algorithm {
            Some(algorithm) if Stamp { algorithm: other.algorithm, ..*self } == *other => {
                format!("{self}, to be done by {} by its settings", algorithm.name())
            }
            _ => self.to_string(),
        }
    }
}

/// What stands in a stamp for the collective call with this number, from 1. Numbers of stamps begin anew at 1 when they are
/// used up: 0 is for sends and receives.
#[inline]
pub fn wire_number(call: u64) -> u32 {
    match call {
        0 => 0,
        call => ((call - 1) % u64::from(u32::MAX)) as u32 + 1,
    }
}

/// Whether a collective call comes after another, by the numbers in their stamps: of calls that are less than half of all
/// numbers apart.
#[inline]
pub fn is_later(this: u32, other: u32) -> bool {
    this.wrapping_sub(other) as i32 > 0
}

/// The same where either may be a send or receive, which has no number and comes neither before nor after anything.
#[inline]
pub fn comes_before(this: u32, other: u32) -> bool {
    this > 0 && other > 0 && is_later(other, this)
}

/// Of collective calls with these numbers the latest; sends and receives come before all. Of equal ones the last.
pub fn latest<T>(calls: impl IntoIterator<Item = T>, number: impl Fn(&T) -> u32) -> Option<T> {
    calls.into_iter().reduce(|best, next| {
        let (before, now) = (number(&best), number(&next));
        let stays = before > 0 && (now == 0 || is_later(before, now));
        if stays { best } else { next }
    })
}

/// As in "rank 3 called `all_gather(1024 × f32) as call 17`".
impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (variable, collective) = (self.is_variable(), self.kind());
        write!(f, "{}(", self.name())?;
        if collective != Ok(Collective::Barrier) {
            write!(f, "{} × ", self.count)?;
            match DataType::try_from(self.data_type) {
                Ok(t) => write!(f, "{}", t.name())?,
                Err(_) => write!(f, "unknown type {}", self.data_type)?,
            }
        }
        if let Some(op) = ReduceOp::ALL.iter().find(|op| op.code() == self.op) {
            write!(f, ", {}", op.name())?;
        }
        if collective.is_ok_and(Collective::has_root) && !variable {
            write!(f, ", root {}", self.root)?;
        }
        f.write_str(")")?;
        if self.sequence > 0 {
            write!(f, " as call {}", self.sequence)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_begin_anew() {
        let last = u64::from(u32::MAX);
        let numbers = [0, 1, 2, last - 1, last, last + 1, 2 * last, 2 * last + 1].map(wire_number);
        assert_eq!(numbers, [0, 1, 2, u32::MAX - 1, u32::MAX, 1, u32::MAX, 1]);
        for call in [0, 1, 1000, last - 3, last - 1, last, last + 1, 2 * last, 1 << 50] {
            for ahead in [1, 2, 1000, (1 << 31) - 2] {
                let [this, later] = [call, call + ahead].map(wire_number);
                assert!(is_later(later, this) && !is_later(this, later), "{call} {ahead}");
            }
            assert!(!is_later(wire_number(call), wire_number(call)));
        }
    }

    #[test]
    fn the_latest_is_found_where_numbers_begin_anew() {
        let last = u64::from(u32::MAX);
        for call in [1, 1000, last - 1, last, last + 1, 2 * last] {
            let numbers = [call, call + 2, call + 1].map(wire_number);
            for turn in 0..3 {
                let mut turned = numbers;
                turned.rotate_left(turn);
                assert_eq!(latest(turned, |n| *n), Some(wire_number(call + 2)), "{call}");
                assert_eq!(
                    latest([0].into_iter().chain(turned).chain([0]), |n| *n),
                    Some(wire_number(call + 2))
                );
            }
        }
        assert_eq!(latest([(0, 'a'), (0, 'b')], |(n, _)| *n), Some((0, 'b')));
        assert_eq!(latest(Vec::<u32>::new(), |n| *n), None);
    }

    #[test]
    fn a_call_is_named_as_its_caller_wrote_it() {
        let stamp = Stamp {
            sequence: 17,
            collective: Collective::AllReduce as u8,
            data_type: DataType::F32 as u8,
            op: ReduceOp::Sum.code(),
            algorithm: 1,
            count: 1024,
            root: 0,
        };
        assert_eq!(stamp.to_string(), "all_reduce(1024 × float, sum) as call 17");
        assert_eq!(Stamp::from_wire(stamp.head(), stamp.count, stamp.root), stamp);
        let other = Stamp { algorithm: 2, ..stamp };
        assert!(stamp.beside(&other).ends_with("as call 17, to be done by oneshot by its settings"));
        assert!(other.beside(&stamp).contains(" by direct "));
        let shorter = Stamp { count: 1023, ..other };
        assert_eq!(stamp.beside(&shorter), stamp.to_string());
        let gather = Stamp { sequence: 0, collective: Collective::Gather as u8, op: 0, root: 3, ..stamp };
        assert_eq!(gather.to_string(), "gather(1024 × float, root 3)");
        assert_eq!(Stamp { collective: 31, ..gather }.to_string(), "unknown collective 31(1024 × float)");
        let of = |within: u8| Stamp { collective: Collective::AllGather as u8 | within, op: 0, ..stamp };
        assert_eq!(of(Within::Split as u8).to_string(), "split's all_gather(1024 × float) as call 17");
        assert_eq!(of(Within::Grow as u8 | Stamp::VARIABLE).name(), "grow's all_gather_v");
        assert_eq!(of(Within::BITS).kind(), Ok(Collective::AllGather));
    }
}
