//! Random numbers that depend on a key and a counter alone: whoever asks for the number of an element gets the same
//! one, whatever rank it is and however the tensor is divided. *Pure.*
//!
//! The generator is Philox-4×32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
//! 2011).

use std::f64::consts::TAU;

/// A key, and so 2^128 blocks of four numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Random {
    key: [u32; 2],
}

impl Random {
    /// The numbers of a seed and a stream, for example a site of the model at a step.
    pub fn new(seed: u64, stream: u64) -> Random {
        let key = mix(seed ^ mix(stream));
        Random { key: [key as u32, (key >> 32) as u32] }
    }

    /// The numbers of a seed and a name.
    pub fn named(seed: u64, name: &str) -> Random {
        Random::new(seed, name.bytes().fold(name.len() as u64, |hash, byte| mix(hash ^ u64::from(byte))))
    }

    /// Block `counter`: four numbers, each of 32 random bits.
    pub fn block(&self, counter: [u32; 4]) -> [u32; 4] {
        let [a, b, c, d] = self.blocks::<1>(counter);
        [a[0], b[0], c[0], d[0]]
    }

    /// `N` blocks whose counters' first words follow each other from that of `first`, at once: number `i` of block `j`
    /// is `[i][j]`.
    #[inline(always)]
    pub fn blocks<const N: usize>(&self, first: [u32; 4]) -> [[u32; N]; 4] {
        const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
        const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
        let mut x = first.map(|word| [word; N]);
        for (i, word) in x[0].iter_mut().enumerate() {
            *word = word.wrapping_add(i as u32);
        }
        let mut key = self.key;
        for _ in 0..10 {
            let [a, b, c, d] = &mut x;
            for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
                let even = u64::from(*a) * u64::from(MULTIPLIERS[0]);
                let odd = u64::from(*c) * u64::from(MULTIPLIERS[1]);
                [*a, *b] = [(odd >> 32) as u32 ^ *b ^ key[0], odd as u32];
                [*c, *d] = [(even >> 32) as u32 ^ *d ^ key[1], even as u32];
            }
            key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
        }
        x
    }

    /// Number `index`, of 32 random bits.
    pub fn u32(&self, index: u64) -> u32 {
        self.block(place(index / 4))[(index % 4) as usize]
    }

    /// Number `index`, evenly distributed over [0, 1).
    pub fn f32(&self, index: u64) -> f32 {
        (self.u32(index) >> 8) as f32 / (1 << 24) as f32
    }

    /// Number `index`, normally distributed about 0 with variance 1.
    pub fn normal(&self, index: u64) -> f64 {
        self.normals(index / 4)[(index % 4) as usize]
    }

    /// Numbers `start..`, normally distributed about 0 with standard deviation `deviation`.
    pub fn fill_normal(&self, start: u64, deviation: f64, out: &mut [f32]) {
        let mut index = start;
        let mut left = out;
        while !left.is_empty() {
            let skip = (index % 4) as usize;
            let count = left.len().min(4 - skip);
            let (now, later) = left.split_at_mut(count);
            for (out, normal) in now.iter_mut().zip(&self.normals(index / 4)[skip..]) {
                *out = (normal * deviation) as f32;
            }
            left = later;
            index += count as u64;
        }
    }

    /// Four normal numbers, by Box and Muller's method.
    fn normals(&self, block: u64) -> [f64; 4] {
        let [a, b, c, d] = self.block(place(block)).map(|bits| (f64::from(bits) + 0.5) / (1u64 << 32) as f64);
        let pair = |radius: f64, turn: f64| {
            let (sin, cos) = (TAU * turn).sin_cos();
            let radius = (-2.0 * radius.ln()).sqrt();
            (radius * cos, radius * sin)
        };
        let ((a, b), (c, d)) = (pair(a, b), pair(c, d));
        [a, b, c, d]
    }
}

fn place(block: u64) -> [u32; 4] {
    [block as u32, (block >> 32) as u32, 0, 0]
}

/// Spreads every bit over all (the finalizer of SplitMix64, by Steele, Lea and Flood).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_that_the_generator_s_authors_give() {
        for (key, counter, block) in [
            ([0; 2], [0; 4], [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]),
            ([u32::MAX; 2], [u32::MAX; 4], [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]),
            (
                [0xA409_3822, 0x299F_31D0],
                [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
                [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
            ),
        ] {
            assert_eq!(Random { key }.block(counter), block);
        }
    }

    #[test]
    fn many_blocks_at_once_are_the_same_blocks() {
        let random = Random::new(3, 9);
        let many = random.blocks::<8>([100, 2, 3, 4]);
        for i in 0..8 {
            assert_eq!(many.map(|word| word[i]), random.block([100 + i as u32, 2, 3, 4]));
        }
    }

    #[test]
    fn a_part_has_the_numbers_of_the_whole() {
        let random = Random::named(1, "model.norm.weight");
        let mut whole = [0.0; 50];
        random.fill_normal(0, 0.02, &mut whole);
        for (start, len) in [(0, 1), (3, 5), (7, 9), (49, 1), (8, 0)] {
            let mut part = vec![0.0; len];
            random.fill_normal(start as u64, 0.02, &mut part);
            assert_eq!(part, whole[start..start + len]);
        }
        assert_eq!(whole[13], (random.normal(13) * 0.02) as f32);
    }

    #[test]
    fn numbers_are_distributed_as_they_should_be() {
        let random = Random::new(7, 0);
        let n = 100_000;
        let mean = |of: &dyn Fn(u64) -> f64| (0..n).map(of).sum::<f64>() / n as f64;
        let even = |i| f64::from(random.f32(i));
        assert!((mean(&even) - 0.5).abs() < 0.01);
        assert!((mean(&|i| even(i) * even(i)) - 1.0 / 3.0).abs() < 0.01);
        for (power, moment, slack) in [(1, 0.0, 0.02), (2, 1.0, 0.03), (3, 0.0, 0.1), (4, 3.0, 0.2)] {
            let found = mean(&|i| random.normal(i).powi(power));
            assert!((found - moment).abs() < slack, "moment {power} is {found}, not {moment}");
        }
    }

    #[test]
    fn other_seeds_streams_and_names_give_other_numbers() {
        let numbers = [
            Random::new(0, 0),
            Random::new(0, 1),
            Random::new(1, 0),
            Random::named(0, "a"),
            Random::named(0, "b"),
            Random::named(1, "a"),
        ]
        .map(|random| random.u32(0));
        let mut different = numbers.to_vec();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), numbers.len());
    }
}
