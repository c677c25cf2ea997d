//! The messages of a queue pair, as bytes. Pure.
//!
//! A message is a head of [`HEAD`] bytes, little endian, and what follows it up to the message's end:
//!
//! | bytes | |
//! |---|---|
//! | 0 | kind: 1 put, 2 which key, 3 key, 4 forget, 5 nothing but the count below, 6 tell that count, 7 written |
//! | 1 | flags of a put: 1 a signal follows the payload |
//! | 2–3 | which message it is of those that the sender counts, from 1, modulo 2¹⁶; zero where it is not counted (kind 5) |
//! | 4–7 | how many of the receiver's messages the sender has taken so far, modulo 2³² |
//! | 8–15 | put: offset of the payload; which key: the offset that it is asked for; key: the offset of the window, or all ones; forget: the key's number |
//! | 16–23 | put: the signal's offset; key: the address of the first byte |
//! | 24–31 | put: the signal's value; key: its length |
//! | 32–51 | key: its number, then the key itself for each rail; the payload of a put begins here |
//!
//! All of them go on the first rail, but for those of kind 7: one follows what was written on another rail, and says by its
//! place among all messages what it was written before and after. On other rails the count says nothing.

use nd_topology::rdma::MOST_RAILS;

use crate::Signal;

/// Bytes of a message's head.
pub const HEAD: usize = 32;
/// Bytes of the longest message: what a descriptor of the executor holds, and its head.
pub const MESSAGE: usize = 1280;
/// Bytes of the longest payload.
pub const PAYLOAD: usize = MESSAGE - HEAD;

const PUT: u8 = 1;
const WHICH_KEY: u8 = 2;
const KEY: u8 = 3;
const FORGET: u8 = 4;
const COUNT: u8 = 5;
const TELL: u8 = 6;
const WRITTEN: u8 = 7;
const SIGNAL: u8 = 1;
const NO_WINDOW: u64 = u64::MAX;
/// Bytes of a key's number, and of the keys themselves.
const KEYS: usize = 4 + 4 * MOST_RAILS;

/// By what a peer writes into memory of this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its number; a later one with the same number takes its place.
    pub number: u32,
    /// The offset at which this memory begins in the region, if it is an exposed window.
    pub window: Option<u64>,
    /// The address of the first byte.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// What the devices ask for, on each rail; zero where there are fewer.
    pub keys: [u32; MOST_RAILS],
}

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What<'m> {
    /// The payload belongs at that offset; then the signal is raised.
    Put {
        /// The offset.
        at: u64,
        /// The bytes.
        payload: &'m [u8],
        /// What to raise afterwards.
        signal: Option<Signal>,
    },
    /// The sender wants to write at that offset.
    WhichKey {
        /// The offset.
        at: u64,
    },
    /// The receiver may write there.
    Key(Key),
    /// The receiver may do that no more.
    Forget {
        /// The key's number.
        number: u32,
    },
    /// Only what every head says.
    Count,
    /// The sender waits to be told how many were taken, this one among them.
    Tell,
    /// What was written before on this rail is in its place.
    Written,
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'m> {
    /// How many of the receiver's messages the sender has taken so far.
    pub taken: u32,
    /// Which message it is of those that are counted.
    pub number: u16,
    /// What it says.
    pub what: What<'m>,
}

/// Bytes that no sender of ours sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Too short, or too long for its kind.
    #[error("a message of {0} bytes")]
    Length(usize),
    /// None of the kinds.
    #[error("a message of unknown kind {0}")]
    Kind(u8),
    /// Flags or padding that have no meaning.
    #[error("a message with unknown flags")]
    Flags,
}

/// The head of a put whose payload follows.
pub fn put(at: u64, signal: Option<Signal>) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = PUT;
    head[8..16].copy_from_slice(&at.to_le_bytes());
    if let Some(signal) = signal {
        head[1] = SIGNAL;
        head[16..24].copy_from_slice(&signal.at.to_le_bytes());
        head[24..32].copy_from_slice(&signal.value.to_le_bytes());
    }
    head
}

/// The whole message that asks for a key.
pub fn which_key(at: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = WHICH_KEY;
    head[8..16].copy_from_slice(&at.to_le_bytes());
    head
}

/// The whole message that gives one.
pub fn key(key: &Key) -> [u8; HEAD + KEYS] {
    let mut message = [0; HEAD + KEYS];
    message[0] = KEY;
    message[8..16].copy_from_slice(&key.window.unwrap_or(NO_WINDOW).to_le_bytes());
    message[16..24].copy_from_slice(&key.address.to_le_bytes());
    message[24..32].copy_from_slice(&key.len.to_le_bytes());
    message[32..36].copy_from_slice(&key.number.to_le_bytes());
    for (to, key) in message[36..].chunks_exact_mut(4).zip(key.keys) {
        to.copy_from_slice(&key.to_le_bytes());
    }
    message
}

/// The whole message that takes one back.
pub fn forget(number: u32) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = FORGET;
    head[8..16].copy_from_slice(&u64::from(number).to_le_bytes());
    head
}

/// The whole message that says nothing but how many were taken.
pub fn count() -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = COUNT;
    head
}

/// The whole message that asks how many were taken.
pub fn tell() -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = TELL;
    head
}

/// The whole message that says that what was written before it is in its place.
pub fn written() -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = WRITTEN;
    head
}

