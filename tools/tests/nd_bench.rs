//! `nd-bench` as people run it.

use std::path::Path;
use std::process::{Command, Output};

fn nd_bench(line: &str) -> Output {
    with(line, &[])
}

fn with(line: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nd-bench"));
    let inherited = ["RANK", "WORLD_SIZE", "ND_ALGO", "ND_TRANSPORT", "MASTER_ADDR"];
    for name in inherited {
        command.env_remove(name);
    }
    command
        .args(line.split_whitespace())
        .envs(environment.iter().copied())
        .output()
        .expect("nd-bench can be started")
}

fn stdout(out: &Output) -> String {
    let text = String::from_utf8(out.stdout.clone()).expect("the table is text");
    assert!(out.status.success(), "{:?}\n{text}\n{}", out.status, stderr(out));
    text
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// The columns of each row.
fn rows(text: &str) -> Vec<Vec<String>> {
    let row = |l: &str| l.split_whitespace().map(str::to_owned).collect();
    text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).map(row).collect()
}

#[track_caller]
fn all_right(text: &str) {
    for row in rows(text) {
        // With -I four columns more in each half.
        let second = if row.len() > 13 { 16 } else { 12 };
        for wrong in [&row[8], &row[second]] {
            assert!(wrong == "0" || wrong == "N/A", "{row:?}");
        }
    }
    assert!(!text.contains("FAILED"), "{text}");
}

