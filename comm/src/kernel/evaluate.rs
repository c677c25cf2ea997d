//! The loops over packs, written once for all types, operations and instruction sets.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::pack::{Bits, Numeric, Pack};
use super::{Destination, Places, Source};

/// What an operation needs beside its operands.
#[derive(Clone, Copy)]
pub(super) struct Params {
    pub(super) world_size: u64,
    pub(super) factor: f64,
    /// 1. The compiler does not know it, so that it leaves a multiplication by it alone.
    pub(super) one: f32,
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
    /// A balanced tree over 2 terms, or 4 or 8 when `fuses` is set, in one pass; nothing is wide.
    pub(super) tree: unsafe fn(Params, &[Source], Destination, usize),
    /// The same into several places, multiples of [`super::spread::ALIGNMENT`], past the caches.
    pub(super) spread: unsafe fn(Params, &[Source], Places<'_>, usize),
    /// Two operands of any width.
    pub(super) binary: unsafe fn(Params, [Source; 2], Destination, usize),
    /// One operand of any width.
    pub(super) unary: unsafe fn(Params, Unary, Source, Destination, usize),
    /// Whether `tree` has more than 2 terms.
    pub(super) fuses: bool,
}

/// How packs are stored past the caches, on one instruction set.
pub(super) trait Stream: 'static {
    /// Bytes that are stored at once.
    const REGISTER: usize;

    /// Copies `bytes`; they and `to` are multiples of a register.
    ///
    /// # Safety
    /// The processor has the instruction set; both have room and do not overlap.
    unsafe fn store(from: *const u8, to: *mut u8, bytes: usize);
}

/// Not past them, where no such stores are known.
pub(super) struct Plain;

impl Stream for Plain {
    const REGISTER: usize = 1;

    #[inline(always)]
    unsafe fn store(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
    }
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
    Multiply: Numeric::multiply, Min: Numeric::min, Max: Numeric::max, And: Bits::and, Or: Bits::or, Xor: Bits::xor
}

pub(super) struct Add;

impl<V: Numeric> Op<V> for Add {
    #[inline(always)]
    unsafe fn apply(a: V, b: V, params: Params) -> V {
        // SAFETY: the caller's promise.
        unsafe { a.add_product(b, params.one) }
    }
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

/// Where a tree's result goes.
pub(super) trait To: Copy {
    /// Whether this is the complete reduction.
    fn finishes(&self) -> bool;

    /// [`each`] of terms that are not wide, to there.
    ///
    /// # Safety
    /// See [`Functions`].
    unsafe fn each<P, S, const N: usize>(self, params: Params, terms: [*const u8; N], count: usize)
    where
        P: Pack,
        S: Step<P::Vector, N>;
}

impl To for Destination {
    #[inline(always)]
    fn finishes(&self) -> bool {
        self.finish
    }

    #[inline(always)]
    unsafe fn each<P, S, const N: usize>(self, params: Params, terms: [*const u8; N], count: usize)
    where
        P: Pack,
        S: Step<P::Vector, N>,
    {
        // SAFETY: the caller's promise.
        unsafe { each::<P, S, N, 0, false>(params, terms, self.ptr, count) }
    }
}

/// All places, past the caches as `T` does it.
pub(super) struct Past<'a, T>(pub(super) Places<'a>, pub(super) PhantomData<T>);

impl<T> Clone for Past<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Past<'_, T> {}

impl<T: Stream> To for Past<'_, T> {
    #[inline(always)]
    fn finishes(&self) -> bool {
        self.0.own.finish
    }

    #[inline(always)]
    unsafe fn each<P, S, const N: usize>(self, params: Params, terms: [*const u8; N], count: usize)
    where
        P: Pack,
        S: Step<P::Vector, N>,
    {
        // SAFETY: the caller's promise.
        unsafe { each_to_all::<P, S, T, N>(params, terms, self.0, count) }
    }
}

/// See [`Functions::tree`] and [`Functions::spread`]. `DIVIDES`: whether `finish` divides.
///
/// # Safety
/// See [`Functions`].
#[inline(always)]
pub(super) unsafe fn tree<P, O, W, const DIVIDES: bool, const FUSES: bool>(
    params: Params,
    terms: &[Source],
    to: W,
    count: usize,
) where
    P: Pack<Vector: Numeric>,
    O: Op<P::Vector>,
    W: To,
{
    // SAFETY: the caller's promise, for each of the terms.
    unsafe {
        if DIVIDES && to.finishes() {
            tree_then::<P, O, ThenDivide<O>, W, FUSES>(params, terms, to, count);
        } else {
            tree_then::<P, O, O, W, FUSES>(params, terms, to, count);
        }
    }
}

