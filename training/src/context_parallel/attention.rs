//! Attention as an operation.

use std::sync::OnceLock;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor, WithDType};
use rayon::prelude::*;

use super::deal::spans;
use super::passing::{visit, visit_and_return};
use super::tiles::{Sizes, Span, Tile};
use super::{Balance, ContextParallel, backward, forward};
use crate::error::{Error, Result};
use crate::kernel::{Scalar, by_type, elements, with_elements};

/// Causal attention, scaled by 1/√d, over sequences that are dealt out over the ranks of `cp` as
/// [`positions`](super::positions) says: queries `[b, hq, s, d]`, keys and values `[b, hkv, s, d]`, where s tokens are
/// this rank's and hq is a multiple of hkv: each head of keys and values serves hq / hkv neighbouring heads of queries and
/// is not repeated in memory. The result has the shape and type of the queries; scores, sums and gradients are in f32,
/// in f64 for f64.
///
/// On a group of one rank this is attention as ever. See the [module](super) for what is sent otherwise.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use nd_comm::prelude::Communicator;
/// use nd_training::Group;
/// use nd_training::context_parallel::{Balance, ContextParallel, Form, ring_attention};
///
/// // In a job: Communicator::from_env()?.
/// let group = Group::new("cp", Communicator::local(1)?.remove(0), Default::default());
/// let cp = ContextParallel { group, form: Form::Ring, balance: Balance::Zigzag };
/// let q = Tensor::randn(0f32, 1.0, (1, 8, 128, 64), &Device::Cpu)?;
/// let kv = Tensor::randn(0f32, 1.0, (1, 2, 128, 64), &Device::Cpu)?;
/// assert_eq!(ring_attention(&q, &kv, &kv, &cp)?.dims(), q.dims());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Config`] when shapes or types do not fit, and for an odd s with [`Balance::Zigzag`]; of communication.
pub fn ring_attention(q: &Tensor, k: &Tensor, v: &Tensor, cp: &ContextParallel) -> Result<Tensor> {
    let (q, k, v) = (q.contiguous()?, k.contiguous()?, v.contiguous()?);
    let sizes = sizes(&q, &k, &v)?;
    if cp.balance == Balance::Zigzag && cp.group.size() > 1 && sizes.len % 2 != 0 {
        return Err(Error::Config(format!(
            "a part of {} tokens is not two chunks: pad sequences to a multiple of 2·cp={}",
            sizes.len,
            2 * cp.group.size()
        )));
    }
    Ok(q.apply_op3(&k, &v, Attention { cp: cp.clone(), sizes, saved: OnceLock::new() })?)
}

