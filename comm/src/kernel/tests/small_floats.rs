//! Floats of one and two bytes: every bit pattern, every pair, every start; the portable loops are the measure.

use super::*;

/// Folds `terms`, which are elements of `t`, by the portable loops and by all others that this processor has, and asserts
/// that they agree. Gives the result.
fn all_agree(t: DataType, op: ReduceOp, terms: &[&[u8]], finish: bool) -> Vec<u8> {
    let fold = Fold::balanced(terms.len());
    let sources: Vec<_> = terms.iter().map(|t| Source { ptr: t.as_ptr(), wide: false }).collect();
    let [portable, others @ ..] = PATHS.map(|(path, make)| {
        let mut out = vec![0xee; terms[0].len()];
        let dst = Destination { ptr: out.as_mut_ptr(), wide: false, finish };
        let kernel = make(t, op, terms.len()).expect("a supported operation");
        // SAFETY: all terms are as long as the result.
        unsafe { kernel.fold(&fold, &sources, dst, out.len() / t.size()) };
        (path, out)
    });
    let size = t.size();
    for (path, other) in others {
        for (i, (a, b)) in portable.1.chunks(size).zip(other.chunks(size)).enumerate() {
            let values: Vec<_> = terms.iter().map(|t| &t[i * size..(i + 1) * size]).collect();
            assert_eq!(a, b, "{path}: {op} of {values:02x?}");
        }
    }
    portable.1
}

#[test]
fn all_pairs_of_fp8() {
    let (left, right): (Vec<u8>, Vec<u8>) = (0..=u16::MAX).map(|i| ((i >> 8) as u8, i as u8)).unzip();
    for t in [DataType::F8E4M3, DataType::F8E5M2] {
        for op in ops(t) {
            let got = all_agree(t, op, &[&left, &right], true);
            for ((&a, &b), &got) in left.iter().zip(&right).zip(&got) {
                let v = evaluate_slowly(t, op, &Fold::balanced(2), &[read(t, &[a]), read(t, &[b])], Some(2));
                assert_eq!(u64::from(got), bits(t, v), "{t}: {op} of {a:02x} and {b:02x}");
            }
        }
    }
}

#[test]
fn trees_of_fp8_round_once() {
    for t in [DataType::F8E4M3, DataType::F8E5M2] {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        for n in [4, 8] {
            // Each term is all bits, in an order of its own.
            for step in 0..64usize {
                let terms: Vec<Vec<u8>> = (0..n)
                    .map(|k| (0..256).map(|i| all[(i * (2 * k + 1) + k * step) % 256]).collect())
                    .collect();
                all_agree(t, ReduceOp::Sum, &terms.iter().map(Vec::as_slice).collect::<Vec<_>>(), false);
            }
        }
    }
}

/// All bits of a 16-bit type, as elements.
fn all_16_bits() -> Vec<u8> {
    (0..=u16::MAX).flat_map(u16::to_le_bytes).collect()
}

#[test]
fn all_16_bits_beside_others() {
    let all = all_16_bits();
    let mut rng = StdRng::seed_from_u64(16);
    for t in [DataType::F16, DataType::BF16] {
        let few: [u16; 16] = match t {
            // Zeros, ones, odd and even, the least, the greatest, infinities and NaN.
            DataType::F16 => [
                0, 0x8000, 1, 0x8001, 0x3c00, 0x3c01, 0xbc00, 0xbc01, 0x0400, 0x1400, 0x7bff, 0xfbff, 0x7c00,
                0xfc00, 0x7e00, 0xfc01,
            ],
            _ => [
                0, 0x8000, 1, 0x8001, 0x3f80, 0x3f81, 0xbf80, 0xbf81, 0x0080, 0x3b80, 0x7f7f, 0xff7f, 0x7f80,
                0xff80, 0x7fc0, 0xff81,
            ],
        };
        for other in few {
            let other: Vec<u8> = other.to_le_bytes().repeat(1 << 16);
            for op in ops(t) {
                all_agree(t, op, &[&all, &other], true);
                all_agree(t, op, &[&other, &all], true);
            }
        }
        for n in [2, 4, 8] {
            for _ in 0..4 {
                let mut terms = vec![all.clone()];
                terms.extend((1..n).map(|_| fill(&mut rng, t, 1 << 16)));
                all_agree(t, ReduceOp::Sum, &terms.iter().map(Vec::as_slice).collect::<Vec<_>>(), true);
            }
        }
    }
}