#[test]
fn a_table_as_nccl_tests_prints_it() {
    let text = stdout(&nd_bench("allreduce --threads --ranks 2 -b 8 -e 4K -f 8 -n 3"));
    let rows = rows(&text);
    assert_eq!(rows.iter().map(|r| r[0].as_str()).collect::<Vec<_>>(), ["8", "64", "512", "4096"]);
    for row in &rows {
        assert_eq!(row.len(), 13, "{row:?}");
        assert_eq!(row[2..5], ["float", "sum", "-1"]);
        assert_eq!((row[8].as_str(), row[12].as_str()), ("0", "0"));
        assert!(row[5..8].iter().all(|n| n.parse::<f64>().is_ok()), "{row:?}");
    }
    for line in
        ["# Out of bounds values : 0 OK", "# Collective test concluded: allreduce", "# allreduce: 8 B–"]
    {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn every_collective_type_and_operation_is_right() {
    let ops = "sum,prod,min,max,avg,band,bor,bxor";
    for ranks in [1, 3] {
        let line = format!("all --threads --ranks {ranks} -b 0 -e 2K -f 16 -n 1 -d all -r -1 -o {ops}");
        let text = stdout(&nd_bench(&line));
        all_right(&text);
        assert_eq!(text.matches("Collective test concluded").count(), 10);
        // 8 types of integers with 8 operations, 6 of floats with 5.
        let kinds = 8 * 8 + 6 * 5;
        let reduced = rows(&text).iter().filter(|r| r[3] != "none" && r[4] == "-1").count();
        assert_eq!(reduced, 2 * kinds * 4, "allreduce and reducescatter, 4 sizes");
    }
    let text =
        stdout(&nd_bench("allreduce,reducescatter --threads --ranks 3 -b 2K -e 2K -n 1 -d all -o mulsum"));
    all_right(&text);
}

#[test]
fn scaling_leaves_other_ranks_buffers_alone() {
    all_right(&stdout(&nd_bench("reduce --threads --ranks 3 -b 2K -e 2K -n 1 -d all -o all -r -1")));
}

#[test]
fn plain_buffers_spread_averages_and_cycles() {
    let text = stdout(&nd_bench(
        "allgather --threads --ranks 2 --buffers plain -b 1K -e 1K -n 4 -I -a 3 -N 2 -c 2 -d half",
    ));
    let rows = rows(&text);
    assert_eq!((rows.len(), rows[0].len()), (2, 5 + 8 * 2));
    assert!(text.contains("i_cv%") && text.contains("2 ranks as threads, plain buffers"));
    all_right(&text);
    let text = stdout(&nd_bench("reduce --threads --ranks 2 -b 8 -e 8 -n 1 -c 0"));
    assert!(text.contains("N/A"), "{text}");
}

#[test]
fn algorithms_by_name_and_why() {
    let text =
        stdout(&nd_bench("allreduce --threads --ranks 3 --algo ring -b 64 -e 64K -f 32 -n 1 --explain"));
    assert!(text.contains("# allreduce: 64 B–64 KiB ring over local"), "{text}");
    assert!(text.contains("asked for by name") && text.contains("#   rank 2: "), "{text}");
    all_right(&text);
}

#[test]
fn processes_over_every_transport() {
    for transport in ["shm", "tcp"] {
        let line = format!(
            "all --ranks 3 --transport {transport} -b 0 -e 64K -f 64 -n 2 -d float,bfloat16 -o sum,avg"
        );
        let text = stdout(&nd_bench(&line));
        all_right(&text);
        assert!(
            text.contains(&format!("over {transport}")) && text.contains("3 ranks as processes"),
            "{text}"
        );
        assert_eq!(text.matches("Collective test concluded").count(), 10);
    }
}

#[test]
fn under_a_launcher_it_takes_its_rank() {
    let one = with("allreduce -b 8 -e 8 -n 1", &[("RANK", "0"), ("WORLD_SIZE", "1")]);
    assert!(stdout(&one).contains("1 rank as processes"));
    let e = with("allreduce --threads", &[("RANK", "0"), ("WORLD_SIZE", "1")]);
    assert!(stderr(&e).contains("--threads: nd-run or torchrun started"), "{}", stderr(&e));
    let e = with("allreduce", &[("RANK", "2"), ("WORLD_SIZE", "2")]);
    assert_eq!(e.status.code(), Some(2));
    assert!(stderr(&e).contains("RANK"), "{}", stderr(&e));
    let e = with("allreduce", &[("RANK", "2")]);
    assert!(stderr(&e).contains("WORLD_SIZE"), "{}", stderr(&e));
}

#[test]
fn json_and_pictures() {
    let dir = tempfile::tempdir().unwrap();
    let (json, svg) = (dir.path().join("out.json"), dir.path().join("out.svg"));
    let line = format!(
        "allreduce --threads --ranks 4 -b 8 -e 64K -f 8 -n 2 -I -J {} --plot {}",
        json.display(),
        svg.display()
    );
    stdout(&nd_bench(&line));
    let document: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(document["version"], 3);
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 5);
    let first = &results[0];
    assert_eq!(
        (&first["size"], &first["type"], &first["redop"]),
        (&8.into(), &"float".into(), &"sum".into())
    );
    assert!(first["out_of_place"]["time"].as_f64().unwrap() > 0.0);
    assert_eq!(first["in_place"]["nwrong"], 0);
    assert_eq!(first["out_of_place_per_iter"]["times_us"].as_array().unwrap().len(), 2);
    assert_eq!(document["devices"].as_array().unwrap().len(), 4);
    assert_eq!(document["out_of_bounds"]["okay"], "true");
    for key in
        ["start_time", "args", "env", "nccl_version", "config", "average_bus_bandwidth", "errors", "end_time"]
    {
        assert!(!document[key].is_null(), "{key}");
    }
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(
        picture.contains("allreduce · 4 ranks over local · float sum")
            && picture.matches("<circle").count() > 20
    );

    let line = format!(
        "broadcast,reduce --threads --ranks 2 -b 8 -e 64 -n 1 -o sum,max --plot {}",
        dir.path().join("p.png").display()
    );
    stdout(&nd_bench(&line));
    for name in ["p-broadcast.png", "p-reduce-float-sum-root-0.png", "p-reduce-float-max-root-0.png"] {
        let bytes = std::fs::read(dir.path().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 10_000, "{name}");
    }
}

#[test]
fn what_is_wrong_is_said_with_a_remedy() {
    let missing = "/dev/null/out.json";
    for (line, code, parts) in [
        ("alreduce", 2, &["error: ", "did you mean allreduce?"][..]),
        ("allreduce -b 2M -e 1M", 2, &["error: -b 2 MiB is larger than -e 1 MiB"]),
        ("allreduce --ranks 2 -r 2", 2, &["error: -r 2: no such rank; ranks are 0 to 1"]),
        ("allreduce --threads -e 900T", 2, &["error: -e 900 TiB", "lower -e"]),
        ("allreduce --plot x.pdf", 2, &["error: ", ".svg or .png"]),
        ("allreduce --algo rign", 2, &["did you mean ring?"]),
        (
            "allreduce --threads --ranks 2 -e 8 -J /dev/null/out.json",
            1,
            &["error: cannot write", missing, "--json"],
        ),
        ("", 2, &["COLLECTIVE"]),
    ] {
        let out = nd_bench(line);
        assert_eq!(out.status.code(), Some(code), "{line}: {}", stderr(&out));
        assert!(out.stdout.is_empty(), "{line}");
        for part in parts {
            assert!(stderr(&out).contains(part), "{line}: {}", stderr(&out));
        }
    }
    assert!(!Path::new(missing).exists());
}

#[test]
fn a_rank_that_is_killed_ends_all_and_is_named() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nd-bench"))
        .args("allreduce --ranks 3 -b 1K -e 1K -n 1 -N 0".split_whitespace())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The table names the processes.
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let device = lines.by_ref().map(Result::unwrap).find(|l| l.starts_with("#  Rank  2 ")).unwrap();
    let pid: i32 = device.split_whitespace().skip_while(|w| *w != "Pid").nth(1).unwrap().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    lines.for_each(drop);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("rank 2"), "{}", stderr(&out));
    assert!(stderr(&out).contains("SIGKILL"), "{}", stderr(&out));
}

