//! A few elements in registers: the interface to one instruction set, and its portable form.

use std::marker::PhantomData;

use half::{bf16, f16};

use crate::number::{Element, F8E4M3, F8E5M2, bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};

/// How elements of one type get into registers and back, on one instruction set.
///
/// # Safety
/// All functions: the processor has the instruction set, and as many elements of the width in question as are meant
/// may be read or written at the pointer.
pub(super) trait Pack: 'static {
    /// As many values of the accumulator type as arithmetic is done on at once.
    type Vector: Copy;
    /// The vectors that are stored at once: more than one, where a search for NaN or the like is spread over them.
    type Pack: Copy + AsRef<[Self::Vector]> + AsMut<[Self::Vector]>;
    /// How many elements are in a vector.
    const LANES: usize;
    /// How many vectors are in a pack.
    const VECTORS: usize = size_of::<Self::Pack>() / size_of::<Self::Vector>();
    /// Bytes of an element.
    const SIZE: usize;
    /// Bytes of an accumulator.
    const WIDE: usize;
    /// Whether the accumulator is another type.
    const MIXED: bool = Self::SIZE != Self::WIDE;

    /// Asks memory for what comes some packs after `src`, for types of which the arithmetic takes about as long as
    /// memory does. Nothing need be there.
    #[inline(always)]
    unsafe fn ahead(_src: *const u8) {}
    /// A pack of one vector, again and again.
    fn repeat(v: Self::Vector) -> Self::Pack;
    /// Reads a vector of elements.
    unsafe fn load(src: *const u8) -> Self::Vector;
    /// Rounds and writes a pack of elements.
    unsafe fn store(dst: *mut u8, v: Self::Pack);
    /// Reads a vector of accumulators.
    unsafe fn load_wide(src: *const u8) -> Self::Vector;
    /// Writes a pack of accumulators.
    unsafe fn store_wide(dst: *mut u8, v: Self::Pack);
}

/// The pack of `$n` vectors.
macro_rules! vectors {
    ($n:expr) => {
        type Pack = [Self::Vector; $n];

        #[inline(always)]
        fn repeat(v: Self::Vector) -> Self::Pack {
            [v; $n]
        }
    };
}
pub(super) use vectors;

/// Arithmetic on vectors, lane by lane.
///
/// # Safety
/// All functions: the processor has the instruction set.
pub(super) trait Numeric: Copy {
    unsafe fn add(self, b: Self) -> Self;
    /// The same; `one` is 1, for those who would multiply by it.
    #[inline(always)]
    unsafe fn add_product(self, b: Self, one: f32) -> Self {
        let _ = one;
        // SAFETY: the caller's promise.
        unsafe { self.add(b) }
    }
    unsafe fn multiply(self, b: Self) -> Self;
    unsafe fn min(self, b: Self) -> Self;
    unsafe fn max(self, b: Self) -> Self;
    unsafe fn divide(self, by: u64) -> Self;
    unsafe fn scale(self, by: f64) -> Self;
}

/// Bitwise operations on vectors.
///
/// # Safety
/// As for [`Numeric`].
pub(super) trait Bits: Copy {
    unsafe fn and(self, b: Self) -> Self;
    unsafe fn or(self, b: Self) -> Self;
    unsafe fn xor(self, b: Self) -> Self;
}

/// One accumulator.
pub(super) trait Scalar: Copy + Default + 'static {
    fn add(self, b: Self) -> Self;
    fn multiply(self, b: Self) -> Self;
    fn min(self, b: Self) -> Self;
    fn max(self, b: Self) -> Self;
    fn divide(self, by: u64) -> Self;
    fn scale(self, by: f64) -> Self;
    /// Replaces any NaN by the one NaN of the type.
    fn canonical(self) -> Self;
}

/// One integer.
pub(super) trait Integer: Scalar {
    fn and(self, b: Self) -> Self;
    fn or(self, b: Self) -> Self;
    fn xor(self, b: Self) -> Self;
}

