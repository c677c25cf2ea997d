//! nccl-tests' JSON, version 3, with `algorithm`, `transport` and `why` added to each result.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::host::Device;
use super::measure::Half;
use super::options::Options;
use super::report::Row;
use super::size::Step;

/// All that goes into the file.
pub struct Run<'a> {
    pub options: &'a Options,
    pub ranks: usize,
    pub devices: &'a [Device],
    pub rows: &'a [Row],
    pub wrong: u64,
    /// GB/s.
    pub bandwidth: f64,
    pub started: &'a str,
}

/// The document.
pub fn document(run: &Run<'_>) -> Value {
    let o = run.options;
    let mut config = json!({
        "nthreads": if o.threads { run.ranks } else { 1 },
        "ngpus": 0,
        "minimum_bytes": o.first,
        "maximum_bytes": o.last,
        "warmup_iters": o.warmup,
        "iterations": o.iterations,
        "aggregated_iterations": 1,
        "validation": o.check,
        "graph": 0,
        "blocking_collectives": "false",
        "per_iter_timing": o.per_iteration.to_string(),
        "parallel_init": "false",
        "ranks": run.ranks,
        "registered_buffers": o.registered.to_string(),
    });
    match o.step {
        Step::Factor(factor) => config["step_factor"] = json!(factor),
        Step::Bytes(bytes) => config["step_bytes"] = json!(bytes),
    }
    json!({
        "version": 3,
        "start_time": run.started,
        "args": std::env::args().collect::<Vec<_>>(),
        "env": environment(std::env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)))),
        "nccl_version": version(env!("CARGO_PKG_VERSION")),
        "config": config,
        "devices": run.devices,
        "results": run.rows.iter().map(|row| result(row, run.ranks)).collect::<Vec<_>>(),
        "out_of_bounds": { "count": run.wrong, "okay": (run.wrong == 0).to_string() },
        "average_bus_bandwidth": { "bandwidth": run.bandwidth, "okay": "unchecked" },
        "errors": [],
        "end_time": now(),
    })
}

fn result(row: &Row, ranks: usize) -> Value {
    let half = |half: &Half| {
        let (alg, bus) = row.bandwidths(half, ranks);
        json!({ "time": half.time, "alg_bw": alg, "bus_bw": bus, "nwrong": half.wrong })
    };
    let mut value = json!({
        "size": row.size,
        "count": row.count,
        "type": row.data_type.map_or("none", |t| t.name()),
        "redop": row.op.map_or("none", |o| o.name()),
        "root": row.root.map_or("-1".to_owned(), |r| r.to_string()),
        "out_of_place": half(&row.apart),
        "in_place": row.in_place.as_ref().map(half),
        "actual_iterations": row.apart.iterations,
        "experiment_name": row.bench.name(),
        "algorithm": row.explanation.algorithm,
        "transport": row.explanation.transports.join("+"),
        "why": row.explanation.why,
    });
    if let Some(spread) = &row.apart.spread {
        value["out_of_place_per_iter"] = json!(spread);
    }
    if let Some(spread) = row.in_place.as_ref().and_then(|h| h.spread.as_ref()) {
        value["in_place_per_iter"] = json!(spread);
    }
    value
}

/// What may have changed the numbers, as `NAME=value`, and no secret: nccl-tests writes all variables.
fn environment(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    const PREFIXES: [&str; 6] = ["ND_", "NCCL_", "OMPI_COMM_", "PMI_", "SLURM_", "MASTER_"];
    const NAMES: [&str; 4] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];
    let mut shown: Vec<String> = variables
        .filter(|(name, _)| PREFIXES.iter().any(|p| name.starts_with(p)) || NAMES.contains(&name.as_str()))
        .map(
            |(name, value)| {
                if name == "ND_SECRET" { format!("{name}=(set)") } else { format!("{name}={value}") }
            },
        )
        .collect();
    shown.sort();
    shown
}

/// As NCCL_VERSION_CODE: 2.23.7 is 22307.
fn version(text: &str) -> u64 {
    text.split('.').filter_map(|part| part.parse::<u64>().ok()).fold(0, |code, part| code * 100 + part)
}

/// The time, UTC, as nccl-tests writes it.
pub fn now() -> String {
    stamp(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()))
}

/// Days to a date: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn stamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{date:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(stamp(0), "1970-01-01 00:00:00");
        assert_eq!(stamp(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(stamp(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(stamp(1_795_979_045), "2026-11-29 19:04:05");
    }

    #[test]
    fn versions_are_codes() {
        assert_eq!((version("2.23.7"), version("0.1.0")), (22307, 100));
    }

    #[test]
    fn no_secret_is_written() {
        let all = [
            ("ND_SECRET", "hunter2"),
            ("HOME", "/root"),
            ("AWS_SECRET", "x"),
            ("RANK", "0"),
            ("ND_ALGO", "ring"),
        ];
        let shown = environment(all.iter().map(|(n, v)| (n.to_string(), v.to_string())));
        assert_eq!(shown, ["ND_ALGO=ring", "ND_SECRET=(set)", "RANK=0"]);
    }
}
