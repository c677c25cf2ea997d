//! How many ranks may decide for all.
//!
//! Enough are
//! * all ranks, but for those that certainly are no more; or
//! * more than half of all ranks, dead ones among these all, or half of them with the lowest rank.
//!
//! So a job of two goes on with one when the other is dead, and not when it is merely silent, unless it is the lower
//! one. "Certainly" is what an operating system says: the process is gone, or the kernel at the other end has closed a
//! connection that was not taken leave of. A link that is merely silent proves nothing.
//!
//! Two decisions that come about without knowing of each other are impossible while somebody lives who knows the first:
//! any two sets by the second rule have a rank in common, and so have a set by the first rule and any later one, whose
//! ranks all lived when the first was made and so belong to it. A set by the first rule has a rank in common with any
//! earlier one of which somebody is left. The common rank tells the later leader (see [`super`]).

/// Whether `present` may decide for the ranks `0..size`, of which `dead` certainly are no more.
pub fn enough(size: usize, present: &[usize], dead: &[usize]) -> bool {
    let here = (0..size).filter(|rank| present.contains(rank)).count();
    let all = (0..size).all(|rank| present.contains(&rank) || dead.contains(&rank));
    here > 0 && (all || 2 * here > size || (2 * here == size && present.contains(&0)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn all_the_living_or_more_than_half_or_half_with_the_lowest() {
        assert!(enough(4, &[1, 2, 3], &[]));
        assert!(enough(4, &[0, 3], &[]) && !enough(4, &[1, 2], &[]));
        assert!(!enough(2, &[1], &[]) && enough(2, &[1], &[0]) && enough(2, &[0], &[]));
        assert!(enough(5, &[3, 4], &[0, 1, 2]) && !enough(5, &[3, 4], &[0, 1]));
        assert!(!enough(3, &[], &[]) && !enough(3, &[], &[0, 1, 2]) && !enough(2, &[5], &[]));
    }

    proptest! {
        /// Two parts without a common rank, each knowing some of the dead and no living rank as dead.
        #[test]
        fn no_two_parts_may_decide(
            ranks in prop::collection::vec((0..3u8, any::<bool>(), any::<bool>()), 1..12),
        ) {
            // 0: in the first part, 1: in the second, 2: dead.
            let of = |part| (0..ranks.len()).filter(|&r| ranks[r].0 == part).collect::<Vec<_>>();
            let dead = |known: &dyn Fn(usize) -> bool| -> Vec<usize> {
                of(2).into_iter().filter(|&r| known(r)).collect()
            };
            let (a, b) = (of(0), of(1));
            let (known_a, known_b) = (dead(&|r| ranks[r].1), dead(&|r| ranks[r].2));
            prop_assert!(!(enough(ranks.len(), &a, &known_a) && enough(ranks.len(), &b, &known_b)));
        }
    }
}
