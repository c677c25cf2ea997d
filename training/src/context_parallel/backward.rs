//! The backward arithmetic of a tile. The scores are computed again, as in FlashAttention (arXiv 2205.14135).

use super::forward::{pack, scale, unpack};
use super::tiles::{Sizes, Span, Tile};
use crate::kernel::{Matrix, Real, Scalar, product};

/// What the forward pass leaves for the backward pass, and the gradient of its result.
pub(super) struct Known<'a, T: Scalar> {
    pub queries: &'a [T],
    pub result: &'a [T],
    pub gradient: &'a [T],
    pub logarithms: &'a [T::Real],
}

/// A tile on its way back.
pub(super) struct Rows<F> {
    tile: Tile,
    /// The queries over √dim, `[sharing · rows, dim]`.
    queries: Vec<F>,
    /// The gradient of the result, of the same shape.
    gradient: Vec<F>,
    /// The gradient of the queries so far, but for √dim.
    of_queries: Vec<F>,
    logarithms: Vec<F>,
    /// Of each query the product of the result and its gradient: what a softmax's gradient is measured from.
    shares: Vec<F>,
}

/// Two tiles of scores.
pub(super) struct Scratch<F> {
    weights: Vec<F>,
    of_weights: Vec<F>,
}

impl<F> Scratch<F> {
    pub fn new() -> Scratch<F> {
        Scratch { weights: Vec::new(), of_weights: Vec::new() }
    }
}

impl<F: Real> Rows<F> {
    pub fn new<T: Scalar<Real = F>>(tile: Tile, known: &Known<'_, T>, sizes: Sizes) -> Rows<F> {
        let dim = sizes.dim;
        let mut queries = pack(known.queries, tile, sizes, dim);
        scale(&mut queries, dim);
        let gradient = pack(known.gradient, tile, sizes, dim);
        let result = pack(known.result, tile, sizes, dim);
        let shares = result
            .chunks_exact(dim)
            .zip(gradient.chunks_exact(dim))
            .map(|(x, g)| x.iter().zip(g).fold(F::from_f64(0.0), |sum, (&x, &g)| sum + x * g));
        Rows {
            tile,
            shares: shares.collect(),
            of_queries: vec![F::from_f64(0.0); queries.len()],
            queries,
            gradient,
            logarithms: pack(known.logarithms, tile, sizes, 1),
        }
    }

    /// Adds to the gradients of the queries, and to those of one head's `keys` and `values`, `[len, dim]` all.
    pub fn differentiate(
        &mut self,
        [keys, values]: [&[F]; 2],
        [of_keys, of_values]: [&mut [F]; 2],
        spans: &[Span],
        dim: usize,
        scratch: &mut Scratch<F>,
    ) {
        let (rows, tile) = (self.logarithms.len(), self.tile);
        let zero = F::from_f64(0.0);
        for columns in tile.columns(spans) {
            let n = columns.len;
            let at = columns.start * dim..(columns.start + n) * dim;
            let (keys, values) =
                (Matrix::new(&keys[at.clone()], n, dim), Matrix::new(&values[at.clone()], n, dim));
            let queries = Matrix::new(&self.queries, rows, dim);
            let gradient = Matrix::new(&self.gradient, rows, dim);
            let Scratch { weights, of_weights } = scratch;
            weights.resize(rows * n, zero);
            of_weights.resize(rows * n, zero);

            product(weights, false, queries, keys.t());
            for (row, (weights, &logarithm)) in weights.chunks_exact_mut(n).zip(&self.logarithms).enumerate()
            {
                let (weights, unseen) = weights.split_at_mut(columns.seen(row % tile.rows));
                F::exponentials(weights, logarithm);
                unseen.fill(zero);
            }
            product(&mut of_values[at.clone()], true, Matrix::new(weights, rows, n).t(), gradient);

            product(of_weights, false, gradient, values.t());
            let per_row = weights.chunks_exact(n).zip(of_weights.chunks_exact_mut(n)).zip(&self.shares);
            for ((weights, of_scores), &share) in per_row {
                weights.iter().zip(of_scores).for_each(|(&w, x)| *x = w * (*x - share));
            }
            let of_scores = Matrix::new(of_weights, rows, n);
            product(&mut self.of_queries, true, of_scores, keys);
            product(&mut of_keys[at], true, of_scores.t(), queries);
        }
    }

    /// Writes the gradient of the queries, of their shape.
    pub fn finish<T: Scalar<Real = F>>(mut self, sizes: Sizes, of_queries: &mut [T]) {
        scale(&mut self.of_queries, sizes.dim);
        unpack(self.of_queries, self.tile, sizes, sizes.dim, of_queries);
    }
}
