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
//! `both = false` holds for one direction only. The names are those of `nd-topo show`.

use std::path::Path;

use serde::Deserialize;

use crate::formats::detect::TomlKind;
use crate::graph::{NodeKind, Source};
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
    system.overrides.extend(links);
    // Names and neighbourhood are checked where the graph is made.
    let graph = crate::Graph::new(system).map_err(|e| e.in_file(&name))?;
    let guessed = |link: &crate::graph::Link| {
        link.source == Source::Doubtful
            && matches!(graph.nodes[link.from].kind, NodeKind::Gpu { .. } | NodeKind::Nic)
    };
    if !graph.links.iter().any(guessed) {
        system.findings.retain(|f| f.guess != Some(Guess::LinkSpeeds));
    }
    Ok(())
}

/// Reads measurements from TOML.
///
/// # Errors
/// [`Error::Invalid`] for a link without a number, or with one that is not positive.
pub fn parse(text: &str) -> Result<Vec<LinkOverride>> {
    crate::formats::detect::expect_toml(text, TomlKind::Measured)?;
    let file: File =
        toml::from_str(text).map_err(|e| crate::library::toml_error("measured links TOML", text, &e))?;
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
        let graph = crate::Graph::new(&system).unwrap();
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
            crate::Graph::new(&s)
        };
        let error = |text: &str| graph(text).unwrap_err().to_string();
        assert!(error("[[link]]\nfrom='GPU0'\nto='GPU1'\ngbps=1.0").contains("not neighbours"));
        assert!(error("[[link]]\nfrom='GPU99'\nto='GPU1'\ngbps=1.0").contains("GPU99"));
        assert!(error("[[link]]\nfrom='GPU0'\nto='NVSW'\ngbps=-1.0").contains("-1"));
        assert!(error("[[link]]\nfrom='GPU0'\nto='NVSW'").contains("neither"));
        assert!(error("[[link]]\nfrom='GPU0'\n").contains("line"));
    }
}
