//! Input that nobody vouches for: parsers give an error that says where and what, and never panic.
#![allow(clippy::unwrap_used)]

use nd_topology::formats::{self, hwloc_xml, json, nccl_graph, nccl_xml, nvidia_smi};
use nd_topology::placement::{Mesh, Model};
use nd_topology::search::{Settings, search};
use nd_topology::{Cluster, Error, Graph, Paths, library, providers};
use proptest::prelude::*;

/// Every parser on one text.
fn all(text: &str) {
    let _ = nccl_xml::read(text);
    let _ = nccl_graph::read(text);
    let _ = hwloc_xml::read(text);
    let _ = nvidia_smi::read(text);
    let _ = json::read(text);
    let _ = library::from_toml(text);
    let _ = Model::from_toml(text);
    let _ = Mesh::parse(text, 64);
    let _ = providers::measured::parse(text);
    let _ = Cluster::from_toml(text, &mut |_| Err(Error::Invalid("no files here".into())));
    if let Ok(system) = formats::read_any(text)
        && let Ok(graph) = Graph::new(&system)
    {
        let paths = Paths::new(&graph);
        let _ = formats::svg::write(&system, &graph, None);
        let _ = formats::dot::write(&graph);
        let _ = json::write(&system, &graph, &paths);
        let _ = nccl_xml::write(&system);
    }
}

fn samples() -> Vec<String> {
    let system = library::machine("dgx-1").unwrap();
    let graph = Graph::new(&system).unwrap();
    let found = search(&graph, &Settings::default());
    vec![
        nccl_xml::write(&system),
        nccl_graph::write(&found),
        json::write(&library::machine("cpu-2s").unwrap(), &graph, &Paths::new(&graph))
            .chars()
            .take(3000)
            .collect(),
        library::description("pcie4-8x").unwrap().to_owned(),
        HWLOC.to_owned(),
        SMI.to_owned(),
        "[[hosts]]\nmachine='dgx-1'\ncount=2\n[network]\nkind='rails'\n".to_owned(),
        "[[link]]\nfrom='GPU0'\nto='NVSW'\ngbps=1.0\n".to_owned(),
    ]
}

const SMI: &str = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV12\tPIX\t0-19\t0\nGPU1\tNV12\t X \tSYS\t20-39\t1\nNIC0\tPIX\tSYS\t X \n";

const HWLOC: &str = r#"<?xml version="1.0"?>
<topology version="2.0">
 <object type="Machine" os_index="0" nodeset="0x1" gp_index="1">
  <object type="Package" os_index="0" nodeset="0x1" gp_index="3"><info name="CPUVendor" value="GenuineIntel"/>
   <object type="NUMANode" os_index="0" nodeset="0x1" gp_index="4" local_memory="1000"/>
   <object type="Bridge" gp_index="5" bridge_type="0-1" bridge_pci="0000:[00-02]">
    <object type="PCIDev" gp_index="6" pci_busid="0000:01:00.0" pci_type="0302 [10de:20b0] [10de:20b0] a1" pci_link_speed="15.75">
     <object type="OSDev" gp_index="8" name="nvml0" osdev_type="5"/></object>
    <object type="PCIDev" gp_index="7" pci_busid="0000:02:00.0" pci_type="0302 [10de:20b0] [10de:20b0] a1" pci_link_speed="15.75">
     <object type="OSDev" gp_index="9" name="nvml1" osdev_type="5"/></object>
   </object></object></object>
 <distances2hetero nbobjs="2" kind="25" name="NVLinkBandwidth"><indexes length="16">OSDev:8 OSDev:9 </indexes>
  <u64values length="20">0 100000 100000 0 </u64values></distances2hetero>
