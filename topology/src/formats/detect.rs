//! Which format a text is of.

use crate::{Error, Result, System};

/// The formats that describe a machine, and some that do not and get mixed up with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// NCCL or RCCL topology XML.
    NcclTopology,
    /// NCCL graph XML: rings and trees, no machine.
    NcclGraph,
    /// hwloc XML of version 2.
    Hwloc,
    /// hwloc XML of version 1, which is not read.
    HwlocOld,
    /// Output of `nvidia-smi topo -m`.
    NvidiaSmi,
    /// JSON, this crate's or another's.
    Json,
    /// A machine, a cluster, or something else in TOML.
    Toml,
    /// Something known that holds no machine, by its name.
    Foreign(&'static str),
    /// Nothing known.
    Unknown,
}

impl Format {
    /// What to call it in a sentence.
    pub fn describe(self) -> &'static str {
        match self {
            Format::NcclTopology => "NCCL topology XML",
            Format::NcclGraph => "an NCCL graph file (rings and trees, not a machine)",
            Format::Hwloc => "hwloc XML",
            Format::HwlocOld => "hwloc 1.x XML",
            Format::NvidiaSmi => "the output of `nvidia-smi topo -m`",
            Format::Json => "JSON",
            Format::Toml => "TOML",
            Format::Foreign(name) => name,
            Format::Unknown => "none of the formats known here",
        }
    }
}

/// Guesses from the first few lines.
pub fn guess(text: &str) -> Format {
    let head: String = text.trim_start_matches('\u{feff}').trim_start().chars().take(4000).collect();
    if head.is_empty() {
        return Format::Foreign("an empty file");
    }
    if let Some(name) = foreign(&head) {
        return Format::Foreign(name);
    }
    if head.starts_with('<') {
        let has = |tag: &str| head.contains(tag);
        return match () {
            _ if has("<system") => Format::NcclTopology,
            _ if has("<graphs") => Format::NcclGraph,
            _ if has("<topology version=\"2") || has("<topology version='2") => Format::Hwloc,
            _ if has("<topology version=\"3") => Format::Hwloc,
            _ if has("<topology") => Format::HwlocOld,
            _ => {
                // Comments may push the first element far down.
                let all = text;
                match () {
                    _ if all.contains("<system") => Format::NcclTopology,
                    _ if all.contains("<graphs") => Format::NcclGraph,
                    _ => Format::Unknown,
                }
            }
        };
    }
    let list = || head.starts_with('[') && serde_json::from_str::<serde_json::Value>(text.trim()).is_ok();
    if head.starts_with('{') || list() {
        return Format::Json;
    }
    let first =
        head.lines().find(|l| l.split_whitespace().any(|w| w.starts_with("GPU0") || w.contains("mGPU0")));
    // The header of many devices is longer than the head.
    let is_matrix = |l: &str| l.contains("CPU Affinity") || l.split_whitespace().any(|w| w == "X");
    if first.is_some() && text.lines().take(100).any(is_matrix) {
        return Format::NvidiaSmi;
    }
    let assignment = |l: &str| {
        let l = l.trim();
        l.starts_with('[') && l.ends_with(']')
            || l.split_once('=').is_some_and(|(k, _)| {
                !k.trim().is_empty()
                    && k.trim().chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
            })
    };
    let mut lines = head.lines().filter(|l| !l.trim().is_empty() && !l.trim_start().starts_with('#'));
    if lines.next().is_some_and(assignment) {
        return Format::Toml;
    }
    table_or_tree(&head).map_or(Format::Unknown, Format::Foreign)
}

/// Formats that begin with a mark of their own and are given by mistake.
fn foreign(head: &str) -> Option<&'static str> {
    if head.starts_with('<') {
        return match root(head).to_ascii_lowercase().as_str() {
            "html" | "head" | "body" => Some("an HTML page"),
            "svg" => Some("a picture in SVG"),
            "domain" | "domaincapabilities" | "capabilities" => Some("XML of libvirt"),
            _ => None,
        };
    }
    let word = head.split(|c: char| c.is_whitespace() || c == '{').next().unwrap_or_default();
    if matches!(word, "graph" | "digraph" | "strict") && head.contains('{') {
        return Some("a graph for Graphviz (DOT)");
    }
    head.starts_with("%PDF-").then_some("a PDF document")
}

