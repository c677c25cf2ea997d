//! How numbers lie in files: one by one, or in blocks that share a scale.

use std::borrow::Cow;
use std::fmt;

use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use half::{bf16, f16};

use crate::error::Result;

/// What the elements of a tensor are in a file. All are little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    F32,
    F16,
    BF16,
    /// Blocks of quantised numbers, as llama.cpp has them.
    Blocks(GgmlDType),
}

impl Encoding {
    /// Elements that lie together and cannot be read one without the others.
    pub fn block(self) -> usize {
        match self {
            Encoding::Blocks(kind) => kind.block_size(),
            _ => 1,
        }
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        match self {
            Encoding::F32 => 4,
            Encoding::F16 | Encoding::BF16 => 2,
            Encoding::Blocks(kind) => kind.type_size(),
        }
    }

    /// The elements of whole blocks.
    ///
    /// # Errors
    /// Of the tensor library.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) -> Result<()> {
        match self {
            Encoding::F32 => each(bytes, out, f32::from_le_bytes),
            Encoding::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            Encoding::BF16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
            Encoding::Blocks(kind) => {
                let blocks = QStorage::from_data(Cow::Borrowed(bytes), &Device::Cpu, kind)?;
                let values = QTensor::new(blocks, out.len())?.dequantize(&Device::Cpu)?.to_vec1::<f32>()?;
                out.copy_from_slice(&values);
            }
        }
        Ok(())
    }

    /// One element, if each is by itself.
    pub fn encode(self, value: f32, bytes: &mut Vec<u8>) {
        match self {
            Encoding::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
            Encoding::BF16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
            Encoding::F32 | Encoding::Blocks(_) => bytes.extend(value.to_le_bytes()),
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encoding::F32 => f.write_str("F32"),
            Encoding::F16 => f.write_str("F16"),
            Encoding::BF16 => f.write_str("BF16"),
            Encoding::Blocks(kind) => write!(f, "{kind:?}"),
        }
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], one: impl Fn([u8; N]) -> f32) {
    for (out, &bytes) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *out = one(bytes);
    }
}