</topology>"#;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        all(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn mutated_files_never_panic(
        which in 0usize..8,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 1..12),
    ) {
        let mut bytes = samples()[which].clone().into_bytes();
        for (at, with, how) in edits {
            if bytes.is_empty() {
                break;
            }
            let i = at.index(bytes.len());
            match how {
                0 => bytes[i] = with,
                1 => { bytes.remove(i); }
                2 => bytes.insert(i, with),
                _ => {
                    let j = (i + with as usize).min(bytes.len());
                    let piece = bytes[i..j].to_vec();
                    bytes.splice(i..i, piece);
                }
            }
        }
        all(&String::from_utf8_lossy(&bytes));
    }
}

fn nccl(inside: &str) -> String {
    format!(
        "<system version=\"1\">\n  <cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\" modelid=\"85\">\n{inside}\n  </cpu>\n</system>\n"
    )
}

fn gpu(bus: &str, dev: u32, links: &str) -> String {
    format!(
        "<pci busid=\"{bus}\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"16\"><gpu dev=\"{dev}\" sm=\"80\" rank=\"{dev}\">{links}</gpu></pci>"
    )
}

#[test]
fn nccl_files_of_every_kind_are_read() {
    // Tabs, prolog, comments, unknown attributes and elements.
    let text = format!(
        "<?xml version='1.0'?>\n<!-- c -->\n{}",
        nccl(&gpu("0000:01:00.0", 0, "")).replace("  <", "\t<")
    )
    .replace("sm=\"80\"", "sm='80' future=\"yes\"");
    let system = nccl_xml::read(&text).unwrap();
    assert_eq!(system.gpus().next().unwrap().2.extra, [("future".to_owned(), "yes".to_owned())]);
    // 300 devices, 15-digit and decimal guids, 8-digit domains, empty link speed.
    let many: String = (0..300)
        .map(|i| format!("<pci busid=\"{:08x}:00:00.0\" class=\"0x020000\" link_speed=\"\" link_width=\"0\"><nic><net name=\"n{i}\" dev=\"{i}\" speed=\"100000\" guid=\"{}\"/></nic></pci>", i + 1, if i % 2 == 0 { "0x123456789abcdef".to_owned() } else { i.to_string() }))
        .collect();
    let system = nccl_xml::read(&nccl(&many)).unwrap();
    assert_eq!(system.ports().next().unwrap().1.guid, Some(0x0123_4567_89ab_cdef));
    assert_eq!(Graph::new(&system).unwrap().nets.len(), 300);
    assert!(system.findings.iter().any(|f| f.message.contains("300 of 300")));
    let limits = nccl_xml::limits(&system).join("; ");
    assert!(limits.contains("902 elements") && limits.contains("256"), "{limits}");
    // RCCL's version and links.
    let rccl = nccl(
        &gpu("0000:01:00.0", 0, "<xgmi target=\"0000:02:00.0\" count=\"2\" tclass=\"0x038000\"/>")
            .replace("sm=\"80\"", "sm=\"104\" gcn=\"gfx942\""),
    );
    let rccl = rccl
        .replace("version=\"1\"", "version=\"2\"")
        .replace("  </cpu>", &format!("{}\n  </cpu>", gpu("0000:02:00.0", 1, "")));
    let graph = Graph::new(&nccl_xml::read(&rccl).unwrap()).unwrap();
    let (a, b) = (graph.node("GPU0").unwrap(), graph.node("GPU1").unwrap());
    assert_eq!(graph.links[graph.link_between(a, b, None).unwrap()].bandwidth, 96.0);
}

#[test]
fn a_link_of_one_lane_is_recognised_and_a_measurement_wins() {
    let text = nccl(&(gpu("0000:01:00.0", 0, "") + &gpu("0000:02:00.0", 1, "")))
        .replace("16 GT/s\" link_width=\"16\"", "2.5 GT/s\" link_width=\"1\"");
    let mut system = nccl_xml::read(&text).unwrap();
    let said =
        system.findings.iter().any(|f| f.message.contains("2.5 GT/s x1") && f.message.contains("virtual"));
    assert!(said, "{:?}", system.findings);
    system.overrides = providers::measured::parse("[[link]]\nfrom='GPU0'\nto='NUMA0'\ngbps=22.0\n").unwrap();
    let graph = Graph::new(&system).unwrap();
    let paths = Paths::new(&graph);
    let to = |name| paths.between(graph.node(name).unwrap(), graph.node("NUMA0").unwrap()).bandwidth;
    // A link that is not believed counts as one of unknown speed: PCIe 3.0 x16.
    assert_eq!((to("GPU0"), to("GPU1")), (22.0, 12.0));
}

