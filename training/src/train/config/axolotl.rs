//! Lines with our keys and with those of Axolotl's files.

use serde_json::{Map, Value};

use super::Config;
use super::foreign::Means::{self, Here, Key, Nothing, Refused, Silent, Table};
use super::foreign::{HOST, at, plain, set, table, wrong};
use crate::error::Result;

const WHOLE: &str = "all weights are trained as they are; --freeze leaves some as they were";
const IN_STEPS: &str = "it is said in steps here";

/// Its keys that are none of ours, and have no name in [`Config::set`] (<https://docs.axolotl.ai/docs/config-reference.html>).
const KNOWN: &[(&str, Means)] = &[
    ("base_model", Key("init")),
    ("model_type", Silent),
    ("tokenizer_type", Silent),
    ("datasets", Here),
    ("dataset_prepared_path", Key("data-cache")),
    ("output_dir", Key("save")),
    ("num_epochs", Here),
    ("optimizer", Here),
    ("adam_beta1", Here),
    ("adam_beta2", Here),
    ("adam_epsilon", Key("eps")),
    ("eval_steps", Key("eval-every")),
    ("bf16", Here),
    ("fp16", Here),
    ("tf32", Silent),
    ("load_in_8bit", Refused(WHOLE)),
    ("load_in_4bit", Refused(WHOLE)),
    ("adapter", Refused(WHOLE)),
    ("deepspeed", Here),
    (
        "fsdp_config",
        Table(&[
            ("offload_params", Refused(HOST)),
            ("reshard_after_forward", Key("reshard")),
            ("activation_checkpointing", Key("checkpoint-activations")),
            ("state_dict_type", Silent),
            ("auto_wrap_policy", Silent),
            ("transformer_layer_cls_to_wrap", Silent),
            ("cpu_ram_efficient_loading", Silent),
        ]),
    ),
    ("fsdp_version", Silent),
    ("sample_packing", Silent),
    ("pad_to_sequence_len", Silent),
    ("flash_attention", Silent),
    ("sdp_attention", Silent),
    ("strict", Silent),
    ("logging_steps", Nothing),
    ("val_set_size", Nothing),
    ("evals_per_epoch", Refused(IN_STEPS)),
    ("saves_per_epoch", Refused(IN_STEPS)),
    ("special_tokens", Nothing),
    ("wandb_project", Nothing),
    ("wandb_entity", Nothing),
    ("wandb_watch", Nothing),
    ("wandb_name", Nothing),
    ("wandb_log_model", Nothing),
];

/// Takes the settings.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) with the key, and what is wrong.
pub fn read(config: &mut Config, yaml: &Value) -> Result<()> {
    let is_its = |key: &str| KNOWN.iter().any(|(name, _)| *name == key);
    let keys = yaml.as_object().into_iter().flatten();
    let (theirs, ours): (Map<String, Value>, Vec<_>) = {
        let (theirs, ours): (Vec<_>, Vec<_>) = keys.partition(|(key, _)| is_its(key));
        (theirs.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect(), ours)
    };
    let theirs = Value::Object(theirs);
    // DeepSpeed's file is the weakest: what stands beside it says more.
    if let Some(file) = at(&theirs, "/deepspeed") {
        config.read_deepspeed(plain(file).as_ref())?;
    }
    table(config, &theirs, "Axolotl", "", KNOWN)?;
    for (key, value) in ours {
        match value {
            Value::Null => {}
            Value::Object(axes) if key == "mesh" => {
                let axes: Vec<String> =
                    axes.iter().map(|(axis, size)| format!("{axis}={}", plain(size))).collect();
                config.set(key, &axes.join(","))?;
            }
            Value::Object(_) => {
                return Err(wrong(format!(
                    "{key}: a table is no plain value; write a string, a number, true or false"
                )));
            }
            value => config.set(key, &plain(value))?,
        }
    }
    datasets(config, &theirs)?;
    epochs(yaml)?;
    optimizer(config, &theirs)?;
    precision(config, &theirs)
}

/// One text.
fn datasets(config: &mut Config, yaml: &Value) -> Result<()> {
    let Some(sets) = at(yaml, "/datasets") else { return Ok(()) };
    let [set_] = sets.as_array().map_or(&[][..], Vec::as_slice) else {
        return Err(wrong(format!(
            "/datasets: {sets} is not one text; write one path, of a file, or of a folder with all of them"
        )));
    };
    let Some(path) = at(set_, "/path") else {
        return Err(wrong("/datasets/0: it has no path; write - path: FILE".into()));
    };
    set(config, "/datasets/0/path", "data", &plain(path))?;
    for (key, value) in set_.as_object().into_iter().flatten() {
        match (key.as_str(), value.as_str()) {
            ("path" | "ds_type" | "split", _) => {}
            ("type", Some("completion") | None) => {}
            ("field", _) => set(config, "/datasets/0/field", "data-field", &plain(value))?,
            _ => {
                return Err(wrong(format!(
                    "/datasets/0/{key}: {value} has no counterpart here: a text is learnt as it is (type: completion); take it out"
                )));
            }
        }
    }
    Ok(())
}

fn epochs(yaml: &Value) -> Result<()> {
    let steps = ["/max_steps", "/max-steps", "/steps"].iter().any(|pointer| at(yaml, pointer).is_some());
    match at(yaml, "/num_epochs") {
        Some(epochs) if !steps => {
            Err(wrong(format!("/num_epochs: {epochs} has no counterpart here: {IN_STEPS}; write max_steps")))
        }
        _ => Ok(()),
    }
}

