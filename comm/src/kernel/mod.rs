//! Reduction loops over memory, chosen once for a type, an operation and a processor.
//!
//! | file | what |
//! |---|---|
//! | `pack` | a few elements in registers: the portable form, on arrays |
//! | `avx2` | floats with AVX2, F16C and FMA |
//! | `avx512` | bfloat16 with AVX-512 |
//! | `float8` | sums of fp8 with AVX2 |
//! | `evaluate` | the loops over packs: one or two operands, balanced trees in one pass |
//! | `blocks` | any fold, for a block of elements at a time |
//! | [`spread`] | results that go to several places, and past the caches |
//! | `table` | which loop for which type, operation and processor |
//!
//! # What is promised
//! The bytes written depend on the operands, the [`Fold`], the operation and the world size, and on nothing else:
//! not on the processor, on how a span is cut into calls, on alignment or aliasing. (The thread's rounding mode and
//! flush-to-zero flags have to be at their defaults.)
//! * Values are combined in the accumulator type exactly in the fold's order, the left operand first, without
//!   contraction into fused multiply-adds. Integers wrap.
//! * Rounding is to nearest even and keeps subnormals.
//! * [`ReduceOp::Avg`] divides by the world size in the accumulator type when `finish` is set, before the only
//!   rounding; integers truncate towards zero.
//! * Min and max give NaN if any operand is NaN, and take −0 to be below +0.
//! * **NaN.** Whenever a value was combined, divided, multiplied or rounded and is NaN, what is written is the *one*
//!   NaN of the type: quiet, sign clear, payload zero (f64 `7ff8…0`, f32 `7fc00000`, bf16 `7fc0`, f16 `7e00`;
//!   e4m3 and e5m2 `7f`), whatever the payloads of the operands. This includes e4m3 values that overflow. Only a
//!   copy between equal widths, and a fold of one term with nothing to do, move bits as they are; widening may keep
//!   or clear a NaN's signalling bit.
#![allow(unsafe_code)] // reads and writes memory of types that are known only at run time
#![allow(clippy::needless_range_loop)] // loops over a constant number of lanes, which have to unroll

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocks;
mod evaluate;
#[cfg(target_arch = "x86_64")]
mod float8;
mod pack;
pub mod spread;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::fold::{Fold, FoldOp};
use crate::number::{DataType, ReduceOp};

use evaluate::{Functions, Params, Unary};

/// Where a term is read from; no alignment is required.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// The first element.
    pub ptr: *const u8,
    /// Whether elements are of the accumulator type.
    pub wide: bool,
}

/// Where a result goes; no alignment is required.
#[derive(Debug, Clone, Copy)]
pub struct Destination {
    /// The first element.
    pub ptr: *mut u8,
    /// Whether elements are of the accumulator type, so that the result is not rounded.
    pub wide: bool,
    /// Whether this is the complete reduction, so that an average is divided here.
    pub finish: bool,
}

/// All places where a result goes, each of which has room for it; no alignment is required.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// The first of them.
    pub own: Destination,
    /// The others: `behind` bytes behind each of these.
    pub others: &'a [*mut u8],
    /// See there.
    pub behind: usize,
}

impl<'a> Places<'a> {
    /// So many bytes behind the beginning of each of the others.
    #[inline(always)]
    fn others(&self, at: usize) -> impl Iterator<Item = *mut u8> + use<'a> {
        let behind = self.behind + at;
        self.others.iter().map(move |other| other.wrapping_add(behind))
    }

    /// All of them, so many bytes further on.
    fn behind(&self, at: usize) -> Places<'a> {
        let own = Destination { ptr: self.own.ptr.wrapping_add(at), ..self.own };
        Places { own, others: self.others, behind: self.behind + at }
    }
}

/// The loops for one type, operation and world size. A few words; copy it freely.
#[derive(Clone, Copy)]
pub struct Kernel {
    data_type: DataType,
    op: ReduceOp,
    params: Params,
    functions: Functions,
}

/// Folds that hold more values at once than this are refused (a balanced tree of that depth has 2^31 terms).
pub const MAX_DEPTH: usize = 32;

impl Kernel {
    /// The fastest loops that this processor runs.
    pub fn new(data_type: DataType, op: ReduceOp, world_size: usize) -> Result<Kernel, Unsupported> {
        Kernel::with(data_type, op, world_size, table::best)
    }

    /// The loops that every processor runs; the results are the same, bit for bit.
    pub fn portable(data_type: DataType, op: ReduceOp, world_size: usize) -> Result<Kernel, Unsupported> {
        Kernel::with(data_type, op, world_size, table::portable)
    }

    fn with(
        data_type: DataType,
        op: ReduceOp,
        world_size: usize,
        table: fn(DataType, ReduceOp) -> Option<Functions>,
    ) -> Result<Kernel, Unsupported> {
        let functions = table(data_type, op).ok_or(Unsupported { data_type, op })?;
        let factor = if let ReduceOp::PreMulSum(factor) = op { factor } else { 1.0 };
        Ok(Kernel {
            data_type,
            op,
            params: Params { world_size: world_size.max(1) as u64, factor, one: 1.0 },
            functions,
        })
    }

