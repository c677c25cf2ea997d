//! What travels on a connection, as bytes: frames, and a decoder that takes them in any pieces. Pure.
//!
//! A frame is a head of [`HEAD`] bytes, little endian, then `len` bytes of payload:
//!
//! | bytes | |
//! |---|---|
//! | 0 | kind: 1 put, 2 goodbye, 3 refusal: its payload says why the receiver reads no more |
//! | 1 | flags: 1 a signal follows the payload |
//! | 2–7 | zero |
//! | 8–15 | `len` |
//! | 16–23 | `at`: offset of the payload in the receiver's region |
//! | 24–31 | the signal's offset |
//! | 32–39 | the signal's value |

use crate::Signal;

/// Bytes of a frame's head.
pub const HEAD: usize = 40;

/// The longest payload of one frame: more than any region holds.
pub const PAYLOAD_MAX: u64 = 1 << 46;

/// The most bytes of text that a refusal has.
pub const REASON: usize = 240;

const PUT: u8 = 1;
const GOODBYE: u8 = 2;
const REFUSAL: u8 = 3;
const REASON_BYTES: u64 = REASON as u64;
const SIGNAL: u8 = 1;

/// The head of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// Bytes of payload.
    pub len: u64,
    /// Where in the receiver's region they belong.
    pub at: u64,
    /// What to raise afterwards.
    pub signal: Option<Signal>,
}

impl Put {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[0] = PUT;
        head[8..16].copy_from_slice(&self.len.to_le_bytes());
        head[16..24].copy_from_slice(&self.at.to_le_bytes());
        if let Some(signal) = self.signal {
            head[1] = SIGNAL;
            head[24..32].copy_from_slice(&signal.at.to_le_bytes());
            head[32..40].copy_from_slice(&signal.value.to_le_bytes());
        }
        head
    }
}

/// The bytes of a goodbye: the last frame of a connection.
pub fn goodbye() -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = GOODBYE;
    head
}

/// The bytes of a refusal, the last frame to a peer whose bytes could not be taken: why, cut off after [`REASON`].
pub fn refusal(why: &str) -> Vec<u8> {
    let why = &why[..why.floor_char_boundary(REASON)];
    let mut bytes = vec![0; HEAD];
    bytes[0] = REFUSAL;
    bytes[8..16].copy_from_slice(&(why.len() as u64).to_le_bytes());
    bytes.extend_from_slice(why.as_bytes());
    bytes
}

/// What the decoder found next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// The input is used up.
    More,
    /// A put with payload begins: the time to check where it goes.
    Begin(Put),
    /// A piece of the payload of the put that began; `done` bytes came before it.
    Payload {
        /// The put.
        put: Put,
        /// Bytes of it that came before.
        done: u64,
        /// The piece.
        bytes: &'a [u8],
    },
    /// All payload of this put has come: the time to raise its signal.
    Done(Put),
    /// The sender leaves in order.
    Goodbye,
    /// It takes nothing more, for the reason in [`Decoder::reason`].
    Refusal,
}

/// Bytes that no sender of ours sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Neither put nor goodbye nor refusal.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// Flags or padding that have no meaning.
    #[error("a frame with unknown flags")]
    Flags,
    /// Longer than [`PAYLOAD_MAX`], or than a refusal is.
    #[error("a frame of {0} bytes")]
    Length(u64),
    /// Bytes after the last frame.
    #[error("bytes after its last frame")]
    AfterLast,
}

/// Takes the bytes of one connection apart, in whatever pieces they come.
#[derive(Debug)]
pub struct Decoder {
    head: [u8; HEAD],
    have: usize,
    /// The put whose payload is coming, and how much of it came.
    payload: Option<(Put, u64)>,
    last: Option<Last>,
}

/// The last frame, of which `missing` bytes of text are still to come.
#[derive(Debug)]
struct Last {
    missing: usize,
    reason: Vec<u8>,
}

impl Default for Decoder {
    /// At the start of a connection.
    fn default() -> Decoder {
        Decoder { head: [0; HEAD], have: 0, payload: None, last: None }
    }
}

