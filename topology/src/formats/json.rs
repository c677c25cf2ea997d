//! This crate's own JSON: the system without loss, and beside it what was derived, for programs that only read.

use serde::de::IgnoredAny;
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
#[serde(deny_unknown_fields)]
struct Read {
    #[serde(rename = "format")]
    _format: IgnoredAny,
    #[serde(rename = "version")]
    _version: IgnoredAny,
    system: System,
    /// What was derived is derived again.
    #[serde(default, rename = "graph")]
    _graph: IgnoredAny,
    #[serde(default, rename = "paths")]
    _paths: IgnoredAny,
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
    // What is no JSON at all fails below, with its place.
    if let Ok(value) = serde_json::from_str::<serde_json::Value>(text) {
        let Some(format) = value.get("format") else { return Err(Error::WrongFormat(foreign(&value))) };
        let version = value.get("version").unwrap_or(&serde_json::Value::Null);
        if format.as_str() != Some("nd-topology") || version.as_u64() != Some(1) {
            return Err(Error::WrongFormat(format!(
                "format `{}` version {} is not known; this program writes `nd-topology` version 1",
                format.as_str().map_or_else(|| clip(format), |s| s.chars().take(40).collect()),
                clip(version)
            )));
        }
    }
    let read: Read = serde_json::from_str(text).map_err(|e| Error::Parse {
        format: FORMAT,
        line: e.line(),
        column: e.column(),
        message: e.to_string(),
    })?;
    read.system.validate()?;
    Ok(read.system)
}

fn clip(value: &serde_json::Value) -> String {
    value.to_string().chars().take(40).collect()
}

/// What JSON that holds no machine looks like.
fn foreign(value: &serde_json::Value) -> String {
    let has = |key: &str| value.get(key).is_some();
    let what = match value {
        serde_json::Value::Object(_) if has("ring") && has("tree") => "what `nd-topo search --json` writes",
        serde_json::Value::Object(_) if has("axes") && has("ranks") => "what `nd-topo place --json` writes",
        serde_json::Value::Object(_) => "JSON of another program",
        serde_json::Value::Array(list) if list.iter().any(|v| v.get("reason").is_some()) => {
            "what `nd-topo paths --json` writes"
        }
        serde_json::Value::Array(_) => "a JSON list",
        _ => "a single JSON value",
    };
    format!(
        "this looks like {what}, which describes no machine; `nd-topo show --json` writes the JSON that is read here \
         (an object with \"format\": \"nd-topology\")"
    )
}

#[cfg(test)]
mod tests {
    use crate::formats::read_any;

    #[test]
    fn json_without_a_machine_is_named() {
        let error = |text: &str| read_any(text).unwrap_err().to_string();
        assert!(error("[]").contains("looks like a JSON list"), "{}", error("[]"));
        assert!(error(" [1, 2]\n").contains("a JSON list"));
        assert!(error("{\"a\": 1}").contains("JSON of another program"));
        assert!(error("{\"ring\": {}, \"tree\": {}}").contains("nd-topo search --json"));
        assert!(error("{\"format\": \"x\", \"version\": 1").contains("line 1"));
    }

    #[test]
    fn versions_and_keys_that_are_not_known_are_named() {
        let error = |text: &str| read_any(text).unwrap_err().to_string();
        let version = error("{\"format\": \"nd-topology\", \"version\": 99}");
        assert!(version.contains("version 99 is not known"), "{version}");
        assert!(error("{\"format\": \"x\"}").contains("format `x` version null is not known"));
        let key = error(
            "{\"format\": \"nd-topology\", \"version\": 1, \"systems\": 1, \"system\": {\"numas\": [{\"id\": 0}]}}",
        );
        assert!(key.contains("systems") && key.contains("line 1"), "{key}");
        let fine = "{\"format\": \"nd-topology\", \"version\": 1, \"paths\": [], \"system\": {\"numas\": [{\"id\": 0}]}}";
        assert!(read_any(fine).is_ok());
    }

    #[test]
    fn toml_of_another_kind_is_named() {
        let error = |text: &str| read_any(text).unwrap_err().to_string();
        let cluster = error("[[hosts]]\nmachine = 'dgx-1'\n");
        assert!(cluster.contains("a cluster in TOML") && cluster.contains("place --cluster"), "{cluster}");
        let links = error("[[link]]\nfrom = 'a'\nto = 'b'\n");
        assert!(links.contains("measured links") && links.contains("--measured"), "{links}");
        assert!(error("layers = 3\nhidden = 8\n").contains("--model"));
    }
}
