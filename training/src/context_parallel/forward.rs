//! The forward arithmetic of a tile: softmax of scores that come piece by piece (arXiv 1805.02867), times values.

use super::tiles::{Sizes, Span, Tile};
use crate::kernel::{Matrix, Real, Scalar, product};

/// A tile on its way: what it has of the result so far.
pub(super) struct Rows<F> {
    tile: Tile,
    /// The queries over √dim, `[sharing · rows, dim]`.
    queries: Vec<F>,
    /// Values weighted with the exponentials of scores less `largest`, of the same shape.
    sums: Vec<F>,
    /// Of each query the largest score.
    largest: Vec<F>,
    /// And the sum of exponentials.
    weights: Vec<F>,
}

impl<F: Real> Rows<F> {
    pub fn new<T: Scalar<Real = F>>(tile: Tile, queries: &[T], sizes: Sizes) -> Rows<F> {
        let rows = tile.rows * sizes.sharing;
        let mut queries = pack(queries, tile, sizes, sizes.dim);
        scale(&mut queries, sizes.dim);
        Rows {
            tile,
            queries,
            sums: vec![F::from_f64(0.0); rows * sizes.dim],
            largest: vec![F::LOWEST; rows],
            weights: vec![F::from_f64(0.0); rows],
        }
    }

    /// Takes in the keys and values `[heads, len, dim]` of a part whose chunks are `spans`. Gives how many scores it
    /// computed.
    pub fn attend(
        &mut self,
        keys: &[F],
        values: &[F],
        spans: &[Span],
        sizes: Sizes,
        scratch: &mut Vec<F>,
    ) -> u64 {
        let (rows, dim, tile) = (self.largest.len(), sizes.dim, self.tile);
        let head = tile.head * sizes.len * dim;
        let mut computed = 0;
        for columns in tile.columns(spans) {
            let at = head + columns.start * dim..head + (columns.start + columns.len) * dim;
            let (keys, values) = (&keys[at.clone()], &values[at]);
            scratch.resize(rows * columns.len, F::from_f64(0.0));
            let queries = Matrix::new(&self.queries, rows, dim);
            product(scratch, false, queries, Matrix::new(keys, columns.len, dim).t());
            for (row, scores) in scratch.chunks_exact_mut(columns.len).enumerate() {
                let (scores, unseen) = scores.split_at_mut(columns.seen(row % tile.rows));
                unseen.fill(F::from_f64(0.0));
                if !scores.is_empty() {
                    self.weigh(row, scores, dim);
                }
            }
            let weights = Matrix::new(scratch, rows, columns.len);
            product(&mut self.sums, true, weights, Matrix::new(values, columns.len, dim));
            computed += scratch.len() as u64;
        }
        computed
    }

    /// Makes weights of scores, and brings what is there already to the same measure.
    fn weigh(&mut self, row: usize, scores: &mut [F], dim: usize) {
        let (before, here) = (self.largest[row], F::largest(scores));
        let largest = if here > before { here } else { before };
        let weights = F::exponentials(scores, largest);
        let kept = (before - largest).exp();
        self.weights[row] = self.weights[row] * kept + weights;
        self.largest[row] = largest;
        if kept != F::from_f64(1.0) {
            self.sums[row * dim..][..dim].iter_mut().for_each(|x| *x *= kept);
        }
    }

    /// Writes the result, of the shape of the queries, and of each query the logarithm of its sum of exponentials.
    pub fn finish<T: Scalar<Real = F>>(mut self, sizes: Sizes, result: &mut [T], logarithms: &mut [F]) {
        let weights = self.largest.iter_mut().zip(&self.weights).zip(self.sums.chunks_exact_mut(sizes.dim));
        for ((largest, &weights), sums) in weights {
            sums.iter_mut().for_each(|x| *x /= weights);
            *largest += weights.ln();
        }
        unpack(self.sums, self.tile, sizes, sizes.dim, result);
        unpack(self.largest, self.tile, sizes, 1, logarithms);
    }
}

/// Divides by √dim.
pub(super) fn scale<F: Real>(x: &mut [F], dim: usize) {
    let factor = F::from_f64((dim as f64).sqrt().recip());
    x.iter_mut().for_each(|x| *x *= factor);
}

/// A tile's rows, `width` elements each, out of `[heads, sharing, len, width]`.
pub(super) fn pack<T: Scalar>(from: &[T], tile: Tile, sizes: Sizes, width: usize) -> Vec<T::Real> {
    let mut packed = Vec::with_capacity(tile.rows * sizes.sharing * width);
    for head in places(tile, sizes, width) {
        packed.extend_from_slice(&T::widen(&from[head]));
    }
    packed
}

/// The way back.
pub(super) fn unpack<T: Scalar>(rows: Vec<T::Real>, tile: Tile, sizes: Sizes, width: usize, to: &mut [T]) {
    let rows = T::narrow(rows);
    for (head, rows) in places(tile, sizes, width).zip(rows.chunks_exact(tile.rows * width)) {
        to[head].copy_from_slice(rows);
    }
}

fn places(tile: Tile, sizes: Sizes, width: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..sizes.sharing).map(move |shared| {
        let head = tile.head * sizes.sharing + shared;
        let start = (head * sizes.len + tile.start()) * width;
        start..start + tile.rows * width
    })
}
