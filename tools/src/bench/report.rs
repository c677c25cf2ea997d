//! Rank 0's output.

use std::io::{self, Write};
use std::path::Path;

use nd_comm::communicator::Explanation;
use nd_comm::number::{DataType, ReduceOp};

use super::collective::Bench;
use super::error::Error;
use super::host::Device;
use super::measure::{AUTOMATIC, Half};
use super::options::Options;
use super::progress::Progress;
use super::size::Step;
use super::summary::{plots, ways};
use super::{json, table};

/// One size of one collective, type, operation and root.
#[derive(Debug, Clone)]
pub struct Row {
    pub bench: Bench,
    /// Bytes of the larger side.
    pub size: u64,
    pub count: usize,
    pub data_type: Option<DataType>,
    pub op: Option<ReduceOp>,
    pub root: Option<usize>,
    pub apart: Half,
    pub in_place: Option<Half>,
    pub explanation: Explanation,
}

impl Row {
    /// Algorithm and bus bandwidth, GB/s.
    pub fn bandwidths(&self, half: &Half, ranks: usize) -> (f64, f64) {
        let alg = if half.time > 0.0 { self.size as f64 / half.time / 1e3 } else { 0.0 };
        (alg, alg * self.bench.bus_factor(ranks))
    }

    fn halves(&self) -> impl Iterator<Item = &Half> {
        [Some(&self.apart), self.in_place.as_ref()].into_iter().flatten()
    }

    /// "oneshot over shm".
    pub fn way(&self) -> String {
        let e = &self.explanation;
        if e.transports.is_empty() {
            e.algorithm.into()
        } else {
            format!("{} over {}", e.algorithm, e.transports.join("+"))
        }
    }

    /// "float sum root 3".
    pub fn kind(&self) -> String {
        let words = [
            self.data_type.map(|t| t.name().to_owned()),
            self.op.map(|o| o.name().to_owned()),
            self.root.map(|r| format!("root {r}")),
        ];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// What rank 0 prints and writes.
pub struct Report {
    options: Options,
    ranks: usize,
    how: String,
    devices: Vec<Device>,
    /// What was found out about the links.
    costs: String,
    rows: Vec<Row>,
    /// Where the rows of the collective that goes on begin.
    first: usize,
    progress: Progress,
    started: String,
}

impl Report {
    /// Before anything is measured, so that files that cannot be written are found out at once.
    pub fn new(
        options: &Options,
        ranks: usize,
        how: &str,
        devices: Vec<Device>,
        costs: Option<String>,
    ) -> Result<Report, Error> {
        for (path, option) in [(&options.json, "--json"), (&options.plot, "--plot")] {
            if let Some(path) = path {
                writable(path, option)?;
            }
        }
        Ok(Report {
            options: options.clone(),
            ranks,
            how: how.to_owned(),
            devices,
            costs: costs.unwrap_or_default(),
            rows: Vec::new(),
            first: 0,
            progress: Progress::new(options),
            started: json::now(),
        })
    }

    /// Before the rows of a collective.
    pub fn begin(&mut self, bench: Bench) -> Result<(), Error> {
        self.first = self.rows.len();
        let o = &self.options;
        let (step, unit) = match o.step {
            Step::Factor(f) => (f, "factor"),
            Step::Bytes(b) => (b, "bytes"),
        };
        let iterations = match o.iterations {
            Some(n) => n.to_string(),
            None => format!("{} to {} (about 0.1 s a size)", AUTOMATIC.0, AUTOMATIC.1),
        };
        let mut text = format!(
            "# nd-bench version {}\n# Collective test starting: {bench}\n# nThread {} nGpus 0 minBytes {} maxBytes {} \
             step: {step}({unit}) warmup iters: {} iters: {iterations} agg iters: 1 validation: {} graph: 0 unalign: 0\n\
             # {}, {} buffers\n#\n# Using devices\n",
            env!("CARGO_PKG_VERSION"),
            if o.threads { self.ranks } else { 1 },
            o.first,
            o.last,
            o.warmup,
            o.check,
            self.how,
            if o.registered { "registered" } else { "plain" },
        );
        self.devices.iter().for_each(|d| text += &table::device(d));
        if bench.name() == "broadcast" {
            text += "#\n# broadcast has one buffer: out of place, the root copies its input first\n";
        }
        text += &std::mem::take(&mut self.costs);
        text += &table::header(o.per_iteration);
        self.print(&text)
    }

    /// One more.
    pub fn row(&mut self, row: Row) -> Result<(), Error> {
        let text = table::row(&row, self.ranks);
        self.rows.push(row);
        self.progress.row();
        self.print(&text)
    }

    /// After the rows of a collective.
    pub fn end(&mut self, bench: Bench) -> Result<(), Error> {
        let rows = &self.rows[self.first..];
        let mut text = table::footer(bench.name(), wrong(rows), mean_bus_bandwidth(rows, self.ranks));
        text += &ways(bench, rows, self.options.explain);
        if let Some(path) = &self.options.plot
            && bench.0 != nd_comm::schedule::Collective::Barrier
        {
            for (path, plot) in plots(path, &self.options, bench, rows, self.ranks) {
                plot.write(&path)?;
                text += &format!("# plot: {}\n", path.display());
            }
        }
        self.print(&text)
    }

    /// After all.
    pub fn finish(self) -> Result<(), Error> {
        if let Some(path) = &self.options.json {
            let document = json::document(&json::Run {
                options: &self.options,
                ranks: self.ranks,
                devices: &self.devices,
                rows: &self.rows,
                wrong: wrong(&self.rows),
                bandwidth: mean_bus_bandwidth(&self.rows, self.ranks),
                started: &self.started,
            });
            let failed = |source| Error::File { path: path.clone(), option: "--json", source };
            let text = serde_json::to_string_pretty(&document).map_err(|e| failed(e.into()))?;
            std::fs::write(path, text + "\n").map_err(failed)?;
            self.print(&format!("# JSON: {}\n", path.display()))?;
        }
        Ok(())
    }

    /// What to tell while a size goes on.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    fn print(&self, text: &str) -> Result<(), Error> {
        self.progress.clear();
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
    }
}

fn writable(path: &Path, option: &'static str) -> Result<(), Error> {
    let there = path.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|source| Error::File { path: path.into(), option, source })?;
    if !there {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

fn wrong(rows: &[Row]) -> u64 {
    rows.iter().flat_map(Row::halves).filter_map(|h| h.wrong).sum()
}

fn mean_bus_bandwidth(rows: &[Row], ranks: usize) -> f64 {
    let all: Vec<f64> = rows.iter().flat_map(|r| r.halves().map(|h| r.bandwidths(h, ranks).1)).collect();
    all.iter().sum::<f64>() / all.len().max(1) as f64
}
