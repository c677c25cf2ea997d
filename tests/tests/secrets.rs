//! The secret of a job is nowhere to be seen: not in what ranks print at any level, not in errors and panics, not in
//! command lines, not in `Debug`.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use nd_comm::config::Environment;
use nd_comm::prelude::*;
use nd_tests::processes::Process;
use nd_tests::{Need, skip};
use nd_transport::secure::Secret;

/// Plays a rank that prints all it can, and ends as `ND_TEST_END` says.
#[test]
#[ignore = "started by the other tests of this file"]
fn rank() {
    let level = tracing_subscriber::filter::LevelFilter::TRACE;
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_max_level(level).init();
    let config = Config::from_env().unwrap();
    println!("{config:#?} {:#?} {:#?}", config.settings(), Environment::of_process());
    let launch = nd_comm::launch::Launch::from_env().unwrap();
    println!("{launch:#?}");
    let comm = Communicator::from_launch(&launch, &config).unwrap();
    println!("{comm:?}");
    let mut values =
        vec![1i32; 1000 + usize::from(std::env::var("ND_TEST_END").as_deref() == Ok("error")) * comm.rank()];
    let reduced = comm.all_reduce(&mut values, ReduceOp::Sum);
    println!("reduced: {reduced:?}");
    println!("hold");
    let _ = std::io::stdin().read_line(&mut String::new());
    match std::env::var("ND_TEST_END").as_deref() {
        Ok("panic") => panic!("{config:?} {comm:?} {launch:?}"),
        _ => reduced.unwrap(),
    }
}

/// Where a secret may be seen: its bytes, as digits in either case, as a list of numbers, as what it was made of.
fn seen(secret: &Secret, text: Option<&str>, bytes: &[u8]) -> Option<String> {
    let raw = secret.as_bytes();
    let hex = secret.reveal_hex();
    // A part is as bad as all of it.
    let mut forms: Vec<(&str, Vec<u8>)> = vec![
        ("its bytes", raw[..8].to_vec()),
        ("its digits", hex.as_bytes()[..16].to_vec()),
        ("its digits", hex[..16].to_uppercase().into_bytes()),
    ];
    forms.extend(text.map(|t| ("its text", t.as_bytes().to_vec())));
    let within = |bytes: &[u8], form: &[u8]| bytes.windows(form.len()).any(|w| w == form);
    let found = forms.iter().find(|(_, form)| within(bytes, form)).map(|(what, _)| (*what).to_owned());
    // As Debug shows lists, on one line or on many.
    let packed: Vec<u8> = bytes.iter().copied().filter(|b| !b.is_ascii_whitespace()).collect();
    let list = raw[..6].iter().map(u8::to_string).collect::<Vec<_>>().join(",");
    found.or_else(|| within(&packed, list.as_bytes()).then(|| "a list of its bytes".to_owned()))
}

#[test]
fn what_is_searched_for_would_be_found() {
    let secret = Secret::random();
    let raw = secret.as_bytes();
    for shown in [
        raw.to_vec(),
        secret.reveal_hex().into_bytes(),
        format!("{raw:?}").into_bytes(),
        format!("Config {{\n    a: {raw:#?}").into_bytes(),
        b"correct horse".to_vec(),
    ] {
        assert!(
            seen(&secret, Some("correct horse"), &shown).is_some(),
            "{}",
            String::from_utf8_lossy(&shown)
        );
    }
    assert_eq!(seen(&secret, Some("correct horse"), format!("{secret:?}").as_bytes()), None);
}

#[test]
fn ranks_show_it_in_no_output_and_on_no_command_line() {
    let hex = Secret::random().reveal_hex();
    for (end, given) in [("good", &hex[..]), ("error", "correct horse battery"), ("panic", &hex)] {
        let secret = nd_comm::config::secret(given).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, given).unwrap();
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let mut ranks: Vec<Process> = (0..2)
            .map(|rank| {
                let number = rank.to_string();
                let trace = folder.path().join("trace-%r.json");
                // One has it in the environment, the other in a file.
                let how =
                    if rank == 0 { ("ND_SECRET", given) } else { ("ND_SECRET_FILE", file.to_str().unwrap()) };
                let variables = [
                    ("RANK", &number[..]),
                    ("WORLD_SIZE", "2"),
                    ("MASTER_ADDR", "127.0.0.1"),
                    ("MASTER_PORT", &port),
                    ("ND_TRANSPORT", "tcp"),
                    ("ND_ENCRYPT", "1"),
                    ("ND_DEBUG", "trace"),
                    ("ND_TRACE", trace.to_str().unwrap()),
                    ("ND_RECORDER_DIR", folder.path().to_str().unwrap()),
                    ("ND_TEST_END", end),
                    ("RUST_BACKTRACE", "full"),
                    how,
                ];
                Process::start("rank", &format!("rank{rank}"), &variables, 1024, folder.path())
            })
            .collect();
        for rank in &mut ranks {
            rank.wait_for("hold");
            let line = std::fs::read(format!("/proc/{}/cmdline", rank.id())).unwrap();
            assert_eq!(seen(&secret, Some(given), &line), None);
        }
        for rank in &mut ranks {
            assert_eq!(rank.end(), end == "good", "{}", rank.said());
            let said = rank.said();
            assert!(said.contains("(set)") || said.contains("Secret(…)"), "{said}");
            assert_eq!(seen(&secret, Some(given), said.as_bytes()), None, "{end}:\n{said}");
        }
        // What they wrote: traces, and flight recorders where they failed.
        let mut written = 0;
        for path in std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()) {
            if path != file {
                let bytes = std::fs::read(&path).unwrap();
                written += usize::from(path.extension().is_some_and(|e| e == "json") && !bytes.is_empty());
                assert_eq!(seen(&secret, Some(given), &bytes), None, "{end}: {}", path.display());
            }
        }
        assert!(written >= if end == "error" { 4 } else { 2 }, "{end}: {written} files");
    }
}

