//! Loops over f32 with the widest vectors of the processor, and stores that go past the caches.
#![allow(unsafe_code)] // vector instructions, and stores through pointers

/// Elements that are worked on at a time; the buffers' shares are cut at multiples of it.
pub const BLOCK: usize = 64;
const ALIGNED: usize = 64;

/// f32 memory that starts on a cache line, all zero.
pub struct Memory {
    words: Vec<Line>,
    length: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

impl Memory {
    /// `length` elements, every page of them present.
    pub fn new(length: usize) -> Memory {
        // Written, not fresh from the system: pages that nobody wrote are all the same one.
        let mut words = vec![Line([1.0; 16]); length.div_ceil(16)];
        words.fill(Line([0.0; 16]));
        Memory { words, length }
    }

    /// All of it.
    pub fn as_slice(&self) -> &[f32] {
        // SAFETY: `words` is that many f32 without gaps, as `repr(C)` and the size of the array leave none.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.length) }
    }

    /// All of it.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.length) }
    }
}

/// Writes the element-wise sum of `inputs` into every one of `outputs`; all are equally long. `streaming`: whole
/// blocks are stored past the caches.
pub fn sum(inputs: &[&[f32]], outputs: &mut [&mut [f32]], streaming: bool) {
    let length = outputs.first().map_or(0, |o| o.len());
    assert!(inputs.iter().all(|i| i.len() == length) && outputs.iter().all(|o| o.len() == length));
    #[cfg(target_arch = "x86_64")]
    {
        let aligned = outputs.iter().all(|o| o.as_ptr().addr().is_multiple_of(ALIGNED));
        if std::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512; what is streamed to is aligned.
            return unsafe { sum_avx512(inputs, outputs, streaming && aligned) };
        }
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2; what is streamed to is aligned.
            return unsafe { sum_avx2(inputs, outputs, streaming && aligned) };
        }
    }
    blocks(inputs, outputs, |out, block| out.copy_from_slice(block));
}

/// # Safety
/// Needs AVX-512F, and with `streaming` outputs that are [`ALIGNED`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2")]
unsafe fn sum_avx512(inputs: &[&[f32]], outputs: &mut [&mut [f32]], streaming: bool) {
    use std::arch::x86_64::{_mm_sfence, _mm512_loadu_ps, _mm512_stream_ps};
    if !streaming {
        return blocks(inputs, outputs, |out, block| out.copy_from_slice(block));
    }
    blocks(inputs, outputs, |out, block| {
        for i in (0..BLOCK).step_by(16) {
            // SAFETY: 16 elements from `i` on are within both blocks; blocks begin aligned.
            unsafe { _mm512_stream_ps(out.as_mut_ptr().add(i), _mm512_loadu_ps(block.as_ptr().add(i))) };
        }
    });
    _mm_sfence();
}

/// # Safety
/// Needs AVX2, and with `streaming` outputs that are [`ALIGNED`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sum_avx2(inputs: &[&[f32]], outputs: &mut [&mut [f32]], streaming: bool) {
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_ps, _mm256_stream_ps};
    if !streaming {
        return blocks(inputs, outputs, |out, block| out.copy_from_slice(block));
    }
    blocks(inputs, outputs, |out, block| {
        for i in (0..BLOCK).step_by(8) {
            // SAFETY: 8 elements from `i` on are within both blocks; blocks begin aligned.
            unsafe { _mm256_stream_ps(out.as_mut_ptr().add(i), _mm256_loadu_ps(block.as_ptr().add(i))) };
        }
    });
    _mm_sfence();
}

/// Block by block, so that the sum of a block stays in registers until every output has it.
#[inline(always)]
fn blocks(inputs: &[&[f32]], outputs: &mut [&mut [f32]], store: impl Fn(&mut [f32], &[f32; BLOCK])) {
    let length = outputs.first().map_or(0, |o| o.len());
    let whole = length - length % BLOCK;
    for at in (0..whole).step_by(BLOCK) {
        let mut sum = [0f32; BLOCK];
        if let Some((first, rest)) = inputs.split_first() {
            sum.copy_from_slice(&first[at..at + BLOCK]);
            for input in rest {
                sum.iter_mut().zip(&input[at..at + BLOCK]).for_each(|(s, x)| *s += x);
            }
        }
        for output in outputs.iter_mut() {
            store(&mut output[at..at + BLOCK], &sum);
        }
    }
    for at in whole..length {
        let sum: f32 = inputs.iter().map(|input| input[at]).sum();
        outputs.iter_mut().for_each(|output| output[at] = sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_to_store_give_the_sum() {
        for length in [0, 1, 63, 64, 65, 1000] {
            let mut inputs = [Memory::new(length), Memory::new(length), Memory::new(length)];
            for (rank, input) in inputs.iter_mut().enumerate() {
                input.as_mut_slice().iter_mut().enumerate().for_each(|(i, x)| *x = (i * (rank + 1)) as f32);
            }
            for streaming in [false, true] {
                let mut outputs = [Memory::new(length), Memory::new(length)];
                let from: Vec<_> = inputs.iter().map(Memory::as_slice).collect();
                sum(&from, &mut outputs.each_mut().map(Memory::as_mut_slice), streaming);
                for output in &outputs {
                    assert!(output.as_slice().iter().enumerate().all(|(i, x)| *x == (6 * i) as f32));
                }
            }
        }
    }
}
