//! Every loop against a slow evaluation of the fold, element by element, that shares no code with the kernels; and
//! so also the processor's loops against the portable ones, bit for bit.

mod small_floats;

use half::{bf16, f16};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::number::{F8E4M3, F8E5M2};

/// An accumulator.
#[derive(Debug, Clone, Copy)]
enum Value {
    Single(f32),
    Double(f64),
    Int(i128),
}

use Value::{Double, Int, Single};

fn read(t: DataType, bytes: &[u8]) -> Value {
    let mut raw = [0; 8];
    raw[..bytes.len()].copy_from_slice(bytes);
    let raw = u64::from_le_bytes(raw);
    match t {
        DataType::I8 => Int((raw as i8).into()),
        DataType::I16 => Int((raw as i16).into()),
        DataType::I32 => Int((raw as i32).into()),
        DataType::I64 => Int((raw as i64).into()),
        DataType::U8 | DataType::U16 | DataType::U32 | DataType::U64 => Int(raw.into()),
        DataType::F16 => Single(f16::from_bits(raw as u16).to_f32()),
        DataType::BF16 => Single(bf16::from_bits(raw as u16).to_f32()),
        DataType::F32 => Single(f32::from_bits(raw as u32)),
        DataType::F64 => Double(f64::from_bits(raw)),
        DataType::F8E4M3 => Single(F8E4M3(raw as u8).to_f32()),
        DataType::F8E5M2 => Single(F8E5M2(raw as u8).to_f32()),
    }
}

/// The bits of a value as an element of type `t`: rounded, with the one NaN of the type.
fn bits(t: DataType, v: Value) -> u64 {
    match (t, v) {
        (_, Int(x)) => x as u64 & (u64::MAX >> (64 - 8 * t.size())),
        (DataType::F64, Double(x)) => {
            if x.is_nan() {
                0x7ff8 << 48
            } else {
                x.to_bits()
            }
        }
        (DataType::F32, Single(x)) => {
            if x.is_nan() {
                0x7fc0_0000
            } else {
                x.to_bits().into()
            }
        }
        (DataType::F16, Single(x)) => {
            if x.is_nan() {
                0x7e00
            } else {
                f16::from_f32(x).to_bits().into()
            }
        }
        (DataType::BF16, Single(x)) => {
            if x.is_nan() {
                0x7fc0
            } else {
                bf16::from_f32(x).to_bits().into()
            }
        }
        (DataType::F8E4M3, Single(x)) => match F8E4M3::from_f32(x) {
            nan if nan.is_nan() => 0x7f,
            number => number.0.into(),
        },
        (DataType::F8E5M2, Single(x)) => {
            if x.is_nan() {
                0x7f
            } else {
                F8E5M2::from_f32(x).0.into()
            }
        }
        _ => panic!("{v:?} as {t}"),
    }
}

fn write(t: DataType, v: Value, to: &mut [u8]) {
    to.copy_from_slice(&bits(t, v).to_le_bytes()[..t.size()]);
}

fn round(t: DataType, v: Value) -> Value {
    read(t, &bits(t, v).to_le_bytes()[..t.size()])
}

fn combine(t: DataType, op: ReduceOp, a: Value, b: Value) -> Value {
    macro_rules! float {
        ($a:expr, $b:expr) => {
            match op {
                ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => $a + $b,
                ReduceOp::Product => $a * $b,
                _ if $a.is_nan() => $a,
                _ if $b.is_nan() => $b,
                ReduceOp::Min => {
                    if $a.total_cmp(&$b).is_lt() {
                        $a
                    } else {
                        $b
                    }
                }
                ReduceOp::Max => {
                    if $a.total_cmp(&$b).is_gt() {
                        $a
                    } else {
                        $b
                    }
                }
                _ => panic!("{op} of floats"),
            }
        };
    }
    match (a, b) {
        (Single(a), Single(b)) => Single(float!(a, b)),
        (Double(a), Double(b)) => Double(float!(a, b)),
        (Int(a), Int(b)) => round(
            t,
            Int(match op {
                ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => a + b,
                ReduceOp::Product => a.wrapping_mul(b),
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
                ReduceOp::BitAnd => a & b,
                ReduceOp::BitOr => a | b,
                ReduceOp::BitXor => a ^ b,
            }),
        ),
        _ => panic!("{a:?} and {b:?}"),
    }
}

