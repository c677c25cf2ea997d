//! Copies and sums of memory.

use std::hint::black_box;

use super::kernels::{self, Memory};
use super::threads::timed;

/// µs for `memcpy` of `bytes` by each of `threads` threads at once, on buffers of their own.
pub fn copy(bytes: usize, threads: usize) -> f64 {
    let length = bytes / size_of::<f32>();
    let mut buffers: Vec<_> = (0..threads).map(|_| (Memory::new(length), Memory::new(length))).collect();
    let works = buffers.iter_mut().map(|(from, to)| {
        let (from, to) = (from.as_slice(), to.as_mut_slice());
        move || black_box(&mut *to).copy_from_slice(black_box(from))
    });
    timed(works.collect(), false)
}

/// µs for `c = a + b` of `bytes` by one thread; ordinary or streaming stores, whichever is faster.
pub fn sum(bytes: usize) -> f64 {
    let length = bytes / size_of::<f32>();
    let (a, b, mut c) = (Memory::new(length), Memory::new(length), Memory::new(length));
    let ways = [false, true].map(|streaming| {
        let work = || {
            let inputs = [black_box(a.as_slice()), black_box(b.as_slice())];
            kernels::sum(&inputs, &mut [black_box(c.as_mut_slice())], streaming);
        };
        timed(vec![work], false)
    });
    ways[0].min(ways[1])
}