/// Those too that never had a connection to it, which takes longer to make than a call may take.
#[test]
fn all_name_the_rank_that_stopped() {
    let n = 6;
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        Command::new(env!("CARGO_BIN_EXE_nd-bench"))
            .args("barrier -n 20 -N 0".split_whitespace())
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", n.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("ND_SECRET", "5e".repeat(32))
            .env("ND_TRANSPORT", "tcp")
            .env("ND_TIMEOUT", "1500ms")
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut children: Vec<_> = (0..n).map(start).collect();
    // One that is stopped does not end by itself.
    struct Ended(std::process::Child);
    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let mut first = Ended(children.remove(0));
    // The table begins once all have met.
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(first.0.stdout.take().unwrap()));
    lines.by_ref().map(Result::unwrap).find(|l| l.starts_with("#  Rank  5 ")).unwrap();
    let pid = rustix::process::Pid::from_raw(first.0.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let began = std::time::Instant::now();
    let outs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    assert!(outs.iter().all(|out| out.status.code() == Some(1)));
    // Whoever heard it from others says nothing.
    let said: Vec<_> = outs.iter().map(stderr).filter(|text| !text.is_empty()).collect();
    assert!(!said.is_empty() && said.iter().all(|text| text.contains("rank 0 (")), "{said:?}");
    // Connecting may take 60 s.
    assert!(began.elapsed() < std::time::Duration::from_secs(30), "{:?}", began.elapsed());
}

#[test]
fn what_goes_wrong_on_purpose_is_told_by_those_who_go_on() {
    let environment = [("ND_TIMEOUT", "1500ms"), ("ND_RECORDER_DIR", "none")];
    for (fault, transport, went_on) in [
        ("kill:2@200ms", "shm", 2),
        ("kill:0@100ms", "tcp", 2),
        ("stop:1@50ms", "shm", 2),
        ("exit:1@50ms", "tcp", 2),
        ("abort:2@50ms", "tcp", 3),
        ("mismatch:0@50ms", "shm", 3),
        ("kill:1@50ms,abort:0@5m", "shm", 2),
    ] {
        let line = format!("allreduce --ranks 3 --transport {transport} -e 64K -f 8 --fault {fault}");
        let out = with(&line, &environment);
        let said = stdout(&out);
        let told = said.lines().filter(|l| l.starts_with("# rank ") && l.contains(" s: "));
        assert_eq!(told.count(), went_on, "{fault}: {said}");
        let all = format!("# {went_on} of {went_on} ranks that went on named rank");
        assert!(said.contains(&all) && said.contains("a call may wait 1.5 s"), "{fault}: {said}");
    }
    // Whether the others were waiting for the one that is gone or for the one that is stopped.
    let out =
        with("allreduce --ranks 4 --transport shm -e 64K --fault kill:1@50ms,stop:2@50ms", &environment);
    let said = stdout(&out);
    for told in said.lines().filter(|l| l.starts_with("# rank ") && l.contains(" s: ")) {
        assert!(told.contains("rank 1 on ") && told.contains("is lost"), "{said}");
        assert!(told.matches("this rank was waiting for").count() < 2, "{said}");
    }
    assert!(said.contains("# 2 of 2 ranks that went on named ranks 1 or 2"), "{said}");
    let out = with("allreduce --ranks 2 --threads -e 4K --fault abort:1@20ms", &environment);
    assert_eq!(stdout(&out).lines().filter(|l| l.contains("aborted this communicator")).count(), 2);
    assert!(stdout(&out).contains("# 2 of 2 ranks that went on named rank 1"), "{}", stdout(&out));
    for (line, parts) in [
        ("allreduce --fault kil:2@3s", &["did you mean kill?", "such as kill:2@3s"][..]),
        ("allreduce --ranks 2 --fault stop:2", &["stop:2: no such rank; ranks are 0 to 1"]),
        ("allreduce --ranks 2 --threads --fault exit:1", &["leave out --threads"]),
        ("allreduce --fault kill:1 --plot x.svg", &["cannot be used with"]),
    ] {
        let out = nd_bench(line);
        assert_eq!(out.status.code(), Some(2), "{line}: {}", stderr(&out));
        parts.iter().for_each(|part| assert!(stderr(&out).contains(part), "{line}: {}", stderr(&out)));
    }
}

