//! Which loops for which type, operation and processor.

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::evaluate::{Functions, Params, Unary};
use super::pack::Portable;
use crate::number::{DataType, F8E4M3, F8E5M2, ReduceOp};

/// The fastest loops that this processor runs; nothing when the operation is not defined for the type.
pub(super) fn best(data_type: DataType, op: ReduceOp) -> Option<Functions> {
    #[cfg(target_arch = "x86_64")]
    if avx2::available() {
        return match data_type {
            DataType::I8 => with_avx2::integer::<Portable<i8, 64>>(op),
            DataType::U8 => with_avx2::integer::<Portable<u8, 64>>(op),
            DataType::I16 => with_avx2::integer::<Portable<i16, 32>>(op),
            DataType::U16 => with_avx2::integer::<Portable<u16, 32>>(op),
            DataType::I32 => with_avx2::integer::<Portable<i32, 16>>(op),
            DataType::U32 => with_avx2::integer::<Portable<u32, 16>>(op),
            DataType::I64 => with_avx2::integer::<Portable<i64, 8>>(op),
            DataType::U64 => with_avx2::integer::<Portable<u64, 8>>(op),
            DataType::F16 => with_avx2::float::<avx2::F16>(op),
            DataType::BF16 => with_avx2::float::<avx2::BF16>(op),
            DataType::F32 => with_avx2::float::<avx2::F32>(op),
            DataType::F64 => with_avx2::float::<Portable<f64, 8>>(op),
            DataType::F8E4M3 => with_avx2::float::<avx2::F8E4M3>(op),
            DataType::F8E5M2 => with_avx2::float::<avx2::F8E5M2>(op),
        };
    }
    portable(data_type, op)
}

/// The loops that every processor runs; nothing when the operation is not defined for the type.
pub(super) fn portable(data_type: DataType, op: ReduceOp) -> Option<Functions> {
    match data_type {
        DataType::I8 => any::integer::<Portable<i8, 32>>(op),
        DataType::U8 => any::integer::<Portable<u8, 32>>(op),
        DataType::I16 => any::integer::<Portable<i16, 16>>(op),
        DataType::U16 => any::integer::<Portable<u16, 16>>(op),
        DataType::I32 => any::integer::<Portable<i32, 8>>(op),
        DataType::U32 => any::integer::<Portable<u32, 8>>(op),
        DataType::I64 => any::integer::<Portable<i64, 4>>(op),
        DataType::U64 => any::integer::<Portable<u64, 4>>(op),
        DataType::F16 => any::float::<Portable<f16, 8>>(op),
        DataType::BF16 => any::float::<Portable<bf16, 8>>(op),
        DataType::F32 => any::float::<Portable<f32, 8>>(op),
        DataType::F64 => any::float::<Portable<f64, 4>>(op),
        DataType::F8E4M3 => any::float::<Portable<F8E4M3, 8>>(op),
        DataType::F8E5M2 => any::float::<Portable<F8E5M2, 8>>(op),
    }
}

/// The loops, compiled for one set of processor features.
macro_rules! instantiate {
    ($module:ident $(, $features:literal)?) => {
        mod $module {
            use super::super::evaluate::{self, Add, And, Max, Min, Multiply, Op, Or, Xor};
            use super::super::pack::{Bits, Numeric, Pack};
            use super::super::{Destination, Source};
            use super::{Functions, Params, ReduceOp, Unary};
            use crate::fold::Fold;

            $(#[target_feature(enable = $features)])?
            unsafe fn tree<P: Pack<Vector: Numeric>, O: Op<P::Vector>, const DIVIDES: bool>(
                params: Params,
                terms: &[Source],
                dst: Destination,
                count: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { evaluate::tree::<P, O, DIVIDES>(params, terms, dst, count) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn blocks<P: Pack<Vector: Numeric>, O: Op<P::Vector>, const DIVIDES: bool>(
                params: Params,
                fold: &Fold,
                terms: &[Source],
                dst: Destination,
                count: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { evaluate::blocks::<P, O, DIVIDES>(params, fold, terms, dst, count) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn unary<P: Pack<Vector: Numeric>>(
                params: Params,
                op: Unary,
                src: Source,
                dst: Destination,
                count: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { evaluate::unary::<P>(params, op, src, dst, count) }
            }

            fn of<P: Pack<Vector: Numeric>, O: Op<P::Vector>, const DIVIDES: bool>() -> Functions {
                Functions { tree: tree::<P, O, DIVIDES>, blocks: blocks::<P, O, DIVIDES>, unary: unary::<P> }
            }

            pub(super) fn float<P: Pack<Vector: Numeric>>(op: ReduceOp) -> Option<Functions> {
                match op {
                    ReduceOp::Sum | ReduceOp::PreMulSum(_) => Some(of::<P, Add, false>()),
                    ReduceOp::Avg => Some(of::<P, Add, true>()),
                    ReduceOp::Product => Some(of::<P, Multiply, false>()),
                    ReduceOp::Min => Some(of::<P, Min, false>()),
                    ReduceOp::Max => Some(of::<P, Max, false>()),
                    ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => None,
                }
            }

            pub(super) fn integer<P: Pack<Vector: Numeric + Bits>>(op: ReduceOp) -> Option<Functions> {
                match op {
                    ReduceOp::BitAnd => Some(of::<P, And, false>()),
                    ReduceOp::BitOr => Some(of::<P, Or, false>()),
                    ReduceOp::BitXor => Some(of::<P, Xor, false>()),
                    number => float::<P>(number),
                }
            }
        }
    };
}

instantiate!(any);
#[cfg(target_arch = "x86_64")]
instantiate!(with_avx2, "avx2,f16c");
