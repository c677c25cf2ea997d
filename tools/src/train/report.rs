//! What rank 0 prints and writes: the mesh before, rows meanwhile, what was sent after.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write, stderr, stdout};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nd_training::train::{Config, Row, Sent, Spared, Trainer};

use super::error::Error;
use super::plot::Losses;
use super::{files, groups, plot};
use crate::table::Table;
use crate::units::{bytes, gbps, micros};

/// About so many rows are printed, whatever the number of steps.
const PRINTED: u64 = 20;

/// Of one run.
pub struct Report {
    config: Config,
    title: String,
    subtitle: String,
    metrics: Option<BufWriter<File>>,
    bar: Option<ProgressBar>,
    /// What is drawn of the steps that were made before, as far as the file of metrics has them.
    before: Vec<Losses>,
    rows: Vec<Row>,
    began: Instant,
}

impl Report {
    /// Says what will be done, by whom, and over which links.
    pub fn begin(config: &Config, trainer: &mut Trainer) -> Result<Report, Error> {
        let (metrics, before) = match &config.metrics {
            None => (None, Vec::new()),
            Some(path) => {
                let (file, before) = files::alone(path, "--metrics", trainer.begun())?;
                (Some(BufWriter::new(file)), before)
            }
        };
        let mesh = trainer.groups().mesh();
        let (ranks, parameters) = (mesh.world(), trainer.model().parameters());
        let title = format!("Llama of {} parameters", count(parameters));
        let subtitle = format!(
            "{ranks} rank{}, {mesh}, zero={}, {}; {} sequence{} of {} token{} a step",
            plural(ranks as u64),
            config.zero,
            config.dtype.as_str(),
            trainer.batch(),
            plural(trainer.batch()),
            config.seq_len,
            plural(config.seq_len as u64)
        );
        if let Some(path) = &config.plot {
            // A file that cannot be written is told now, not after the last step.
            plot::write(path, &title, &subtitle, &[]).map_err(|e| Error::Usage(e.to_string()))?;
        }
        let report = Report {
            config: config.clone(),
            title,
            subtitle,
            metrics,
            bar: bar(config.steps, trainer.begun()),
            before,
            rows: Vec::new(),
            began: Instant::now(),
        };
        let threads = trainer.threads();
        report.print(&format!(
            "{}; {}\nWeights: {}; {threads} thread{} a rank\n{}",
            report.title,
            report.subtitle,
            trainer.origin(),
            plural(threads as u64),
            table(trainer, config.zero)
        ))?;
        report.print(&format!(
            "{:>6}  {:>8}  {:>9}  {:>9}  {:>9}\n",
            "step", "loss", "grad norm", "lr", "tokens/s"
        ))?;
        Ok(report)
    }

    /// A step is done.
    pub fn row(&mut self, row: Row) -> Result<(), Error> {
        if let (Some(file), Some(path)) = (&mut self.metrics, &self.config.metrics) {
            let failed = |source| Error::File { path: path.clone(), option: "--metrics", source };
            serde_json::to_writer(&mut *file, &row).map_err(|e| failed(e.into()))?;
            // Whoever watches the file sees the row now.
            file.write_all(b"\n").and_then(|()| file.flush()).map_err(failed)?;
        }
        let every = self.config.steps.div_ceil(PRINTED).max(1);
        if row.skipped
            || self.rows.is_empty()
            || row.step.is_multiple_of(every)
            || row.step == self.config.steps
        {
            let eval = row.eval_loss.map_or(String::new(), |loss| format!("  other text {loss:.4}"));
            let eval = match (row.skipped, row.loss_scale) {
                (true, Some(scale)) => {
                    format!("{eval}  skipped: gradients overflowed, loss scale now {scale}")
                }
                _ => eval,
            };
            let (lr, speed) = (format!("{:.2e}", row.lr), format!("{:.0}", row.tokens_per_s));
            self.print(&format!(
                "{:>6}  {:>8.4}  {:>9.3}  {lr:>9}  {speed:>9}{eval}\n",
                row.step, row.loss, row.grad_norm
            ))?;
        }
        if let Some(bar) = &self.bar {
            bar.set_message(format!("loss {:.4}", row.loss));
            bar.inc(1);
        }
        self.rows.push(row);
        Ok(())
    }

    /// All steps are done.
    pub fn finish(self, trainer: &Trainer) -> Result<(), Error> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let seconds = self.began.elapsed().as_secs_f64();
        let mut text = format!("\n{}", sent(trainer, self.rows.len().max(1) as f64, seconds));
        if let (Some(first), Some(last)) = (self.rows.first(), self.rows.last()) {
            text += &format!(
                "\nLoss {:.4} → {:.4} in {} steps and {seconds:.1} s, {:.1} ms a step.\n",
                first.loss,
                last.loss,
                self.rows.len(),
                seconds * 1000.0 / self.rows.len() as f64
            );
        }
        if let Some(folder) = &self.config.checkpoint {
            text += &format!("Checkpoints: {}\n", folder.display());
        }
        if let Some(folder) = &self.config.save {
            text += &format!("The model: {}\n", folder.display());
        }
        if let Some(path) = &self.config.plot {
            let drawn: Vec<Losses> =
                self.before.iter().copied().chain(self.rows.iter().map(Losses::from)).collect();
            plot::write(path, &self.title, &self.subtitle, &drawn)?;
            text += &format!("Picture of the loss: {}\n", path.display());
        }
        if let Some(path) = &self.config.metrics {
            text += &format!("A row for each step: {}\n", path.display());
        }
        self.print(&text)
    }

    fn print(&self, text: &str) -> Result<(), Error> {
        let write = || {
            let mut out = stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
        let written: io::Result<()> = match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        };
        written.map_err(Error::Output)
    }
}

