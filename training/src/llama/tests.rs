//! The model against plain loops, finite differences, and itself on several ranks.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor, Var};
use nd_comm::prelude::Communicator;
use nd_tests::worlds::each;

use super::plain::{self, Named};
use super::*;
use crate::context_parallel::{Balance, Form, positions};
use crate::group::Groups;
use crate::mesh::{Axis, Mesh};
use crate::model::{Init, Model, Parameter};
use crate::ops::Scaling;
use crate::runs::runs;

const SEQUENCE: usize = 16;
const SEQUENCES: usize = 2;

fn config() -> Config {
    Config {
        vocab_size: 24,
        hidden_size: 12,
        intermediate_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 12,
        num_key_value_heads: 6,
        head_dim: 4,
        rope_theta: 100.0,
        // Large, so that no part of the model is nearly idle.
        initializer_range: 0.4,
        ..Config::default()
    }
}

fn untied() -> Config {
    Config { tie_word_embeddings: false, ..config() }
}

/// With all that a `config.json` may ask for: biases, and frequencies of all three kinds stretched.
fn biased() -> Config {
    let rope_scaling = Scaling::Llama3 {
        factor: 4.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 32,
    };
    Config { attention_bias: true, mlp_bias: true, rope_scaling, head_dim: 6, ..untied() }
}

fn configs() -> [Config; 3] {
    [config(), untied(), biased()]
}

/// What a rank has computed.
struct Pass {
    loss: f64,
    /// Of each parameter, this rank's.
    gradients: Vec<(Parameter, Vec<f64>)>,
}

/// Tokens and labels of the whole batch; some labels do not count.
fn text(config: &Config) -> (Vec<u32>, Vec<u32>) {
    let random = crate::ops::random::Random::new(11, 0);
    let n = (SEQUENCES * SEQUENCE) as u64;
    let draw = |i| random.u32(i) % config.vocab_size as u32;
    let labels = (0..n).map(|i| if i % 7 == 3 { IGNORE } else { draw(n + i) });
    ((0..n).map(draw).collect(), labels.collect())
}

/// This rank's part of the batch.
fn batch(config: &Config, groups: &Groups, balance: Balance) -> Batch {
    let (tokens, labels) = text(config);
    let positions = positions(groups.cp().rank(), groups.cp().size(), SEQUENCE, balance).unwrap();
    let dealt = |whole: &[u32]| {
        let rows = whole.chunks(SEQUENCE).flat_map(|row| positions.iter().map(|&p| row[p as usize]));
        Tensor::from_vec(rows.collect::<Vec<u32>>(), (SEQUENCES, positions.len()), &Device::Cpu).unwrap()
    };
    Batch {
        tokens: dealt(&tokens),
        labels: dealt(&labels),
        positions: positions.clone(),
        sequences: vec![5, 9],
    }
}

/// The parameters of each unit as variables.
fn variables(model: &Llama, dtype: DType) -> Vec<Vec<(Parameter, Var)>> {
    let weights = Weights::random(3);
    let variable = |parameter: &Parameter| {
        let mut values = vec![0.0; parameter.len()];
        // What is added begins with zeros, which would hide how often it is.
        let init = if parameter.init == Init::Zeros { Init::Normal(0.4) } else { parameter.init };
        weights.fill(&Parameter { init, ..parameter.clone() }, 0..parameter.len(), &mut values).unwrap();
        let values = Tensor::from_vec(values, parameter.local_shape(), &Device::Cpu).unwrap();
        (parameter.clone(), Var::from_tensor(&values.to_dtype(dtype).unwrap()).unwrap())
    };
    model.units().iter().map(|unit| unit.parameters.iter().map(variable).collect()).collect()
}

fn run(model: &Llama, units: &[Vec<(Parameter, Var)>], batch: &Batch) -> Tensor {
    let mut x = None;
    for (stage, unit) in model.stages().into_iter().enumerate() {
        let weights: Vec<Tensor> = units[unit].iter().map(|(_, var)| var.as_tensor().clone()).collect();
        x = Some(model.forward(stage, &weights, x.as_ref(), batch).unwrap());
    }
    x.unwrap()
}

