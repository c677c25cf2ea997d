//! What links were measured to cost: the file that `nd-bench --calibrate` writes and `ND_CALIBRATION` names.
//!
//! ```toml
//! [[link]]
//! transport = "shm"
//! between = "ranks of a host"   # or "hosts"
//! ranks_per_core = 1.0          # 1 where every rank has a core of its own
//! pull = true                   # receivers fetch long messages themselves
//! gap_us = 0.1                  # a short message of a stream: the time of both ranks that it takes
//! one_way = [[8, 0.3], [4096, 0.9]]       # bytes, µs: one message, from the send to the receipt
//! exchange = [[8, 0.4], [4096, 1.1]]      # bytes, µs: all ranks send and receive at once
//! reduce = [[8, 0.4], [4096, 1.5]]        # bytes of a part, µs: reduce-scatter of two ranks, all pairs at once
//! host_gbps = 1.2               # between hosts: what all ranks of a host send together
//! ```
//!
//! Between the points costs are linear, above the last one they go on as the last two do.

use std::fmt::Write;
use std::sync::LazyLock;

use serde::Deserialize;

/// Bytes and µs, ascending.
pub type Points = Vec<(u64, f64)>;

/// The most points of a curve: many times what is measured.
const MAX_POINTS: usize = 1000;
/// The longest time that a point may state, µs: a day.
const MAX_US: f64 = 86_400e6;

/// What links cost, by kind.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// One entry for each kind of link.
    #[serde(default)]
    pub link: Vec<LinkCost>,
}

/// Between whom a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
pub enum Between {
    /// Ranks of one host.
    #[serde(rename = "ranks of a host")]
    Ranks,
    /// Ranks of different hosts.
    #[serde(rename = "hosts")]
    Hosts,
}

impl Between {
    /// As in the file.
    pub fn name(self) -> &'static str {
        match self {
            Between::Ranks => "ranks of a host",
            Between::Hosts => "hosts",
        }
    }
}

/// What one kind of link costs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCost {
    /// The name of its transport.
    pub transport: String,
    /// Between whom.
    pub between: Between,
    /// Ranks for each core of the most crowded machine, at least 1.
    #[serde(default = "one")]
    pub ranks_per_core: f64,
    /// Whether receivers fetch long messages themselves.
    #[serde(default)]
    pub pull: bool,
    /// A short message of a stream of them, from one rank to another, µs: the time of both ranks that posting and taking
    /// it take.
    pub gap_us: f64,
    /// One message.
    pub one_way: Points,
    /// All send and receive at once.
    pub exchange: Points,
    /// Reduce-scatter of two ranks, for the bytes of one part.
    pub reduce: Points,
    /// GB/s that all ranks of a host send together to other hosts.
    #[serde(default)]
    pub host_gbps: Option<f64>,
}

fn one() -> f64 {
    1.0
}

/// Why a calibration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

impl Calibration {
    /// What links of the machines that this project was measured on cost: two cores at 2 to 3 GHz, loopback, 10 Gbit/s
    /// between hosts. Used where nothing was measured.
    pub fn typical() -> &'static Calibration {
        static TYPICAL: LazyLock<Calibration> =
            LazyLock::new(|| Calibration::parse(include_str!("typical.toml")).expect("checked by a test"));
        &TYPICAL
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// With the line and what is wrong there; numbers that cannot be times or sizes are refused.
    pub fn parse(text: &str) -> Result<Calibration, Invalid> {
        let read: Calibration = toml::from_str(text).map_err(|e| {
            let line = e.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let line = line.map_or(String::new(), |line| format!("line {line}: "));
            Invalid(format!("{line}{}", e.message()))
        })?;
        for link in &read.link {
            link.check().map_err(|problem| {
                Invalid(format!("link {} between {}: {problem}", link.transport, link.between.name()))
            })?;
        }
        Ok(read)
    }

    /// The entry for a kind of link that is nearest in how crowded the cores are.
    pub fn find(&self, transport: &str, between: Between, ranks_per_core: f64) -> Option<&LinkCost> {
        let apart =
            |l: &&LinkCost| (l.ranks_per_core / ranks_per_core).max(ranks_per_core / l.ranks_per_core);
        let of_kind = self.link.iter().filter(|l| l.transport == transport && l.between == between);
        of_kind.min_by(|a, b| apart(a).total_cmp(&apart(b)))
    }

    /// Takes the entries of `newer` in place of those of the same kind.
    pub fn update(&mut self, newer: Calibration) {
        let kind = |l: &LinkCost| (l.transport.clone(), l.between, l.ranks_per_core.to_bits());
        for link in newer.link {
            match self.link.iter_mut().find(|l| kind(l) == kind(&link)) {
                Some(known) => *known = link,
                None => self.link.push(link),
            }
        }
    }

    /// As TOML.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        for link in &self.link {
            let points = |points: &Points| {
                let points = points.iter().map(|(bytes, us)| format!("[{bytes}, {us:.3}]"));
                points.collect::<Vec<_>>().join(", ")
            };
            let _ = write!(
                out,
                "[[link]]\ntransport = {}\nbetween = \"{}\"\nranks_per_core = {:?}\npull = {}\ngap_us = {:.3}\n\
                 one_way = [{}]\nexchange = [{}]\nreduce = [{}]\n",
                toml::Value::from(link.transport.as_str()),
                link.between.name(),
                link.ranks_per_core,
                link.pull,
                link.gap_us,
                points(&link.one_way),
                points(&link.exchange),
                points(&link.reduce),
            );
            if let Some(gbps) = link.host_gbps {
                let _ = writeln!(out, "host_gbps = {gbps}");
            }
            out.push('\n');
        }
        out
    }
}

