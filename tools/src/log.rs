//! Where warnings go: standard error, in colour only on a terminal.

use std::io::{IsTerminal, stderr};

use nd_comm::config::Logging;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Once, at the start of a command.
pub fn init(logging: &Logging) {
    let parts = logging.parts.iter().map(|(part, level)| (part.clone(), *level));
    let wanted = Targets::new().with_default(logging.level).with_targets(parts);
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal());
    tracing_subscriber::registry().with(lines.with_filter(wanted)).init();
}