#[inline(always)]
unsafe fn tree_then<P, O, Last, W, const FUSES: bool>(params: Params, terms: &[Source], to: W, count: usize)
where
    P: Pack,
    O: Op<P::Vector>,
    Last: Op<P::Vector>,
    W: To,
{
    // SAFETY: the caller's promise.
    unsafe {
        match *terms {
            [a, b] => to.each::<P, Balanced<O, Last>, 2>(params, [a.ptr, b.ptr], count),
            [a, b, c, d] if FUSES => {
                to.each::<P, Balanced<O, Last>, 4>(params, [a.ptr, b.ptr, c.ptr, d.ptr], count);
            }
            [a, b, c, d, e, f, g, h] if FUSES => {
                let terms = [a.ptr, b.ptr, c.ptr, d.ptr, e.ptr, f.ptr, g.ptr, h.ptr];
                to.each::<P, Balanced<O, Last>, 8>(params, terms, count);
            }
            _ => unreachable!("no loop for {} terms", terms.len()),
        }
    }
}

/// What becomes of one vector from each of `N` terms.
pub(super) trait Step<V, const N: usize> {
    /// # Safety
    /// The processor has the instruction set of `V`.
    unsafe fn apply(terms: [V; N], params: Params) -> V;
}

/// The balanced tree, with `Last` at its root.
struct Balanced<O, Last>(PhantomData<(O, Last)>);

macro_rules! balanced {
    ($n:literal, [$($term:ident)*], $params:ident => $left:expr, $right:expr) => {
        impl<V: Copy, O: Op<V>, Last: Op<V>> Step<V, $n> for Balanced<O, Last> {
            #[inline(always)]
            unsafe fn apply([$($term),*]: [V; $n], $params: Params) -> V {
                // SAFETY: the caller's promise.
                unsafe { Last::apply($left, $right, $params) }
            }
        }
    };
}

balanced!(2, [a b], p => a, b);
balanced!(4, [a b c d], p => O::apply(a, b, p), O::apply(c, d, p));
balanced!(8, [a b c d e f g h], p =>
    O::apply(O::apply(a, b, p), O::apply(c, d, p), p),
    O::apply(O::apply(e, f, p), O::apply(g, h, p), p));

/// Does nothing, divides an average, or multiplies by the factor.
struct Keep;
struct Divide;
struct Scale;

impl<V> Step<V, 1> for Keep {
    #[inline(always)]
    unsafe fn apply([v]: [V; 1], _: Params) -> V {
        v
    }
}

impl<V: Numeric> Step<V, 1> for Divide {
    #[inline(always)]
    unsafe fn apply([v]: [V; 1], params: Params) -> V {
        // SAFETY: the caller's promise.
        unsafe { v.divide(params.world_size) }
    }
}

impl<V: Numeric> Step<V, 1> for Scale {
    #[inline(always)]
    unsafe fn apply([v]: [V; 1], params: Params) -> V {
        // SAFETY: the caller's promise.
        unsafe { v.scale(params.factor) }
    }
}

/// Bytes of one element.
#[inline(always)]
const fn width<P: Pack>(wide: bool) -> usize {
    if P::MIXED && wide { P::WIDE } else { P::SIZE }
}

/// Whether term `i` is wide.
#[inline(always)]
const fn is_wide(wide: u8, i: usize) -> bool {
    wide >> i & 1 == 1
}

