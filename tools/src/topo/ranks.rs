//! `nd-topo paths --ranks`: whether verbs join ranks of two hosts, over which ports, and why not. The same functions
//! decide as in a job, and of this host's devices the same is tried; what only a job finds out (a network that does not
//! forward, a queue pair that cannot be made) is not known here.

use nd_comm::config::Config;
use nd_topology::providers;
use nd_topology::rdma::{
    Asked, HcaFilter, Library, NoVerbs, Offer, Place, Rail, Share, Unused, Verdict, between_ranks, shares,
    told,
};
use nd_topology::{Error, Result, System};
use nd_transport::verbs;
use serde::Serialize;

use super::printable;
use crate::say;
use crate::table::Table;

/// What the settings say; options win.
pub(super) fn settings(hca: Option<&str>, gid_index: Option<u32>) -> Result<nd_transport::Config> {
    let config = Config::from_env().map_err(|e| Error::Invalid(format!("settings: {e}")))?;
    let mut config = config.transport;
    if let Some(hca) = hca {
        config.verbs.hca = hca.to_owned();
    }
    config.verbs.gid_index = gid_index.or(config.verbs.gid_index);
    Ok(config)
}

/// One of the two hosts.
pub(super) struct Host<'s> {
    system: &'s System,
    /// It is this machine, whose devices can be looked at; else there is a description of it.
    is_here: bool,
    name: String,
}

impl<'s> Host<'s> {
    /// Under its own name, or `other` where it has none.
    pub fn new(system: &'s System, is_here: bool, other: &str) -> Host<'s> {
        let name = if system.name.is_empty() { other } else { &system.name };
        Host { system, is_here, name: name.to_owned() }
    }

    /// It is described in a file or the library, without a word on RDMA devices.
    fn is_silent(&self) -> bool {
        !self.is_here && self.system.rdma.is_empty() && !providers::rdma::has_none(self.system)
    }
}

/// What ranks of a place here and a place there are joined by.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// Where the rank here runs.
    from: String,
    /// And the one there.
    to: String,
    /// `verbs` or `tcp`; `error` where verbs are asked for and cannot be had; `?` where a file does not say.
    transport: &'static str,
    /// The pairs of ports that the two use at once.
    rails: Vec<RailRow>,
    /// Both have several.
    #[serde(skip)]
    several: bool,
    /// Why not verbs.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// Ports that are not used, each with the reason.
    not_used_here: Vec<Unused>,
    not_used_there: Vec<Unused>,
}

#[derive(Debug, Serialize)]
struct RailRow {
    here: String,
    there: String,
    kind: String,
    gid_here: u32,
    gid_there: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    /// Mb/s, the less of both.
    #[serde(skip_serializing_if = "Option::is_none")]
    mbps: Option<u64>,
}

/// The pairs of places, each with what joins ranks that run there.
///
/// # Errors
/// Wishes that cannot be met.
pub(super) fn rows(here: &Host<'_>, there: &Host<'_>, settings: &nd_transport::Config) -> Result<Vec<Row>> {
    let ours = offers(here, settings)?;
    let theirs =
        if std::ptr::eq(here.system, there.system) { ours.clone() } else { offers(there, settings)? };
    let count = ours.len().max(theirs.len());
    let shared =
        |places: &[(String, Offer)]| shares(&places.iter().map(|(_, offer)| offer).collect::<Vec<_>>());
    let (our_shares, their_shares) = (shared(&ours), shared(&theirs));
    let pair = |i: usize| {
        let (x, y) = (i % ours.len(), i % theirs.len());
        row(here, (&ours[x], our_shares[x]), there, (&theirs[y], their_shares[y]))
    };
    Ok((0..count).map(pair).collect())
}

/// The places of a host with what a rank there offers.
fn offers(host: &Host<'_>, settings: &nd_transport::Config) -> Result<Vec<(String, Offer)>> {
    let in_host = |e: nd_transport::Error| Error::Invalid(format!("{}: {e}", host.name));
    let offer = |(name, place): (String, Place)| {
        let offer = match host.is_here {
            true => verbs::offer(settings, host.system, place),
            false => verbs::described(settings, host.system, place, Library::Unknown),
        };
        Ok((name, offer.map_err(in_host)?))
    };
    let offers = places(host.system).into_iter().map(offer).collect::<Result<_>>()?;
    // With no device at all nothing is mistyped.
    if !host.system.rdma.is_empty() {
        for name in HcaFilter::parse(&settings.verbs.hca)?.unmatched(&host.system.rdma) {
            say::warning(format_args!(
                "`{}` in ND_IB_HCA matches no RDMA port of {}",
                printable(&name),
                printable(&host.name)
            ));
        }
    }
    Ok(offers)
}

/// The GPUs, or else the NUMA nodes.
fn places(system: &System) -> Vec<(String, Place)> {
    let gpus: Vec<_> =
        system.gpus().map(|(at, _, gpu)| (format!("GPU{}", gpu.dev), Place::Device(at))).collect();
    if !gpus.is_empty() {
        return gpus;
    }
    system.numas.iter().map(|n| (format!("NUMA{}", n.id), Place::Numa(n.id))).collect()
}

