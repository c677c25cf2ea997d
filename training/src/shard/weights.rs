//! A unit's weights as a model sees them: tensors whose memory comes and goes.

use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, InplaceOp1, Layout as TensorLayout, Storage, Tensor};

use super::number::Number;
use crate::error::Result;

/// Tensors that gradients are taken of. What an operation remembers of them for the backward pass is the tensors
/// themselves, so their memory can be let go after the forward pass and be filled again before the backward pass. Any
/// operation on one that was let go is an error: it has elements of a type that none works on.
pub struct Weights {
    variables: Vec<Tensor>,
    /// The same memory, without gradients.
    constants: Vec<Tensor>,
    /// Bytes when filled.
    bytes: usize,
    filled: bool,
}

impl Weights {
    /// Weights of these shapes without memory; those that are frozen have no gradients.
    pub fn empty<T: Number>(shapes: impl IntoIterator<Item = (Vec<usize>, bool)>) -> Weights {
        let variable = |(shape, frozen): (Vec<usize>, bool)| {
            let storage = Storage::Cpu(T::to_cpu_storage_owned(Vec::new()));
            Tensor::from_storage(storage, shape, BackpropOp::none(), !frozen)
        };
        let variables: Vec<_> = shapes.into_iter().map(variable).collect();
        let constants = variables.iter().map(Tensor::detach).collect();
        let bytes = variables.iter().map(|v| v.elem_count() * size_of::<T>()).sum();
        Weights { variables, constants, bytes, filled: false }
    }

    /// To compute with and to differentiate by.
    pub fn variables(&self) -> &[Tensor] {
        &self.variables
    }

    /// To compute with alone.
    pub fn constants(&self) -> &[Tensor] {
        &self.constants
    }

    /// Gives all of them memory, unless they have it, and lets `fill` write each one's elements.
    pub fn fill<T: Number>(&mut self, fill: impl Fn(usize, &mut [T])) -> Result<()> {
        for (index, variable) in self.variables.iter().enumerate() {
            variable.inplace_op1(&Fill { fill: &|to: &mut [T]| fill(index, to) })?;
        }
        self.filled = true;
        Ok(())
    }

    /// Lets the memory go.
    pub fn free(&mut self) -> Result<()> {
        self.variables.iter().try_for_each(|v| v.inplace_op1(&Free))?;
        self.filled = false;
        Ok(())
    }

    /// Bytes that they have now.
    pub fn bytes(&self) -> usize {
        if self.filled { self.bytes } else { 0 }
    }
}

struct Fill<'a, T> {
    fill: &'a dyn Fn(&mut [T]),
}

impl<T: Number> InplaceOp1 for Fill<'_, T> {
    fn name(&self) -> &'static str {
        "fill-weight"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &TensorLayout) -> candle_core::Result<()> {
        let len = layout.shape().elem_count();
        let old = std::mem::replace(storage, freed());
        let mut values = T::elements(old).filter(|values| values.len() == len).unwrap_or_else(|| zeros(len));
        (self.fill)(&mut values);
        *storage = T::to_cpu_storage_owned(values);
        Ok(())
    }
}

struct Free;

impl InplaceOp1 for Free {
    fn name(&self) -> &'static str {
        "free-weight"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &TensorLayout) -> candle_core::Result<()> {
        *storage = freed();
        Ok(())
    }
}

/// What a weight without memory holds: no elements of a type that no operation takes.
fn freed() -> CpuStorage {
    CpuStorage::F4(Vec::new())
}

fn zeros<T: Number>(len: usize) -> Vec<T> {
    vec![T::zero(); len]
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use half::bf16;

    use super::*;

    fn filled() -> Weights {
        let mut weights = Weights::empty::<f32>([(vec![2, 3], false)]);
        weights.fill(|_, to: &mut [f32]| to.copy_from_slice(&[1., 2., 3., 4., 5., 6.])).unwrap();
        weights
    }

    #[test]
    fn a_graph_survives_that_its_weights_are_let_go_and_filled_again() {
        let mut weights = filled();
        assert_eq!(weights.bytes(), 24);
        let x = Tensor::new(&[[1f32, 10.]], &Device::Cpu).unwrap();
        let weight = weights.variables()[0].clone();
        let y = x.matmul(&weight).unwrap().sqr().unwrap().sum_all().unwrap();
        let expected = y.backward().unwrap().get(&weight).unwrap().to_vec2::<f32>().unwrap();
        weights.free().unwrap();
        assert_eq!(weights.bytes(), 0);
        assert!(y.backward().is_err(), "the gradient of x needs the weight");
        weights.fill(|_, to: &mut [f32]| to.copy_from_slice(&[1., 2., 3., 4., 5., 6.])).unwrap();
        assert_eq!(y.backward().unwrap().get(&weight).unwrap().to_vec2::<f32>().unwrap(), expected);
    }

    /// Not one of these may read what is no longer there.
    #[test]
    fn an_operation_on_a_weight_that_was_let_go_is_an_error() {
        let mut weights = filled();
        let x = Tensor::new(&[[1f32, 10.]], &Device::Cpu).unwrap();
        let square = Tensor::ones((2, 3), DType::F32, &Device::Cpu).unwrap();
        let index = Tensor::new(&[0u32], &Device::Cpu).unwrap();
        let product = (weights.variables()[0].clone() * &square).unwrap().sum_all().unwrap();
        weights.free().unwrap();
        for w in [&weights.variables()[0], &weights.constants()[0]] {
            assert!(x.matmul(w).is_err());
            assert!(w.t().unwrap().matmul(&x.t().unwrap()).is_err());
            assert!((w + &square).is_err());
            assert!((w * 2.0).is_err());
            assert!(w.exp().is_err());
            assert!(w.sum_all().is_err());
            assert!(w.to_dtype(DType::F64).is_err());
            assert!(w.t().unwrap().contiguous().is_err());
            assert!(w.index_select(&index, 0).is_err());
            assert!(w.to_vec2::<f32>().is_err());
            assert!(w.broadcast_as((2, 2, 3)).unwrap().contiguous().is_err());
            assert!(Tensor::cat(&[w, &square], 0).is_err());
        }
        let grads = product.backward();
        assert!(
            grads.is_err() || grads.unwrap().get(&square).is_none(),
            "the other factor's gradient needs it"
        );
    }

    #[test]
    fn memory_is_kept_when_it_is_filled_again() {
        let mut weights = Weights::empty::<bf16>([(vec![4], false)]);
        let address = |weights: &Weights| {
            let (storage, _) = weights.variables()[0].storage_and_layout();
            let Storage::Cpu(CpuStorage::BF16(values)) = &*storage else { panic!("not bf16") };
            values.as_ptr() as usize
        };
        weights.fill(|_, to: &mut [bf16]| to.fill(bf16::ONE)).unwrap();
        let before = address(&weights);
        weights.fill(|_, to: &mut [bf16]| to.fill(bf16::NEG_ONE)).unwrap();
        assert_eq!(address(&weights), before);
        assert_eq!(weights.constants()[0].to_vec1::<bf16>().unwrap(), [bf16::NEG_ONE; 4]);
    }
}
