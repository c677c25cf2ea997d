//! Runs that are interrupted and go on, ranks as threads.

use std::path::Path;

use nd_comm::prelude::Communicator;
use nd_tests::worlds::each;

use super::tests::{close, small};
use super::{Config, Progress, Trainer};
use crate::checkpoint::{Saved, State, verify};
use crate::error::Result;
use crate::optim::LossScale;

/// Loss and norm of each step, as bits where they must be the same.
type Rows = Vec<(f64, f64)>;

/// The rows of a run that writes what checkpoints it is told to, by which all ranks agree.
fn run(ranks: usize, config: &Config) -> Result<Rows> {
    let mut all = each(&Communicator::local(ranks).unwrap(), |comm| {
        let mut trainer = Trainer::new(comm, config)?;
        let mut rows = Vec::new();
        while !trainer.done() {
            let row = trainer.step()?;
            rows.push((row.loss, row.grad_norm));
            trainer.checkpoint()?;
        }
        Ok(rows)
    });
    assert!(
        all.iter().flatten().all(|rows| Some(rows) == all[0].as_ref().ok()) || all.iter().all(Result::is_err)
    );
    all.swap_remove(0)
}

fn refused(ranks: usize, config: &Config) -> String {
    run(ranks, config).unwrap_err().to_string()
}

/// These settings, with checkpoints after each second step of six in a folder.
fn saving<'a>(folder: &'a Path, settings: &[(&'a str, &'a str)]) -> Config {
    let more = [
        ("checkpoint", folder.to_str().unwrap()),
        ("checkpoint-every", "2"),
        ("steps", "6"),
        ("batch", "24"),
    ];
    small(&[settings, &more].concat())
}

/// These settings, from the checkpoint of a step on.
fn resuming(folder: &Path, step: u64, settings: &[(&str, &str)]) -> Config {
    let path = folder.join(format!("step-{step:08}"));
    small(&[settings, &[("resume", path.to_str().unwrap()), ("steps", "6"), ("batch", "24")]].concat())
}

fn bits(rows: &[(f64, f64)]) -> Vec<[u64; 2]> {
    rows.iter().map(|(loss, norm)| [loss.to_bits(), norm.to_bits()]).collect()
}

#[test]
fn what_goes_on_on_the_same_mesh_has_the_same_bits() {
    for (ranks, settings) in [
        (1, &[][..]),
        (2, &[("mesh", "dp_shard=2"), ("schedule", "cosine"), ("warmup", "3")]),
        (2, &[("mesh", "dp_shard=2"), ("accumulation", "3"), ("order", "shuffled")]),
        (2, &[("mesh", "dp_shard=2"), ("dtype", "bf16")]),
        (2, &[("mesh", "dp_shard=2"), ("dtype", "f16")]),
        (4, &[("mesh", "dp_shard=2,tp=2"), ("sequence-parallel", "true")]),
        (4, &[("mesh", "dp_replicate=2,cp=2"), ("freeze", "model.embed*,*layers.0.*")]),
        (2, &[("mesh", "dp_replicate=2"), ("zero", "0")]),
        (2, &[("mesh", "tp=2"), ("hidden", "96"), ("heads", "12"), ("kv-heads", "3"), ("kv-replicas", "2")]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let whole = run(ranks, &saving(folder.path(), settings)).unwrap();
        for step in [2, 4] {
            let rest = run(ranks, &resuming(folder.path(), step, settings)).unwrap();
            assert_eq!(bits(&rest), bits(&whole[step as usize..]), "{settings:?} from step {step}");
        }
        for found in verify(folder.path()).unwrap() {
            assert!(matches!(found.state, State::Whole { .. }), "{settings:?}: {found:?}");
        }
    }
}

/// Steps that were skipped count as steps and not as updates, and the scale is what it was.
#[test]
fn a_loss_scale_that_fell_stays_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let config = saving(folder.path(), &[("dtype", "f16")]);
    each(&Communicator::local(1).unwrap(), |comm| {
        let mut trainer = Trainer::new(comm, &config).unwrap();
        trainer.step().unwrap();
        // Gradients overflow under this one.
        let scale = Some(LossScale::after(1e30, 7));
        trainer.training().go_on(Progress { step: 1, updates: 1, scale }, &|_, _, _, _| Ok(())).unwrap();
        let skipped = trainer.step().unwrap();
        assert!(skipped.skipped, "{skipped:?}");
        trainer.checkpoint().unwrap();
        let saved = Saved::find(folder.path()).unwrap();
        let scale = saved.manifest().loss_scale.unwrap();
        assert_eq!((saved.manifest().optimizer.updates, scale.good), (1, 0));
        assert!((scale.scale / 5e29 - 1.0).abs() < 1e-9, "{scale:?}");
    });
}