/// A place with what a rank there offers, and its share of the ports where there is one rank at each place.
type At<'a> = (&'a (String, Offer), Share);

fn row(here: &Host<'_>, ((from, a), ours): At<'_>, there: &Host<'_>, ((to, b), theirs): At<'_>) -> Row {
    let asked = a.asked == Asked::Verbs || b.asked == Asked::Verbs;
    let mut row = Row {
        from: from.clone(),
        to: to.clone(),
        transport: "verbs",
        rails: Vec::new(),
        several: false,
        why: None,
        not_used_here: a.left_out.clone(),
        not_used_there: b.left_out.clone(),
    };
    match between_ranks((a, ours), (b, theirs), false, false) {
        Verdict::Verbs(rails) => {
            row.several = a.ports.len().min(b.ports.len()) > 1;
            row.rails = rails.iter().map(|r| rail(a, b, r)).collect();
        }
        Verdict::No(NoVerbs::NoDevice(_)) if here.is_silent() || there.is_silent() => {
            let silent = if here.is_silent() { &here.name } else { &there.name };
            row.transport = "?";
            row.why = Some(format!(
                "the description of {silent} lists no RDMA devices; what `nd-topo show --json` writes there does"
            ));
        }
        Verdict::No(why) => {
            row.transport = if asked { "error" } else { "tcp" };
            row.why = Some(why.text(&here.name, &there.name));
        }
    }
    row
}

fn rail(a: &Offer, b: &Offer, r: &Rail) -> RailRow {
    let (x, y) = (&a.ports[r.here], &b.ports[r.there]);
    RailRow {
        here: x.name(),
        there: y.name(),
        kind: r.class.to_string(),
        gid_here: r.gid_here,
        gid_there: r.gid_there,
        mtu: r.mtu,
        mbps: x.rate_mbps.min(y.rate_mbps),
    }
}

/// The rows for people.
pub(super) fn text(here: &Host<'_>, there: &Host<'_>, rows: &[Row]) -> String {
    let alike = std::ptr::eq(here.system, there.system);
    let other = if alike { "another host like this one".to_owned() } else { there.name.clone() };
    let mut out = format!(
        "Ranks of one host share its memory. Ranks of {} and ranks of {} are joined so:\n",
        printable(&here.name),
        printable(&other)
    );
    let mut t = Table::new(&["from", "to", "by", "over, or why not"]);
    for r in rows {
        let over: Vec<String> = r.rails.iter().map(over).collect();
        let count = if over.len() > 1 { format!("{} rails: ", over.len()) } else { String::new() };
        let what = r.why.clone().unwrap_or_else(|| count + &over.join("; "));
        t.row([r.from.clone(), r.to.clone(), r.transport.to_owned(), what]);
    }
    out.push_str(&t.render());
    if rows.iter().any(|r| r.several) {
        out.push_str(
            "So it is with one rank at each place. More ranks of a host divide its ports among them, and take turns where \
             there is not one for each.\n",
        );
    }
    let mut unused = |host: &str, of: fn(&Row) -> &Vec<Unused>| {
        // What no rank uses; what some use is told by the table.
        let first = rows.first().map(of).cloned().unwrap_or_default();
        let never: Vec<Unused> =
            first.into_iter().filter(|port| rows.iter().all(|r| of(r).contains(port))).collect();
        // Where no rank has verbs, the table has said so.
        if !never.is_empty() && rows.iter().any(|r| r.why.is_none()) {
            out.push_str(&format!("Not used on {}: {}\n", printable(host), printable(&told(&never))));
        }
    };
    unused(&here.name, |r| &r.not_used_here);
    if !alike {
        unused(&there.name, |r| &r.not_used_there);
    }
    if rows.iter().any(|r| r.why.is_none()) {
        let unknown = [here, there].into_iter().take(if alike { 1 } else { 2 });
        let unknown = unknown.filter(|h| !h.is_here).map(|h| printable(&h.name));
        let unknown: Vec<_> = unknown.collect();
        match &unknown[..] {
            [] => {}
            [one] => out.push_str(&format!("Whether {one} has libibverbs, its file does not say.\n")),
            all => out.push_str(&format!(
                "Whether {} have libibverbs, their files do not say.\n",
                all.join(" and ")
            )),
        }
    }
    out
}

fn over(r: &RailRow) -> String {
    let mut facts = vec![format!("{}, GID {} – {}", r.kind, r.gid_here, r.gid_there)];
    if let Some(mbps) = r.mbps {
        facts.push(format!("{} Gb/s", mbps as f64 / 1000.0));
    }
    if let Some(mtu) = r.mtu {
        facts.push(format!("MTU {mtu}"));
    }
    format!("{} – {} ({})", r.here, r.there, facts.join(", "))
}