fn divide(v: Value, by: usize) -> Value {
    match v {
        Single(x) => Single(x / by as f32),
        Double(x) => Double(x / by as f64),
        Int(x) => Int(x / by as i128),
    }
}

fn evaluate_slowly(t: DataType, op: ReduceOp, fold: &Fold, terms: &[Value], finish: Option<usize>) -> Value {
    let (mut stack, mut terms) = (Vec::new(), terms.iter());
    for step in fold.ops() {
        match step {
            FoldOp::Term => stack.push(*terms.next().expect("a term")),
            FoldOp::Combine => {
                let (b, a) = (stack.pop().expect("b"), stack.pop().expect("a"));
                stack.push(combine(t, op, a, b));
            }
            FoldOp::Round => {
                let top = stack.pop().expect("a value");
                stack.push(round(t, top));
            }
        }
    }
    let result = stack.pop().expect("the result");
    match finish {
        Some(world_size) if op == ReduceOp::Avg => divide(result, world_size),
        _ => result,
    }
}

/// Random bits, a third of them special: zeros, infinities, NaN of both kinds and signs, subnormals, extremes.
fn fill(rng: &mut StdRng, t: DataType, count: usize) -> Vec<u8> {
    let size = t.size();
    let (sign, top) = (1u64 << (8 * size - 1), u64::MAX >> (64 - 8 * size));
    let exponent = match t {
        DataType::F16 => 0x7c00,
        DataType::BF16 => 0x7f80,
        DataType::F32 => 0x7f80_0000,
        DataType::F64 => 0x7ff0 << 48,
        DataType::F8E4M3 => 0x78,
        DataType::F8E5M2 => 0x7c,
        _ => 1,
    };
    let mut out = Vec::with_capacity(size * count);
    for _ in 0..count {
        let special =
            [0, 1, 2, exponent, exponent - 1, exponent + 1, exponent | exponent >> 1, top >> 1, top, sign];
        let bits = match rng.random_range(0..9) {
            0..3 => special[rng.random_range(0..special.len())] ^ if rng.random() { sign } else { 0 },
            3 => rng.random::<u64>() & (exponent - 1), // subnormal
            // Of like size, so that sums round; else one operand mostly vanishes in the other.
            4 | 5 if t.is_float() => {
                let one = (exponent >> 1) & exponent;
                one.wrapping_add(
                    rng.random::<u64>() & ((exponent & exponent.wrapping_neg()).wrapping_mul(4) - 1),
                )
            }
            _ => rng.random(),
        };
        out.extend_from_slice(&bits.to_le_bytes()[..size]);
    }
    out
}

/// Bytes at an odd address, so that no loop can rely on alignment.
struct Unaligned {
    memory: Vec<u8>,
    start: usize,
}

impl Unaligned {
    fn new(bytes: &[u8]) -> Unaligned {
        let mut memory = vec![0x5a; bytes.len() + 2];
        let start = 1 - memory.as_ptr() as usize % 2;
        memory[start..start + bytes.len()].copy_from_slice(bytes);
        Unaligned { memory, start }
    }

    fn bytes(&self) -> &[u8] {
        let end = self.start + self.memory.len() - 2;
        assert!(
            self.memory[..self.start].iter().chain(&self.memory[end..]).all(|&b| b == 0x5a),
            "written outside"
        );
        &self.memory[self.start..end]
    }

    fn ptr(&mut self) -> *mut u8 {
        self.memory[self.start..].as_mut_ptr()
    }
}

type Make = fn(DataType, ReduceOp, usize) -> Result<Kernel, Unsupported>;

/// Every set of loops that this processor runs: a processor with the widest registers tries the others too.
const PATHS: [(&str, Make); 3] = [
    ("portable", Kernel::portable),
    ("up to AVX2", |t, op, ranks| Kernel::with(t, op, ranks, table::up_to_avx2)),
    ("new", Kernel::new),
];