fn pass(model: &Llama, dtype: DType, batch: &Batch) -> Pass {
    let units = variables(model, dtype);
    let loss = run(model, &units, batch);
    let grads = loss.backward().unwrap();
    let gradient = |(parameter, var): (Parameter, Var)| {
        let gradient = grads.get(&var).unwrap_or_else(|| panic!("{} has no gradient", parameter.name));
        let gradient = gradient.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        (parameter, gradient)
    };
    Pass {
        loss: loss.to_dtype(DType::F64).unwrap().to_scalar().unwrap(),
        gradients: units.into_iter().flatten().map(gradient).collect(),
    }
}

/// One model on the ranks of a mesh `[1, 1, cp, tp]`: the sum of the losses over cp, and whole gradients.
fn on_mesh(cp: usize, tp: usize, config: &Config, options: &Options, dtype: DType) -> (f64, Named) {
    let world = Communicator::local(cp * tp).unwrap();
    let order: Vec<usize> = (0..world.len()).collect();
    let mesh = Mesh::new([1, 1, cp, tp]).unwrap();
    let passes = each(&world, |comm| {
        let groups = Groups::new(comm, mesh, &order).unwrap();
        let model = Llama::new(config.clone(), options.clone(), &groups).unwrap();
        pass(&model, dtype, &batch(config, &groups, options.balance))
    });
    let (mut loss, mut counted) = (0.0, 0);
    let mut whole = Named::new();
    for (rank, pass) in passes.iter().enumerate() {
        if mesh.coordinate(rank, Axis::Tp) == 0 {
            loss += pass.loss;
        }
        for (parameter, gradient) in &pass.gradients {
            let size = parameter.shape.iter().product();
            let sum = whole.entry(parameter.name.clone()).or_insert_with(|| vec![0.0; size]);
            if mesh.coordinate(rank, Axis::Cp) == 0 && parameter.counts {
                counted += gradient.len();
            }
            // Of those that have the same, one is enough; parts of a sum are all needed.
            if parameter.counts || parameter.partial_over.is_some() {
                for run in runs(parameter, 0..gradient.len()) {
                    let into = &mut sum[run.start..][..run.place.len()];
                    into.iter_mut().zip(&gradient[run.place]).for_each(|(sum, g)| *sum += g);
                }
            }
        }
    }
    assert_eq!(counted as f64, config.parameters(), "every number is counted once in a norm");
    (loss, whole)
}

fn one_rank() -> Groups {
    Groups::new(&Communicator::local(1).unwrap()[0], Mesh::new([1; 4]).unwrap(), &[0]).unwrap()
}

fn llama(config: &Config) -> Llama {
    Llama::new(config.clone(), Options::default(), &one_rank()).unwrap()
}

fn named(model: &Llama, dtype: DType) -> Named {
    let value = |var: &Var| var.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    variables(model, dtype).iter().flatten().map(|(p, var)| (p.name.clone(), value(var))).collect()
}

fn plain_loss(config: &Config, weights: &Named) -> f64 {
    let (tokens, labels) = text(config);
    let rows = tokens.chunks(SEQUENCE).zip(labels.chunks(SEQUENCE));
    rows.map(|(tokens, labels)| plain::forward(config, weights, tokens, labels).loss).sum()
}

/// How far two tensors are apart, beside the larger's largest element.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let largest = a.iter().chain(b).fold(1e-30, |m: f64, x| m.max(x.abs()));
    a.iter().zip(b).fold(0.0, |m: f64, (a, b)| m.max((a - b).abs())) / largest
}

fn assert_same(
    (loss, gradients): &(f64, Named),
    (expected_loss, expected): &(f64, Named),
    tolerance: f64,
    what: &str,
) {
    assert!((loss / expected_loss - 1.0).abs() < tolerance, "{what}: loss {loss}, not {expected_loss}");
    assert!(gradients.keys().eq(expected.keys()));
    for (name, gradient) in gradients {
        let distance = distance(gradient, &expected[name]);
        assert!(distance < tolerance, "{what}: the gradient of {name} is off by {distance:e}");
    }
}

#[test]
fn is_what_plain_loops_give() {
    for config in configs() {
        let model = llama(&config);
        for (dtype, tolerance) in
            [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::BF16, 2e-2), (DType::F16, 5e-3)]
        {
            let units = variables(&model, dtype);
            let loss = run(&model, &units, &batch(&config, &one_rank(), Balance::default()));
            assert_eq!(loss.dtype(), if dtype == DType::F64 { DType::F64 } else { DType::F32 });
            let loss = loss.to_dtype(DType::F64).unwrap().to_scalar::<f64>().unwrap();
            let expected = plain_loss(&config, &named(&model, dtype));
            assert!((loss / expected - 1.0).abs() < tolerance, "{dtype:?}: {loss}, not {expected}");
        }
    }
}

