//! The C library's allocator, set for tensors. By itself glibc takes pages for every block of more than 32 MiB from the kernel
//! and gives them back when it is freed, and the end of its heap as well: a step that makes the same tensors as the one before
//! then has all their pages zeroed and mapped once more.
//!
//! Measured in turns, medians of five runs, one block with matrices of 38 MB on one rank: a quarter of the page faults and of
//! the time in the kernel, 45 tokens/s instead of 24; with jemalloc 27, with mimalloc 15, both as they come. The process's
//! peak is higher by what lies free between blocks: 1371 MiB instead of 1188 with two such blocks.
#![allow(unsafe_code)] // one call into the C library

/// Keeps memory that tensors have let go for those that come; to be called before the first.
#[cfg(target_env = "gnu")]
pub fn keep() {
    // From mallopt(3): no block has pages of its own (M_MMAP_THRESHOLD cannot be above 32 MiB), and no heap shrinks.
    for (parameter, value) in [(libc::M_MMAP_MAX, 0), (libc::M_TRIM_THRESHOLD, -1)] {
        // SAFETY: mallopt takes two numbers and changes nothing but how the allocator works from now on.
        let set = unsafe { libc::mallopt(parameter, value) };
        if set == 0 {
            tracing::debug!(parameter, value, "mallopt refused; large tensors take new memory in each step");
        }
    }
}

/// Other C libraries have no such settings.
#[cfg(not(target_env = "gnu"))]
pub fn keep() {}
