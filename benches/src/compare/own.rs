//! What is measured of ours alone: the start of a communicator, its memory, sums of 16-bit floats.

use std::path::Path;
use std::process::Command;

use nd_comm::number::DataType;
use serde::Serialize;

use super::process::Runner;
use crate::idle::{self, Seen};
use crate::limits::sums;

/// Ranks of this host that start together, and how often.
const RANKS: usize = 64;
const STARTS: usize = 5;
/// Ranks of which each has memory for every other.
const PEERS: usize = 8;
/// Bytes of each of three buffers, whether a core's own caches hold them, and how often each type is measured.
const SUMS: [(usize, bool, usize); 2] = [(32 << 10, true, 31), (64 << 20, false, 11)];

/// What was found.
#[derive(Debug, Serialize)]
pub struct Own {
    /// Starts of 64 local ranks, or why there are none.
    pub start: Result<Vec<Start>, String>,
    /// By transport.
    pub memory: Vec<Memory>,
    /// Sums of bf16 and f16 beside those of f32.
    pub sums: Vec<Sum>,
}

/// One start, s.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Start {
    /// From just before the launcher was started until the last rank had its communicator.
    pub whole: f64,
    /// From when the first rank asked for its communicator until the last one had it.
    pub inside: f64,
}

/// Bytes that an idle communicator has for each peer: what all processes grew by, over all ordered pairs of ranks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// `shm` or `tcp`.
    pub transport: &'static str,
    /// How many there are.
    pub ranks: usize,
    /// After the start,
    pub started: Option<f64>,
    /// and after calls that have filled every buffer.
    pub used: Option<f64>,
    /// Why there is nothing.
    pub failure: Option<String>,
}

/// A sum of two buffers by one thread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sum {
    /// Its name.
    pub data_type: &'static str,
    /// Of each buffer.
    pub bytes: u64,
    /// Whether they fit in a core's own caches.
    pub in_cache: bool,
    /// Times of this type and of f32, µs, measured in turn.
    pub pairs: Vec<(f64, f64)>,
}

/// Measures all of it. `tools` is the folder of nd-run and of `idle`.
pub fn measure(tools: &Path, runner: &Runner) -> Own {
    let mut sums = Vec::new();
    for (bytes, in_cache, pairs) in SUMS {
        for data_type in [DataType::BF16, DataType::F16] {
            let pairs = sums::beside_f32(data_type, bytes, pairs).unwrap_or_default();
            let name = if data_type == DataType::BF16 { "bf16" } else { "f16" };
            sums.push(Sum { data_type: name, bytes: bytes as u64, in_cache, pairs });
        }
    }
    let start = (0..STARTS).map(|_| {
        let began = idle::now();
        let seen = ranks(tools, runner, RANKS, None)?;
        Ok(Start { whole: seen.ready - began, inside: seen.ready - seen.began })
    });
    Own {
        start: start.collect(),
        memory: ["shm", "tcp"].map(|name| memory(tools, runner, name)).into(),
        sums,
    }
}

fn memory(tools: &Path, runner: &Runner, transport: &'static str) -> Memory {
    let pairs = (PEERS * (PEERS - 1)) as f64;
    let mut memory = Memory { transport, ranks: PEERS, started: None, used: None, failure: None };
    match ranks(tools, runner, PEERS, Some(transport)) {
        Ok(seen) => {
            (memory.started, memory.used) = (Some(seen.started / pairs), seen.used.map(|used| used / pairs));
        }
        Err(why) => memory.failure = Some(why),
    }
    memory
}

/// What ranks with an idle communicator saw; those of a transport have used it before.
fn ranks(tools: &Path, runner: &Runner, ranks: usize, transport: Option<&str>) -> Result<Seen, String> {
    let mut command = Command::new(tools.join("nd-run"));
    command.args(["-n", &ranks.to_string(), "--no-prefix", "--"]).arg(tools.join("idle"));
    if let Some(transport) = transport {
        // Without cross-memory attach all data of plain slices goes through the inboxes.
        command.arg("used").env("ND_TRANSPORT", transport);
    }
    let outcome = runner.run(vec![command], &[]);
    match outcome.failure {
        Some(failure) => Err(failure.why),
        None => serde_json::from_str(&outcome.stdout).map_err(|e| format!("idle printed no numbers: {e}")),
    }
}
