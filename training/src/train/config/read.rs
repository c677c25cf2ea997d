//! Settings from a file, and one by one.

use std::collections::BTreeMap;
use std::path::Path;

use nd_comm::config::nearest;

use super::{Config, KEYS, Key, deepspeed, yaml};
use crate::error::{Error, Result};

/// Other names that people know keys by: Hugging Face's, Accelerate's and Axolotl's.
const OTHERS: [(&str, &str); 16] = [
    ("learning-rate", "lr"),
    ("max-steps", "steps"),
    ("warmup-steps", "warmup"),
    ("lr-scheduler", "schedule"),
    ("lr-scheduler-type", "schedule"),
    ("max-grad-norm", "clip"),
    ("gradient-accumulation-steps", "accumulation"),
    ("per-device-train-batch-size", "micro-batch"),
    ("micro-batch-size", "micro-batch"),
    ("sequence-len", "seq-len"),
    ("gradient-checkpointing", "checkpoint-activations"),
    ("activation-checkpointing", "checkpoint-activations"),
    ("zero-stage", "zero"),
    ("resume-from-checkpoint", "resume"),
    ("save-steps", "checkpoint-every"),
    ("save-total-limit", "keep"),
];

/// Names of single axes of the mesh.
const AXES: [&str; 7] = [
    "dp-replicate-size",
    "dp-shard-size",
    "cp-size",
    "tp-size",
    "tensor-parallel-size",
    "context-parallel-size",
    "data-parallel-size",
];

/// FairScale's word for a data-parallel scheme, as Hugging Face's Trainer takes it, and the stage of ZeRO that each value is.
pub const SHARDED_DDP: &str = "sharded-ddp";
const SHARDED_DDP_STAGES: [(&str, &str); 3] = [("simple", "2"), ("zero_dp_2", "2"), ("zero_dp_3", "3")];

