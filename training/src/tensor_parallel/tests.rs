//! Each against one rank, forward and backward, and what it sends.

use candle_core::{DType, Device, Tensor, Var};

use super::*;
use crate::group::{Entry, Group, Kind};
use crate::kernel::testing::*;

fn gradients<const N: usize>(y: &Tensor, seed: &Tensor, of: [&Var; N]) -> [Tensor; N] {
    let gradients = (y * seed).unwrap().sum_all().unwrap().backward().unwrap();
    of.map(|x| gradients.get(x).unwrap().clone())
}

fn part(whole: &Tensor, dim: usize, rank: usize, size: usize) -> Tensor {
    let len = whole.dim(dim).unwrap() / size;
    whole.narrow(dim, rank * len, len).unwrap().contiguous().unwrap()
}

fn alone() -> Group {
    Group::new("test", nd_comm::prelude::Communicator::local(1).unwrap().remove(0), Default::default())
}

fn sum(tensors: &[Tensor]) -> Tensor {
    tensors[1..].iter().fold(tensors[0].clone(), |sum, x| (sum + x).unwrap())
}

#[test]
fn the_ways_in_and_out_and_back() {
    for size in [1, 2, 3, 4] {
        for batch in [1, 2] {
            let whole = |rank: usize| tensor(10 + rank as u64, &[batch, 12, 5], DType::F64);
            let small = |rank: usize| tensor(20 + rank as u64, &[batch, 12 / size, 5], DType::F64);
            let all = |of: &dyn Fn(usize) -> Tensor| (0..size).map(of).collect::<Vec<_>>();
            let (sum, joined) = (sum(&all(&whole)), Tensor::cat(&all(&small), 1).unwrap());
            ranks(size, |group, _| {
                let rank = group.rank();
                type Way = fn(&Tensor, &Group) -> crate::Result<Tensor>;
                // Input, gradient of the result; result, gradient of the input.
                let check = |name: &str, way: Way, x: Tensor, seed: Tensor, y: &Tensor, gradient: &Tensor| {
                    let x = variable(&x);
                    let found = way(&x, group).unwrap();
                    assert_close(name, &found, y, 1e-15);
                    assert_close(name, &gradients(&found, &seed, [&x])[0], gradient, 1e-15);
                };
                let mine = part(&sum, 1, rank, size);
                check("copy_to", copy_to, whole(0), whole(rank), &whole(0), &sum);
                check("reduce_from", reduce_from, whole(rank), whole(0), &sum, &whole(0));
                check("gather_sequence", gather_sequence, small(rank), whole(rank), &joined, &mine);
                check("scatter_sequence", scatter_sequence, whole(rank), small(rank), &mine, &joined);
            });
        }
    }
}

#[test]
fn sequences_that_do_not_divide_are_refused() {
    ranks(2, |group, _| {
        let message = scatter_sequence(&tensor(1, &[1, 5, 2], DType::F32), group).unwrap_err().to_string();
        assert!(
            message.contains("test=2") && message.contains("5 tokens") && message.contains("pad it to 6")
        );
        assert!(gather_sequence(&tensor(1, &[5], DType::F32), group).is_err());
    });
}

#[test]
fn linear_is_a_product_with_the_transpose() {
    let (x, w) = (tensor(1, &[2, 3, 4], DType::F64), tensor(2, &[5, 4], DType::F64));
    let seed = tensor(3, &[2, 3, 5], DType::F64);
    let by_definition = |x: &Tensor, w: &Tensor| {
        let y = x.reshape((6, 4)).unwrap().matmul(&w.t().unwrap()).unwrap();
        y.reshape((2, 3, 5)).unwrap()
    };
    let (xv, wv) = (variable(&x), variable(&w));
    let y = linear(&xv, &wv).unwrap();
    assert_close("linear", &y, &by_definition(&x, &w), 1e-15);
    let loss = |x: &Tensor, w: &Tensor| values(&(by_definition(x, w) * &seed).unwrap()).iter().sum();
    let [of_x, of_w] = gradients(&y, &seed, [&xv, &wv]);
    assert_derivative("of x", &x, &of_x, |x| loss(x, &w));
    assert_derivative("of the weight", &w, &of_w, |w| loss(&x, w));
    let error = linear(&x, &tensor(2, &[4, 5], DType::F64)).unwrap_err().to_string();
    assert!(error.contains("[2, 3, 4]") && error.contains("[4, 5]"), "{error}");
}

