//! Which pieces of which files a rank of another mesh reads. *Pure.*

use std::ops::Range;

use super::manifest::TensorEntry;
use crate::model::Parameter;
use crate::runs::runs;

/// Elements that lie together in a piece and where they are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// Which file.
    pub file: usize,
    /// Which elements of the parameter's tensor in that file.
    pub from: Range<usize>,
    /// Where they go in what was asked for.
    pub to: Range<usize>,
}

/// What is to be read for elements `range` of a rank's part of a parameter, flattened. The parameter has the entry's shape.
pub fn reads(entry: &TensorEntry, parameter: &Parameter, range: Range<usize>) -> Vec<Read> {
    let parts = entry.parts();
    let whole: usize = entry.shape.iter().product();
    // Of each `stride` elements of the whole a part has `width` that begin at `offset`.
    let inner = |dim: usize| entry.shape[dim + 1..].iter().product::<usize>();
    let stride = match parts.first() {
        Some((Some(part), _)) => entry.shape[part.dim] * inner(part.dim),
        _ => whole,
    };
    let bounds: Vec<(usize, usize)> = parts
        .iter()
        .map(|(part, _)| part.map_or((0, whole), |p| (p.start * inner(p.dim), p.len * inner(p.dim))))
        .collect();
    let mut reads: Vec<Read> = Vec::new();
    for run in runs(parameter, range) {
        let (mut at, mut place) = (run.start, run.place.start);
        while place < run.place.end {
            let (row, inside) = (at / stride, at % stride);
            let which = bounds.partition_point(|&(offset, _)| offset <= inside) - 1;
            let ((offset, width), pieces) = (bounds[which], &parts[which].1);
            let local = row * width + inside - offset;
            let piece = pieces[pieces.partition_point(|piece| piece.start <= local) - 1];
            let len =
                (run.place.end - place).min(offset + width - inside).min(piece.start + piece.len - local);
            let from = local - piece.start;
            match reads.last_mut() {
                Some(last) if (last.file, last.from.end, last.to.end) == (piece.file, from, place) => {
                    (last.from.end, last.to.end) = (from + len, place + len);
                }
                _ => reads.push(Read { file: piece.file, from: from..from + len, to: place..place + len }),
            }
            (at, place) = (at + len, place + len);
        }
    }
    reads
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::manifest::Piece;
    use super::*;
    use crate::model::{Init, Part};
    use crate::shard::layout::Layout;

    /// A rank's piece of a tensor of this shape, by a mesh of so many parts along a dimension, and shards of each.
    fn held(
        shape: &[usize],
        dim: usize,
        (parts, part): (usize, usize),
        (shards, shard): (usize, usize),
    ) -> (Parameter, Range<usize>) {
        let mut parameter = Parameter::whole("w", shape, Init::Zeros);
        if parts > 1 {
            let len = shape[dim] / parts;
            parameter.part = Some(Part { dim, start: part * len, len });
        }
        let layout = Layout::new([parameter.len()], shards);
        let range = layout
            .pieces(shard, std::slice::from_ref(&parameter))
            .first()
            .map_or(0..0, |piece| piece.start..piece.start + piece.range.len());
        (parameter, range)
    }

    proptest! {
        #[test]
        fn any_mesh_reads_what_any_other_has_written(
            shape in prop::collection::vec(1usize..5, 1..4),
            scale in prop::sample::select(vec![1usize, 7, 40]),
            dims in any::<[prop::sample::Index; 2]>(),
            parts in prop::array::uniform2(1usize..5),
            shards in prop::array::uniform2(1usize..6),
        ) {
            // Every dimension divides by every number of parts.
            let shape: Vec<usize> = shape.iter().enumerate().map(|(i, n)| n * 12 * if i == 0 { scale } else { 1 }).collect();
            let whole: usize = shape.iter().product();
            prop_assume!(whole < 200_000);
            let dims = dims.map(|dim| dim.index(shape.len()));
            let all = |which: usize| {
                let (shape, dims) = (&shape, &dims);
                (0..parts[which]).flat_map(move |part| (0..shards[which]).map(move |shard| {
                    held(shape, dims[which], (parts[which], part), (shards[which], shard))
                }))
            };
            // Of each piece which elements of the whole it has.
            let places = |parameter: &Parameter, range: Range<usize>| {
                let mut places = vec![0; range.len()];
                runs(parameter, range).for_each(|run| {
                    places[run.place.clone()].iter_mut().zip(run.start..).for_each(|(to, place)| *to = place);
                });
                places
            };
            let written: Vec<_> = all(0).filter(|(_, range)| !range.is_empty()).collect();
            let pieces = written.iter().enumerate().map(|(file, (parameter, range))| {
                Piece { file, part: parameter.part, start: range.start, len: range.len() }
            });
            let entry = TensorEntry { shape: shape.clone(), frozen: false, pieces: pieces.rev().collect() };
            let files: Vec<_> = written.iter().map(|(parameter, range)| places(parameter, range.clone())).collect();
            let mut elements = 0;
            for (parameter, range) in all(1) {
                let mut found = vec![usize::MAX; range.len()];
                let reads = reads(&entry, &parameter, range.clone());
                for read in &reads {
                    prop_assert_eq!(read.from.len(), read.to.len());
                    elements += read.from.len();
                    found[read.to.clone()].copy_from_slice(&files[read.file][read.from.clone()]);
                }
                prop_assert_eq!(found, places(&parameter, range.clone()));
                // What was written by the same mesh lies together.
                if (parts[0], shards[0]) == (parts[1], shards[1]) && (parts[0] == 1 || dims[0] == dims[1]) {
                    prop_assert_eq!(reads.len(), usize::from(!range.is_empty()));
                }
            }
            prop_assert_eq!(elements, whole);
        }
    }
}
