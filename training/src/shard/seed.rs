//! Where a backward pass begins.

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};

use crate::error::Result;

/// A scalar whose backward pass gives `output` this gradient.
pub fn seeded(output: &Tensor, gradient: Tensor) -> Result<Tensor> {
    Ok(output.apply_op1(Seed { gradient: gradient.detach() })?)
}

struct Seed {
    gradient: Tensor,
}

impl CustomOp1 for Seed {
    fn name(&self) -> &'static str {
        "seed"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(())))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(Some(self.gradient.clone()))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    #[test]
    fn the_gradient_is_that_of_the_product_with_the_seed() {
        let x = Var::new(&[1f32, 2., 3.], &Device::Cpu).unwrap();
        let seed = Tensor::new(&[0.5f32, -1., 4.], &Device::Cpu).unwrap();
        let y = x.sqr().unwrap();
        let ours = seeded(&y, seed.clone()).unwrap().backward().unwrap();
        let product = (y * seed).unwrap().sum_all().unwrap().backward().unwrap();
        let of = |grads: &candle_core::backprop::GradStore| grads.get(&x).unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(of(&ours), of(&product));
        assert_eq!(of(&ours), [1., -4., 24.]);
    }
}
