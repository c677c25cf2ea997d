//! `cargo bench -p nd-benches --bench prediction`: what the cost model says beside what is measured.
//!
//! In each world nd-bench first measures what links cost, then how long all-reduce takes at sizes from 4 B to 64 MiB,
//! and says what the model made of the former for the latter, with the algorithm that it chose by it.
//!
//! | file | what |
//! |---|---|
//! | `world` | who talks to whom over what, and the processes for it |
//! | `table` | what nd-bench said, read and laid out side by side — *pure* |

mod table;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::compare::Error;
use crate::compare::process::Runner;
use crate::compare::report::Machine;
use table::{Column, table};
use world::World;

/// Prints, for worlds of this machine, what the cost model predicts for all-reduce beside what is measured.
#[derive(Debug, Parser)]
#[command(name = "prediction", version, max_term_width = 110)]
struct Arguments {
    /// Only worlds whose name holds one of these
    worlds: Vec<String>,
    /// Seconds after which a world that has not ended is killed with all it started
    #[arg(long, value_name = "S", default_value_t = 240, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    deadline: u64,
    /// Keeps each world's calibration and what nd-bench printed
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// What `cargo bench` says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// The whole command; nd-bench and nd-run are expected beside `neighbour`.
pub fn main(neighbour: &Path) -> ExitCode {
    match run(&Arguments::parse(), neighbour) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(e.code())
        }
    }
}

fn run(arguments: &Arguments, neighbour: &Path) -> Result<(), Error> {
    let tools = neighbour.parent().unwrap_or(Path::new("."));
    if let Some(name) = ["nd-bench", "nd-run"].iter().find(|name| !tools.join(name).is_file()) {
        let path = tools.join(name);
        let remedy = "build it with `cargo build --release -p nd-tools`, or run `make predict`";
        return Err(Error::Usage(format!("there is no {}; {remedy}", path.display())));
    }
    let wanted = |world: &World| {
        arguments.worlds.is_empty() || arguments.worlds.iter().any(|name| world.name().contains(name))
    };
    let worlds: Vec<_> = World::ALL.into_iter().filter(wanted).collect();
    if worlds.is_empty() {
        let names: Vec<_> = World::ALL.iter().map(World::name).collect();
        return Err(Error::Usage(format!("no such world; there are {}", names.join("; "))));
    }
    let runner = Runner::new(Duration::from_secs(arguments.deadline))?;
    let scratch = tempfile::tempdir()
        .map_err(|source| Error::System { what: "make a folder for temporary files".into(), source })?;
    let folder = arguments.keep.as_deref().unwrap_or(scratch.path());
    let failed = |source| Error::File { path: folder.into(), source };
    std::fs::create_dir_all(folder).map_err(failed)?;
    let folder = std::path::absolute(folder).map_err(failed)?;

    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = Machine::look(cores);
    println!("# {}, {cores} cores, load {}", machine.processor, machine.load_before);
    let mut columns = Vec::new();
    for world in worlds {
        let column = match measure(&runner, world, tools, &folder) {
            Ok(rows) => Column { world: world.name(), rows },
            Err(why) => {
                println!("# {} is left out: {why}", world.name());
                continue;
            }
        };
        if runner.stopped() {
            return Err(Error::Interrupted(folder));
        }
        columns.push(column);
    }
    if columns.is_empty() {
        return Err(Error::Nothing("every world is left out, for the reasons above".into()));
    }
    println!(
        "# load {} afterwards; µs, out of place\n\n{}",
        Machine::look(cores).load_before,
        table(&columns)
    );
    Ok(())
}

/// Rows of one world, or why there are none.
fn measure(runner: &Runner, world: World, tools: &Path, folder: &Path) -> Result<Vec<table::Row>, String> {
    eprintln!("# {}", world.name());
    let hosts = world.hosts()?;
    let calibration = folder.join(format!("{}.toml", world.file()));
    // Costs of an earlier run would be kept where this one measures none.
    let _ = std::fs::remove_file(&calibration);
    let commands = world.commands(tools, hosts.as_ref(), &calibration).map_err(|e| e.to_string())?;
    let outcome = runner.run(commands, &hosts.as_ref().map(|h| h.holders()).unwrap_or_default());
    if let Some(failure) = outcome.failure {
        return Err(failure.why);
    }
    let path = folder.join(format!("{}.txt", world.file()));
    std::fs::write(&path, &outcome.stdout).map_err(|e| format!("{}: {e}", path.display()))?;
    match table::read(&outcome.stdout) {
        rows if rows.is_empty() => Err("nd-bench said nothing of what it predicted".into()),
        rows => Ok(rows),
    }
}