impl LinkCost {
    fn check(&self) -> Result<(), String> {
        let time = |us: f64| (0.0..=MAX_US).contains(&us);
        if !time(self.gap_us) {
            return Err(format!("gap_us is {}; write µs, at least 0", self.gap_us));
        }
        if !(1.0..=1e4).contains(&self.ranks_per_core) {
            return Err(format!("ranks_per_core is {}; write 1.0 to 10000.0", self.ranks_per_core));
        }
        if let Some(gbps) = self.host_gbps.filter(|g| !(1e-6..=1e6).contains(g)) {
            return Err(format!("host_gbps is {gbps}; write GB/s, such as 1.25 for 10 Gbit/s"));
        }
        for (name, points) in
            [("one_way", &self.one_way), ("exchange", &self.exchange), ("reduce", &self.reduce)]
        {
            if points.is_empty() || points.len() > MAX_POINTS {
                return Err(format!("{name} has {} points; write 1 to {MAX_POINTS}", points.len()));
            }
            if let Some((bytes, us)) = points.iter().find(|(bytes, us)| *bytes == 0 || !time(*us)) {
                return Err(format!("{name} has the point [{bytes}, {us}]; write bytes above 0 and µs"));
            }
            if let Some(pair) = points.windows(2).find(|p| p[0].0 >= p[1].0) {
                return Err(format!("{name}: {} bytes come after {}; sort them", pair[1].0, pair[0].0));
            }
        }
        Ok(())
    }
}

/// µs at `bytes`.
pub fn at(points: &Points, bytes: u64) -> f64 {
    let line = |(x0, y0): (u64, f64), (x1, y1): (u64, f64)| {
        y0 + (y1 - y0) * (bytes as f64 - x0 as f64) / (x1 - x0) as f64
    };
    match points.partition_point(|p| p.0 <= bytes) {
        0 => points[0].1,
        n if n < points.len() => line(points[n - 1], points[n]),
        1 => points[0].1,
        // Never below what was measured, whichever way the last two lie.
        n => line(points[n - 2], points[n - 1]).max(points[n - 1].1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let typical = Calibration::typical();
        assert_eq!(&Calibration::parse(&typical.to_toml()).unwrap(), typical);
        let mut both = typical.clone();
        both.update(typical.clone());
        assert_eq!(&both, typical);
        let mut faster = typical.link[0].clone();
        faster.gap_us = 0.001;
        both.update(Calibration { link: vec![faster.clone()] });
        assert_eq!((both.link.len(), both.link[0].gap_us), (typical.link.len(), 0.001));
        faster.ranks_per_core = 4.0;
        both.update(Calibration { link: vec![faster.clone()] });
        let near = |ratio| both.find(&faster.transport, faster.between, ratio).unwrap().ranks_per_core;
        assert_eq!([near(1.0), near(2.1), near(3.0), near(100.0)], [1.0, 2.0, 4.0, 4.0]);
        both.link.pop();
        faster.transport = "new".into();
        both.update(Calibration { link: vec![faster] });
        assert_eq!(both.link.len(), typical.link.len() + 1);
    }

    #[test]
    fn between_points_costs_are_linear() {
        let points = vec![(10, 1.0), (20, 2.0), (40, 3.0)];
        let of = |bytes| at(&points, bytes);
        assert_eq!([of(1), of(10), of(15), of(30), of(40), of(80)], [1.0, 1.0, 1.5, 2.5, 3.0, 5.0]);
        assert_eq!(at(&vec![(10, 1.0)], 100), 1.0);
        assert_eq!(at(&vec![(10, 2.0), (20, 1.0)], 100), 1.0);
    }

    #[test]
    fn nonsense_is_named() {
        let typical = Calibration { link: vec![Calibration::typical().link[0].clone()] }.to_toml();
        let error = |from: &str, to: &str| {
            assert!(typical.contains(from), "{typical}");
            Calibration::parse(&typical.replacen(from, to, 1)).unwrap_err().to_string()
        };
        assert!(error("gap_us = ", "gap_us = -").contains("gap_us is -"));
        assert!(error("one_way = [[", "one_way = [[0, 1.0], [").contains("one_way has the point [0, 1]"));
        assert!(
            error("exchange = [[", "exchange = [[1, nan], [").contains("exchange has the point [1, NaN]")
        );
        assert!(error("reduce = [[", "reduce = [[99999999999, 1.0], [").contains("sort them"));
        assert!(error("ranks_per_core = 1.0", "ranks_per_core = 0.0").contains("ranks_per_core is 0"));
        assert!(error("transport", "transprt").contains("line 2"));
        assert!(error("pull = true", "pull = true\nhost_gbps = inf").contains("host_gbps is inf"));
        assert!(Calibration::parse("[[link]]").unwrap_err().to_string().contains("transport"));
    }

    proptest::proptest! {
        #[test]
        fn damaged_files_are_refused_or_read(at in 0usize..4000, len in 0usize..40, put in "[-0-9a-z\\[\\]\".,= ]{0,12}") {
            let text = Calibration::typical().to_toml();
            let at = at % text.len();
            let damaged = format!("{}{put}{}", &text[..at], &text[(at + len).min(text.len())..]);
            if let Ok(read) = Calibration::parse(&damaged) {
                // Only digits beyond a thousandth of a µs are lost.
                let again = Calibration::parse(&read.to_toml()).unwrap();
                proptest::prop_assert_eq!(Calibration::parse(&again.to_toml()).unwrap(), again);
            }
        }
    }
}
