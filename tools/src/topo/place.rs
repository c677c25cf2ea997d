//! `nd-topo place`.

use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use nd_topology::cluster::Cluster;
use nd_topology::placement::{Mesh, Model, Placement, place};
use nd_topology::{Result, providers};
use serde::Serialize;

use super::{From, named, put, put_json};
use crate::table::Table;
use crate::units::{bytes, gbps, micros};

pub(super) const EXAMPLES: &str = "Examples:
  nd-topo place --from dgx-h100 --mesh tp=4,dp_shard=2
  nd-topo place --cluster c.toml --mesh tp=8,dp_shard=8,dp_replicate=-1

A cluster file:
  [[hosts]]
  machine = \"dgx-h100\"       # or file = \"topo.xml\"
  count = 128
  [network]
  kind = \"rails\"             # or \"leaf-spine\"
  hosts_per_leaf = 32
  oversubscription = 2.0
  nvlink_domain = 1          # hosts that share NVSwitches (NVL72: 18)

A model file (what is left out is as in Llama 3.1 8B): name, layers, hidden,
ffn, heads, kv_heads, vocab, sequence, micro_batch, accumulation, weight_bytes,
gradient_bytes.";

#[derive(Debug, ClapArgs)]
pub(super) struct PlaceArgs {
    #[command(flatten)]
    from: From,
    /// A cluster file (TOML), or a machine of the library; without it, the one machine of --from
    #[arg(long, value_name = "FILE|NAME", conflicts_with = "from")]
    cluster: Option<PathBuf>,
    /// Axes and sizes: tp, cp, dp_shard, dp_replicate; one may be -1, what is left
    #[arg(long, value_name = "AXIS=SIZE,…", allow_hyphen_values = true)]
    mesh: String,
    /// The model's shape (TOML); without it Llama 3.1 8B
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Print where every rank sits
    #[arg(long)]
    ranks: bool,
    /// Write JSON instead of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct JsonRow<'a> {
    axis: &'a str,
    size: usize,
    groups: usize,
    link: &'a str,
    gbps: f64,
    bytes: f64,
    us: f64,
    default_us: f64,
    worst_us: f64,
}

#[derive(Serialize)]
struct Json<'a> {
    axes: Vec<JsonRow<'a>>,
    us: f64,
    default_us: f64,
    worst_us: f64,
    orders_tried: usize,
    ranks: Vec<String>,
}

pub(super) fn run(a: &PlaceArgs) -> Result<()> {
    let cluster = match &a.cluster {
        Some(path) => match path.to_str().filter(|name| !path.exists() && !name.contains(['/', '.'])) {
            Some(name) => Cluster::single(named(name)?)?,
            None => read_cluster(path)?,
        },
        None => Cluster::single(a.from.load()?.system)?,
    };
    let model = match &a.model {
        Some(path) => {
            let text = providers::read_text(path)?;
            Model::from_toml(&text).map_err(|e| e.in_file(&path.display().to_string()))?
        }
        None => Model::default(),
    };
    let mesh = Mesh::parse(&a.mesh, cluster.ranks())?;
    let placed = place(&cluster, &mesh, &model)?;
    cluster.kinds.iter().for_each(|kind| super::warn_of_guesses(&kind.system));
    match &a.json {
        Some(path) => put_json(path, &json(&cluster, &placed)),
        None => put(None, &text(&cluster, &mesh, &model, &placed, a.ranks)),
    }
}

pub(super) fn read_cluster(path: &Path) -> Result<Cluster> {
    let text = providers::read_text(path)?;
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let mut file = |name: &str| named(&folder.join(name).display().to_string());
    Cluster::from_toml(&text, &mut file).map_err(|e| e.in_file(&path.display().to_string()))
}

fn json<'a>(cluster: &Cluster, p: &'a Placement) -> Json<'a> {
    let row = |r: &'a nd_topology::placement::Row| JsonRow {
        axis: &r.axis,
        size: r.size,
        groups: r.groups,
        link: &r.link,
        gbps: r.gbps,
        bytes: r.bytes,
        us: r.us,
        default_us: r.default_us,
        worst_us: r.worst_us,
    };
    Json {
        axes: p.rows.iter().map(row).collect(),
        us: p.us,
        default_us: p.default_us,
        worst_us: p.worst_us,
        orders_tried: p.tried,
        ranks: p.order.iter().map(|&s| cluster.slot_name(s)).collect(),
    }
}

