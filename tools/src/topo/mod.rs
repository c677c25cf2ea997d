//! `nd-topo`: the command over `nd-topology`. One file for each subcommand; this one has the arguments and what they
//! share.

mod diagnose;
mod env;
mod load_picture;
mod paths;
mod place;
mod ranks;
mod rdma;
mod rings;
mod show;
mod simulate;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use nd_topology::providers::{self, Options};
use nd_topology::{Error, Graph, Paths, Result, System, formats, library, printable};

use crate::say;

/// What the machine looks like, which rings and trees fit it, and where to put a mesh
#[derive(Debug, Parser)]
#[command(name = "nd-topo", version, after_help = EXAMPLES, max_term_width = 110)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  nd-topo show
      this machine, and what could not be seen of it
  nd-topo show --from dgx-h100 --svg dgx.svg
      a machine of the library, as a picture
  nd-topo paths --from topo.xml GPU0 mlx5_3
      how two devices reach each other, and why so
  nd-topo search --from topo.xml
      rings and trees, as NCCL would find them
  nd-topo place --cluster c.toml --mesh tp=8,dp_shard=4,dp_replicate=-1
      where to put the ranks
  nd-topo simulate allreduce --size 1G --cluster dgx-h100 --hosts 1024
      what a collective takes
  nd-topo export --from topo.xml --format dot | dot -Tsvg > topo.svg
  nd-topo machines
      the machines of the library
  nd-topo env socket
      settings about sockets: value, where it came from, meaning
  nd-topo diagnose /shared/run7
      who is to blame, by what the ranks wrote when they failed

Files that are read: NCCL and RCCL topology XML, hwloc 2 XML, the text of
`nvidia-smi topo -m`, this program's JSON, and machines in TOML
(`nd-topo machines dgx-h100` prints one to start from).";

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the machine: NUMA nodes, switches, GPUs, ports, RDMA devices, how close each pair is, and what could not be
    /// seen
    #[command(after_help = "Examples:
  nd-topo show
  nd-topo show --from dgx-a100 --svg picture.svg --ring
  nd-topo show --from dgx-h100 --svg picture.svg --mesh tp=4,dp_shard=2 --axis tp
  nd-topo show --json | jq .system.numas")]
    Show(show::ShowArgs),
    /// Explain the paths between devices: of one pair in a sentence, of all in a table; and when ranks use verbs
    #[command(after_help = "Examples:
  nd-topo paths --from dgx-1
  nd-topo paths --from dgx-1 GPU0 GPU5
  nd-topo paths --ranks
      whether ranks of two hosts like this one use verbs, and why not
  nd-topo paths --from a.json --to b.json
      the same for two hosts, by what `nd-topo show --json` wrote there")]
    Paths(paths::PathsArgs),
    /// Search for rings and trees
    #[command(after_help = "Examples:
  nd-topo search --from topo.xml
  nd-topo search --from topo.xml --several-hosts --format nccl-xml > graph.xml")]
    Search(rings::SearchArgs),
    /// Choose which rank of a mesh sits where
    #[command(after_help = place::EXAMPLES)]
    Place(place::PlaceArgs),
    /// Predict what a collective takes on a cluster, by every algorithm, and which link it waits for
    #[command(after_help = simulate::EXAMPLES)]
    Simulate(simulate::SimulateArgs),
    /// Write the machine in another format
    #[command(after_help = "Examples:
  nd-topo export --format nccl-xml > topo.xml
  nd-topo export --from topo.xml --format dot -o topo.dot")]
    Export(ExportArgs),
    /// List every setting with its value, where that came from, and what it means
    Env(env::EnvArgs),
    /// Name the rank that is to blame, by the files that ranks wrote when they failed
    #[command(after_help = diagnose::EXAMPLES)]
    Diagnose(diagnose::DiagnoseArgs),
    /// List the machines of the library, or print the description of one
    Machines {
        /// A machine's name
        name: Option<String>,
        /// Write JSON instead: names, titles and sources
        #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
        json: Option<PathBuf>,
    },
}

const MEASURED: &str = "A file of measured links (TOML), which win over all tables; for each:
  [[link]]
  from = \"GPU0\"    # names as `nd-topo show` prints them, or bus ids,
  to = \"NVSW\"      # of two neighbours: a path is measured link by link
  gbps = 371.2     # GB/s (1e9 B/s) in one direction; this, `us`, or both
  us = 0.45        # microseconds
  both = true      # what is left out: it holds in the other direction too";

/// Where the machine's description comes from.
#[derive(Debug, ClapArgs)]
pub struct From {
    /// A file (`-` is standard input), or a machine of the library; this machine if not given
    #[arg(long, value_name = "FILE|NAME")]
    from: Option<String>,
    /// A file of measured links (TOML), which win over all tables
    #[arg(long, value_name = "FILE", long_help = MEASURED)]
    measured: Option<PathBuf>,
    /// Look at this machine through sysfs alone
    #[arg(long, conflicts_with = "from")]
    without_hwloc: bool,
}

impl From {
    /// The machine is described somewhere, and is not this one.
    fn is_file(&self) -> bool {
        self.from.is_some()
    }

    /// Reads the description and derives the graph and its paths.
    fn load(&self) -> Result<Machine> {
        let system = match &self.from {
            None => providers::detect(&Options {
                measured: self.measured.as_deref(),
                without_hwloc: self.without_hwloc,
                ..Options::default()
            })?,
            Some(from) => {
                let mut system = named(from)?;
                if let Some(path) = &self.measured {
                    providers::measured::add(&mut system, path)?;
                }
                system
            }
        };
        let graph = Graph::new(&system).map_err(|e| match &self.from {
            Some(from) => e.in_file(from),
            None => e,
        })?;
        let paths = Paths::new(&graph);
        Ok(Machine { system, graph, paths })
    }
}

