//! Tensors as slices.

use std::borrow::Cow;

use candle_core::{CpuStorage, Error, Layout, Result, Storage, Tensor, WithDType};

/// The elements of a storage in the order of the layout; borrowed where they lie so.
///
/// # Errors
/// For another element type, and for a storage that was let go.
pub(crate) fn elements<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<Cow<'a, [T]>> {
    let all = storage.as_slice::<T>()?;
    match layout.contiguous_offsets() {
        Some((start, end)) => match all.get(start..end) {
            Some(elements) => Ok(Cow::Borrowed(elements)),
            None => candle_core::bail!(
                "a tensor of {} elements has {} in memory: it was let go before its last use",
                end - start,
                all.len()
            ),
        },
        None => in_order(all, layout).map(Cow::Owned),
    }
}

/// The elements that lie apart, one dimension after the other.
fn in_order<T: WithDType>(all: &[T], layout: &Layout) -> Result<Vec<T>> {
    let mut offsets = vec![layout.start_offset()];
    for (&len, &stride) in layout.dims().iter().zip(layout.stride()) {
        offsets = offsets.iter().flat_map(|&offset| (0..len).map(move |i| offset + i * stride)).collect();
    }
    match offsets.iter().map(|&i| all.get(i).copied()).collect() {
        Some(elements) => Ok(elements),
        None => candle_core::bail!("a tensor of {} elements was let go before its last use", offsets.len()),
    }
}

/// Calls `f` with the elements of a tensor, in order.
///
/// # Errors
/// Those of `f` and of [`elements`], and for a tensor that is not in the memory of the CPU.
pub(crate) fn with_elements<T: WithDType, R, E: From<Error>>(
    tensor: &Tensor,
    f: impl FnOnce(&[T]) -> std::result::Result<R, E>,
) -> std::result::Result<R, E> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => f(&elements::<T>(storage, layout)?),
        _ => {
            let device = tensor.device();
            Err(Error::Msg(format!("a tensor is on {device:?}; this operation works on the CPU's")).into())
        }
    }
}

/// `by_type!(dtype, "name", T => expression)`: the expression with `T` the type that is called `dtype` at run time, or
/// an error that names the operation.
macro_rules! by_type {
    ($dtype:expr, $name:expr, $type:ident => $what:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $type = f32;
                $what
            }
            candle_core::DType::F64 => {
                type $type = f64;
                $what
            }
            candle_core::DType::BF16 => {
                type $type = half::bf16;
                $what
            }
            candle_core::DType::F16 => {
                type $type = half::f16;
                $what
            }
            other => Err(candle_core::Error::Msg(format!("{}: {other:?}; use f32, bf16, f16 or f64", $name))),
        }
    };
}
pub(crate) use by_type;

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn elements_come_in_order_wherever_they_lie() {
        let x = Tensor::arange(0u32, 24, &Device::Cpu).unwrap().reshape((2, 3, 4)).unwrap();
        for view in
            [x.clone(), x.narrow(0, 1, 1).unwrap(), x.transpose(0, 2).unwrap(), x.narrow(2, 1, 2).unwrap()]
        {
            let expected: Vec<u32> = view.flatten_all().unwrap().to_vec1().unwrap();
            let found = with_elements::<u32, _, Error>(&view, |found| Ok(found.to_vec())).unwrap();
            assert_eq!(found, expected);
        }
        assert!(with_elements::<f32, _, Error>(&x, |_| Ok(())).is_err());
    }
}
