//! A unit's weights as a model sees them: tensors whose memory comes and goes.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CustomOp1, InplaceOp1, Layout as TensorLayout, Shape, Storage, Tensor};

use super::number::Number;
use super::values;
use crate::error::Result;

/// Tensors that gradients are taken of. What an operation remembers of them for the backward pass is the tensors
/// themselves, so their memory can be let go after the forward pass and be filled again before the backward pass. Any
/// operation on one that was let go is an error: it has elements of a type that none works on.
pub struct Weights {
    /// Each comes from a leaf by an operation of its own, which hears of its gradient.
    variables: Vec<Tensor>,
    /// The same memory, without gradients.
    constants: Vec<Tensor>,
    state: Arc<Mutex<State>>,
}

/// Where a backward pass is.
#[derive(Default)]
struct State {
    /// Bytes of those that have memory.
    held: usize,
    /// Gradients so far.
    gradients: Vec<Option<Tensor>>,
    /// Whether each weight is let go as soon as its gradient is there.
    letting_go: bool,
    /// The most bytes of weights and gradients at a time.
    most: usize,
}

impl State {
    fn bytes(&self) -> usize {
        self.held + self.gradients.iter().flatten().map(values::bytes).sum::<usize>()
    }
}

/// What a backward pass gave.
pub struct Differentiated<R> {
    /// Gradients of the weights that it came to.
    pub gradients: Vec<Option<Tensor>>,
    /// The most bytes that weights and their gradients had at a time.
    pub most: usize,
    /// What else it gave.
    pub result: R,
}

impl Weights {
    /// Weights of these shapes without memory; those that are frozen have no gradients.
    pub fn empty<T: Number>(shapes: impl IntoIterator<Item = (Vec<usize>, bool)>) -> Result<Weights> {
        let state = Arc::new(Mutex::new(State::default()));
        let variable = |(index, (shape, frozen)): (usize, (Vec<usize>, bool))| {
            let storage = Storage::Cpu(T::to_cpu_storage_owned(Vec::new()));
            let leaf = Tensor::from_storage(storage, shape, BackpropOp::none(), !frozen);
            match frozen {
                true => Ok(leaf),
                false => leaf.apply_op1(Weight::<T> { index, state: state.clone(), of: PhantomData }),
            }
        };
        let variables: Vec<_> =
            shapes.into_iter().enumerate().map(variable).collect::<candle_core::Result<_>>()?;
        let constants = variables.iter().map(Tensor::detach).collect();
        Ok(Weights { variables, constants, state })
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
        lock(&self.state).held = self.variables.iter().map(values::bytes).sum();
        Ok(())
    }

    /// Lets the memory go.
    pub fn free(&mut self) -> Result<()> {
        self.variables.iter().try_for_each(|v| v.inplace_op1(&Free))?;
        lock(&self.state).held = 0;
        Ok(())
    }

    /// Bytes that they have now.
    pub fn bytes(&self) -> usize {
        lock(&self.state).held
    }

    /// Calls `backward`, the backward pass of something that was computed with these weights, and gives their gradients. With
    /// `letting_go` each weight's memory is let go as soon as all that was computed with it has been differentiated: so weights
    /// and gradients together take no more room than either, and one weight.
    pub fn differentiate<R>(
        &self,
        letting_go: bool,
        backward: impl FnOnce() -> Result<R>,
    ) -> Result<Differentiated<R>> {
        {
            let mut state = lock(&self.state);
            state.gradients = vec![None; self.variables.len()];
            state.letting_go = letting_go;
            state.most = state.held;
        }
        let result = backward();
        let mut state = lock(&self.state);
        let gradients = std::mem::take(&mut state.gradients);
        Ok(Differentiated { gradients, most: state.most, result: result? })
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a weight of its leaf, which has no memory. The backward pass comes here when it is done with all operations on the
/// weight: then the gradient is complete, and the weight's elements are needed no more.
struct Weight<T> {
    index: usize,
    state: Arc<Mutex<State>>,
    of: PhantomData<T>,
}

impl<T: Number> CustomOp1 for Weight<T> {
    fn name(&self) -> &'static str {
        "weight"
    }

    fn cpu_fwd(&self, _: &CpuStorage, layout: &TensorLayout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((T::to_cpu_storage_owned(Vec::new()), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, weight: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let mut state = lock(&self.state);
        if let Some(to) = state.gradients.get_mut(self.index) {
            *to = Some(gradient.detach());
        }
        state.most = state.most.max(state.bytes());
        if state.letting_go {
            weight.inplace_op1(&Free)?;
            state.held = state.held.saturating_sub(values::bytes(weight));
        }
        Ok(None)
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
    use candle_core::{DType, Device, Var};
    use half::bf16;

    use super::*;

    fn filled() -> Weights {
        let mut weights = Weights::empty::<f32>([(vec![2, 3], false)]).unwrap();
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
        let gradient = |weights: &Weights, letting_go: bool| {
            let all = weights.differentiate(letting_go, || Ok(y.backward()?)).unwrap();
            all.gradients[0].as_ref().unwrap().to_vec2::<f32>().unwrap()
        };
        let expected = gradient(&weights, false);
        assert_eq!(expected, [[82., 104., 126.], [820., 1040., 1260.]]);
        weights.free().unwrap();
        assert_eq!(weights.bytes(), 0);
        assert!(y.backward().is_err(), "the gradient of x needs the weight");
        weights.fill(|_, to: &mut [f32]| to.copy_from_slice(&[1., 2., 3., 4., 5., 6.])).unwrap();
        assert_eq!(gradient(&weights, true), expected);
        assert_eq!(weights.bytes(), 0, "let go with the gradient");
    }

    /// A weight is there for all that was computed with it, and not a moment longer.
    #[test]
    fn a_weight_goes_when_its_gradient_comes() {
        let shapes = || [(vec![2, 2], false), (vec![2, 2], false), (vec![2, 2], true)];
        let of = |letting_go: bool| {
            let mut weights = Weights::empty::<f32>(shapes()).unwrap();
            weights.fill(|i, to: &mut [f32]| to.copy_from_slice(&[1., 2., 3., i as f32])).unwrap();
            let x = Var::new(&[[1f32, 10.]], &Device::Cpu).unwrap();
            let [a, b, c] = weights.variables() else { panic!("three") };
            // The first one is needed again, before and after the others.
            let y = x.matmul(a).unwrap().matmul(b).unwrap().matmul(c).unwrap().matmul(a).unwrap();
            let y = y.sum_all().unwrap();
            let all = weights.differentiate(letting_go, || Ok(y.backward()?)).unwrap();
            let gradients: Vec<_> =
                all.gradients.iter().map(|g| g.as_ref().map(|g| g.to_vec2::<f32>().unwrap())).collect();
            let of_x = all.result.get(&x).unwrap().to_vec2::<f32>().unwrap();
            (gradients, of_x, all.most, weights.bytes())
        };
        let (kept, going) = (of(false), of(true));
        assert_eq!((&kept.0, &kept.1), (&going.0, &going.1));
        assert!(kept.0[0].is_some() && kept.0[1].is_some() && kept.0[2].is_none());
        // Three weights of 16 bytes; two gradients, or one before the first weight goes.
        assert_eq!((kept.2, kept.3), (3 * 16 + 2 * 16, 3 * 16));
        assert_eq!((going.2, going.3), (3 * 16 + 16, 16));
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
        let mut weights = Weights::empty::<bf16>([(vec![4], false)]).unwrap();
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
