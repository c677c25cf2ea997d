//! What this machine says of itself: hwloc, sysfs, NVML, and a file of measurements. The only part of the crate that
//! touches the system.
//!
//! Each provider adds what it sees to a [`System`] and a [`Finding`](crate::model::Finding) for what it could not see.
//! hwloc (or sysfs alone) gives the tree, sysfs the link speeds and ports, NVML the GPUs and their NVLinks; a measured
//! file wins over all of them.

#[cfg(feature = "hwloc")]
pub mod hwloc;
pub mod measured;
pub mod memory;
pub mod nvml;
pub mod rdma;
pub mod sysfs;

use std::path::Path;

use crate::{Error, Result, System, formats};

/// What to ask.
#[derive(Debug, Clone, Default)]
pub struct Options<'a> {
    /// Where sysfs is mounted; `/sys` unless given (tests give a copy).
    pub sysfs: Option<&'a Path>,
    /// A file of measured links (TOML or JSON, see [`measured`]).
    pub measured: Option<&'a Path>,
    /// Leave hwloc out even where it is built in.
    pub without_hwloc: bool,
}

/// Looks at this machine.
///
/// # Errors
/// [`Error::Provider`] when not even sysfs can be read; errors of the measured file.
pub fn detect(options: &Options<'_>) -> Result<System> {
    let root = options.sysfs.unwrap_or(Path::new("/sys"));
    let mut system = sysfs::read(root)?;
    #[cfg(feature = "hwloc")]
    if options.sysfs.is_none() && !options.without_hwloc {
        match hwloc::read() {
            Ok(seen) => hwloc::merge(&mut system, &seen),
            Err(e) => system.finding("hwloc", format!("{e}; the tree is from sysfs alone")),
        }
    }
    #[cfg(not(feature = "hwloc"))]
    system.finding("hwloc", "not built in; the tree is from sysfs alone");
    if options.sysfs.is_none() {
        nvml::add(&mut system);
    }
    formats::assume_gpus(&mut system, "sysfs");
    formats::note_link_speeds(&mut system, "sysfs");
    if let Some(path) = options.measured {
        measured::add(&mut system, path)?;
    }
    system.validate()?;
    Ok(system)
}

/// Reads a machine from a file of any known format.
///
/// # Errors
/// [`Error::Io`] if it cannot be read; else those of [`formats::read_any`].
pub fn read_file(path: &Path) -> Result<System> {
    let mut system = formats::read_any(&read_text(path)?)?;
    if system.name.is_empty() {
        system.name = match path.file_name() {
            Some(name) if name == "-" => "standard input".to_owned(),
            name => name.map_or(String::new(), |n| n.to_string_lossy().into_owned()),
        };
    }
    Ok(system)
}

/// Reads a text file of at most 16 MiB; `-` stands for standard input.
pub fn read_text(path: &Path) -> Result<String> {
    use std::io::Read;
    let io =
        |e: &dyn std::fmt::Display| Error::Io { path: path.display().to_string(), message: e.to_string() };
    let mut bytes = Vec::new();
    let limit = formats::xml::MAX_BYTES as u64;
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        let file = std::fs::File::open(path).map_err(|e| io(&e))?;
        if file.metadata().is_ok_and(|m| m.is_dir()) {
            return Err(io(&"it is a folder"));
        }
        Box::new(file)
    };
    input.take(limit + 1).read_to_end(&mut bytes).map_err(|e| io(&e))?;
    if bytes.len() as u64 > limit {
        return Err(io(&format!("longer than {limit} bytes, which no machine needs")));
    }
    String::from_utf8(bytes).map_err(|e| match formats::detect::binary_kind(e.as_bytes()) {
        Some(kind) => io(&format!("it is {kind}")),
        None => io(&"it is no UTF-8 text"),
    })
}