/// A file if there is one of that name, else a machine of the library.
fn named(from: &str) -> Result<System> {
    let path = Path::new(from);
    if from == "-" {
        return providers::read_file(path).map_err(|e| e.in_file("standard input"));
    }
    if path.exists() || from.contains(['/', '.']) {
        return providers::read_file(path).map_err(|e| e.in_file(from));
    }
    library::machine(from).map_err(|e| match e {
        Error::Unknown { known, .. } => {
            Error::Unknown { what: "file or machine", name: from.to_owned(), known }
        }
        other => other,
    })
}

/// A machine with what is derived from it.
struct Machine {
    system: System,
    graph: Graph,
    paths: Paths,
}

/// Says on standard error what results rest on a guess.
fn warn_of_guesses(system: &System) {
    for guess in system.guesses() {
        say::warning(printable(guess));
    }
}

#[derive(Debug, ClapArgs)]
struct ExportArgs {
    #[command(flatten)]
    from: From,
    /// The format
    #[arg(long, value_enum, default_value_t = ExportFormat::Json)]
    format: ExportFormat,
    /// Where to; standard output if not given
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ExportFormat {
    /// NCCL's topology XML, in the strict form that NCCL reads (NCCL_TOPO_FILE)
    NcclXml,
    /// This program's JSON: everything
    Json,
    /// Graphviz
    Dot,
    /// A picture
    Svg,
}

/// Runs a command.
///
/// # Errors
/// Whatever went wrong, as one sentence with what to do.
pub fn run(args: Args) -> Result<()> {
    command(args).map_err(|e| {
        // Names from files stand in messages, and an error is one line.
        let text = e.to_string();
        match printable(text.trim_end()) {
            std::borrow::Cow::Owned(shown) => Error::Invalid(shown),
            std::borrow::Cow::Borrowed(_) => e,
        }
    })
}

fn command(args: Args) -> Result<()> {
    match args.command {
        Command::Show(a) => show::run(&a),
        Command::Paths(a) => paths::run(&a),
        Command::Search(a) => rings::run(&a),
        Command::Place(a) => place::run(&a),
        Command::Simulate(a) => simulate::run(&a),
        Command::Export(a) => export(&a),
        Command::Env(a) => env::run(&a),
        Command::Diagnose(a) => diagnose::run(&a),
        Command::Machines { name, json } => machines(name.as_deref(), json.as_deref()),
    }
}

fn export(a: &ExportArgs) -> Result<()> {
    let m = a.from.load()?;
    let text = match a.format {
        ExportFormat::NcclXml => {
            for limit in formats::nccl_xml::limits(&m.system) {
                say::warning(format_args!("NCCL may not read this file: {limit}"));
            }
            if !m.system.overrides.is_empty() {
                say::warning(format_args!(
                    "NCCL's format has no place for measured links; {} are left out of this file",
                    m.system.overrides.len()
                ));
            }
            formats::nccl_xml::write(&m.system)
        }
        ExportFormat::Json => plain_json(formats::json::write(&m.system, &m.graph, &m.paths)) + "\n",
        ExportFormat::Dot => formats::dot::write(&m.graph),
        ExportFormat::Svg => formats::svg::write(&m.system, &m.graph, None),
    };
    put(a.output.as_deref(), &text)
}

#[derive(serde::Serialize)]
struct Known<'a> {
    name: &'a str,
    title: String,
    source: String,
}

fn known(name: &str) -> Known<'_> {
    let (title, source) = library::about(name).unwrap_or_default();
    Known { name, title, source }
}

fn machines(name: Option<&str>, json: Option<&Path>) -> Result<()> {
    if let Some(path) = json {
        return match name {
            Some(name) => library::machine(name).and_then(|_| put_json(path, &known(name))),
            None => put_json(path, &library::names().map(known).collect::<Vec<_>>()),
        };
    }
    if let Some(name) = name {
        let text = library::description(name);
        return match text {
            Some(text) => put(None, text),
            // For the error that lists the names.
            None => library::machine(name).map(|_| ()),
        };
    }
    let mut t = crate::table::Table::new(&["name", "machine"]);
    for name in library::names() {
        t.row([name.to_owned(), known(name).title]);
    }
    put(None, &t.render())
}

/// Writes to a file, or to standard output; a closed pipe is no error.
fn put(path: Option<&Path>, text: &str) -> Result<()> {
    let io = |path: &str, e: std::io::Error| Error::Invalid(format!("cannot write {path}: {e}"));
    match path.filter(|p| *p != Path::new("-")) {
        Some(path) => std::fs::write(path, text).map_err(|e| io(&path.display().to_string(), e)),
        None => match std::io::stdout().write_all(text.as_bytes()) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            Err(e) => Err(io("standard output", e)),
            Ok(()) => Ok(()),
        },
    }
}

/// JSON of anything, to where `--json` says.
fn put_json(path: &Path, value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::Invalid(format!("JSON: {e}")))?;
    put(Some(path), &(plain_json(text) + "\n"))
}

/// The same JSON with DEL and the C1 control characters escaped, which may steer a terminal.
fn plain_json(text: String) -> String {
    let steers = |c: char| matches!(c, '\u{7f}'..='\u{9f}');
    if !text.contains(steers) {
        return text;
    }
    let escape = |c: char| if steers(c) { format!("\\u{:04x}", c as u32) } else { c.to_string() };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_fits_a_narrow_terminal() {
        for line in EXAMPLES
            .lines()
            .chain(MEASURED.lines())
            .chain(paths::HCA.lines())
            .chain(place::EXAMPLES.lines())
            .chain(diagnose::EXAMPLES.lines())
        {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
