//! DeepSpeed's JSON.

use serde_json::Value;

use super::Config;
use crate::error::{Error, Result};

/// Where DeepSpeed has what.
const KNOWN: [(&str, &str); 12] = [
    ("/train_batch_size", "batch"),
    ("/train_micro_batch_size_per_gpu", "micro-batch"),
    ("/gradient_accumulation_steps", "accumulation"),
    ("/gradient_clipping", "clip"),
    ("/zero_optimization/stage", "zero"),
    ("/zero_optimization/reduce_bucket_size", "bucket-bytes"),
    ("/optimizer/params/lr", "lr"),
    ("/optimizer/params/betas", "betas"),
    ("/optimizer/params/eps", "eps"),
    ("/optimizer/params/weight_decay", "weight-decay"),
    ("/scheduler/params/warmup_num_steps", "warmup"),
    ("/scheduler/params/total_num_steps", "steps"),
];

/// Takes the settings that have a counterpart here. Values that are `auto` are left as they are, other keys are named in a
/// warning.
pub fn read(config: &mut Config, text: &str) -> Result<()> {
    let wrong = |problem: String| Error::Config(problem);
    let json: Value = serde_json::from_str(text).map_err(|e| wrong(format!("not JSON: {e}")))?;
    let Value::Object(keys) = &json else {
        return Err(wrong("not a JSON object; write { ... }".into()));
    };
    for (pointer, key) in KNOWN {
        let value = match json.pointer(pointer) {
            None => continue,
            Some(Value::String(text)) if text == "auto" => continue,
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(values)) => values.iter().map(Value::to_string).collect::<Vec<_>>().join(","),
            Some(value) => value.to_string(),
        };
        config.set(key, &value).map_err(|e| wrong(format!("{pointer}: {e}")))?;
    }
    let kind = json.pointer("/optimizer/type").and_then(Value::as_str).unwrap_or("AdamW");
    if !["AdamW", "Adam"].contains(&kind) {
        return Err(wrong(format!("/optimizer/type is {kind}; there is AdamW only")));
    }
    for (pointer, dtype) in [("/bf16/enabled", "bf16"), ("/fp16/enabled", "f16")] {
        if json.pointer(pointer) == Some(&Value::Bool(true)) {
            config.set("dtype", dtype)?;
        }
    }
    if json.pointer("/zero_optimization/offload_optimizer").is_some() {
        return Err(wrong(
            "/zero_optimization/offload_optimizer: state is in host memory here; take it out".into(),
        ));
    }
    let others = ["optimizer", "scheduler", "zero_optimization", "bf16", "fp16"];
    let unknown =
        |key: &&String| !others.contains(&key.as_str()) && KNOWN.iter().all(|(p, _)| p[1..] != ***key);
    for key in keys.keys().filter(unknown) {
        tracing::warn!("{key} has no counterpart here and no effect");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    #[test]
    fn what_has_a_counterpart_is_taken() {
        let mut config = Config::default();
        let text = r#"{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto",
            "gradient_clipping": 0.5, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, "overlap_comm": true},
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
            "steps_per_print": 10}"#;
        read(&mut config, text).unwrap();
        assert_eq!((config.batch, config.micro_batch, config.accumulation), (Some(32), Some(4), None));
        assert_eq!((config.zero, config.dtype, config.clip, config.lr), (2, DType::BF16, 0.5, 3e-4));
        assert_eq!((config.adamw.betas, config.adamw.weight_decay), ((0.9, 0.95), 0.1));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let said = |text: &str| read(&mut Config::default(), text).unwrap_err().to_string();
        assert!(said("{").starts_with("not JSON"));
        assert!(said("[]").contains("object"));
        assert!(said(r#"{"zero_optimization": {"stage": 7}}"#).contains("/zero_optimization/stage: zero=7"));
        assert!(said(r#"{"optimizer": {"type": "Lamb"}}"#).contains("Lamb"));
    }
}
