//! Products of matrices that lie in slices, on the calling thread.
#![allow(unsafe_code)] // the kernels take pointers and strides

use gemm::{Parallelism, gemm};

use super::Real;

/// A matrix that lies in a slice, row after row, or its transpose.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    elements: &'a [T],
    rows: usize,
    columns: usize,
    /// From one row to the next, and from one column to the next.
    strides: [usize; 2],
}

impl<'a, T> Matrix<'a, T> {
    /// The whole slice.
    ///
    /// # Panics
    /// When it does not have rows × columns elements.
    pub fn new(elements: &'a [T], rows: usize, columns: usize) -> Matrix<'a, T> {
        assert_eq!(elements.len(), rows * columns);
        Matrix { elements, rows, columns, strides: [columns, 1] }
    }

    /// Its transpose.
    pub fn t(self) -> Matrix<'a, T> {
        let [row, column] = self.strides;
        Matrix { elements: self.elements, rows: self.columns, columns: self.rows, strides: [column, row] }
    }
}

/// `a · b`, row after row, in place of what is in `out`, or added to it.
///
/// # Panics
/// When the sizes do not fit.
pub(crate) fn product<T: Real>(out: &mut [T], add: bool, a: Matrix<'_, T>, b: Matrix<'_, T>) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert!(out.len() == m * n && b.rows == k);
    let stride = |s: usize| s as isize;
    // SAFETY: `out` has m × n elements and is borrowed alone. `a` has m × k and `b` k × n, at these strides: their
    // fields are private, and both ways to make one keep to the slice.
    unsafe {
        gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride(n),
            add,
            a.elements.as_ptr(),
            stride(a.strides[1]),
            stride(a.strides[0]),
            b.elements.as_ptr(),
            stride(b.strides[1]),
            stride(b.strides[0]),
            T::from_f64(1.0),
            T::from_f64(1.0),
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_with_transposes_and_sums() {
        // [1 2 3; 4 5 6] · [1 0; 2 1; 0 3]
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let b = [1.0, 0.0, 2.0, 1.0, 0.0, 3.0];
        let b_t = [1.0, 2.0, 0.0, 0.0, 1.0, 3.0];
        let mut out = [7.0; 4];
        product(&mut out, false, Matrix::new(&a, 2, 3), Matrix::new(&b, 3, 2));
        assert_eq!(out, [5.0, 11.0, 14.0, 23.0]);
        product(&mut out, true, Matrix::new(&a, 2, 3), Matrix::new(&b_t, 2, 3).t());
        assert_eq!(out, [10.0, 22.0, 28.0, 46.0]);
    }
}