/// Whether this message is one of those that are not counted, and sent beyond what the receiver has made room for.
pub fn is_count(message: &[u8]) -> bool {
    message.first() == Some(&COUNT)
}

/// Writes into a message how many were taken, and which it is itself; done as late as possible.
pub fn stamp(message: &mut [u8], taken: u32, number: u16) {
    message[2..4].copy_from_slice(&number.to_le_bytes());
    message[4..8].copy_from_slice(&taken.to_le_bytes());
}

/// Reads a message.
pub fn parse(message: &[u8]) -> Result<Message<'_>, Malformed> {
    let Some((head, rest)) = message.split_first_chunk::<HEAD>() else {
        return Err(Malformed::Length(message.len()));
    };
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
    let taken = u32::from_le_bytes(std::array::from_fn(|i| head[4 + i]));
    let [kind, flags, low, high, ..] = *head;
    let number = u16::from_le_bytes([low, high]);
    if kind == COUNT && number != 0 {
        return Err(Malformed::Flags);
    }
    if flags & !SIGNAL != 0 || (flags != 0 && kind != PUT) {
        return Err(Malformed::Flags);
    }
    let empty = |what| if rest.is_empty() { Ok(what) } else { Err(Malformed::Length(message.len())) };
    let what = match kind {
        PUT if rest.len() > PAYLOAD => return Err(Malformed::Length(message.len())),
        PUT => {
            let signal = (flags & SIGNAL != 0).then(|| Signal { at: long(16), value: long(24) });
            What::Put { at: long(8), payload: rest, signal }
        }
        WHICH_KEY => empty(What::WhichKey { at: long(8) })?,
        KEY => {
            let Ok(rest) = <[u8; KEYS]>::try_from(rest) else { return Err(Malformed::Length(message.len())) };
            let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| rest[at + i]));
            What::Key(Key {
                number: word(0),
                window: Some(long(8)).filter(|&at| at != NO_WINDOW),
                address: long(16),
                len: long(24),
                keys: std::array::from_fn(|rail| word(4 + 4 * rail)),
            })
        }
        FORGET => match u32::try_from(long(8)) {
            Ok(number) => empty(What::Forget { number })?,
            Err(_) => return Err(Malformed::Flags),
        },
        COUNT => empty(What::Count)?,
        TELL => empty(What::Tell)?,
        WRITTEN => empty(What::Written)?,
        kind => return Err(Malformed::Kind(kind)),
    };
    Ok(Message { taken, number, what })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(mut message: Vec<u8>, taken: u32, number: u16) -> Message<'static> {
        stamp(&mut message, taken, number);
        parse(message.leak()).unwrap()
    }

    proptest! {
        #[test]
        fn messages_come_back(
            at: u64, taken: u32, number: u32, keys: [u32; MOST_RAILS], address: u64, len: u64, place in 1..=u16::MAX,
            window in prop::option::of(0..u64::MAX),
            signal in prop::option::of((any::<u64>(), any::<u64>())),
            payload in prop::collection::vec(any::<u8>(), 0..PAYLOAD),
        ) {
            let signal = signal.map(|(at, value)| Signal { at, value });
            let message = said([&put(at, signal)[..], &payload].concat(), taken, place);
            let what = What::Put { at, payload: &payload, signal };
            prop_assert_eq!(message, Message { taken, number: place, what });
            let key_given = Key { number, window, address, len, keys };
            let all = [
                (which_key(at).to_vec(), What::WhichKey { at }),
                (key(&key_given).to_vec(), What::Key(key_given)),
                (forget(number).to_vec(), What::Forget { number }),
                (count().to_vec(), What::Count),
                (tell().to_vec(), What::Tell),
                (written().to_vec(), What::Written),
            ];
            for (bytes, what) in all {
                prop_assert_eq!(is_count(&bytes), what == What::Count);
                let number = if what == What::Count { 0 } else { place };
                prop_assert_eq!(said(bytes, taken, number), Message { taken, number, what });
            }
        }

        /// Any bytes are refused, or say what would be sent as these bytes.
        #[test]
        fn any_bytes_are_taken_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0..9u8) {
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            if let Ok(Message { taken, number, what: What::Put { at, payload, signal } }) = parse(&bytes)
                && signal.is_some()
            {
                let mut again = [&put(at, signal)[..], payload].concat();
                stamp(&mut again, taken, number);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn what_is_malformed_is_refused() {
        assert_eq!(parse(&[]), Err(Malformed::Length(0)));
        assert_eq!(parse(&[9; HEAD]).unwrap_err(), Malformed::Flags);
        let mut head = put(0, None);
        head[0] = 77;
        assert_eq!(parse(&head), Err(Malformed::Kind(77)));
        assert!(parse(&[&put(0, None)[..], &[0; PAYLOAD]].concat()).is_ok());
        assert!(parse(&[&put(0, None)[..], &[0; PAYLOAD + 1]].concat()).is_err());
        assert!(parse(&[&count()[..], &[0]].concat()).is_err());
        let mut counted = count();
        stamp(&mut counted, 0, 1);
        assert_eq!(parse(&counted), Err(Malformed::Flags));
        let key = key(&Key { number: 0, window: None, address: 0, len: 0, keys: [0; MOST_RAILS] });
        assert!(parse(&key).is_ok() && parse(&key[..HEAD]).is_err() && parse(&key[..HEAD + 8]).is_err());
    }
}
