//! `nd-topo simulate`.

use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, ValueEnum};
use nd_comm::cost::cluster::ClusterFabric;
use nd_comm::cost::{Estimate, Fabric, Options, Unpredictable, estimate};
use nd_comm::number::DataType;
use nd_comm::schedule::{Algorithm, Alias, Collective, Counts, Shape, algorithms};
use nd_topology::cluster::{Cluster, Network};
use nd_topology::{Error, Result};
use serde::Serialize;

use super::place::read_cluster;
use super::{load_picture, named, put, put_json};
use crate::bench::collective::Bench;
use crate::bench::size;
use crate::table::Table;
use crate::units::{gbps, micros};

pub(super) const EXAMPLES: &str = "Examples:
  nd-topo simulate allreduce --size 1G --cluster dgx-h100 --hosts 1024
  nd-topo simulate allgather --size 256M --cluster cluster.toml --svg load.svg
  nd-topo simulate broadcast --size 64M --cluster dgx-a100 --hosts 16 --algo tree

Every rank sits on a GPU, or on a NUMA node of hosts without one. With --hosts the hosts are joined by one switch that
never blocks; `nd-topo place --help` shows a cluster file, which describes rails, leaves, spines and mixed hosts.
Times are of moving and combining data: starting kernels or processes is not in them. Ranks that do the same at the
same time are simulated once; the last column says how many were left.";

#[derive(Debug, ClapArgs)]
pub(super) struct SimulateArgs {
    /// allreduce, allgather, reducescatter, broadcast, reduce, gather, scatter, alltoall or barrier
    #[arg(value_name = "COLLECTIVE")]
    collective: Bench,
    /// Bytes of the larger side of the call on a rank, as in nd-bench
    #[arg(long, short, value_parser = bytes, default_value = "1G")]
    size: u64,
    /// A cluster file (TOML), a machine's description, or a machine of the library
    #[arg(long, value_name = "FILE|NAME")]
    cluster: String,
    /// How many hosts of that machine
    #[arg(long, value_name = "N")]
    hosts: Option<usize>,
    /// The element type
    #[arg(long = "type", short = 'd', value_parser = data_type, default_value = "float")]
    data_type: DataType,
    /// Show the load of this algorithm's links instead of the fastest one's
    #[arg(long, value_name = "NAME")]
    algo: Option<String>,
    /// Whether only algorithms that keep the reproducible order may be the fastest; by default on hosts without GPUs
    #[arg(long, value_enum)]
    reduction: Option<Order>,
    /// The most instructions to simulate; what takes more is left out and said so
    #[arg(long, value_name = "N", default_value_t = Options::default().limit)]
    limit: usize,
    /// Draw the load of the links over time
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write JSON instead of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    Reproducible,
    Fast,
}

/// Steps of a timeline: about as many as the picture has columns.
const STEPS: usize = 400;

/// An algorithm and what became of it.
struct Candidate {
    algorithm: &'static dyn Algorithm,
    reproducible: bool,
    estimate: std::result::Result<Estimate, Unpredictable>,
}

#[derive(Serialize)]
struct Json<'a> {
    collective: &'a str,
    bytes: u64,
    ranks: usize,
    hosts: usize,
    fastest: &'a str,
    algorithms: Vec<JsonRow<'a>>,
}

#[derive(Serialize)]
struct JsonRow<'a> {
    name: &'a str,
    reproducible: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    algbw: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    busbw: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bottleneck: Option<JsonLoad<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated_ranks: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<String>,
}

#[derive(Serialize)]
struct JsonLoad<'a> {
    link: &'a str,
    gbps: f64,
    busy: f64,
}

/// The largest size: what no memory of a rank holds today.
const MOST_BYTES: u64 = 1 << 40;

fn bytes(text: &str) -> std::result::Result<u64, String> {
    match size::parse(text)? {
        bytes if bytes <= MOST_BYTES => Ok(bytes),
        bytes => Err(format!(
            "{} is more than any rank has memory; at most {}",
            size::show(bytes),
            size::show(MOST_BYTES)
        )),
    }
}

fn data_type(text: &str) -> std::result::Result<DataType, String> {
    text.parse().map_err(|e| format!("{e}"))
}

