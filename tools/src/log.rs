//! Where warnings go: standard error, in colour only on a terminal.

use std::io::{IsTerminal, stderr};

use tracing::level_filters::LevelFilter;

/// Once, at the start of a command.
pub fn init(level: LevelFilter) {
    tracing_subscriber::fmt()
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .with_max_level(level)
        .init();
}
