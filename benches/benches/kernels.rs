//! Reduction loops beside `memcpy`: GB/s of one buffer (the result), one thread, in cache and beyond.
//!
//! `cargo bench -p nd-benches --bench kernels`
#![allow(unsafe_code)] // kernels work on raw memory

use std::hint::black_box;
use std::time::{Duration, Instant};

use nd_comm::fold::Fold;
use nd_comm::kernel::{Destination, Kernel, Source};
use nd_comm::number::{DataType, ReduceOp};

fn main() {
    println!("# GB/s (1e9) of the result, one thread, best of several runs");
    println!(
        "{:<10} {:<6} {:<12} {:>9} {:>8} {:>8} {:>8} {:>9}",
        "type", "op", "fold", "bytes", "portable", "here", "memcpy", "/memcpy"
    );
    for bytes in [32 << 10, 64 << 20] {
        for (op, types) in [
            (ReduceOp::Sum, &DataType::ALL[..]),
            (ReduceOp::Max, &[DataType::F32, DataType::BF16, DataType::F64, DataType::I32][..]),
            (ReduceOp::Avg, &[DataType::F32, DataType::BF16, DataType::I32, DataType::I64]),
        ] {
            for &data_type in types {
                for (name, fold) in [
                    ("2", Fold::balanced(2)),
                    ("4", Fold::balanced(4)),
                    ("5", Fold::balanced(5)),
                    ("8", Fold::balanced(8)),
                    ("2 hosts x 2", Fold::canonical(&[2, 2])),
                ] {
                    if bytes > 1 << 20 && (name != "2" && name != "4" || op != ReduceOp::Sum) {
                        continue;
                    }
                    row(data_type, op, name, &fold, bytes);
                }
            }
        }
    }
}

fn row(data_type: DataType, op: ReduceOp, name: &str, fold: &Fold, bytes: usize) {
    let count = bytes / data_type.size();
    // Buffers start at different offsets within a page: at the same one, stores delay loads (4K aliasing).
    let stagger = |i: usize| 320 * i;
    let memory: Vec<Vec<u8>> = (0..fold.terms()).map(|i| numbers(data_type, bytes + stagger(i), i)).collect();
    let sources: Vec<_> = memory
        .iter()
        .enumerate()
        .map(|(i, m)| Source { ptr: m[stagger(i)..].as_ptr(), wide: false })
        .collect();
    let mut out = vec![1u8; bytes + stagger(fold.terms())];
    let dst = Destination { ptr: out[stagger(fold.terms())..].as_mut_ptr(), wide: false, finish: true };
    let [portable, here] = [Kernel::portable, Kernel::new].map(|make| {
        let kernel = make(data_type, op, fold.terms()).expect("a supported operation");
        // SAFETY: all memory has `count` elements; the result is separate.
        gigabytes_per_second(bytes, || unsafe { kernel.fold(fold, black_box(&sources), dst, count) })
    });
    // SAFETY: both are `bytes` long and separate.
    let copied = gigabytes_per_second(bytes, || unsafe {
        std::ptr::copy_nonoverlapping(black_box(sources[0].ptr), black_box(dst.ptr), bytes)
    });
    println!(
        "{:<10} {:<6} {name:<12} {bytes:>9} {portable:>8.1} {here:>8.1} {copied:>8.1} {:>9.2}",
        data_type.name(),
        op.name(),
        here / copied
    );
}

/// Numbers around 1, so that no float is special.
fn numbers(data_type: DataType, bytes: usize, seed: usize) -> Vec<u8> {
    let size = data_type.size();
    let one: u64 = match data_type {
        DataType::F16 => 0x3c00,
        DataType::BF16 => 0x3f80,
        DataType::F32 => 0x3f80_0000,
        DataType::F64 => 0x3ff0 << 48,
        DataType::F8E4M3 => 0x38,
        DataType::F8E5M2 => 0x3c,
        _ => 1,
    };
    (0..bytes / size)
        .flat_map(|i| (one + ((i + seed) % 4) as u64).to_le_bytes().into_iter().take(size))
        .collect()
}

fn gigabytes_per_second(bytes: usize, mut f: impl FnMut()) -> f64 {
    let calls = (256 << 10) / bytes + 1;
    f();
    let (start, mut best) = (Instant::now(), Duration::MAX);
    while start.elapsed() < Duration::from_millis(10) {
        let from = Instant::now();
        (0..calls).for_each(|_| f());
        best = best.min(from.elapsed());
    }
    (bytes * calls) as f64 / best.as_nanos() as f64
}
