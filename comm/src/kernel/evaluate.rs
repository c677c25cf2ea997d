//! The loops, written once for all types, operations and instruction sets.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::pack::{Bits, Numeric, Pack};
use super::{Destination, MAX_DEPTH, Source};
use crate::fold::{Fold, FoldOp};

/// What an operation needs beside its operands.
#[derive(Clone, Copy)]
pub(super) struct Params {
    pub(super) world_size: u64,
    pub(super) factor: f64,
}

/// What is done to a single operand.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Unary {
    Convert,
    Divide,
    Scale,
}

/// The loops for one type, operation and instruction set.
///
/// # Safety
/// All: the processor has the instruction set; pointers as [`super::Kernel::fold`] asks.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    /// A balanced tree over 2, 3, 4 or 8 terms in one pass; nothing is wide.
    pub(super) tree: unsafe fn(Params, &[Source], Destination, usize),
    /// Any fold of several operations.
    pub(super) blocks: unsafe fn(Params, &Fold, &[Source], Destination, usize),
    /// One operand.
    pub(super) unary: unsafe fn(Params, Unary, Source, Destination, usize),
}

/// An operation on two vectors.
pub(super) trait Op<V>: 'static {
    /// # Safety
    /// The processor has the instruction set of `V`.
    unsafe fn apply(a: V, b: V, params: Params) -> V;
}

macro_rules! ops {
    ($($name:ident: $trait:ident::$method:ident),*) => {$(
        pub(super) struct $name;
        impl<V: $trait> Op<V> for $name {
            #[inline(always)]
            unsafe fn apply(a: V, b: V, _: Params) -> V {
                // SAFETY: the caller's promise.
                unsafe { a.$method(b) }
            }
        }
    )*};
}

ops! {
    Add: Numeric::add, Multiply: Numeric::multiply, Min: Numeric::min, Max: Numeric::max,
    And: Bits::and, Or: Bits::or, Xor: Bits::xor
}

/// `O`, then the division of an average.
struct ThenDivide<O>(PhantomData<O>);

impl<V: Numeric, O: Op<V>> Op<V> for ThenDivide<O> {
    #[inline(always)]
    unsafe fn apply(a: V, b: V, params: Params) -> V {
        // SAFETY: the caller's promise.
        unsafe { O::apply(a, b, params).divide(params.world_size) }
    }
}

/// See [`Functions::tree`]. `DIVIDES`: whether `finish` divides.
///
/// # Safety
/// See [`Functions`].
#[inline(always)]
pub(super) unsafe fn tree<P, O, const DIVIDES: bool>(
    params: Params,
    terms: &[Source],
    dst: Destination,
    count: usize,
) where
    P: Pack<Vector: Numeric>,
    O: Op<P::Vector>,
{
    // SAFETY: the caller's promise, for each of the terms.
    unsafe {
        if DIVIDES && dst.finish {
            tree_then::<P, O, ThenDivide<O>>(params, terms, dst.ptr, count);
        } else {
            tree_then::<P, O, O>(params, terms, dst.ptr, count);
        }
    }
}

#[inline(always)]
unsafe fn tree_then<P, O, Last>(params: Params, terms: &[Source], dst: *mut u8, count: usize)
where
    P: Pack,
    O: Op<P::Vector>,
    Last: Op<P::Vector>,
{
    // SAFETY: the caller's promise.
    unsafe {
        match *terms {
            [a, b] => {
                each::<P, 2, false>([a.ptr, b.ptr], [false; 2], dst, count, |[a, b]| {
                    Last::apply(a, b, params)
                });
            }
            [a, b, c] => each::<P, 3, false>([a.ptr, b.ptr, c.ptr], [false; 3], dst, count, |[a, b, c]| {
                Last::apply(O::apply(a, b, params), c, params)
            }),
            [a, b, c, d] => {
                each::<P, 4, false>([a.ptr, b.ptr, c.ptr, d.ptr], [false; 4], dst, count, |[a, b, c, d]| {
                    Last::apply(O::apply(a, b, params), O::apply(c, d, params), params)
                })
            }
            [a, b, c, d, e, f, g, h] => {
                let terms = [a.ptr, b.ptr, c.ptr, d.ptr, e.ptr, f.ptr, g.ptr, h.ptr];
                each::<P, 8, false>(terms, [false; 8], dst, count, |[a, b, c, d, e, f, g, h]| {
                    let left = O::apply(O::apply(a, b, params), O::apply(c, d, params), params);
                    let right = O::apply(O::apply(e, f, params), O::apply(g, h, params), params);
                    Last::apply(left, right, params)
                })
            }
            _ => unreachable!("the caller has 2, 3, 4 or 8 terms"),
        }
    }
}

