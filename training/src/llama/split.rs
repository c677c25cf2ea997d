//! How a model's heads, channels and vocabulary are dealt out over the ranks of tensor parallelism. *Pure.*

use std::ops::Range;

use super::config::{Config, LayerTensor};
use crate::error::{Error, Result};
use crate::model::Part;

/// One rank's share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Split {
    /// Ranks.
    pub size: usize,
    /// Which this one is.
    pub rank: usize,
    /// On how many ranks, in a row, each key and value head is.
    pub replicas: usize,
    /// This rank's heads.
    pub heads: Range<usize>,
    /// The key and value heads this rank holds.
    pub kv_heads: Range<usize>,
}

impl Split {
    /// # Errors
    /// [`Error::Config`] with the numbers and what would do, when something cannot be dealt out evenly.
    pub fn new(config: &Config, size: usize, rank: usize, replicas: usize) -> Result<Split> {
        config.check()?;
        let kv = config.num_key_value_heads;
        let least = (1..=size).find(|&r| shares(kv, size, r)).unwrap_or(size);
        if replicas == 0 {
            return Err(Error::Config(format!(
                "kv_replicas=0; each head is on at least one rank: use kv_replicas={least}"
            )));
        }
        for (name, count) in [
            ("num_attention_heads", config.num_attention_heads),
            ("intermediate_size", config.intermediate_size),
            ("vocab_size", config.vocab_size),
        ] {
            if !count.is_multiple_of(size) {
                let choices = choices(config, replicas);
                return Err(Error::Config(format!(
                    "tp={size} does not divide {name}={count}: use {choices}"
                )));
            }
        }
        if !shares(kv, size, replicas) {
            return Err(Error::Config(match replicas {
                1 => format!(
                    "tp={size} does not divide num_key_value_heads={kv}: use {}, or kv_replicas={least}",
                    choices(config, 1)
                ),
                _ => format!(
                    "kv_replicas={replicas} does not deal num_key_value_heads={kv} out over tp={size}: use kv_replicas={least}"
                ),
            }));
        }
        let part =
            |count: usize, size: usize, rank: usize| rank * (count / size)..(rank + 1) * (count / size);
        Ok(Split {
            size,
            rank,
            replicas,
            heads: part(config.num_attention_heads, size, rank),
            kv_heads: part(kv, size / replicas, rank / replicas),
        })
    }

    /// This rank's part of a block's tensor; none if it has the whole.
    pub fn part(&self, tensor: LayerTensor, config: &Config) -> Option<Part> {
        let heads = |dim, heads: &Range<usize>| Part {
            dim,
            start: heads.start * config.head_dim,
            len: heads.len() * config.head_dim,
        };
        use LayerTensor::*;
        let part = match tensor {
            AttentionNorm | FeedForwardNorm | OutputBias | DownBias => return None,
            Query | QueryBias => heads(0, &self.heads),
            Key | KeyBias | Value | ValueBias => heads(0, &self.kv_heads),
            Output => heads(1, &self.heads),
            Gate | GateBias | Up | UpBias => self.rows(config.intermediate_size)?,
            Down => Part { dim: 1, ..self.rows(config.intermediate_size)? },
        };
        (part.len < tensor.shape(config)[part.dim]).then_some(part)
    }

    /// This rank's part of `count` rows; none if it has all.
    pub fn rows(&self, count: usize) -> Option<Part> {
        let len = count / self.size;
        (self.size > 1).then_some(Part { dim: 0, start: self.rank * len, len })
    }

    /// Which of the key and value heads that this rank holds its own heads ask.
    pub fn asked(&self, config: &Config) -> Asked {
        let per_kv_head = config.num_attention_heads / config.num_key_value_heads;
        let of_head: Vec<u32> =
            self.heads.clone().map(|head| (head / per_kv_head - self.kv_heads.start) as u32).collect();
        let (first, last) = (of_head[0] as usize, of_head[of_head.len() - 1] as usize);
        let count = last - first + 1;
        let even = of_head.len().is_multiple_of(count)
            && of_head.iter().enumerate().all(|(i, &kv)| kv as usize == first + i / (of_head.len() / count));
        match even {
            true if count == self.kv_heads.len() => Asked::All,
            true => Asked::Some(first..last + 1),
            false => Asked::OneByOne(of_head),
        }
    }
}

/// Which key and value heads are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    /// All, by equally many heads each.
    All,
    /// These, by equally many heads each.
    Some(Range<usize>),
    /// For each head one of them.
    OneByOne(Vec<u32>),
}

/// Whether `kv` heads can be dealt out over `size` ranks with each on `replicas` of them. Ranks that share heads follow each other;
/// the heads are dealt out over such groups.
fn shares(kv: usize, size: usize, replicas: usize) -> bool {
    replicas > 0 && size.is_multiple_of(replicas) && kv.is_multiple_of(size / replicas)
}