/// A column-parallel pair, a product of its halves, and a row-parallel product: the shape of a block's second half.
fn block(group: &Group, sequence_parallel: bool, [x, a, b, c]: &[Var; 4]) -> Tensor {
    let column = ColumnParallel { group: group.clone(), sequence_parallel };
    let row = RowParallel { group: group.clone(), sequence_parallel };
    let [gate, up]: [Tensor; 2] = column.forward_all(x, &[a, b]).unwrap().try_into().unwrap();
    row.forward(&(gate.tanh().unwrap() * up).unwrap(), c).unwrap()
}

#[test]
fn a_block_of_matrices_does_what_it_does_on_one_rank() {
    for (dtype, tolerance) in [(DType::F32, 2e-6), (DType::BF16, 1.6e-2), (DType::F64, 1e-14)] {
        let whole = [
            tensor(1, &[2, 12, 8], dtype),
            tensor(2, &[24, 8], dtype),
            tensor(3, &[24, 8], dtype),
            tensor(4, &[8, 24], dtype),
        ];
        let seed = tensor(5, &[2, 12, 8], dtype);
        let variables = std::array::from_fn(|i| variable(&whole[i]));
        let y = block(&alone(), false, &variables);
        let expected = gradients(&y, &seed, [&variables[0], &variables[1], &variables[2], &variables[3]]);
        for size in [2, 3, 4] {
            for sequence_parallel in [false, true] {
                ranks(size, |group, ledger| {
                    let dealt = |whole: &Tensor, dim| part(whole, dim, group.rank(), size);
                    let tokens = |x: &Tensor| if sequence_parallel { dealt(x, 1) } else { x.clone() };
                    let parts =
                        [tokens(&whole[0]), dealt(&whole[1], 0), dealt(&whole[2], 0), dealt(&whole[3], 1)];
                    let parts = std::array::from_fn(|i| variable(&parts[i]));
                    let found = block(group, sequence_parallel, &parts);
                    let what = format!("{dtype:?}, {size} ranks, sequence parallel: {sequence_parallel}");
                    assert_close(&what, &found, &tokens(&y), tolerance);

                    let bytes = (2 * 12 * 8 * dtype.size_in_bytes()) as u64;
                    let entry = |kind: Kind, calls| {
                        (("test", kind), Entry { calls, bytes: calls * kind.sent(bytes, size) })
                    };
                    let expected_calls = |all_reduce, gather, scatter| match sequence_parallel {
                        false => [entry(Kind::AllReduce, all_reduce)].into(),
                        true => [entry(Kind::AllGather, gather), entry(Kind::ReduceScatter, scatter)].into(),
                    };
                    assert_eq!(ledger.take(), expected_calls(1, 1, 1), "forward, {what}");

                    let [x, a, b, c] =
                        gradients(&found, &tokens(&seed), [&parts[0], &parts[1], &parts[2], &parts[3]]);
                    assert_close(&what, &x, &tokens(&expected[0]), tolerance);
                    assert_close(&what, &a, &dealt(&expected[1], 0), tolerance);
                    assert_close(&what, &b, &dealt(&expected[2], 0), tolerance);
                    assert_close(&what, &c, &dealt(&expected[3], 1), tolerance);
                    // The gathered input of the column-parallel products was not kept.
                    assert_eq!(ledger.take(), expected_calls(1, 2, 1), "backward, {what}");
                });
            }
        }
    }
}

/// The gradient of the input is on its way while those of weights are made, and nothing else changes.
#[test]
fn products_that_overlap_have_the_bits_of_those_that_do_not() {
    for size in [1, 2, 3] {
        ranks(size, |group, ledger| {
            for count in 1..=4 {
                let x = variable(&tensor(1, &[2, 6, 8], DType::F32));
                let weight = |i: u64| {
                    variable(&tensor(10 * i + group.rank() as u64, &[4 + i as usize, 8], DType::F32))
                };
                let weights: Vec<Var> = (0..count).map(weight).collect();
                let loss = |products: Vec<Tensor>| {
                    // The first of three is used for nothing.
                    let used = products.iter().enumerate().filter(|&(i, _)| count != 3 || i > 0);
                    let sums =
                        used.map(|(i, y)| (y.sqr().unwrap() * (i + 1) as f64).unwrap().sum_all().unwrap());
                    sums.reduce(|a, b| (a + b).unwrap()).unwrap()
                };
                let bits = |loss: Tensor| {
                    ledger.take();
                    let gradients = loss.backward().unwrap();
                    let of = |var: &Var| {
                        let values = gradients.get(var)?.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                        // What nothing depends on has no gradient, or zeros.
                        let bits: Vec<u32> = values.into_iter().map(f32::to_bits).collect();
                        bits.iter().any(|&bits| bits != 0).then_some(bits)
                    };
                    let bits: Vec<_> = weights.iter().chain([&x]).map(of).collect();
                    (bits, ledger.times(), ledger.take())
                };
                let column = ColumnParallel { group: group.clone(), sequence_parallel: false };
                let refs: Vec<&Tensor> = weights.iter().map(Var::as_tensor).collect();
                let (found, times, sent) = bits(loss(column.forward_all(&x, &refs).unwrap()));
                let copied = copy_to(&x, group).unwrap();
                let plain = refs.iter().map(|w| linear(&copied, w).unwrap()).collect();
                let (expected, _, expected_sent) = bits(loss(plain));
                assert_eq!(found, expected, "{count} products on {size} ranks");
                assert_eq!(sent, expected_sent);
                for times in times.values() {
                    assert!(times.exposed < times.took, "nothing was made meanwhile: {times:?}");
                }
            }
        });
    }
}

