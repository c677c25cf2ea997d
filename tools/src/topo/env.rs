//! `nd-topo env`: every setting with its value, where that came from, and what it means.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use nd_comm::config::Config;
use nd_topology::{Error, Result};
use serde::Serialize;

use super::table::Table;
use super::{put, put_json};

#[derive(Debug, ClapArgs)]
pub(super) struct EnvArgs {
    /// Only settings whose name or meaning contains this
    #[arg(value_name = "TEXT")]
    only: Option<String>,
    /// Write JSON to this file (`-` or nothing: standard output) instead of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    value: String,
    source: String,
    default: &'static str,
    meaning: &'static str,
}

pub(super) fn run(args: &EnvArgs) -> Result<()> {
    let config = Config::from_env().map_err(|e| Error::Invalid(e.to_string()))?;
    let wanted =
        |text: &str| args.only.as_ref().is_none_or(|only| text.to_lowercase().contains(&only.to_lowercase()));
    let rows: Vec<Row> = config
        .settings()
        .into_iter()
        .filter(|s| wanted(s.name) || wanted(s.meaning))
        .map(|s| Row {
            name: s.name,
            value: s.value,
            source: s.source.to_string(),
            default: s.default,
            meaning: s.meaning,
        })
        .collect();
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    if let Some(path) = &args.json {
        return put_json(path, &rows);
    }
    let mut table = Table::new(&["setting", "value", "source", "default", "meaning"]);
    for row in rows {
        table.row([row.name.into(), row.value, row.source, row.default.into(), row.meaning.into()]);
    }
    put(None, &table.render())
}
