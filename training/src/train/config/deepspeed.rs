//! DeepSpeed's JSON.

use serde_json::Value;

use super::Config;
use super::foreign::Means::{self, Here, Key, Nothing, Refused, Table, Whole};
use super::foreign::{HOST, at, plain, set, table, whole, wrong};
use crate::error::Result;

/// DeepSpeed's keys (<https://www.deepspeed.ai/docs/config-json/>).
const KNOWN: &[(&str, Means)] = &[
    ("train_batch_size", Whole("batch")),
    ("train_micro_batch_size_per_gpu", Whole("micro-batch")),
    ("gradient_accumulation_steps", Whole("accumulation")),
    ("gradient_clipping", Key("clip")),
    ("seed", Whole("seed")),
    ("communication_data_type", Here),
    ("data_types", Table(&[("grad_accum_dtype", Refused("gradients are added up in f32 on each rank"))])),
    ("bf16", Table(&[("enabled", Here), ("immediate_grad_update", Nothing)])),
    (
        "fp16",
        Table(&[
            ("enabled", Here),
            ("auto_cast", Nothing),
            ("loss_scale", Here),
            ("initial_scale_power", Nothing),
            ("loss_scale_window", Nothing),
            ("hysteresis", Nothing),
            ("consecutive_hysteresis", Nothing),
            ("min_loss_scale", Nothing),
        ]),
    ),
    (
        "optimizer",
        Table(&[
            ("type", Here),
            (
                "params",
                Table(&[
                    ("lr", Key("lr")),
                    ("betas", Key("betas")),
                    ("eps", Key("eps")),
                    ("weight_decay", Key("weight-decay")),
                    ("torch_adam", Nothing),
                    ("adam_w_mode", Here),
                    ("bias_correction", Nothing),
                ]),
            ),
        ]),
    ),
    (
        "scheduler",
        Table(&[
            ("type", Here),
            (
                "params",
                Table(&[
                    ("warmup_num_steps", Whole("warmup")),
                    ("total_num_steps", Whole("steps")),
                    ("warmup_max_lr", Key("lr")),
                    ("warmup_min_lr", Here),
                    ("warmup_min_ratio", Here),
                    ("cos_min_ratio", Here),
                    ("warmup_type", Here),
                    ("last_batch_iteration", Nothing),
                ]),
            ),
        ]),
    ),
    (
        "zero_optimization",
        Table(&[
            ("stage", Whole("zero")),
            ("reduce_bucket_size", Whole("bucket-bytes")),
            ("allgather_bucket_size", Nothing),
            ("allgather_partitions", Nothing),
            ("reduce_scatter", Nothing),
            ("overlap_comm", Nothing),
            ("contiguous_gradients", Nothing),
            ("round_robin_gradients", Nothing),
            ("sub_group_size", Nothing),
            ("stage3_prefetch_bucket_size", Nothing),
            ("stage3_param_persistence_threshold", Nothing),
            ("stage3_max_live_parameters", Nothing),
            ("stage3_max_reuse_distance", Nothing),
            ("stage3_gather_16bit_weights_on_model_save", Nothing),
            ("ignore_unused_parameters", Nothing),
            ("offload_optimizer", Refused(HOST)),
            ("offload_param", Refused(HOST)),
            ("cpu_offload", Refused(HOST)),
            ("zero_hpz_partition_size", Refused("use --reshard N")),
            ("zero_quantized_weights", Refused("weights are gathered in --dtype")),
            ("zero_quantized_gradients", Refused("gradients are reduced in --reduce-dtype")),
            ("mics_shard_size", Refused("use --mesh dp_replicate=…,dp_shard=…")),
        ]),
    ),
    ("tensor_parallel", Table(&[("autotp_size", Here), ("tp_size", Here)])),
    ("sequence_parallel_size", Here),
    (
        "activation_checkpointing",
        Table(&[
            ("partition_activations", Here),
            ("contiguous_memory_optimization", Nothing),
            ("cpu_checkpointing", Refused(HOST)),
            ("number_checkpoints", Nothing),
            ("synchronize_checkpoint_boundary", Nothing),
            ("profile", Nothing),
        ]),
    ),
    ("steps_per_print", Nothing),
    ("wall_clock_breakdown", Nothing),
    ("dump_state", Nothing),
    ("prescale_gradients", Nothing),
    ("gradient_predivide_factor", Nothing),
    ("zero_allow_untested_optimizer", Nothing),
    ("zero_force_ds_cpu_optimizer", Nothing),
    ("tensorboard", Nothing),
    ("wandb", Nothing),
    ("csv_monitor", Nothing),
    ("comms_logger", Nothing),
    ("flops_profiler", Nothing),
    ("checkpoint", Nothing),
    ("compression_training", Refused("weights are not compressed")),
    ("sparse_attention", Refused("attention is dense")),
    ("sparse_gradients", Refused("gradients are dense")),
    ("amp", Refused("use bf16 or fp16")),
    ("pipeline", Refused("there is no pipeline parallelism; use --mesh with dp_shard, tp and cp")),
    ("data_efficiency", Refused("sequences are dealt out by --order")),
    ("curriculum_learning", Refused("sequences are dealt out by --order")),
    ("elasticity", Refused("the ranks of a run are fixed")),
];