pub(super) fn run(a: &SimulateArgs) -> Result<()> {
    let cluster = cluster(&a.cluster, a.hosts)?;
    cluster.kinds.iter().for_each(|kind| super::warn_of_guesses(&kind.system));
    let (hosts, name) = (cluster.hosts.len(), cluster.name.clone());
    let on_gpus = cluster.kinds.iter().all(|k| !k.graph.gpus.is_empty());
    let fabric = ClusterFabric::new(cluster);
    let ranks = fabric.world_size();
    let collective = a.collective.0;
    if collective == Collective::SendRecv {
        return Err(Error::Invalid(
            "sendrecv is one message; `nd-topo paths` tells what its way gives".into(),
        ));
    }
    let lengths = |bytes| a.collective.lengths(bytes, a.data_type.size(), ranks).count as u64;
    let count = lengths(a.size);
    if count == 0 && collective != Collective::Barrier {
        let least = (0u32..63).map(|i| 1u64 << i).find(|&bytes| lengths(bytes) > 0).unwrap_or(u64::MAX);
        return Err(Error::Invalid(format!(
            "--size {} gives a rank no element of {} ({ranks} ranks); give at least {}",
            size::show(a.size),
            a.data_type.name(),
            size::show(least)
        )));
    }
    let shape = Shape {
        collective,
        counts: Counts::Equal(count),
        root: 0,
        alias: Alias::None,
        layout: fabric.layout(),
        piece: nd_comm::choose::piece(a.data_type),
    };
    let usable: Vec<_> = algorithms().iter().copied().filter(|x| x.supports(&shape)).collect();
    if let Some(asked) = &a.algo
        && !usable.iter().any(|x| x.name() == asked)
    {
        let names: Vec<_> = usable.iter().map(|x| x.name()).collect();
        return Err(Error::Invalid(format!(
            "--algo {asked}: no such algorithm performs this {}; there are {}",
            a.collective,
            names.join(", ")
        )));
    }
    let options = Options { limit: a.limit, ..Options::default() };
    let candidates: Vec<Candidate> = usable
        .iter()
        .map(|&algorithm| Candidate {
            algorithm,
            reproducible: algorithm.reproducible(&shape),
            estimate: estimate(algorithm, &shape, a.data_type, &fabric, options),
        })
        .collect();
    let order = a.reduction.unwrap_or(if on_gpus { Order::Fast } else { Order::Reproducible });
    let fastest = candidates
        .iter()
        .filter(|c| order == Order::Fast || c.reproducible)
        .filter_map(|c| Some((c, c.estimate.as_ref().ok()?)))
        .min_by(|x, y| x.1.us.total_cmp(&y.1.us));
    let Some((fastest, best)) = fastest else {
        return Err(Error::Invalid(format!(
            "every algorithm takes more than {} instructions; raise --limit, or simulate fewer hosts",
            a.limit
        )));
    };
    let shown = a.algo.as_deref().unwrap_or(fastest.algorithm.name());
    let of = candidates.iter().find(|c| c.algorithm.name() == shown).unwrap_or(fastest);
    let on = match (hosts, name.is_empty()) {
        (1, false) => name,
        (1, true) => "one host".to_owned(),
        (_, false) => format!("{hosts} × {name}"),
        (_, true) => format!("{hosts} hosts"),
    };
    let amount = if count > 0 { format!(" of {}", size::show(a.size)) } else { String::new() };
    let plural = if ranks == 1 { "" } else { "s" };
    let title = format!("{}{amount} among {ranks} rank{plural} on {on}", a.collective);
    if let Some(path) = &a.svg {
        let options = Options { steps: STEPS, ..options };
        let run = estimate(of.algorithm, &shape, a.data_type, &fabric, options);
        let run = run.map_err(|e| Error::Invalid(format!("{shown}: {e}; raise --limit")))?;
        let timeline = run.timeline.as_ref().expect("asked for");
        put(Some(path), &load_picture::draw(&format!("{title}: {shown}"), run.us, timeline))?;
    }
    let bandwidths = |us: f64| {
        // A barrier moves nothing to speak of.
        let algbw = if count > 0 { a.size as f64 / us.max(1e-3) / 1000.0 } else { 0.0 };
        (algbw, algbw * a.collective.bus_factor(ranks))
    };
    if let Some(path) = &a.json {
        let row = |c| json_row(c, bandwidths);
        let json = Json {
            collective: a.collective.name(),
            bytes: a.size,
            ranks,
            hosts,
            fastest: fastest.algorithm.name(),
            algorithms: candidates.iter().map(row).collect(),
        };
        return put_json(path, &json);
    }
    let (algbw, busbw) = bandwidths(best.us);
    let left_out: Vec<_> =
        candidates.iter().filter(|c| c.estimate.is_err()).map(|c| c.algorithm.name()).collect();
    let among = match &left_out[..] {
        [] => String::new(),
        names => format!(" (fastest of those simulated; not among them: {})", names.join(", ")),
    };
    let mut out = format!(
        "{title}\n\n{}{among}: {}, algbw {} GB/s, busbw {} GB/s{}\n\n",
        fastest.algorithm.name(),
        micros(best.us),
        gbps(algbw),
        gbps(busbw),
        best.loads.first().map_or(String::new(), |l| format!(
            "; the busiest link is {} ({} GB/s), {:.0} % of the time",
            l.name,
            gbps(l.capacity / 1000.0),
            l.busy * 100.0
        )),
    );
    out.push_str(&table(&candidates, bandwidths).render());
    let mut notes = String::new();
    if candidates.iter().any(|c| c.reproducible != candidates[0].reproducible) {
        notes.push_str("* does not keep the reproducible order of reduction\n");
    }
    for (name, why) in
        candidates.iter().filter_map(|c| Some((c.algorithm.name(), c.estimate.as_ref().err()?)))
    {
        notes.push_str(&format!("{name} was left out: {why} (--limit)\n"));
    }
    let performs = |name: &str| usable.iter().any(|u| u.name() == name);
    let others: Vec<_> = algorithms().iter().map(|x| x.name()).filter(|name| !performs(name)).collect();
    if !others.is_empty() {
        notes.push_str(&format!("not for this call: {}\n", others.join(", ")));
    }
    if !notes.is_empty() {
        out.push_str(&format!("\n{notes}"));
    }
    put(None, &out)
}

