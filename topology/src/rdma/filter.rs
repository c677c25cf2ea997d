//! `ND_IB_HCA`, in NCCL's syntax: which RDMA devices and ports may be used.

use std::fmt;

use super::{RdmaDevice, RdmaPort};
use crate::{Error, Result};

/// Which devices and ports may be used.
///
/// A list of names separated by commas, each the beginning of a device's name; `=` before the list makes them whole
/// names, `^` leaves out what they match instead, and `^=` does both. `name:port` means one port of it. Empty text lets
/// everything through. This is `NCCL_IB_HCA`'s syntax; what NCCL passes over in silence (a port that is no number, a mark
/// before each name) is an error here or means what was meant.
///
/// ```
/// use nd_topology::rdma::HcaFilter;
/// let filter = HcaFilter::parse("=mlx5_0:1,mlx5_1")?;
/// assert!(filter.allows("mlx5_0", 1) && !filter.allows("mlx5_0", 2) && !filter.allows("mlx5_10", 1));
/// assert!(HcaFilter::parse("mlx5_1")?.allows("mlx5_10", 1));
/// # Ok::<(), nd_topology::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HcaFilter {
    exclude: bool,
    exact: bool,
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    name: String,
    port: Option<u32>,
}

/// Longer names the kernel does not give (`IB_DEVICE_NAME_MAX`).
const MAX_NAME: usize = 64;
/// Ports are numbered in one byte (InfiniBand Architecture Specification, volume 1, NodeInfo:NumPorts).
const MAX_PORT: u32 = 255;
/// Ports that an error lists at most.
const MOST_NAMED: usize = 40;

