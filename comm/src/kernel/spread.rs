//! Results that go to several places, or past the caches, which would not keep them: a line that is to be overwritten
//! whole need not be read first.

use super::{Destination, Kernel, Places, Source};
use crate::fold::Fold;

/// Bytes of a result that are made in the first-level cache before they are stored past it.
const BLOCK: usize = 4 << 10;
/// Results that the caches keep are made in pieces of so many bytes, which stay in the first-level cache until all places
/// have them. Stored pack by pack everywhere they take 1.2 to 2.5 times as long, in pieces of 2 KiB 1.1 times (2 ranks,
/// 256 KiB to 4 MiB, Zen 4).
const PIECE: usize = 8 << 10;
/// What is stored past the caches begins at multiples of this.
pub(super) const ALIGNMENT: usize = 32;

/// A block in the first-level cache.
#[repr(align(64))]
struct Block([u8; BLOCK]);

/// Copies `len` bytes past the caches, as far as they are aligned.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes; they do not overlap.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let head = to.align_offset(ALIGNMENT).min(len);
    let whole = (len - head) / ALIGNMENT * ALIGNMENT;
    // SAFETY: the caller's promise; the three parts make up `len`.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        lines(from.add(head), to.add(head), whole);
        let done = head + whole;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done);
    }
    finish();
}

/// [`Kernel::fold`] into all places; past the caches if `past`.
///
/// # Safety
/// As for [`Kernel::fold`]; the others have room as well and overlap terms only as the own place may. `terms` point
/// somewhere behind their first elements afterwards.
pub unsafe fn fold(
    kernel: &Kernel,
    fold: &Fold,
    terms: &mut [Source],
    places: Places<'_>,
    count: usize,
    past: bool,
) {
    let misaligned = |to: *mut u8| to.addr() % ALIGNMENT;
    let own = misaligned(places.own.ptr);
    let alike = places.others(0).all(|other| misaligned(other) == own);
    let width = kernel.width(places.own.wide);
    // SAFETY: the caller's promise, for each of the parts.
    unsafe {
        if !past {
            in_pieces(kernel, fold, terms, places, count);
        } else if alike && own.is_multiple_of(width) && kernel.in_one_pass(fold, terms, places.own) {
            let head = (places.own.ptr.align_offset(ALIGNMENT) / width).min(count);
            in_pieces(kernel, fold, terms, places, head);
            kernel.spread(terms, places.behind(head * width), count - head);
            finish();
        } else {
            past_the_caches(kernel, fold, terms, places, count);
        }
    }
}

/// `terms` without their first `n` elements.
fn skip(kernel: &Kernel, terms: &mut [Source], n: usize) {
    for term in terms {
        term.ptr = term.ptr.wrapping_add(n * kernel.width(term.wide));
    }
}

/// See [`fold()`].
///
/// # Safety
/// See there.
unsafe fn in_pieces(kernel: &Kernel, fold: &Fold, terms: &mut [Source], places: Places<'_>, count: usize) {
    let width = kernel.width(places.own.wide);
    let piece = PIECE / width;
    for start in (0..count).step_by(piece) {
        let (n, at) = (piece.min(count - start), start * width);
        let to = places.behind(at).own;
        // SAFETY: the caller's promise.
        unsafe {
            kernel.fold(fold, terms, to, n);
            for other in places.others(at) {
                std::ptr::copy_nonoverlapping(to.ptr, other, n * width);
            }
        }
        skip(kernel, terms, n);
    }
}

/// See [`fold()`].
///
/// # Safety
/// See there.
unsafe fn past_the_caches(
    kernel: &Kernel,
    fold: &Fold,
    terms: &mut [Source],
    places: Places<'_>,
    count: usize,
) {
    let width = kernel.width(places.own.wide);
    let mut block = Block([0; BLOCK]);
    // Blocks end where the destination is aligned.
    let mut room = BLOCK - places.own.ptr.addr() % ALIGNMENT;
    let mut done = 0;
    while done < count {
        let n = (room / width).min(count - done);
        let aside = Destination { ptr: block.0.as_mut_ptr(), ..places.own };
        // SAFETY: `n` elements fit into the block; the rest is the caller's promise.
        unsafe {
            kernel.fold(fold, terms, aside, n);
            let (at, bytes) = (done * width, n * width);
            for to in std::iter::once(places.behind(at).own.ptr).chain(places.others(at)) {
                if to.addr().is_multiple_of(ALIGNMENT) && bytes.is_multiple_of(ALIGNMENT) {
                    lines(aside.ptr, to, bytes);
                } else {
                    std::ptr::copy_nonoverlapping(aside.ptr, to, bytes);
                }
            }
        }
        skip(kernel, terms, n);
        (done, room) = (done + n, BLOCK);
    }
    finish();
}