#[test]
fn logits_are_what_plain_loops_give() {
    let config = untied();
    let model = llama(&config);
    let units = variables(&model, DType::F64);
    let batch = batch(&config, &one_rank(), Balance::default());
    let weights =
        |unit: usize| units[unit].iter().map(|(_, var)| var.as_tensor().clone()).collect::<Vec<_>>();
    let mut x = model.forward(0, &weights(0), None, &batch).unwrap();
    for layer in 1..=config.num_hidden_layers {
        x = model.forward(layer, &weights(layer), Some(&x), &batch).unwrap();
    }
    let logits = model.logits(&weights(config.num_hidden_layers + 1), &x).unwrap();
    assert_eq!(logits.dims(), [SEQUENCES, SEQUENCE, config.vocab_size]);
    let (tokens, labels) = text(&config);
    let all = named(&model, DType::F64);
    let expected: Vec<f64> = tokens
        .chunks(SEQUENCE)
        .zip(labels.chunks(SEQUENCE))
        .flat_map(|(tokens, labels)| plain::forward(&config, &all, tokens, labels).logits)
        .collect();
    assert!(distance(&logits.flatten_all().unwrap().to_vec1().unwrap(), &expected) < 1e-12);
}

#[test]
fn every_parameter_s_gradient_is_the_difference_of_plain_losses() {
    const STEP: f64 = 1e-5;
    for config in configs() {
        let model = llama(&config);
        let pass = pass(&model, DType::F64, &batch(&config, &one_rank(), Balance::default()));
        let weights = named(&model, DType::F64);
        for (parameter, gradient) in pass.gradients {
            assert!(gradient.iter().any(|&g| g != 0.0), "{} has a gradient of zeros", parameter.name);
            let at = |i: usize, step: f64| {
                let mut weights = weights.clone();
                weights.get_mut(&parameter.name).unwrap()[i] += step;
                plain_loss(&config, &weights)
            };
            let places: Vec<usize> = (0..gradient.len()).step_by(gradient.len().div_ceil(6)).collect();
            let found: Vec<f64> = places.iter().map(|&i| gradient[i]).collect();
            let expected: Vec<f64> =
                places.iter().map(|&i| (at(i, STEP) - at(i, -STEP)) / (2.0 * STEP)).collect();
            let distance = distance(&found, &expected);
            assert!(distance < 1e-6, "{}: {found:?}, not {expected:?}: {distance:e}", parameter.name);
        }
    }
}

#[test]
fn ranks_that_divide_it_compute_the_same_model() {
    let options =
        |sequence_parallel, kv_replicas| Options { sequence_parallel, kv_replicas, ..Options::default() };
    for config in configs() {
        let expected = on_mesh(1, 1, &config, &options(false, 1), DType::F64);
        let exact = on_mesh(1, 1, &config, &options(false, 1), DType::F32);
        assert_same(&exact, &expected, 1e-5, "f32");
        for sequence_parallel in [false, true] {
            for (cp, tp, kv_replicas) in
                [(1, 2, 1), (1, 3, 1), (1, 2, 2), (1, 4, 2), (1, 4, 4), (2, 1, 1), (4, 1, 1), (2, 2, 1)]
            {
                if sequence_parallel && (tp == 1 || !(SEQUENCE / cp).is_multiple_of(tp)) {
                    continue;
                }
                let options = options(sequence_parallel, kv_replicas);
                let found = on_mesh(cp, tp, &config, &options, DType::F64);
                assert_same(&found, &expected, 1e-11, &format!("cp={cp} tp={tp} {options:?}"));
            }
        }
    }
}

