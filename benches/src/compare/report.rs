//! The files: everything as Markdown and as JSON.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::error::Error;
use super::own::Own;
use super::peers::Peer;
use super::rounds::Measured;
use super::table::{LEGEND, details, number, overview};
use super::targets::{self, Row};
use super::{picture, sizes};
use crate::limits::Limits;

/// Everything that was found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// On what, and when.
    pub machine: Machine,
    /// The command line.
    pub command: Vec<String>,
    /// What the machine can do.
    pub limits: Limits,
    /// Peers that are left out, and why.
    pub left_out: Vec<(Peer, String)>,
    /// Cases that are left out, and why.
    pub not_done: Vec<String>,
    /// What was measured.
    pub cases: Vec<Measured>,
    /// What was measured of ours alone.
    pub own: Option<Own>,
}

/// What `results.json` holds.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    report: &'a Report,
    targets: Vec<Row>,
}

/// Where and when.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// UTC.
    pub began: String,
    /// The processor's name.
    pub processor: String,
    /// Cores that ranks may use.
    pub cores: usize,
    /// Linux' release.
    pub kernel: String,
    /// How many processes wanted to run, a mean over a minute, before the first run.
    pub load_before: String,
}

impl Machine {
    /// This one, now.
    pub fn look(cores: usize) -> Machine {
        let date = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output();
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let processor = text("/proc/cpuinfo")
            .lines()
            .find_map(|l| Some(l.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned()));
        Machine {
            began: date
                .map_or_else(|_| "unknown".into(), |d| String::from_utf8_lossy(&d.stdout).trim().to_owned()),
            processor: processor.unwrap_or_else(|| std::env::consts::ARCH.into()),
            cores,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            load_before: text("/proc/loadavg").split(' ').next().unwrap_or("unknown").to_owned(),
        }
    }
}

impl Report {
    /// Writes RESULTS.md, results.json and the plots into `folder`.
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        std::fs::create_dir_all(folder).map_err(|source| Error::File { path: folder.into(), source })?;
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(|source| Error::File { path, source })
        };
        let json = serde_json::to_vec_pretty(&Written { report: self, targets: self.targets() })
            .map_err(|e| Error::File { path: folder.join("results.json"), source: e.into() })?;
        write("results.json", &json)?;
        write("RESULTS.md", self.markdown().as_bytes())?;
        let failed = |source| Error::File { path: folder.join("compare.svg"), source };
        let svg = picture::svg(&self.cases, &self.limits, &self.machine)
            .map_err(|e| failed(std::io::Error::other(e.to_string())))?;
        write("compare.svg", svg.as_bytes())?;
        write("compare.png", &picture::png(&svg).map_err(|e| failed(std::io::Error::other(e)))?)
    }

    /// What came of each target.
    pub fn targets(&self) -> Vec<Row> {
        targets::rows(&self.cases, self.own.as_ref())
    }

    /// The whole report, to read.
    pub fn markdown(&self) -> String {
        let m = &self.machine;
        let mut text = format!(
            "# Comparison\n\n{}, {} on {} cores, Linux {}, load {} before the first run.\n\n`{}`\n\n",
            m.began,
            m.processor,
            m.cores,
            m.kernel,
            m.load_before,
            self.command.join(" ")
        );
        text += "f32, sum; calls back to back on the same buffers; every result checked. Ours: registered buffers \
                 (memory shared with the other ranks of the host) unless a case says plain slices; peers: the C library's allocator, page-aligned, \
                 Gloo: torch's. Each rank on a core of its own where there are enough. A ratio is our time over the \
                 peer's, of runs next to each other; below 1 ours is faster; within 10 % it is noise. Lowest and \
                 highest: of all pairs.\n\n![times and ratios](compare.svg)\n\n";
        for (peer, reason) in &self.left_out {
            let _ = writeln!(text, "- {peer} is left out: {reason}");
        }
        for reason in &self.not_done {
            let _ = writeln!(text, "- {reason}");
        }
        let _ = write!(text, "\n## Targets\n\n```text\n{}```\n", targets::text(&self.targets()));
        for measured in &self.cases {
            let _ = write!(text, "\n## {}\n\n", measured.case);
            let _ = write!(text, "```text\n{}```\n\n{LEGEND}.\n", overview(measured, &self.limits));
            for failure in &measured.failures {
                let _ = write!(text, "\nOurs failed: {failure}\n");
            }
            if measured.wrong > 0 {
                let _ = write!(text, "\nOurs had {} WRONG elements.\n", measured.wrong);
            }
            for against in &measured.against {
                let library = against.library.as_deref().unwrap_or("ours again");
                let _ = write!(text, "\n### {} ({library})\n\n", against.peer);
                if !against.settings.is_empty() {
                    let _ = write!(text, "`{}`\n\n", against.settings);
                }
                if against.peer.in_place(measured.case.collective) {
                    text += "Both in place: it has no other form.\n\n";
                }
                text += &details(measured, &self.limits, against);
                for failure in &against.failures {
                    let _ = write!(text, "\nIt failed: {failure}\n");
                }
                if against.wrong > 0 {
                    let _ = write!(text, "\nIt had {} WRONG elements.\n", against.wrong);
                }
            }
        }
        text + &self.limits_table()
    }

    /// What the machine can do.
    pub fn limits_table(&self) -> String {
        let limits = &self.limits;
        let shown = |value: Option<f64>| value.map_or("-".into(), number);
        let mut text = format!(
            "\n## Limits of the machine\n\nThe best of several repetitions before and after all runs. A cache line \
             from core to core: {} µs; 4 B over loopback TCP, spinning: {} µs one way, {} µs both ways at once; \
             loopback TCP with a stream each way: {} GB/s each.\n\n",
            shown(limits.cache_line),
            shown(limits.tcp_one_way),
            shown(limits.tcp_exchange),
            shown(limits.tcp_stream)
        );
        let ranks: Vec<usize> =
            limits.sizes.values().next().map_or(vec![], |at| at.all_reduce.keys().copied().collect());
        let threads = limits.threads;
        let _ = write!(text, "| size | memcpy GB/s | memcpy on {threads} cores | sum GB/s |");
        for n in &ranks {
            let _ = write!(text, " ideal all-reduce, {n} ranks, µs |");
        }
        let _ = writeln!(text, "\n|---:|---:|---:|---:|{}", "---:|".repeat(ranks.len()));
        for (&size, at) in &limits.sizes {
            let speed = |time: f64, copies: usize| number(size as f64 * copies as f64 / time / 1e3);
            let (one, all, sum) = (speed(at.copy, 1), speed(at.copy_all, threads), speed(at.sum, 1));
            let _ = write!(text, "| {} | {one} | {all} | {sum} |", sizes::show(size));
            for n in &ranks {
                let _ = write!(text, " {} |", shown(at.all_reduce.get(n).copied()));
            }
            text += "\n";
        }
        text + "\nBytes a second of the result (1 GB = 1e9 B), buffers hot. The ideal all-reduce: threads that see all \
                buffers, each of which sums its share of the inputs and writes it to every output.\n"
    }
}
