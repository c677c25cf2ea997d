//! The recorder of communicators whose ranks are threads.

use std::path::Path;
use std::time::Duration;

use super::file::{Kind, Outcome};
use super::standstill::Is;
use super::{Dump, PREFIX, Verdict, diagnose};
use crate::communicator::Communicator;
use crate::config::Config;
use crate::number::ReduceOp;
use crate::{Error, Result};

fn each<R: Send>(ranks: &[Communicator], f: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|s| {
        let f = &f;
        let threads: Vec<_> = ranks.iter().map(|c| s.spawn(move || f(c))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn config(folder: &Path) -> Config {
    let config = Config::default().with("ND_RECORDER_DIR", folder.to_str().unwrap()).unwrap();
    config.with_timeout(Duration::from_millis(300))
}

fn read(path: &Path) -> Dump {
    Dump::parse(&std::fs::read(path).unwrap()).unwrap()
}

fn all(folder: &Path) -> Vec<Dump> {
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|p| read(p)).collect()
}

#[test]
fn calls_are_kept_with_what_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let path = |rank: usize| folder.path().join(format!("{rank}.json"));
    let config = Config::default().with("ND_RECORDER_CALLS", "4").unwrap();
    each(&Communicator::local_with(2, &config).unwrap(), |comm| {
        let peer = 1 - comm.rank();
        for _ in 0..3 {
            comm.barrier().unwrap();
        }
        comm.all_reduce(&mut [1f32; 8], ReduceOp::Max).unwrap();
        comm.broadcast(&mut vec![0u8; 5000], 1).unwrap();
        comm.all_gather_v(&vec![1i64; comm.rank() + 1], &mut [0; 3], &[1, 2]).unwrap();
        let mut got = [0u16; 3];
        comm.group(|g| {
            g.send(&[1u16; 3], peer)?;
            g.recv(&mut got, peer)
        })
        .unwrap();
        comm.dump_recorder(path(comm.rank())).unwrap();
    });
    for rank in 0..2 {
        let dump = read(&path(rank));
        assert_eq!((dump.rank, dump.world_size, dump.pid), (rank, 2, std::process::id()));
        assert_eq!((dump.forgotten, dump.calls.len(), dump.ranks.len()), (4, 4, 2));
        assert!(dump.failure.is_none() && dump.current.is_none());
        let shown: Vec<String> = dump.calls.iter().map(|c| format!("{} {c} {}", c.call, c.bytes)).collect();
        let peer = 1 - rank;
        let expected = [
            "5 broadcast(5000 × uint8, root 1) 5000".to_owned(),
            "6 all_gather_v(3 × int64) 24".to_owned(),
            format!("0 send(3 × uint16 to rank {peer}) 6"),
            format!("0 recv(3 × uint16 from rank {peer}) 6"),
        ];
        assert_eq!(shown, expected);
        let mut last = 0;
        for call in &dump.calls {
            let done = call.done_ns.unwrap();
            assert!(
                call.outcome == Outcome::Done && call.entered_ns >= last && done >= call.entered_ns,
                "{dump:?}"
            );
            last = call.entered_ns;
        }
        assert!(dump.written_ns >= dump.calls[3].done_ns.unwrap());
    }
    let both = diagnose(&[read(&path(0)), read(&path(1))]);
    assert_eq!(both[0].findings[0].verdict, Verdict::Fine);
    assert!(both[0].findings[0].text.contains("made the same 6 calls"), "{both:?}");
}

#[test]
fn who_waits_can_be_looked_at_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.json");
    let ranks = Communicator::local(2).unwrap();
    std::thread::scope(|s| {
        let waiting = ranks[0].clone();
        let call = s.spawn(move || waiting.all_reduce(&mut [1f64; 2], ReduceOp::Sum));
        let current = loop {
            ranks[0].dump_recorder(&path).unwrap();
            match read(&path).current {
                Some(current) if !current.awaited.is_empty() => break current,
                _ => std::thread::yield_now(),
            }
        };
        assert_eq!((current.awaited, current.heard), (vec![1], vec![]));
        assert_eq!(
            (current.call.to_string(), current.call.outcome),
            ("all_reduce(2 × double, sum)".into(), Outcome::Running)
        );
        let found = diagnose(&[read(&path)]);
        assert_eq!(
            (found[0].findings[0].verdict, &found[0].findings[0].culprits[..]),
            (Verdict::Silent, &[1][..])
        );
        ranks[1].all_reduce(&mut [1f64; 2], ReduceOp::Sum).unwrap();
        call.join().unwrap().unwrap();
    });
}