#[test]
fn what_was_gathered_for_products_is_let_go() {
    ranks(2, |group, ledger| {
        let column = ColumnParallel { group: group.clone(), sequence_parallel: true };
        let (x, w) =
            (variable(&tensor(1, &[1, 4, 3], DType::F32)), variable(&tensor(2, &[2, 3], DType::F32)));
        let y = column.forward(&x, &w).unwrap();
        let all = y.sorted_nodes().into_iter().find(|node| node.dims() == [1, 8, 3]).unwrap();
        let held = |all: &Tensor| match &*all.storage_and_layout().0 {
            candle_core::Storage::Cpu(storage) => storage.as_slice::<f32>().unwrap().len(),
            _ => unreachable!(),
        };
        assert_eq!(held(all), 0);
        y.sum_all().unwrap().backward().unwrap();
        assert_eq!(held(all), 0);
        // Twice through one graph, as when a loss is differentiated piece by piece.
        ledger.take();
        y.sum_all().unwrap().backward().unwrap();
        assert_eq!(ledger.take()[&("test", Kind::AllGather)].calls, 1);
        assert_eq!(held(all), 0);
    });
}

#[test]
fn rows_of_a_table_that_is_dealt_out() {
    let tokens = Tensor::new(&[[0u32, 7, 11, 7], [3, 3, 5, 10]], &Device::Cpu).unwrap();
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::BF16, 8e-3)] {
        let (table, seed) = (tensor(1, &[12, 6], dtype), tensor(2, &[2, 4, 6], dtype));
        let expected =
            table.index_select(&tokens.flatten_all().unwrap(), 0).unwrap().reshape((2, 4, 6)).unwrap();
        let mut of_table = vec![0.0; 12 * 6];
        for (token, gradient) in
            tokens.flatten_all().unwrap().to_vec1::<u32>().unwrap().iter().zip(values(&seed).chunks(6))
        {
            gradient.iter().enumerate().for_each(|(i, g)| of_table[*token as usize * 6 + i] += g);
        }
        let of_table = Tensor::from_vec(of_table, (12, 6), &Device::Cpu).unwrap();
        for size in [1, 2, 3, 4] {
            for sequence_parallel in [false, true].into_iter().filter(|sp| !sp || 4 % size == 0) {
                ranks(size, |group, ledger| {
                    let rank = group.rank();
                    let tokens_of =
                        |x: &Tensor| if sequence_parallel { part(x, 1, rank, size) } else { x.clone() };
                    let table = variable(&part(&table, 0, rank, size));
                    let embedding = VocabParallelEmbedding { group: group.clone(), sequence_parallel };
                    let found = embedding.forward(&table, &tokens).unwrap();
                    assert_eq!(values(&found), values(&tokens_of(&expected)));
                    let sent = if sequence_parallel { Kind::ReduceScatter } else { Kind::AllReduce };
                    let calls = ledger.take();
                    assert_eq!(
                        calls.keys().copied().collect::<Vec<_>>(),
                        if size == 1 { vec![] } else { vec![("test", sent)] }
                    );
                    let [found] = gradients(&found, &tokens_of(&seed), [&table]);
                    assert_close("of the table", &found, &part(&of_table, 0, rank, size), tolerance);
                });
            }
        }
    }
    let embedding = VocabParallelEmbedding { group: alone(), sequence_parallel: false };
    let message = embedding.forward(&tensor(1, &[11, 2], DType::F32), &tokens).unwrap_err().to_string();
    assert!(message.contains("token 11, number 2") && message.contains("vocabulary of 11"), "{message}");
}

/// The loss as it is defined, in f64.
fn loss_by_definition(logits: &Tensor, labels: &[u32]) -> f64 {
    let (_, entries) = logits.dims2().unwrap();
    let rows = values(logits);
    let counting = rows.chunks(entries).zip(labels).filter(|(_, label)| **label != IGNORE);
    let loss = counting.map(|(row, &label)| {
        let largest = row.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
        largest + row.iter().map(|x| (x - largest).exp()).sum::<f64>().ln() - row[label as usize]
    });
    loss.sum()
}

