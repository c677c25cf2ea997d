//! A shuffled order of `0..n`, without a list of it. *Pure.*
//!
//! A Feistel network permutes the numbers of an even count of bits, which is at most four times `n`; a number that falls outside
//! is permuted again until it falls inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).

/// A permutation of `0..n`, by a key.
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    n: u64,
    half: u32,
    key: u64,
}

/// Rounds of the network: four look random; as this is no cipher, six are plenty.
const ROUNDS: u64 = 6;

impl Permutation {
    /// The same for the same `n` and key.
    pub fn new(n: u64, key: u64) -> Permutation {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        Permutation { n, half: bits.div_ceil(2).max(1), key }
    }

    /// Where `i`, below `n`, goes.
    pub fn of(&self, i: u64) -> u64 {
        let mut at = i;
        loop {
            at = self.network(at);
            if at < self.n {
                return at;
            }
        }
    }

    fn network(&self, i: u64) -> u64 {
        let mask = (1 << self.half) - 1;
        let (mut left, mut right) = (i >> self.half, i & mask);
        for round in 0..ROUNDS {
            let mixed = mix(self.key ^ mix(right | round << 56)) & mask;
            (left, right) = (right, left ^ mixed);
        }
        left << self.half | right
    }
}

/// Every bit of the result depends on every bit of `x` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// 2014: SplitMix64).
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn everything_comes_once(n in 1u64..3000, key: u64) {
            let permutation = Permutation::new(n, key);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                let at = permutation.of(i) as usize;
                prop_assert!(!std::mem::replace(&mut seen[at], true));
            }
        }
    }

    #[test]
    fn keys_give_different_orders_without_much_of_the_old() {
        let (a, b) = (Permutation::new(1000, 1), Permutation::new(1000, 2));
        let same = (0..1000).filter(|&i| a.of(i) == b.of(i)).count();
        let fixed = (0..1000).filter(|&i| a.of(i) == i).count();
        let neighbours = (0..999).filter(|&i| a.of(i) + 1 == a.of(i + 1)).count();
        // One is expected of each; ten have a probability of one in ten million.
        assert!(same < 10 && fixed < 10 && neighbours < 10, "{same} {fixed} {neighbours}");
    }
}