/// `dst[i] = S([terms[0][i], …])`, pack by pack; what remains goes through a padded pack on the stack. Bit i of
/// `WIDE`: term i is wide.
///
/// There are no closures in here, nor in the packs: they would be functions without the instruction set's
/// features, into which its instructions are not inlined.
///
/// # Safety
/// See [`Functions`].
#[inline(always)]
unsafe fn each<P, S, const N: usize, const WIDE: u8, const WIDE_OUT: bool>(
    params: Params,
    mut terms: [*const u8; N],
    mut dst: *mut u8,
    count: usize,
) where
    P: Pack,
    S: Step<P::Vector, N>,
{
    let lanes = const { P::LANES * P::VECTORS };
    const { assert!(P::LANES * P::VECTORS * P::WIDE <= PACK) }
    let rest = count % lanes;
    let mut remaining = count / lanes;
    let mut padded = MaybeUninit::<[[u8; PACK]; N]>::uninit();
    let mut out = MaybeUninit::<[u8; PACK]>::uninit();
    let mut end: *mut u8 = std::ptr::null_mut(); // where the rest goes, once the padded packs are being worked on
    loop {
        while remaining > 0 {
            // SAFETY: a whole pack remains of each term, and in `dst`.
            unsafe { one::<P, S, N, WIDE, WIDE_OUT>(params, &terms, dst) };
            for i in 0..N {
                terms[i] = terms[i].wrapping_add(lanes * width::<P>(is_wide(WIDE, i)));
            }
            dst = dst.wrapping_add(lanes * width::<P>(WIDE_OUT));
            remaining -= 1;
        }
        if rest == 0 {
            return;
        }
        if !end.is_null() {
            // SAFETY: `rest` elements are left there, fewer than a pack.
            unsafe { std::ptr::copy_nonoverlapping(out.as_ptr().cast(), end, rest * width::<P>(WIDE_OUT)) };
            return;
        }
        padded.write([[0; PACK]; N]);
        for i in 0..N {
            let (bytes, pad) =
                (rest * width::<P>(is_wide(WIDE, i)), padded.as_mut_ptr().cast::<[u8; PACK]>());
            // SAFETY: `rest` elements remain, fewer than a pack; there are N padded packs.
            unsafe {
                let pad: *mut u8 = pad.add(i).cast();
                std::ptr::copy_nonoverlapping(terms[i], pad, bytes);
                terms[i] = pad;
            }
        }
        (end, dst, remaining) = (dst, out.as_mut_ptr().cast(), 1);
    }
}

/// [`each`] of terms that are not wide, into all `places`, past the caches. A pack is stored everywhere while it is in registers.
///
/// # Safety
/// See [`Functions`].
#[inline(always)]
unsafe fn each_to_all<P, S, T, const N: usize>(
    params: Params,
    mut terms: [*const u8; N],
    places: Places<'_>,
    count: usize,
) where
    P: Pack,
    S: Step<P::Vector, N>,
    T: Stream,
{
    let lanes = const { P::LANES * P::VECTORS };
    let bytes = const { P::LANES * P::VECTORS * P::SIZE };
    const { assert!((P::LANES * P::VECTORS * P::SIZE).is_multiple_of(T::REGISTER)) }
    let mut out = MaybeUninit::<[u8; PACK]>::uninit();
    let out: *mut u8 = out.as_mut_ptr().cast();
    let mut done = 0;
    for _ in 0..count / lanes {
        // SAFETY: a whole pack remains of each term, and in all places.
        unsafe {
            one::<P, S, N, 0, false>(params, &terms, out);
            T::store(out, places.own.ptr.wrapping_add(done), bytes);
            for other in places.others(done) {
                T::store(out, other, bytes);
            }
        }
        for i in 0..N {
            terms[i] = terms[i].wrapping_add(bytes);
        }
        done += bytes;
    }
    let rest = count % lanes;
    if rest == 0 {
        return;
    }
    // SAFETY: `rest` elements remain, fewer than a pack.
    unsafe {
        each::<P, S, N, 0, false>(params, terms, out, rest);
        std::ptr::copy_nonoverlapping(out, places.own.ptr.wrapping_add(done), rest * P::SIZE);
        for other in places.others(done) {
            std::ptr::copy_nonoverlapping(out, other, rest * P::SIZE);
        }
    }
}

/// One pack of [`each`]: everything is read before anything is written, so `dst` may be a term.
#[inline(always)]
unsafe fn one<P, S, const N: usize, const WIDE: u8, const WIDE_OUT: bool>(
    params: Params,
    terms: &[*const u8; N],
    dst: *mut u8,
) where
    P: Pack,
    S: Step<P::Vector, N>,
{
    // SAFETY: the caller has a whole pack at each pointer.
    unsafe {
        for i in 0..N {
            P::ahead(terms[i]);
        }
        let mut pack = P::repeat(vector::<P, S, N, WIDE>(params, terms, 0));
        for i in 1..P::VECTORS {
            pack.as_mut()[i] = vector::<P, S, N, WIDE>(params, terms, i);
        }
        if P::MIXED && WIDE_OUT { P::store_wide(dst, pack) } else { P::store(dst, pack) }
    }
}

