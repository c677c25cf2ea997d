//! Bounds on what an attempt can find at all, so that one without hope takes no steps.
//!
//! A ring leaves every GPU once, and a chain all GPUs but one, so no more channels fit than the links around the GPUs
//! can carry at the speed asked for; and with several hosts each channel comes in by a port. The bounds look at each
//! link alone, at full bandwidth: they are never too low.

use super::Pattern;
use super::host::Host;
use super::ledger::{Hops, Ledger};
use super::passes::Layout;
use super::wishes::Wish;

/// What channels of one shape can be at most.
struct Ceiling {
    channels: usize,
    /// The fewest links that one channel passes.
    hops: i64,
}

/// True when nothing that `wish` may find beats `best`. The ledger is set to the wish.
pub(super) fn is_hopeless(host: &Host<'_>, hops: &Hops, ledger: &Ledger, wish: &Wish, best: &Layout) -> bool {
    let ceiling = Ceiling::new(host, hops, ledger, wish);
    let most = ceiling.channels.min(wish.max_channels);
    !best.is_beaten_by(wish, most, most as i64 * ceiling.hops)
}

impl Ceiling {
    fn new(host: &Host<'_>, hops: &Hops, ledger: &Ledger, wish: &Wish) -> Ceiling {
        let (n, ports) = (host.gpus.len(), host.nets.len());
        let (gpus, nets) = (0..n, n..n + ports);
        let shortest = |from: std::ops::Range<usize>, to: std::ops::Range<usize>| {
            let lengths = from.flat_map(|f| to.clone().map(move |t| (f, t)));
            let lengths = lengths.filter(|(f, t)| f != t).filter_map(|(f, t)| ledger.links(hops, f, t));
            lengths.min().unwrap_or(0)
        };
        let inside = shortest(gpus.clone(), gpus.clone());
        let mut ceiling = Ceiling { channels: usize::MAX, hops: (n as i64 - 1) * inside };
        if ports > 0 {
            let (inward, outward) =
                (shortest(nets.clone(), gpus.clone()), shortest(gpus.clone(), nets.clone()));
            // A balanced tree leaves from two GPUs.
            let sends = if wish.pattern == Pattern::BalancedTree && n > 1 { 2 } else { 1 };
            ceiling.hops += inward + sends * outward;
            ceiling.lower(ledger.most_through_ports());
            ceiling.lower(nets.clone().map(|p| ledger.most_leaving(hops, p, gpus.clone())).sum());
        } else if wish.pattern == Pattern::Ring {
            ceiling.hops += if n > 1 { inside } else { 0 };
        }
        if n > 1 {
            let to = if wish.pattern == Pattern::Ring { 0..n + ports } else { gpus.clone() };
            let most = gpus.map(|g| ledger.most_leaving(hops, g, to.clone()));
            ceiling.lower(match wish.pattern {
                Pattern::Ring => most.min().unwrap_or(0),
                _ => most.fold(0, usize::saturating_add) / (n - 1),
            });
        }
        ceiling
    }

    fn lower(&mut self, channels: usize) {
        self.channels = self.channels.min(channels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::wishes::Wishes;
    use crate::search::{ChannelGraph, Settings, search};
    use crate::{Graph, library};

    fn ceiling(graph: &Graph, settings: &Settings, found: &ChannelGraph) -> Ceiling {
        let host = Host::new(graph, settings);
        let wish = Wish {
            pattern: found.pattern,
            speed_intra: found.speed_intra,
            speed_inter: found.speed_inter,
            type_intra: found.type_intra,
            type_inter: found.type_inter,
            cross_nic: found.cross_nic,
            ..Wishes::new(&host, found.pattern, settings).now
        };
        let mut ledger = Ledger::new(&host);
        ledger.reset(&wish);
        Ceiling::new(&host, &Hops::new(&host), &ledger, &wish)
    }

    #[test]
    fn nothing_is_found_above_it() {
        for name in library::names() {
            let graph = Graph::new(&library::machine(name).unwrap()).unwrap();
            for several_hosts in [false, true] {
                let settings = Settings { several_hosts, ..Settings::default() };
                let found = search(&graph, &settings);
                for found in [found.ring, found.tree].iter().filter(|f| !f.is_fallback() && f.hops > 0) {
                    let ceiling = ceiling(&graph, &settings, found);
                    let channels = found.channels.len();
                    assert!(channels <= ceiling.channels, "{name}: {channels} > {}", ceiling.channels);
                    // Doubled channels count the hops of the first half.
                    assert!(found.hops >= channels as i64 / 2 * ceiling.hops, "{name}: {}", found.hops);
                }
            }
        }
    }

    #[test]
    fn the_links_of_a_gpu_bound_its_rings() {
        let graph = Graph::new(&library::machine("dgx-h100").unwrap()).unwrap();
        let settings = Settings::default();
        let mut found = search(&graph, &settings).ring;
        // 18 links of 20.6 GB/s carry 12 rings of 30 GB/s, and 6 of 60.
        assert_eq!(ceiling(&graph, &settings, &found).channels, 12);
        found.speed_intra = 60.0;
        assert_eq!(ceiling(&graph, &settings, &found).channels, 6);
    }
}