macro_rules! integers {
    ($($t:ty => |$a:ident, $by:ident| $divide:expr;)*) => {$(
        impl Scalar for $t {
            #[inline(always)]
            fn add(self, b: $t) -> $t {
                self.wrapping_add(b)
            }
            #[inline(always)]
            fn multiply(self, b: $t) -> $t {
                self.wrapping_mul(b)
            }
            #[inline(always)]
            fn min(self, b: $t) -> $t {
                Ord::min(self, b)
            }
            #[inline(always)]
            fn max(self, b: $t) -> $t {
                Ord::max(self, b)
            }
            #[inline(always)]
            fn divide(self, $by: u64) -> $t {
                let $a = self;
                $divide as $t
            }
            #[inline(always)]
            fn scale(self, by: f64) -> $t {
                self.wrapping_mul(by as $t)
            }
            #[inline(always)]
            fn canonical(self) -> $t {
                self
            }
        }

        impl Integer for $t {
            #[inline(always)]
            fn and(self, b: $t) -> $t {
                self & b
            }
            #[inline(always)]
            fn or(self, b: $t) -> $t {
                self | b
            }
            #[inline(always)]
            fn xor(self, b: $t) -> $t {
                self ^ b
            }
        }
    )*};
}

// Up to 32 bits the quotient is exact by way of f64, which has vector instructions for it: a quotient a/b that is
// not whole is at least 1/b away from a whole number, while f64 near it is spaced by less than 2^-20 / b. (World
// sizes beyond 2^53 do not exist.)
integers! {
    i8 => |a, by| (f64::from(a) / by as f64) as i32;
    u8 => |a, by| (f64::from(a) / by as f64) as i32;
    i16 => |a, by| (f64::from(a) / by as f64) as i32;
    u16 => |a, by| (f64::from(a) / by as f64) as i32;
    i32 => |a, by| f64::from(a) / by as f64;
    u32 => |a, by| f64::from(a) / by as f64;
    i64 => |a, by| a.wrapping_div(by as i64);
    u64 => |a, by| a / by;
}

macro_rules! floats {
    ($($t:ident)*) => {$(
        impl Scalar for $t {
            #[inline(always)]
            fn add(self, b: $t) -> $t {
                self + b
            }
            #[inline(always)]
            fn multiply(self, b: $t) -> $t {
                self * b
            }
            // Both orders of the comparison differ only for zeros of unlike sign (and for NaN).
            #[inline(always)]
            fn min(self, b: $t) -> $t {
                let (x, y) = (if self < b { self } else { b }, if b < self { b } else { self });
                let least = $t::from_bits(x.to_bits() | y.to_bits());
                if self.is_nan() | b.is_nan() { $t::NAN } else { least }
            }
            #[inline(always)]
            fn max(self, b: $t) -> $t {
                let (x, y) = (if self > b { self } else { b }, if b > self { b } else { self });
                let greatest = $t::from_bits(x.to_bits() & y.to_bits());
                if self.is_nan() | b.is_nan() { $t::NAN } else { greatest }
            }
            #[inline(always)]
            fn divide(self, by: u64) -> $t {
                self / by as $t
            }
            #[inline(always)]
            fn scale(self, by: f64) -> $t {
                self * by as $t
            }
            #[inline(always)]
            fn canonical(self) -> $t {
                // Rust promises these bits for `NAN` on no platform, so they are spelled out.
                const BITS: [u64; 2] = [0x7fc0_0000, 0x7ff8_0000_0000_0000];
                if self.is_nan() { $t::from_bits(BITS[size_of::<$t>() / 8] as _) } else { self }
            }
        }
    )*};
}

floats! { f32 f64 }

/// How one element becomes an accumulator and back.
pub(super) trait Convert: Element {
    /// The accumulator.
    type Wide: Scalar;
    fn widen(self) -> Self::Wide;
    /// Rounds; any NaN becomes the one NaN of the type.
    fn narrow(wide: Self::Wide) -> Self;
}

