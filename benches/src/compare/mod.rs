//! `make compare`: ours and what a user would pick instead, in turn on the same machine.
//!
//! | file | what |
//! |---|---|
//! | `arguments` | the command line |
//! | [`case`] | a collective, how ranks reach each other, how many there are — *pure* |
//! | `sizes` | lists of sizes, read and shown — *pure* |
//! | `peers`, `settings` | who is compared with; how each is told what to do |
//! | `launch` | the processes of a peer, and ours |
//! | `process` | child processes with a deadline, of which nothing is left |
//! | `rows` | nccl-tests' rows, read — *pure* |
//! | `statistics` | medians, and ratios of pairs — *pure* |
//! | `rounds` | who runs when, and what came of it |
//! | `own` | what is measured of ours alone: start, memory, sums of 16-bit floats |
//! | `targets` | what is to be reached, and whether it is — *pure* |
//! | `table`, `report` | the table; the files |
//! | `picture`, `panel` | the plot |

mod arguments;
pub mod case;
mod error;
pub(crate) mod launch;
mod own;
mod panel;
mod peers;
mod picture;
pub(crate) mod process;
pub(crate) mod report;
mod rounds;
mod rows;
mod settings;
pub(crate) mod sizes;
pub(crate) mod statistics;
mod table;
mod targets;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use nd_tests::hosts::{Hosts, Network};

use crate::limits::{self, Limits};
use arguments::Arguments;
use case::{Case, Transport};
pub use error::Error;
use launch::Launcher;
use peers::Peer;
use process::Runner;
use report::{Machine, Report};
use rounds::{Measured, Rounds};
use sizes::Sizes;

/// The whole command.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(e.code())
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    let root = rustix::process::geteuid().is_root();
    let cases = arguments.cases(root)?;
    let (home, out) = (absolute(&arguments.home)?, absolute(&arguments.out)?);
    let (peers, left_out) = available(&arguments.peers, &home);
    for (peer, reason) in &left_out {
        println!("# {peer} is left out: {reason}");
    }
    if peers.is_empty() {
        return Err(Error::Nothing("every peer is left out, for the reasons above".into()));
    }
    let system = |what: &'static str| move |source| Error::System { what: what.into(), source };
    let runner = Runner::new(Duration::from_secs(arguments.deadline))?;
    let scratch = tempfile::tempdir().map_err(system("make a folder for temporary files"))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let launcher = Launcher {
        home,
        tools: tools(arguments)?,
        cores,
        scratch: scratch.path().into(),
        warmup: arguments.warmup,
        iterations: arguments.iterations,
    };
    let machine = Machine::look(cores);
    println!("# {}, {cores} cores, load {}", machine.processor, machine.load_before);
    let limits = bounds(&cases, &runner);
    let not_done = match arguments.transport {
        None if !root => vec!["network namespaces are left out: they need root".to_owned()],
        _ => vec![],
    };
    not_done.iter().for_each(|reason| println!("# {reason}"));
    let command = std::env::args().collect();
    let mut report = Report { machine, command, limits, left_out, not_done, cases: Vec::new(), own: None };
    println!("# {}", table::LEGEND.replace('\n', "\n# "));
    for (case, sizes) in &cases {
        let measured = match measure(&launcher, &runner, *case, sizes, &peers, arguments.pairs) {
            Err(Error::Hosts(why)) if arguments.transport.is_none() => {
                let reason = Error::Hosts(why).to_string();
                println!("# {case} is left out: {reason}");
                report.not_done.push(format!("{case} is left out: {reason}"));
                continue;
            }
            measured => measured?,
        };
        println!("\n{case}\n{}", table::overview(&measured, &report.limits).trim_end());
        if peers.len() <= FEW {
            for against in &measured.against {
                println!(
                    "\nwith {}:\n{}",
                    against.peer,
                    table::details(&measured, &report.limits, against).trim_end()
                );
            }
        }
        report.cases.push(measured);
        report.write(&out)?;
        if runner.stopped() {
            println!("\n## Targets\n\n{}", targets::text(&report.targets()));
            return Err(Error::Interrupted(out));
        }
    }
    report.limits = report.limits.best(&bounds(&cases, &runner));
    // Whoever asks for one case has no use for what is none.
    if arguments.whole() {
        eprintln!("# the start of communicators, their memory, sums of 16-bit floats");
        report.own = Some(own::measure(&launcher.tools, &runner));
    }
    report.write(&out)?;
    println!("{}\n\n## Targets\n", report.limits_table().trim_end());
    println!("{}\nall of it: {}", targets::text(&report.targets()), out.join("RESULTS.md").display());
    if runner.stopped() {
        return Err(Error::Interrupted(out));
    }
    verdict(&report)
}

