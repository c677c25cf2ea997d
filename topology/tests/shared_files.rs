//! Real machines from ../shared/topologies, where that folder is there (or `SHARED_TOPOLOGIES` names it).

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use nd_topology::formats::{self, nccl_graph, nccl_xml};
use nd_topology::search::{Found, MAX_STEPS, Settings, search};
use nd_topology::{Graph, PathClass, Paths, System};

fn folder() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/topologies");
    let folder = std::env::var_os("SHARED_TOPOLOGIES").map_or_else(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: {} is not there, so no real machines were read", folder.display());
    None
}

fn machines(folder: &Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for sub in ["nccl", "answers", "hwloc"] {
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(folder.join(sub)).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        for file in files {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with(".xml") && !name.ends_with("-graph.xml") {
                all.push((name, std::fs::read_to_string(&file).unwrap()));
            }
        }
    }
    assert!(all.len() >= 17, "only {} machines in {}", all.len(), folder.display());
    all
}

fn found(system: &System, settings: &Settings) -> (Graph, Found) {
    let graph = Graph::new(system).unwrap();
    let found = search(&graph, settings);
    (graph, found)
}

#[test]
fn rings_and_trees_of_the_h200_are_those_nccl_found() {
    let Some(folder) = folder() else { return };
    let read = |name: &str| std::fs::read_to_string(folder.join("answers").join(name)).unwrap();
    let system = nccl_xml::read(&read("h200-8x-topo.xml")).unwrap();
    let answers = nccl_graph::read(&read("h200-8x-graph.xml")).unwrap();
    let (_, found) = found(&system, &Settings::default());
    for (id, mine) in [(0, &found.ring), (1, &found.tree)] {
        let theirs = &answers.iter().find(|(i, _)| *i == id).unwrap().1;
        let mut mine = mine.clone();
        (mine.hops, mine.steps) = (0, 0);
        assert_eq!(&mine, theirs, "graph {id}");
    }
    // And in NCCL's own words, up to the graphs that are not searched for.
    let text = nccl_graph::write(&found);
    assert!(read("h200-8x-graph.xml").starts_with(text.trim_end().trim_end_matches("</graphs>").trim_end()));
}

#[test]
fn every_machine_is_read_and_searched_in_bounded_steps() {
    let Some(folder) = folder() else { return };
    for (name, text) in machines(&folder) {
        let system = formats::read_any(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let graph = Graph::new(&system).unwrap_or_else(|e| panic!("{name}: {e}"));
        if graph.gpus.is_empty() {
            continue;
        }
        for several_hosts in [false, true] {
            let start = std::time::Instant::now();
            let found = search(&graph, &Settings { several_hosts, ..Settings::default() });
            let ms = start.elapsed().as_millis();
            let steps = found.ring.steps + found.tree.steps;
            println!(
                "{name}: {} × {} GB/s, {steps} steps, {ms} ms",
                found.ring.channels.len(),
                found.ring.speed_intra
            );
            assert!(steps <= MAX_STEPS, "{name}: {steps} steps");
            if several_hosts && !graph.nets.is_empty() {
                assert!(!found.ring.is_fallback() && !found.tree.is_fallback(), "{name}: nothing found");
            }
        }
    }
}

#[test]
fn nccl_files_go_round_without_loss() {
    let Some(folder) = folder() else { return };
    for (name, text) in machines(&folder) {
        let Ok(system) = nccl_xml::read(&text) else { continue };
        let written = nccl_xml::write(&system);
        let mut again = nccl_xml::read(&written).unwrap_or_else(|e| panic!("{name}: {e}\n{written}"));
        again.findings.clone_from(&system.findings);
        // Order of devices may change where a NIC without PCI device stood between them; nothing else may.
        assert_eq!(again, system, "{name}");
        assert_eq!(nccl_xml::write(&again), written, "{name}");
        assert!(!written.contains('\t') && !written.starts_with("<?"), "{name}");
    }
}

#[test]
fn json_goes_round_without_loss() {
    let Some(folder) = folder() else { return };
    for (name, text) in machines(&folder) {
        let system = formats::read_any(&text).unwrap();
        let graph = Graph::new(&system).unwrap();
        let json = formats::json::write(&system, &graph, &Paths::new(&graph));
        assert_eq!(formats::read_any(&json).unwrap(), system, "{name}");
    }
}

#[test]
fn paths_are_symmetric_and_no_wider_than_their_links() {
    let Some(folder) = folder() else { return };
    for (name, text) in machines(&folder) {
        let graph = Graph::new(&formats::read_any(&text).unwrap()).unwrap();
        let paths = Paths::new(&graph);
        for a in 0..graph.nodes.len() {
            for b in 0..graph.nodes.len() {
                let (there, back) = (paths.between(a, b), paths.between(b, a));
                assert_eq!(there.class, back.class, "{name}: {a} {b}");
                assert!(there.links.iter().all(|&l| there.bandwidth <= graph.links[l].bandwidth));
                let mut at = a;
                for &l in &there.links {
                    assert_eq!(graph.links[l].from, at, "{name}: the path breaks");
                    at = graph.links[l].to;
                }
                assert!(there.class == PathClass::Dis || at == b, "{name}: {a} {b}");
            }
        }
    }
}

#[test]
fn a_dgx_2_has_sixteen_gpus_behind_nvswitches() {
    let Some(folder) = folder() else { return };
    let text = std::fs::read_to_string(folder.join("hwloc/nvidiaDGX2.xml")).unwrap();
    let system = formats::read_any(&text).unwrap();
    let (graph, found) = found(&system, &Settings::default());
    assert_eq!((graph.gpus.len(), graph.numas.len()), (16, 2));
    let switch = graph.nvswitch.unwrap();
    for &gpu in &graph.gpus {
        let link = graph.link_between(gpu, switch, None).unwrap();
        assert_eq!(graph.links[link].bandwidth, 120.0, "six links of 20 GB/s");
    }
    assert_eq!(found.ring.type_intra, PathClass::Nvl);
    assert_eq!(system.gpus().next().unwrap().2.sm, 70);
}

#[test]
fn power8_gpus_are_linked_in_pairs_and_to_their_cpu() {
    let Some(folder) = folder() else { return };
    let text = std::fs::read_to_string(folder.join("hwloc/power8gpudistances.xml")).unwrap();
    let graph = Graph::new(&formats::read_any(&text).unwrap()).unwrap();
    let paths = Paths::new(&graph);
    let class = |a: &str, b: &str| paths.between(graph.node(a).unwrap(), graph.node(b).unwrap()).class;
    assert_eq!(graph.gpus.len(), 4);
    assert_eq!(class("GPU0", "GPU1"), PathClass::Nvl);
    assert_eq!(class("GPU0", "GPU2"), PathClass::Sys);
}

#[test]
fn a_graph_file_is_no_machine() {
    let Some(folder) = folder() else { return };
    let text = std::fs::read_to_string(folder.join("answers/h200-8x-graph.xml")).unwrap();
    let error = formats::read_any(&text).unwrap_err().to_string();
    assert!(error.contains("NCCL graph file"), "{error}");
    let hwloc = std::fs::read_to_string(folder.join("hwloc/nvidiaDGX2.xml")).unwrap();
    let error = nccl_xml::read(&hwloc).unwrap_err().to_string();
    assert!(error.contains("looks like hwloc XML"), "{error}");
}
