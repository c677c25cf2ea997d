//! Rank 0's output.

use std::cell::Cell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nd_comm::communicator::Explanation;
use nd_comm::number::{DataType, ReduceOp};

use super::arguments::Options;
use super::collective::Bench;
use super::error::Error;
use super::host::Device;
use super::measure::{AUTOMATIC, Half};
use super::size::{self, Step};
use super::{json, plot, ranges, table};

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
    rows: Vec<Row>,
    /// Where the rows of the collective that goes on begin.
    first: usize,
    progress: Progress,
    started: String,
}

impl Report {
    /// Before anything is measured, so that files that cannot be written are found out at once.
    pub fn new(options: &Options, ranks: usize, how: &str, devices: Vec<Device>) -> Result<Report, Error> {
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
        text += &table::header(o.per_iteration);
        self.print(&text)
    }

    /// One more.
    pub fn row(&mut self, row: Row) -> Result<(), Error> {
        let text = table::row(&row, self.ranks);
        self.rows.push(row);
        self.progress.done.set(self.progress.done.get() + 1);
        self.print(&text)
    }

    /// After the rows of a collective.
    pub fn end(&mut self, bench: Bench) -> Result<(), Error> {
        let rows = &self.rows[self.first..];
        let mut text = table::footer(bench.name(), wrong(rows), mean_bus_bandwidth(rows, self.ranks));
        text += &ways(bench, rows, self.options.explain);
        if bench.0 != nd_comm::schedule::Collective::Barrier {
            if let Some(path) = &self.options.plot {
                for (path, plot) in plots(path, &self.options, bench, rows, self.ranks) {
                    plot.write(&path)?;
                    text += &format!("# plot: {}\n", path.display());
                }
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

/// Rows of one type, operation and root, in the order of the first of each.
fn kinds(rows: &[Row]) -> Vec<(String, Vec<&Row>)> {
    let mut kinds: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows {
        let kind = row.kind();
        match kinds.iter_mut().find(|(k, _)| *k == kind) {
            Some((_, rows)) => rows.push(row),
            None => kinds.push((kind, vec![row])),
        }
    }
    kinds
}

/// "# allreduce: 8 B–4 KiB oneshot over shm, 8 KiB–64 MiB direct over shm"; one line if all types and operations
/// were done the same way.
fn ways(bench: Bench, rows: &[Row], explain: bool) -> String {
    let mut lines: Vec<(String, Vec<String>, Vec<&Row>)> = Vec::new();
    for (kind, rows) in kinds(rows) {
        let merged = ranges::merge(rows.iter().map(|r| (r.size, r.way())));
        let line: Vec<_> = merged.iter().map(|r| format!("{} {}", r.sizes(), r.label)).collect();
        let line = line.join(", ");
        match lines.iter_mut().find(|(l, ..)| *l == line) {
            Some((_, kinds, _)) => kinds.push(kind),
            None => lines.push((line, vec![kind], rows)),
        }
    }
    let several = lines.len() > 1;
    let mut text = String::new();
    for (line, kinds, rows) in &lines {
        let which = if several { format!(" ({})", kinds.join(", ")) } else { String::new() };
        text += &format!("# {bench}{which}: {line}\n");
        if explain {
            for range in ranges::merge(rows.iter().map(|r| (r.size, r.way()))) {
                let first = rows.iter().find(|r| r.size == range.first);
                let why = first.map_or("", |r| r.explanation.why.as_str());
                text += &format!("#   {} {}: {why}\n", range.sizes(), range.label);
            }
        }
    }
    if explain {
        let links = rows.first().map_or(&[][..], |r| &r.explanation.links);
        links.iter().for_each(|link| text += &format!("#   {link}\n"));
    }
    text
}

/// A picture for each type, operation and root, each in a file of its own.
fn plots(path: &Path, o: &Options, bench: Bench, rows: &[Row], ranks: usize) -> Vec<(PathBuf, plot::Plot)> {
    let kinds = kinds(rows);
    let named = |kind: &str| {
        let mut name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if o.collectives.len() > 1 {
            name += &format!("-{bench}");
        }
        if kinds.len() > 1 {
            name += &format!("-{}", kind.replace(' ', "-"));
        }
        path.with_file_name(format!("{name}.{}", path.extension().unwrap_or_default().to_string_lossy()))
    };
    let one = |(kind, rows): &(String, Vec<&Row>)| {
        let mut transports: Vec<&str> =
            rows.iter().flat_map(|r| r.explanation.transports.iter().copied()).collect();
        transports.sort_unstable();
        transports.dedup();
        let over =
            if transports.is_empty() { String::new() } else { format!(" over {}", transports.join("+")) };
        let plural = if ranks == 1 { "" } else { "s" };
        let points = |half: &dyn Fn(&Row) -> Option<&Half>| -> Vec<(u64, f64, f64)> {
            let of = |r: &&Row| half(r).map(|h| (r.size, r.bandwidths(h, ranks)));
            rows.iter().filter_map(of).map(|(size, (alg, bus))| (size, alg, bus)).collect()
        };
        let plot = plot::Plot {
            title: format!("{bench} · {ranks} rank{plural}{over} · {kind}"),
            subtitle: size_range(rows),
            apart: points(&|r| Some(&r.apart)),
            in_place: points(&|r| r.in_place.as_ref()),
        };
        (named(kind), plot)
    };
    kinds.iter().map(one).collect()
}

fn size_range(rows: &[&Row]) -> String {
    let merged = ranges::merge(rows.iter().map(|r| (r.size, r.way())));
    merged.iter().map(|r| format!("{} {}", r.sizes(), r.label)).collect::<Vec<_>>().join(", ")
}

/// A bar on a terminal's stderr while something takes long; nothing elsewhere.
pub struct Progress {
    bar: Option<ProgressBar>,
    began: Cell<Instant>,
    what: Cell<Option<(Bench, u64)>>,
    done: Cell<u64>,
}

/// A size that takes less is not worth a bar.
const PATIENCE: Duration = Duration::from_millis(300);

impl Progress {
    /// Of a rank that tells nothing.
    pub fn none() -> Progress {
        Progress { bar: None, began: Cell::new(Instant::now()), what: Cell::new(None), done: Cell::new(0) }
    }

    fn new(o: &Options) -> Progress {
        let rows = o.sizes().len() * o.types.len() * o.collectives.len() * o.cycles.max(1) as usize;
        let bar = ProgressBar::with_draw_target(Some(rows as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{wide_msg} {bar:24.cyan} {elapsed}") {
            bar.set_style(style);
        }
        Progress { bar: (!bar.is_hidden()).then_some(bar), ..Progress::none() }
    }

    /// A size begins.
    pub fn size(&self, bench: Bench, size: u64) {
        self.began.set(Instant::now());
        self.what.set(Some((bench, size)));
    }

    /// Between the timed parts: a bar that moved by itself would take time from the ranks.
    pub fn phase(&self, what: impl FnOnce() -> String) {
        if let (Some(bar), Some((bench, bytes))) = (&self.bar, self.what.get()) {
            if self.began.get().elapsed() > PATIENCE {
                bar.set_position(self.done.get());
                bar.set_message(format!("{bench} {}: {}", size::show(bytes), what()));
            }
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.suspend(|| {});
            bar.set_draw_target(ProgressDrawTarget::hidden());
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}