#[test]
fn a_wrong_secret_is_not_repeated_in_the_error() {
    let secret = Secret::random();
    let hex = secret.reveal_hex();
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("long");
    std::fs::write(&long, hex.repeat(2000)).unwrap();
    let wrong: [&[(&str, &str)]; 3] = [
        &[("ND_SECRET", &hex), ("ND_SECRET_FILE", long.to_str().unwrap())],
        &[("ND_SECRTE", &hex)],
        &[("ND_SECRET", &hex), ("ND_TIMEOUT", "never")],
    ];
    for variables in wrong {
        let environment: Environment = variables.iter().copied().collect();
        let config = Config::from_environment(&environment);
        let shown = format!("{config:?} {environment:?}");
        assert_eq!(seen(&secret, None, shown.as_bytes()), None, "{shown}");
    }
    // A typing error in an invitation.
    for text in [format!("nd1:10.0.0.1:5:{hex}0"), format!("nd1:10.0.0.1:{hex}"), format!("nd9:a:5:{hex}")] {
        let shown = format!("{:?}", text.parse::<UniqueId>().map(|id| id.to_string()));
        assert_eq!(seen(&secret, None, shown.as_bytes()), None, "{shown}");
    }
}

#[test]
fn debug_shows_none_of_it() {
    let config = Config::default();
    let id = UniqueId::create(&config).unwrap();
    let text = id.to_secret_string();
    let secret = Secret::from_hex(text.rsplit(':').next().unwrap()).unwrap();
    let shown = format!("{id} {id:?} {id:#?} {secret:?} {:?}", config.clone().with_secret(secret.clone()));
    assert_eq!(seen(&secret, None, shown.as_bytes()), None, "{shown}");
    let join = |rank| nd_comm::rendezvous::join(&id, rank, 2, b"card", &config, soon());
    let joined: Vec<_> = std::thread::scope(|s| {
        let one = s.spawn(|| join(1).unwrap());
        vec![join(0).unwrap(), one.join().unwrap()]
    });
    for joined in joined {
        let shown = format!("{joined:?} {joined:#?}");
        assert_eq!(seen(&joined.secret, None, shown.as_bytes()), None, "{shown}");
    }
    let card = nd_transport::Endpoint::open(&config.transport).unwrap().card().clone();
    assert_eq!(seen(&secret, None, format!("{card:?}").as_bytes()), None);
}

fn soon() -> std::time::Instant {
    std::time::Instant::now() + std::time::Duration::from_secs(60)
}

#[test]
fn the_commands_show_it_nowhere() {
    let test = "the_commands_show_it_nowhere";
    // Beside this program's folder.
    let program = std::env::current_exe().unwrap();
    let bench = program.parent().and_then(Path::parent).map(|folder| folder.join("nd-bench"));
    let Some(bench) = bench.filter(|path| path.exists()) else { return skip(test, Need::Tools) };
    let secret = Secret::random();
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    for arguments in
        [&["allreduce", "-b", "4K", "-e", "64K", "-f", "16", "-n", "2", "--explain"][..], &["nonsense"]]
    {
        let out = Command::new(&bench)
            .args(arguments)
            .args(["--ranks", "2", "--transport", "tcp", "--json"])
            .arg(&json)
            .env("ND_SECRET", secret.reveal_hex())
            .env("ND_DEBUG", "trace")
            .env("ND_ENCRYPT", "1")
            .output()
            .unwrap();
        assert_eq!(out.status.success(), arguments.len() > 1, "{}", String::from_utf8_lossy(&out.stderr));
        for bytes in [out.stdout, out.stderr, std::fs::read(&json).unwrap()] {
            assert_eq!(seen(&secret, None, &bytes), None, "{}", String::from_utf8_lossy(&bytes));
        }
    }
    let topo = bench.with_file_name("nd-topo");
    let out = Command::new(topo).arg("env").env("ND_SECRET", secret.reveal_hex()).output().unwrap();
    assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains("(set)"));
    assert_eq!(seen(&secret, None, &[out.stdout, out.stderr].concat()), None);
}