/// The name of the first element, or of the document type where one is declared.
fn root(xml: &str) -> &str {
    let mut rest = xml;
    loop {
        rest = rest.trim_start();
        let end = match rest {
            _ if rest.starts_with("<?") => "?>",
            _ if rest.starts_with("<!--") => "-->",
            _ => break,
        };
        match rest.find(end) {
            Some(at) => rest = &rest[at + end.len()..],
            None => return "",
        }
    }
    let name = rest.strip_prefix('<').unwrap_or_default();
    let name =
        name.get(..9).filter(|d| d.eq_ignore_ascii_case("!doctype ")).map_or(name, |d| &name[d.len()..]);
    name.split(|c: char| c.is_whitespace() || matches!(c, '>' | '/')).next().unwrap_or_default()
}

/// YAML and comma-separated tables, which have no mark: by their first two lines.
fn table_or_tree(head: &str) -> Option<&'static str> {
    let mut lines = head.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let (first, second) = (lines.next()?, lines.next().unwrap_or_default());
    let key = |l: &str| {
        let l = l.trim_start_matches("- ");
        let key = l.split_once(": ").map(|p| p.0).or_else(|| l.strip_suffix(':'));
        key.is_some_and(|k| !k.is_empty() && k.chars().all(|c| c.is_alphanumeric() || "_-./".contains(c)))
    };
    if first == "---" || key(first) && (second.is_empty() || key(second) || second.starts_with("- ")) {
        return Some("YAML");
    }
    let commas = first.matches(',').count();
    (commas > 0 && second.matches(',').count() == commas).then_some("a table with commas (CSV)")
}

/// What a file is that holds no UTF-8 text, where its first bytes tell.
pub(crate) fn binary_kind(bytes: &[u8]) -> Option<&'static str> {
    const MARKS: [(&[u8], &str); 9] = [
        (b"\x89PNG", "a picture in PNG"),
        (b"\xff\xd8\xff", "a picture in JPEG"),
        (b"\x1f\x8b", "compressed with gzip; unpack it first (gunzip)"),
        (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first (unzstd)"),
        (b"\xfd7zXZ", "compressed with xz; unpack it first (unxz)"),
        (b"\x7fELF", "a program (ELF)"),
        (b"%PDF-", "a PDF document"),
        (b"\xff\xfe", UTF_16),
        (b"\xfe\xff", UTF_16),
    ];
    MARKS.iter().find(|(mark, _)| bytes.starts_with(mark)).map(|(_, name)| *name)
}

const UTF_16: &str = "UTF-16 text; write it again as UTF-8 (iconv -f UTF-16 -t UTF-8)";

pub(crate) fn wrong_format(wanted: &str, text: &str) -> Error {
    Error::WrongFormat(format!("this is not {wanted}; it looks like {}", guess(text).describe()))
}

/// What a TOML file describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TomlKind {
    Machine,
    Cluster,
    Measured,
    Model,
}

impl TomlKind {
    const ALL: [TomlKind; 4] = [TomlKind::Machine, TomlKind::Cluster, TomlKind::Measured, TomlKind::Model];

    /// The key that only such a file has, what it is, and where it belongs.
    fn marks(self) -> (&'static [&'static str], &'static str, &'static str) {
        match self {
            TomlKind::Machine => (
                &["cpu"],
                "one machine in TOML ([cpu], [gpu], …)",
                "give it with --from, or name it in a cluster file: [[hosts]] with file = \"…\"",
            ),
            TomlKind::Cluster => {
                (&["hosts"], "a cluster in TOML ([[hosts]])", "give it to `nd-topo place --cluster`")
            }
            TomlKind::Measured => {
                (&["link"], "a file of measured links ([[link]])", "give it with --measured")
            }
            TomlKind::Model => (
                &["layers", "hidden", "heads"],
                "a model's shape in TOML",
                "give it to `nd-topo place --model`",
            ),
        }
    }
}

