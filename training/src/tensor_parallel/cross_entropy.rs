//! The loss over a vocabulary that is dealt out.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor, WithDType};
use nd_comm::prelude::ReduceOp;
use rayon::prelude::*;

use super::mappings::dtype;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::kernel::{Real, Scalar, by_type, elements, with_elements};

/// The label of a token that does not count.
pub const IGNORE: u32 = u32::MAX;

/// The sum, over the tokens whose label is not [`IGNORE`], of minus the logarithm of the label's probability: a scalar in
/// f32 (f64 for logits in f64), the same on all ranks. Each of the T ranks has the `logits [.., V / T]` of its part of
/// the vocabulary; the `labels`, u32, have their shape without the last dimension.
///
/// Three all-reduces of one number a token: the largest logit, the label's logit, and the sum of exponentials. The
/// backward pass sends nothing. On one rank nothing is sent at all. Beside the logits nothing of their size is held until
/// the backward pass makes their gradient.
///
/// # Errors
/// [`Error::Config`] for a label that the vocabulary does not have; when shapes do not fit; of communication.
pub fn vocab_parallel_cross_entropy(logits: &Tensor, labels: &Tensor, group: &Group) -> Result<Tensor> {
    let logits = logits.contiguous()?;
    let (tokens, entries) = match logits.dims() {
        [tokens @ .., entries] if tokens.iter().product::<usize>() == labels.elem_count() => {
            (labels.elem_count(), *entries)
        }
        shape => {
            return Err(Error::Config(format!(
                "logits of shape {shape:?} do not fit {} labels: give [n, V / T] and [n]",
                labels.elem_count()
            )));
        }
    };
    let vocabulary =
        Vocabulary { first: group.rank() * entries, here: entries, size: group.size() * entries };
    let labels = with_elements::<u32, _, Error>(labels, |labels| Ok(labels.to_vec()))?;
    let mut targets = Vec::with_capacity(tokens);
    for (place, &label) in labels.iter().enumerate() {
        targets.push(match label {
            IGNORE => Target::None,
            label => vocabulary.find(label, "label", place)?.map_or(Target::Elsewhere, Target::Here),
        });
    }
    Ok(logits.apply_op1(CrossEntropy { targets, entries, group: group.clone(), saved: OnceLock::new() })?)
}

/// Which entries of the vocabulary are here.
pub(super) struct Vocabulary {
    pub first: usize,
    pub here: usize,
    pub size: usize,
}

impl Vocabulary {
    /// Where an entry is among those that are here.
    pub fn find(&self, entry: u32, what: &str, place: usize) -> Result<Option<usize>> {
        let entry = entry as usize;
        if entry >= self.size {
            return Err(Error::Config(format!(
                "{what} {entry}, number {place} of the batch, is not in a vocabulary of {}: use the tokenizer that belongs \
                 to the model",
                self.size
            )));
        }
        Ok(entry.checked_sub(self.first).filter(|&i| i < self.here))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Target {
    None,
    Elsewhere,
    Here(usize),
}

struct CrossEntropy {
    targets: Vec<Target>,
    entries: usize,
    group: Group,
    /// Of each token the logarithm of the sum of exponentials.
    saved: OnceLock<CpuStorage>,
}

/// How many numbers are worked on at a time, in the first-level cache.
const AT_ONCE: usize = 2048;

impl CrossEntropy {
    fn forward<T: Scalar>(&self, logits: &[T]) -> Result<T::Real> {
        let zero = <T::Real as WithDType>::from_f64(0.0);
        let rows = || self.targets.par_iter().zip(logits.par_chunks(self.entries));
        let mut largest: Vec<T::Real> = rows()
            .map(|(target, row)| match target {
                Target::None => zero,
                _ => row.chunks(AT_ONCE).fold(Real::LOWEST, |largest, part| {
                    let here = Real::largest(&T::widen(part));
                    if here > largest { here } else { largest }
                }),
            })
            .collect();
        self.group.all_reduce(&mut largest, ReduceOp::Max)?;
        let mut label: Vec<T::Real> = rows()
            .map(|(target, row)| match target {
                Target::Here(entry) => T::widen(&row[*entry..=*entry])[0],
                _ => zero,
            })
            .collect();
        self.group.all_reduce(&mut label, ReduceOp::Sum)?;
        let mut sums: Vec<T::Real> = rows()
            .zip(&largest)
            .map(|((target, row), &largest)| match target {
                Target::None => <T::Real as WithDType>::from_f64(1.0),
                _ => row.chunks(AT_ONCE).fold(zero, |sum, part| {
                    sum + Real::exponentials(&mut T::widen(part).into_owned(), largest)
                }),
            })
            .collect();
        self.group.all_reduce(&mut sums, ReduceOp::Sum)?;
        let mut loss = 0.0;
        for ((sum, &largest), (&label, target)) in
            sums.iter_mut().zip(&largest).zip(label.iter().zip(&self.targets))
        {
            *sum = largest + Real::ln(*sum);
            if *target != Target::None {
                loss += (*sum - label).to_f64();
            }
        }
        self.saved.get_or_init(|| <T::Real as WithDType>::to_cpu_storage_owned(sums));
        Ok(<T::Real as WithDType>::from_f64(loss))
    }

    /// `seed` times the difference of the probabilities and the label's 1.
    fn backward<T: Scalar>(&self, logits: &[T], logarithms: &[T::Real], seed: T::Real) -> Vec<T> {
        let mut gradient = vec![T::from_f64(0.0); logits.len()];
        let rows = gradient.par_chunks_mut(self.entries).zip(logits.par_chunks(self.entries));
        rows.zip(&self.targets).zip(logarithms).for_each(|(((gradient, logits), target), &logarithm)| {
            if *target == Target::None {
                return;
            }
            for (to, from) in gradient.chunks_mut(AT_ONCE).zip(logits.chunks(AT_ONCE)) {
                let mut probabilities = T::widen(from).into_owned();
                Real::exponentials(&mut probabilities, logarithm);
                for (to, p) in to.iter_mut().zip(probabilities) {
                    *to = T::rounded(p * seed);
                }
            }
            if let Target::Here(entry) = *target {
                let mut p = [T::widen(&logits[entry..=entry])[0]];
                Real::exponentials(&mut p, logarithm);
                gradient[entry] = T::rounded((p[0] - <T::Real as WithDType>::from_f64(1.0)) * seed);
            }
        });
        gradient
    }
}

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "vocab_parallel_cross_entropy"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let loss = by_type!(dtype(storage), self.name(), T => {
            let loss = self.forward::<T>(&elements(storage, layout)?)?;
            Ok(<<T as Scalar>::Real as WithDType>::to_cpu_storage_owned(vec![loss]))
        })?;
        Ok((loss, Shape::from(())))
    }

    fn bwd(&self, logits: &Tensor, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let Some(saved) = self.saved.get() else {
            candle_core::bail!("{}: backward before forward", self.name())
        };
        by_type!(logits.dtype(), self.name(), T => {
            type Wide = <T as Scalar>::Real;
            let seed = <Wide as WithDType>::from_f64(gradient.to_dtype(candle_core::DType::F64)?.to_scalar()?);
            let logarithms = saved.as_slice::<Wide>()?;
            let gradient = with_elements::<T, _, candle_core::Error>(logits, |logits| Ok(self.backward(logits, logarithms, seed)))?;
            Ok(Some(Tensor::from_vec(gradient, logits.shape(), logits.device())?))
        })
    }
}
