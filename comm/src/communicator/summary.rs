//! What is logged of a world that has come to be: one line by rank 0; the others' own view on request.

use nd_transport::Endpoint;

use crate::config::{Auth, Config};
use crate::schedule::{Layout, Reduction};

/// Rank 0 says what world it is; with `ND_DEBUG=debug` every rank says how it reaches the others.
pub(super) fn log(endpoint: &Endpoint, layout: &Layout, config: &Config) {
    let rank = endpoint.rank();
    if rank == 0 {
        tracing::info!("{}", line(endpoint, layout, config));
    }
    if tracing::enabled!(tracing::Level::DEBUG) {
        let links = (0..endpoint.world_size()).filter_map(|peer| endpoint.link(peer));
        links.for_each(|link| {
            tracing::debug!("rank {rank}: {} by {}", endpoint.who(link.peer()), link.describe());
        });
    }
}

/// Such as "nd 0.1.0: 8 ranks on 2 hosts; 3 by shm: the same host; 4 by tcp: another host, …".
fn line(endpoint: &Endpoint, layout: &Layout, config: &Config) -> String {
    let several = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let (ranks, hosts) = (endpoint.world_size(), layout.hosts().len());
    let mut line =
        format!("nd {}: {} on {}", env!("CARGO_PKG_VERSION"), several(ranks, "rank"), several(hosts, "host"));
    // One of each kind stands for all: how many there are, and why they are reached in this way.
    let mut kinds: Vec<(&str, usize, String)> = Vec::new();
    for link in (0..ranks).filter_map(|peer| endpoint.link(peer)) {
        let name = link.transport().name();
        match kinds.iter_mut().find(|kind| kind.0 == name) {
            Some(kind) => kind.1 += 1,
            None => kinds.push((name, 1, link.describe())),
        }
    }
    for (_, count, why) in kinds {
        line += &format!("; rank 0 reaches {} by {why}", several(count, "rank"));
    }
    let reduction = match config.reduction {
        Reduction::Reproducible => "",
        Reduction::Fast => "; reductions in any order",
    };
    let auth = if config.auth == Auth::None { "; whoever reaches the port may join" } else { "" };
    line + reduction + auth
}
