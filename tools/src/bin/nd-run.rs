//! Starts ranks, prefixes their output, forwards signals, ends all when one fails, says which and why.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, ValueEnum};
use nd_comm::config::Logging;
use nd_tools::launch::{Bind, Ended, Error, Event, Group, Output, Plan, Stopped, signal_name};
use nd_tools::say;
use rustix::process::Signal;
use serde::Serialize;

/// How long ranks may go on after one has failed, before they are asked to end: so long they may need to learn who it was, and to
/// say so.
const LAST_WORDS: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  nd-run -n 4 -- ./trainer --steps 100
      four ranks on this host
  nd-run -n 8 --max-restarts 3 --json run.json -- ./trainer
      starts all again, up to three times, when one fails
  nd-run -n 8 --keep-going -- ./trainer
      when a rank dies the others go on (Communicator::shrink)
  export ND_SECRET_FILE=secret
  nd-run -n 8 --nnodes 2 --node-rank 0 --rdzv node0:29500 -- ./trainer
  nd-run -n 8 --nnodes 2 --node-rank 1 --rdzv node0:29500 -- ./trainer
      sixteen ranks on two hosts; the first line on node0, the second on the other

Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
MASTER_PORT, ND_RESTART_COUNT and, on one node, a fresh ND_SECRET.

Exit code: that of the rank that failed first (128 + the signal if one ended it),
with --keep-going 0 if any rank succeeded,
126 or 127 if the program cannot be started, 2 for a wrong command line.";

/// Starts ranks of a program on this host and ends them together.
#[derive(Debug, Parser)]
#[command(name = "nd-run", version, after_help = EXAMPLES, override_usage = "nd-run -n N [OPTIONS] -- PROGRAM [ARGUMENTS]")]
struct Arguments {
    /// Ranks to start on this host
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    ranks: usize,
    /// Hosts that each start as many ranks
    #[arg(long, value_name = "M", default_value_t = 1)]
    nnodes: usize,
    /// Which of the hosts this is, from 0
    #[arg(long, value_name = "R", default_value_t = 0)]
    node_rank: usize,
    /// Where rank 0 listens: a name or address of node 0, and a free port there
    #[arg(long, value_name = "HOST:PORT")]
    rdzv: Option<String>,
    /// How often to start all ranks again after one has failed
    #[arg(long, value_name = "K", default_value_t = 0)]
    max_restarts: usize,
    /// Let the others go on when a rank fails, for programs that shrink; at least one must succeed
    #[arg(long)]
    keep_going: bool,
    /// Keep each rank on cores of its own
    #[arg(long, value_name = "HOW", default_value = "none")]
    bind: BindTo,
    /// Seconds between SIGTERM and SIGKILL when ranks have to end
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, allow_negative_numbers = true)]
    grace: f64,
    /// End all ranks when standard input ends, as it does when whoever started nd-run by a remote shell is gone
    #[arg(long)]
    end_with_input: bool,
    /// Write a summary to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Leave the ranks' output as it is, without `[rank] ` before each line
    #[arg(long)]
    no_prefix: bool,
    /// The program and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BindTo {
    None,
    Core,
}

fn main() -> ExitCode {
    nd_tools::log::init(&Logging::at(tracing::level_filters::LevelFilter::WARN));
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match plan(&arguments).and_then(|plan| run(&arguments, &plan)) {
        Ok(summary) => {
            let code = summary.exit_code;
            if let Some(path) = &arguments.json
                && let Err(e) = write_json(path, &summary)
            {
                return fail(1, &format!("cannot write {}: {e}; check --json", path.display()));
            }
            ExitCode::from(code as u8)
        }
        Err(e) => {
            let code = match &e {
                Error::Program { source, .. } if source.kind() == std::io::ErrorKind::NotFound => 127,
                Error::Program { .. } => 126,
                Error::Plan { .. } | Error::NoSecret { .. } => 2,
                _ => 1,
            };
            fail(code, &e.to_string())
        }
    }
}

fn arguments() -> Result<Arguments, ExitCode> {
    match Arguments::try_parse() {
        Ok(arguments) => Ok(arguments),
        Err(e) if is_program(&e) => Err(fail(
            2,
            "there is no -- between the options and the program; write nd-run -n N -- PROGRAM ARGUMENTS",
        )),
        Err(e) => {
            let _ = e.print();
            Err(ExitCode::from(e.exit_code() as u8))
        }
    }
}

/// Whether what clap does not understand is the program, written without `--`.
fn is_program(e: &clap::Error) -> bool {
    let unknown = match e.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(s)) => s,
        _ => return false,
    };
    let separated = std::env::args_os().any(|a| a == "--");
    e.kind() == ErrorKind::UnknownArgument && !separated && !unknown.starts_with('-')
}

fn fail(code: u8, text: &str) -> ExitCode {
    say::error(text);
    ExitCode::from(code)
}

