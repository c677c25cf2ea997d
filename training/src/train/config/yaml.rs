//! YAML: what `accelerate config` writes, or lines with our keys and Axolotl's.

use serde_json::Value;

use super::foreign::wrong;
use super::{Config, accelerate, axolotl};
use crate::error::Result;

/// Takes the settings of a YAML text.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) with the line or the key, and what is wrong.
pub fn read(config: &mut Config, text: &str) -> Result<()> {
    let yaml: Value = serde_saphyr::from_str(text).map_err(|e| {
        let told = e.without_snippet().to_string();
        wrong(format!(
            "not YAML: {}; write lines such as steps: 100",
            told.lines().next().unwrap_or_default()
        ))
    })?;
    if !yaml.is_object() {
        return Err(wrong("not a table of keys; write lines such as steps: 100".into()));
    }
    if accelerate::is_its(&yaml) { accelerate::read(config, &yaml) } else { axolotl::read(config, &yaml) }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// What a text sets.
    pub fn taken(text: &str) -> Config {
        let mut config = Config::default();
        read(&mut config, text).unwrap();
        config
    }

    /// Why one is refused.
    pub fn said(text: &str) -> String {
        read(&mut Config::default(), text).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_yaml_is_one_sentence() {
        for text in ["a: [1", "a: b: c", "\"", "{a: 1}}", "a: 1\na: 2"] {
            let error = said(text);
            assert!(error.starts_with("not YAML: ") && !error.contains('\n'), "{text}: {error}");
        }
        for text in ["", "- 1", "steps", "~"] {
            assert_eq!(said(text), "not a table of keys; write lines such as steps: 100", "{text}");
        }
        // Each alias stands for ten of the one before.
        let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for (name, before) in
            ["b", "c", "d", "e", "f", "g", "h", "i"].iter().zip(["a", "b", "c", "d", "e", "f", "g", "h"])
        {
            bomb += &format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 10].join(", "));
        }
        assert!(said(&bomb).starts_with("not YAML: "), "{}", said(&bomb));
    }
}
