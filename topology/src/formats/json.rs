//! This crate's own JSON: the system without loss, and beside it what was derived, for programs that only read.

use serde::{Deserialize, Serialize};

use super::xml::Document;
use crate::graph::Graph;
use crate::model::System;
use crate::path::Paths;
use crate::{Error, Result};

const FORMAT: &str = "nd-topology JSON";

#[derive(Serialize)]
struct Written<'a> {
    format: &'static str,
    version: u32,
    system: &'a System,
    graph: &'a Graph,
    paths: Vec<PathRow<'a>>,
}

#[derive(Serialize)]
struct PathRow<'a> {
    from: &'a str,
    to: &'a str,
    class: &'static str,
    /// NVLinks or xGMI links that the path is wide.
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<u32>,
    gbps: f64,
    us: f64,
    hops: usize,
    reason: String,
}

#[derive(Deserialize)]
struct Read {
    format: String,
    version: u32,
    system: System,
}

/// Writes a system with its nodes, links, and the paths between GPUs and network ports.
pub fn write(system: &System, graph: &Graph, paths: &Paths) -> String {
    let ends: Vec<usize> = graph.gpus.iter().chain(&graph.nets).copied().collect();
    let mut rows = Vec::new();
    for &a in &ends {
        for &b in ends.iter().filter(|&&b| b != a) {
            let path = paths.between(a, b);
            rows.push(PathRow {
                from: &graph.nodes[a].name,
                to: &graph.nodes[b].name,
                class: paths.class_for_people(graph, a, b).word(),
                links: paths.nvlinks(graph, a, b),
                gbps: path.bandwidth,
                us: path.latency,
                hops: path.links.len(),
                reason: paths.reason(graph, a, b),
            });
        }
    }
    let written = Written { format: "nd-topology", version: 1, system, graph, paths: rows };
    // Plain structs with string keys always serialise.
    serde_json::to_string_pretty(&written).unwrap_or_default()
}

/// Reads what [`write()`] wrote; only the system counts.
pub fn read(text: &str) -> Result<System> {
    let document = Document { text, format: FORMAT };
    if text.len() > super::xml::MAX_BYTES {
        return Err(document.error(0, "the file is longer than 16 MiB"));
    }
    let read: Read = serde_json::from_str(text).map_err(|e| Error::Parse {
        format: FORMAT,
        line: e.line(),
        column: e.column(),
        message: e.to_string(),
    })?;
    if read.format != "nd-topology" || read.version != 1 {
        return Err(Error::WrongFormat(format!(
            "format `{}` version {} is not known; this program writes `nd-topology` version 1",
            read.format, read.version
        )));
    }
    read.system.validate()?;
    Ok(read.system)
}
