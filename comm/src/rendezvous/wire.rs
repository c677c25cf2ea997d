//! What is said during a start, as bytes. Little-endian; a string or card is its length in 4 bytes and its content.
//!
//! Everything here travels inside an authenticated session, yet is read as if it came from anyone.

use nd_transport::secure::Secret;

use super::roll::{Failure, Hello};

/// The largest card that a rank may send, bytes.
pub const CARD_MAX: usize = 64 << 10;

/// The most ranks that a start accepts: more than any cluster has, and few enough to make room for at once.
pub const WORLD_MAX: usize = 1 << 20;

/// A `Hello` with the largest card and host name.
pub const HELLO_MAX: usize = CARD_MAX + 1024;

/// Bytes of what is said of a failure, and of what to do.
const PROBLEM_MAX: usize = 8000;
/// See above.
const REMEDY_MAX: usize = 1000;

/// What a rank that has joined says if its program aborts the start; else it says nothing more.
pub const ABORTED: &[u8] = b"aborted";

/// What rank 0 answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All are there: the communicator's secret and all cards by rank.
    Complete { secret: [u8; 32], cards: Vec<Vec<u8>> },
    /// The start has failed, for everyone.
    Failed(Failure),
}

impl Verdict {
    pub fn complete(secret: &Secret, cards: Vec<Vec<u8>>) -> Verdict {
        Verdict::Complete { secret: *secret.as_bytes(), cards }
    }
}

pub fn encode_hello(hello: &Hello) -> Vec<u8> {
    let mut out = Vec::with_capacity(hello.card.as_ref().map_or(0, Vec::len) + 128);
    out.extend((hello.rank as u32).to_le_bytes());
    out.extend((hello.world_size as u32).to_le_bytes());
    out.extend(hello.pid.to_le_bytes());
    out.extend(hello.patience_ms.to_le_bytes());
    put(&mut out, cut(&hello.host, 255).as_bytes());
    match &hello.card {
        Ok(card) => {
            out.push(1);
            put(&mut out, card);
        }
        Err(failure) => {
            out.push(2);
            put_failure(&mut out, failure);
        }
    }
    out
}

pub fn decode_hello(bytes: &[u8]) -> Option<Hello> {
    let mut rest = bytes;
    let hello = Hello {
        rank: u32_of(&mut rest)? as usize,
        world_size: u32_of(&mut rest)? as usize,
        pid: u32_of(&mut rest)?,
        patience_ms: u64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?),
        host: text(&mut rest, 255)?,
        card: match take(&mut rest, 1)?[0] {
            1 => Ok(piece(&mut rest, CARD_MAX)?.to_vec()),
            2 => Err(failure(&mut rest)?),
            _ => return None,
        },
    };
    (rest.is_empty() && (1..=WORLD_MAX).contains(&hello.world_size)).then_some(hello)
}

pub fn encode_verdict(verdict: &Verdict) -> Vec<u8> {
    let mut out = Vec::new();
    match verdict {
        Verdict::Complete { secret, cards } => {
            out.reserve(64 + cards.iter().map(|c| c.len() + 4).sum::<usize>());
            out.push(1);
            out.extend(secret);
            out.extend((cards.len() as u32).to_le_bytes());
            for card in cards {
                put(&mut out, card);
            }
        }
        Verdict::Failed(failure) => {
            out.push(2);
            put_failure(&mut out, failure);
        }
    }
    out
}

pub fn decode_verdict(bytes: &[u8]) -> Option<Verdict> {
    let mut rest = bytes;
    let verdict = match take(&mut rest, 1)?[0] {
        1 => {
            let secret = take(&mut rest, 32)?.try_into().ok()?;
            let count = u32_of(&mut rest)? as usize;
            // Each card takes at least the 4 bytes of its length: no room is made for more than what is there.
            if count > rest.len() / 4 {
                return None;
            }
            let cards =
                (0..count).map(|_| piece(&mut rest, CARD_MAX).map(<[u8]>::to_vec)).collect::<Option<_>>()?;
            Verdict::Complete { secret, cards }
        }
        2 => Verdict::Failed(failure(&mut rest)?),
        _ => return None,
    };
    rest.is_empty().then_some(verdict)
}

fn put_failure(out: &mut Vec<u8>, Failure { problem, remedy }: &Failure) {
    put(out, cut(problem, PROBLEM_MAX).as_bytes());
    put(out, cut(remedy, REMEDY_MAX).as_bytes());
}

fn failure(rest: &mut &[u8]) -> Option<Failure> {
    Some(Failure { problem: text(rest, PROBLEM_MAX)?, remedy: text(rest, REMEDY_MAX)? })
}

/// At most `most` bytes of `text`, whole characters.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|e| text.is_char_boundary(*e)).unwrap_or(0);
    &text[..end]
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(n)?;
    *rest = tail;
    Some(head)
}

fn u32_of(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?))
}

fn piece<'a>(rest: &mut &'a [u8], most: usize) -> Option<&'a [u8]> {
    let n = u32_of(rest)? as usize;
    if n > most { None } else { take(rest, n) }
}

fn text(rest: &mut &[u8], most: usize) -> Option<String> {
    String::from_utf8(piece(rest, most)?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hellos_come_back(rank in 0..99usize, size in 1..99usize, host in ".{0,80}", card in any::<Vec<u8>>()) {
            prop_assume!(host.len() <= 255);
            let why = Failure { problem: host.clone(), remedy: "r".into() };
            for card in [Ok(card), Err(why)] {
                let host = host.clone();
                let hello = Hello { rank, world_size: size, host, pid: 3, patience_ms: 9, card };
                prop_assert_eq!(decode_hello(&encode_hello(&hello)), Some(hello));
            }
        }

        #[test]
        fn verdicts_come_back(cards in any::<Vec<Vec<u8>>>(), secret in any::<[u8; 32]>(), why in ".{0,80}") {
            let verdict = Verdict::Complete { secret, cards };
            prop_assert_eq!(decode_verdict(&encode_verdict(&verdict)), Some(verdict));
            let verdict = Verdict::Failed(Failure { problem: why, remedy: "r".into() });
            prop_assert_eq!(decode_verdict(&encode_verdict(&verdict)), Some(verdict));
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in any::<Vec<u8>>(), kind in 0..3u8) {
            let _ = decode_hello(&bytes);
            let mut bytes = bytes;
            bytes.insert(0, kind);
            let _ = decode_verdict(&bytes);
        }
    }

    #[test]
    fn long_names_are_cut_at_a_character() {
        assert_eq!(cut("äöü", 3), "ä");
        assert_eq!(cut("abc", 9), "abc");
    }
}