#[test]
fn failures_are_written_and_wrong_arguments_are_not() {
    let folder = tempfile::tempdir().unwrap();
    each(&Communicator::local_with(3, &config(folder.path())).unwrap(), |comm| {
        comm.broadcast(&mut [0f32; 2], 7).unwrap_err();
        comm.all_reduce(&mut [0f32; 2], ReduceOp::BitOr).unwrap_err();
        comm.barrier().unwrap();
        assert_eq!(all(folder.path()), []);
        comm.barrier().unwrap();
        let result = match comm.rank() {
            1 => comm.all_reduce(&mut [1f32; 4], ReduceOp::Sum),
            _ => comm.all_reduce(&mut [1f32; 5], ReduceOp::Sum),
        };
        assert!(matches!(result, Err(Error::Mismatch { .. })));
        assert!(matches!(comm.barrier(), Err(Error::Failed { .. })));
    });
    let dumps = all(folder.path());
    assert_eq!(dumps.len(), 3);
    for (rank, dump) in dumps.iter().enumerate() {
        let failure = dump.failure.as_ref().unwrap();
        assert_eq!((dump.rank, failure.kind, failure.sides.len()), (rank, Kind::Mismatch, 2));
        // The call that failed, not the one that was refused afterwards.
        let current = dump.current.as_ref().unwrap();
        assert_eq!((current.call.call, current.call.outcome), (3, Outcome::Failed));
    }
    let found = diagnose(&dumps);
    assert_eq!(
        (found[0].findings[0].verdict, &found[0].findings[0].culprits[..]),
        (Verdict::Mismatch, &[1][..])
    );
}

#[test]
fn what_the_error_says_of_the_others_is_written_as_data() {
    let folder = tempfile::tempdir().unwrap();
    let ranks = Communicator::local_with(3, &config(folder.path())).unwrap();
    each(&ranks, |comm| {
        if comm.rank() != 1 {
            assert!(matches!(comm.all_reduce(&mut [1f32; 4], ReduceOp::Sum), Err(Error::Timeout { .. })));
        }
    });
    let dumps = all(folder.path());
    assert_eq!(dumps.len(), 2);
    for dump in dumps {
        let told = dump.failure.unwrap().standstill.unwrap();
        assert_eq!((told.call.call, told.call.to_string()), (1, "all_reduce(4 × float, sum)".into()));
        assert_eq!((told.entered, told.more_missing), (vec![0, 2], 0));
        let missing: Vec<_> = told.missing.iter().map(|m| (m.rank, m.is, m.last.clone())).collect();
        assert_eq!(missing, [(1, Is::Absent, None)]);
        assert!(told.after_ns >= 300_000_000, "{}", told.after_ns);
    }
}

#[test]
fn every_part_has_its_own_file() {
    let folder = tempfile::tempdir().unwrap();
    each(&Communicator::local_with(4, &config(folder.path())).unwrap(), |comm| {
        assert!(
            comm.split_optional((comm.rank() > 0).then_some(1), 0).unwrap().is_none() == (comm.rank() == 0)
        );
        let half = comm.split(comm.rank() as u64 / 2, -(comm.rank() as i64)).unwrap();
        // Rank 3 is rank 0 of the second half, and does not come.
        if comm.rank() == 2 {
            assert!(matches!(half.barrier(), Err(Error::Timeout { .. })));
        } else if comm.rank() < 2 {
            half.barrier().unwrap();
        }
        comm.barrier().unwrap_or_default();
    });
    let dumps = all(folder.path());
    assert_eq!(dumps.iter().filter(|d| d.communicator == "world-2c1").count(), 1);
    let dump = dumps.iter().find(|d| d.communicator == "world-2c1").unwrap();
    assert_eq!((dump.rank, dump.world_rank, dump.world_size), (1, 2, 2));
    assert_eq!(dump.ranks.iter().map(|p| p.world_rank).collect::<Vec<_>>(), [3, 2]);
    let found = diagnose(&dumps);
    let half = found.iter().find(|d| d.communicator == "world-2c1").unwrap();
    assert_eq!((half.findings[0].verdict, &half.findings[0].culprits[..]), (Verdict::Silent, &[0][..]));
    assert!(half.findings[0].text.contains("Rank 0 (rank 3 of the world, "), "{}", half.findings[0].text);
}