/// Takes the settings that have a counterpart here; values that are `auto` are left as they are. What would change the result
/// and has no counterpart is refused, what would not is named in a warning, and unknown keys are refused with the nearest.
pub fn read(config: &mut Config, text: &str) -> Result<()> {
    let json: Value =
        serde_json::from_str(text).map_err(|e| wrong(format!("not JSON: {e}; write {{ ... }}")))?;
    if !json.is_object() {
        return Err(wrong("not a JSON object; write { ... }".into()));
    }
    table(config, &json, "DeepSpeed", "", KNOWN)?;
    precision(config, &json)?;
    optimizer(&json)?;
    scheduler(config, &json)?;
    parallelism(config, &json)
}

fn precision(config: &mut Config, json: &Value) -> Result<()> {
    let on = |pointer| match at(json, pointer) {
        None => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(other) => Err(wrong(format!("{pointer}: {other} is neither true nor false"))),
    };
    match (on("/bf16/enabled")?, on("/fp16/enabled")?) {
        (true, true) => {
            return Err(wrong("/bf16/enabled and /fp16/enabled are both true; leave one of them out".into()));
        }
        (true, false) => config.set("dtype", "bf16")?,
        (false, true) => config.set("dtype", "f16")?,
        (false, false) => {}
    }
    if let Some(scale) = at(json, "/fp16/loss_scale").filter(|scale| scale.as_f64() != Some(0.0)) {
        let problem = format!("/fp16/loss_scale: {scale} is a fixed scale, and here it is dynamic; write 0");
        return Err(wrong(problem));
    }
    match at(json, "/communication_data_type") {
        None => Ok(()),
        Some(value) => {
            let name = match plain(value).as_str() {
                "fp32" => "f32".to_owned(),
                "fp16" => "f16".to_owned(),
                "bfp16" => "bf16".to_owned(),
                other => other.to_owned(),
            };
            set(config, "/communication_data_type", "reduce-dtype", &name)
        }
    }
}

fn optimizer(json: &Value) -> Result<()> {
    let kind = at(json, "/optimizer/type").map_or("AdamW".into(), plain);
    if !["AdamW", "Adam"].contains(&kind.as_str()) {
        return Err(wrong(format!("/optimizer/type is {kind}; there is AdamW only")));
    }
    // DeepSpeed's Adam decays as AdamW does unless it is told otherwise.
    match at(json, "/optimizer/params/adam_w_mode") {
        Some(Value::Bool(false)) => Err(wrong(
            "/optimizer/params/adam_w_mode is false; decay is decoupled here, so leave it out, or set weight_decay to 0"
                .into(),
        )),
        _ => Ok(()),
    }
}

