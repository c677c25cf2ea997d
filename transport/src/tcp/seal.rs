//! Records: what travels on a connection with `ND_ENCRYPT=1`, around the frames of [`super::wire`]. Pure.
//!
//! A record is the length of what it holds (4 bytes, little endian, 1 to [`RECORD`]), that many bytes encrypted by
//! AES-256-GCM, and the tag of [`TAG`] bytes, which covers the length too. Frames run through records as they come: a
//! record may hold many, and a frame may take many.
//!
//! Each direction has keys of its own, from the handshake of that very connection. The nonce is the number of the
//! record under its key: it is not sent, so a record that is changed, left out, repeated or out of its place does not
//! open. After [`RECORDS_PER_KEY`] both ends change to the next key; a key and its counter are made together and go
//! together, so that no nonce is used twice.

mod cipher;

use std::fmt;

use crate::secure::Secret;
use cipher::{Cipher, Nonce};

/// The most bytes that one record holds: a quarter of what one packet of a loopback interface (65,536 bytes) takes, so
/// that a batch of four is one packet. With 16,384 bytes each batch was followed by a packet for its last 132 bytes:
/// 2.3 GB/s in one direction where it is 2.65 now (one AMD EPYC of 2 cores, alternating runs). Shorter ones cost more
/// heads and tags, longer ones were no faster.
pub const RECORD: usize = (16 << 10) - 64;
/// Bytes in front of what a record holds.
pub const HEAD: usize = 4;
/// Bytes behind it.
pub const TAG: usize = 16;
/// Records under one key: with the longest records 2^30 blocks of AES, where the advantage of an attacker is below
/// 2^-68 (NIST SP 800-38D allows 2^32 records of any length).
pub const RECORDS_PER_KEY: u64 = 1 << 20;

/// Bytes of records that are sealed, or received, at a time: few enough for the second-level cache, and for one packet
/// with its heads where packets are as long as they can be.
const BATCH: usize = 4 * (HEAD + RECORD + TAG);
const _: () = assert!(BATCH <= 65_536 - 40 - 20 - 12, "with the heads of IPv6 and TCP and a time stamp");

/// Why a record was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Forged {
    /// No record is that long.
    #[error("an encrypted record of {0} bytes, from 1 to {RECORD} are possible")]
    Length(u32),
    /// The tag is not that of these bytes in this place.
    #[error(
        "encrypted record {0} does not authenticate: it was changed, repeated, left out or moved on the way (or the \
         peer is not the one that shook hands)"
    )]
    Record(u64),
}

/// The keys of one direction, one after the other.
struct Chain {
    /// What the next key is made of.
    next: Secret,
    key: Cipher,
    /// Records under this key so far: the nonce of the next one.
    used: u64,
    /// Records in all.
    all: u64,
    /// Records under one key.
    limit: u64,
}

impl Chain {
    fn new(secret: &Secret, limit: u64) -> Chain {
        let (next, key) = Chain::step(secret);
        Chain { next, key, used: 0, all: 0, limit: limit.max(1) }
    }

    /// A key, and what the next is made of; neither tells the other.
    fn step(secret: &Secret) -> (Secret, Cipher) {
        (secret.derive(b"nd next record key"), Cipher::new(&secret.derive(b"nd record key")))
    }

    /// The key of the next record and the nonce, which is given away once.
    fn take(&mut self) -> (&Cipher, Nonce) {
        if self.used == self.limit {
            (self.next, self.key) = Chain::step(&self.next);
            self.used = 0;
        }
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.used.to_le_bytes());
        self.used += 1;
        self.all += 1;
        (&self.key, nonce)
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({} records)", self.all)
    }
}

/// What records are made of.
pub trait Source {
    /// Takes off what comes next, as many bytes as `room` has or fewer: some are written to the front of `room`, their
    /// number is given, and the others follow them and are left where they lie. Neither at the end.
    fn take(&mut self, room: &mut [u8]) -> (usize, &[u8]);
}

/// Bytes that lie somewhere.
impl Source for &[u8] {
    fn take(&mut self, room: &mut [u8]) -> (usize, &[u8]) {
        let (now, later) = self.split_at(room.len().min(self.len()));
        *self = later;
        (0, now)
    }
}

/// Makes records.
#[derive(Debug)]
pub struct Sealer {
    chain: Chain,
    buffer: Box<[u8]>,
    /// Of the buffer, in records.
    end: usize,
    /// Of these, taken by the kernel.
    sent: usize,
    /// Bytes that the records hold.
    plain: usize,
}

impl Sealer {
    /// With the secret of its direction.
    pub fn new(secret: &Secret, records_per_key: u64) -> Sealer {
        let chain = Chain::new(secret, records_per_key);
        Sealer { chain, buffer: vec![0; BATCH].into(), end: 0, sent: 0, plain: 0 }
    }