fn optimizer(config: &mut Config, yaml: &Value) -> Result<()> {
    if let Some(kind) = at(yaml, "/optimizer").map(plain)
        && !["adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw"].contains(&kind.as_str())
    {
        return Err(wrong(format!("/optimizer is {kind}; there is AdamW only: write adamw_torch")));
    }
    let (first, second) = config.adamw.betas;
    let beta = |pointer, other: f64| at(yaml, pointer).map_or_else(|| other.to_string(), plain);
    let betas = format!("{},{}", beta("/adam_beta1", first), beta("/adam_beta2", second));
    set(config, "/adam_beta1, /adam_beta2", "betas", &betas)
}

fn precision(config: &mut Config, yaml: &Value) -> Result<()> {
    let on = |pointer| match at(yaml, pointer) {
        None | Some(Value::Bool(false)) => Ok(false),
        Some(Value::Bool(true)) => Ok(true),
        Some(value) if value == "full" => Err(wrong(format!(
            "{pointer}: full has no counterpart here: masters and optimizer are f32; write true"
        ))),
        Some(other) => Err(wrong(format!("{pointer}: {other} is neither true nor false"))),
    };
    match (on("/bf16")?, on("/fp16")?) {
        (true, true) => Err(wrong("/bf16 and /fp16 are both true; leave one of them out".into())),
        (true, false) => set(config, "/bf16", "dtype", "bf16"),
        (false, true) => set(config, "/fp16", "dtype", "f16"),
        (false, false) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::super::yaml::tests::{said, taken};
    use crate::optim::Decay;
    use crate::shard::Reshard;

    #[test]
    fn its_files_are_understood() {
        let config = taken(
            "base_model: smollm2\ndatasets:\n  - path: book.jsonl\n    type: completion\n    field: body\n\
             dataset_prepared_path: cache\nsequence_len: 64\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n\
             num_epochs: 1\nmax_steps: 50\noptimizer: adamw_torch_fused\nlr_scheduler: cosine\nlearning_rate: 2e-5\n\
             adam_beta2: 0.95\nweight_decay: 0.1\nbf16: true\nfp16:\ntf32: false\ngradient_checkpointing: true\n\
             warmup_steps: 10\nsave_steps: 20\nsave_total_limit: 2\ndp_shard_size: 2\ntensor_parallel_size: 2\n\
             flash_attention: true\noutput_dir: out\nfsdp_version: 2\nfsdp_config:\n  offload_params: false\n  \
             reshard_after_forward: true\n",
        );
        assert_eq!((config.init, config.data), (Some("smollm2".into()), Some("book.jsonl".into())));
        assert_eq!((config.documents.field.as_str(), config.save), ("body", Some("out".into())));
        assert_eq!((config.seq_len, config.micro_batch, config.accumulation), (64, Some(2), Some(4)));
        assert_eq!((config.steps, config.schedule, config.lr, config.warmup), (50, Decay::Cosine, 2e-5, 10));
        assert_eq!((config.adamw.betas, config.adamw.weight_decay), ((0.9, 0.95), 0.1));
        assert_eq!((config.dtype, config.reshard), (DType::BF16, Reshard::Always));
        assert_eq!((config.checkpoint_every, config.keep, config.checkpoint_activations), (20, 2, true));
        assert_eq!(crate::Mesh::parse(&config.mesh, 4).unwrap().to_string(), "dp_shard=2,tp=2");
        // And ours.
        let own =
            taken("seq-len: 32\nmesh: {tp: 2}\nbetas: [0.8, 0.9]\nprefetch: false\nlr: 1e-3\ndtype: bf16\n");
        assert_eq!((own.seq_len, own.mesh.as_str(), own.adamw.betas), (32, "tp=2", (0.8, 0.9)));
        assert!(!own.prefetch && own.dtype == DType::BF16 && own.lr == 1e-3);
    }

    #[test]
    fn deepspeeds_file_is_read_and_gives_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("zero2.json");
        std::fs::write(&path, r#"{"zero_optimization": {"stage": 2}, "gradient_clipping": 0.5}"#).unwrap();
        let config = taken(&format!("max_grad_norm: 0.25\ndeepspeed: {}\n", path.display()));
        assert_eq!((config.zero, config.clip), (2, 0.25));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(said("step: 3").contains("did you mean steps?"));
        assert!(said("num_epochs: 3").ends_with("it is said in steps here; write max_steps"));
        assert!(said("adapter: qlora").contains("--freeze"));
        assert!(said("load_in_4bit: true").contains("--freeze"));
        assert!(said("optimizer: lion_pytorch").contains("adamw_torch"));
        assert!(said("bf16: true\nfp16: true").contains("both true"));
        assert!(said("bf16: full").contains("write true"));
        assert!(said("datasets: book.txt").contains("is not one text"));
        assert!(said("datasets:\n- {path: a}\n- {path: b}").contains("is not one text"));
        assert!(said("datasets:\n- {type: completion}").contains("it has no path"));
        assert!(said("datasets:\n- {path: a, type: alpaca}").contains("type: completion"));
        assert!(said("lr: {a: 1}").contains("no plain value"));
        assert!(said("learning_rate: fast").contains("is no number"));
        assert!(said("deepspeed: none.json").contains("none.json: cannot be read"));
        assert!(said("fsdp_config: {offload_param: true}").contains("did you mean offload_params?"));
    }
}