fn text(cluster: &Cluster, mesh: &Mesh, model: &Model, p: &Placement, ranks: bool) -> String {
    let hosts = cluster.hosts.len();
    let what = if hosts == 1 { "host" } else { "hosts" };
    let ranks_word = if mesh.world() == 1 { "rank" } else { "ranks" };
    let mut out = format!(
        "{} {ranks_word} on {hosts} {what}, {}: {:.2} billion weights, {} tokens a sequence, {} × {} sequences\n\n",
        mesh.world(),
        model.name,
        model.parameters() / 1e9,
        model.sequence,
        model.micro_batch,
        model.accumulation
    );
    if p.rows.is_empty() {
        out.push_str("The mesh has one rank, which sends nothing: there is no order to choose.\n");
        if ranks {
            out.push('\n');
            list_ranks(cluster, p, &mut out);
        }
        return out;
    }
    let mut t = Table::new(&[
        "axis",
        "size",
        "groups",
        "slowest hop",
        "GB/s",
        "sent a step",
        "time a step",
        "default order",
        "worst order",
    ]);
    for r in p.rows.iter().rev() {
        t.row([
            r.axis.clone(),
            r.size.to_string(),
            r.groups.to_string(),
            format!("{}, {}", r.link, r.how),
            gbps(r.gbps),
            bytes(r.bytes),
            micros(r.us),
            micros(r.default_us),
            micros(r.worst_us),
        ]);
    }
    let sum = |v: f64| micros(v);
    t.row([
        "together".into(),
        String::new(),
        String::new(),
        String::new(),
        String::new(),
        String::new(),
        sum(p.us),
        sum(p.default_us),
        sum(p.worst_us),
    ]);
    out.push_str(&t.render());
    out.push('\n');
    for r in p.rows.iter().rev() {
        out.push_str(&format!("{}: {} ({} a step)\n", r.axis, r.what, calls(&r.axis, r.size, r.calls)));
    }
    let gain = if p.us < p.default_us * 0.999 {
        format!("{:.2} times as fast as the default order", p.default_us / p.us)
    } else {
        "as good as the default order, which is kept".to_owned()
    };
    let chosen = if p.nesting.contains('⊃') {
        format!("{} (outermost axis first)", p.nesting)
    } else {
        p.nesting.clone()
    };
    out.push_str(&format!(
        "\nChosen: {chosen}; {gain}; {}. Times are predictions, axes one after the other, nothing hidden behind \
         computation.\n",
        compared(p)
    ));
    if ranks {
        out.push('\n');
        list_ranks(cluster, p, &mut out);
    }
    out
}

fn list_ranks(cluster: &Cluster, p: &Placement, out: &mut String) {
    for (rank, &slot) in p.order.iter().enumerate() {
        out.push_str(&format!("{rank} {}\n", cluster.slot_name(slot)));
    }
}

/// How often an axis communicates. Its ring goes round in size - 1 exchanges a call, and that of cp not in whole rounds
/// (gradients take one exchange more than keys and values), so there the exchanges are counted.
fn calls(axis: &str, size: usize, calls: f64) -> String {
    match axis {
        "cp" => format!("{:.0} exchanges", calls * (size - 1) as f64),
        _ => format!("{calls:.0} calls"),
    }
}

/// How the chosen order stands among those that were priced.
fn compared(p: &Placement) -> String {
    let times = p.worst_us / p.us;
    match p.tried {
        0 | 1 => "no other was looked at".to_owned(),
        n if times.is_nan() || times < 1.05 => format!("the {n} orders looked at cost about the same"),
        n => format!("the worst of the {n} orders looked at costs {times:.1} times as much"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_are_whole() {
        // 32 blocks: keys and values 3 times forward and 3 backward, their gradients 4 times.
        assert_eq!(calls("cp", 4, 320.0 / 3.0), "320 exchanges");
        assert_eq!(calls("tp", 2, 128.0), "128 calls");
    }

    #[test]
    fn orders_that_cost_the_same_are_said_to() {
        let placed = |us, worst_us, tried| {
            compared(&Placement {
                order: Vec::new(),
                nesting: String::new(),
                rows: Vec::new(),
                us,
                default_us: us,
                worst_us,
                tried,
            })
        };
        assert_eq!(placed(10.0, 10.0, 7), "the 7 orders looked at cost about the same");
        assert_eq!(placed(0.0, 0.0, 7), "the 7 orders looked at cost about the same");
        assert_eq!(placed(10.0, 25.0, 7), "the worst of the 7 orders looked at costs 2.5 times as much");
        assert_eq!(placed(10.0, 10.0, 1), "no other was looked at");
    }
}