/// No gradient for what is frozen, the same as ever for the rest.
#[test]
fn what_is_frozen_changes_no_other_gradient() {
    let config = biased();
    let run = |freeze: &[&str]| {
        let freeze = freeze.iter().map(|pattern| (*pattern).to_owned()).collect();
        let model =
            Llama::new(config.clone(), Options { freeze, ..Options::default() }, &one_rank()).unwrap();
        let units = variables(&model, DType::F64);
        let mut x = None;
        for (stage, unit) in model.stages().into_iter().enumerate() {
            let weight = |(p, var): &(Parameter, Var)| {
                if p.frozen { var.as_detached_tensor() } else { var.as_tensor().clone() }
            };
            let weights: Vec<Tensor> = units[unit].iter().map(weight).collect();
            x = Some(
                model
                    .forward(stage, &weights, x.as_ref(), &batch(&config, &one_rank(), Balance::default()))
                    .unwrap(),
            );
        }
        let grads = x.unwrap().backward().unwrap();
        let values = |g: &Tensor| g.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        units
            .iter()
            .flatten()
            .filter_map(|(p, var)| Some((p.name.clone(), values(grads.get(var)?))))
            .collect::<Named>()
    };
    let all = run(&[]);
    let some = run(&["model.embed*", "*.mlp.*", "*layers.0.*.weight"]);
    assert!(
        some.len() > 10 && some.keys().all(|name| !name.contains("mlp") && !name.contains("embed")),
        "{:?}",
        some.keys()
    );
    for (name, gradient) in some {
        assert_eq!(gradient, all[&name], "{name}");
    }
}

#[test]
fn forms_of_attention_over_ranks_are_equal() {
    let config = config();
    let expected = on_mesh(1, 1, &config, &Options::default(), DType::F64);
    for attention in [Form::Ring, Form::AllGather] {
        for balance in [Balance::Zigzag, Balance::Contiguous] {
            let options = Options { attention, balance, ..Options::default() };
            let found = on_mesh(2, 1, &config, &options, DType::F64);
            assert_same(&found, &expected, 1e-11, &format!("{options:?}"));
        }
    }
}

#[test]
fn dropout_does_not_depend_on_who_computes() {
    let config = config();
    let without = on_mesh(1, 1, &config, &Options::default(), DType::F64);
    let options = Options { dropout: 0.2, seed: 4, ..Options::default() };
    let expected = on_mesh(1, 1, &config, &options, DType::F64);
    assert!((without.0 / expected.0 - 1.0).abs() > 1e-3, "nothing was dropped");
    let other = on_mesh(1, 1, &config, &Options { seed: 5, ..options.clone() }, DType::F64);
    assert!((other.0 / expected.0 - 1.0).abs() > 1e-3, "another seed drops the same");
    for (cp, tp, sequence_parallel) in [(1, 2, false), (1, 2, true), (2, 1, false), (2, 2, true)] {
        let options = Options { sequence_parallel, ..options.clone() };
        let found = on_mesh(cp, tp, &config, &options, DType::F64);
        assert_same(&found, &expected, 1e-11, &format!("cp={cp} {options:?}"));
    }
}

#[test]
fn units_hold_every_tensor_once_under_its_own_name() {
    for config in configs() {
        let model = llama(&config);
        let (units, stages) = (model.units(), model.stages());
        assert_eq!(stages.len(), config.num_hidden_layers + 2);
        assert_eq!(units.len(), stages.len() - usize::from(config.tie_word_embeddings));
        assert_eq!(stages[stages.len() - 1] == stages[0], config.tie_word_embeddings);
        let held: BTreeMap<String, Vec<usize>> =
            units.iter().flat_map(|u| &u.parameters).map(|p| (p.name.clone(), p.shape.clone())).collect();
        let expected = config.tensors();
        assert_eq!(held.len(), expected.len());
        for (name, shape, init) in expected {
            assert_eq!(held[&name], shape);
            let parameter = units.iter().flat_map(|u| &u.parameters).find(|p| p.name == name).unwrap();
            assert_eq!((parameter.init, parameter.decays), (init, shape.len() > 1));
        }
    }
}

#[test]
fn what_does_not_fit_is_said_before_training() {
    let groups = one_rank();
    let told =
        |config: Config, options: Options| Llama::new(config, options, &groups).err().unwrap().to_string();
    assert!(told(config(), Options { dropout: 1.0, ..Options::default() }).contains("dropout=1"));
    assert!(told(Config { head_dim: 3, ..config() }, Options::default()).contains("head_dim=3"));
    assert!(told(config(), Options { kv_replicas: 2, ..Options::default() }).contains("kv_replicas=2"));
    let tokens = |s: usize| Tensor::zeros((1, s), DType::U32, &Device::Cpu).unwrap();
    let mut batch = Batch::new(tokens(4), tokens(3)).unwrap();
    assert!(batch.check(1).unwrap_err().to_string().contains("labels of [1, 3]"));
    batch.labels = tokens(4);
    assert!(batch.check(1).is_ok());
    assert!(batch.check(3).unwrap_err().to_string().contains("tp=3"));
    batch.positions.pop();
    assert!(batch.check(1).unwrap_err().to_string().contains("3 positions"));
}