#[derive(Debug, Clone)]
struct Case {
    data_type: DataType,
    op: ReduceOp,
    fold: Fold,
    /// Bit i: term i is wide; bit 31: the destination is.
    wide: u32,
    /// Which term is the destination too, when it has the same width.
    alias: Option<usize>,
    finish: bool,
    world_size: usize,
    count: usize,
    seed: u64,
}

impl Case {
    fn check(&self) {
        let Case { data_type: t, op, ref fold, count, .. } = *self;
        let of = |wide| if wide { t.accumulator() } else { t };
        let mut rng = StdRng::seed_from_u64(self.seed);
        let wide: Vec<bool> = (0..fold.terms()).map(|i| self.wide >> i & 1 == 1).collect();
        let wide_out = self.wide >> 31 == 1;
        let terms: Vec<_> = wide.iter().map(|&wide| fill(&mut rng, of(wide), count)).collect();
        let out = of(wide_out);
        let mut expected = vec![0; count * out.size()];
        for i in 0..count {
            let element = |(bytes, &wide): (&Vec<u8>, &bool)| {
                let size = of(wide).size();
                read(of(wide), &bytes[i * size..(i + 1) * size])
            };
            let values: Vec<_> = terms.iter().zip(&wide).map(element).collect();
            let result = evaluate_slowly(t, op, fold, &values, self.finish.then_some(self.world_size));
            let out_bytes = &mut expected[i * out.size()..(i + 1) * out.size()];
            if fold.ops().len() == 1 && of(wide[0]) == out && !(self.finish && op == ReduceOp::Avg) {
                out_bytes.copy_from_slice(&terms[0][i * out.size()..(i + 1) * out.size()]);
            } else {
                write(out, result, out_bytes);
            }
        }
        for (path, make) in PATHS {
            let kernel = make(t, op, self.world_size).expect("a supported operation");
            let mut memory: Vec<_> = terms.iter().map(|bytes| Unaligned::new(bytes)).collect();
            let mut separate = Unaligned::new(&vec![0xee; expected.len()]);
            let sources: Vec<_> =
                memory.iter_mut().zip(&wide).map(|(m, &wide)| Source { ptr: m.ptr(), wide }).collect();
            let alias = self.alias.filter(|&i| i < wide.len() && of(wide[i]) == out);
            let ptr = alias.map_or_else(|| separate.ptr(), |i| sources[i].ptr.cast_mut());
            // SAFETY: all memory has `count` elements of its width; `dst` is a term's, of the same width, or its own.
            unsafe {
                kernel.fold(fold, &sources, Destination { ptr, wide: wide_out, finish: self.finish }, count)
            };
            let got = alias.map_or(&separate, |i| &memory[i]).bytes();
            for (i, (got, expected)) in got.chunks(out.size()).zip(expected.chunks(out.size())).enumerate() {
                let values: Vec<_> = terms
                    .iter()
                    .zip(&wide)
                    .map(|(m, &wide)| &m[i * of(wide).size()..(i + 1) * of(wide).size()])
                    .collect();
                assert_eq!(got, expected, "{path}: element {i} of {values:02x?}");
            }
            for (i, (m, bytes)) in memory.iter().zip(&terms).enumerate() {
                assert!(alias == Some(i) || m.bytes() == bytes, "term {i} was written");
            }
        }
    }
}

fn ops(t: DataType) -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.into_iter().filter(move |op| op.supports(t))
}

/// Any tree over up to 9 terms, with roundings anywhere.
fn any_fold() -> impl Strategy<Value = Fold> {
    let tree = Just(vec![FoldOp::Term]).prop_recursive(5, 24, 2, |inner| {
        prop_oneof![
            3 => (inner.clone(), inner.clone()).prop_map(|(a, b)| [a, b, vec![FoldOp::Combine]].concat()),
            1 => inner.prop_map(|a| [a, vec![FoldOp::Round]].concat()),
        ]
    });
    prop_oneof![
        2 => tree.prop_map(|ops| Fold::new(ops).expect("a tree")),
        2 => (1usize..10).prop_map(Fold::balanced),
        1 => prop::collection::vec(1usize..4, 1..5).prop_map(|hosts| Fold::canonical(&hosts)),
    ]
}

