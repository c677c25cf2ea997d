//! `nd-topo env`: every setting with its value, where that came from, and what it means.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use nd_comm::config::{Config, Environment};
use nd_topology::{Error, Result, edits};
use serde::Serialize;

use super::{put, put_json};
use crate::say;
use crate::table::Table;

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
    let (config, wrong) = Config::salvaged(&Environment::of_process());
    let is_wrong = |name: &str| {
        wrong.iter().any(|e| matches!(e, nd_comm::Error::Config { setting, .. } if setting == name))
    };
    let wanted =
        |text: &str| args.only.as_ref().is_none_or(|only| text.to_lowercase().contains(&only.to_lowercase()));
    let settings = config.settings();
    let names: Vec<&str> = settings.iter().map(|s| s.name).collect();
    let rows: Vec<Row> = settings
        .iter()
        .filter(|s| wanted(s.name) || wanted(s.meaning))
        .map(|s| Row {
            name: s.name,
            value: s.value.clone(),
            source: if is_wrong(s.name) { "its value is refused".to_owned() } else { s.source.to_string() },
            default: s.default,
            meaning: s.meaning,
        })
        .collect();
    if let (Some(only), true) = (&args.only, rows.is_empty()) {
        return Err(Error::Invalid(format!(
            "no setting has `{only}` in its name or meaning; {}",
            match &near(only, &names)[..] {
                [] => "`nd-topo env` lists them all".to_owned(),
                near => format!("near it are {}", near.join(", ")),
            }
        )));
    }
    for warning in &config.warnings {
        say::warning(warning);
    }
    if let Some(path) = &args.json {
        put_json(path, &rows)?;
        return refused(wrong);
    }
    let mut table = Table::new(&["setting", "value", "source", "default", "meaning"]);
    for row in rows {
        table.row([row.name.into(), row.value, row.source, row.default.into(), row.meaning.into()]);
    }
    put(None, &table.render())?;
    refused(wrong)
}

/// The error that names all of them.
fn refused(wrong: Vec<nd_comm::Error>) -> Result<()> {
    let messages: Vec<String> = wrong.iter().map(nd_comm::Error::to_string).collect();
    match &messages[..] {
        [] => Ok(()),
        [one] => Err(Error::Invalid(one.clone())),
        many => Err(Error::Invalid(format!("{} settings are wrong: {}", many.len(), many.join("; ")))),
    }
}

/// Names with a part that is few edits away from one of `wanted`, nearest first; at most five.
fn near<'n>(wanted: &str, names: &[&'n str]) -> Vec<&'n str> {
    let parts = |text: &str| text.to_lowercase().split('_').map(str::to_owned).collect::<Vec<_>>();
    let wanted = parts(wanted);
    let mut found: Vec<(usize, &str)> = Vec::new();
    for &name in names {
        let pairs = wanted.iter().flat_map(|w| parts(name).into_iter().map(move |n| (w, n)));
        // The prefix that all names share says nothing, and short words are near to everything.
        let pairs = pairs.filter(|(w, n)| w.len() > 2 && n.len() > 2 && n != "nccl");
        let close = pairs.map(|(w, n)| (edits(w, &n), w.len())).filter(|(d, len)| d * 3 <= *len);
        if let Some((distance, _)) = close.min() {
            found.push((distance, name));
        }
    }
    found.sort_by_key(|f| f.0);
    found.into_iter().take(5).map(|f| f.1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found() {
        let names = ["ND_SOCKET_IFNAME", "ND_SECRET", "NCCL_DEBUG"];
        assert_eq!(near("ND_SOCKTE", &names), ["ND_SOCKET_IFNAME"]);
        assert_eq!(near("secert", &names), ["ND_SECRET"]);
        assert!(near("nosuch", &names).is_empty());
    }
}