/// A cluster file, or hosts of one machine.
fn cluster(text: &str, hosts: Option<usize>) -> Result<Cluster> {
    let path = Path::new(text);
    let is_cluster = path.exists()
        && std::fs::read_to_string(path)
            .is_ok_and(|t| t.lines().any(|l| l.trim_start().starts_with("[[hosts]]")));
    if is_cluster {
        if hosts.is_some() {
            return Err(Error::Invalid(format!(
                "{text} says how many hosts there are; leave --hosts out, or give a machine"
            )));
        }
        return read_cluster(path);
    }
    let system = named(text)?;
    let name = system.name.clone();
    let hosts = hosts.unwrap_or(1);
    if hosts == 0 || hosts > nd_topology::cluster::MAX_RANKS {
        return Err(Error::Invalid(format!(
            "--hosts {hosts}: give 1 to {}",
            nd_topology::cluster::MAX_RANKS
        )));
    }
    Cluster::uniform(&name, system, hosts, Network::default(), usize::MAX)
}

fn json_row<'a>(c: &'a Candidate, bandwidths: impl Fn(f64) -> (f64, f64)) -> JsonRow<'a> {
    let e = c.estimate.as_ref().ok();
    JsonRow {
        name: c.algorithm.name(),
        reproducible: c.reproducible,
        us: e.map(|e| e.us),
        algbw: e.map(|e| bandwidths(e.us).0),
        busbw: e.map(|e| bandwidths(e.us).1),
        bottleneck: e.and_then(|e| e.loads.first()).map(|l| JsonLoad {
            link: &l.name,
            gbps: l.capacity / 1000.0,
            busy: l.busy,
        }),
        simulated_ranks: e.map(|e| e.ranks),
        instructions: e.map(|e| e.instructions),
        left_out: c.estimate.as_ref().err().map(ToString::to_string),
    }
}

fn table(candidates: &[Candidate], bandwidths: impl Fn(f64) -> (f64, f64)) -> Table {
    let mut sorted: Vec<&Candidate> = candidates.iter().collect();
    let time = |c: &Candidate| c.estimate.as_ref().map_or(f64::INFINITY, |e| e.us);
    sorted.sort_by(|a, b| time(a).total_cmp(&time(b)));
    let mut t =
        Table::new(&["algorithm", "time", "algbw GB/s", "busbw GB/s", "busiest link", "busy", "simulated"]);
    for c in sorted.into_iter().filter(|c| c.estimate.is_ok()) {
        let star = if c.reproducible { "" } else { " *" };
        let name = format!("{}{star}", c.algorithm.name());
        if let Ok(e) = &c.estimate {
            let (algbw, busbw) = bandwidths(e.us);
            let load = e.loads.first();
            t.row([
                name,
                micros(e.us),
                gbps(algbw),
                gbps(busbw),
                load.map_or(String::new(), |l| l.name.clone()),
                load.map_or(String::new(), |l| format!("{:.0} %", l.busy * 100.0)),
                format!("{} rank{}", e.ranks, if e.ranks == 1 { "" } else { "s" }),
            ]);
        }
    }
    t
}
