//! Attention against loops that follow its definition, against itself on one rank, and against finite differences.

use candle_core::{DType, Device, Var};

use super::*;
use crate::context_parallel::{Form, positions};
use crate::group::{Entry, Group, Kind};
use crate::kernel::testing::*;

const FORMS: [Form; 2] = [Form::Ring, Form::AllGather];
const BALANCES: [Balance; 2] = [Balance::Zigzag, Balance::Contiguous];

/// `[b, heads of queries, heads of keys, s, d]`.
type Shape = [usize; 5];

/// Queries, keys, values, and the gradient of the result.
fn inputs([b, hq, hkv, s, d]: Shape, dtype: DType) -> [Tensor; 4] {
    let tensor =
        |seed, heads| (tensor(seed, &[b, heads, s, d], DType::F64) * 2.0).unwrap().to_dtype(dtype).unwrap();
    [tensor(1, hq), tensor(2, hkv), tensor(3, hkv), tensor(4, hq)]
}

/// The result, and the gradients of queries, keys and values.
fn run(inputs: &[Tensor; 4], cp: &ContextParallel) -> [Tensor; 4] {
    let [q, k, v]: [Var; 3] = std::array::from_fn(|i| variable(&inputs[i]));
    let result = ring_attention(&q, &k, &v, cp).unwrap();
    let gradients = (&result * &inputs[3]).unwrap().sum_all().unwrap().backward().unwrap();
    let gradient = |x: &Var| gradients.get(x).unwrap().clone();
    [result.detach(), gradient(&q), gradient(&k), gradient(&v)]
}

fn alone() -> ContextParallel {
    let comm = nd_comm::prelude::Communicator::local(1).unwrap().remove(0);
    let group = Group::new("test", comm, Default::default());
    ContextParallel { group, form: Form::Ring, balance: Balance::Zigzag }
}

fn part(whole: &Tensor, rank: usize, size: usize, balance: Balance) -> Tensor {
    let places = positions(rank, size, whole.dim(2).unwrap(), balance).unwrap();
    whole.index_select(&Tensor::new(places, &Device::Cpu).unwrap(), 2).unwrap()
}

/// On `size` ranks, each with its part; gives by rank.
fn dealt<R: Send>(
    size: usize,
    form: Form,
    balance: Balance,
    inputs: &[Tensor; 4],
    f: impl Fn(&ContextParallel, &[Tensor; 4]) -> R + Sync,
) -> Vec<R> {
    ranks(size, |group, _| {
        let parts = std::array::from_fn(|i| part(&inputs[i], group.rank(), size, balance));
        f(&ContextParallel { group: group.clone(), form, balance }, &parts)
    })
}