fn sizes(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Sizes> {
    let fit = match (q.dims(), k.dims()) {
        (&[b, hq, s, d], &[bk, hkv, sk, dk])
            if b == bk && s == sk && d == dk && d > 0 && hkv > 0 && hq % hkv == 0 =>
        {
            Some(Sizes { heads: b * hkv, sharing: hq / hkv, len: s, dim: d })
        }
        _ => None,
    };
    match fit {
        Some(sizes) if k.dims() == v.dims() && q.dtype() == k.dtype() && k.dtype() == v.dtype() => Ok(sizes),
        _ => Err(Error::Config(format!(
            "attention: q is {:?} {:?}, k {:?} {:?}, v {:?} {:?}: give [b, hq, s, d] and twice [b, hkv, s, d], where hkv \
             divides hq, of one type",
            q.dtype(),
            q.dims(),
            k.dtype(),
            k.dims(),
            v.dtype(),
            v.dims()
        ))),
    }
}

struct Attention {
    cp: ContextParallel,
    sizes: Sizes,
    /// Of each query the logarithm of its sum of exponentials, `[b, hq, s]`.
    saved: OnceLock<CpuStorage>,
}

/// What the forward pass gives.
struct Outcome<T: Scalar> {
    result: Vec<T>,
    logarithms: Vec<T::Real>,
    /// How many scores were computed, those included that a tile computes and the mask then hides.
    #[cfg_attr(not(test), allow(dead_code))]
    computed: u64,
}

impl Attention {
    fn spans(&self, rank: usize) -> Vec<Span> {
        spans(rank, self.cp.group.size(), self.sizes.len, self.cp.balance)
    }

    fn forward<T: Scalar>(&self, q: &[T], k: &[T], v: &[T]) -> Result<Outcome<T>> {
        let (sizes, group) = (self.sizes, &self.cp.group);
        let tiles = Tile::all(sizes, &self.spans(group.rank()));
        let mut rows: Vec<_> = tiles.into_par_iter().map(|tile| forward::Rows::new(tile, q, sizes)).collect();
        let mut computed = 0;
        let mut attend = |source: usize, k: &[T::Real], v: &[T::Real]| {
            let spans = self.spans(source);
            let work =
                |scratch: &mut Vec<_>, rows: &mut forward::Rows<_>| rows.attend(k, v, &spans, sizes, scratch);
            computed += rows.par_iter_mut().map_init(Vec::new, work).sum::<u64>();
        };
        if group.size() == 1 {
            attend(0, &T::widen(k), &T::widen(v));
        } else {
            visit::<T>(group, self.cp.form, [k, v].concat(), |source, part| {
                let (k, v) = part.split_at(part.len() / 2);
                attend(source, k, v);
            })?;
        }
        let mut result = vec![T::from_f64(0.0); q.len()];
        let mut logarithms = vec![<T::Real as WithDType>::from_f64(0.0); q.len() / sizes.dim];
        rows.into_iter().for_each(|rows| rows.finish(sizes, &mut result, &mut logarithms));
        Ok(Outcome { result, logarithms, computed })
    }

    /// Gradients of the queries, and of the keys and values one after the other.
    fn backward<T: Scalar>(
        &self,
        known: &backward::Known<'_, T>,
        k: &[T],
        v: &[T],
    ) -> Result<(Vec<T>, Vec<T::Real>)> {
        let (sizes, group) = (self.sizes, &self.cp.group);
        let tiles = Tile::all(sizes, &self.spans(group.rank()));
        let mut heads: Vec<Vec<_>> = (0..sizes.heads)
            .into_par_iter()
            .map(|head| {
                let of_head = tiles.iter().filter(|tile| tile.head == head);
                of_head.map(|&tile| backward::Rows::new(tile, known, sizes)).collect()
            })
            .collect();
        let head_len = (sizes.len * sizes.dim).max(1);
        let of_parts =
            visit_and_return::<T>(group, self.cp.form, [k, v].concat(), |source, part, gradient| {
                let spans = self.spans(source);
                let (k, v) = part.split_at(part.len() / 2);
                let (of_k, of_v) = gradient.split_at_mut(part.len() / 2);
                let of_parts = of_k.par_chunks_mut(head_len).zip(of_v.par_chunks_mut(head_len));
                let parts = k.par_chunks(head_len).zip(v.par_chunks(head_len));
                heads.par_iter_mut().zip(parts.zip(of_parts)).for_each_init(
                    backward::Scratch::new,
                    |scratch, (tiles, ((k, v), (of_k, of_v)))| {
                        for rows in tiles {
                            rows.differentiate([k, v], [&mut *of_k, &mut *of_v], &spans, sizes.dim, scratch);
                        }
                    },
                );
            })?;
        let mut of_queries = vec![T::from_f64(0.0); known.queries.len()];
        heads.into_iter().flatten().for_each(|rows| rows.finish(sizes, &mut of_queries));
        Ok((of_queries, of_parts))
    }
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "ring_attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_at: &Layout,
        k: &CpuStorage,
        k_at: &Layout,
        v: &CpuStorage,
        v_at: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let result = by_type!(q.dtype(), self.name(), T => {
            let outcome = self.forward::<T>(&elements(q, q_at)?, &elements(k, k_at)?, &elements(v, v_at)?)?;
            self.saved.get_or_init(|| WithDType::to_cpu_storage_owned(outcome.logarithms));
            Ok(<T as WithDType>::to_cpu_storage_owned(outcome.result))
        })?;
        Ok((result, q_at.shape().clone()))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        result: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Some(saved) = self.saved.get() else {
            candle_core::bail!("{}: backward before forward", self.name())
        };
        by_type!(q.dtype(), self.name(), T => {
            let logarithms = saved.as_slice::<<T as Scalar>::Real>()?;
            let (of_q, mut of_k) = with_elements::<T, _, candle_core::Error>(q, |queries| {
                with_elements::<T, _, candle_core::Error>(result, |result| with_elements::<T, _, candle_core::Error>(gradient, |gradient| {
                    let known = backward::Known { queries, result, gradient, logarithms };
                    with_elements::<T, _, candle_core::Error>(k, |k| with_elements::<T, _, candle_core::Error>(v, |v| Ok(self.backward(&known, k, v)?)))
                }))
            })?;
            let of_v = of_k.split_off(of_k.len() / 2);
            let tensor = |elements: Vec<T>, like: &Tensor| Tensor::from_vec(elements, like.shape(), like.device());
            let of_q = tensor(of_q, q)?;
            Ok((Some(of_q), Some(tensor(T::narrow(of_k), k)?), Some(tensor(T::narrow(of_v), v)?)))
        })
    }
}

#[cfg(test)]
mod tests;
