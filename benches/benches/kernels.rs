//! Reduction loops beside `memcpy`: GB/s of one buffer (the result), one thread, in cache and beyond.
//!
//! `cargo bench -p nd-benches --bench kernels`, or with words that a row has to have: `-- bf16 sum 2`. At the end stands
//! how long a byte of each small float takes beside a byte of f32.
#![allow(unsafe_code)] // kernels work on raw memory

use std::hint::black_box;
use std::time::{Duration, Instant};

use nd_comm::fold::Fold;
use nd_comm::kernel::{Destination, Kernel, Source, Unsupported};
use nd_comm::number::{DataType, ReduceOp};

fn main() {
    // Cargo passes `--bench`; the other arguments are words that a row has to have.
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    println!("# GB/s (1e9) of the result, one thread, best of several runs");
    println!(
        "{:<10} {:<6} {:<12} {:>9} {:>8} {:>8} {:>8} {:>9}",
        "type", "op", "fold", "bytes", "portable", "here", "memcpy", "/memcpy"
    );
    for bytes in [CACHED, BEYOND] {
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
                    if bytes > CACHED && (name != "2" && name != "4" || op != ReduceOp::Sum) {
                        continue;
                    }
                    if words.iter().all(|w| w.parse() == Ok(data_type) || w == op.name() || w == name) {
                        row(data_type, op, name, &fold, bytes);
                    }
                }
            }
        }
    }
    if words.is_empty() {
        small_floats_against_f32();
    }
}

/// Bytes of a buffer: three of them fit into the second-level cache.
const CACHED: usize = 32 << 10;
/// Bytes of a buffer that no cache holds.
const BEYOND: usize = 64 << 20;

/// How long a byte of each small float takes beside a byte of f32, with sums of two. Speeds drift, so f32 and the type
/// are measured in turn, and the best of each counts.
fn small_floats_against_f32() {
    println!("\n# time per byte, sum of 2 terms");
    let types = [
        ("bf16", DataType::BF16),
        ("f16", DataType::F16),
        ("e4m3", DataType::F8E4M3),
        ("e5m2", DataType::F8E5M2),
    ];
    for (name, data_type) in types {
        let [cached, beyond] = [CACHED, BEYOND].map(|bytes| {
            let mut both = [DataType::F32, data_type].map(|t| Buffers::new(t, 2, bytes));
            let mut best = [0f64; 2];
            for _ in 0..15 {
                for (best, buffers) in best.iter_mut().zip(&mut both) {
                    *best = best.max(buffers.speed(Kernel::new, ReduceOp::Sum, &Fold::balanced(2)));
                }
            }
            best[0] / best[1]
        });
        println!("{name} per byte against f32: in cache {cached:.2}×, from memory {beyond:.2}×");
    }
}

fn row(data_type: DataType, op: ReduceOp, name: &str, fold: &Fold, bytes: usize) {
    let mut buffers = Buffers::new(data_type, fold.terms(), bytes);
    let [portable, here] = [Kernel::portable as Make, Kernel::new].map(|make| buffers.speed(make, op, fold));
    let copied = buffers.copied();
    println!(
        "{:<10} {:<6} {name:<12} {bytes:>9} {portable:>8.1} {here:>8.1} {copied:>8.1} {:>9.2}",
        data_type.name(),
        op.name(),
        here / copied
    );
}

type Make = fn(DataType, ReduceOp, usize) -> Result<Kernel, Unsupported>;

/// The terms and the result of a fold.
struct Buffers {
    data_type: DataType,
    bytes: usize,
    terms: Vec<Vec<u8>>,
    out: Vec<u8>,
}

impl Buffers {
    fn new(data_type: DataType, terms: usize, bytes: usize) -> Buffers {
        let out = vec![1; bytes + stagger(terms)];
        let terms = (0..terms).map(|i| numbers(data_type, bytes + stagger(i), i)).collect();
        Buffers { data_type, bytes, terms, out }
    }

    /// GB/s of the result of `fold`.
    fn speed(&mut self, make: Make, op: ReduceOp, fold: &Fold) -> f64 {
        let sources: Vec<_> = self
            .terms
            .iter()
            .enumerate()
            .map(|(i, m)| Source { ptr: m[stagger(i)..].as_ptr(), wide: false })
            .collect();
        let ptr = self.out[stagger(sources.len())..].as_mut_ptr();
        let dst = Destination { ptr, wide: false, finish: true };
        let kernel = make(self.data_type, op, sources.len()).expect("a supported operation");
        let count = self.bytes / self.data_type.size();
        // SAFETY: all memory has `count` elements; the result is separate.
        gigabytes_per_second(self.bytes, || unsafe { kernel.fold(fold, black_box(&sources), dst, count) })
    }

    /// GB/s of a copy of the first term to where the result goes.
    fn copied(&mut self) -> f64 {
        let (from, bytes) = (&self.terms[0][..self.bytes], self.bytes);
        let to = &mut self.out[stagger(self.terms.len())..];
        gigabytes_per_second(bytes, || black_box(&mut *to).copy_from_slice(black_box(from)))
    }
}

/// Where buffer `i` starts in its memory. At the same offset within a page, stores would delay loads (4K aliasing).
fn stagger(i: usize) -> usize {
    320 * i
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