/// Attention as it is defined, in f64.
fn by_definition([q, k, v, _]: &[Tensor; 4]) -> Tensor {
    let (b, hq, s, d) = q.dims4().unwrap();
    let sharing = hq / k.dim(1).unwrap();
    let [qs, ks, vs] = [q, k, v].map(values);
    let mut result = vec![0.0; qs.len()];
    for head in 0..b * hq {
        let (q, k) = (&qs[head * s * d..], &ks[head / sharing * s * d..]);
        for i in 0..s {
            let score =
                |j: usize| (0..d).map(|c| q[i * d + c] * k[j * d + c]).sum::<f64>() / (d as f64).sqrt();
            let weights: Vec<_> = (0..=i).map(|j| score(j).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for (j, w) in weights.iter().enumerate() {
                for c in 0..d {
                    result[(head * s + i) * d + c] += w / sum * vs[(head / sharing * s + j) * d + c];
                }
            }
        }
    }
    Tensor::from_vec(result, (b, hq, s, d), &Device::Cpu).unwrap()
}

#[test]
fn one_rank_does_what_the_definition_says() {
    for shape in [[2, 4, 2, 37, 8], [1, 3, 1, 130, 4], [1, 1, 1, 600, 16], [1, 2, 2, 1, 8]] {
        for (dtype, tolerance) in
            [(DType::F64, 1e-13), (DType::F32, 1e-6), (DType::BF16, 4e-3), (DType::F16, 5e-4)]
        {
            let inputs = inputs(shape, dtype);
            let found = run(&inputs, &alone());
            assert_eq!(found[0].dtype(), dtype);
            assert_close(&format!("{shape:?} {dtype:?}"), &found[0], &by_definition(&inputs), tolerance);
        }
    }
}

#[test]
fn many_ranks_do_what_one_does_forward_and_backward() {
    let names = ["result", "of queries", "of keys", "of values"];
    for (dtype, tolerance) in
        [(DType::F32, 2e-6), (DType::BF16, 8e-3), (DType::F16, 1e-3), (DType::F64, 1e-13)]
    {
        let inputs = inputs([2, 4, 2, 48, 8], dtype);
        let expected = run(&inputs, &alone());
        for size in [2, 3, 4] {
            for form in FORMS {
                for balance in BALANCES {
                    let found = dealt(size, form, balance, &inputs, |cp, parts| run(parts, cp));
                    for (rank, found) in found.iter().enumerate() {
                        for i in 0..4 {
                            let what =
                                format!("{} {dtype:?} {form:?} {balance:?}, rank {rank} of {size}", names[i]);
                            let expected = part(&expected[i], rank, size, balance);
                            assert_close(&what, &found[i], &expected, tolerance);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn long_parts_of_many_tiles_agree_too() {
    let inputs = inputs([1, 4, 2, 1200, 16], DType::F32);
    let expected = run(&inputs, &alone());
    for balance in BALANCES {
        for (rank, found) in
            dealt(2, Form::Ring, balance, &inputs, |cp, parts| run(parts, cp)).iter().enumerate()
        {
            for (found, expected) in found.iter().zip(&expected) {
                assert_close(&format!("{balance:?}"), found, &part(expected, rank, 2, balance), 2e-6);
            }
        }
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let inputs = inputs([1, 2, 1, 12, 4], DType::F64);
    let expected = run(&inputs, &alone());
    for i in 0..3 {
        assert_derivative(&format!("input {i}"), &inputs[i], &expected[i + 1], |moved| {
            let mut moved_inputs = inputs.clone();
            moved_inputs[i] = moved.clone();
            values(&(by_definition(&moved_inputs) * &inputs[3]).unwrap()).iter().sum()
        });
    }
    for form in FORMS {
        let found = dealt(3, form, Balance::Zigzag, &inputs, |cp, parts| run(parts, cp));
        for (rank, found) in found.iter().enumerate() {
            for i in 1..4 {
                let expected = part(&expected[i], rank, 3, Balance::Zigzag);
                assert_close(&format!("{form:?}, rank {rank}"), &found[i], &expected, 1e-13);
            }
        }
    }
}

#[test]
fn what_is_sent_is_what_the_module_says() {
    let [b, hq, hkv, s, d] = [2, 4, 2, 48, 8];
    for (dtype, p, gradient) in [(DType::F32, 4, 4), (DType::BF16, 2, 4), (DType::F64, 8, 8)] {
        let inputs = inputs([b, hq, hkv, s, d], dtype);
        for size in [1, 2, 3, 4] {
            let elements = (2 * b * hkv * s / size * d) as u64;
            let n = size as u64;
            for form in FORMS {
                let entries = ranks(size, |group, ledger| {
                    let parts: [Tensor; 4] =
                        std::array::from_fn(|i| part(&inputs[i], group.rank(), size, Balance::Zigzag));
                    let cp = ContextParallel { group: group.clone(), form, balance: Balance::Zigzag };
                    let q = ring_attention(&parts[0], &parts[1], &parts[2], &cp).unwrap();
                    assert_eq!(q.dims(), parts[0].dims());
                    let forward = ledger.take();
                    run(&parts, &cp);
                    (forward, ledger.take())
                });
                for (forward, both) in entries {
                    let [forward_expected, both_expected] = match form {
                        _ if size == 1 => [vec![], vec![]],
                        Form::Ring => [
                            vec![(Kind::Shift, Entry { calls: n - 1, bytes: (n - 1) * elements * p })],
                            vec![(
                                Kind::Shift,
                                Entry {
                                    calls: 3 * n - 2,
                                    bytes: 2 * (n - 1) * elements * p + n * elements * gradient,
                                },
                            )],
                        ],
                        Form::AllGather => {
                            let gather = |calls| Entry { calls, bytes: calls * (n - 1) * elements * p };
                            let scatter = Entry { calls: 1, bytes: (n - 1) * elements * gradient };
                            [
                                vec![(Kind::AllGather, gather(1))],
                                vec![(Kind::AllGather, gather(2)), (Kind::ReduceScatter, scatter)],
                            ]
                        }
                    };
                    let named =
                        |entries: Vec<_>| entries.into_iter().map(|(k, e)| (("test", k), e)).collect();
                    assert_eq!(forward, named(forward_expected), "{form:?} {size} {dtype:?}");
                    assert_eq!(both, named(both_expected), "{form:?} {size} {dtype:?}");
                }
            }
        }
    }
}

#[test]
fn every_rank_computes_as_many_scores_as_every_other_under_zigzag() {
    let inputs = inputs([1, 2, 1, 1536, 4], DType::F32);
    for size in [2, 3, 4] {
        let computed = |balance| {
            dealt(size, Form::Ring, balance, &inputs, |cp, parts| {
                let [q, k, v] = [0, 1, 2].map(|i| parts[i].flatten_all().unwrap().to_vec1::<f32>().unwrap());
                let sizes = sizes(&parts[0], &parts[1], &parts[2]).unwrap();
                let attention = Attention { cp: cp.clone(), sizes, saved: OnceLock::new() };
                attention.forward(&q, &k, &v).unwrap().computed
            })
        };
        let (zigzag, contiguous) = (computed(Balance::Zigzag), computed(Balance::Contiguous));
        assert!(zigzag.iter().all(|&c| c == zigzag[0]), "{zigzag:?}");
        // The last rank's share against the mean: (2·W - 1) / W, and the masked half of tiles on the diagonal.
        let most = contiguous[size - 1] as f64 * size as f64 / contiguous.iter().sum::<u64>() as f64;
        assert!(most > 1.4, "{contiguous:?}");
        // Of all pairs of queries and keys the mask leaves half, and tiles on the diagonal add a little.
        let all = 2.0 * 1536.0 * 1536.0;
        let share = zigzag.iter().sum::<u64>() as f64 / all;
        assert!((0.5..0.62).contains(&share), "{share}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let cp = alone();
    let t = |shape: &[usize]| tensor(1, shape, DType::F32);
    let error = |q: &[usize], k: &[usize], v: &[usize]| {
        ring_attention(&t(q), &t(k), &t(v), &cp).unwrap_err().to_string()
    };
    let message = error(&[1, 3, 4, 2], &[1, 2, 4, 2], &[1, 2, 4, 2]);
    assert!(message.contains("[1, 3, 4, 2]") && message.contains("hkv divides hq"), "{message}");
    error(&[1, 2, 4, 2], &[1, 2, 5, 2], &[1, 2, 5, 2]);
    error(&[1, 2, 4, 2], &[1, 2, 4, 2], &[1, 1, 4, 2]);
    let half = t(&[1, 2, 4, 2]).to_dtype(DType::BF16).unwrap();
    assert!(ring_attention(&half, &t(&[1, 2, 4, 2]), &half, &cp).is_err());
    ranks(2, |group, _| {
        let cp = ContextParallel { group: group.clone(), form: Form::Ring, balance: Balance::Zigzag };
        let x = t(&[1, 2, 5, 2]);
        let message = ring_attention(&x, &x, &x, &cp).unwrap_err().to_string();
        assert!(message.contains("5 tokens") && message.contains("2·cp=4"), "{message}");
    });
}
