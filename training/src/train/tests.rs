//! Whole runs, ranks as threads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use candle_core::DType;
use nd_comm::choose::Chooser;
use nd_comm::prelude::Communicator;
use nd_tests::worlds::{Kind, each, world};

use super::{Config, Trainer};
use crate::data::text;
use crate::error::{Error, Result};
use crate::llama::weights::save;
use crate::llama::{self, Weights};

/// A model that is trained in a moment: 8 sequences of 32 tokens a step, with some dropout.
pub(super) fn small(settings: &[(&str, &str)]) -> Config {
    let mut config = Config::default();
    let all = "hidden=32 layers=2 heads=4 kv-heads=2 ffn=48 seq-len=32 batch=8 steps=5 lr=3e-3 seed=5 clip=0.5 \
               weight-decay=0.1 dropout=0.1 mesh=dp_shard=1";
    for pair in all.split(' ') {
        let (key, value) = pair.split_once('=').unwrap();
        config.set(key, value).unwrap();
    }
    settings.iter().for_each(|(key, value)| config.set(key, value).unwrap());
    config
}

/// Loss and norm of each step.
type Rows = Vec<(f64, f64)>;

/// What every rank's run comes to, with what it makes of its trainer at the end.
fn run_with<R: Send>(
    ranks: usize,
    config: &Config,
    end: impl Fn(&mut Trainer) -> R + Sync,
) -> Vec<Result<(Rows, R)>> {
    each(&Communicator::local(ranks).unwrap(), |comm| {
        let mut trainer = Trainer::new(comm, config)?;
        let mut rows = Vec::new();
        while !trainer.done() {
            let row = trainer.step()?;
            rows.push((row.loss, row.grad_norm));
        }
        Ok((rows, end(&mut trainer)))
    })
}

/// Losses and norms of a run, which all ranks agree about.
fn run(ranks: usize, settings: &[(&str, &str)]) -> Rows {
    let mut all: Vec<_> =
        run_with(ranks, &small(settings), |_| ()).into_iter().map(|result| result.unwrap().0).collect();
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
    all.swap_remove(0)
}

#[track_caller]
pub(super) fn close(a: &[(f64, f64)], b: &[(f64, f64)], most: f64, what: &str) {
    assert_eq!(a.len(), b.len());
    for (step, (a, b)) in a.iter().zip(b).enumerate() {
        let apart = (a.0 / b.0 - 1.0).abs().max((a.1 / b.1 - 1.0).abs());
        assert!(apart < most, "{what}, step {}: {a:?} {b:?}", step + 1);
    }
}

#[test]
fn the_mesh_does_not_change_what_is_learnt_nor_what_is_dropped() {
    let one = run(1, &[]);
    assert!(one[4].0 < one[0].0 && (one[0].0 - 256f64.ln()).abs() < 0.2, "{one:?}");
    for (ranks, mesh) in
        [(2, "dp_shard=2"), (2, "tp=2"), (2, "cp=2"), (4, "dp_shard=2,tp=2"), (8, "dp_replicate=2,cp=2,tp=2")]
    {
        close(&one, &run(ranks, &[("mesh", mesh)]), 1e-5, mesh);
    }
    let sequence_parallel = [("mesh", "tp=2"), ("sequence-parallel", "true")];
    close(&one, &run(2, &sequence_parallel), 1e-5, "sequence parallel");
    // Without dropout it is another run.
    assert!((run(1, &[("dropout", "0")])[0].1 / one[0].1 - 1.0).abs() > 1e-4);
}

