//! What is read wrong is pointed at, what is guessed is said.

use super::*;

/// A machine of two GPUs and a port, one element a line: line 2 is the NUMA node, 3 and 4 the GPUs, 5 the port.
fn text(change: impl Fn(usize, &str) -> String) -> String {
    let lines = [
        "<system version='1'>",
        "<cpu numaid='0' affinity='ff' arch='x86_64'>",
        "<pci busid='0000:01:00.0' class='0x030200' link_speed='16.0 GT/s PCIe' link_width='16'><gpu dev='0' sm='80'><nvlink target='0000:02:00.0' count='4'/></gpu></pci>",
        "<pci busid='0000:02:00.0' class='0x030200' link_speed='16.0 GT/s PCIe' link_width='16'><gpu dev='1' sm='80'/></pci>",
        "<nic><net name='eth0' dev='0' speed='10000'/></nic>",
        "</cpu>",
        "</system>",
    ];
    lines.iter().enumerate().map(|(i, l)| change(i + 1, l) + "\n").collect()
}

fn with(line: usize, from: &str, to: &str) -> String {
    text(|i, l| if i == line { l.replace(from, to) } else { l.to_owned() })
}

fn error(line: usize, from: &str, to: &str) -> String {
    read(&with(line, from, to)).unwrap_err().to_string()
}

#[test]
fn what_contradicts_itself_is_pointed_at() {
    assert!(read(&text(|_, l| l.to_owned())).unwrap().findings.is_empty());
    let twice = error(4, "0000:02", "0000:01");
    assert!(twice.contains("line 4, column 1: bus id 0000:01:00.0 is used by two"), "{twice}");
    assert!(twice.contains("the first is in line 3"), "{twice}");
    let dev = error(4, "dev='1'", "dev='0'");
    assert!(dev.contains("line 4") && dev.contains("both have the number 0"), "{dev}");
    let missing = error(3, "target='0000:02", "target='0000:77");
    assert!(
        missing.contains("line 3") && missing.contains("0000:77:00.0, and there is no such"),
        "{missing}"
    );
    let speed = error(3, "16.0 GT/s", "nan GT/s");
    assert!(speed.contains("line 3") && speed.contains("NaN GT/s"), "{speed}");
    let affinity = error(2, "'ff'", "'zz'");
    assert!(affinity.contains("line 2") && affinity.contains("`zz`"), "{affinity}");
    let numas = error(6, "</cpu>", "</cpu><cpu numaid='0'/>");
    assert!(numas.contains("line 6") && numas.contains("described twice"), "{numas}");
    let inside = "<pci busid='0000:03:00.0'><pci busid='0000:03:00.0'/></pci>";
    let cycle = error(6, "</cpu>", &format!("{inside}</cpu>"));
    assert!(cycle.contains("line 6") && cycle.contains("cannot be above itself"), "{cycle}");
    let count = error(3, "count='4'", "count='99999999999'");
    assert!(count.contains("out of range") && count.contains("2147483647"), "{count}");
    let huge = error(3, "count='4'", "count='99999999999999999999999'");
    assert!(huge.contains("out of range"), "{huge}");
}

#[test]
fn a_speed_of_minus_one_is_a_finding() {
    let system = read(&with(5, "10000", "-1")).unwrap();
    assert!(system.findings[0].message.contains("the speed of eth0 is -1"), "{:?}", system.findings);
    assert!(error(5, "10000", "-2").contains("speed -2"));
}

#[test]
fn a_port_below_two_nodes_is_a_finding() {
    let again = "</cpu><cpu numaid='1'><nic><net name='eth0' dev='0' speed='10000'/></nic></cpu>";
    let system = read(&with(6, "</cpu>", again)).unwrap();
    let message = &system.findings[0].message;
    assert!(message.contains("eth0 stands below NUMA0 and NUMA1"), "{message}");
    assert_eq!(crate::Graph::new(&system).unwrap().nets.len(), 1);
}

#[test]
fn missing_nvlinks_are_a_finding() {
    let link = "<nvlink target='0000:02:00.0' count='4'/>";
    let system = read(&with(3, link, "")).unwrap();
    let guess = system.findings.iter().find(|f| f.guess == Some(crate::model::Guess::NvLinks));
    assert!(guess.unwrap().message.contains("no NVLink of the 2 GPUs"), "{:?}", system.findings);
}

#[test]
fn amd_machines_are_version_2() {
    let version = |name| write(&crate::library::machine(name).unwrap()).lines().next().unwrap().to_owned();
    assert!(version("mi300x").contains("version=\"2\""), "{}", version("mi300x"));
    assert!(version("dgx-h100").contains("version=\"1\""), "{}", version("dgx-h100"));
}