impl HcaFilter {
    /// Reads the setting.
    ///
    /// # Errors
    /// [`Error::Invalid`] that shows the entry: a mark without a name, marks that differ from name to name, a port that
    /// is no number from 1 to 255, a name that no device can have.
    pub fn parse(text: &str) -> Result<HcaFilter> {
        let text = text.trim();
        let bad = |entry: &str, why: &str| {
            let shown: String = entry.chars().take(MAX_NAME + 8).collect();
            Error::Invalid(format!(
                "ND_IB_HCA: `{shown}` {why}; write names such as mlx5 or mlx5_0:1, separated by commas, and before the \
                 list `=` for whole names, `^` for all others"
            ))
        };
        let marks = |entry: &str| {
            let rest = entry.trim_start_matches(['^', '=']);
            (entry[..entry.len() - rest.len()].to_owned(), rest.trim_start().to_owned())
        };
        let mut filter = HcaFilter::default();
        let mut all: Option<String> = None;
        for entry in text.split(',').map(str::trim).filter(|e| !e.is_empty()) {
            let (mark, rest) = marks(entry);
            if !matches!(mark.as_str(), "" | "=" | "^" | "^=") {
                return Err(bad(entry, "starts with marks that mean nothing together"));
            }
            match &all {
                None => {
                    (filter.exclude, filter.exact) = (mark.contains('^'), mark.contains('='));
                    all = Some(mark);
                }
                // Some repeat the mark before each name; it means the same.
                Some(first) if mark.is_empty() || mark == *first => {}
                Some(_) => {
                    return Err(bad(entry, "has a mark of its own, and one mark holds for the whole list"));
                }
            }
            let (name, port) = match rest.split_once(':') {
                None => (rest.as_str(), None),
                Some((name, port)) => {
                    let number = port.trim().parse().ok().filter(|p| (1..=MAX_PORT).contains(p));
                    let number =
                        number.ok_or_else(|| bad(entry, "has a port that is no number from 1 to 255"))?;
                    (name.trim_end(), Some(number))
                }
            };
            if name.is_empty() {
                return Err(bad(entry, "names no device"));
            }
            let fits = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '^' | '=' | '/');
            if name.len() >= MAX_NAME || !name.chars().all(fits) {
                return Err(bad(entry, "is not the name of a device"));
            }
            filter.entries.push(Entry { name: name.to_owned(), port });
        }
        Ok(filter)
    }

    /// Whether it lets a port through.
    pub fn allows(&self, device: &str, port: u32) -> bool {
        self.entries.is_empty() || self.entries.iter().any(|e| self.matches(e, device, port)) != self.exclude
    }

    fn matches(&self, entry: &Entry, device: &str, port: u32) -> bool {
        let named = if self.exact { device == entry.name } else { device.starts_with(&entry.name) };
        named && entry.port.is_none_or(|p| p == port)
    }

    /// Whether it lets everything through.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The ports that it lets through, in the devices' order.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are ports and it lets none through; it lists those there are. A machine without any
    /// is no fault of the filter.
    pub fn choose<'d>(&self, devices: &'d [RdmaDevice]) -> Result<Vec<(&'d RdmaDevice, &'d RdmaPort)>> {
        let all = || devices.iter().flat_map(|d| d.ports.iter().map(move |p| (d, p)));
        let chosen: Vec<_> = all().filter(|(d, p)| self.allows(&d.name, p.number)).collect();
        if chosen.is_empty() && all().next().is_some() {
            let there: Vec<String> =
                all().take(MOST_NAMED).map(|(d, p)| format!("{}:{}", d.name, p.number)).collect();
            let more = all().count() - there.len();
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            return Err(Error::Invalid(format!(
                "ND_IB_HCA `{self}` matches no RDMA port; there are: {}{more}",
                there.join(", ")
            )));
        }
        Ok(chosen)
    }

    /// Entries that match no port: names that may be mistyped, worth a warning.
    pub fn unmatched(&self, devices: &[RdmaDevice]) -> Vec<String> {
        let hit =
            |e: &Entry| devices.iter().any(|d| d.ports.iter().any(|p| self.matches(e, &d.name, p.number)));
        self.entries.iter().filter(|e| !hit(e)).map(Entry::to_string).collect()
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl fmt::Display for HcaFilter {
    /// As [`HcaFilter::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.entries.is_empty() {
            f.write_str(if self.exclude { "^" } else { "" })?;
            f.write_str(if self.exact { "=" } else { "" })?;
        }
        for (i, entry) in self.entries.iter().enumerate() {
            write!(f, "{}{entry}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn device(name: &str, ports: u32) -> RdmaDevice {
        let ports = (1..=ports).map(|number| RdmaPort { number, ..RdmaPort::default() }).collect();
        RdmaDevice { name: name.into(), ports, ..RdmaDevice::default() }
    }

    /// What is let through of mlx5_0 (two ports), mlx5_1, mlx5_10 and bnxt_re0.
    fn through(text: &str) -> String {
        let devices = [device("mlx5_0", 2), device("mlx5_1", 1), device("mlx5_10", 1), device("bnxt_re0", 1)];
        match HcaFilter::parse(text).and_then(|f| {
            let ports = f.choose(&devices)?;
            Ok(ports.iter().map(|(d, p)| format!("{}:{}", d.name, p.number)).collect::<Vec<_>>().join(" "))
        }) {
            Ok(names) => names,
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn the_syntax_is_nccls() {
        let everything = "mlx5_0:1 mlx5_0:2 mlx5_1:1 mlx5_10:1 bnxt_re0:1";
        let cases = [
            ("", everything),
            (" , ", everything),
            ("mlx5", "mlx5_0:1 mlx5_0:2 mlx5_1:1 mlx5_10:1"),
            ("mlx5_1", "mlx5_1:1 mlx5_10:1"),
            ("=mlx5_1", "mlx5_1:1"),
            ("mlx5_0:2", "mlx5_0:2"),
            ("=mlx5_0:1, mlx5_1:1", "mlx5_0:1 mlx5_1:1"),
            ("=mlx5_0:1,=mlx5_1:1", "mlx5_0:1 mlx5_1:1"),
            ("^mlx5_1", "mlx5_0:1 mlx5_0:2 bnxt_re0:1"),
            ("^=mlx5_1,mlx5_0:2", "mlx5_0:1 mlx5_10:1 bnxt_re0:1"),
            ("^absent", everything),
            ("bnxt,,mlx5_10", "mlx5_10:1 bnxt_re0:1"),
        ];
        for (text, ports) in cases {
            assert_eq!(through(text), ports, "{text}");
        }
    }

    #[test]
    fn what_matches_nothing_lists_those_there_are() {
        for text in ["=mlx5", "mlx5_0:3", "irdma", "^mlx5,bnxt"] {
            let error = through(text);
            let there = "there are: mlx5_0:1, mlx5_0:2, mlx5_1:1, mlx5_10:1, bnxt_re0:1";
            assert!(error.contains(there) && error.contains(&format!("`{text}`")), "{error}");
        }
        assert!(HcaFilter::parse("mlx5").unwrap().choose(&[]).unwrap().is_empty());
        let filter = HcaFilter::parse("mlx5_0:1,mlx5_0:3,irdma").unwrap();
        assert_eq!(filter.unmatched(&[device("mlx5_0", 2)]), ["mlx5_0:3", "irdma"]);
    }

    #[test]
    fn what_means_nothing_is_refused() {
        let cases = [
            ("^", "names no device"),
            ("=", "names no device"),
            (":1", "names no device"),
            ("=^mlx5", "mean nothing together"),
            ("^^mlx5", "mean nothing together"),
            ("=mlx5_0,^mlx5_1", "one mark holds for the whole list"),
            ("mlx5_0,=mlx5_1", "one mark holds for the whole list"),
            ("mlx5_0:one", "no number from 1 to 255"),
            ("mlx5_0:0", "no number from 1 to 255"),
            ("mlx5_0:256", "no number from 1 to 255"),
            ("mlx5_0:1:2", "no number from 1 to 255"),
            ("mlx5 0", "not the name of a device"),
            ("/dev/infiniband", "not the name of a device"),
        ];
        for (text, why) in cases {
            let error = HcaFilter::parse(text).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("mlx5_0:1"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}", name in "[a-z]{1,4}_[0-9]", port in 1u32..4) {
            if let Ok(filter) = HcaFilter::parse(&text) {
                filter.allows(&name, port);
                prop_assert_eq!(&HcaFilter::parse(&filter.to_string()).unwrap(), &filter);
            }
        }

        #[test]
        fn exclusion_is_the_complement(
            names in prop::collection::vec("(mlx5_[0-3]|rxe)(:[12])?", 1..4),
            exact: bool,
            device in "(mlx5_[0-9]{1,2}|rxe0?)",
            port in 1u32..4,
        ) {
            let list = format!("{}{}", if exact { "=" } else { "" }, names.join(","));
            let only = HcaFilter::parse(&list).unwrap();
            let without = HcaFilter::parse(&format!("^{list}")).unwrap();
            prop_assert_ne!(only.allows(&device, port), without.allows(&device, port));
            let named = |n: &String| {
                let (name, p) = n.split_once(':').map_or((n.as_str(), None), |(n, p)| (n, p.parse().ok()));
                (if exact { device == name } else { device.starts_with(name) }) && p.is_none_or(|p: u32| p == port)
            };
            prop_assert_eq!(only.allows(&device, port), names.iter().any(named));
        }
    }
}
