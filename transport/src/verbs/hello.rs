//! What two ranks tell each other while they connect, inside the authenticated session: how to reach their queue pairs, or
//! why there are none. Pure.
//!
//! The rank that connects says first; the other answers; then the first, which has tried the way, says whether it is open,
//! and the other whether what came by it is right.

/// The longest of these messages.
pub const LONGEST: usize = 1024;
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

/// A message: this, or why not.
pub type Said = Result<Hello, String>;

/// Its bytes.
pub fn encode(said: &Said) -> Vec<u8> {
    match said {
        Err(why) => [&[UNABLE][..], why.as_bytes()].concat(),
        Ok(hello) => {
            let mut bytes = vec![READY];
            bytes.extend(hello.number.to_le_bytes());
            bytes.extend(hello.first.to_le_bytes());
            bytes.extend(hello.lid.to_le_bytes());
            bytes.push(hello.mtu);
            bytes.extend(hello.gid);
            bytes.extend(hello.probe.0.to_le_bytes());
            bytes.extend(hello.probe.1.to_le_bytes());
            bytes.extend([u8::from(hello.ethernet), 0, 0]);
            bytes
        }
    }
}

/// Of bytes from a peer; what cannot be read is a reason as well.
pub fn decode(bytes: &[u8]) -> Said {
    let (kind, rest) = bytes.split_first().ok_or("it said nothing")?;
    if *kind == UNABLE {
        return Err(String::from_utf8_lossy(rest).into_owned());
    }
    let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    match bytes.len() {
        HELLO if *kind == READY && bytes[41..] == [0, 0] && bytes[40] <= 1 => Ok(Hello {
            number: number(1),
            first: number(5),
            lid: u16::from_le_bytes([bytes[9], bytes[10]]),
            mtu: bytes[11],
            gid: std::array::from_fn(|i| bytes[12 + i]),
            probe: (u64::from_le_bytes(std::array::from_fn(|i| bytes[28 + i])), number(36)),
            ethernet: bytes[40] == 1,
        }),
        _ => Err("it described its queue pair in an unknown way".into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hellos_come_back(
            number: u32, first: u32, lid: u16, mtu: u8, gid: [u8; 16], probe: (u64, u32), ethernet: bool, why: String,
        ) {
            let hello = Hello { number, first, lid, mtu, gid, probe, ethernet };
            prop_assert_eq!(decode(&encode(&Ok(hello))), Ok(hello));
            prop_assert_eq!(decode(&encode(&Err(why.clone()))), Err(why));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(hello) = decode(&bytes) {
                prop_assert_eq!(encode(&Ok(hello)), bytes);
            }
        }
    }
}
