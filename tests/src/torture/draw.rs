//! Numbers drawn from a seed: the same everywhere, so that a seed that is printed repeats what it gave.

/// A generator (splitmix64, Steele, Lea and Flood, 2014).
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// By seed, and by what it is for: draws for different things do not depend on each other.
    pub fn new(seed: u64, what: &[u64]) -> Draw {
        let mut draw = Draw(seed);
        for word in what {
            draw.0 = draw.number() ^ word;
        }
        draw
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `n` - 1.
    pub fn below(&mut self, n: usize) -> usize {
        (self.number() % n.max(1) as u64) as usize
    }

    /// One of these.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// From 0 to 1.
    pub fn share(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_what_it_gave() {
        let draws = |seed, what: &[u64]| {
            let mut draw = Draw::new(seed, what);
            (0..100).map(|_| draw.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draws(7, &[1, 2]), draws(7, &[1, 2]));
        assert_ne!(draws(7, &[1, 2]), draws(7, &[1, 3]));
        assert_ne!(draws(7, &[1, 2]), draws(8, &[1, 2]));
        let mut draw = Draw::new(1, &[]);
        assert!((0..1000).all(|_| draw.below(3) < 3 && (0.0..1.0).contains(&draw.share())));
    }
}
