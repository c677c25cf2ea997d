//! Where a part of a tensor lies in the whole. *Pure.*

use std::ops::Range;

use crate::model::Parameter;

/// Elements that lie together in both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// Where the first lies in the whole tensor, flattened.
    pub start: usize,
    /// Where they go in what was asked for.
    pub place: Range<usize>,
}

/// The runs that elements `range` of a rank's part, flattened, are made of.
pub(crate) fn runs(parameter: &Parameter, range: Range<usize>) -> impl Iterator<Item = Run> {
    let shape = &parameter.shape;
    let whole: usize = shape.iter().product();
    // Of each `stride` elements of the whole, the part has `len` that begin at `offset`.
    let (stride, offset, len) = match parameter.part {
        None => (whole, 0, whole),
        Some(part) => {
            let inner: usize = shape[part.dim + 1..].iter().product();
            (shape[part.dim] * inner, part.start * inner, part.len * inner)
        }
    };
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let (block, inside) = (at / len, at % len);
        let count = (len - inside).min(range.end - at);
        let place = at - range.start..at - range.start + count;
        at += count;
        Some(Run { start: block * stride + offset + inside, place })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{Init, Part};

    proptest! {
        #[test]
        fn every_element_comes_from_its_place(
            shape in prop::collection::vec(1usize..6, 1..4),
            cut in any::<(prop::sample::Index, prop::sample::Index, prop::sample::Index)>(),
            ends in any::<(prop::sample::Index, prop::sample::Index)>(),
            divided in any::<bool>(),
        ) {
            let mut parameter = Parameter::whole("w", &shape, Init::Zeros);
            if divided {
                let dim = cut.0.index(shape.len());
                let start = cut.1.index(shape[dim]);
                parameter.part = Some(Part { dim, start, len: 1 + cut.2.index(shape[dim] - start) });
            }
            let (a, b) = (ends.0.index(parameter.len() + 1), ends.1.index(parameter.len() + 1));
            let range = a.min(b)..a.max(b);
            let mut found = vec![usize::MAX; range.len()];
            for run in runs(&parameter, range.clone()) {
                for (i, place) in run.place.enumerate() {
                    found[place] = run.start + i;
                }
            }
            // One index after the other.
            let local = parameter.local_shape();
            let expected: Vec<usize> = range
                .map(|flat| {
                    let mut left = flat;
                    let mut index = vec![0; shape.len()];
                    for dim in (0..shape.len()).rev() {
                        index[dim] = left % local[dim];
                        left /= local[dim];
                    }
                    if let Some(part) = parameter.part {
                        index[part.dim] += part.start;
                    }
                    index.iter().zip(&shape).fold(0, |flat, (i, n)| flat * n + i)
                })
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