    /// Makes records of what `source` gives, until that is nothing or a batch is full. All that was made before has been
    /// sent.
    pub fn seal(&mut self, source: &mut impl Source) {
        (self.end, self.sent, self.plain) = (0, 0, 0);
        while self.end + HEAD + RECORD + TAG <= BATCH {
            let (front, room) = self.buffer[self.end..].split_at_mut(HEAD);
            let (here, rest) = source.take(&mut room[..RECORD]);
            let len = here + rest.len();
            if len == 0 {
                return;
            }
            let head = (len as u32).to_le_bytes();
            front.copy_from_slice(&head);
            let (key, nonce) = self.chain.take();
            key.seal(nonce, head, &mut room[..len + TAG], rest);
            self.end += HEAD + len + TAG;
            self.plain += len;
        }
    }

    /// What is still to be sent.
    pub fn rest(&self) -> &[u8] {
        &self.buffer[self.sent..self.end]
    }

    /// The kernel took `n` bytes; how many that were given to be sealed it now has, which is told once all records
    /// of a batch are through.
    pub fn sent(&mut self, n: usize) -> usize {
        self.sent += n;
        if self.sent < self.end { 0 } else { std::mem::take(&mut self.plain) }
    }
}

/// Opens records.
///
/// What they hold counts only once the tag was found right: nothing follows from a byte that is not authentic, and of a
/// record that is not, nothing stays where it was to be.
#[derive(Debug)]
pub struct Opener {
    chain: Chain,
    buffer: Box<[u8]>,
    /// Received and not yet opened.
    first: usize,
    end: usize,
}

impl Opener {
    /// With the secret of its direction.
    pub fn new(secret: &Secret, records_per_key: u64) -> Opener {
        let chain = Chain::new(secret, records_per_key);
        Opener { chain, buffer: vec![0; BATCH].into(), first: 0, end: 0 }
    }

    /// Where to receive; [`Opener::received`] says how much came. Not empty once [`Opener::open`] gives no more.
    pub fn room(&mut self) -> &mut [u8] {
        if self.first == self.end || self.first + HEAD + RECORD + TAG > self.buffer.len() {
            self.buffer.copy_within(self.first..self.end, 0);
            (self.first, self.end) = (0, self.end - self.first);
        }
        &mut self.buffer[self.end..]
    }

    /// `n` bytes were received.
    pub fn received(&mut self, n: usize) {
        self.end = (self.end + n).min(self.buffer.len());
    }

    /// Whether a record is half received.
    pub fn within_record(&self) -> bool {
        self.first < self.end
    }

    /// What the next record holds; none until all of it has come.
    pub fn open(&mut self) -> Result<Option<&[u8]>, Forged> {
        let Some((head, sealed, tag)) = whole(&mut self.buffer[self.first..self.end])? else {
            return Ok(None);
        };
        self.first += HEAD + sealed.len() + TAG;
        let (key, nonce) = self.chain.take();
        match key.open(nonce, head, sealed, &tag) {
            Ok(()) => Ok(Some(sealed)),
            Err(_) => Err(Forged::Record(self.chain.all - 1)),
        }
    }

    /// How many bytes the next record holds; none until all of it has come.
    pub fn next_len(&mut self) -> Result<Option<usize>, Forged> {
        Ok(whole(&mut self.buffer[self.first..self.end])?.map(|(_, sealed, _)| sealed.len()))
    }

    /// Opens the next record, which has come and holds as many bytes as `to` takes, into that. Zeros may be there
    /// instead if it is refused.
    pub fn open_to(&mut self, to: &mut [u8]) -> Result<(), Forged> {
        let record = whole(&mut self.buffer[self.first..self.end])?;
        let Some((head, sealed, tag)) = record.filter(|(_, sealed, _)| sealed.len() == to.len()) else {
            return Err(Forged::Record(self.chain.all));
        };
        self.first += HEAD + sealed.len() + TAG;
        let (key, nonce) = self.chain.take();
        key.open_to(nonce, head, (sealed, &tag), to).map_err(|_| Forged::Record(self.chain.all - 1))
    }
}

/// A record's head, what is sealed, and the tag.
type Record<'a> = ([u8; HEAD], &'a mut [u8], [u8; TAG]);

