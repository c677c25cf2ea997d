//! Rows of a table.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, WithDType, bail};

use crate::kernel::{Rows, by_type, elements, room};

/// The rows of `table` `[vocabulary, channels]` that `tokens` (u32, any shape) name: `[.., channels]`.
///
/// # Errors
/// When a token is not below the table's length, or types do not fit.
pub fn embedding(table: &Tensor, tokens: &Tensor) -> Result<Tensor> {
    if table.rank() != 2 {
        bail!("embedding: a table of {:?}: it needs [vocabulary, channels]", table.dims());
    }
    table.contiguous()?.apply_op2(&tokens.contiguous()?, Embedding)
}

struct Embedding;

impl CustomOp2 for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn cpu_fwd(
        &self,
        table: &CpuStorage,
        table_layout: &Layout,
        tokens: &CpuStorage,
        tokens_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, channels) = table_layout.shape().dims2()?;
        let tokens = elements::<u32>(tokens, tokens_layout)?;
        if let Some(place) = tokens.iter().position(|&token| token as usize >= rows) {
            bail!(
                "embedding: token {} at place {place} is not below the vocabulary's {rows}: is the tokenizer the model's?",
                tokens[place]
            );
        }
        let mut shape = tokens_layout.dims().to_vec();
        shape.push(channels);
        by_type!(table.dtype(), self.name(), T => {
            let table = elements::<T>(table, table_layout)?;
            let mut out = Vec::with_capacity(tokens.len() * channels);
            for &token in &*tokens {
                out.extend_from_slice(&table[token as usize * channels..][..channels]);
            }
            Ok((T::to_cpu_storage_owned(out), shape.into()))
        })
    }

    fn bwd(
        &self,
        table: &Tensor,
        tokens: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let of_table = table.apply_op3_no_bwd(tokens, &gradient.contiguous()?, &EmbeddingGradient)?;
        Ok((Some(of_table), None))
    }
}

struct EmbeddingGradient;

impl CustomOp3 for EmbeddingGradient {
    fn name(&self) -> &'static str {
        "embedding gradient"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        table_layout: &Layout,
        tokens: &CpuStorage,
        tokens_layout: &Layout,
        gradient: &CpuStorage,
        gradient_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let tokens = elements::<u32>(tokens, tokens_layout)?;
        by_type!(gradient.dtype(), self.name(), T => {
            let gradient = elements::<T>(gradient, gradient_layout)?;
            let of_table = backward(table_layout.shape().dims2()?, &tokens, &gradient);
            Ok((T::to_cpu_storage_owned(of_table), table_layout.shape().clone()))
        })
    }
}

/// Adds up the gradients of each token in the order of its places, and rounds once.
fn backward<T: Rows>((rows, channels): (usize, usize), tokens: &[u32], gradient: &[T]) -> Vec<T> {
    let mut places: Vec<usize> = (0..tokens.len()).collect();
    places.sort_by_key(|&place| tokens[place]);
    let (mut sum, mut gradient_room) = (room(channels), room(channels));
    let mut out = vec![T::zero(); rows * channels];
    for places in places.chunk_by(|&a, &b| tokens[a] == tokens[b]) {
        sum.fill(<T::Real as WithDType>::from_f64(0.0));
        for place in places {
            for (sum, &g) in sum
                .iter_mut()
                .zip(T::widen_row(&gradient[place * channels..][..channels], &mut gradient_room))
            {
                *sum += g;
            }
        }
        T::narrow_row(&sum, &mut out[tokens[places[0]] as usize * channels..][..channels]);
    }
    out
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::super::testing::*;
    use super::*;

    fn tokens() -> Tensor {
        Tensor::from_vec(vec![4u32, 0, 4, 2, 4, 1], (2, 3), &Device::Cpu).unwrap()
    }

    #[test]
    fn rows_are_those_of_the_tokens_in_every_type() {
        let table = numbers(1, 5 * 3);
        for (dtype, _) in TOLERANCES {
            let table = tensor(&table, &[5, 3], dtype);
            let rows = embedding(&table, &tokens()).unwrap();
            assert_eq!((rows.dtype(), rows.dims()), (dtype, &[2, 3, 3][..]));
            let table = values(&table);
            let expected: Vec<f64> =
                [4, 0, 4, 2, 4, 1].iter().flat_map(|t| table[t * 3..][..3].to_vec()).collect();
            assert_eq!(values(&rows), expected);
        }
    }

    #[test]
    fn gradients_are_finite_differences() {
        check_gradients(&[(numbers(3, 15), vec![5, 3])], |t| embedding(&t[0], &tokens()));
    }

    #[test]
    fn gradients_in_low_precision_are_close() {
        check_low_precision(&[&[5, 3]], |t| embedding(&t[0], &tokens()));
    }

    #[test]
    fn a_token_beyond_the_table_is_named() {
        let table = tensor(&numbers(1, 12), &[4, 3], DType::F32);
        let error = embedding(&table, &tokens()).unwrap_err().to_string();
        assert!(error.contains("token 4 at place 0") && error.contains("vocabulary's 4"), "{error}");
    }
}
