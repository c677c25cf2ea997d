//! Ranks that are processes, each of which goes wrong in one way; `nd-topo diagnose` names the culprit by what the others
//! wrote.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nd_comm::prelude::*;

/// Names what this process, a copy of this test program, does as a rank.
const FAULT: &str = "ND_TEST_FAULT";
const RANKS: usize = 4;
/// Who goes wrong.
const CULPRIT: usize = 1;

/// A rank of a job, when it is started by one of the tests below; nothing otherwise.
#[test]
fn rank() {
    let Ok(fault) = std::env::var(FAULT) else { return };
    let comm = Communicator::from_env().unwrap();
    let culprit = comm.rank() == CULPRIT;
    let mut x = vec![1f32; 1024];
    comm.barrier().unwrap();
    comm.all_reduce(&mut x, ReduceOp::Sum).unwrap();
    let third = match &fault[..] {
        "sleeps" if culprit => {
            std::thread::sleep(Duration::from_secs(6));
            comm.all_reduce(&mut x, ReduceOp::Sum)
        }
        // Until it is killed.
        "sleeps, and says so" if culprit => {
            // Any thread may ask, for instance one that looks whether the others get on.
            let name = "nd-recorder.asked.rank1.json";
            comm.dump_recorder(Path::new(&std::env::var("ND_TEST_DUMP").unwrap()).join(name)).unwrap();
            loop {
                std::thread::park();
            }
        }
        "sleeps for ever" | "dies" if culprit => {
            std::fs::write(Path::new(&std::env::var("ND_TEST_DUMP").unwrap()).join("here"), "").unwrap();
            loop {
                std::thread::park();
            }
        }
        "differs" if culprit => comm.all_gather(&x[..512], &mut vec![0f32; 512 * RANKS]),
        "leaves" if culprit => return,
        // Ranks 1 and 3 are one half, and rank 1 stops there.
        "hangs in a part" => {
            let half = comm.split(comm.rank() as u64 % 2, 0).unwrap();
            half.barrier().unwrap();
            match culprit {
                true => loop {
                    std::thread::park();
                },
                false => half.all_reduce(&mut x, ReduceOp::Max).and_then(|()| comm.barrier()),
            }
        }
        "is well" => {
            comm.dump_recorder(
                Path::new(&std::env::var("ND_TEST_DUMP").unwrap()).join(format!("{}.json", comm.rank())),
            )
            .unwrap();
            comm.barrier()
        }
        _ => comm.all_reduce(&mut x, ReduceOp::Sum),
    };
    match third {
        Ok(()) => assert_eq!(fault, "is well"),
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(3);
        }
    }
}

struct Job {
    ranks: Vec<Option<Child>>,
    folder: tempfile::TempDir,
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in self.ranks.iter_mut().flatten() {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

fn start(fault: &str, timeout: &str, transport: &str) -> Job {
    let folder = tempfile::tempdir().unwrap();
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).unwrap().port();
    let ranks = (0..RANKS).map(|rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "rank", "--nocapture"]);
        for name in ["ND_SECRET", "ND_SECRET_FILE", "ND_AUTH", "ND_RECORDER_CALLS"] {
            command.env_remove(name);
        }
        let of = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", RANKS), ("LOCAL_WORLD_SIZE", RANKS)];
        command.envs(of.map(|(name, value)| (name, value.to_string())));
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env(FAULT, fault).env("ND_TIMEOUT", timeout).env("ND_TRANSPORT", transport);
        command.env("ND_RECORDER_DIR", folder.path()).env("ND_TEST_DUMP", folder.path());
        command.env("ND_TRACE", folder.path().join("trace-%r.json"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Some(command.spawn().unwrap())
    });
    Job { ranks: ranks.collect(), folder }
}

impl Job {
    fn pid(&self, rank: usize) -> u32 {
        self.ranks[rank].as_ref().unwrap().id()
    }