#[test]
fn every_call_of_a_step_takes_time_of_which_a_part_is_waited_for() {
    for (ranks, mesh, groups) in [
        (2, "dp_shard=2", &["fsdp", "loss", "world"][..]),
        (4, "dp_shard=2,tp=2", &["fsdp", "loss", "tp", "world"]),
        (4, "dp_replicate=2,cp=2", &["cp", "dp_replicate", "fsdp", "loss", "world"]),
        (1, "dp_shard=1", &[]),
    ] {
        let config = small(&[("mesh", mesh)]);
        each(&Communicator::local(ranks).unwrap(), |comm| {
            let mut trainer = Trainer::new(comm, &config).unwrap();
            let mut calls = 0;
            while !trainer.done() {
                let began = Instant::now();
                let row = trainer.step().unwrap();
                let wall = began.elapsed();
                for sent in &row.sent {
                    assert!(sent.calls > 0 && sent.bytes > 0 && !sent.took.is_zero(), "{sent:?}");
                    assert!(sent.exposed <= sent.took, "{sent:?}");
                    assert!(sent.took <= wall * sent.calls as u32, "{sent:?} in {wall:?}");
                    // What is not overlapped is exposed.
                    assert!(sent.group != "loss" || sent.took == sent.exposed, "{sent:?}");
                }
                // One thread waits.
                let exposed: Duration = row.sent.iter().map(|sent| sent.exposed).sum();
                assert!(exposed <= wall, "{exposed:?} of {wall:?}");
                let found: BTreeSet<_> = row.sent.iter().map(|sent| sent.group).collect();
                assert!(found.iter().eq(groups), "{found:?}");
                assert_eq!(row.predicted.is_empty(), row.step > 1 || comm.rank() > 0 || ranks == 1);
                calls += row.sent.iter().map(|sent| sent.calls).sum::<u64>();
            }
            assert_eq!(trainer.sent().iter().map(|sent| sent.calls).sum::<u64>(), calls);
        });
    }
}

#[test]
fn frozen_parameters_stay_and_the_mesh_does_not_change_the_rest() {
    let freeze = ("freeze", "model.embed*,*layers.0.*");
    let one = run(1, &[freeze]);
    assert!(one[4].0 < one[0].0 && (run(1, &[])[0].1 / one[0].1 - 1.0).abs() > 1e-3, "{one:?}");
    for (ranks, mesh) in [(2, "dp_shard=2"), (4, "dp_shard=2,tp=2"), (2, "cp=2")] {
        close(&one, &run(ranks, &[freeze, ("mesh", mesh)]), 1e-5, mesh);
    }
    let error = run_with(1, &small(&[("freeze", "embed")]), |_| ()).remove(0).unwrap_err().to_string();
    assert!(error.starts_with("freeze=embed names none of the"), "{error}");
}

#[test]
fn half_precision_learns_nearly_the_same() {
    let one = run(1, &[]);
    for dtype in ["bf16", "f16"] {
        close(&one, &run(2, &[("mesh", "dp_shard=2"), ("dtype", dtype)]), 2e-2, dtype);
    }
}

#[test]
fn ranks_that_run_out_of_data_go_on_without() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    // Five windows of 33 bytes and one of 10: two steps of four sequences, the second short.
    std::fs::write(&path, &text::generate(3, 400)[..5 * 33 + 10]).unwrap();
    let settings = |mesh, accumulation| {
        [("data", path.to_str().unwrap()), ("batch", "4"), ("mesh", mesh), ("accumulation", accumulation)]
    };
    let one = run(1, &settings("dp_shard=1", "1"));
    close(&one, &run(4, &settings("dp_shard=4", "1")), 1e-5, "four ranks");
    close(&one, &run(2, &settings("dp_replicate=2", "2")), 1e-5, "two ranks, two micro-batches");
    // A sequence of 10 divides into chunks for two ranks with padding.
    close(&one, &run(2, &settings("cp=2", "4")), 1e-5, "two ranks along cp");
}

#[test]
fn a_text_without_a_single_step_is_refused_with_the_numbers() {
    for (key, value, words) in [
        ("seq-len", "100000000", "1 sequence of seq-len + 1 = 100000001"),
        ("batch", "1000000000000", "a step takes 1000000000000"),
    ] {
        let error = run_with(1, &small(&[(key, value)]), |_| ()).remove(0).unwrap_err().to_string();
        assert!(error.starts_with("the text has 200") && error.contains(words), "{error}");
    }
    let odd = small(&[("hidden", "60")]);
    let error = run_with(1, &odd, |_| ()).remove(0).unwrap_err().to_string();
    assert!(error.starts_with("hidden=60 is no multiple of 2 × heads = 8"), "{error}");
}