/// Copies whole lines past the caches.
///
/// # Safety
/// As for [`copy`]; `to` and `len` are multiples of [`ALIGNMENT`].
#[cfg(target_arch = "x86_64")]
unsafe fn lines(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};
    /// # Safety
    /// As for [`lines`], on a processor with AVX.
    #[target_feature(enable = "avx")]
    unsafe fn with_avx(from: *const u8, to: *mut u8, len: usize) {
        for at in (0..len).step_by(ALIGNMENT) {
            // SAFETY: inside `len`; `to` is aligned.
            unsafe {
                let line = _mm256_loadu_si256(from.add(at).cast());
                _mm256_stream_si256(to.add(at).cast::<__m256i>(), line);
            }
        }
    }
    // SAFETY: the caller's promise, and the processor was asked.
    unsafe {
        match std::arch::is_x86_feature_detected!("avx") {
            true => with_avx(from, to, len),
            false => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// # Safety
/// As for [`copy`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn lines(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// Such stores are in no order with those that follow, by which others are told of them: now they are.
fn finish() {
    // SAFETY: every processor of this architecture has it.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::{DataType, ReduceOp};

    #[test]
    fn copies_are_exact_wherever_they_begin() {
        let from: Vec<u8> = (0..20_000u32).map(|i| (i * 7 % 251) as u8).collect();
        for (start, len) in [(0, 0), (1, 5), (0, 64), (3, 31), (32, 4096), (7, 10_001), (31, 19_000)] {
            let mut to = vec![0xaa_u8; 20_100];
            // SAFETY: both have room.
            unsafe { copy(from.as_ptr().add(start / 2), to.as_mut_ptr().add(start), len) };
            assert_eq!(to[start..start + len], from[start / 2..start / 2 + len]);
            assert!(to[..start].iter().chain(&to[start + len..]).all(|&b| b == 0xaa), "{start} {len}");
        }
    }

    /// Folds of two terms, and of three, which take more than one pass; to places that are aligned alike and not.
    #[test]
    fn folds_are_those_of_the_kernel() {
        for (data_type, wide) in [
            (DataType::F32, false),
            (DataType::BF16, false),
            (DataType::BF16, true),
            (DataType::F16, false),
            (DataType::F8E4M3, false),
            (DataType::U8, false),
        ] {
            let bytes: Vec<u8> =
                (0..60_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 25) as u8).collect();
            for (ranks, past, apart) in
                (2..=8).flat_map(|n| [(n, false, 0), (n, false, 13), (n, true, 0), (n, true, 13)])
            {
                let kernel = Kernel::new(data_type, ReduceOp::Avg, ranks).unwrap();
                let (fold_of, size) = (Fold::balanced(ranks), kernel.width(wide));
                let terms: Vec<_> =
                    (0..ranks).map(|r| Source { ptr: bytes[r * 8..].as_ptr(), wide: false }).collect();
                for (start, count) in [(0, 0), (0, 1), (4, 1000), (32, 2048), (8, 9_999), (2 * size, 14_000)]
                {
                    let mut expected = vec![0u8; 60_100];
                    let mut spread = expected.clone();
                    let mut other = vec![0u8; 60_200];
                    let at = |buffer: &mut Vec<u8>| Destination {
                        ptr: buffer[start..].as_mut_ptr(),
                        wide,
                        finish: true,
                    };
                    let to = at(&mut spread);
                    let place = apart + (32 + to.ptr.addr() % 32 - (other.as_ptr().addr() + start) % 32) % 32;
                    // SAFETY: all have room for `count` elements.
                    unsafe {
                        kernel.fold(&fold_of, &terms, at(&mut expected), count);
                        let others = [other.as_mut_ptr().add(place)];
                        let places = Places { own: to, others: &others, behind: start };
                        fold(&kernel, &fold_of, &mut terms.clone(), places, count, past);
                    }
                    assert!(expected == spread, "{data_type:?} wide {wide} from {start}, {count}");
                    assert!(expected == other[place..][..expected.len()], "{data_type:?}, {past} {apart}");
                }
            }
        }
    }
}