    fn kill(&mut self, rank: usize) {
        let mut child = self.ranks[rank].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Waits for all but some.
    fn ends(&mut self, but: &[usize]) {
        let until = Instant::now() + Duration::from_secs(120);
        for (rank, child) in self.ranks.iter_mut().enumerate().filter(|(r, _)| !but.contains(r)) {
            while let Some(running) = child {
                if running.try_wait().unwrap().is_some() {
                    *child = None;
                } else {
                    assert!(Instant::now() < until, "rank {rank} does not end");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }

    /// Waits until the culprit has finished two calls, for at most a minute.
    fn waits_for_the_culprit(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.folder.path().join("here").exists() {
            assert!(Instant::now() < until, "it does not come so far");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn diagnose(&self) -> serde_json::Value {
        let output = nd_topo(&[self.folder.path().to_str().unwrap(), "--json", "-"]);
        assert!(output.status.success(), "{output:?}");
        let shown = nd_topo(&[self.folder.path().to_str().unwrap()]);
        println!("{}", String::from_utf8_lossy(&shown.stdout));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn nd_topo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nd-topo")).arg("diagnose").args(arguments).output().unwrap()
}

#[track_caller]
fn says(finding: &serde_json::Value, verdict: &str, culprits: &[usize], call: u32, parts: &[&str]) {
    let text = finding["text"].as_str().unwrap();
    assert_eq!(finding["verdict"], verdict, "{text}");
    assert_eq!(finding["culprits"], serde_json::json!(culprits), "{text}");
    assert_eq!(finding["call"], call, "{text}");
    for part in parts {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

const THIRD: &str = "call 3, all_reduce(1024 × float, sum)";
const SECOND: &str = "call 2, all_reduce(1024 × float, sum)";

#[test]
fn who_sleeps_and_comes_too_late() {
    let mut job = start("sleeps", "2s", "auto");
    let who = format!("pid {})", job.pid(CULPRIT));
    job.ends(&[]);
    let found = job.diagnose();
    assert_eq!(found["diagnoses"][0]["ranks_with_files"], serde_json::json!([0, 1, 2, 3]));
    let finding = &found["diagnoses"][0]["findings"][0];
    says(
        finding,
        "late",
        &[1],
        3,
        &["Rank 1 (", &who, "came too late to ", THIRD, "ranks 0, 2 and 3 had waited"],
    );
    says(finding, "late", &[1], 3, &["It had finished ", SECOND, "and entered call 3 "]);
    // Without its own file it is still the one.
    let own = std::fs::read_dir(job.folder.path()).unwrap().map(|e| e.unwrap().path());
    for path in own.filter(|p| p.to_str().unwrap().ends_with("rank1.json")) {
        std::fs::remove_file(path).unwrap();
    }
    let finding = &job.diagnose()["diagnoses"][0]["findings"][0];
    says(finding, "silent", &[1], 3, &["Rank 1 (", &who, "left no file", THIRD, "It took part in ", SECOND]);
}

#[test]
fn who_sleeps_for_ever() {
    for transport in ["shm", "tcp"] {
        let mut job = start("sleeps for ever", "2s", transport);
        let who = format!("pid {})", job.pid(CULPRIT));
        job.ends(&[CULPRIT]);
        let found = job.diagnose();
        let finding = &found["diagnoses"][0]["findings"][0];
        says(
            finding,
            "silent",
            &[1],
            3,
            &["Rank 1 (", &who, "left no file", "ranks 0, 2 and 3 waited ", THIRD],
        );
    }
}

#[test]
fn who_sleeps_and_was_asked_where_it_is() {
    let mut job = start("sleeps, and says so", "2s", "auto");
    let who = format!("pid {})", job.pid(CULPRIT));
    job.ends(&[CULPRIT]);
    let found = job.diagnose();
    let finding = &found["diagnoses"][0]["findings"][0];
    let last = format!("The last that it finished is {SECOND}, at ");
    says(
        finding,
        "not-entered",
        &[1],
        3,
        &["Rank 1 (", &who, "has not entered ", THIRD, "ranks 0, 2 and 3", &last],
    );
}

#[test]
fn who_is_killed() {
    for transport in ["shm", "tcp"] {
        let mut job = start("dies", "60s", transport);
        let who = format!("pid {})", job.pid(CULPRIT));
        job.waits_for_the_culprit();
        job.kill(CULPRIT);
        job.ends(&[]);
        let found = job.diagnose();
        let finding = &found["diagnoses"][0]["findings"][0];
        says(finding, "lost", &[1], 3, &["Rank 1 (", &who, "is gone", THIRD, "It left no file", SECOND]);
        // Its trace lacks only the end, which readers can do without.
        let mut trace = std::fs::read_to_string(job.folder.path().join("trace-1.json")).unwrap();
        assert!(!trace.ends_with(']'), "{trace}");
        trace.push(']');
        let events: Vec<serde_json::Value> = serde_json::from_str(&trace).unwrap();
        assert_eq!(events[0]["name"], "process_name");
    }
}

#[test]
fn who_calls_something_else() {
    let mut job = start("differs", "60s", "auto");
    let who = format!("pid {}) called all_gather(512 × float)", job.pid(CULPRIT));
    job.ends(&[]);
    let found = job.diagnose();
    let finding = &found["diagnoses"][0]["findings"][0];
    let others = "ranks 0, 2 and 3 called all_reduce(1024 × float, sum)";
    says(finding, "mismatch", &[1], 3, &["as call 3: rank 1 (", &who, others, "The collective differs"]);
}

#[test]
fn who_leaves_early() {
    let mut job = start("leaves", "60s", "auto");
    job.ends(&[]);
    let found = job.diagnose();
    says(
        &found["diagnoses"][0]["findings"][0],
        "left",
        &[1],
        3,
        &["dropped its communicator", THIRD, SECOND],
    );
}

#[test]
fn who_hangs_in_a_part_of_the_world() {
    let mut job = start("hangs in a part", "2s", "auto");
    job.ends(&[CULPRIT]);
    let found = job.diagnose();
    let of = |name: &str| {
        let all = found["diagnoses"].as_array().unwrap();
        all.iter().find(|d| d["communicator"] == name).unwrap()["findings"][0].clone()
    };
    // Rank 3 waits in their half, the others in the world.
    says(
        &of("world-1c1"),
        "silent",
        &[0],
        2,
        &["Rank 0 (rank 1 of the world, ", "and rank 1 waited ", "float, max)"],
    );
    let world = of("world");
    let held_up = "rank 3 is held up in call 2, all_reduce(1024 × float, max) of communicator world-1c1";
    says(&world, "silent", &[1], 6, &["Rank 1 (", "ranks 0 and 2 waited ", held_up]);
}

#[test]
fn nothing_wrong() {
    let mut job = start("is well", "60s", "auto");
    job.ends(&[]);
    // A program that does not fail writes what it is asked for.
    let name = |rank: usize| job.folder.path().join(format!("{rank}.json")).display().to_string();
    let files: Vec<String> = (0..RANKS).map(name).collect();
    let mut arguments: Vec<&str> = files.iter().map(String::as_str).collect();
    let output = nd_topo(&arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains("Nothing wrong found: ranks 0 to 3 made the same 2 calls"),
        "{text}"
    );
    assert!(
        nd_topo(&[job.folder.path().to_str().unwrap()]).status.code() == Some(1),
        "there is no recorder's file"
    );
    for rank in 0..RANKS {
        let trace = std::fs::read(job.folder.path().join(format!("trace-{rank}.json"))).unwrap();
        let events: Vec<serde_json::Value> = serde_json::from_slice(&trace).unwrap();
        assert_eq!(events.iter().filter(|e| e["ph"] == "X").count(), 3);
    }

    // Files that are broken, hostile or not there are named, and the rest is read.
    let file = |name: &str, text: &[u8]| {
        let path = job.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let whole = std::fs::read(&files[0]).unwrap();
    let huge = file("huge", b"");
    std::fs::OpenOptions::new().write(true).open(&huge).unwrap().set_len(1 << 40).unwrap();
    let newer = String::from_utf8_lossy(&whole).replace("\"version\":1,", "\"version\":2,");
    let broken = [
        (file("cut", &whole[..whole.len() / 2]), "ends in the middle"),
        (file("empty", b""), "it is empty"),
        (file("zeros", &[0; 4096]), "not a flight recorder's file"),
        (file("deep", &[b'['; 1 << 20]), "not a flight recorder's file"),
        (file("newer", newer.as_bytes()), "has version 2"),
        (huge, "bytes, and none that a rank writes"),
        ("/dev/zero".into(), "not an ordinary file"),
        ("/no/such/file".into(), "No such file"),
    ];
    arguments.extend(broken.iter().map(|(path, _)| &path[..]));
    let output = nd_topo(&arguments);
    let (text, warnings) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && text.contains("Nothing wrong found"), "{text}");
    assert_eq!(warnings.lines().count(), broken.len(), "{warnings}");
    for (path, why) in &broken {
        let warned = |line: &str| line.starts_with(&format!("warning: {path}: ")) && line.contains(why);
        assert!(warnings.lines().any(warned), "{path}: {why}: {warnings}");
    }
    let none: Vec<&str> = broken.iter().map(|(path, _)| &path[..]).collect();
    let output = nd_topo(&none);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && said.contains("error: no flight recorder's file could be read"),
        "{said}"
    );
}