#[test]
fn any_other_mesh_goes_on_with_the_same_run() {
    let shape = [("kv-heads", "4")];
    let folder = tempfile::tempdir().unwrap();
    let (fsdp, hybrid) = (folder.path().join("fsdp"), folder.path().join("hybrid"));
    let with = |mesh: &'static str| [&shape[..], &[("mesh", mesh)]].concat();
    let whole = run(4, &saving(&fsdp, &with("dp_shard=4"))).unwrap();
    run(4, &saving(&hybrid, &with("dp_replicate=2,tp=2"))).unwrap();
    for from in [&fsdp, &hybrid] {
        for (ranks, mesh) in [
            (1, "dp_shard=1"),
            (2, "tp=2"),
            (3, "dp_shard=3"),
            (8, "dp_shard=8"),
            (8, "dp_replicate=2,dp_shard=2,tp=2"),
            (4, "tp=4"),
            (2, "cp=2"),
        ] {
            let rest = run(ranks, &resuming(from, 4, &with(mesh))).unwrap();
            close(&rest, &whole[4..], 1e-5, mesh);
        }
    }
}

#[test]
fn what_is_written_in_the_background_is_the_state_of_its_step() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    let rows = run(2, &saving(&one, &[("mesh", "dp_shard=2")])).unwrap();
    let config = saving(&other, &[("mesh", "dp_shard=2"), ("checkpoint-async", "true")]);
    assert_eq!(run(2, &config).unwrap(), rows);
    for name in ["step-00000002", "step-00000004", "step-00000006"] {
        for file in ["rank-00000.safetensors", "rank-00001.safetensors"] {
            let [a, b] = [&one, &other].map(|folder| std::fs::read(folder.join(name).join(file)).unwrap());
            assert!(a == b, "{name}/{file}");
        }
    }
    // The folder vanishes meanwhile: a later step says so.
    let config =
        saving(&folder.path().join("third"), &[("mesh", "dp_shard=2"), ("checkpoint-async", "true")]);
    let said = each(&Communicator::local(2).unwrap(), |comm| {
        let mut trainer = Trainer::new(comm, &config).unwrap();
        trainer.step().unwrap();
        trainer.step().unwrap();
        assert_eq!(trainer.checkpoint().unwrap(), None);
        if comm.rank() == 0 {
            std::fs::rename(folder.path().join("third"), folder.path().join("away")).unwrap();
        }
        comm.barrier().unwrap();
        let failed = |_| {
            trainer.step().unwrap();
            trainer.checkpoint().err()
        };
        (0..3).find_map(failed).unwrap().to_string()
    });
    assert!(
        said.iter().all(|said| said.contains("the checkpoint cannot be written: No such file")),
        "{said:?}"
    );
}

/// Of 12 bytes for each parameter each of four ranks reads a quarter, but for what rounds its shards up.
#[test]
fn each_rank_reads_its_own_part_alone() {
    let folder = tempfile::tempdir().unwrap();
    run(2, &saving(folder.path(), &[("mesh", "dp_replicate=2"), ("zero", "0")])).unwrap();
    let saved = Saved::find(folder.path()).unwrap();
    let manifest = saved.manifest();
    let elements: usize =
        manifest.tensors.values().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
    // Copies were written once, by both ranks.
    let written: u64 = manifest.files.iter().map(|file| file.bytes).sum();
    assert!(written < (12 * elements) as u64 * 11 / 10, "{written} bytes for {elements} parameters");
    let sizes: Vec<u64> = manifest.files.iter().map(|file| file.bytes).collect();
    assert!(sizes.len() == 2 && sizes[0].abs_diff(sizes[1]) < written / 5, "{sizes:?}");
    for mesh in ["dp_shard=4", "dp_shard=2,tp=2"] {
        let config = resuming(folder.path(), 6, &[("mesh", mesh)]);
        let read = each(&Communicator::local(4).unwrap(), |comm| {
            let trainer = Trainer::new(comm, &config).unwrap();
            (trainer.bytes_resumed(), trainer.begun())
        });
        let all: u64 = read.iter().map(|(bytes, _)| bytes).sum();
        // What all ranks of tp have, the norms, is read by each.
        assert!(
            all >= (12 * elements) as u64 && all < (12 * elements) as u64 * 102 / 100,
            "{mesh}: {read:?}"
        );
        assert!(read.iter().all(|(bytes, step)| *bytes < all * 2 / 5 && *step == 6), "{mesh}: {read:?}");
    }
}

#[test]
fn the_last_ones_stay_and_nothing_is_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let keep = [("keep", "2")];
    let whole = run(1, &saving(path, &keep)).unwrap();
    let names = || {
        let mut names: Vec<String> =
            path.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), [".lock", "step-00000004", "step-00000006"]);
    let error = refused(1, &saving(path, &keep));
    assert!(
        error.contains("step-00000006: it is a checkpoint") && error.contains("--resume auto"),
        "{error}"
    );
    // From the one before the last, into the same folder, would write over the last.
    let mut config = resuming(path, 4, &keep);
    config.checkpoint = Some(path.to_owned());
    assert!(refused(1, &config).contains("goes on from step 4 and would write over it"));
    // What a run that was ended has left is taken away; a whole folder of another kind is not.
    std::fs::remove_dir_all(path.join("step-00000006")).unwrap();
    std::fs::create_dir_all(path.join(".step-00000006.partial/more")).unwrap();
    std::fs::create_dir(path.join("step-00000002")).unwrap();
    assert!(verify(path).unwrap().iter().any(|found| matches!(found.state, State::Partial)));
    config.resume = Some("auto".into());
    assert_eq!(bits(&run(1, &config).unwrap()), bits(&whole[4..]));
    assert_eq!(names(), [".lock", "step-00000002", "step-00000004", "step-00000006"]);
    // Done: there is nothing to do.
    assert_eq!(run(1, &config).unwrap(), []);
    let empty = tempfile::tempdir().unwrap();
    config.checkpoint = Some(empty.path().to_owned());
    assert_eq!(bits(&run(1, &config).unwrap()), bits(&whole), "auto begins where there is nothing");
}