/// The sizes of tp that a model can be dealt out over with as many copies, or else without, for a message: `tp=1, 3 or 9`.
fn choices(config: &Config, replicas: usize) -> String {
    let heads = config.num_attention_heads;
    let counts = [heads, config.intermediate_size, config.vocab_size];
    let fits = |tp: &usize| {
        counts.iter().all(|count| count.is_multiple_of(*tp))
            && shares(config.num_key_value_heads, *tp, replicas)
    };
    let sizes: Vec<String> = (1..=heads).filter(fits).map(|tp| tp.to_string()).collect();
    match sizes.split_last() {
        Some((last, [])) => format!("tp={last}"),
        Some((last, rest)) => format!("tp={} or {last}", rest.join(", ")),
        None if replicas == 1 => "tp=1".into(),
        None => format!("{} with kv_replicas=1", choices(config, 1)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn config(heads: usize, kv_heads: usize) -> Config {
        Config {
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim: 2,
            intermediate_size: 5040,
            vocab_size: 5040,
            ..Config::default()
        }
    }

    fn problem(config: &Config, size: usize, replicas: usize) -> String {
        Split::new(config, size, 0, replicas).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_dealt_out_is_said_with_numbers_and_a_remedy() {
        assert_eq!(
            problem(&config(12, 3), 4, 1),
            "tp=4 does not divide num_key_value_heads=3: use tp=1 or 3, or kv_replicas=4"
        );
        assert_eq!(
            problem(&config(8, 2), 4, 1),
            "tp=4 does not divide num_key_value_heads=2: use tp=1 or 2, or kv_replicas=2"
        );
        assert_eq!(problem(&config(9, 3), 2, 1), "tp=2 does not divide num_attention_heads=9: use tp=1 or 3");
        assert!(problem(&config(8, 2), 4, 3).contains("use kv_replicas=2"));
        assert!(problem(&config(8, 2), 4, 0).contains("at least one rank"));
        let odd = Config { vocab_size: 257, ..config(8, 4) };
        assert_eq!(problem(&odd, 2, 1), "tp=2 does not divide vocab_size=257: use tp=1");
        let odd = Config { intermediate_size: 99, ..config(8, 8) };
        assert_eq!(problem(&odd, 4, 1), "tp=4 does not divide intermediate_size=99: use tp=1");
        // All that fit, and none that another rule refuses.
        assert_eq!(
            problem(&config(12, 3), 5, 2),
            "tp=5 does not divide num_attention_heads=12: use tp=2 or 6"
        );
        assert_eq!(
            problem(&config(4, 4), 3, 5),
            "tp=3 does not divide num_attention_heads=4: use tp=1, 2 or 4 with kv_replicas=1"
        );
        let fits = "tp=3 does not divide num_attention_heads=8: use tp=1, 2, 4 or 8";
        assert_eq!(problem(&config(8, 8), 3, 1), fits);
        assert_eq!(problem(&config(6, 2), 4, 1), "tp=4 does not divide num_attention_heads=6: use tp=1 or 2");
    }

    #[test]
    fn heads_ask_those_of_their_group() {
        let asked = |heads, kv, size, rank, replicas| {
            let config = config(heads, kv);
            Split::new(&config, size, rank, replicas).unwrap().asked(&config)
        };
        assert_eq!(asked(9, 3, 3, 1, 1), Asked::All);
        assert_eq!(asked(8, 2, 4, 3, 2), Asked::All);
        assert_eq!(asked(12, 3, 6, 5, 6), Asked::Some(2..3));
        assert_eq!(asked(12, 3, 4, 1, 4), Asked::OneByOne(vec![0, 1, 1]));
    }

    proptest! {
        /// Every head is at one rank, with the head it asks; every key and value head at `replicas` ranks.
        #[test]
        fn every_head_has_its_place(
            size in 1usize..9,
            per_rank in 1usize..4,
            kv_per_group in 1usize..4,
            replicas in 1usize..9,
        ) {
            prop_assume!(size.is_multiple_of(replicas));
            let kv = kv_per_group * size / replicas;
            let heads = size * kv * per_rank;
            let config = config(heads, kv);
            let mut copies = vec![0; kv];
            let mut next = 0;
            for rank in 0..size {
                let Ok(split) = Split::new(&config, size, rank, replicas) else {
                    // The vocabulary of these tests has no factor above 10 but 7.
                    return Ok(());
                };
                prop_assert_eq!(split.heads.start, next);
                next = split.heads.end;
                split.kv_heads.clone().for_each(|kv| copies[kv] += 1);
                for head in split.heads.clone() {
                    prop_assert!(split.kv_heads.contains(&(head / (heads / kv))));
                }
                let part = split.part(LayerTensor::Key, &config);
                prop_assert_eq!(part.is_none(), split.kv_heads.len() == kv);
            }
            prop_assert_eq!(next, heads);
            prop_assert!(copies.iter().all(|&c| c == replicas));
        }
    }
}