/// With so many peers, all times and ratios are on standard output too.
const FEW: usize = 2;

/// Measures one case, in namespaces if it wants them.
fn measure(
    launcher: &Launcher,
    runner: &Runner,
    case: Case,
    sizes: &Sizes,
    peers: &[Peer],
    pairs: u32,
) -> Result<Measured, Error> {
    let hosts = match case.transport {
        Transport::Net => {
            let network = Network { interfaces: 1, rate: Some(f64::from(case.mbit) / 1000.0) };
            Some(Hosts::open(case.hosts, network).map_err(|e| Error::Hosts(e.to_string()))?)
        }
        _ => None,
    };
    let bounded = targets::has_limit(&case);
    Rounds { launcher, runner, hosts: hosts.as_ref(), case, sizes, bounded }.run(peers, pairs)
}

/// What bounds any of the cases.
fn bounds(cases: &[(Case, Sizes)], runner: &Runner) -> Limits {
    let mut sizes: Vec<u64> = cases.iter().flat_map(|(_, sizes)| sizes.0.clone()).collect();
    let mut ranks: Vec<usize> = cases.iter().map(|(case, _)| case.ranks).collect();
    sizes.sort_unstable();
    sizes.dedup();
    ranks.sort_unstable();
    ranks.dedup();
    limits::measure(&sizes, &ranks, &|| !runner.stopped())
}

/// Those there are, each once; those there are not, and why.
fn available(peers: &[Peer], home: &Path) -> (Vec<Peer>, Vec<(Peer, String)>) {
    let (mut there, mut left_out) = (Vec::new(), Vec::new());
    for &peer in peers {
        match peer.missing(home) {
            Some(reason) => left_out.push((peer, reason)),
            None if there.contains(&peer) => {}
            None => there.push(peer),
        }
    }
    (there, left_out)
}

/// The folder of nd-bench and nd-run.
fn tools(arguments: &Arguments) -> Result<PathBuf, Error> {
    let bench = match &arguments.ours {
        Some(path) => absolute(path)?,
        None => std::env::current_exe()
            .map_err(|source| Error::System { what: "find this program".into(), source })?
            .with_file_name("nd-bench"),
    };
    for program in [&bench, &bench.with_file_name("nd-run")] {
        if !program.is_file() {
            return Err(Error::Usage(format!(
                "there is no {}; build it with `cargo build --release -p nd-tools`, or name nd-bench with --ours",
                program.display()
            )));
        }
    }
    Ok(bench.parent().map(Path::to_path_buf).unwrap_or_default())
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|source| Error::File { path: path.into(), source })
}

/// Whether there is something to go by.
fn verdict(report: &Report) -> Result<(), Error> {
    let mut wrong = Vec::new();
    for measured in &report.cases {
        let own = (measured.wrong > 0).then_some("ours");
        let theirs = measured.against.iter().filter(|a| a.wrong > 0).map(|a| a.peer.name());
        wrong.extend(own.into_iter().chain(theirs).map(|who| format!("{who} ({})", measured.case)));
    }
    let compared = report.cases.iter().flat_map(|c| &c.against).any(|a| !a.pairs.is_empty());
    match (wrong.is_empty(), compared) {
        (false, _) => Err(Error::Wrong(wrong.join(", "))),
        (true, false) => Err(Error::Nothing("no peer gave a result; what each said is above".into())),
        (true, true) => Ok(()),
    }
}