fn scheduler(config: &mut Config, json: &Value) -> Result<()> {
    let Some(kind) = at(json, "/scheduler/type") else { return Ok(()) };
    let schedule = match plain(kind).as_str() {
        "WarmupLR" => "constant",
        "WarmupDecayLR" => "linear",
        "WarmupCosineLR" => "cosine",
        other => {
            return Err(wrong(format!(
                "/scheduler/type is {other}; there are WarmupLR, WarmupDecayLR and WarmupCosineLR"
            )));
        }
    };
    config.set("schedule", schedule)?;
    for (pointer, only) in [
        ("/scheduler/params/warmup_min_lr", 0.0),
        ("/scheduler/params/warmup_min_ratio", 0.0),
        ("/scheduler/params/cos_min_ratio", 0.0),
    ] {
        if let Some(value) = at(json, pointer).filter(|value| value.as_f64() != Some(only)) {
            tracing::warn!("{pointer}={value} has no counterpart here: rates begin and end at {only}");
        }
    }
    match at(json, "/scheduler/params/warmup_type") {
        Some(kind) if kind.as_str() != Some("linear") => {
            tracing::warn!("/scheduler/params/warmup_type={kind} has no counterpart here: warm-up is linear");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn parallelism(config: &mut Config, json: &Value) -> Result<()> {
    let tp = ["/tensor_parallel/autotp_size", "/tensor_parallel/tp_size"];
    for (pointer, axis) in
        tp.map(|pointer| (pointer, "tp-size")).into_iter().chain([("/sequence_parallel_size", "cp-size")])
    {
        match at(json, pointer) {
            // 0 and 1 are none.
            Some(size) if size.as_f64().is_some_and(|size| size <= 1.0) => {}
            Some(size) => {
                let size = whole(size);
                if size.parse::<u32>().is_err() {
                    return Err(wrong(format!("{pointer}: {size} is no number of ranks")));
                }
                set(config, pointer, axis, &size)?;
                if !config.mesh.contains("dp_shard") {
                    config.set("dp-shard-size", "-1")?;
                }
            }
            None => {}
        }
    }
    if at(json, "/activation_checkpointing").is_some() {
        config.set("checkpoint-activations", "true")?;
        if at(json, "/activation_checkpointing/partition_activations") == Some(&Value::Bool(true)) {
            config.set("sequence-parallel", "true")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::optim::Decay;

    fn taken(text: &str) -> Config {
        let mut config = Config::default();
        read(&mut config, text).unwrap();
        config
    }

    #[test]
    fn what_has_a_counterpart_is_taken() {
        let config = taken(
            r#"{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto",
            "gradient_clipping": 0.5, "bf16": {"enabled": true}, "fp16": {"enabled": false},
            "zero_optimization": {"stage": 2, "overlap_comm": true, "reduce_bucket_size": 5e8},
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
            "steps_per_print": 10}"#,
        );
        assert_eq!((config.batch, config.micro_batch, config.accumulation), (Some(32), Some(4), None));
        assert_eq!((config.zero, config.dtype, config.clip, config.lr), (2, DType::BF16, 0.5, 3e-4));
        assert_eq!((config.adamw.betas, config.adamw.weight_decay), ((0.9, 0.95), 0.1));
        assert_eq!(config.bucket_bytes, 500_000_000);
    }

    #[test]
    fn schedules_parallelism_and_precision() {
        let config = taken(
            r#"{"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 5, "total_num_steps": 50,
            "warmup_max_lr": 2e-3, "warmup_min_lr": 0}}, "tensor_parallel": {"autotp_size": 2},
            "sequence_parallel_size": 2, "communication_data_type": "bfp16",
            "activation_checkpointing": {"partition_activations": true}}"#,
        );
        assert_eq!((config.schedule, config.warmup, config.steps, config.lr), (Decay::Linear, 5, 50, 2e-3));
        assert_eq!(crate::Mesh::parse(&config.mesh, 8).unwrap().to_string(), "dp_shard=2,cp=2,tp=2");
        assert_eq!(config.reduce_dtype, DType::BF16);
        assert!(config.checkpoint_activations && config.sequence_parallel);
        let cosine =
            taken(r#"{"scheduler": {"type": "WarmupCosineLR", "params": {}}, "fp16": {"enabled": true}}"#);
        assert_eq!((cosine.schedule, cosine.dtype), (Decay::Cosine, DType::F16));
        assert_eq!(taken(r#"{"tensor_parallel": {"autotp_size": 0}}"#), Config::default());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let said = |text: &str| read(&mut Config::default(), text).unwrap_err().to_string();
        assert!(said("{").starts_with("not JSON"));
        assert!(said("[]").contains("object"));
        assert!(said(r#"{"zero_optimization": {"stage": 7}}"#).contains("/zero_optimization/stage: zero=7"));
        assert!(said(r#"{"optimizer": {"type": "Lamb"}}"#).contains("Lamb"));
        assert!(said(r#"{"scheduler": {"type": "OneCycle"}}"#).contains("WarmupCosineLR"));
        assert!(said(r#"{"fp16": {"enabled": true}, "bf16": {"enabled": true}}"#).contains("both true"));
        let offload = r#"{"zero_optimization": {"offload_param": {"device": "cpu"}}}"#;
        assert!(said(offload).starts_with("/zero_optimization/offload_param has no counterpart"));
        taken(r#"{"zero_optimization": {"offload_param": {"device": "none"}}}"#);
        assert!(said(r#"{"train_batchsize": 3}"#).contains("did you mean train_batch_size?"));
        assert!(said(r#"{"zero_optimization": {"stages": 3}}"#).contains("did you mean stage?"));
        assert!(said(r#"{"bf16": true}"#).contains("/bf16: true is no table"));
        assert!(said(r#"{"fp16": {"loss_scale": 128}}"#).contains("dynamic"));
    }
}