/// `dst[i] = f([terms[0][i], …])`, pack by pack; what remains goes through a padded pack on the stack.
///
/// # Safety
/// As [`Functions`]; `f` runs on this instruction set.
#[inline(always)]
unsafe fn each<P: Pack, const N: usize, const WIDE_OUT: bool>(
    mut terms: [*const u8; N],
    wide: [bool; N],
    mut dst: *mut u8,
    count: usize,
    f: impl Fn([P::Vector; N]) -> P::Vector,
) {
    let width = |wide| if P::MIXED && wide { P::WIDE } else { P::SIZE };
    let step = |terms: [*const u8; N], dst: *mut u8| {
        let mut at = 0;
        // SAFETY: the caller of this closure has a whole pack at each pointer.
        let vectors = terms.map(|term| unsafe {
            at += 1;
            if P::MIXED && wide[at - 1] { P::load_wide(term) } else { P::load(term) }
        });
        let v = f(vectors);
        // SAFETY: likewise.
        unsafe { if P::MIXED && WIDE_OUT { P::store_wide(dst, v) } else { P::store(dst, v) } }
    };
    for _ in 0..count / P::LANES {
        step(terms, dst);
        for (term, wide) in terms.iter_mut().zip(wide) {
            *term = term.wrapping_add(P::LANES * width(wide));
        }
        dst = dst.wrapping_add(P::LANES * width(WIDE_OUT));
    }
    let rest = count % P::LANES;
    if rest > 0 {
        let mut padded = [[0u8; PACK]; N];
        let mut out = [0u8; PACK];
        for ((padded, term), wide) in padded.iter_mut().zip(terms).zip(wide) {
            // SAFETY: `rest` elements remain, fewer than a pack, and no pack is longer than PACK bytes.
            unsafe { std::ptr::copy_nonoverlapping(term, padded.as_mut_ptr(), rest * width(wide)) };
        }
        step(padded.each_ref().map(|p| p.as_ptr()), out.as_mut_ptr());
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(out.as_ptr(), dst, rest * width(WIDE_OUT)) };
    }
}

/// Bytes of the longest pack.
const PACK: usize = 128;

/// Bytes of the intermediate results of a block, all together: with the terms they fit the first-level cache.
const SCRATCH: usize = 16 << 10;

/// Bytes of one operand of a block at most.
const BLOCK: usize = 2 << 10;

/// See [`Functions::blocks`].
///
/// The fold is evaluated for a block of elements at a time. Terms are read where they are; each place of the stack
/// has a wide and a narrow buffer for intermediate results, and a result that is rounded next is stored narrow.
///
/// # Safety
/// See [`Functions`].
#[inline(always)]
pub(super) unsafe fn blocks<P, O, const DIVIDES: bool>(
    params: Params,
    fold: &Fold,
    terms: &[Source],
    dst: Destination,
    count: usize,
) where
    P: Pack<Vector: Numeric>,
    O: Op<P::Vector>,
{
    const {
        // The shortest block, of the deepest fold, holds whole packs.
        assert!(P::LANES * P::WIDE <= PACK);
        assert!(SCRATCH / (MAX_DEPTH * (P::WIDE + P::SIZE)) / P::LANES >= 1);
    }
    let divides = DIVIDES && dst.finish;
    let mut scratch = MaybeUninit::<[u8; SCRATCH]>::uninit();
    let scratch: *mut u8 = scratch.as_mut_ptr().cast();
    let (ops, depth) = (fold.ops(), fold.depth());
    let block = match fold.ops() {
        [FoldOp::Term, FoldOp::Term, FoldOp::Combine] => count, // no intermediate result
        _ => (SCRATCH / (depth * (P::WIDE + P::SIZE))).min(BLOCK / P::WIDE) / P::LANES * P::LANES,
    };
    let width = |wide| if P::MIXED && wide { P::WIDE } else { P::SIZE };
    let slot = |height: usize, wide: bool| {
        let narrow = if P::MIXED && wide { 0 } else { depth * block * P::WIDE };
        Destination { ptr: scratch.wrapping_add(narrow + height * block * width(wide)), wide, finish: false }
    };
    let mut stack = [Source { ptr: std::ptr::null(), wide: false }; MAX_DEPTH];
    let mut start = 0;
    while start < count {
        let n = block.min(count - start);
        let out = Destination { ptr: dst.ptr.wrapping_add(start * width(dst.wide)), ..dst };
        let (mut height, mut next, mut stored) = (0, 0, false);
        for (i, op) in ops.iter().enumerate() {
            let last = i + 1 == ops.len();
            match op {
                FoldOp::Term => {
                    let term = terms[next];
                    stack[height] = Source { ptr: term.ptr.wrapping_add(start * width(term.wide)), ..term };
                    (height, next) = (height + 1, next + 1);
                }
                FoldOp::Combine => {
                    height -= 1;
                    let (a, b) = (stack[height - 1], stack[height]);
                    let rounds = ops.get(i + 1) == Some(&FoldOp::Round);
                    let to = if last { out } else { slot(height - 1, !rounds) };
                    // SAFETY: operands are terms, by the caller's promise, or slots of `block` ≥ n elements that
                    // were written; `to` is one operand's memory with the same width, or disjoint from both.
                    unsafe {
                        if last && divides {
                            binary::<P, ThenDivide<O>>(params, a, b, to, n);
                        } else {
                            binary::<P, O>(params, a, b, to, n);
                        }
                    }
                    stack[height - 1] = Source { ptr: to.ptr, wide: to.wide };
                    stored = last;
                }
                FoldOp::Round => {
                    let top = &mut stack[height - 1];
                    if P::MIXED && top.wide {
                        let to = slot(height - 1, false);
                        // SAFETY: as above.
                        unsafe { unary::<P>(params, Unary::Convert, *top, to, n) };
                        *top = Source { ptr: to.ptr, wide: false };
                    }
                }
            }
        }
        if !stored {
            let op = if divides { Unary::Divide } else { Unary::Convert };
            // SAFETY: as above.
            unsafe { unary::<P>(params, op, stack[0], out, n) };
        }
        start += n;
    }
}