/// Rounds f32 values around every value of a 16-bit type, and what is midway to the next, and widens them again.
#[test]
fn all_16_bits_are_rounded_to_and_widened() {
    for t in [DataType::F16, DataType::BF16] {
        let to_f32 = |bits: u16| match read(t, &bits.to_le_bytes()) {
            Single(x) => x,
            other => panic!("{other:?}"),
        };
        let wide: Vec<f32> = (0..=u16::MAX)
            .flat_map(|bits| {
                let (x, next) = (to_f32(bits), to_f32(bits.wrapping_add(1)));
                let middle = ((f64::from(x) + f64::from(next)) / 2.0) as f32;
                [x, middle]
                    .into_iter()
                    .flat_map(|x| [-1i32, 0, 1].map(|d| f32::from_bits(x.to_bits().wrapping_add_signed(d))))
            })
            .collect();
        for (path, make) in PATHS {
            let kernel = make(t, ReduceOp::Sum, 2).expect("a sum");
            let (mut narrow, mut back) = (vec![0u16; wide.len()], vec![0f32; wide.len()]);
            // SAFETY: all are of the same length.
            unsafe {
                let src = Source { ptr: wide.as_ptr().cast(), wide: true };
                let dst = Destination { ptr: narrow.as_mut_ptr().cast(), wide: false, finish: false };
                kernel.copy(src, dst, wide.len());
                let src = Source { ptr: narrow.as_ptr().cast(), wide: false };
                let dst = Destination { ptr: back.as_mut_ptr().cast(), wide: true, finish: false };
                kernel.copy(src, dst, wide.len());
            }
            for ((&x, &got), &back) in wide.iter().zip(&narrow).zip(&back) {
                assert_eq!(u64::from(got), bits(t, Single(x)), "{path}, {t}: {x:e} {:08x}", x.to_bits());
                assert!(back.to_bits() == to_f32(got).to_bits() || back.is_nan() && to_f32(got).is_nan());
            }
        }
    }
}

#[test]
fn any_start_and_length_of_small_floats() {
    let mut rng = StdRng::seed_from_u64(5);
    for t in [DataType::F32, DataType::F16, DataType::BF16, DataType::F8E4M3, DataType::F8E5M2] {
        let terms: Vec<_> = (0..8).map(|_| fill(&mut rng, t, 400)).collect();
        for start in 0..64 {
            for count in [0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 200] {
                let n = [2, 4, 8][(start + count) % 3];
                // Terms start at different distances, so that no two are aligned alike.
                let at = |k: usize| start + k * t.size();
                let terms: Vec<_> = (0..n).map(|k| &terms[k][at(k)..at(k) + count * t.size()]).collect();
                all_agree(t, ReduceOp::Sum, &terms, true);
            }
        }
    }
}

/// Loops look for what is rare in many elements at once: it is found wherever it is, and leaves its neighbours alone.
#[test]
fn one_special_value_among_ordinary_ones() {
    for (t, specials) in [
        (DataType::BF16, [0x0001u16, 0x807f, 0x7f81, 0xffc1, 0x7f80]),
        (DataType::F16, [0x0001, 0x83ff, 0x7c01, 0xfe01, 0x7c00]),
    ] {
        let ordinary: Vec<u16> = (0..130).map(|i| 0x3c00 + 37 * i).collect();
        for special in specials {
            for at in 0..ordinary.len() {
                let mut left = ordinary.clone();
                let mut right: Vec<_> = ordinary.iter().rev().copied().collect();
                (left[at], right[at]) = (special, 0);
                let [left, right] =
                    [left, right].map(|x| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>());
                for op in ops(t) {
                    all_agree(t, op, &[&left, &right], true);
                }
            }
        }
    }
}