#[test]
fn nonsense_in_nccl_files_is_named() {
    let error = |inside: &str| match nccl_xml::read(&nccl(inside)) {
        Err(e) => e.to_string(),
        Ok(_) => panic!("accepted: {inside}"),
    };
    let twice = error(&(gpu("0000:01:00.0", 0, "") + &gpu("00000000:01:00.0", 1, "")));
    assert!(twice.contains("00:01:00.0 is used by two devices"), "{twice}");
    let missing =
        error(&gpu("0000:01:00.0", 0, "<nvlink target=\"0000:99:00.0\" count=\"4\" tclass=\"0x030200\"/>"));
    assert!(missing.contains("0000:99:00.0") && missing.contains("no such device"), "{missing}");
    let zero =
        error(&gpu("0000:01:00.0", 0, "<nvlink target=\"0000:99:00.0\" count=\"0\" tclass=\"0x068000\"/>"));
    assert!(zero.contains("count 0") && zero.contains("line 3"), "{zero}");
    for (text, want) in [
        ("<pci busid=\"0000:01:00.0\" class=\"0x020000\" link_width=\"-4\"/>", "link_width -4"),
        ("<pci busid=\"0000:01:00.0\" class=\"0x020000\" link_speed=\"-8 GT/s\"/>", "-8 GT/s"),
        ("<pci busid=\"0000:01:00.0\" class=\"0x020000\" link_speed=\"0 GT/s\"/>", "not positive"),
        ("<pci class=\"0x020000\"/>", "no busid"),
        ("<pci busid=\"eth0\" class=\"0x020000\"/>", "0000:81:00.0"),
        ("<pci busid=\"0000:01:00.0\" class=\"gpu\"/>", "0x030200"),
        ("<nic><net name=\"e\" dev=\"0\" speed=\"-100\"/></nic>", "speed -100"),
        ("<nic><net name=\"e\" dev=\"0\" speed=\"fast\"/></nic>", "not a number"),
        ("<nic><net name=\"e\" dev=\"0\" guid=\"0x1ffffffffffffffff\"/></nic>", "64-bit"),
        ("<pci busid=\"0000:01:00.0\"><gpu sm=\"80\"/></pci>", "no dev"),
    ] {
        let e = error(text);
        assert!(e.contains(want) && e.contains("line 3, column"), "{e}");
    }
    let same_rank =
        gpu("0000:01:00.0", 0, "") + &gpu("0000:02:00.0", 1, "").replace("rank=\"1\"", "rank=\"0\"");
    assert!(error(&same_rank).contains("both have rank 0"));
    let bomb = "<!DOCTYPE s [<!ENTITY a \"x\">]><system version=\"&a;\"><cpu/></system>";
    assert!(nccl_xml::read(bomb).unwrap_err().to_string().contains("is not expanded"));
    assert!(
        nccl_xml::read("<system version='9'><cpu/></system>").unwrap_err().to_string().contains("version 9")
    );
    assert!(nccl_xml::read("<system version='1'/>").unwrap_err().to_string().contains("no <cpu>"));
}