/// Refuses TOML that is of another kind by its keys; what is no TOML at all is left to the parser.
pub(crate) fn expect_toml(text: &str, wanted: TomlKind) -> Result<(), Error> {
    let Ok(table) = text.parse::<toml::Table>() else { return Ok(()) };
    let has = |kind: TomlKind| kind.marks().0.iter().any(|key| table.contains_key(*key));
    match TomlKind::ALL.into_iter().find(|&k| k != wanted && has(k) && !has(wanted)) {
        Some(other) => Err(Error::WrongFormat(format!(
            "this looks like {}, and {} is expected here; {}",
            other.marks().1,
            wanted.marks().1,
            other.marks().2
        ))),
        None => Ok(()),
    }
}

/// Reads a machine from any of the formats that hold one.
///
/// # Errors
/// [`Error::WrongFormat`] names what the text looks like when that is no machine.
pub fn read_any(text: &str) -> Result<System> {
    match guess(text) {
        Format::NcclTopology => super::nccl_xml::read(text),
        Format::Hwloc => super::hwloc_xml::read(text),
        Format::NvidiaSmi => super::nvidia_smi::read(text),
        Format::Json => super::json::read(text),
        Format::Toml => crate::library::from_toml(text),
        Format::NcclGraph => Err(Error::WrongFormat(
            "this is an NCCL graph file: rings and trees that were found, not the machine they were found on; \
             give the topology file (NCCL_TOPO_DUMP_FILE writes it)"
                .to_owned(),
        )),
        Format::HwlocOld => Err(Error::WrongFormat(
            "this is hwloc 1.x XML, which is not read; write it again with `lstopo file.xml` of hwloc 2".to_owned(),
        )),
        Format::Foreign(name) => {
            Err(Error::WrongFormat(format!("this is {name}, which holds no machine; {READABLE}")))
        }
        Format::Unknown => {
            Err(Error::WrongFormat(format!("this is none of the formats known here; {READABLE}")))
        }
    }
}

const READABLE: &str = "what is read is NCCL or RCCL topology XML (<system>), hwloc 2 XML (<topology>), `nvidia-smi \
                        topo -m` text, this program's JSON, or a machine in TOML";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_another_kind_are_named() {
        let system = crate::library::machine("dgx-1").unwrap();
        let graph = crate::Graph::new(&system).unwrap();
        let svg = crate::formats::svg::write(&system, &graph, None);
        let dot = crate::formats::dot::write(&graph);
        for (text, name) in [
            ("<!DOCTYPE html>\n<p><system>", "an HTML page"),
            ("<?xml version='1.0'?>\n<!-- x -->\n<domain type='kvm'><sysinfo><system/></sysinfo>", "libvirt"),
            (svg.as_str(), "SVG"),
            (dot.as_str(), "Graphviz"),
            ("%PDF-1.7\n", "PDF"),
            ("", "an empty file"),
            ("\u{feff} \n", "an empty file"),
            ("---\na: 1\n", "YAML"),
            ("# hosts\nhosts:\n  - name: a\n", "YAML"),
            ("index,name\n0,NVIDIA H100\n", "CSV"),
            ("hello\n", "none of the formats known here"),
            ("<foo/>", "none of the formats known here"),
        ] {
            let error = read_any(text).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("`nvidia-smi topo -m`"), "{text}: {error}");
        }
    }

    #[test]
    fn what_was_read_before_is_still_told_apart() {
        for (text, format) in [
            ("<!-- a --><system version='1'>", Format::NcclTopology),
            (
                "<?xml version='1.0'?><!DOCTYPE topology SYSTEM 'hwloc2.dtd'><topology version=\"2.0\">",
                Format::Hwloc,
            ),
            ("title = \"a, b\"\n", Format::Toml),
            ("{\"a\": 1}", Format::Json),
        ] {
            assert_eq!(guess(text), format, "{text}");
        }
    }

    #[test]
    fn first_bytes_tell() {
        assert_eq!(binary_kind(b"\x1f\x8b\x08").map(|k| k.contains("gzip")), Some(true));
        assert_eq!(binary_kind(b"\xff\xfe<\0").map(|k| k.contains("UTF-16")), Some(true));
        assert_eq!(binary_kind(b"\x80abc"), None);
    }
}
