//! What to tell while something takes long.

use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::collective::Bench;
use super::options::Options;
use super::size;

/// A bar on a terminal's stderr while a size takes long; nothing elsewhere.
pub struct Progress {
    /// How many rows there will be; none: nobody looks.
    rows: Option<u64>,
    /// Rows that are there.
    done: Cell<u64>,
    bar: RefCell<Option<ProgressBar>>,
    began: Cell<Instant>,
    what: Cell<Option<(Bench, u64)>>,
}

/// A size that takes less is not worth a bar.
const PATIENCE: Duration = Duration::from_millis(300);

impl Progress {
    /// Of a rank that tells nothing.
    pub fn none() -> Progress {
        Progress {
            rows: None,
            done: Cell::new(0),
            bar: RefCell::new(None),
            began: Cell::new(Instant::now()),
            what: Cell::new(None),
        }
    }

    /// Of rank 0.
    pub fn new(o: &Options) -> Progress {
        let rows = o.sizes().len() * o.types.len() * o.collectives.len() * o.cycles.max(1) as usize;
        Progress { rows: stderr().is_terminal().then_some(rows as u64), ..Progress::none() }
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
        let (Some(rows), Some((bench, bytes))) = (self.rows, self.what.get()) else { return };
        let elapsed = self.began.get().elapsed();
        if elapsed < PATIENCE {
            return;
        }
        let mut bar = self.bar.borrow_mut();
        let bar = bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(rows), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{msg:36} {bar:24.cyan} {elapsed}");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_elapsed(elapsed)
        });
        bar.set_position(self.done.get());
        bar.set_message(format!("{bench} {}: {}", size::show(bytes), what()));
    }

    /// Before a line is printed.
    pub fn clear(&self) {
        if let Some(bar) = self.bar.borrow_mut().take() {
            bar.finish_and_clear();
        }
    }
}