impl Config {
    /// Sets one key. Underscores count as dashes, and names that other programs have for the same are known.
    ///
    /// # Errors
    /// [`Error::Config`] with the key that was perhaps meant, or with what is wrong with the value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let dashed = name.trim().replace('_', "-");
        if AXES.contains(&dashed.as_str()) {
            let axis = match dashed.as_str() {
                "data-parallel-size" => "dp_replicate".to_owned(),
                other => other.replace('-', "_"),
            };
            self.add_axis(&format!("{axis}={}", value.trim()));
            return Ok(());
        }
        if dashed == SHARDED_DDP {
            return self.set_sharded_ddp(value.trim());
        }
        let dashed = ours(&dashed);
        let Some(key) = find(dashed) else {
            let hint = nearest(dashed, KEYS.iter().map(|key| key.name));
            let hint = hint.map_or("nd-train --help lists all".to_owned(), |n| format!("did you mean {n}?"));
            return Err(Error::Config(format!("{name}={value}: no setting is called so; {hint}")));
        };
        (key.set)(self, value.trim()).map_err(|problem| Error::Config(format!("{name}={value}: {problem}")))
    }

    fn set_sharded_ddp(&mut self, value: &str) -> Result<()> {
        let of = |name: &str| SHARDED_DDP_STAGES.iter().find(|(known, _)| *known == name);
        let refused = |problem: &str| Err(Error::Config(format!("{SHARDED_DDP}={value}: {problem}")));
        match (of(value), value) {
            (Some((_, stage)), _) => self.set("zero", stage),
            (None, _) if value.split([' ', ',']).any(|word| word == "offload") => {
                refused("offload is not there: all state is in host memory already; leave it out")
            }
            _ => refused("it is none of simple and zero_dp_2 (--zero 2), and zero_dp_3 (--zero 3)"),
        }
    }

    /// One more axis, in place of the default mesh or beside the axes that are there.
    fn add_axis(&mut self, axis: &str) {
        if self.mesh == Config::default().mesh {
            self.mesh.clear();
        }
        if !self.mesh.is_empty() {
            self.mesh.push(',');
        }
        self.mesh.push_str(axis);
    }

    /// Takes the settings of a file: TOML, or by the end of its name DeepSpeed's JSON, or YAML as Accelerate and Axolotl have it.
    ///
    /// # Errors
    /// [`Error::File`] with the line or the key, and what is wrong.
    pub fn read_file(&mut self, path: &Path) -> Result<()> {
        let ends = |with: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(with));
        let read = match (ends("json"), ends("yaml") || ends("yml")) {
            (true, _) => deepspeed::read,
            (_, true) => yaml::read,
            _ => Config::read_toml,
        };
        self.read_by(path, "--config", read)
    }

    /// Takes the settings of a file of DeepSpeed's, whatever its name.
    ///
    /// # Errors
    /// [`Error::File`] with the key, and what is wrong.
    pub fn read_deepspeed(&mut self, path: &Path) -> Result<()> {
        self.read_by(path, "--deepspeed, or the key deepspeed", deepspeed::read)
    }

    fn read_by(&mut self, path: &Path, flag: &str, read: fn(&mut Config, &str) -> Result<()>) -> Result<()> {
        let refused = |problem: String| Error::File { path: path.to_owned(), problem };
        let text = std::fs::read_to_string(path)
            .map_err(|e| refused(format!("cannot be read: {e}; check {flag}")))?;
        read(self, &text).map_err(|e| refused(e.to_string()))
    }

    /// Takes the settings of a TOML text: keys without tables, but for `mesh = { dp_shard = 2, tp = 2 }`.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn read_toml(&mut self, text: &str) -> Result<()> {
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            let line = e.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let line = line.map_or(String::new(), |line| format!("line {line}: "));
            Error::Config(format!("{line}not TOML: {}; write lines such as steps = 100", e.message()))
        })?;
        let mut seen = BTreeMap::new();
        for key in table.keys() {
            let dashed = key.replace('_', "-");
            let setting = if dashed == SHARDED_DDP { "zero" } else { ours(&dashed) };
            if let Some(other) = seen.insert(setting.to_owned(), key) {
                return Err(Error::Config(format!(
                    "{other} and {key} are the same setting; leave one of them out"
                )));
            }
        }
        for (key, value) in &table {
            let plain = |value: &toml::Value| match value {
                toml::Value::String(text) => Some(text.clone()),
                toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => {
                    Some(value.to_string())
                }
                _ => None,
            };
            let text = match value {
                toml::Value::Array(values) => values.iter().map(plain).collect::<Option<Vec<_>>>(),
                toml::Value::Table(axes) if key == "mesh" => {
                    axes.iter().map(|(axis, size)| Some(format!("{axis}={}", plain(size)?))).collect()
                }
                value => plain(value).map(|text| vec![text]),
            };
            let Some(text) = text else {
                return Err(Error::Config(format!(
                    "{key}: a {} is no plain value; write a string, a number, true or false",
                    value.type_str()
                )));
            };
            self.set(key, &text.join(","))?;
        }
        Ok(())
    }

    /// All settings as TOML, which [`Config::read_toml`] takes.
    pub fn to_toml(&self) -> String {
        let line = |key: &Key| {
            let value = (key.get)(self);
            let plain = value.parse::<f64>().is_ok() || value == "true" || value == "false";
            match value.as_str() {
                "" => format!("# {} =\n", key.name),
                _ if plain => format!("{} = {value}\n", key.name),
                _ => format!("{} = {}\n", key.name, toml::Value::from(value)),
            }
        };
        KEYS.iter().map(line).collect()
    }
}

/// The name that a key has here.
fn ours(dashed: &str) -> &str {
    OTHERS.iter().find(|(other, _)| *other == dashed).map_or(dashed, |(_, ours)| ours)
}

fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    #[test]
    fn every_key_goes_round() {
        let mut config = Config::default();
        for (key, value) in [
            ("init", "model"),
            ("order", "shuffled"),
            ("micro_batch", "2"),
            ("lr", "0.0003"),
            ("betas", "0.9, 0.95"),
            ("dtype", "bf16"),
            ("mesh", "dp_shard=2,tp=2"),
            ("reshard", "4"),
            ("checkpoint-activations", "true"),
            ("cp-form", "all-gather"),
            ("bucket-bytes", "64K"),
            ("metrics", "m.jsonl"),
            ("freeze", "model.embed*,*.bias"),
        ] {
            config.set(key, value).unwrap();
        }
        assert_eq!(
            (config.dtype, config.adamw.betas, config.bucket_bytes),
            (DType::BF16, (0.9, 0.95), 65536)
        );
        let text = config.to_toml();
        assert!(text.contains("lr = 3e-4\n") && text.contains("mesh = \"dp_shard=2,tp=2\"\n"), "{text}");
        let mut read = Config::default();
        read.read_toml(&text).unwrap();
        assert_eq!(read, config);
    }

    #[test]
    fn toml_in_the_forms_people_write() {
        let mut config = Config::default();
        let text = "seq_len = 64\nbetas = [0.9, 0.99]\nclip = 1\nmesh = { tp = 2, dp_shard = -1 }\nprefetch = false\n\
                    learning_rate = 1e-2\n";
        config.read_toml(text).unwrap();
        assert_eq!(
            (config.seq_len, config.adamw.betas, config.clip, config.lr),
            (64, (0.9, 0.99), 1.0, 0.01)
        );
        assert!(!config.prefetch);
        assert_eq!(crate::Mesh::parse(&config.mesh, 8).unwrap().to_string(), "dp_shard=4,tp=2");
        let mut config = Config::default();
        config.read_toml("tensor_parallel_size = 2\ndp_shard_size = 2\ndp_replicate_size = 2").unwrap();
        assert_eq!(
            crate::Mesh::parse(&config.mesh, 8).unwrap().to_string(),
            "dp_replicate=2,dp_shard=2,tp=2"
        );
    }

    #[test]
    fn sharded_ddp_is_a_stage_of_zero() {
        for (value, zero) in [("simple", 2), ("zero_dp_2", 2), ("zero_dp_3", 3)] {
            let mut config = Config::default();
            config.set("zero", "1").unwrap();
            config.set("sharded_ddp", value).unwrap();
            assert_eq!(config.zero, zero, "{value}");
        }
        let said = |value: &str| Config::default().set("sharded-ddp", value).unwrap_err().to_string();
        assert!(said("zero_dp_3 offload").starts_with("sharded-ddp=zero_dp_3 offload: offload is not there"));
        assert!(said("both").ends_with("none of simple and zero_dp_2 (--zero 2), and zero_dp_3 (--zero 3)"));
        // Of one setting a file says one thing.
        let toml = Config::default().read_toml("sharded_ddp = \"simple\"\nzero = 3").unwrap_err().to_string();
        assert_eq!(toml, "sharded_ddp and zero are the same setting; leave one of them out");
    }

    #[test]
    fn a_file_of_deepspeeds_may_have_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("zero3.conf");
        std::fs::write(&path, r#"{"zero_optimization": {"stage": 3}, "gradient_clipping": 0.5}"#).unwrap();
        let mut config = Config::default();
        config.read_deepspeed(&path).unwrap();
        assert_eq!((config.zero, config.clip), (3, 0.5));
        let missing = config.read_deepspeed(&folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("cannot be read") && missing.contains("check --deepspeed"), "{missing}");
    }

    #[test]
    fn mistakes_are_named_with_a_remedy() {
        let said = |key: &str, value: &str| Config::default().set(key, value).unwrap_err().to_string();
        assert_eq!(said("step", "3"), "step=3: no setting is called so; did you mean steps?");
        assert_eq!(said("steps", "0"), "steps=0: 0 is less than 1; write a whole number from 1 on");
        assert!(said("dtype", "fp8").contains("f32, bf16, f16"));
        assert!(said("lr", "-1").contains("from 0 on"));
        assert!(said("betas", "0.9").contains("0.9,0.95"));
        assert!(said("betas", "0.9,0.95,1e-8").contains("3 numbers, not two"));
        assert!(said("betas", "0.9,1").contains("below 1"));
        assert!(said("zero", "4").contains("3 (FSDP)"));
        assert_eq!(said("mesh", " , "), "mesh= , : names no axis; write such as dp_shard=2,tp=2");
        assert!(said("bucket-bytes", "5X").contains("25M"));
        let toml = |text: &str| Config::default().read_toml(text).unwrap_err().to_string();
        assert!(toml("steps = 3\nlr = = 2").starts_with("line 2: not TOML"));
        assert_eq!(
            toml("learning_rate = 1\nlr = 2"),
            "learning_rate and lr are the same setting; leave one of them out"
        );
        assert!(toml("data = { a = 1 }").contains("no plain value"));
        assert!(toml("mesh = {}").contains("names no axis") && toml("mesh = \"\"").contains("names no axis"));
        let missing = Config::default().read_file(Path::new("none.toml")).unwrap_err().to_string();
        assert!(
            missing.starts_with("none.toml: cannot be read") && missing.contains("--config"),
            "{missing}"
        );
    }

    #[test]
    fn names_are_unlike_and_of_one_form() {
        for (i, key) in KEYS.iter().enumerate() {
            assert!(KEYS[..i].iter().all(|other| other.name != key.name), "{}", key.name);
            assert!(key.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{}", key.name);
        }
        for (_, ours) in OTHERS {
            assert!(find(ours).is_some(), "{ours}");
        }
    }
}
