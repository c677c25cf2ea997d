//! Which parameters training leaves as they are. *Pure.*

use super::Config;
use crate::error::{Error, Result};
use crate::model::Unit;

/// Marks the parameters that one of the patterns names.
pub(super) fn freeze(units: &mut [Unit], patterns: &[String]) {
    for parameter in units.iter_mut().flat_map(|unit| &mut unit.parameters) {
        parameter.frozen = patterns.iter().any(|pattern| matches(pattern, &parameter.name));
    }
}

/// # Errors
/// [`Error::Config`] for a pattern that names nothing, or when nothing is left to train.
pub(super) fn check_freeze(config: &Config, patterns: &[String]) -> Result<()> {
    if patterns.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = config.tensors().into_iter().map(|(name, ..)| name).collect();
    if let Some(idle) = patterns.iter().find(|pattern| !names.iter().any(|name| matches(pattern, name))) {
        return Err(Error::Config(format!(
            "freeze={idle} names none of the {} parameters; names are such as {}, and * stands for anything",
            names.len(),
            names[1]
        )));
    }
    if names.iter().all(|name| patterns.iter().any(|pattern| matches(pattern, name))) {
        return Err(Error::Config(format!(
            "freeze={} leaves none of the {} parameters to train; freeze fewer",
            patterns.join(","),
            names.len()
        )));
    }
    Ok(())
}

/// Whether a name is what a pattern says, in which each `*` stands for any characters or none.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let mut pieces = rest.split('*').peekable();
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return left.ends_with(piece);
        }
        match left.find(piece) {
            Some(at) => left = &left[at + piece.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, name, expected) in [
            ("model.norm.weight", "model.norm.weight", true),
            ("model.norm", "model.norm.weight", false),
            ("model.norm*", "model.norm.weight", true),
            ("*.norm.*", "model.norm.weight", true),
            ("*", "", true),
            ("model.layers.1.*", "model.layers.11.mlp.up_proj.weight", false),
            ("*layers.1*.weight", "model.layers.11.mlp.up_proj.weight", true),
            ("*.bias", "model.layers.11.mlp.up_proj.weight", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn patterns_for_nothing_and_for_all_are_refused() {
        let config = Config::default();
        let said = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
            check_freeze(&config, &patterns).unwrap_err().to_string()
        };
        assert!(said(&["model.embed*", "head"]).starts_with("freeze=head names none of the 38 parameters"));
        assert!(said(&["*.weight"]).contains("leaves none of the 38 parameters"));
        check_freeze(&config, &["model.layers.*".into()]).unwrap();
    }
}
