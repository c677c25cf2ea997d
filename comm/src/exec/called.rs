//! A call as its caller knows it: its stamp and, for sends and receives, the other rank.

use std::fmt;

use super::stamp::Stamp;
use crate::schedule::Collective;

/// A call of one rank. [`Called::WORDS`] words on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Called {
    /// What every rank's is compared with.
    pub stamp: Stamp,
    /// The other rank of a send or receive, which has none in its stamp; below 2³¹.
    pub peer: u32,
    /// Whether a send or receive sends.
    pub sends: bool,
}

/// With the peer's number.
const SENDS: u64 = 1 << 63;

impl Called {
    /// Words that it takes.
    pub const WORDS: usize = 3;

    /// As words.
    pub fn words(&self) -> [u64; Called::WORDS] {
        let peer = u64::from(self.peer) << 32 & !SENDS;
        let ends = u64::from(self.stamp.root) | peer | if self.sends { SENDS } else { 0 };
        [self.stamp.head(), self.stamp.count, ends]
    }

    /// From its words; none where there is no call, which is all zero.
    pub fn from_words(words: [u64; Called::WORDS]) -> Option<Called> {
        let [head, count, ends] = words;
        let stamp = Stamp::from_wire(head, count, ends as u32);
        (stamp.collective != 0).then_some(Called {
            stamp,
            peer: ((ends & !SENDS) >> 32) as u32,
            sends: ends & SENDS != 0,
        })
    }

    /// Whether only two ranks are concerned.
    pub fn is_single(&self) -> bool {
        self.stamp.kind() == Ok(Collective::SendRecv)
    }
}

/// As in "all_reduce(1024 × float, sum) as call 17" and "send(4 × int32 to rank 3)".
impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_single() {
            return self.stamp.fmt(f);
        }
        let (name, to) = if self.sends { ("send", "to") } else { ("recv", "from") };
        let text = self.stamp.to_string();
        let inside = text.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(&text);
        write!(f, "{name}({inside} {to} rank {})", self.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::DataType;

    #[test]
    fn a_send_names_its_receiver() {
        let stamp = Stamp {
            collective: Collective::SendRecv as u8,
            data_type: DataType::I32 as u8,
            count: 4,
            ..Stamp::default()
        };
        let sends = Called { stamp, peer: 3, sends: true };
        assert_eq!(sends.to_string(), "send(4 × int32 to rank 3)");
        assert_eq!(Called { sends: false, ..sends }.to_string(), "recv(4 × int32 from rank 3)");
        assert_eq!(Called::from_words(sends.words()), Some(sends));
        assert_eq!(Called::from_words([0; 3]), None);
        let barrier = Stamp { sequence: 7, collective: Collective::Barrier as u8, ..Stamp::default() };
        assert_eq!(Called { stamp: barrier, ..Called::default() }.to_string(), "barrier() as call 7");
    }
}
