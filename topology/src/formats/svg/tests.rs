use super::*;
use crate::formats::xml::Document;

#[test]
fn every_machine_gives_a_picture_with_all_its_gpus() {
    for name in crate::library::names() {
        let mut system = crate::library::machine(name).unwrap();
        system.name.push_str(" <&\">");
        let graph = Graph::new(&system).unwrap();
        let overlay = Overlay { title: "a & b".into(), walks: vec![graph.gpus.clone()], closed: true };
        let svg = write(&system, &graph, Some(&overlay));
        Document { text: &svg, format: "SVG" }.parse().unwrap();
        for &gpu in &graph.gpus {
            assert!(svg.contains(&format!(">{}<", graph.nodes[gpu].name)), "{name}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
    }
}

fn drawn(xml: &str) -> String {
    let system = crate::formats::read_any(xml).unwrap();
    let graph = Graph::new(&system).unwrap();
    write(&system, &graph, None)
}

#[test]
fn what_has_no_pcie_link_gets_no_speed_of_one() {
    let xml = "<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\"><nic><net name=\"eth0\" dev=\"0\" \
               speed=\"10000\"/></nic></cpu></system>";
    let svg = drawn(xml);
    assert!(!svg.contains("5000") && svg.contains(NO_LINK) && !svg.contains(">PCIe, up to"), "{svg}");
    let system = crate::formats::read_any(xml).unwrap();
    let dot = crate::formats::dot::write(&Graph::new(&system).unwrap());
    assert!(!dot.contains("5000") && dot.contains("style=dotted"), "{dot}");
}

#[test]
fn links_to_the_cpu_and_devices_without_a_node_are_drawn() {
    let bridge = |bus: &str, below: &str| {
        format!(
            "<pci busid=\"0000:{bus}:00.0\" class=\"0x060400\" link_speed=\"8.0 GT/s PCIe\" link_width=\"16\">{below}</pci>"
        )
    };
    let device = |bus: &str, class: &str, below: &str| {
        format!(
            "<pci busid=\"0000:{bus}:00.0\" class=\"{class}\" vendor=\"0x10de\" device=\"0x1ac2\" subsystem_vendor=\"0x10de\" subsystem_device=\"0x0000\" link_speed=\"8.0 GT/s PCIe\" link_width=\"16\">{below}</pci>"
        )
    };
    let gpu = device(
        "02",
        "0x030200",
        "<gpu dev=\"0\" sm=\"60\" rank=\"0\"><nvlink target=\"0000:00:00.0\" count=\"2\" tclass=\"0x068001\"/></gpu>",
    );
    let parts = [
        bridge("01", &gpu),
        bridge("03", &device("04", "0x068000", "")),
        bridge("05", &device("06", "0x030200", "")),
    ];
    let name = "a machine with a name that is far too long for the width of its picture, as users give them";
    let svg = drawn(&format!(
        "<system version=\"1\"><cpu numaid=\"0\" arch=\"ppc64\">{}</cpu></system>",
        parts.concat()
    ));
    let link =
        format!("stroke=\"{}\" stroke-width=\"{:.1}\" fill=\"none\"", colour(LinkKind::Nvl), thickness(36.0));
    assert_eq!(svg.matches(&link).count(), 1, "{svg}");
    for text in [">NVSwitch<", ">0000:04:00.0<", ">3D accelerator<", ">0000:06:00.0<"] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    let mut system = crate::library::machine("dgx-1").unwrap();
    system.name = name.repeat(3);
    let svg = write(&system, &Graph::new(&system).unwrap(), None);
    assert!(!svg.contains(name.repeat(3).as_str()) && svg.contains('…'));
}
