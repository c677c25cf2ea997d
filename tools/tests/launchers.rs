//! `nd-bench` under the launchers that people have.

use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use nd_tests::{Need, skip};

const BENCH: &str = env!("CARGO_BIN_EXE_nd-bench");
const ARGUMENTS: [&str; 9] = ["allreduce", "-b", "4", "-e", "64K", "-f", "128", "-n", "3"];

/// One table, from rank 0 alone, for `ranks` ranks and with nothing wrong.
#[track_caller]
fn one_table(out: &Output, ranks: usize) {
    let (table, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{}\n{table}\n{errors}", out.status);
    let rows: Vec<_> = table.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()).collect();
    assert_eq!(rows.len(), 3, "{table}");
    for row in rows {
        let columns: Vec<_> = row.split_whitespace().collect();
        assert_eq!((columns[8], columns[12]), ("0", "0"), "{row}");
    }
    assert_eq!(table.matches("#  Rank ").count(), ranks, "{table}");
}

fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for name in
        ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "ND_SECRET", "ND_TRANSPORT"]
    {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

fn mpi(launcher: &str, options: &[&str]) {
    if clean(launcher).arg("--version").output().is_err() {
        skip(launcher, Need::Mpi);
        return;
    }
    for transport in ["shm", "tcp"] {
        let out = clean(launcher)
            .args(options)
            .args(["-n", "3", BENCH])
            .args(ARGUMENTS)
            .env("ND_TRANSPORT", transport)
            .output()
            .expect("it starts");
        one_table(&out, 3);
    }
}

#[test]
fn under_open_mpi() {
    let root = ["--allow-run-as-root", "--oversubscribe"];
    mpi("mpirun.openmpi", &root);
}

#[test]
fn under_mpich() {
    mpi("mpiexec.hydra", &[]);
}

#[test]
fn under_nd_run() {
    for transport in ["shm", "tcp"] {
        let out = clean(env!("CARGO_BIN_EXE_nd-run"))
            .args(["-n", "4", "--no-prefix", "--", BENCH])
            .args(ARGUMENTS)
            .env("ND_TRANSPORT", transport)
            .output()
            .expect("it starts");
        one_table(&out, 4);
    }
}

#[test]
fn with_the_variables_that_torchrun_sets() {
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let start = |rank: usize| {
        clean(BENCH)
            .args(ARGUMENTS)
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", "2")
            .env("LOCAL_WORLD_SIZE", "2")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    };
    let ranks: Vec<_> = (0..2).map(start).collect();
    let outputs: Vec<_> = ranks.into_iter().map(|c| c.wait_with_output().expect("it ends")).collect();
    one_table(&outputs[0], 2);
    assert!(outputs[1].status.success() && outputs[1].stdout.is_empty(), "only rank 0 prints");
}

#[test]
fn a_pod_of_an_indexed_job_that_does_not_say_how_many_there_are_is_told_so() {
    let out = clean(BENCH).args(ARGUMENTS).env("JOB_COMPLETION_INDEX", "1").output().expect("it starts");
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && out.stdout.is_empty(), "it started ranks of its own");
    assert!(errors.contains("WORLD_SIZE") && errors.contains("the Job's manifest"), "{errors}");
}

#[test]
fn in_the_script_of_a_slurm_job_it_starts_its_own_ranks() {
    let script =
        [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_LOCALID", "0"), ("SLURM_JOB_ID", "3")];
    let out = clean(BENCH).args(ARGUMENTS).args(["--ranks", "2"]).envs(script).output().expect("it starts");
    one_table(&out, 2);
}
