//! Whether two ranks have read the same. *Pure.*

/// A number that differs where the bytes do, and where `before` does: FNV-1a (Fowler, Noll and Vo) over eight bytes at a time,
/// with a shift that lets high bits reach low ones. Against mistakes, not against those who want two files to look alike.
pub fn digest(before: u64, bytes: &[u8]) -> u64 {
    let step = |hash: u64, word: u64| {
        let hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^ (hash >> 32)
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let hash = words.fold(step(0xcbf2_9ce4_8422_2325, before), step);
    let hash = rest.iter().map(|&byte| byte.into()).fold(hash, step);
    step(hash, bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_byte_counts_and_where_it_is() {
        let all: Vec<u8> = (0..43).collect();
        let of = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = all.clone();
            change(&mut bytes);
            digest(0, &bytes)
        };
        let mut seen = BTreeSet::from([of(&|_| {}), digest(1, &all)]);
        for at in 0..all.len() {
            for bit in 0..8 {
                assert!(seen.insert(of(&|bytes| bytes[at] ^= 1 << bit)), "bit {bit} of byte {at}");
            }
            assert!(seen.insert(of(&|bytes| bytes.truncate(at))), "{at} bytes");
        }
        assert!(seen.insert(of(&|bytes| bytes.swap(3, 11))));
        assert!(seen.insert(of(&|bytes| bytes.push(0))));
    }
}
