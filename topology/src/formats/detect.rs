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
            Format::Unknown => "none of the formats known here",
        }
    }
}

/// Guesses from the first few lines.
pub fn guess(text: &str) -> Format {
    let head: String = text.trim_start_matches('\u{feff}').trim_start().chars().take(4000).collect();
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
    if first.is_some() && head.lines().any(|l| l.contains("CPU Affinity") || l.contains(" X ")) {
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
    Format::Unknown
}

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
        Format::Unknown => Err(Error::WrongFormat(
            "this is none of the formats known here: NCCL or RCCL topology XML (<system>), hwloc 2 XML (<topology>), \
             `nvidia-smi topo -m` text, this program's JSON, or a machine in TOML"
                .to_owned(),
        )),
    }
}
