use super::*;
use proptest::prelude::*;

/// Reduces one element in a given order of ranks, rounding to the type at each step, as the slowest and least
/// precise implementation would.
trait Naive: Sample + PartialEq + std::fmt::Debug {
    fn join(op: ReduceOp, a: Self, b: Self) -> Self;
    fn last(op: ReduceOp, a: Self, n: usize) -> Self;
    fn first(op: ReduceOp, a: Self) -> Self;
}

macro_rules! naive_float {
    ($($t:ty, $w:ty, |$a:ident| $to:expr, |$x:ident| $from:expr);*) => {$(impl Naive for $t {
        fn join(op: ReduceOp, a: $t, b: $t) -> $t {
            let wide = |$a: $t| -> $w { $to };
            let (a, b) = (wide(a), wide(b));
            let $x: $w = match op {
                ReduceOp::Product => a * b,
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
                _ => a + b,
            };
            $from
        }
        fn first(op: ReduceOp, $a: $t) -> $t {
            let factor = if let ReduceOp::PreMulSum(f) = op { f } else { 1.0 };
            let $x: $w = $to * factor as $w;
            $from
        }
        fn last(op: ReduceOp, $a: $t, n: usize) -> $t {
            let $x: $w = if op == ReduceOp::Avg { $to / n as $w } else { $to };
            $from
        }
    })*};
}
naive_float!(
    f64, f64, |a| a, |x| x;
    f32, f32, |a| a, |x| x;
    f16, f32, |a| a.to_f32(), |x| f16::from_f32(x);
    bf16, f32, |a| a.to_f32(), |x| bf16::from_f32(x);
    F8E4M3, f32, |a| a.to_f32(), |x| F8E4M3::from_f32(x);
    F8E5M2, f32, |a| a.to_f32(), |x| F8E5M2::from_f32(x)
);

macro_rules! naive_integer {
    ($($t:ty),*) => {$(impl Naive for $t {
        fn join(op: ReduceOp, a: $t, b: $t) -> $t {
            let (x, y) = (a as i128, b as i128);
            (match op {
                ReduceOp::Product => x.wrapping_mul(y),
                ReduceOp::Min => x.min(y),
                ReduceOp::Max => x.max(y),
                ReduceOp::BitAnd => x & y,
                ReduceOp::BitOr => x | y,
                ReduceOp::BitXor => x ^ y,
                _ => x + y,
            }) as $t
        }
        fn first(op: ReduceOp, a: $t) -> $t {
            let factor = if let ReduceOp::PreMulSum(f) = op { f as $t } else { 1 };
            (a as i128 * factor as i128) as $t
        }
        fn last(op: ReduceOp, a: $t, n: usize) -> $t {
            (if op == ReduceOp::Avg { a as i128 / n as i128 } else { a as i128 }) as $t
        }
    })*};
}
naive_integer!(i8, u8, i16, u16, i32, u32, i64, u64);

fn compare<T: Naive>(op: ReduceOp, ranks: usize, start: u64, len: usize, seed: u32) {
    let recipe = Recipe::new::<T>(Some(op), ranks, seed);
    let mut order: Vec<usize> = (0..ranks).collect();
    order.rotate_left(seed as usize % ranks);
    if seed & 1 == 1 {
        order.reverse();
    }
    let inputs: Vec<Vec<T>> = order
        .iter()
        .map(|r| {
            let mut input = vec![T::default(); len];
            recipe.input(*r, start, &mut input);
            input
        })
        .collect();
    let mut expected = vec![T::default(); len];
    recipe.reduced(start, &mut expected);
    for i in 0..len {
        let terms: Vec<T> = inputs.iter().map(|v| T::first(op, v[i])).collect();
        let line = terms.iter().copied().reduce(|a, b| T::join(op, a, b)).unwrap();
        // Another shape of the tree: pairs first.
        let pairs = terms.chunks(2).map(|p| p.iter().copied().reduce(|a, b| T::join(op, a, b)).unwrap());
        let pairs = pairs.reduce(|a, b| T::join(op, a, b)).unwrap();
        for result in [line, pairs] {
            let result = T::last(op, result, ranks);
            assert!(
                result.same(expected[i]),
                "{} {op} {ranks} ranks: {result:?} is not {:?}",
                T::DATA_TYPE,
                expected[i]
            );
        }
    }
}

proptest! {
    #[test]
    fn expectations_are_exact_in_any_order(
        op in prop::sample::select(ReduceOp::ALL.to_vec()),
        factor in prop::sample::select(vec![0.125, 0.5, 1.0, 2.0, 8.0]),
        ranks in 1usize..80, start in any::<u32>(), far in any::<bool>(), len in 1usize..50, seed in any::<u32>(),
    ) {
        let op = if let ReduceOp::PreMulSum(_) = op { ReduceOp::PreMulSum(factor) } else { op };
        let start = u64::from(start) + if far { (1 << 32) - 20 } else { 0 };
        macro_rules! all { ($($t:ty),*) => {$(
            if op.supports(<$t>::DATA_TYPE) { compare::<$t>(op, ranks, start, len, seed); }
        )*}; }
        all!(i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64, F8E4M3, F8E5M2);
    }

    #[test]
    fn elements_depend_on_their_index_alone(start in any::<u32>(), cut in 0usize..3000, op in any::<bool>()) {
        let recipe = Recipe::new::<i16>(op.then_some(ReduceOp::Sum), 4, 7);
        let (mut whole, mut parts) = (vec![0i16; 3000], vec![0i16; 3000]);
        recipe.input(2, start.into(), &mut whole);
        let (a, b) = parts.split_at_mut(cut);
        recipe.input(2, start.into(), a);
        recipe.input(2, u64::from(start) + cut as u64, b);
        prop_assert_eq!(&whole, &parts);
        recipe.reduced(start.into(), &mut whole);
        let (a, b) = parts.split_at_mut(cut);
        recipe.reduced(start.into(), a);
        recipe.reduced(u64::from(start) + cut as u64, b);
        prop_assert_eq!(whole, parts);
    }
}

#[test]
fn values_vary() {
    fn kinds<T: Sample>(op: Option<ReduceOp>, n: usize, rank: usize) -> usize {
        let mut v = vec![T::default(); 5000];
        Recipe::new::<T>(op, n, 1).input(rank, 0, &mut v);
        let mut kinds: Vec<T> = Vec::new();
        for x in v {
            if !kinds.iter().any(|k| k.same(x)) {
                kinds.push(x);
            }
        }
        kinds.len()
    }
    assert!(kinds::<f32>(Some(ReduceOp::Sum), 8, 3) > 3000);
    assert!(kinds::<u8>(None, 8, 3) > 250);
    assert!(kinds::<f64>(None, 8, 3) > 4990);
    assert_eq!(kinds::<F8E5M2>(Some(ReduceOp::Sum), 4, 1), 5);
    assert_eq!(kinds::<F8E5M2>(Some(ReduceOp::Avg), 64, 63), 3);
    assert_eq!(kinds::<bf16>(Some(ReduceOp::Product), 4, 2), 4);
}