fn plan(arguments: &Arguments) -> Result<Plan, Error> {
    let wrong = |problem: String, remedy: &str| Err(Error::Plan { problem, remedy: remedy.into() });
    if arguments.ranks == 0 {
        return wrong("-n 0: there is nothing to start".into(), "write at least 1");
    }
    if arguments.ranks > 4096 {
        return wrong(
            format!("-n {}: more processes than one host can use", arguments.ranks),
            "write at most 4096",
        );
    }
    if arguments.nnodes == 0 || arguments.nnodes > 1 << 16 {
        return wrong(
            format!("--nnodes {}: not from 1 to 65536", arguments.nnodes),
            "write the number of hosts",
        );
    }
    if !(0.0..=86_400.0).contains(&arguments.grace) {
        return wrong(
            format!("--grace {}: not from 0 to 86400", arguments.grace),
            "write a number of seconds",
        );
    }
    let Some((program, rest)) = arguments.command.split_first() else {
        return wrong("no program to start".into(), "write it after --: nd-run -n N -- PROGRAM ARGUMENTS");
    };
    let mut plan = Plan::new(program, arguments.ranks);
    plan.arguments = rest.to_vec();
    plan.nodes = arguments.nnodes;
    plan.node_rank = arguments.node_rank;
    plan.grace = Duration::from_secs_f64(arguments.grace);
    plan.bind = match arguments.bind {
        BindTo::None => Bind::None,
        BindTo::Core => Bind::Core,
    };
    plan.input = !arguments.end_with_input;
    if arguments.no_prefix {
        plan.output = Output::Inherited;
    }
    if let Some(text) = &arguments.rdzv {
        match text.parse::<nd_comm::rendezvous::Address>() {
            Ok(nd_comm::rendezvous::Address::Tcp { host, port }) => plan.rendezvous = Some((host, port)),
            Ok(_) => return wrong(format!("--rdzv {text}: not a host and a port"), "write HOST:PORT"),
            Err(problem) => {
                return wrong(format!("--rdzv {text}: {problem}"), "write HOST:PORT, such as node0:29500");
            }
        }
    }
    Ok(plan)
}

/// What happened, for `--json`.
#[derive(Debug, Serialize)]
struct Summary {
    program: String,
    arguments: Vec<String>,
    world_size: usize,
    nodes: usize,
    node_rank: usize,
    restarts: usize,
    seconds: f64,
    exit_code: i32,
    /// The signal that the launcher itself got and passed on.
    interrupted_by: Option<String>,
    first_failure: Option<Rank>,
    /// The ranks of the last start.
    ranks: Vec<Rank>,
}

#[derive(Debug, Clone, Serialize)]
struct Rank {
    rank: usize,
    pid: u32,
    exit_code: i32,
    reason: String,
    seconds: f64,
}

impl From<&Ended> for Rank {
    fn from(e: &Ended) -> Rank {
        Rank {
            rank: e.rank,
            pid: e.pid,
            exit_code: e.code(),
            reason: e.why(),
            seconds: e.after.as_secs_f64(),
        }
    }
}

fn write_json(path: &Path, summary: &Summary) -> std::io::Result<()> {
    let mut text = serde_json::to_string_pretty(summary).map_err(std::io::Error::other)?;
    text.push('\n');
    std::fs::write(path, text)
}

fn run(arguments: &Arguments, plan: &Plan) -> Result<Summary, Error> {
    let began = Instant::now();
    let mut signals = Signals::new(arguments.end_with_input)
        .map_err(|source| Error::System { what: "listen for signals".into(), source })?;
    let mut restarts = 0;
    loop {
        let last = once(plan, restarts, &mut signals, arguments.keep_going)?;
        let saved = arguments.keep_going && last.ended.iter().any(|ended| ended.code() == 0);
        let failed = last.first.as_ref().filter(|_| !saved);
        if let (Some(failed), None) = (failed, last.interrupted)
            && restarts < arguments.max_restarts
        {
            restarts += 1;
            say::line(format_args!(
                "nd-run: rank {} (pid {}) failed: {}; restart {restarts} of {}",
                failed.rank,
                failed.pid,
                failed.why(),
                arguments.max_restarts
            ));
            continue;
        }
        let exit_code = match (last.interrupted, failed) {
            (Some(signal), _) => 128 + signal,
            (None, Some(failed)) => failed.code(),
            (None, None) => i32::from(last.lost.is_some()),
        };
        if let Some(e) = &last.lost {
            say::error(format_args!(
                "what the ranks said could not be passed on whole: {e}; free space, or write it elsewhere"
            ));
        }
        match (last.interrupted, failed) {
            (Some(signal), _) => say::line(format_args!("nd-run: ended by {}", signal_name(signal))),
            (None, Some(failed)) => say::error(format_args!(
                "rank {} (pid {}) failed first: {}{}; {}look at its output above",
                failed.rank,
                failed.pid,
                failed.why(),
                last.stopped,
                if plan.world_size() > 1 && !arguments.keep_going {
                    "the other ranks were ended; "
                } else {
                    ""
                },
            )),
            (None, None) => {}
        }
        return Ok(Summary {
            program: plan.program.to_string_lossy().into_owned(),
            arguments: plan.arguments.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
            world_size: plan.world_size(),
            nodes: plan.nodes,
            node_rank: plan.node_rank,
            restarts,
            seconds: began.elapsed().as_secs_f64(),
            exit_code,
            interrupted_by: last.interrupted.map(signal_name),
            first_failure: last.first.as_ref().map(Rank::from),
            ranks: last.ended.iter().map(Rank::from).collect(),
        });
    }
}