#[test]
fn what_cannot_be_written_is_no_failure() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let blocked = config(&file.join("below"));
    for config in [
        config(folder.path()).with("ND_RECORDER_CALLS", "0")?,
        config(folder.path()).with("ND_RECORDER_DIR", "none")?,
        blocked.with("ND_TRACE", &format!("{}/below/%r", file.display()))?,
    ] {
        let ranks = Communicator::local_with(2, &config)?;
        assert!(matches!(ranks[0].barrier(), Err(Error::Timeout { .. })));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
    let off = Communicator::local_with(1, &Config::default().with("ND_RECORDER_CALLS", "0")?)?;
    let refused = off[0].dump_recorder(folder.path().join("x")).unwrap_err().to_string();
    assert!(refused.contains("ND_RECORDER_CALLS is 0"), "{refused}");
    let on = Communicator::local(1)?;
    let refused = on[0].dump_recorder(file.join("x")).unwrap_err().to_string();
    assert!(refused.contains("file/x"), "{refused}");
    Ok(())
}

#[test]
fn secrets_are_in_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace-%r").display().to_string();
    let config = config(folder.path())
        .with("ND_TRACE", &trace)
        .unwrap()
        .with("ND_SECRET", "hunter2 and his dog")
        .unwrap();
    let secret = config.secret.as_ref().unwrap().reveal_hex();
    let ranks = Communicator::local_with(2, &config).unwrap();
    each(&ranks, |comm| {
        if comm.rank() == 0 {
            comm.barrier().unwrap_err();
        }
    });
    drop(ranks);
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 3);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for hidden in ["hunter2", &secret] {
            assert!(
                !text.contains(hidden) && !file.display().to_string().contains(hidden),
                "{}",
                file.display()
            );
        }
    }
}

fn trace(path: &Path) -> Vec<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn traces_hold_every_call_of_every_communicator() {
    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("t-%p.json").display().to_string();
    let path = folder.path().join(format!("t-{}.json", std::process::id()));
    let config =
        Config::default().with("ND_TRACE", &pattern).unwrap().with("ND_RECORDER_CALLS", "0").unwrap();
    let run = |calls: usize| {
        each(&Communicator::local_with(2, &config).unwrap(), |comm| {
            let half = comm.split(comm.rank() as u64, 0).unwrap();
            for _ in 0..calls {
                comm.all_reduce(&mut [1f32; 8], ReduceOp::Sum).unwrap();
                half.broadcast(&mut [0u8; 2], 0).unwrap();
            }
            match comm.rank() {
                0 => comm.send(&[1u8], 1).unwrap(),
                _ => comm.recv(&mut [0u8], 0).unwrap(),
            }
        });
    };
    run(700);
    let events = trace(&path);
    let named =
        |events: &[serde_json::Value], name: &str| events.iter().filter(|e| e["name"] == name).count();
    assert_eq!((named(&events, "all_reduce"), named(&events, "broadcast")), (1400, 1400));
    assert_eq!((named(&events, "send"), named(&events, "recv"), named(&events, "process_name")), (1, 1, 4));
    // Events of one track follow each other.
    let mut ends = std::collections::BTreeMap::new();
    for event in events.iter().filter(|e| e["ph"] == "X") {
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let (ts, dur) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        assert!(dur >= 0.0 && ends.insert(track, ts + dur).is_none_or(|end| ts >= end - 0.01), "{event}");
    }
    assert_eq!(ends.len(), 4);
    let first = events.iter().find(|e| e["name"] == "all_reduce").unwrap();
    let expected = serde_json::json!({"count": 8, "bytes": 32, "type": "float", "op": "sum"});
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&first["args"][key], value, "{first}");
    }
    // A later communicator goes on in the same file.
    run(5);
    let events = trace(&path);
    assert_eq!((named(&events, "all_reduce"), named(&events, "process_name")), (1410, 8));
}

#[test]
fn names_of_files_begin_alike() {
    let folder = tempfile::tempdir().unwrap();
    let ranks = Communicator::local_with(2, &config(folder.path())).unwrap();
    ranks[0].barrier().unwrap_err();
    let name = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().file_name();
    let name = name.to_str().unwrap();
    assert!(name.starts_with(PREFIX) && name.ends_with(".world.rank0.json"), "{name}");
}