/// On a terminal.
fn bar(steps: u64, begun: u64) -> Option<ProgressBar> {
    let bar = stderr()
        .is_terminal()
        .then(|| ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr()))?;
    let style =
        ProgressStyle::with_template("{wide_bar:.cyan} {pos}/{len}  {msg}  {elapsed} of about {duration}");
    Some(bar.with_position(begun).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
}

/// What the word for so many things ends with.
fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// 851,968 → `0.85 million`.
fn count(n: f64) -> String {
    if n >= 1e9 { format!("{:.2} billion", n / 1e9) } else { format!("{:.2} million", n / 1e6) }
}

/// The groups, with the links under them and what is predicted for a step.
fn table(trainer: &Trainer, zero: u8) -> String {
    if trainer.predicted().is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["group", "ranks", "groups", "links", "GB/s", "sends a step", "in", "what"]);
    for p in trainer.predicted() {
        table.row([
            p.group.to_owned(),
            p.size.to_string(),
            p.groups.to_string(),
            if p.between_hosts { "between hosts" } else { "inside a host" }.to_owned(),
            gbps(p.gbps),
            bytes(p.bytes),
            micros(p.us),
            p.what.clone(),
        ]);
    }
    let speeds = match trainer.placed().measured {
        true => "at the link speeds that ND_CALIBRATION names",
        false => "at assumed link speeds (nd-bench --calibrate measures them)",
    };
    let (mesh, placed) = (trainer.groups().mesh(), trainer.placed());
    let groups = groups::lines(mesh, &placed.order, trainer.hosts());
    let spared = trainer.spared().map_or(String::new(), |spared| why(spared, zero));
    format!("{groups}\nPredicted, for each rank, {speeds}:\n{}{spared}\n", table.render())
}

/// What a mesh with copies of the shards gains over one without; nothing where no link between hosts is spared.
fn why(spared: &Spared, zero: u8) -> String {
    let Spared { own, flat } = spared;
    if flat.bytes == 0.0 || own.bytes == 0.0 {
        return String::new();
    }
    let name = if zero == 3 { "FSDP".to_owned() } else { format!("ZeRO-{zero}") };
    format!(
        "Between hosts: on {} each host sends {} a step for the model's state, in {}; flat {name} ({}) would send {} in {}: {:.1} \
         times the bytes and {:.1} times the time.\n",
        own.mesh,
        bytes(own.bytes),
        micros(own.us),
        flat.mesh,
        bytes(flat.bytes),
        micros(flat.us),
        flat.bytes / own.bytes,
        flat.us / own.us
    )
}

/// What each group sent in a step and how long that took, beside what was predicted.
fn sent(trainer: &Trainer, steps: f64, seconds: f64) -> String {
    if trainer.sent().is_empty() {
        return "One rank, which sent nothing.\n".into();
    }
    let mut table = Table::new(&["group", "call", "times", "sent", "took", "waited", "predicted"]);
    for of_group in trainer.sent().chunk_by(|a, b| a.group == b.group) {
        let predicted = trainer.predicted().iter().find(|p| p.group == of_group[0].group);
        let predicted =
            predicted.map_or(String::new(), |p| format!("{} in {}", bytes(p.bytes), micros(p.us)));
        let mut row = |kind: &str, sent: &[Sent], predicted: String| {
            let each = |of: fn(&Sent) -> f64| sent.iter().map(of).sum::<f64>() / steps;
            table.row([
                sent[0].group.to_owned(),
                kind.to_owned(),
                format!("{:.1}", each(|s| s.calls as f64)),
                bytes(each(|s| s.bytes as f64)),
                micros(each(|s| s.took.as_secs_f64() * 1e6)),
                micros(each(|s| s.exposed.as_secs_f64() * 1e6)),
                predicted,
            ]);
        };
        match of_group {
            [one] => row(one.kind.name(), of_group, predicted),
            several => {
                several.iter().for_each(|one| row(one.kind.name(), std::slice::from_ref(one), String::new()));
                row("together", several, predicted);
            }
        }
    }
    let all = |of: fn(&Sent) -> Duration| {
        micros(trainer.sent().iter().map(of).sum::<Duration>().as_secs_f64() * 1e6 / steps)
    };
    let predicted: f64 = trainer.predicted().iter().map(|p| p.us).sum();
    format!(
        "Sent by rank 0 in a step:\n{}Of {} a step rank 0 waited {} for calls, which took {} from start to end, slower ranks \
         included;\npredicted were {}, with nothing hidden behind computation and nobody slower.\n",
        table.render(),
        micros(seconds * 1e6 / steps),
        all(|s| s.exposed),
        all(|s| s.took),
        micros(predicted)
    )
}
