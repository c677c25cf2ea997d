//! Which rank writes what. *Pure.*

use std::collections::BTreeMap;

use super::manifest::Piece;
use crate::model::Part;

/// What a rank has of a parameter, which others may have too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Has {
    /// Which of the parameters, in the order of their names.
    pub parameter: usize,
    /// The part that it is cut from.
    pub part: Option<Part>,
    /// Where it begins in that part, flattened, and how long it is, in elements.
    pub start: usize,
    pub len: usize,
    /// Kinds of tensors.
    pub kinds: usize,
}

impl Has {
    /// Numbers that stand for one.
    pub const WORDS: usize = 7;

    /// For a call among ranks.
    pub fn to_words(self) -> [u64; Has::WORDS] {
        let Has { parameter, part, start, len, kinds } = self;
        let (dim, begin, size) = part.map_or((0, 0, 0), |part| (part.dim + 1, part.start, part.len));
        [parameter, dim, begin, size, start, len, kinds].map(|word| word as u64)
    }

    /// The other way.
    pub fn from_words(words: [u64; Has::WORDS]) -> Has {
        let [parameter, dim, begin, size, start, len, kinds] = words.map(|word| word as usize);
        let part = dim.checked_sub(1).map(|dim| Part { dim, start: begin, len: size });
        Has { parameter, part, start, len, kinds }
    }

    /// As the manifest has it.
    pub fn piece(&self, file: usize) -> Piece {
        Piece { file, part: self.part, start: self.start, len: self.len }
    }
}

/// Of what each rank has, which of it that rank writes: all of it once. What several have goes to the one that has least to
/// write so far, the longest first.
pub fn share(of_ranks: &[Vec<Has>]) -> Vec<Vec<usize>> {
    let mut holders: BTreeMap<[u64; Has::WORDS], Vec<(usize, usize)>> = BTreeMap::new();
    for (rank, all) in of_ranks.iter().enumerate() {
        for (index, has) in all.iter().enumerate() {
            holders.entry(has.to_words()).or_default().push((rank, index));
        }
    }
    let elements = |words: &[u64; Has::WORDS]| {
        let has = Has::from_words(*words);
        has.len * has.kinds
    };
    let mut all: Vec<_> = holders.into_iter().collect();
    // What only one can write is settled first.
    all.sort_by_key(|(words, holders)| (holders.len() > 1, std::cmp::Reverse(elements(words))));
    let mut written = vec![Vec::new(); of_ranks.len()];
    let mut load = vec![0usize; of_ranks.len()];
    for (words, holders) in all {
        if let Some(&(rank, index)) = holders.iter().min_by_key(|(rank, _)| load[*rank]) {
            load[rank] = load[rank].saturating_add(elements(&words));
            written[rank].push(index);
        }
    }
    written.iter_mut().for_each(|indices| indices.sort_unstable());
    written
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn copies_are_dealt_out_evenly() {
        let has = |parameter, len| Has { parameter, part: None, start: 0, len, kinds: 3 };
        // Four ranks with the same eight tensors, and one of them with something of its own.
        let mut ranks = vec![(0..8).map(|p| has(p, 100)).collect::<Vec<_>>(); 4];
        ranks[2].push(has(8, 200));
        let lens: Vec<usize> = share(&ranks)
            .iter()
            .zip(&ranks)
            .map(|(indices, all)| indices.iter().map(|&i| all[i].len).sum())
            .collect();
        assert_eq!(lens.iter().sum::<usize>(), 1000);
        assert!(lens.iter().all(|&len| (200..=300).contains(&len)), "{lens:?}");
    }

    proptest! {
        #[test]
        fn all_is_written_once_by_one_that_has_it(
            ranks in prop::collection::vec(
                prop::collection::btree_set((0usize..5, 0usize..4, 0usize..3, 1usize..9, 1usize..4), 0..8), 1..6),
        ) {
            let has = |&(parameter, dim, start, len, kinds): &(usize, usize, usize, usize, usize)| {
                let part = dim.checked_sub(1).map(|dim| Part { dim, start: 7 * dim, len: 3 });
                Has { parameter, part, start, len, kinds }
            };
            let ranks: Vec<Vec<Has>> = ranks.iter().map(|all| all.iter().map(has).collect()).collect();
            for has in ranks.iter().flatten() {
                prop_assert_eq!(Has::from_words(has.to_words()), *has);
            }
            let mut written = BTreeMap::new();
            for (indices, all) in share(&ranks).iter().zip(&ranks) {
                indices.iter().for_each(|&i| *written.entry(all[i].to_words()).or_insert(0) += 1);
            }
            let wanted: BTreeMap<_, _> = ranks.iter().flatten().map(|has| (has.to_words(), 1)).collect();
            prop_assert_eq!(written, wanted);
        }
    }
}
