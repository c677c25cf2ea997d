//! What a run says of itself in its checkpoints, and whether another can go on from one. *Pure.*

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::plan::OWN;
use super::{Config, KEYS, Progress};
use crate::checkpoint::Manifest;
use crate::checkpoint::manifest::{Data, FORMAT, LossScale, Optimizer, Random, TensorEntry, Text, VERSION};
use crate::data::Deal;
use crate::error::{Error, Result};
use crate::llama;
use crate::mesh::{Axis, Mesh};
use crate::model::Unit;

/// Settings without which what was saved means something else.
const FIXED: [&str; 7] = ["order", "seq-len", "seed", "freeze", "betas", "eps", "weight-decay"];
/// Settings that do not change what is learnt.
const BESIDE: [&str; 6] =
    ["checkpoint-every", "checkpoint-async", "keep", "eval-every", "save-dtype", "data-field"];
/// The name of the optimizer.
const ADAMW: &str = "adamw";
/// What can be done where a run cannot go on.
const ANEW: &str = "or begin anew with its weights (nd-train export, then --init)";

/// A run, as far as checkpoints are concerned.
#[derive(Clone, Copy)]
pub(super) struct About<'a> {
    pub config: &'a Config,
    pub model: &'a llama::Config,
    pub deal: &'a Deal,
    /// Of the text.
    pub tokens: u64,
    pub texts: &'a [Text],
}

impl About<'_> {
    /// The manifest of a checkpoint, but for its files, and where tensors are in them.
    pub fn manifest<'u>(
        &self,
        mesh: &Mesh,
        progress: Progress,
        units: impl Iterator<Item = &'u Unit>,
    ) -> Manifest {
        let Progress { step, updates, scale } = progress;
        let (epoch, inside) = (step / self.deal.steps_of_epoch(), step % self.deal.steps_of_epoch());
        let tensors = units.flat_map(|unit| &unit.parameters).map(|parameter| {
            let (shape, frozen) = (parameter.shape.clone(), parameter.frozen);
            (parameter.name.clone(), TensorEntry { shape, frozen, pieces: Vec::new() })
        });
        Manifest {
            format: FORMAT.into(),
            version: VERSION,
            step,
            mesh: Axis::ALL.map(|axis| (axis.name().to_owned(), mesh.size(axis))).into(),
            settings: self.settings(),
            model: self.model(),
            optimizer: Optimizer { name: ADAMW.into(), updates },
            loss_scale: scale.map(|scale| LossScale { scale: scale.get(), good: scale.good() }),
            data: Data {
                batch: self.deal.batch(),
                tokens: self.tokens,
                epoch,
                offset: (inside * self.deal.batch()).min(self.deal.windows),
                files: self.texts.to_vec(),
            },
            random: Random { seed: self.config.seed },
            beside: Vec::new(),
            files: Vec::new(),
            tensors: tensors.collect(),
        }
    }

    /// Whether this run can go on from a checkpoint, and which settings have changed since: `lr 1e-3 → 3e-4`.
    ///
    /// # Errors
    /// [`Error::Config`] with the first thing that does not match, both values, and what to do.
    pub fn check(&self, saved: &Manifest) -> Result<Vec<String>> {
        let refuse = |problem: String| Err(Error::Config(problem));
        let model = self.model();
        for key in model.keys().chain(saved.model.keys()) {
            let [own, other] = [&model, &saved.model].map(|model| model.get(key).unwrap_or(&Value::Null));
            if !alike(own, other) {
                return refuse(format!(
                    "the model has {key}={own}, and that of the checkpoint {key}={other}; go on with the model and the \
                     tokenizer that it was written with, {ANEW}"
                ));
            }
        }
        if saved.optimizer.name != ADAMW {
            let name = &saved.optimizer.name;
            return refuse(format!(
                "the optimizer is {ADAMW}, and that of the checkpoint {name}; there is no other, {ANEW}"
            ));
        }
        let settings = self.settings();
        for name in FIXED {
            let [own, other] =
                [&settings, &saved.settings].map(|all| all.get(name).map_or("", String::as_str));
            if own != other {
                let write = if other.is_empty() {
                    format!("leave --{name} out")
                } else {
                    format!("write --{name} {other}")
                };
                return refuse(format!(
                    "{name}={own}, and the checkpoint was written with {name}={other}; {write}, {ANEW}"
                ));
            }
        }
        let (own, other) = (self.deal.batch(), saved.data.batch);
        if own != other {
            return refuse(format!(
                "a step has batch={own} sequences, and had batch={other} when the checkpoint was written; write --batch {other}, \
                 {ANEW}"
            ));
        }
        self.check_texts(&saved.data)?;
        if saved.step > self.config.steps {
            let (step, steps) = (saved.step, self.config.steps);
            return refuse(format!(
                "steps={steps}, and the checkpoint was written after step {step}; raise --steps"
            ));
        }
        let changed = settings.iter().filter_map(|(name, own)| {
            let other = saved.settings.get(name).filter(|other| *other != own)?;
            let none = |value: &str| if value.is_empty() { "none".to_owned() } else { value.to_owned() };
            Some(format!("{name} {} → {}", none(other), none(own)))
        });
        Ok(changed.collect())
    }

    fn check_texts(&self, saved: &Data) -> Result<()> {
        let told = |texts: &[Text], name: &str| match texts.iter().find(|text| text.name == name) {
            None => format!("no {name}"),
            Some(Text { bytes, digest, .. }) => format!("{name} of {bytes} bytes with digest {digest}"),
        };
        for Text { name, .. } in self.texts.iter().chain(&saved.files) {
            let (own, other) = (told(self.texts, name), told(&saved.files, name));
            if own != other {
                return Err(Error::Config(format!(
                    "there is {own}, and there was {other} when the checkpoint was written; give the same text and tokenizer, \
                     {ANEW}"
                )));
            }
        }
        match (self.tokens, saved.tokens) {
            (own, other) if own == other => Ok(()),
            (own, other) => Err(Error::Config(format!(
                "the text has {own} tokens, and had {other} when the checkpoint was written; give the same text and tokenizer, \
                 {ANEW}"
            ))),
        }
    }

    fn settings(&self) -> BTreeMap<String, String> {
        let keys = KEYS.iter().filter(|key| !OWN.contains(&key.name) && !BESIDE.contains(&key.name));
        keys.map(|key| (key.name.to_owned(), (key.get)(self.config))).collect()
    }

    fn model(&self) -> Map<String, Value> {
        serde_json::from_str(&self.model.to_json()).unwrap_or_default()
    }
}

