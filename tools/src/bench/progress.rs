//! What to tell while something takes long.

use std::cell::Cell;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::collective::Bench;
use super::options::Options;
use super::size;

/// A bar on a terminal's stderr while something takes long; nothing elsewhere.
pub struct Progress {
    bar: Option<ProgressBar>,
    began: Cell<Instant>,
    what: Cell<Option<(Bench, u64)>>,
    /// Rows that are there.
    done: Cell<u64>,
}

/// A size that takes less is not worth a bar.
const PATIENCE: Duration = Duration::from_millis(300);

impl Progress {
    /// Of a rank that tells nothing.
    pub fn none() -> Progress {
        Progress { bar: None, began: Cell::new(Instant::now()), what: Cell::new(None), done: Cell::new(0) }
    }

    /// Of rank 0.
    pub fn new(o: &Options) -> Progress {
        let rows = o.sizes().len() * o.types.len() * o.collectives.len() * o.cycles.max(1) as usize;
        let bar = ProgressBar::with_draw_target(Some(rows as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{wide_msg} {bar:24.cyan} {elapsed}") {
            bar.set_style(style);
        }
        Progress { bar: (!bar.is_hidden()).then_some(bar), ..Progress::none() }
    }

    /// A row is there.
    pub fn row(&self) {
        self.done.set(self.done.get() + 1);
    }

    /// A size begins.
    pub fn size(&self, bench: Bench, size: u64) {
        self.began.set(Instant::now());
        self.what.set(Some((bench, size)));
    }

    /// Between the timed parts: a bar that moved by itself would take time from the ranks.
    pub fn phase(&self, what: impl FnOnce() -> String) {
        if let (Some(bar), Some((bench, bytes))) = (&self.bar, self.what.get())
            && self.began.get().elapsed() > PATIENCE
        {
            bar.set_position(self.done.get());
            bar.set_message(format!("{bench} {}: {}", size::show(bytes), what()));
        }
    }

    /// Before a line is printed.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.suspend(|| {});
            bar.set_draw_target(ProgressDrawTarget::hidden());
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}
