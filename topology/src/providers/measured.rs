//! Measured links: the true α and β of each, which win over every table.
//!
//! ```toml
//! [[link]]
//! from = "GPU0"
//! to = "NVSW"
//! gbps = 371.2
//! us = 0.45
//! ```
//!
//! `both = false` holds for one direction only. The names are those of `nd-topo show`. A file says each number of a
//! direction once.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use crate::formats::detect::TomlKind;
use crate::graph::{Graph, NodeId, NodeKind, Source};
use crate::model::constants::{MAX_GBPS, MAX_US};
use crate::model::{Guess, LinkOverride};
use crate::{Error, Result, System};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    link: Vec<LinkOverride>,
}

/// Reads measurements from a file and adds them.
///
/// # Errors
/// [`Error::Io`], and those of [`parse`] with the file's name.
pub fn add(system: &mut System, path: &Path) -> Result<()> {
    let name = path.display().to_string();
    let links = parse(&super::read_text(path)?).map_err(|e| e.in_file(&name))?;
    system.finding("measured", format!("{} links from {name}", links.len()));
    let count = links.len();
    system.overrides.extend(links);
    // Names and neighbourhood are checked where the graph is made.
    let added = system.overrides.len() - count;
    let graph = Graph::new(system).map_err(|e| e.in_file(&name))?;
    said_once(&graph, &system.overrides[added..]).map_err(|e| e.in_file(&name))?;
    let guessed = |link: &crate::graph::Link| {
        link.source == Source::Doubtful
            && matches!(graph.nodes[link.from].kind, NodeKind::Gpu { .. } | NodeKind::Nic)
    };
    if !graph.links.iter().any(guessed) {
        system.findings.retain(|f| f.guess != Some(Guess::LinkSpeeds));
    }
    Ok(())
}

/// Refuses a number of a link that is said twice, under whatever names.
fn said_once(graph: &Graph, links: &[LinkOverride]) -> Result<()> {
    let mut said: HashMap<(NodeId, NodeId, &str), usize> = HashMap::new();
    for (i, l) in links.iter().enumerate() {
        let (a, b) = (graph.node(&l.from)?, graph.node(&l.to)?);
        let ways = if l.both { &[(a, b), (b, a)][..] } else { &[(a, b)] };
        for (what, value) in [("gbps", l.gbps), ("us", l.us)] {
            for &(from, to) in ways.iter().filter(|_| value.is_some()) {
                if let Some(first) = said.insert((from, to, what), i).filter(|&first| first != i) {
                    return Err(Error::Invalid(format!(
                        "[[link]] number {} ({} – {}): number {} gives {what} of that direction already; keep one of \
                         them, or say both = false where the two directions differ",
                        i + 1,
                        l.from,
                        l.to,
                        first + 1
                    )));
                }
            }
        }
    }
    Ok(())
}

/// Reads measurements from TOML.
///
/// # Errors
/// [`Error::Invalid`] for a text without links, for a link without a number, or with one that is not positive.
pub fn parse(text: &str) -> Result<Vec<LinkOverride>> {
    crate::formats::detect::expect_toml(text, TomlKind::Measured)?;
    let file: File =
        toml::from_str(text).map_err(|e| crate::library::toml_error("measured links TOML", text, &e))?;
    if file.link.is_empty() {
        return Err(Error::Invalid(
            "there is no measured link in it; each is a table: [[link]] with from, to, and gbps or us".into(),
        ));
    }
    for (i, l) in file.link.iter().enumerate() {
        let here = format!("[[link]] number {} ({} – {})", i + 1, l.from, l.to);
        if l.gbps.is_none() && l.us.is_none() {
            return Err(Error::Invalid(format!("{here} has neither gbps nor us")));
        }
        for (what, value, most) in [("gbps", l.gbps, MAX_GBPS), ("us", l.us, MAX_US)] {
            if let Some(bad) = value.filter(|v| !(*v > 0.0 && *v <= most)) {
                return Err(Error::Invalid(format!(
                    "{here}: {what} is {bad:?}; it is above 0 and at most {most}"
                )));
            }
        }
    }
    Ok(file.link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_wins() {
        let mut system = crate::library::machine("dgx-h100").unwrap();
        system.overrides = parse("[[link]]\nfrom='GPU0'\nto='NVSW'\ngbps=300.5\nus=0.4\n").unwrap();
        let graph = Graph::new(&system).unwrap();
        let (gpu, switch) = (graph.node("GPU0").unwrap(), graph.nvswitch.unwrap());
        for (a, b) in [(gpu, switch), (switch, gpu)] {
            let link = &graph.links[graph.link_between(a, b, None).unwrap()];
            assert_eq!((link.bandwidth, link.latency, link.source), (300.5, 0.4, Source::Measured));
        }
    }

    #[test]
    fn nonsense_is_named() {
        let system = crate::library::machine("dgx-h100").unwrap();
        let graph = |text: &str| {
            let mut s = system.clone();
            s.overrides = parse(text)?;
            Graph::new(&s)
        };
        let error = |text: &str| graph(text).unwrap_err().to_string();
        assert!(error("[[link]]\nfrom='GPU0'\nto='GPU1'\ngbps=1.0").contains("not neighbours"));
        assert!(error("[[link]]\nfrom='GPU99'\nto='GPU1'\ngbps=1.0").contains("GPU99"));
        assert!(error("[[link]]\nfrom='GPU0'\nto='NVSW'\ngbps=-1.0").contains("-1"));
        assert!(error("[[link]]\nfrom='GPU0'\nto='NVSW'").contains("neither"));
        assert!(error("[[link]]\nfrom='GPU0'\n").contains("line"));
        assert!(error("").contains("no measured link"));
    }

    #[test]
    fn a_number_that_is_said_twice_is_named() {
        let graph = Graph::new(&crate::library::machine("dgx-h100").unwrap()).unwrap();
        let bus = graph.nodes[graph.node("GPU0").unwrap()].bus.clone().unwrap();
        let once = |rest: &str| {
            let first = "[[link]]\nfrom='GPU0'\nto='NVSW'\ngbps=1.0\n";
            said_once(&graph, &parse(&format!("{first}[[link]]\n{rest}")).unwrap())
        };
        let twice = once(&format!("from='nvsw'\nto='{bus}'\ngbps=2.0")).unwrap_err().to_string();
        assert!(twice.contains("[[link]] number 2") && twice.contains("number 1 gives gbps"), "{twice}");
        assert!(once("from='GPU0'\nto='NVSW'\nus=2.0").is_ok());
        assert!(once("from='GPU1'\nto='NVSW'\ngbps=2.0").is_ok());
    }
}