#[test]
fn what_is_not_whole_is_named_and_the_last_whole_one_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let whole = run(2, &saving(path, &[("mesh", "dp_shard=2")])).unwrap();
    let last = path.join("step-00000006");
    let states = || verify(path).unwrap().into_iter().map(|found| found.state).collect::<Vec<_>>();
    let said = |state: &State| match state {
        State::Damaged(error) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let file = last.join("rank-00001.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    let mut changed = bytes.clone();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&file, changed).unwrap();
    let error = said(&states()[2]);
    assert!(error.contains("rank-00001.safetensors: its digest is"), "{error}");
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    let error = said(&states()[2]);
    let (cut, len) = (bytes.len() - 1, bytes.len());
    assert!(
        error.ends_with(&format!("it has {cut} bytes and should have {len}: it is truncated")),
        "{error}"
    );
    // One by name is not replaced by another.
    assert_eq!(refused(2, &resuming(path, 6, &[("mesh", "dp_shard=2")])), error);
    let mut config = resuming(path, 6, &[("mesh", "dp_shard=2")]);
    config.resume = Some(path.to_owned());
    assert_eq!(bits(&run(2, &config).unwrap()), bits(&whole[4..]));
    std::fs::remove_file(&file).unwrap();
    assert!(said(&states()[2]).contains("rank-00001.safetensors: cannot be read"));
    std::fs::write(last.join("manifest.json"), r#"{"format": "nd-train checkpoint", "version": 9}"#).unwrap();
    assert!(said(&states()[2]).ends_with("it is of version 9, and this program reads 1"));
    std::fs::remove_file(last.join("manifest.json")).unwrap();
    assert!(said(&states()[2]).contains("step-00000006: it is no checkpoint: it has no manifest.json"));
    assert!(matches!(states()[..2], [State::Whole { step: 2, .. }, State::Whole { step: 4, .. }]));
    let empty = tempfile::tempdir().unwrap();
    assert!(verify(empty.path()).unwrap_err().to_string().contains("no checkpoint is in it"));
    config.resume = Some(empty.path().to_owned());
    assert!(refused(2, &config).contains("no checkpoint is in it; check --resume"));
}

#[test]
fn another_model_text_or_batch_is_refused_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    run(1, &saving(&path.join("all"), &[])).unwrap();
    let text = path.join("text");
    std::fs::write(&text, crate::data::text::generate(7, 20_000)).unwrap();
    for (key, value, words) in [
        ("layers", "1", ["num_hidden_layers=1", "num_hidden_layers=2"]),
        ("seq-len", "16", ["seq-len=16", "write --seq-len 32"]),
        ("betas", "0.8,0.9", ["betas=0.8,0.9", "write --betas 0.9,0.999"]),
        ("data", text.to_str().unwrap(), ["--data of 20030 bytes", "there was no --data"]),
        ("steps", "5", ["steps=5", "after step 6"]),
        ("batch", "12", ["batch=12", "write --batch 24"]),
    ] {
        let mut config = resuming(&path.join("all"), 6, &[("mesh", "dp_shard=2")]);
        config.set(key, value).unwrap();
        let said = each(&Communicator::local(2).unwrap(), |comm| {
            Trainer::new(comm, &config).err().unwrap().to_string()
        });
        assert!(said.iter().all(|said| words.iter().all(|word| said.contains(word))), "{key}: {said:?}");
    }
}

/// The folder vanishes: all ranks hear of it, and what was there is as it was.
#[test]
fn a_save_that_fails_is_one_sentence_and_leaves_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all");
    let config = saving(&path, &[("mesh", "dp_shard=2")]);
    let said = each(&Communicator::local(2).unwrap(), |comm| {
        let mut trainer = Trainer::new(comm, &config).unwrap();
        for _ in 0..2 {
            trainer.step().unwrap();
        }
        trainer.checkpoint().unwrap();
        for _ in 0..2 {
            trainer.step().unwrap();
        }
        if comm.rank() == 0 {
            std::fs::rename(&path, folder.path().join("away")).unwrap();
        }
        trainer.checkpoint().unwrap_err().to_string()
    });
    for said in said {
        assert!(
            said.contains("the checkpoint cannot be written: No such file") && said.contains("--checkpoint"),
            "{said}"
        );
    }
    let found = verify(&folder.path().join("away")).unwrap();
    assert!(found.len() == 1 && matches!(found[0].state, State::Whole { step: 2, .. }), "{found:?}");
}
