use super::*;

const DGX1: &str = "\u{1b}[4m\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\u{1b}[0m
GPU0\t X \tNV1\tSYS\tPIX\t0-19\t0
GPU1\tNV1\t X \tSYS\tPHB\t0-19\t0
GPU2\tSYS\tSYS\t X \tSYS\t20-39\t1
NIC0\tPIX\tPHB\tSYS\t X \t\t

Legend:
  X    = Self
NIC Legend:

  NIC0: mlx5_0
";

#[test]
fn places_follow_from_the_words() {
    let system = read(DGX1).unwrap();
    let graph = Graph::new(&system).unwrap();
    let paths = Paths::new(&graph);
    let word = |a, b| {
        let (a, b) = (graph.node(a).unwrap(), graph.node(b).unwrap());
        paths.class_for_people(&graph, a, b).word()
    };
    assert_eq!(word("GPU0", "GPU1"), "NVL");
    assert_eq!(word("GPU0", "mlx5_0"), "PIX");
    assert_eq!(word("GPU1", "mlx5_0"), "PHB");
    assert_eq!(word("GPU0", "GPU2"), "SYS");
    assert_eq!(system.numas.len(), 2);
}

fn words(text: &str) -> Vec<String> {
    let system = read(text).unwrap();
    let graph = Graph::new(&system).unwrap();
    let paths = Paths::new(&graph);
    let ends: Vec<_> = graph.gpus.iter().chain(&graph.nets).copied().collect();
    let word = |&a, &b| paths.class_for_people(&graph, a, b).word();
    let row = |a| ends.iter().filter(|b| *b != a).map(|b| word(a, b)).collect::<Vec<_>>().join(" ");
    ends.iter().map(row).collect()
}

#[test]
fn every_word_comes_back() {
    for near in ["PIX", "PXB", "PHB", "NODE", "SYS"] {
        let text = format!("GPU0 mlx5_0 CPU Affinity\nGPU0 X {near} 0-19\nmlx5_0 {near} X\n");
        assert_eq!(words(&text), [near, near]);
    }
    let mixed = "GPU0 GPU1 NIC0 efa_0\nGPU0 X PXB PIX PXB\nGPU1 PXB X PXB PIX\nNIC0 PIX PXB X PXB\n\
                 efa_0 PXB PIX PXB X\n";
    assert_eq!(words(mixed), ["PXB PIX PXB", "PXB PXB PIX", "PIX PXB PXB", "PXB PIX PXB"]);
}

#[test]
fn a_matrix_that_is_not_symmetric_names_both_cells() {
    let error = read(&DGX1.replace("NIC0\tPIX", "NIC0\tPXB")).unwrap_err().to_string();
    assert!(error.contains("line 5"), "{error}");
    assert!(error.contains("row NIC0 says PXB to GPU0, and row GPU0 says PIX to NIC0"), "{error}");
    let error = read("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV2 X\n").unwrap_err().to_string();
    assert!(error.contains("NV2") && error.contains("NV4"), "{error}");
    let error = read("GPU0 GPU1\nGPU0 X X\nGPU1 X X\n").unwrap_err().to_string();
    assert!(error.contains("row GPU1 says X to GPU0"), "{error}");
}

#[test]
fn words_that_no_tree_gives_are_a_finding() {
    let text = "GPU0 GPU1 GPU2\nGPU0 X PIX SYS\nGPU1 PIX X PIX\nGPU2 SYS PIX X\n";
    let system = read(text).unwrap();
    let found =
        system.findings.iter().any(|f| f.message.contains("the first is GPU0 to GPU2 (SYS, here PIX)"));
    assert!(found, "{:?}", system.findings);
}

/// The matrix of an even ring of GPUs in which neighbours have `near` and all others `far`.
fn ring(n: usize, near: &str, far: &str) -> String {
    let head: Vec<String> = (0..n).map(|i| format!("GPU{i}")).collect();
    let mut text = head.join("\t") + "\n";
    for i in 0..n {
        let cell = |j: usize| match (j + n - i) % n {
            0 => "X",
            1 => near,
            d if d == n - 1 => near,
            _ => far,
        };
        text += &format!("GPU{i}\t{}\n", (0..n).map(cell).collect::<Vec<_>>().join("\t"));
    }
    text
}

fn says(system: &System, text: &str) -> bool {
    system.findings.iter().any(|f| f.message.contains(text))
}

#[test]
fn a_way_over_another_gpu_contradicts_no_word_of_pcie() {
    let system = read(&ring(6, "NV2", "SYS")).unwrap();
    let graph = Graph::new(&system).unwrap();
    let (a, b) = (graph.node("GPU0").unwrap(), graph.node("GPU2").unwrap());
    assert_eq!(Paths::new(&graph).class_for_people(&graph, a, b).word(), "NVB");
    assert!(!says(&system, "no PCIe tree"), "{:?}", system.findings);
}

#[test]
fn nvswitches_link_all_gpus_equally() {
    let part = read(&ring(4, "NV12", "SYS")).unwrap();
    assert!(Graph::new(&part).unwrap().nvswitch.is_none());
    assert!(says(&part, "24 NVLinks") && says(&part, "direct links"), "{:?}", part.findings);
    let whole = read(&ring(4, "NV12", "NV12")).unwrap();
    assert!(Graph::new(&whole).unwrap().nvswitch.is_some());
    assert!(!says(&whole, "taken for direct"), "{:?}", whole.findings);
}

#[test]
fn nodes_that_no_column_names_are_said_to_be_made_up() {
    let text = "GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n";
    assert!(says(&read(text).unwrap(), "2 NUMA nodes are made up"));
    assert!(!says(&read(DGX1).unwrap(), "made up, one for"));
}

#[test]
fn too_many_gpus_are_counted() {
    let error = crate::formats::read_any(&ring(300, "NV1", "SYS")).unwrap_err().to_string();
    assert!(error.contains("more than 256 devices"), "{error}");
}

#[test]
fn bad_cells_are_named() {
    let error = read(&DGX1.replace("PIX\t0-19", "FOO\t0-19")).unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("FOO"), "{error}");
    assert!(error.contains("`FOO` is no connection; there are X NV# PIX PXB PHB NODE SYS"), "{error}");
    let error = read("GPU0 GPU1\nGPU0 X NV1\n").unwrap_err().to_string();
    assert!(error.contains("2 columns and 1 rows"), "{error}");
}