    /// The element type.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The operation.
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// Bytes of an element in a [`Source`] or [`Destination`] with this `wide`.
    pub fn width(&self, wide: bool) -> usize {
        if wide { self.data_type.accumulator().size() } else { self.data_type.size() }
    }

    /// `dst[i] = round?(finish?(fold(terms[0][i], terms[1][i], …)))` for `i < count`; rounded unless `dst.wide`.
    ///
    /// # Panics
    /// When there are not as many terms as the fold has, or the fold is deeper than [`MAX_DEPTH`].
    ///
    /// # Safety
    /// Every term must be readable and `dst` writable for `count` elements of its width, without data races. `dst`
    /// must be exactly the memory of a term of the same width, or overlap none; terms may overlap each other.
    pub unsafe fn fold(&self, fold: &Fold, terms: &[Source], dst: Destination, count: usize) {
        assert_eq!(terms.len(), fold.terms(), "a fold over {} terms", fold.terms());
        assert!(
            fold.depth() <= MAX_DEPTH,
            "a fold that holds {} values; the limit is {MAX_DEPTH}",
            fold.depth()
        );
        // SAFETY: the caller's promise is what the loops ask for; the table chose loops that this processor runs.
        unsafe {
            if terms.len() == 1 && fold.ops().len() == 1 {
                self.unary(terms[0], dst, count);
            } else if self.in_one_pass(fold, terms, dst) {
                (self.functions.tree)(self.params, terms, dst, count);
            } else {
                blocks::fold(self, fold, terms, dst, count);
            }
        }
    }

    /// Whether there is a loop that needs no intermediate result.
    fn in_one_pass(&self, fold: &Fold, terms: &[Source], dst: Destination) -> bool {
        let mixed = self.data_type.accumulator() != self.data_type;
        let all_narrow = !mixed || (!dst.wide && terms.iter().all(|t| !t.wide));
        all_narrow && is_balanced(fold.ops()) && (terms.len() == 2 || self.functions.fuses)
    }

    /// [`Kernel::fold`] in one pass, past the caches, into several places, which are multiples of [`spread::ALIGNMENT`].
    ///
    /// # Safety
    /// As for [`Kernel::fold`], for all places; [`Kernel::in_one_pass`] is true.
    unsafe fn spread(&self, terms: &[Source], places: Places<'_>, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { (self.functions.spread)(self.params, terms, places, count) }
    }

    /// Rounds (accumulator to element type), widens, or moves the bits when the widths are equal. When `dst.finish`
    /// is set, an average is divided on the way.
    ///
    /// # Safety
    /// As for [`Kernel::fold`] with `src` as the only term.
    pub unsafe fn copy(&self, src: Source, dst: Destination, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.unary(src, dst, count) }
    }

    unsafe fn unary(&self, src: Source, dst: Destination, count: usize) {
        let divides = dst.finish && self.op == ReduceOp::Avg;
        let (from, to) = (self.width(src.wide), self.width(dst.wide));
        // SAFETY: the caller's promise is what the loops ask for; `copy` allows any overlap.
        unsafe {
            if divides {
                (self.functions.unary)(self.params, Unary::Divide, src, dst, count);
            } else if from != to {
                (self.functions.unary)(self.params, Unary::Convert, src, dst, count);
            } else {
                std::ptr::copy(src.ptr, dst.ptr, count * from);
            }
        }
    }

    /// The first step of [`ReduceOp::PreMulSum`]: `dst[i] = round(src[i] × factor)`, in the accumulator type. For
    /// integers the factor is first truncated towards zero to the type (and clamped to its range; NaN gives 0).
    /// With other operations the factor is 1.
    ///
    /// # Safety
    /// As for [`Kernel::fold`] with `src` as the only term.
    pub unsafe fn premultiply(&self, src: *const u8, dst: *mut u8, count: usize) {
        let (src, dst) =
            (Source { ptr: src, wide: false }, Destination { ptr: dst, wide: false, finish: false });
        // SAFETY: the caller's promise.
        unsafe { (self.functions.unary)(self.params, Unary::Scale, src, dst, count) }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} {:?} over {} ranks)", self.data_type, self.op, self.params.world_size)
    }
}

/// The operation is not defined for the type: bitwise operations are for integers.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("operation '{op}' is not defined for elements of type '{data_type}': use it with an integer type")]
pub struct Unsupported {
    /// The element type.
    pub data_type: DataType,
    /// The operation.
    pub op: ReduceOp,
}

/// Whether `ops` is the balanced tree over 2, 4 or 8 terms.
fn is_balanced(ops: &[FoldOp]) -> bool {
    use FoldOp::{Combine as C, Term as T};
    match ops.len() {
        3 => ops == [T, T, C],
        7 => ops == [T, T, C, T, T, C, C],
        15 => ops == [T, T, C, T, T, C, C, T, T, C, T, T, C, C, C],
        _ => false,
    }
}