/// The first record of `bytes`; none until all of it is there.
fn whole(bytes: &mut [u8]) -> Result<Option<Record<'_>>, Forged> {
    let Some((head, rest)) = bytes.split_first_chunk_mut::<HEAD>() else { return Ok(None) };
    let len = u32::from_le_bytes(*head);
    if len == 0 || len as usize > RECORD {
        return Err(Forged::Length(len));
    }
    let Some((sealed, rest)) = rest.split_at_mut_checked(len as usize) else { return Ok(None) };
    Ok(rest.first_chunk::<TAG>().map(|tag| (*head, sealed, *tag)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Seals `bytes`, in records of at most `record` bytes.
    fn sealed(sealer: &mut Sealer, bytes: &[u8], record: usize) -> Vec<Vec<u8>> {
        let mut records = vec![];
        for mut piece in bytes.chunks(record) {
            let len = piece.len();
            sealer.seal(&mut piece);
            records.push(sealer.rest().to_vec());
            assert_eq!(sealer.sent(records.last().map_or(0, Vec::len)), len);
        }
        records
    }

    fn opened(opener: &mut Opener, bytes: &[u8], cut: usize) -> Result<Vec<u8>, Forged> {
        let mut plain = vec![];
        for mut piece in bytes.chunks(cut) {
            while !piece.is_empty() {
                let room = opener.room();
                let n = room.len().min(piece.len());
                room[..n].copy_from_slice(&piece[..n]);
                opener.received(n);
                piece = &piece[n..];
                while let Some(more) = opener.open()? {
                    plain.extend_from_slice(more);
                }
            }
        }
        Ok(plain)
    }

    fn ends(limit: u64) -> (Sealer, Opener) {
        let secret = Secret::from_bytes([7; 32]);
        (Sealer::new(&secret, limit), Opener::new(&secret, limit))
    }

    proptest! {
        #[test]
        fn records_survive_any_split(
            len in 1usize..9000, record in 1usize..700, cut in 1usize..5000, limit in 1u64..9,
        ) {
            let bytes: Vec<u8> = (0..len).map(|i| ((i * 31) ^ (i >> 8)) as u8).collect();
            let (mut sealer, mut opener) = ends(limit);
            let records = sealed(&mut sealer, &bytes, record);
            prop_assert_eq!(opened(&mut opener, &records.concat(), cut), Ok(bytes));
            prop_assert!(!opener.within_record());
        }

        /// One bit anywhere is noticed, and nothing of that record is given out.
        #[test]
        fn any_change_is_noticed(at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let (mut sealer, mut opener) = ends(5);
            let mut stream = sealed(&mut sealer, &[9; 3000], 300).concat();
            let at = at.index(stream.len());
            stream[at] ^= 1 << bit;
            let before = at / (HEAD + 300 + TAG);
            let room = opener.room();
            room[..stream.len()].copy_from_slice(&stream);
            opener.received(stream.len());
            for _ in 0..before {
                prop_assert_eq!(opener.open(), Ok(Some(&[9; 300][..])));
            }
            // A length that became longer waits for bytes that never come, or swallows the next records.
            prop_assert!(!matches!(opener.open(), Ok(Some(_))));
        }

        #[test]
        fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..3000), cut in 1usize..100) {
            let (_, mut opener) = ends(5);
            prop_assert!(opened(&mut opener, &bytes, cut).map_or(true, |plain| plain.is_empty()));
        }
    }

    #[test]
    fn replayed_reordered_and_missing_records_are_refused() {
        let records = sealed(&mut ends(3).0, &[5; 1000], 100);
        let refused_at = |order: &[usize]| {
            let stream: Vec<u8> = order.iter().flat_map(|&r| records[r].clone()).collect();
            opened(&mut ends(3).1, &stream, 1 << 20).unwrap_err()
        };
        assert_eq!(refused_at(&[0, 0]), Forged::Record(1));
        assert_eq!(refused_at(&[0, 2, 1]), Forged::Record(1));
        assert_eq!(refused_at(&[1]), Forged::Record(0));
        // The same number under another key.
        assert_eq!(refused_at(&[0, 1, 2, 0]), Forged::Record(3));
        assert_eq!(refused_at(&[0, 1, 2, 3, 7]), Forged::Record(4));
    }

    #[test]
    fn keys_change_and_no_two_records_are_alike() {
        let (mut sealer, mut opener) = ends(4);
        let records = sealed(&mut sealer, &[0; 6400], 64);
        assert_eq!(records.len(), 100);
        let different: std::collections::HashSet<_> = records.iter().collect();
        assert_eq!(different.len(), 100);
        assert_eq!(opened(&mut opener, &records.concat(), 1000), Ok(vec![0; 6400]));
        assert_eq!((opener.chain.all, opener.chain.used), (100, 4));
        // Who has the second key has neither the first nor the third: a limit that differs is noticed there.
        let mut other = Opener::new(&Secret::from_bytes([7; 32]), 5);
        assert_eq!(opened(&mut other, &records.concat(), 1000), Err(Forged::Record(4)));
    }

    #[test]
    fn each_direction_has_its_own_keys() {
        let records = sealed(&mut ends(4).0, &[0; 10], 10);
        let mut other = Opener::new(&Secret::from_bytes([8; 32]), 4);
        assert_eq!(opened(&mut other, &records[0], 100), Err(Forged::Record(0)));
    }

    #[test]
    fn lengths_that_no_record_has_are_refused_before_it_comes() {
        for len in [0, RECORD as u32 + 1, u32::MAX] {
            assert_eq!(opened(&mut ends(4).1, &len.to_le_bytes(), 9), Err(Forged::Length(len)));
        }
        let (mut sealer, mut opener) = ends(4);
        let long = vec![3; 3 * BATCH];
        let stream = sealed(&mut sealer, &long, RECORD).concat();
        assert!(opened(&mut opener, &stream, stream.len()) == Ok(long));
    }
}
