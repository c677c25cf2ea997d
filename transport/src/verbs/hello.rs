//! What two ranks tell each other while they connect, inside the authenticated session: for each of their rails, how to
//! reach its queue pair, or why there is none. Pure.
//!
//! The rank that connects says first; the other answers; then the first, which has tried the rails, says which are open,
//! and the other by which of them what came is right. Each message has an entry for every rail, in the order on which both
//! agree: how many bytes follow (two bytes, little endian), then 1 and what there is to say, or 0 and why not.

use nd_topology::rdma::MOST_RAILS;

/// The longest of these messages.
pub const LONGEST: usize = MOST_RAILS * (2 + ENTRY);
/// The longest entry.
const ENTRY: usize = 1024;
const READY: u8 = 1;
const UNABLE: u8 = 0;
const HELLO: usize = 43;

/// How a rank's queue pair is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The queue pair's number.
    pub number: u32,
    /// What it numbers its first packet.
    pub first: u32,
    /// The port's local identifier.
    pub lid: u16,
    /// The code of the port's active MTU.
    pub mtu: u8,
    /// The port's address.
    pub gid: [u8; 16],
    /// Where a probe may be written, and the key for it.
    pub probe: (u64, u32),
    /// RoCE.
    pub ethernet: bool,
}

/// Of a rail: this, or why not.
pub type Said<T = Hello> = Result<T, String>;

/// What is said of a rail that there is.
pub trait Entry: Sized {
    /// Its bytes.
    fn bytes(&self) -> Vec<u8>;
    /// Of its bytes; none of others.
    fn of(bytes: &[u8]) -> Option<Self>;
}

impl Entry for Hello {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HELLO);
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.first.to_le_bytes());
        bytes.extend(self.lid.to_le_bytes());
        bytes.push(self.mtu);
        bytes.extend(self.gid);
        bytes.extend(self.probe.0.to_le_bytes());
        bytes.extend(self.probe.1.to_le_bytes());
        bytes.extend([u8::from(self.ethernet), 0, 0]);
        bytes
    }

    fn of(bytes: &[u8]) -> Option<Hello> {
        if bytes.len() != HELLO - 1 || bytes[40..] != [0, 0] || bytes[39] > 1 {
            return None;
        }
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Some(Hello {
            number: number(0),
            first: number(4),
            lid: u16::from_le_bytes([bytes[8], bytes[9]]),
            mtu: bytes[10],
            gid: std::array::from_fn(|i| bytes[11 + i]),
            probe: (u64::from_le_bytes(std::array::from_fn(|i| bytes[27 + i])), number(35)),
            ethernet: bytes[39] == 1,
        })
    }
}

/// It is open.
impl Entry for () {
    fn bytes(&self) -> Vec<u8> {
        Vec::new()
    }

    fn of(bytes: &[u8]) -> Option<()> {
        bytes.is_empty().then_some(())
    }
}

/// The bytes of a message.
pub fn encode<T: Entry>(said: &[Said<T>]) -> Vec<u8> {
    let mut message = Vec::new();
    for said in said {
        let entry = match said {
            Ok(what) => [&[READY][..], &what.bytes()].concat(),
            Err(why) => [&[UNABLE][..], clipped(why).as_bytes()].concat(),
        };
        message.extend((entry.len() as u16).to_le_bytes());
        message.extend(entry);
    }
    message
}

/// Of bytes from a peer, with which there are so many rails. What cannot be read is a reason as well.
pub fn decode<T: Entry>(mut bytes: &[u8], rails: usize) -> Vec<Said<T>> {
    let mut said = Vec::with_capacity(rails);
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let Some((entry, rest)) = rest.split_at_checked(u16::from_le_bytes(*len).into()) else { break };
        bytes = rest;
        said.push(match entry.split_first() {
            Some((&READY, what)) => T::of(what).ok_or_else(unknown),
            Some((&UNABLE, why)) if why.len() < ENTRY => {
                Err(clipped(&String::from_utf8_lossy(why)).to_owned())
            }
            _ => Err(unknown()),
        });
    }
    if said.len() != rails || !bytes.is_empty() {
        let why = format!("it said something of {} rails, not of {rails}", said.len());
        said = (0..rails).map(|_| Err(why.clone())).collect();
    }
    said
}

fn unknown() -> String {
    "it described its queue pair in an unknown way".into()
}

/// As much of a reason as is told.
fn clipped(why: &str) -> &str {
    &why[..why.floor_char_boundary(ENTRY - 1)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello() -> impl Strategy<Value = Hello> {
        any::<(u32, u32, u16, u8, [u8; 16], (u64, u32), bool)>().prop_map(
            |(number, first, lid, mtu, gid, probe, ethernet)| Hello {
                number,
                first,
                lid,
                mtu,
                gid,
                probe,
                ethernet,
            },
        )
    }

    proptest! {
        #[test]
        fn hellos_come_back(said in prop::collection::vec(prop::result::maybe_err(hello(), ".{0,300}"), 1..=MOST_RAILS)) {
            let bytes = encode(&said);
            prop_assert!(bytes.len() <= LONGEST);
            prop_assert_eq!(decode::<Hello>(&bytes, said.len()), said.clone());
            let verdicts: Vec<Said<()>> = said.into_iter().map(|said| said.map(drop)).collect();
            prop_assert_eq!(decode::<()>(&encode(&verdicts), verdicts.len()), verdicts);
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100), rails in 1..=MOST_RAILS) {
            let said = decode::<Hello>(&bytes, rails);
            prop_assert_eq!(said.len(), rails);
            prop_assert_eq!(decode::<Hello>(&encode(&said), rails), said);
        }
    }

    #[test]
    fn what_is_malformed_is_a_reason() {
        let good = Hello { number: 1, first: 2, lid: 3, mtu: 4, gid: [5; 16], probe: (6, 7), ethernet: true };
        let bytes = encode(&[Ok(good)]);
        assert_eq!(decode::<Hello>(&bytes, 1), [Ok(good)]);
        let why = |bytes: &[u8], rails| decode::<Hello>(bytes, rails).pop().unwrap().unwrap_err();
        assert!(why(&bytes, 2).contains("of 1 rails, not of 2"));
        assert!(why(&bytes[..bytes.len() - 1], 1).contains("of 0 rails"));
        assert!(why(&[&bytes[..], &[0]].concat(), 1).contains("of 1 rails, not of 1"));
        let mut other = bytes.clone();
        *other.last_mut().unwrap() = 1;
        assert!(why(&other, 1).contains("unknown way"));
        // A reason is told as far as there is room.
        let long = encode::<Hello>(&[Err("ö".repeat(2000))]);
        assert_eq!((long.len(), why(&long, 1).len()), (2 + 1023, 1022));
    }
}
