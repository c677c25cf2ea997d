//! Files of other programs' settings: tables of keys, what each of them is here, and how their values are read.

use nd_comm::config::nearest;
use serde_json::Value;

use super::Config;
use crate::error::{Error, Result};

/// Why state is not moved to a host's memory.
pub const HOST: &str = "all state is in host memory already";

/// What a key of another program's is here.
pub enum Means {
    /// A setting.
    Key(&'static str),
    /// A setting that is a whole number, also where it is written 5e8.
    Whole(&'static str),
    /// It is read below, with others.
    Here,
    /// What it is about is done so here whatever it says, or does not change what is learnt: that is told.
    Nothing,
    /// The same, where there is nothing to tell: it is about how ranks are started, or says what is so here.
    Silent,
    /// There is nothing like it: it is refused unless it is off or left to the program, and this says why.
    Refused(&'static str),
    /// A table of further keys.
    Table(&'static [(&'static str, Means)]),
}

use Means::{Here, Key, Nothing, Refused, Silent, Table, Whole};

/// Of the configuration.
pub fn wrong(problem: String) -> Error {
    Error::Config(problem)
}

/// Takes the keys of a table of some program's that stands at `path`.
pub fn table(
    config: &mut Config,
    json: &Value,
    program: &str,
    path: &str,
    known: &[(&'static str, Means)],
) -> Result<()> {
    let Some(keys) = json.as_object() else {
        return Err(wrong(format!("{path}: {json} is no table of keys; write {{ ... }}")));
    };
    for (key, value) in keys {
        let at = format!("{path}/{key}");
        let Some((_, means)) = known.iter().find(|(name, _)| name == key) else {
            let hint = nearest(key, known.iter().map(|(name, _)| *name));
            let hint = hint.map_or("take it out".to_owned(), |name| format!("did you mean {name}?"));
            return Err(wrong(format!("{at}: no key of {program}'s is known by this name; {hint}")));
        };
        if unset(value) {
            continue;
        }
        match means {
            Table(known) => table(config, value, program, &at, known)?,
            Refused(_) if off(value) => {}
            Refused(why) => return Err(wrong(format!("{at} has no counterpart here: {why}; take it out"))),
            Key(name) => set(config, &at, name, &plain(value))?,
            Whole(name) => set(config, &at, name, &whole(value))?,
            Here | Silent => {}
            Nothing => tracing::warn!("{at} has no counterpart here and no effect"),
        }
    }
    Ok(())
}

/// Not there, or left to the program.
fn unset(value: &Value) -> bool {
    value.is_null() || value.as_str() == Some("auto")
}

/// Switched off: false, `none`, `no`, or a table such as `{"device": "none"}` or `{"enabled": false}`.
fn off(value: &Value) -> bool {
    match value {
        Value::Bool(on) => !on,
        Value::String(text) => ["none", "no", "false"].contains(&text.as_str()),
        Value::Object(table) => ["device", "enabled"].iter().any(|key| table.get(*key).is_some_and(off)),
        _ => false,
    }
}

/// Sets one of ours.
pub fn set(config: &mut Config, at: &str, name: &str, value: &str) -> Result<()> {
    config.set(name, value).map_err(|e| wrong(format!("{at}: {e}")))
}

/// A value as it would be written after a flag.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(","),
        value => value.to_string(),
    }
}

/// A number such as 5e8 as a whole one.
pub fn whole(value: &Value) -> String {
    let number = value.as_f64().filter(|n| n.fract() == 0.0 && (0.0..1e15).contains(n));
    number.filter(|_| !value.is_u64()).map_or_else(|| plain(value), |n| format!("{n:.0}"))
}

/// What stands at a place, if it is set.
pub fn at<'j>(json: &'j Value, pointer: &str) -> Option<&'j Value> {
    json.pointer(pointer).filter(|value| !unset(value))
}
