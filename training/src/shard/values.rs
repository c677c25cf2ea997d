//! A unit's gradients before they are reduced.

use std::ops::Range;

use candle_core::{CpuStorage, DType, Storage, Tensor};
use half::{bf16, f16};

use super::layout::Layout;
use super::number::{Number, add};
use crate::error::{Error, Result};

/// Gradients of all of a unit's parameters.
pub enum Values {
    /// Each parameter's own, as they come from the backward pass; none are zeros.
    Each(Vec<Option<Tensor>>),
    /// Sums of several, as they lie in the unit's vector.
    Flat(Vec<f32>),
}

impl Values {
    /// Writes what lies in `range` of the unit's vector to `out`, zeros between parameters.
    pub fn write<T: Number>(&self, layout: &Layout, range: Range<usize>, out: &mut [T]) -> Result<()> {
        let mut written = 0;
        let mut next = |at: usize, len: usize, out: &mut [T]| {
            out[written..at].fill(T::zero());
            written = at + len;
        };
        for (parameter, part, at) in layout.within(range) {
            next(at, part.len(), out);
            self.visit(layout, parameter, part, &mut |i, values| {
                T::narrow(values, &mut out[at + i..at + i + values.len()]);
            })?;
        }
        next(out.len(), 0, out);
        Ok(())
    }

    /// Adds all of them to `sum`, the unit's vector.
    pub fn add_to(&self, layout: &Layout, sum: &mut [f32]) -> Result<()> {
        for (parameter, part, at) in layout.within(0..sum.len()) {
            self.visit(layout, parameter, part, &mut |i, values| add(&mut sum[at + i..], values))?;
        }
        Ok(())
    }

    /// Hands out a part of a parameter's gradient, in chunks with where they begin in the part; nothing if it has none.
    pub fn visit(
        &self,
        layout: &Layout,
        parameter: usize,
        part: Range<usize>,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        match self {
            Values::Flat(values) => {
                let start = layout.parameter(parameter).start;
                each(0, &values[start + part.start..start + part.end]);
                Ok(())
            }
            Values::Each(tensors) => match &tensors[parameter] {
                Some(tensor) => elements(tensor, part, each),
                None => {
                    const ZEROS: [f32; 1024] = [0.0; 1024];
                    for at in (0..part.len()).step_by(ZEROS.len()) {
                        each(at, &ZEROS[..ZEROS.len().min(part.len() - at)]);
                    }
                    Ok(())
                }
            },
        }
    }

    /// Puts `values` in the place of a parameter's gradient.
    pub fn replace(&mut self, layout: &Layout, parameter: usize, values: &[f32]) -> Result<()> {
        match self {
            Values::Flat(flat) => flat[layout.parameter(parameter)].copy_from_slice(values),
            Values::Each(tensors) => {
                tensors[parameter] = Some(Tensor::new(values, &candle_core::Device::Cpu)?);
            }
        }
        Ok(())
    }

    /// Bytes that they have.
    pub fn bytes(&self) -> usize {
        match self {
            Values::Each(tensors) => tensors.iter().flatten().map(bytes).sum(),
            Values::Flat(values) => size_of_val(values.as_slice()),
        }
    }
}

/// Bytes of a tensor's elements.
pub fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

/// The elements of a tensor, flattened, in f32.
fn elements(tensor: &Tensor, part: Range<usize>, each: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
    let tensor = match tensor.dtype() {
        DType::F64 => tensor.to_dtype(DType::F32)?,
        _ => tensor.contiguous()?,
    };
    let (storage, layout) = tensor.storage_and_layout();
    let part = layout.start_offset() + part.start..layout.start_offset() + part.end;
    match &*storage {
        Storage::Cpu(CpuStorage::F32(values)) => f32::widen(&values[part], each),
        Storage::Cpu(CpuStorage::BF16(values)) => bf16::widen(&values[part], each),
        Storage::Cpu(CpuStorage::F16(values)) => f16::widen(&values[part], each),
        _ => {
            let (dtype, place) = (tensor.dtype().as_str(), tensor.device().location());
            return Err(Error::Config(format!(
                "a gradient is {dtype} at {place:?}; gradients are f64, f32, bf16 or f16 in main memory"
            )));
        }
    }
    Ok(())
}