#[test]
fn links_are_measured_and_the_file_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("costs.toml");
    let path = path.to_str().unwrap();
    let text = stdout(&nd_bench(&format!(
        "allreduce --ranks 2 --transport shm -b 8 -e 64K -f 64 -n 3 --explain --calibrate {path}"
    )));
    assert!(text.contains("# calibration: ") && text.contains("shm between ranks of a host"), "{text}");
    assert!(
        text.contains("candidates at 8 B: ") && text.contains("# predicted against measured, µs:"),
        "{text}"
    );
    assert!(text.contains("# median of |predicted - measured| / measured: "), "{text}");
    all_right(&text);
    let written = std::fs::read_to_string(path).unwrap();
    assert!(written.contains("transport = \"shm\""), "{written}");

    // From then on; what another run measures is added.
    let again = with("allreduce --ranks 2 -b 8 -e 8 -n 1 --explain", &[("ND_CALIBRATION", path)]);
    assert!(stdout(&again).contains("predicted against measured"));
    stdout(&nd_bench(&format!("allreduce --threads --ranks 2 -b 8 -e 8 -n 1 --calibrate {path}")));
    let both = std::fs::read_to_string(path).unwrap();
    assert!(
        both.starts_with(&written[..written.len() - 1]) && both.contains("transport = \"local\""),
        "{both}"
    );

    std::fs::write(path, "[[link]]\ntransport = 7\n").unwrap();
    let out = with("allreduce --ranks 2 -b 8 -e 8 -n 1", &[("ND_CALIBRATION", path)]);
    assert_eq!(out.status.code(), Some(2), "{}", stderr(&out));
    assert!(stderr(&out).contains("ND_CALIBRATION") && stderr(&out).contains("line 2"), "{}", stderr(&out));
    let out = nd_bench(&format!("allreduce --threads --ranks 2 -b 8 -e 8 -n 1 --calibrate {path}"));
    assert!(stderr(&out).contains("is no calibration"), "{}", stderr(&out));
    assert_eq!(std::fs::read_to_string(path).unwrap(), "[[link]]\ntransport = 7\n", "somebody's file stays");
}

#[test]
fn rules_choose_by_collective_and_size() {
    let rules = [("ND_ALGO", "allreduce@64K-:ring; allreduce:^oneshot,doubling; broadcast:tree")];
    let text = stdout(&with("allreduce --ranks 4 --threads -b 1K -e 64K -f 64 -n 1 --explain", &rules));
    assert!(text.contains("64 KiB ring over local: asked for by name"), "{text}");
    let small = text.lines().find(|l| l.contains("candidates at 1024 B")).expect("candidates are listed");
    assert!(!small.contains("oneshot") && !small.contains("doubling"), "{small}");
    let text = stdout(&with("broadcast --ranks 4 --threads -b 1K -e 1K -n 1", &rules));
    assert!(text.contains("tree over local"), "{text}");
    // What only NCCL has is passed over.
    let out = with("allreduce --ranks 2 --threads -b 1K -e 1K -n 1", &[("NCCL_ALGO", "NVLS,Ring")]);
    assert!(stderr(&out).contains("nvls"), "{}", stderr(&out));
    assert!(stdout(&out).contains("ring over local"));
    let none = "^oneshot,direct,doubling,halving";
    let out = with("allreduce --ranks 2 --threads -b 1K -e 1K -n 1", &[("ND_ALGO", none)]);
    assert!(!out.status.success() && stderr(&out).contains("exclude fewer"), "{}", stderr(&out));
}

#[test]
fn ranks_that_would_choose_differently_are_told_so_at_the_start() {
    let nd_bench = env!("CARGO_BIN_EXE_nd-bench");
    let script = format!("[ $RANK = 1 ] && export ND_ALGO=ring; exec {nd_bench} allreduce -b 8 -e 8 -n 1");
    let out = Command::new(env!("CARGO_BIN_EXE_nd-run"))
        .args(["-n", "3", "--", "sh", "-c", &script])
        .env_remove("ND_ALGO")
        .output()
        .expect("nd-run can be started");
    assert!(!out.status.success());
    let said = stderr(&out);
    assert!(said.contains("ND_ALGO is \"ring\" on rank 1") && said.contains("nothing on rank 0"), "{said}");
}