prop_compose! {
    fn any_case()(data_type in prop::sample::select(&DataType::ALL[..]))(
        op in prop::sample::select(ops(data_type).collect::<Vec<_>>()),
        data_type in Just(data_type),
        fold in any_fold(),
        wide in prop_oneof![Just(0), any::<u32>()],
        alias in prop::option::of(0usize..9),
        finish in any::<bool>(),
        world_size in prop_oneof![1usize..20, Just(128), Just(256), Just(70_000), Just(5_000_000_000)],
        count in prop_oneof![0usize..140, 500usize..1200],
        seed in any::<u64>(),
    ) -> Case {
        Case { data_type, op, fold, wide, alias, finish, world_size, count, seed }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_fold_of_any_type_is_as_defined(case in any_case()) {
        case.check();
    }
}

#[test]
fn every_type_and_operation_in_every_fused_tree() {
    for data_type in DataType::ALL {
        for op in ops(data_type) {
            for terms in 1..=8 {
                for (wide, finish) in [(0, true), (0, false), (0b1010_0110 | 1 << 31, true), (0x55, false)] {
                    let fold = Fold::balanced(terms);
                    let alias = (terms % 2 == 0).then_some(terms - 1);
                    let seed = 7 * terms as u64;
                    Case { data_type, op, fold, wide, alias, finish, world_size: terms, count: 391, seed }
                        .check();
                }
            }
        }
    }
}

fn fold_of<T: crate::number::Element + Default>(op: ReduceOp, fold: &Fold, terms: &[T], ranks: usize) -> T {
    let kernel = Kernel::new(T::DATA_TYPE, op, ranks).expect("a supported operation");
    let sources: Vec<_> =
        terms.iter().map(|t| Source { ptr: std::ptr::from_ref(t).cast(), wide: false }).collect();
    let mut out = T::default();
    let dst = Destination { ptr: (&raw mut out).cast(), wide: false, finish: true };
    // SAFETY: one element each.
    unsafe { kernel.fold(fold, &sources, dst, 1) };
    out
}

#[test]
fn integers_wrap_and_their_averages_truncate() {
    let two = Fold::balanced(2);
    assert_eq!(fold_of::<i8>(ReduceOp::Sum, &two, &[127, 1], 2), -128);
    assert_eq!(fold_of::<u64>(ReduceOp::Product, &two, &[u64::MAX, 3], 2), u64::MAX - 2);
    assert_eq!(fold_of::<i32>(ReduceOp::Avg, &two, &[-4, -3], 2), -3);
    assert_eq!(fold_of::<i64>(ReduceOp::Avg, &two, &[i64::MIN, 1], 3), (i64::MIN + 1) / 3);
    assert_eq!(fold_of::<u32>(ReduceOp::Avg, &two, &[u32::MAX, 0], 3), u32::MAX / 3);
    assert_eq!(fold_of::<i8>(ReduceOp::Avg, &two, &[-128, 0], 128), -1);
}

#[test]
fn an_average_is_divided_before_its_only_rounding() {
    // 2049 is no f16: rounded first it would be 2048, and the average 682.5.
    let terms = [2048.0, 1.0, 0.0].map(f16::from_f32);
    assert_eq!(fold_of(ReduceOp::Avg, &Fold::balanced(3), &terms, 3).to_f32(), 683.0);
    let big = [f16::MAX, f16::MAX];
    assert_eq!(fold_of(ReduceOp::Avg, &Fold::balanced(2), &big, 2), f16::MAX);
}

#[test]
fn zeros_have_an_order_and_nan_wins() {
    let two = Fold::balanced(2);
    for pair in [[0.0f32, -0.0], [-0.0, 0.0]] {
        assert_eq!(fold_of(ReduceOp::Min, &two, &pair, 2).to_bits(), (-0.0f32).to_bits());
        assert_eq!(fold_of(ReduceOp::Max, &two, &pair, 2).to_bits(), 0.0f32.to_bits());
    }
    let odd_nan = f32::from_bits(0xff80_0001);
    for pair in [[odd_nan, 1.0], [f32::INFINITY, odd_nan], [odd_nan, -f32::NAN]] {
        for op in [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum] {
            assert_eq!(fold_of(op, &two, &pair, 2).to_bits(), 0x7fc0_0000);
        }
    }
}

#[test]
fn premultiplication_rounds_once_and_truncates_the_factor_for_integers() {
    fn scaled<T: crate::number::Element>(x: T, factor: f64) -> T {
        let mut results = [x; PATHS.len()];
        for ((_, make), out) in PATHS.iter().zip(&mut results) {
            let kernel = make(T::DATA_TYPE, ReduceOp::PreMulSum(factor), 2).expect("a sum");
            let out: *mut T = out;
            // SAFETY: one element, in place.
            unsafe { kernel.premultiply(out.cast_const().cast(), out.cast(), 1) };
        }
        let bytes = |x: &T| {
            // SAFETY: elements have no padding.
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(x).cast::<u8>(), size_of::<T>()) }.to_vec()
        };
        assert!(results.iter().all(|result| bytes(result) == bytes(&results[0])));
        results[0]
    }
    assert_eq!(scaled(5i32, -2.9), -10);
    assert_eq!(scaled(200u8, 2.0), 144);
    assert_eq!(scaled(bf16::from_f32(3.0), 0.1), bf16::from_f32(3.0 * 0.1f32));
    assert_eq!(scaled(f16::MAX, 2.0), f16::INFINITY);
    assert_eq!(scaled(1.5f64, 0.1), 1.5 * 0.1);
    assert_eq!(scaled(F8E4M3::MAX, 0.5).to_f32(), 224.0);
    assert_eq!(scaled(F8E4M3(0xfe), 2.0).0, 0x7f);
}