impl Decoder {
    /// What comes next in `input`; takes it off the front.
    #[inline]
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Step<'a>, Malformed> {
        if let Some((put, done)) = self.payload {
            if done == put.len {
                self.payload = None;
                return Ok(Step::Done(put));
            }
            if input.is_empty() {
                return Ok(Step::More);
            }
            let n = (put.len - done).min(input.len() as u64);
            let (bytes, rest) = input.split_at(n as usize);
            *input = rest;
            self.payload = Some((put, done + n));
            return Ok(Step::Payload { put, done, bytes });
        }
        if input.is_empty() {
            return Ok(Step::More);
        }
        if let Some(last) = &mut self.last {
            return last.more(input);
        }
        let n = (HEAD - self.have).min(input.len());
        let (bytes, rest) = input.split_at(n);
        self.head[self.have..self.have + n].copy_from_slice(bytes);
        self.have += n;
        *input = rest;
        if self.have < HEAD {
            return Ok(Step::More);
        }
        self.have = 0;
        match (self.begin()?, &mut self.last) {
            (Step::More, Some(last)) if !input.is_empty() => last.more(input),
            (step, _) => Ok(step),
        }
    }

    fn begin(&mut self) -> Result<Step<'static>, Malformed> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| self.head[at + i]));
        let (kind, flags) = (self.head[0], self.head[1]);
        if flags & !SIGNAL != 0 || self.head[2..8] != [0; 6] {
            return Err(Malformed::Flags);
        }
        match kind {
            PUT => {
                let signal = (flags & SIGNAL != 0).then(|| Signal { at: word(24), value: word(32) });
                let put = Put { len: word(8), at: word(16), signal };
                if put.len > PAYLOAD_MAX {
                    return Err(Malformed::Length(put.len));
                }
                if put.len == 0 {
                    return Ok(Step::Done(put));
                }
                self.payload = Some((put, 0));
                Ok(Step::Begin(put))
            }
            GOODBYE if flags == 0 => {
                self.last = Some(Last { missing: 0, reason: Vec::new() });
                Ok(Step::Goodbye)
            }
            REFUSAL if flags == 0 => match word(8) {
                len @ 1..=REASON_BYTES => {
                    self.last = Some(Last { missing: len as usize, reason: Vec::with_capacity(REASON) });
                    Ok(Step::More)
                }
                len => Err(Malformed::Length(len)),
            },
            kind => Err(Malformed::Kind(kind)),
        }
    }

    /// The put whose payload is coming and how much of it came, if any is missing.
    #[inline]
    pub fn awaited(&self) -> Option<(Put, u64)> {
        self.payload.filter(|(put, done)| done < &put.len)
    }

    /// `n` more bytes of the awaited payload were put in place without passing through [`Decoder::next`].
    #[inline]
    pub fn received(&mut self, n: u64) {
        if let Some((put, done)) = &mut self.payload {
            *done = (*done + n).min(put.len);
        }
    }

    /// Whether nothing is half received.
    pub fn between_frames(&self) -> bool {
        self.have == 0 && self.payload.is_none() && self.last.as_ref().is_none_or(|last| last.missing == 0)
    }

    /// Why the sender takes nothing more: its words, without what could not be shown in a line.
    pub fn reason(&self) -> String {
        let said = self.last.as_ref().map_or(&[][..], |last| &last.reason);
        String::from_utf8_lossy(said).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

impl Last {
    #[cold]
    fn more(&mut self, input: &mut &[u8]) -> Result<Step<'static>, Malformed> {
        if self.missing == 0 {
            return Err(Malformed::AfterLast);
        }
        let (bytes, rest) = input.split_at(self.missing.min(input.len()));
        *input = rest;
        self.reason.extend_from_slice(bytes);
        self.missing -= bytes.len();
        Ok(if self.missing == 0 { Step::Refusal } else { Step::More })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn put(len: u64, at: u64, signal: Option<(u64, u64)>) -> Put {
        Put { len, at, signal: signal.map(|(at, value)| Signal { at, value }) }
    }

    /// The puts with their payload, and whether a goodbye or a refusal came.
    type Decoded = (Vec<(Put, Vec<u8>)>, Option<String>);

    /// Feeds `pieces`, checks the order of steps, and gives the puts with their payload.
    fn decode(pieces: &[&[u8]], direct: usize) -> Result<Decoded, Malformed> {
        let mut decoder = Decoder::default();
        let (mut puts, mut gone, mut payload) = (vec![], None, vec![]);
        for piece in pieces {
            let mut input = *piece;
            loop {
                // As the receiver does with large payloads: some of it goes around the decoder.
                if let Some((put, done)) = decoder.awaited() {
                    assert_eq!(done, payload.len() as u64);
                    let n = direct.min(input.len()).min((put.len - done) as usize);
                    payload.extend_from_slice(&input[..n]);
                    input = &input[n..];
                    decoder.received(n as u64);
                }
                match decoder.next(&mut input)? {
                    Step::More => break,
                    Step::Begin(_) => assert!(payload.is_empty()),
                    Step::Payload { done, bytes, .. } => {
                        assert_eq!(done, payload.len() as u64);
                        payload.extend_from_slice(bytes);
                    }
                    Step::Done(put) => puts.push((put, std::mem::take(&mut payload))),
                    Step::Goodbye => gone = Some("goodbye".to_owned()),
                    Step::Refusal => gone = Some(decoder.reason()),
                }
            }
            assert!(input.is_empty());
        }
        Ok((puts, gone))
    }

    proptest! {
        #[test]
        fn frames_survive_any_split(
            frames in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..300), any::<u64>(), any::<Option<(u64, u64)>>()), 0..8),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            direct in 0usize..50,
            reason in any::<Option<String>>().prop_map(|said| said.filter(|said| !said.is_empty())),
        ) {
            let mut bytes = vec![];
            let mut expected = vec![];
            for (payload, at, signal) in frames {
                let put = put(payload.len() as u64, at, signal);
                bytes.extend_from_slice(&put.encode());
                bytes.extend_from_slice(&payload);
                expected.push((put, payload));
            }
            bytes.extend(reason.as_deref().map_or(goodbye().to_vec(), refusal));
            let said = reason.map_or("goodbye".to_owned(), |said| {
                said[..said.floor_char_boundary(REASON)].replace(char::is_control, " ")
            });
            let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            prop_assert_eq!(decode(&pieces, direct), Ok((expected, Some(said))));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode(&[&bytes], 0);
        }
    }

    #[test]
    fn what_nobody_sends_is_refused() {
        let good = put(0, 8, None).encode();
        let changed = |at: usize, to: u8| {
            let mut head = good;
            head[at] = to;
            decode(&[&head], 0).unwrap_err()
        };
        assert_eq!(changed(0, 9), Malformed::Kind(9));
        assert_eq!(changed(1, 2), Malformed::Flags);
        assert_eq!(changed(7, 1), Malformed::Flags);
        assert_eq!(changed(15, 0x7f), Malformed::Length(0x7f << 56));
        assert_eq!(decode(&[&goodbye(), &good], 0), Err(Malformed::AfterLast));
        assert_eq!(decode(&[&refusal("no"), &good], 0), Err(Malformed::AfterLast));
        for len in [0, REASON as u8 + 1] {
            let mut bytes = refusal("no");
            bytes[8] = len;
            assert_eq!(decode(&[&bytes], 0), Err(Malformed::Length(len.into())));
        }
    }
}