#[test]
fn a_length_that_does_not_divide_is_padded() {
    let odd = |mesh| [("seq-len", "27"), ("mesh", mesh)];
    let one = run(1, &odd("dp_shard=1"));
    close(&one, &run(2, &odd("cp=2")), 1e-5, "cp");
    close(&one, &run(4, &odd("cp=2,tp=2")), 1e-5, "cp and tp");
}

#[test]
fn what_is_no_number_stops_all_ranks_with_step_and_rank() {
    let config = small(&[("mesh", "dp_shard=2,tp=2"), ("lr", "1e30"), ("clip", "0")]);
    for result in run_with(4, &config, |_| ()) {
        match result.unwrap_err() {
            Error::NotFinite { step, rank, .. } => {
                assert!((2..5).contains(&step) && rank == 0, "{step} {rank}")
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_smaller_loss_scale_is_tried_before_giving_up() {
    // Gradients of f16 overflow at once when they are multiplied by 2^16 of themselves.
    let config = small(&[("dtype", "f16"), ("lr", "1e30"), ("clip", "0"), ("steps", "40")]);
    let error = run_with(1, &config, |trainer| trainer.training().loss_scale()).remove(0).unwrap_err();
    assert!(error.to_string().contains("step "), "{error}");
}

#[test]
fn rows_of_f16_tell_the_loss_scale() {
    for (dtype, has) in [("f16", true), ("f32", false)] {
        let config = small(&[("dtype", dtype)]);
        let rows = each(&Communicator::local(1).unwrap(), |comm| {
            let mut trainer = Trainer::new(comm, &config).unwrap();
            (trainer.step().unwrap(), trainer.training().loss_scale())
        });
        let (row, scale) = &rows[0];
        assert!(row.loss_scale == *scale && scale.is_some() == has && !row.skipped, "{row:?} {scale:?}");
    }
}

#[test]
fn ranks_with_other_settings_are_named() {
    let results = each(&Communicator::local(3).unwrap(), |comm| {
        let seed = if comm.rank() == 2 { "6" } else { "5" };
        Trainer::new(comm, &small(&[("mesh", "dp_shard=3"), ("batch", "9"), ("seed", seed)])).err()
    });
    for error in results {
        let error = error.unwrap().to_string();
        assert!(
            error.starts_with("rank 2 (") && error.contains(") has seed 6, and ranks 0 and 1 ("),
            "{error}"
        );
        assert!(error.contains(") have seed 5;"), "{error}");
    }
}

#[test]
fn ranks_with_other_weights_are_named() {
    let folders = [1, 1, 2].map(|seed| {
        let folder = tempfile::tempdir().unwrap();
        let (model, random) = (tiny(), Weights::random(seed));
        save(folder.path(), &model, &DType::F32.into(), &mut |p, out| random.fill(p, 0..p.len(), out))
            .unwrap();
        folder
    });
    let start = |folders: &[tempfile::TempDir; 3]| {
        let config = |rank: usize| {
            let mut config = small(&[]);
            let shape = Config::default();
            (config.hidden, config.layers, config.ffn) = (shape.hidden, shape.layers, shape.ffn);
            (config.heads, config.kv_heads) = (shape.heads, shape.kv_heads);
            (config.mesh, config.batch) = ("dp_shard=3".into(), Some(9));
            config.init = Some(folders[rank].path().to_owned());
            config
        };
        each(&Communicator::local(3).unwrap(), |comm| {
            Trainer::new(comm, &config(comm.rank())).err().map_or(String::new(), |e| e.to_string())
        })
    };
    let file = |rank: usize, name: &str| folders[rank].path().join(name);
    for error in start(&folders) {
        assert!(error.starts_with("rank 2 (") && error.contains(") has model.safetensors "), "{error}");
        assert!(
            error.contains("ranks 0 and 1 (")
                && error.contains(&file(2, "model.safetensors").display().to_string())
        );
    }
    std::fs::copy(file(0, "model.safetensors"), file(2, "model.safetensors")).unwrap();
    assert_eq!(start(&folders), ["", "", ""]);
    let other = llama::Config { rms_norm_eps: 1e-3, ..tiny() };
    std::fs::write(file(1, "config.json"), other.to_json()).unwrap();
    for error in start(&folders) {
        assert!(error.starts_with("rank 1 (") && error.contains(") has config.json "), "{error}");
    }
    std::fs::write(file(1, "config.json"), tiny().to_json()).unwrap();
    std::fs::remove_file(file(1, "model.safetensors")).unwrap();
    for error in start(&folders) {
        assert!(
            error.starts_with("rank 1 (") && error.contains(") has as files to read config.json, and"),
            "{error}"
        );
    }
}

/// A model of a few thousand parameters that reads bytes.
fn tiny() -> llama::Config {
    llama::Config {
        vocab_size: 256,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 8,
        ..llama::Config::default()
    }
}

#[test]
fn meshes_that_do_not_divide_the_model_are_refused_with_the_numbers() {
    for (ranks, mesh, words) in [
        (3, "tp=3", "tp=3 does not divide num_attention_heads=4"),
        (4, "tp=4", "tp=4 does not divide num_key_value_heads=2: use tp=1 or 2, or kv_replicas=2"),
        (2, "tp=4", "4"),
    ] {
        for result in run_with(ranks, &small(&[("mesh", mesh)]), |_| ()) {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}

/// Shapes of config.json and meshes, and whatever a refusal suggests for them.
#[test]
fn whatever_is_suggested_for_heads_works() {
    let folder = tempfile::tempdir().unwrap();
    let start = |tp: usize, replicas: usize| {
        let mut config = Config { init: Some(folder.path().to_owned()), ..Config::default() };
        config.set("mesh", &format!("tp={tp}")).unwrap();
        config.set("kv-replicas", &replicas.to_string()).unwrap();
        Trainer::check(&config, tp, tp).map_err(|e| e.to_string())
    };
    let mut suggested = 0;
    for (heads, kv_heads) in (1..=12).flat_map(|heads| (1..=heads).map(move |kv_heads| (heads, kv_heads))) {
        if heads % kv_heads != 0 {
            continue;
        }
        let model = llama::Config {
            vocab_size: 5040,
            hidden_size: 4 * heads,
            intermediate_size: 5040,
            num_hidden_layers: 1,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim: 4,
            ..llama::Config::default()
        };
        std::fs::write(folder.path().join("config.json"), model.to_json()).unwrap();
        for (tp, replicas) in (1..=12).flat_map(|tp| (1..=4).map(move |replicas| (tp, replicas))) {
            let Err(error) = start(tp, replicas) else { continue };
            let (_, advice) = error.split_once(": use ").unwrap_or_else(|| panic!("{error}"));
            let numbers = |text: &str| -> Vec<usize> {
                let words = text.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
                words.map(|word| word.parse().unwrap()).collect()
            };
            // `tp=1 or 3`, `tp=1 or 3, or kv_replicas=2`, `tp=1 or 3 with kv_replicas=1`, `kv_replicas=2`.
            let (meshes, copies) = advice.split_once("kv_replicas=").unwrap_or((advice, ""));
            let (meshes, copies) = (numbers(meshes), numbers(copies));
            let fixes: Vec<(usize, usize)> = match (advice.contains(" with "), &copies[..]) {
                (true, [copies]) => meshes.iter().map(|tp| (*tp, *copies)).collect(),
                (_, copies) => {
                    let meshes = meshes.iter().map(|tp| (*tp, replicas));
                    meshes.chain(copies.iter().map(|copies| (tp, *copies))).collect()
                }
            };
            assert!(!fixes.is_empty(), "{error}");
            for (tp, replicas) in fixes {
                assert_eq!(
                    start(tp, replicas),
                    Ok(()),
                    "tp={tp} kv_replicas={replicas}, suggested by {error}"
                );
                suggested += 1;
            }
        }
    }
    assert!(suggested > 500, "{suggested}");
}

#[test]
fn heads_that_tp_does_not_divide_are_copied() {
    let shape = [("hidden", "96"), ("heads", "12"), ("kv-heads", "3")];
    let of = |ranks, more: &[(&str, &str)]| run(ranks, &[&shape[..], more].concat());
    let one = of(1, &[]);
    close(&one, &of(2, &[("mesh", "tp=2"), ("kv-replicas", "2")]), 1e-5, "tp=2");
    close(&one, &of(4, &[("mesh", "tp=4"), ("kv-replicas", "4")]), 1e-5, "tp=4");
}

/// Two ranks on each of two hosts; all ways to share the state of four ranks send the same over the same links.
#[test]
fn the_same_group_and_bytes_are_predicted_alike_on_every_mesh() {
    let begun = |mesh: &str, zero: &str| {
        let config = small(&[("mesh", mesh), ("zero", zero)]);
        let ranks = world(&Kind::Hosts(vec![0, 0, 1, 1]), 4, &Chooser::default());
        let mut all = each(&ranks, |comm| {
            let trainer = Trainer::new(comm, &config).unwrap();
            (trainer.predicted().to_vec(), trainer.spared().cloned())
        });
        let (predicted, spared) = all.swap_remove(0);
        let state = predicted.into_iter().find(|p| p.size == 4).unwrap_or_else(|| panic!("{mesh}"));
        (state, spared)
    };
    let (flat, none) = begun("dp_shard=4", "3");
    assert!(none.is_none() && flat.between_hosts && flat.group == "fsdp");
    assert_eq!(begun("dp_shard=2,cp=2", "3").0, flat);
    let hybrid = small(&[("mesh", "dp_replicate=2,dp_shard=2")]);
    let ranks = world(&Kind::Hosts(vec![0, 0, 1, 1]), 4, &Chooser::default());
    let spared = each(&ranks, |comm| Trainer::new(comm, &hybrid).unwrap().spared().cloned());
    let spared = spared.into_iter().next().flatten().unwrap();
    assert_eq!(spared.flat.us, flat.us);
    let (replicated, _) = begun("dp_replicate=4", "0");
    for mesh in ["dp_shard=4", "dp_replicate=2,dp_shard=2", "dp_shard=2,cp=2", "dp_replicate=2,cp=2"] {
        let (sum, _) = begun(mesh, "0");
        assert_eq!(
            (sum.bytes, sum.us, sum.gbps),
            (replicated.bytes, replicated.us, replicated.gbps),
            "{mesh}"
        );
    }
}

#[test]
fn what_is_no_regular_file_is_no_text() {
    for (key, path, words) in [
        ("data", "/dev/zero", "no regular file"),
        ("eval-data", "/dev/zero", "no regular file"),
        ("tokenizer", "/dev/zero", "no regular file"),
        ("data", "/dev", "the files of a folder end in"),
    ] {
        let error = run_with(1, &small(&[(key, path)]), |_| ()).remove(0).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(&format!("check --{key}")), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let config = Config { init: Some(folder.path().to_owned()), ..Config::default() };
    std::os::unix::fs::symlink("/dev/zero", folder.path().join("config.json")).unwrap();
    let error = run_with(1, &config, |_| ()).remove(0).unwrap_err().to_string();
    assert!(error.contains("config.json") && error.contains("it is a device, no regular file"), "{error}");
}

#[test]
fn what_is_sent_is_what_was_predicted() {
    for (ranks, settings) in [
        (4, "mesh=dp_shard=2,tp=2"),
        (4, "mesh=dp_shard=4"),
        (2, "mesh=dp_shard=2 accumulation=4"),
        (2, "mesh=dp_shard=2 accumulation=4 zero=2"),
        (4, "mesh=dp_shard=4 zero=0"),
        (8, "mesh=dp_replicate=2,dp_shard=2,cp=2"),
        (4, "mesh=dp_replicate=2,dp_shard=2 zero=0"),
        (4, "mesh=dp_shard=4 reshard=2"),
        (4, "mesh=dp_shard=4 reshard=never accumulation=2"),
        (4, "mesh=tp=4 kv-heads=4 sequence-parallel=true"),
        (4, "mesh=dp_shard=2,tp=2 sequence-parallel=true checkpoint-activations=true"),
        (4, "mesh=dp_shard=2,tp=2 checkpoint-activations=true"),
        (2, "mesh=tp=2 dtype=bf16 accumulation=2"),
        (4, "mesh=tp=4 kv-replicas=2"),
        (4, "mesh=tp=4 kv-heads=1 kv-replicas=4"),
        (2, "mesh=tp=2 hidden=96 heads=12 kv-heads=3 kv-replicas=2"),
        (4, "mesh=cp=4"),
        (4, "mesh=cp=4 checkpoint-activations=true"),
        (4, "mesh=cp=4 cp-form=all-gather"),
        (4, "mesh=cp=4 cp-form=all-gather dtype=bf16 checkpoint-activations=true"),
        (4, "mesh=cp=4 dtype=bf16"),
        (4, "mesh=cp=2,tp=2 dtype=bf16 sequence-parallel=true"),
    ] {
        let pairs: Vec<_> = "hidden=64 ffn=256"
            .split(' ')
            .chain(settings.split(' '))
            .map(|p| p.split_once('=').unwrap())
            .collect();
        let mut all = run_with(ranks, &small(&pairs), |trainer| {
            let mut sent = BTreeMap::<&str, f64>::new();
            for ((group, _), entry) in trainer.groups().ledger().entries() {
                *sent.entry(group).or_default() += entry.bytes as f64 / 5.0;
            }
            (trainer.predicted().to_vec(), sent)
        });
        let (_, (predicted, sent)) = all.remove(0).unwrap();
        for p in &predicted {
            let ratio = sent[p.group] / p.bytes;
            assert!(
                (ratio - 1.0).abs() < 0.05,
                "{settings}, {}: sent {ratio} of what was predicted",
                p.group
            );
        }
        // The norm, the loss and whether all is well are a few numbers.
        let most = predicted.iter().map(|p| p.bytes).fold(0.0, f64::max);
        for (group, bytes) in sent {
            assert!(predicted.iter().any(|p| p.group == group) || bytes < 0.05 * most, "{settings}: {group}");
        }
    }
}

#[test]
fn another_text_is_measured_and_nothing_learnt_from_it() {
    let settings = [("mesh", "dp_shard=2"), ("eval-data", "made"), ("eval-every", "2"), ("dropout", "0")];
    let config = small(&settings);
    let all = each(&Communicator::local(2).unwrap(), |comm| {
        let mut trainer = Trainer::new(comm, &config).unwrap();
        let mut rows = Vec::new();
        while !trainer.done() {
            rows.push(trainer.step().unwrap());
        }
        (rows, trainer.evaluate().unwrap())
    });
    assert_eq!(all[0].1, all[1].1);
    let (rows, last) = &all[0];
    let measured: Vec<u64> = rows.iter().filter(|row| row.eval_loss.is_some()).map(|row| row.step).collect();
    assert_eq!(measured, [2, 4, 5]);
    assert_eq!(rows[4].eval_loss, *last);
    let without: Vec<(f64, f64)> = run(2, &[("mesh", "dp_shard=2"), ("dropout", "0")]);
    assert_eq!(rows.iter().map(|row| (row.loss, row.grad_norm)).collect::<Vec<_>>(), without);
}
