//! How a model's width makes heads where nothing else is said, and what would do where it does not. *Pure.*

use super::config::{MOST_CHANNELS, MOST_HEADS, MOST_HIDDEN};
use crate::error::{Error, Result};

/// What the numbers are called where they are written: keys of `config.json`, or settings.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// The width.
    pub hidden: &'static str,
    /// Heads that ask.
    pub heads: &'static str,
    /// Heads that are asked.
    pub kv_heads: &'static str,
}

impl Names {
    /// Hugging Face's.
    pub const HUGGING_FACE: Names =
        Names { hidden: "hidden_size", heads: "num_attention_heads", kv_heads: "num_key_value_heads" };
}

/// Width, heads, and heads of keys and values.
type Shape = (usize, usize, usize);

/// Channels of a head: the width divided by the heads. Sizes that are out of all range are not judged here.
///
/// # Errors
/// [`Error::Config`] with the numbers and shapes that would do, when that is no even number: rotary positions turn pairs.
pub fn head_dim(names: &Names, hidden: usize, heads: usize, kv_heads: usize) -> Result<usize> {
    let pairs = heads.saturating_mul(2);
    if heads == 0 || kv_heads == 0 || hidden == 0 || hidden > MOST_HIDDEN || hidden.is_multiple_of(pairs) {
        return Ok(hidden / heads.max(1));
    }
    let asked = (hidden, heads, kv_heads);
    let fixes: Vec<String> = fixes(asked).into_iter().map(|fix| shown(names, asked, fix)).collect();
    Err(Error::Config(format!(
        "{}={hidden} is no multiple of 2 × {} = {pairs}: each head has an even number of channels, as rotary positions turn \
         pairs; use {}",
        names.hidden,
        names.heads,
        fixes.join(" or ")
    )))
}

/// Shapes near the one that was asked for, each of which works.
fn fixes((hidden, heads, kv_heads): Shape) -> Vec<Shape> {
    let fits = |&(hidden, heads): &(usize, usize)| {
        (1..=MOST_HIDDEN).contains(&hidden)
            && (1..=MOST_HEADS).contains(&heads)
            && hidden.is_multiple_of(2 * heads)
            && hidden / heads <= MOST_CHANNELS
    };
    let pairs = heads.saturating_mul(2);
    let below = hidden / pairs * pairs;
    let widths = [below, below.saturating_add(pairs)].map(|width| (width, heads));
    let others = (1..=MOST_HEADS.min(hidden / 2)).map(|heads| (hidden, heads));
    let nearest = others.filter(&fits).min_by_key(|other| other.1.abs_diff(heads));
    let mut all: Vec<_> = widths.into_iter().filter(&fits).chain(nearest).collect();
    if all.is_empty() {
        // An odd width, and more heads than any width has room for.
        let channels = if hidden < MOST_CHANNELS { hidden.next_multiple_of(2) } else { 256 };
        let hidden = hidden.next_multiple_of(channels);
        all.push((hidden, hidden / channels));
    }
    all.into_iter().map(|(hidden, heads)| (hidden, heads, nearest_divisor(heads, kv_heads))).collect()
}

/// What of a shape differs from what was asked for.
fn shown(names: &Names, asked: Shape, fix: Shape) -> String {
    let all =
        [(names.hidden, asked.0, fix.0), (names.heads, asked.1, fix.1), (names.kv_heads, asked.2, fix.2)];
    let other = all.into_iter().filter(|(_, asked, fix)| asked != fix);
    other.map(|(name, _, fix)| format!("{name}={fix}")).collect::<Vec<_>>().join(" with ")
}

/// The divisor of `of` that is nearest to `to`.
fn nearest_divisor(of: usize, to: usize) -> usize {
    (1..=of).filter(|d| of.is_multiple_of(*d)).min_by_key(|d| d.abs_diff(to)).unwrap_or(1)
}

/// The divisors of `of` next to `to` on both sides, for a message: `1 or 3`.
pub(super) fn divisors(of: usize, to: usize) -> String {
    let divides = |d: &usize| of.is_multiple_of(*d);
    let (below, above) = ((1..to.min(of + 1)).rev().find(divides), (to..=of).find(divides));
    let both: Vec<String> = below.into_iter().chain(above).map(|d| d.to_string()).collect();
    both.join(" or ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::llama::Config;

    const OURS: Names = Names { hidden: "hidden", heads: "heads", kv_heads: "kv-heads" };

    fn said(hidden: usize, heads: usize, kv_heads: usize) -> String {
        head_dim(&OURS, hidden, heads, kv_heads).unwrap_err().to_string()
    }

    #[test]
    fn a_width_that_makes_no_heads_is_said_with_what_would_do() {
        assert_eq!(head_dim(&OURS, 128, 4, 2).unwrap(), 32);
        let error = said(10, 4, 2);
        assert!(error.starts_with("hidden=10 is no multiple of 2 × heads = 8: "), "{error}");
        assert!(error.ends_with("; use hidden=8 or hidden=16 or heads=5 with kv-heads=1"), "{error}");
        let error = said(128, 1_000_000_000, 1_000_000_000);
        assert!(error.ends_with("; use heads=64 with kv-heads=64"), "{error}");
        assert!(said(60, 4, 4).ends_with("use hidden=56 or hidden=64 or heads=3 with kv-heads=3"));
        // Of sizes beyond all bounds something else is said.
        assert!(head_dim(&OURS, usize::MAX, 4, 2).is_ok() && head_dim(&OURS, 8, 0, 0).is_ok());
    }

    #[test]
    fn divisors_on_both_sides() {
        assert_eq!(
            [(9, 2), (9, 12), (12, 5), (7, 3)].map(|(of, to)| divisors(of, to)),
            ["1 or 3", "9", "4 or 6", "1 or 7"]
        );
    }

    proptest! {
        #[test]
        fn every_fix_works(
            hidden in prop_oneof![1usize..300, 1..MOST_HIDDEN + 1],
            heads in prop_oneof![1usize..100, 1..MOST_HEADS, Just(usize::MAX)],
            kv_heads in prop_oneof![1usize..20, Just(usize::MAX)],
        ) {
            let asked = (hidden, heads, kv_heads);
            prop_assert!(!fixes(asked).is_empty(), "{asked:?}");
            for fix in fixes(asked) {
                let head_dim = head_dim(&OURS, fix.0, fix.1, fix.2).unwrap();
                let config = Config {
                    hidden_size: fix.0,
                    num_attention_heads: fix.1,
                    num_key_value_heads: fix.2,
                    head_dim,
                    ..Config::default()
                };
                let checked = config.check().map_err(|e| e.to_string());
                prop_assert_eq!(checked, Ok(()), "{:?} for {:?}", fix, asked);
            }
        }
    }
}