#[test]
fn files_of_other_formats_are_recognised() {
    let error = |text: &str| formats::read_any(text).unwrap_err().to_string();
    assert!(error("<graphs version=\"1\"/>").contains("NCCL graph file"));
    assert!(error("<topology><object/></topology>").contains("hwloc 1.x"));
    assert!(error("PNG\u{0}\u{1}").contains("none of the formats"));
    assert!(error("").contains("an empty file"));
    assert!(error("<html></html>").contains("an HTML page"));
    assert!(nccl_xml::read(SMI).unwrap_err().to_string().contains("line 1"));
    assert!(nccl_graph::read(&nccl("")).unwrap_err().to_string().contains("looks like NCCL topology XML"));
    assert!(error("{\"format\":\"other\",\"version\":1,\"system\":{\"numas\":[]}}").contains("`other`"));
    assert!(error("{\"a\":\n 1}").contains("JSON of another program"));
}

#[test]
fn a_pci_tree_with_a_cycle_is_refused() {
    let system = library::machine("dgx-1").unwrap();
    let graph = Graph::new(&system).unwrap();
    let json = json::write(&system, &graph, &Paths::new(&graph));
    // The first switch is device 0; it is put behind its own child.
    let cyclic = json.replacen("\"numa\": 0", "\"device\": 1", 1);
    let e = json::read(&cyclic).unwrap_err().to_string();
    assert!(e.contains("cycle"), "{e}");
    let outside = json.replacen("\"numa\": 0", "\"device\": 999", 1);
    assert!(json::read(&outside).unwrap_err().to_string().contains("number 999"));
}

#[test]
fn huge_counts_are_refused_before_they_cost_memory() {
    let pci = |n: usize| -> String {
        (0..n).map(|i| format!("<pci busid=\"{i:08x}:00:00.0\" class=\"0x060400\"/>")).collect()
    };
    let e = nccl_xml::read(&nccl(&pci(5000))).unwrap_err().to_string();
    assert!(e.contains("5000 PCI devices") && e.contains("4096"), "{e}");
    let system = nccl_xml::read(&nccl(&pci(2000))).unwrap();
    let e = Graph::new(&system).unwrap_err().to_string();
    assert!(e.contains("2001 devices") && e.contains("1500"), "{e}");
    assert_eq!(
        Paths::new(&Graph::new(&nccl_xml::read(&nccl(&pci(600))).unwrap()).unwrap())
            .between(1, 2)
            .links
            .len(),
        2
    );
}

#[test]
fn many_numa_nodes_are_refused_at_once() {
    let cpus: String = (0..4000).map(|i| format!("<cpu numaid='{i}' arch='x86_64'/>\n")).collect();
    let e = nccl_xml::read(&format!("<system version='1'>{cpus}</system>")).unwrap_err().to_string();
    assert!(e.contains("4000 NUMA nodes") && e.contains("256"), "{e}");
}

#[test]
fn numbers_of_gpus_are_their_own_and_not_negative() {
    let error = |inside: &str| nccl_xml::read(&nccl(inside)).unwrap_err().to_string();
    let twice =
        error(&(gpu("0000:01:00.0", 3, "") + &gpu("0000:02:00.0", 4, "").replace("dev=\"4\"", "dev=\"3\"")));
    assert!(twice.contains("0000:01:00.0 and 0000:02:00.0 both have the number 3"), "{twice}");
    let negative = error(&gpu("0000:01:00.0", 0, "").replace("dev=\"0\"", "dev=\"-1\""));
    assert!(negative.contains("-1 (dev)"), "{negative}");
    let sm = error(&gpu("0000:01:00.0", 0, "").replace("sm=\"80\"", "sm=\"-1\""));
    assert!(sm.contains("-1 (sm)"), "{sm}");
}