/// Whether two values are the same, but for what is lost of a number when it is written and read.
fn alike(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-12 * a.abs(),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Order;

    fn config(settings: &[(&str, &str)]) -> Config {
        let mut config = Config::default();
        settings.iter().for_each(|(key, value)| config.set(key, value).unwrap());
        config
    }

    fn deal(windows: u64, micro_batch: u64) -> Deal {
        Deal { windows, order: Order::Sequential, seed: 0, micro_batch, accumulation: 1, ranks: 2 }
    }

    fn progress(step: u64) -> Progress {
        Progress { step, updates: step, scale: None }
    }

    #[test]
    fn what_cannot_go_on_is_named_with_both_values_and_a_remedy() {
        let (model, text) = (llama::Config::default(), |digest: &str| Text {
            name: "--data".into(),
            bytes: 9,
            digest: digest.into(),
        });
        let (own, texts, of) = (config(&[]), [text("a")], deal(10, 4));
        let about = About { config: &own, model: &model, deal: &of, tokens: 100, texts: &texts };
        let mesh = Mesh::parse("dp_shard=2", 2).unwrap();
        let saved = about.manifest(&mesh, progress(7), std::iter::empty());
        assert_eq!((saved.data.epoch, saved.data.offset), (3, 8));
        assert_eq!(about.check(&saved).unwrap(), [""; 0]);
        let said = |about: About<'_>| about.check(&saved).unwrap_err().to_string();
        let wide = llama::Config { hidden_size: 64, ..model.clone() };
        let error = said(About { model: &wide, ..about });
        assert!(
            error.contains("hidden_size=64")
                && error.contains("hidden_size=128")
                && error.contains("; go on with"),
            "{error}"
        );
        for (key, value, before) in [
            ("seq-len", "64", "--seq-len 128"),
            ("order", "shuffled", "--order sequential"),
            ("seed", "1", "--seed 0"),
            ("betas", "0.9,0.95", "--betas 0.9,0.999"),
            ("weight-decay", "0", "--weight-decay 0.01"),
            ("freeze", "model.*", "leave --freeze out"),
        ] {
            let error = said(About { config: &config(&[(key, value)]), ..about });
            assert!(error.starts_with(&format!("{key}={value}, and")) && error.contains(before), "{error}");
        }
        let error = said(About { deal: &deal(10, 6), ..about });
        assert!(error.contains("batch=12") && error.contains("write --batch 8"), "{error}");
        let error = said(About { texts: &[text("b")], ..about });
        assert!(error.contains("with digest b") && error.contains("with digest a"), "{error}");
        assert!(said(About { texts: &[], ..about }).contains("there is no --data"));
        assert!(said(About { tokens: 99, ..about }).contains("99 tokens, and had 100"));
        let error = said(About { config: &config(&[("steps", "6")]), ..about });
        assert!(error.contains("steps=6") && error.contains("step 7"), "{error}");
        // These may change, and that is told.
        let other = config(&[("lr", "1e-4"), ("steps", "300"), ("mesh", "tp=2")]);
        let changed = About { config: &other, ..about }.check(&saved).unwrap();
        assert_eq!(changed, ["lr 1e-3 → 1e-4", "mesh dp_shard=-1 → tp=2", "steps 100 → 300"]);
    }
}