#[test]
fn the_loss_over_a_vocabulary_that_is_dealt_out() {
    // Rank 1 of 2 and rank 2 of 3 have none of the labels of the first rows.
    let labels = [0u32, 1, IGNORE, 3, 11, 5, 8, IGNORE];
    let label_tensor = Tensor::new(&labels, &Device::Cpu).unwrap();
    for (dtype, tolerance) in [(DType::F64, 1e-14), (DType::F32, 2e-6), (DType::BF16, 8e-3)] {
        let logits = (tensor(1, &[8, 12], DType::F64) * 8.0).unwrap().to_dtype(dtype).unwrap();
        let expected = loss_by_definition(&logits, &labels);
        let all = variable(&logits);
        let loss = vocab_parallel_cross_entropy(&all, &label_tensor, &alone()).unwrap();
        let of_logits = loss.backward().unwrap().get(&all).unwrap().clone();
        if dtype == DType::F64 {
            assert_derivative("of the logits", &logits, &of_logits, |logits| {
                loss_by_definition(logits, &labels)
            });
        }
        for size in [1, 2, 3, 4] {
            let losses = ranks(size, |group, ledger| {
                let mine = variable(&part(&logits, 1, group.rank(), size));
                let loss = vocab_parallel_cross_entropy(&mine, &label_tensor, group).unwrap();
                assert_eq!(loss.dtype(), if dtype == DType::F64 { DType::F64 } else { DType::F32 });
                assert!(loss.dims().is_empty());
                let wide = loss.dtype().size_in_bytes() as u64;
                let entry = Entry { calls: 3, bytes: 3 * Kind::AllReduce.sent(8 * wide, size) };
                let expected = (size > 1).then_some((("test", Kind::AllReduce), entry));
                assert_eq!(ledger.take(), expected.into_iter().collect());
                let gradients = (loss.clone() * 0.5).unwrap().backward().unwrap();
                assert!(ledger.take().is_empty());
                let twice = (gradients.get(&mine).unwrap() * 2.0).unwrap();
                assert_close("of the logits", &twice, &part(&of_logits, 1, group.rank(), size), tolerance);
                values(&loss)[0]
            });
            assert!(losses.iter().all(|l| *l == losses[0]), "{losses:?}");
            assert!((losses[0] - expected).abs() < tolerance * expected, "{} for {expected}", losses[0]);
        }
    }
}

#[test]
fn a_loss_of_nothing_is_nothing_and_large_logits_are_none_too_large() {
    ranks(2, |group, _| {
        let logits = variable(&(tensor(1, &[3, 4], DType::F32) * 1e6).unwrap());
        let labels = |labels: [u32; 3]| Tensor::new(&labels, &Device::Cpu).unwrap();
        let loss = vocab_parallel_cross_entropy(&logits, &labels([IGNORE; 3]), group).unwrap();
        assert_eq!(values(&loss), [0.0]);
        assert!(values(loss.backward().unwrap().get(&logits).unwrap()).iter().all(|g| *g == 0.0));
        let loss = vocab_parallel_cross_entropy(&logits, &labels([0, 7, 3]), group).unwrap();
        assert!(values(&loss)[0].is_finite());
        assert!(values(loss.backward().unwrap().get(&logits).unwrap()).iter().all(|g| g.is_finite()));
    });
}

#[test]
fn logits_that_are_no_numbers_give_a_loss_that_is_none_on_every_rank() {
    ranks(2, |group, _| {
        let mut logits = vec![0.5f32; 8];
        if group.rank() == 1 {
            logits[2] = f32::NAN;
        }
        let logits = Tensor::from_vec(logits, (2, 4), &Device::Cpu).unwrap();
        let labels = Tensor::new(&[0u32, 1], &Device::Cpu).unwrap();
        assert!(values(&vocab_parallel_cross_entropy(&logits, &labels, group).unwrap())[0].is_nan());
    });
}

#[test]
fn labels_that_do_not_fit_are_refused() {
    let logits = tensor(1, &[2, 4], DType::F32);
    let error = |labels: &[u32]| {
        let labels = Tensor::new(labels, &Device::Cpu).unwrap();
        vocab_parallel_cross_entropy(&logits, &labels, &alone()).unwrap_err().to_string()
    };
    assert!(error(&[1, 4]).contains("label 4, number 1") && error(&[1, 4]).contains("vocabulary of 4"));
    assert!(error(&[1]).contains("[2, 4]") && error(&[1]).contains("1 labels"));
}