#[test]
fn copies_move_bits_round_or_widen() {
    let kernel = Kernel::new(DataType::F16, ReduceOp::Sum, 2).expect("a sum");
    let (nan, mut narrow, mut wide) = (f16::from_bits(0xfc01), f16::ZERO, [0f32; 1]);
    let src = |ptr: *const u8, wide| Source { ptr, wide };
    let dst = |ptr: *mut u8, wide| Destination { ptr, wide, finish: true };
    let from = (&raw const nan).cast();
    // SAFETY: one element each.
    unsafe {
        kernel.copy(src(from, false), dst((&raw mut narrow).cast(), false), 1);
        assert_eq!(narrow.to_bits(), 0xfc01);
        kernel.copy(src(from, false), dst(wide.as_mut_ptr().cast(), true), 1);
        assert!(wide[0].is_nan());
        wide[0] = 2049.0;
        kernel.copy(src(wide.as_ptr().cast(), true), dst((&raw mut narrow).cast(), false), 1);
        assert_eq!(narrow.to_f32(), 2048.0);
    }
}

#[test]
fn unsupported_operations_and_wrong_terms_are_refused() {
    for t in DataType::ALL {
        assert_eq!(Kernel::new(t, ReduceOp::BitOr, 2).is_ok(), !t.is_float());
        assert!(Kernel::new(t, ReduceOp::Avg, 2).is_ok());
    }
    let message = Kernel::new(DataType::BF16, ReduceOp::BitOr, 2).expect_err("bits of floats").to_string();
    assert!(message.contains("bor") && message.contains("bfloat16"), "{message}");
}

#[test]
fn the_deepest_fold_works() {
    let mut ops = vec![FoldOp::Term; MAX_DEPTH];
    ops.extend(vec![FoldOp::Combine; MAX_DEPTH - 1]);
    let fold = Fold::new(ops).expect("a list");
    for data_type in DataType::ALL {
        let case = Case {
            data_type,
            op: ReduceOp::Sum,
            fold: fold.clone(),
            wide: 0xf0,
            alias: None,
            finish: true,
            world_size: 1,
            count: 300,
            seed: 1,
        };
        case.check();
    }
}