/// NCCL fuses the files of hosts that share NVSwitches: the same bus ids and device numbers on each.
#[test]
fn a_file_of_two_hosts_keeps_them_apart() {
    let host = |hash: &str, first_rank: u32| {
        let gpu = |dev: u32| {
            let rank = first_rank + dev;
            gpu(
                &format!("0000:0{}:00.0", dev + 1),
                dev,
                "<nvlink target=\"fffffff:ffff:ff\" count=\"18\" tclass=\"0x068000\"/>",
            )
            .replace(&format!("rank=\"{dev}\""), &format!("rank=\"{rank}\""))
            .replace("sm=\"80\"", "sm=\"100\"")
        };
        let nic = "<pci busid='0000:09:00.0' class='0x020000' link_speed='32.0 GT/s PCIe' link_width='16'><nic>\
                   <net name='mlx5_0' dev='0' speed='400000' guid='0x1' gdr='1'/></nic></pci>";
        format!("<cpu numaid='0' host_hash='{hash}' arch='arm64'>{}{}{nic}</cpu>", gpu(0), gpu(1))
    };
    let text = format!("<system version='1'>{}{}</system>", host("0xa", 0), host("0xb", 2));
    let system = nccl_xml::read(&text).unwrap();
    let graph = Graph::new(&system).unwrap();
    let paths = Paths::new(&graph);
    assert_eq!((graph.gpus.len(), graph.nets.len(), graph.numas.len()), (4, 2, 2));
    let class = |a: &str, b: &str| paths.between(graph.node(a).unwrap(), graph.node(b).unwrap()).class.word();
    assert_eq!(class("GPU0@host0", "GPU1@host1"), "NVL");
    assert_eq!(class("GPU0@host0", "mlx5_0@host0"), "PHB");
    assert_eq!(class("NUMA0@host0", "NUMA0@host1"), "DIS");
    let e = graph.node("GPU1").unwrap_err().to_string();
    assert!(e.contains("GPU1@host0, GPU1@host1"), "{e}");
    // Channels name GPUs by rank, since each host has its own GPU 0.
    let ring = search(&graph, &Settings::default()).ring;
    let mut members = ring.channels[0].gpus.clone();
    members.sort_unstable();
    assert_eq!(members, [0, 1, 2, 3]);
    // And back without loss.
    let written = nccl_xml::write(&system);
    let again = nccl_xml::read(&written).unwrap();
    assert_eq!((&again, nccl_xml::write(&again)), (&system, written));
    let json = json::write(&system, &graph, &paths);
    assert_eq!(json::read(&json).unwrap(), system);
    // Twice on one host is still an error, and so is one rank for two GPUs.
    let twice = format!("<system version='1'>{}{}</system>", host("0xa", 0), host("0xa", 2));
    assert!(nccl_xml::read(&twice).is_err());
    let ranks = format!("<system version='1'>{}{}</system>", host("0xa", 0), host("0xb", 0));
    assert!(nccl_xml::read(&ranks).unwrap_err().to_string().contains("both have rank 0"));
}

#[test]
fn unknown_devices_are_named_with_those_there_are() {
    let graph = Graph::new(&library::machine("dgx-1").unwrap()).unwrap();
    let e = graph.node("GPU8").unwrap_err().to_string();
    assert!(e.contains("`GPU8`") && e.contains("GPU7") && e.contains("mlx5_0"), "{e}");
}

#[test]
fn hwloc_and_smi_samples_say_what_they_hold() {
    let graph = Graph::new(&hwloc_xml::read(HWLOC).unwrap()).unwrap();
    let (a, b) = (graph.node("GPU0").unwrap(), graph.node("GPU1").unwrap());
    assert_eq!(graph.links[graph.link_between(a, b, None).unwrap()].bandwidth, 80.0, "four links of 20 GB/s");
    let short = HWLOC.replace("0 100000 100000 0 ", "0 1");
    assert!(hwloc_xml::read(&short).unwrap_err().to_string().contains("4 are needed"));
    let huge = HWLOC.replace("nbobjs=\"2\"", "nbobjs=\"4000000000\"");
    assert!(hwloc_xml::read(&huge).unwrap_err().to_string().contains("1 to 1024"));
    let smi = nvidia_smi::read(SMI).unwrap();
    assert_eq!(smi.gpus().next().unwrap().2.nvlinks[0].count, 12);
}