#[inline(always)]
unsafe fn binary<P: Pack, O: Op<P::Vector>>(
    params: Params,
    a: Source,
    b: Source,
    dst: Destination,
    n: usize,
) {
    let (terms, f) = ([a.ptr, b.ptr], |[a, b]: [P::Vector; 2]| {
        // SAFETY: the caller's promise.
        unsafe { O::apply(a, b, params) }
    });
    let d = dst.ptr;
    // SAFETY: the caller's promise.
    unsafe {
        match (P::MIXED && a.wide, P::MIXED && b.wide, P::MIXED && dst.wide) {
            (false, false, false) => each::<P, 2, false>(terms, [false, false], d, n, f),
            (false, false, true) => each::<P, 2, true>(terms, [false, false], d, n, f),
            (false, true, false) => each::<P, 2, false>(terms, [false, true], d, n, f),
            (false, true, true) => each::<P, 2, true>(terms, [false, true], d, n, f),
            (true, false, false) => each::<P, 2, false>(terms, [true, false], d, n, f),
            (true, false, true) => each::<P, 2, true>(terms, [true, false], d, n, f),
            (true, true, false) => each::<P, 2, false>(terms, [true, true], d, n, f),
            (true, true, true) => each::<P, 2, true>(terms, [true, true], d, n, f),
        }
    }
}

/// See [`Functions::unary`].
///
/// # Safety
/// See [`Functions`].
#[inline(always)]
pub(super) unsafe fn unary<P: Pack<Vector: Numeric>>(
    params: Params,
    op: Unary,
    src: Source,
    dst: Destination,
    n: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match op {
            Unary::Convert => convert::<P>(src, dst, n, |v| v),
            Unary::Divide => convert::<P>(src, dst, n, |v| v.divide(params.world_size)),
            Unary::Scale => each::<P, 1, false>([src.ptr], [false], dst.ptr, n, |[v]| v.scale(params.factor)),
        }
    }
}

#[inline(always)]
unsafe fn convert<P: Pack>(src: Source, dst: Destination, n: usize, f: impl Fn(P::Vector) -> P::Vector) {
    // SAFETY: the caller's promise.
    unsafe {
        match (P::MIXED && src.wide, P::MIXED && dst.wide) {
            (false, false) => each::<P, 1, false>([src.ptr], [false], dst.ptr, n, |[v]| f(v)),
            (false, true) => each::<P, 1, true>([src.ptr], [false], dst.ptr, n, |[v]| f(v)),
            (true, false) => each::<P, 1, false>([src.ptr], [true], dst.ptr, n, |[v]| f(v)),
            (true, true) => each::<P, 1, true>([src.ptr], [true], dst.ptr, n, |[v]| f(v)),
        }
    }
}
