//! Which loops for which type, operation and processor.

use half::{bf16, f16};

use super::evaluate::{Functions, Params, Unary};
use super::pack::Portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512, float8};
use crate::number::{DataType, F8E4M3, F8E5M2, ReduceOp};

/// The fastest loops that this processor runs; nothing when the operation is not defined for the type.
pub(super) fn best(data_type: DataType, op: ReduceOp) -> Option<Functions> {
    #[cfg(target_arch = "x86_64")]
    if data_type == DataType::BF16 && avx512::available() {
        return with_avx512::float::<avx512::BF16>(op);
    }
    up_to_avx2(data_type, op)
}

/// The fastest loops without AVX-512.
pub(super) fn up_to_avx2(data_type: DataType, op: ReduceOp) -> Option<Functions> {
    #[cfg(target_arch = "x86_64")]
    if avx2::available() {
        return match data_type {
            DataType::F16 => with_avx2::float::<avx2::F16>(op),
            DataType::BF16 => with_avx2::float::<avx2::BF16>(op),
            DataType::F32 => with_avx2::float::<avx2::F32>(op),
            DataType::F8E4M3 => with_avx2::float8::<avx2::F8E4M3, float8::SumE4M3>(op),
            DataType::F8E5M2 => with_avx2::float8::<avx2::F8E5M2, float8::SumE5M2>(op),
            other => with_avx2::native(other, op),
        };
    }
    portable(data_type, op)
}

/// The loops that every processor runs; nothing when the operation is not defined for the type.
pub(super) fn portable(data_type: DataType, op: ReduceOp) -> Option<Functions> {
    match data_type {
        DataType::F16 => any::float::<Portable<f16, 8>>(op),
        DataType::BF16 => any::float::<Portable<bf16, 8>>(op),
        DataType::F32 => any::float::<Portable<f32, 8>>(op),
        DataType::F8E4M3 => any::float::<Portable<F8E4M3, 8>>(op),
        DataType::F8E5M2 => any::float::<Portable<F8E5M2, 8>>(op),
        other => any::native(other, op),
    }
}

/// The loops, compiled for one set of processor features. Sums, products and bits are the same for signed and
/// unsigned integers, so they are compiled once.
macro_rules! instantiate {
    ($module:ident, fuses: $fuses:literal, streams: $stream:ty $(, $features:literal)?) => {
        mod $module {
            use std::marker::PhantomData;

            use super::super::evaluate::{self, Add, And, Max, Min, Multiply, Op, Or, Past, Xor};
            use super::super::pack::{Bits, Numeric, Pack};
            use super::super::{Destination, Places, Source};
            use super::{DataType, Functions, Params, Portable, ReduceOp, Unary};

            $(#[target_feature(enable = $features)])?
            unsafe fn tree<P: Pack<Vector: Numeric>, O: Op<P::Vector>, const DIVIDES: bool>(
                params: Params,
                terms: &[Source],
                dst: Destination,
                count: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { evaluate::tree::<P, O, _, DIVIDES, $fuses>(params, terms, dst, count) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn spread<P: Pack<Vector: Numeric>, O: Op<P::Vector>, const DIVIDES: bool>(
                params: Params,
                terms: &[Source],
                places: Places<'_>,
                count: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { evaluate::tree::<P, O, _, DIVIDES, $fuses>(params, terms, Past::<$stream>(places, PhantomData), count) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn binary<P: Pack<Vector: Numeric>, O: Op<P::Vector>, const DIVIDES: bool>(
                params: Params,
                terms: [Source; 2],
                dst: Destination,
                count: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { evaluate::binary::<P, O, DIVIDES>(params, terms, dst, count) }
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
                Functions {
                    tree: tree::<P, O, DIVIDES>,
                    spread: spread::<P, O, DIVIDES>,
                    binary: binary::<P, O, DIVIDES>,
                    unary: unary::<P>,
                    fuses: $fuses,
                }
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

            /// `Sum` is for trees of sums alone.
            #[allow(dead_code)] // the portable loops have no such pack
            pub(super) fn float8<P, Sum>(op: ReduceOp) -> Option<Functions>
            where
                P: Pack<Vector: Numeric>,
                Sum: Pack<Vector: Numeric>,
            {
                let mut functions = float::<P>(op)?;
                if matches!(op, ReduceOp::Sum | ReduceOp::PreMulSum(_)) {
                    functions.tree = tree::<Sum, Add, false>;
                    functions.spread = spread::<Sum, Add, false>;
                }
                Some(functions)
            }

            /// `P` is `Unsigned`, or the signed type of its size.
            fn integer<P, Unsigned>(op: ReduceOp) -> Option<Functions>
            where
                P: Pack<Vector: Numeric>,
                Unsigned: Pack<Vector: Numeric + Bits>,
            {
                let mut functions = match op {
                    ReduceOp::Sum | ReduceOp::PreMulSum(_) => of::<Unsigned, Add, false>(),
                    ReduceOp::Avg => of::<P, Add, true>(),
                    ReduceOp::Product => of::<Unsigned, Multiply, false>(),
                    ReduceOp::Min => of::<P, Min, false>(),
                    ReduceOp::Max => of::<P, Max, false>(),
                    ReduceOp::BitAnd => of::<Unsigned, And, false>(),
                    ReduceOp::BitOr => of::<Unsigned, Or, false>(),
                    ReduceOp::BitXor => of::<Unsigned, Xor, false>(),
                };
                functions.unary = unary::<P>;
                Some(functions)
            }

            #[allow(dead_code)] // AVX-512 has loops for floats alone
            pub(super) fn native(data_type: DataType, op: ReduceOp) -> Option<Functions> {
                match data_type {
                    DataType::I8 => integer::<Portable<i8, 32>, Portable<u8, 32>>(op),
                    DataType::U8 => integer::<Portable<u8, 32>, Portable<u8, 32>>(op),
                    DataType::I16 => integer::<Portable<i16, 16>, Portable<u16, 16>>(op),
                    DataType::U16 => integer::<Portable<u16, 16>, Portable<u16, 16>>(op),
                    DataType::I32 => integer::<Portable<i32, 8>, Portable<u32, 8>>(op),
                    DataType::U32 => integer::<Portable<u32, 8>, Portable<u32, 8>>(op),
                    DataType::I64 => integer::<Portable<i64, 4>, Portable<u64, 4>>(op),
                    DataType::U64 => integer::<Portable<u64, 4>, Portable<u64, 4>>(op),
                    DataType::F64 => float::<Portable<f64, 4>>(op),
                    _ => unreachable!("{data_type} has a pack of its own"),
                }
            }
        }
    };
}

instantiate!(any, fuses: false, streams: evaluate::Plain);
#[cfg(target_arch = "x86_64")]
instantiate!(with_avx2, fuses: true, streams: super::super::avx2::Registers, "avx2,f16c,fma");
#[cfg(target_arch = "x86_64")]
instantiate!(with_avx512, fuses: true, streams: super::super::avx2::Registers, "avx512f,avx512bw,avx512dq,avx512bf16");
