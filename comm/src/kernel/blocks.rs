//! Any fold, for a block of elements at a time.
//!
//! Terms are read where they are; intermediate results stay in the first-level cache: each place of the fold's stack
//! has a wide and a narrow buffer, and a result that is rounded next is stored narrow.

use std::mem::MaybeUninit;

use super::evaluate::{PACK, Unary};
use super::{Destination, Kernel, MAX_DEPTH, Source};
use crate::fold::{Fold, FoldOp};
use crate::number::ReduceOp;

/// Bytes of all buffers of a block together: with the terms they fit the first-level cache.
const SCRATCH: usize = 16 << 10;

/// Bytes of one buffer at most.
const BLOCK: usize = 2 << 10;

const _: () = assert!(SCRATCH / (2 * MAX_DEPTH) >= PACK, "the deepest fold has room for whole packs");

/// Evaluates `fold`.
///
/// # Safety
/// As for [`Kernel::fold`].
pub(super) unsafe fn fold(kernel: &Kernel, fold: &Fold, terms: &[Source], dst: Destination, count: usize) {
    let (wide_size, narrow_size) = (kernel.width(true), kernel.width(false));
    let mut scratch = MaybeUninit::<[u8; SCRATCH]>::uninit();
    let scratch: *mut u8 = scratch.as_mut_ptr().cast();
    let block = match fold.ops() {
        [FoldOp::Term, FoldOp::Term, FoldOp::Combine] => count, // no intermediate result
        _ => {
            let bytes = (SCRATCH / (2 * fold.depth())).min(BLOCK) / PACK * PACK;
            bytes / wide_size
        }
    };
    let buffer = |height: usize, wide: bool| {
        let (stride, first) = (block * wide_size, if wide { 0 } else { fold.depth() });
        Destination { ptr: scratch.wrapping_add((first + height) * stride), wide, finish: false }
    };
    let mut stack = [Source { ptr: std::ptr::null(), wide: false }; MAX_DEPTH];
    let size = |wide| if wide { wide_size } else { narrow_size };
    let mut start = 0;
    while start < count {
        let n = block.min(count - start);
        let out = Destination { ptr: dst.ptr.wrapping_add(start * size(dst.wide)), ..dst };
        let (mut height, mut next, mut stored) = (0, 0, false);
        for (i, op) in fold.ops().iter().enumerate() {
            match op {
                FoldOp::Term => {
                    let term = terms[next];
                    stack[height] = Source { ptr: term.ptr.wrapping_add(start * size(term.wide)), ..term };
                    (height, next) = (height + 1, next + 1);
                }
                FoldOp::Combine => {
                    height -= 1;
                    stored = i + 1 == fold.ops().len();
                    let rounds = fold.ops().get(i + 1) == Some(&FoldOp::Round);
                    let to = if stored { out } else { buffer(height - 1, !rounds) };
                    let operands = [stack[height - 1], stack[height]];
                    // SAFETY: operands are terms, by the caller's promise, or buffers of `block` ≥ n elements that
                    // were written; `to` is one operand's memory with the same width, or disjoint from both.
                    unsafe { (kernel.functions.binary)(kernel.params, operands, to, n) };
                    stack[height - 1] = Source { ptr: to.ptr, wide: to.wide };
                }
                FoldOp::Round => {
                    let top = &mut stack[height - 1];
                    if top.wide && wide_size != narrow_size {
                        let to = buffer(height - 1, false);
                        // SAFETY: as above.
                        unsafe { (kernel.functions.unary)(kernel.params, Unary::Convert, *top, to, n) };
                        *top = Source { ptr: to.ptr, wide: false };
                    }
                }
            }
        }
        if !stored {
            let divides = dst.finish && kernel.op == ReduceOp::Avg;
            let op = if divides { Unary::Divide } else { Unary::Convert };
            // SAFETY: as above.
            unsafe { (kernel.functions.unary)(kernel.params, op, stack[0], out, n) };
        }
        start += n;
    }
}
