//! [`DataType`] and the Rust types behind it.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

use super::{F8E4M3, F8E5M2};

/// What the elements of a buffer are. The discriminants travel between ranks and do not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DataType {
    /// Signed, 8 bits.
    I8 = 1,
    /// Unsigned, 8 bits.
    U8 = 2,
    /// Signed, 16 bits.
    I16 = 3,
    /// Unsigned, 16 bits.
    U16 = 4,
    /// Signed, 32 bits.
    I32 = 5,
    /// Unsigned, 32 bits.
    U32 = 6,
    /// Signed, 64 bits.
    I64 = 7,
    /// Unsigned, 64 bits.
    U64 = 8,
    /// IEEE 754 binary16: 5 bits of exponent, 10 of mantissa.
    F16 = 9,
    /// bfloat16: the upper half of an f32.
    BF16 = 10,
    /// IEEE 754 binary32.
    F32 = 11,
    /// IEEE 754 binary64.
    F64 = 12,
    /// OCP FP8 E4M3: no infinities, one NaN of either sign (PyTorch's `float8_e4m3fn`).
    F8E4M3 = 13,
    /// OCP FP8 E5M2: the upper byte of an f16 (PyTorch's `float8_e5m2`).
    F8E5M2 = 14,
}

impl DataType {
    /// Every type, by discriminant.
    pub const ALL: [DataType; 14] = [
        DataType::I8,
        DataType::U8,
        DataType::I16,
        DataType::U16,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::F16,
        DataType::BF16,
        DataType::F32,
        DataType::F64,
        DataType::F8E4M3,
        DataType::F8E5M2,
    ];

    /// Bytes of one element; also its alignment.
    pub const fn size(self) -> usize {
        use DataType::*;
        match self {
            I8 | U8 | F8E4M3 | F8E5M2 => 1,
            I16 | U16 | F16 | BF16 => 2,
            I32 | U32 | F32 => 4,
            I64 | U64 | F64 => 8,
        }
    }

    /// The type values are combined in: f32 for floats of 16 and 8 bits, otherwise the type itself.
    pub const fn accumulator(self) -> DataType {
        use DataType::*;
        match self {
            F16 | BF16 | F8E4M3 | F8E5M2 => F32,
            other => other,
        }
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        use DataType::*;
        matches!(self, F16 | BF16 | F32 | F64 | F8E4M3 | F8E5M2)
    }

    /// The name that nccl-tests prints.
    pub const fn name(self) -> &'static str {
        use DataType::*;
        match self {
            I8 => "int8",
            U8 => "uint8",
            I16 => "int16",
            U16 => "uint16",
            I32 => "int32",
            U32 => "uint32",
            I64 => "int64",
            U64 => "uint64",
            F16 => "half",
            BF16 => "bfloat16",
            F32 => "float",
            F64 => "double",
            F8E4M3 => "f8e4m3",
            F8E5M2 => "f8e5m2",
        }
    }

    fn aliases(self) -> &'static [&'static str] {
        use DataType::*;
        match self {
            I8 => &["i8", "char"],
            U8 => &["u8", "byte"],
            I16 => &["i16"],
            U16 => &["u16"],
            I32 => &["i32", "int"],
            U32 => &["u32", "uint"],
            I64 => &["i64"],
            U64 => &["u64"],
            F16 => &["f16", "fp16", "float16"],
            BF16 => &["bf16"],
            F32 => &["f32", "fp32", "float32"],
            F64 => &["f64", "fp64", "float64"],
            F8E4M3 => &["f8_e4m3", "fp8_e4m3", "fp8e4m3", "float8_e4m3fn", "fp8_e4m3fn"],
            F8E5M2 => &["f8_e5m2", "fp8_e5m2", "fp8e5m2", "float8_e5m2"],
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// By nccl-tests' name (`float`, `bfloat16`), Rust's (`f32`, `bf16`) or PyTorch's (`float32`, `float8_e4m3fn`),
/// in upper or lower case.
impl FromStr for DataType {
    type Err = UnknownDataType;

    fn from_str(s: &str) -> Result<DataType, UnknownDataType> {
        let lower = s.to_ascii_lowercase();
        DataType::ALL
            .into_iter()
            .find(|t| t.name() == lower || t.aliases().contains(&lower.as_str()))
            .ok_or_else(|| UnknownDataType(s.to_owned()))
    }
}

impl TryFrom<u8> for DataType {
    type Error = UnknownDataType;

    fn try_from(code: u8) -> Result<DataType, UnknownDataType> {
        let index = usize::from(code).checked_sub(1);
        index.and_then(|i| DataType::ALL.get(i)).copied().ok_or_else(|| UnknownDataType(code.to_string()))
    }
}

/// A name or a code that is no [`DataType`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown element type '{0}': use int8, uint8, int16, uint16, int32, uint32, int64, uint64, half, bfloat16, \
     float, double, f8e4m3 or f8e5m2"
)]
pub struct UnknownDataType(pub String);

/// A Rust type that buffers may hold. Sealed: every bit pattern is a value, there is no padding, and size and
/// alignment are [`DataType::size`].
pub trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// Its name at run time.
    const DATA_TYPE: DataType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($rust:ty => $name:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DATA_TYPE: DataType = DataType::$name;
        }
        const _: () = {
            assert!(size_of::<$rust>() == DataType::$name.size());
            assert!(align_of::<$rust>() <= DataType::$name.size());
        };
    )*};
}

elements! {
    i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, F8E4M3 => F8E4M3, F8E5M2 => F8E5M2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_are_read_back() {
        for t in DataType::ALL {
            assert_eq!(t.name().parse(), Ok(t));
            assert_eq!(t.name().to_uppercase().parse(), Ok(t));
            assert_eq!(DataType::try_from(t as u8), Ok(t));
            for alias in t.aliases() {
                assert_eq!(alias.parse(), Ok(t), "{alias}");
            }
        }
        for code in [0, 15, 255] {
            assert!(DataType::try_from(code).is_err());
        }
        assert!("quad".parse::<DataType>().is_err() && "".parse::<DataType>().is_err());
    }

    #[test]
    fn only_small_floats_have_another_accumulator() {
        for t in DataType::ALL {
            let small = t.is_float() && t.size() < 4;
            assert_eq!(t.accumulator(), if small { DataType::F32 } else { t });
        }
    }
}