macro_rules! same_accumulator {
    ($($t:ty)*) => {$(
        impl Convert for $t {
            type Wide = $t;
            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(wide: $t) -> $t {
                wide.canonical()
            }
        }
    )*};
}

same_accumulator! { i8 u8 i16 u16 i32 u32 i64 u64 f32 f64 }

macro_rules! small_floats {
    ($($t:ty: $x:ident => $widen:expr, $wide:ident => $narrow:expr;)*) => {$(
        impl Convert for $t {
            type Wide = f32;
            #[inline(always)]
            fn widen(self) -> f32 {
                let $x = self;
                $widen
            }
            #[inline(always)]
            fn narrow(wide: f32) -> $t {
                let $wide = wide.canonical();
                $narrow
            }
        }
    )*};
}

small_floats! {
    f16: x => f16_to_f32(x.to_bits()), y => f16::from_bits(f16_from_f32(y));
    bf16: x => bf16_to_f32(x.to_bits()), y => bf16::from_bits(bf16_from_f32(y));
    F8E4M3: x => x.to_f32(), y => {
        let rounded = F8E4M3::from_f32(y).0;
        F8E4M3(if rounded == 0xff { 0x7f } else { rounded })
    };
    F8E5M2: x => x.to_f32(), y => F8E5M2::from_f32(y);
}

/// Elements on plain arrays of `L` accumulators; what the compiler makes of them depends on the function they are
/// inlined into.
pub(super) struct Portable<E, const L: usize>(PhantomData<E>);

/// `L` accumulators.
#[derive(Clone, Copy)]
pub(super) struct Lanes<W, const L: usize>([W; L]);

impl<E: Convert, const L: usize> Pack for Portable<E, L> {
    type Vector = Lanes<E::Wide, L>;
    vectors!(1);
    const LANES: usize = L;
    const SIZE: usize = size_of::<E>();
    const WIDE: usize = size_of::<E::Wide>();

    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self::Vector {
        // SAFETY: L elements may be read.
        let elements = unsafe { src.cast::<[E; L]>().read_unaligned() };
        let mut out = [E::Wide::default(); L];
        for i in 0..L {
            out[i] = elements[i].widen();
        }
        Lanes(out)
    }

    #[inline(always)]
    unsafe fn store(dst: *mut u8, [v]: [Self::Vector; 1]) {
        let mut elements = [E::narrow(v.0[0]); L];
        for i in 1..L {
            elements[i] = E::narrow(v.0[i]);
        }
        // SAFETY: L elements may be written.
        unsafe { dst.cast::<[E; L]>().write_unaligned(elements) }
    }

    #[inline(always)]
    unsafe fn load_wide(src: *const u8) -> Self::Vector {
        // SAFETY: L accumulators may be read.
        Lanes(unsafe { src.cast::<[E::Wide; L]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store_wide(dst: *mut u8, [v]: [Self::Vector; 1]) {
        let mut out = v.0;
        for x in &mut out {
            *x = x.canonical();
        }
        // SAFETY: L accumulators may be written.
        unsafe { dst.cast::<[E::Wide; L]>().write_unaligned(out) }
    }
}

macro_rules! lanewise {
    ($trait:ident for $scalar:ident: $($binary:ident)* $(; $($unary:ident($by:ty))*)?) => {
        impl<W: $scalar, const L: usize> $trait for Lanes<W, L> {
            $(
                #[inline(always)]
                unsafe fn $binary(mut self, b: Self) -> Self {
                    for i in 0..L {
                        self.0[i] = self.0[i].$binary(b.0[i]);
                    }
                    self
                }
            )*
            $($(
                #[inline(always)]
                unsafe fn $unary(mut self, by: $by) -> Self {
                    for i in 0..L {
                        self.0[i] = self.0[i].$unary(by);
                    }
                    self
                }
            )*)?
        }
    };
}

lanewise!(Numeric for Scalar: add multiply min max; divide(u64) scale(f64));
lanewise!(Bits for Integer: and or xor);