/// One start of all ranks.
struct Once {
    first: Option<Ended>,
    /// Ranks that were stopped when it failed.
    stopped: Stopped,
    ended: Vec<Ended>,
    interrupted: Option<i32>,
    /// Why some of what the ranks said could not be passed on.
    lost: Option<std::io::Error>,
}

fn once(plan: &Plan, restart: usize, signals: &mut Signals, keep_going: bool) -> Result<Once, Error> {
    let mut group = Group::spawn(plan, restart)?;
    let mut once =
        Once { first: None, stopped: Stopped::default(), ended: Vec::new(), interrupted: None, lost: None };
    while group.running() > 0 {
        match group.wait(Some(signals.inbox.as_fd()), None) {
            Event::Ended(ended) => {
                once.ended.push(ended);
                if ended.code() != 0 && once.interrupted.is_none() && keep_going {
                    let (rank, pid, why) = (ended.rank, ended.pid, ended.why());
                    say::line(format_args!(
                        "nd-run: rank {rank} (pid {pid}) failed: {why}; {} go on",
                        group.running()
                    ));
                    once.first.get_or_insert(ended);
                } else if ended.code() != 0 && once.interrupted.is_none() {
                    (once.first, once.stopped) = (Some(ended), group.stopped());
                    // The others find out by themselves, and may say what they know.
                    let until = Instant::now() + LAST_WORDS.min(plan.grace);
                    while group.running() > 0
                        && let Event::Ended(next) = group.wait(None, Some(until))
                    {
                        once.ended.push(next);
                    }
                    once.ended.extend(group.end(plan.grace));
                }
            }
            Event::Other => {
                for signal in signals.take() {
                    if signal == INPUT_ENDED {
                        // Nobody is there to ask again.
                        once.interrupted.get_or_insert(libc::SIGHUP);
                        once.ended.extend(group.end(plan.grace));
                        break;
                    }
                    if signal == libc::SIGTSTP {
                        group.pause();
                        continue;
                    }
                    let again = once.interrupted.replace(signal).is_some();
                    group.signal(match signal {
                        // Asked twice: at once.
                        _ if again => Signal::KILL,
                        libc::SIGINT => Signal::INT,
                        libc::SIGHUP => Signal::HUP,
                        libc::SIGQUIT => Signal::QUIT,
                        _ => Signal::TERM,
                    });
                    // A stopped process hears nothing but SIGKILL.
                    group.signal(Signal::CONT);
                }
            }
            Event::Time => {}
        }
    }
    // A signal that came while the ranks were being ended means no restart.
    if let Some(signal) = signals.take().iter().find(|signal| **signal != libc::SIGTSTP) {
        once.interrupted.get_or_insert(if *signal == INPUT_ENDED { libc::SIGHUP } else { *signal });
    }
    once.ended.sort_by_key(|e| e.rank);
    once.lost = group.finish().err();
    Ok(once)
}

/// Beside signals: standard input has ended, which counts as a hang-up.
const INPUT_ENDED: i32 = 0;

/// The signals to pass on, each as one byte.
struct Signals {
    inbox: UnixStream,
}

impl Signals {
    fn new(input: bool) -> std::io::Result<Signals> {
        let (inbox, outbox) = UnixStream::pair()?;
        inbox.set_nonblocking(true)?;
        if input {
            let outbox = outbox.try_clone()?;
            std::thread::Builder::new().name("nd-run-input".into()).spawn(move || {
                let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
                let _ = std::io::Write::write_all(&mut &outbox, &[INPUT_ENDED as u8]);
            })?;
        }
        let mut signals = signal_hook::iterator::Signals::new([
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGHUP,
            libc::SIGQUIT,
            libc::SIGTSTP,
        ])?;
        // Lives as long as the process, as the signals do.
        std::thread::Builder::new().name("nd-run-signals".into()).spawn(move || {
            for signal in signals.forever() {
                let _ = std::io::Write::write_all(&mut &outbox, &[signal as u8]);
            }
        })?;
        Ok(Signals { inbox })
    }

    fn take(&mut self) -> Vec<i32> {
        let mut bytes = [0; 64];
        match self.inbox.read(&mut bytes) {
            Ok(n) => bytes[..n].iter().map(|b| i32::from(*b)).collect(),
            Err(_) => Vec::new(),
        }
    }
}