/// What becomes of vector `at` of the packs. One after the other, so that a tree of many terms finds room in the
/// registers.
#[inline(always)]
unsafe fn vector<P, S, const N: usize, const WIDE: u8>(
    params: Params,
    terms: &[*const u8; N],
    at: usize,
) -> P::Vector
where
    P: Pack,
    S: Step<P::Vector, N>,
{
    // SAFETY: the caller has a whole pack at each pointer.
    unsafe {
        let mut vectors = [load::<P>(terms[0], is_wide(WIDE, 0), at); N];
        for i in 1..N {
            vectors[i] = load::<P>(terms[i], is_wide(WIDE, i), at);
        }
        S::apply(vectors, params)
    }
}

#[inline(always)]
unsafe fn load<P: Pack>(src: *const u8, wide: bool, at: usize) -> P::Vector {
    let src = src.wrapping_add(at * P::LANES * width::<P>(wide));
    // SAFETY: the caller's promise.
    unsafe { if P::MIXED && wide { P::load_wide(src) } else { P::load(src) } }
}

/// Bytes of the longest pack.
pub(super) const PACK: usize = 256;

/// See [`Functions::binary`].
///
/// # Safety
/// See [`Functions`].
#[inline(always)]
pub(super) unsafe fn binary<P, O, const DIVIDES: bool>(
    params: Params,
    terms: [Source; 2],
    dst: Destination,
    n: usize,
) where
    P: Pack<Vector: Numeric>,
    O: Op<P::Vector>,
{
    // SAFETY: the caller's promise.
    unsafe {
        if DIVIDES && dst.finish {
            binary_then::<P, ThenDivide<O>>(params, terms, dst, n);
        } else {
            binary_then::<P, O>(params, terms, dst, n);
        }
    }
}

#[inline(always)]
unsafe fn binary_then<P: Pack, O: Op<P::Vector>>(p: Params, [a, b]: [Source; 2], dst: Destination, n: usize) {
    let (terms, d) = ([a.ptr, b.ptr], dst.ptr);
    // SAFETY: the caller's promise.
    unsafe {
        match (P::MIXED && a.wide, P::MIXED && b.wide, P::MIXED && dst.wide) {
            (false, false, false) => each::<P, Balanced<O, O>, 2, 0b00, false>(p, terms, d, n),
            (false, false, true) => each::<P, Balanced<O, O>, 2, 0b00, true>(p, terms, d, n),
            (true, false, false) => each::<P, Balanced<O, O>, 2, 0b01, false>(p, terms, d, n),
            (true, false, true) => each::<P, Balanced<O, O>, 2, 0b01, true>(p, terms, d, n),
            (false, true, false) => each::<P, Balanced<O, O>, 2, 0b10, false>(p, terms, d, n),
            (false, true, true) => each::<P, Balanced<O, O>, 2, 0b10, true>(p, terms, d, n),
            (true, true, false) => each::<P, Balanced<O, O>, 2, 0b11, false>(p, terms, d, n),
            (true, true, true) => each::<P, Balanced<O, O>, 2, 0b11, true>(p, terms, d, n),
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
            Unary::Convert => convert::<P, Keep>(params, src, dst, n),
            Unary::Divide => convert::<P, Divide>(params, src, dst, n),
            Unary::Scale => each::<P, Scale, 1, 0, false>(params, [src.ptr], dst.ptr, n),
        }
    }
}

#[inline(always)]
unsafe fn convert<P: Pack, S: Step<P::Vector, 1>>(params: Params, src: Source, dst: Destination, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match (P::MIXED && src.wide, P::MIXED && dst.wide) {
            (false, false) => each::<P, S, 1, 0, false>(params, [src.ptr], dst.ptr, n),
            (false, true) => each::<P, S, 1, 0, true>(params, [src.ptr], dst.ptr, n),
            (true, false) => each::<P, S, 1, 1, false>(params, [src.ptr], dst.ptr, n),
            (true, true) => each::<P, S, 1, 1, true>(params, [src.ptr], dst.ptr, n),
        }
    }
}
