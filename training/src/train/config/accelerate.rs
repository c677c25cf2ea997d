//! What `accelerate config` writes.

use serde_json::Value;

use super::Config;
use super::foreign::Means::{self, Here, Key, Nothing, Refused, Silent, Table, Whole};
use super::foreign::{HOST, at, plain, set, table, whole, wrong};
use crate::error::Result;

const LAUNCHER: &str = "start ranks on several machines with a launcher, such as nd-run --nnodes";

/// The keys (<https://huggingface.co/docs/accelerate/package_reference/cli>, `FullyShardedDataParallelPlugin`,
/// `ParallelismConfig`).
const KNOWN: &[(&str, Means)] = &[
    ("compute_environment", Silent),
    ("debug", Silent),
    ("distributed_type", Here),
    ("downcast_bf16", Silent),
    ("enable_cpu_affinity", Silent),
    ("machine_rank", Silent),
    ("main_process_ip", Silent),
    ("main_process_port", Silent),
    ("main_training_function", Silent),
    ("rdzv_backend", Silent),
    ("same_network", Silent),
    ("num_machines", Here),
    ("num_processes", Here),
    ("gpu_ids", Silent),
    ("use_cpu", Silent),
    ("tpu_env", Silent),
    ("tpu_use_cluster", Silent),
    ("tpu_use_sudo", Silent),
    ("dynamo_config", Nothing),
    ("mixed_precision", Here),
    ("gradient_accumulation_steps", Whole("accumulation")),
    ("gradient_clipping", Key("clip")),
    (
        "deepspeed_config",
        Table(&[
            ("deepspeed_config_file", Refused("name it with --deepspeed")),
            ("zero_stage", Whole("zero")),
            ("gradient_accumulation_steps", Whole("accumulation")),
            ("gradient_clipping", Key("clip")),
            ("offload_optimizer_device", Refused(HOST)),
            ("offload_param_device", Refused(HOST)),
            ("zero3_init_flag", Silent),
            ("zero3_save_16bit_model", Nothing),
            ("deepspeed_multinode_launcher", Silent),
        ]),
    ),
    (
        "fsdp_config",
        Table(&[
            ("fsdp_version", Silent),
            ("fsdp_reshard_after_forward", Here),
            ("fsdp_sharding_strategy", Here),
            ("fsdp_activation_checkpointing", Key("checkpoint-activations")),
            ("fsdp_offload_params", Refused(HOST)),
            ("fsdp_auto_wrap_policy", Silent),
            ("fsdp_transformer_layer_cls_to_wrap", Silent),
            ("fsdp_min_num_params", Nothing),
            ("fsdp_backward_prefetch", Silent),
            ("fsdp_backward_prefetch_policy", Silent),
            ("fsdp_forward_prefetch", Silent),
            ("fsdp_cpu_ram_efficient_loading", Silent),
            ("fsdp_sync_module_states", Silent),
            ("fsdp_use_orig_params", Silent),
            ("fsdp_state_dict_type", Silent),
        ]),
    ),
    (
        "parallelism_config",
        Table(&[
            ("parallelism_config_dp_replicate_size", Here),
            ("parallelism_config_dp_shard_size", Here),
            ("parallelism_config_cp_size", Here),
            ("parallelism_config_tp_size", Here),
            ("parallelism_config_sp_size", Here),
            ("parallelism_config_cp_backend", Silent),
            ("parallelism_config_cp_comm_strategy", Here),
            ("parallelism_config_sp_backend", Silent),
        ]),
    ),
];

/// Axes of its mesh.
const AXES: [&str; 4] = ["dp_replicate", "dp_shard", "cp", "tp"];

/// Whether a text is of this kind: it has a key that no other program's has.
pub fn is_its(yaml: &Value) -> bool {
    let own =
        ["/compute_environment", "/distributed_type", "/parallelism_config", "/fsdp_config/fsdp_version"];
    own.iter().any(|pointer| yaml.pointer(pointer).is_some())
}

/// Takes the settings that have a counterpart here, as [`table`] does.
pub fn read(config: &mut Config, yaml: &Value) -> Result<()> {
    table(config, yaml, "Accelerate", "", KNOWN)?;
    kind(config, yaml)?;
    processes(config, yaml)?;
    precision(config, yaml)?;
    fsdp(config, yaml)?;
    mesh(config, yaml)
}

fn kind(config: &mut Config, yaml: &Value) -> Result<()> {
    let Some(kind) = at(yaml, "/distributed_type") else { return Ok(()) };
    let kind = plain(kind);
    match kind.as_str() {
        "NO" | "no" | "false" | "DEEPSPEED" => Ok(()),
        "FSDP" => set(config, "/distributed_type", "zero", "3"),
        // Its axes say more.
        _ if kind.starts_with("MULTI_") && at(yaml, "/parallelism_config").is_some() => Ok(()),
        _ if kind.starts_with("MULTI_") => set(config, "/distributed_type", "zero", "0"),
        _ => Err(wrong(format!(
            "/distributed_type is {kind}; there are NO, MULTI_CPU, MULTI_GPU, FSDP and DEEPSPEED"
        ))),
    }
}

fn processes(config: &mut Config, yaml: &Value) -> Result<()> {
    let machines = at(yaml, "/num_machines").map_or("1".into(), plain);
    match (at(yaml, "/num_processes"), machines.as_str()) {
        (Some(processes), "1") => set(config, "/num_processes", "ranks", &plain(processes)),
        (_, "1") => Ok(()),
        _ => {
            tracing::warn!("/num_machines={machines} has no effect here: {LAUNCHER}");
            Ok(())
        }
    }
}

fn precision(config: &mut Config, yaml: &Value) -> Result<()> {
    let Some(value) = at(yaml, "/mixed_precision") else { return Ok(()) };
    let dtype = match plain(value).as_str() {
        "no" | "false" => "f32".to_owned(),
        "fp16" => "f16".to_owned(),
        other => other.to_owned(),
    };
    set(config, "/mixed_precision", "dtype", &dtype)
}

fn fsdp(config: &mut Config, yaml: &Value) -> Result<()> {
    for pointer in ["/fsdp_config/fsdp_reshard_after_forward", "/fsdp_config/fsdp_sharding_strategy"] {
        let Some(value) = at(yaml, pointer) else { continue };
        // The words of the first version, and their numbers.
        let settings: &[(&str, &str)] = match plain(value).as_str() {
            "FULL_SHARD" | "1" | "true" => &[("reshard", "always")],
            "SHARD_GRAD_OP" | "2" | "false" => &[("reshard", "never")],
            "NO_SHARD" | "3" => &[("zero", "0")],
            other => {
                return Err(wrong(format!(
                    "{pointer} is {other}; there are FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, true and false, and HYBRID_SHARD is \
                     parallelism_config with dp_replicate and dp_shard"
                )));
            }
        };
        settings.iter().try_for_each(|(name, value)| set(config, pointer, name, value))?;
    }
    Ok(())
}

fn mesh(config: &mut Config, yaml: &Value) -> Result<()> {
    let of = |name: &str| format!("/parallelism_config/parallelism_config_{name}");
    let mut axes = Vec::new();
    for axis in AXES {
        let pointer = of(&format!("{axis}_size"));
        let size = at(yaml, &pointer).map_or("1".into(), whole);
        if size.parse::<u32>().is_err() {
            return Err(wrong(format!("{pointer}: {size} is no number of ranks")));
        }
        if size != "1" {
            axes.push(format!("{axis}={size}"));
        }
    }
    if !axes.is_empty() {
        set(config, "/parallelism_config", "mesh", &axes.join(","))?;
    }
    if let Some(size) = at(yaml, &of("sp_size")).filter(|size| plain(size) != "1") {
        let size = plain(size);
        return Err(wrong(format!(
            "{}={size} has no counterpart here: sequences are divided over cp; write parallelism_config_cp_size: {size}",
            of("sp_size")
        )));
    }
    let pointer = of("cp_comm_strategy");
    match at(yaml, &pointer).map(plain).as_deref() {
        None => Ok(()),
        // Blocks of keys and values go round.
        Some("alltoall") => set(config, &pointer, "cp-form", "ring"),
        Some(other) => set(config, &pointer, "cp-form", other),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::super::yaml::tests::{said, taken};
    use crate::context_parallel::Form;
    use crate::shard::Reshard;

    /// As the program writes them when it is asked for FSDP 2, and with axes besides.
    #[test]
    fn its_files_are_understood() {
        let text = "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: FSDP\ndowncast_bf16: 'no'\n\
             fsdp_config:\n  fsdp_activation_checkpointing: true\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  \
             fsdp_offload_params: false\n  fsdp_reshard_after_forward: false\n  fsdp_version: 2\n\
             machine_rank: 0\nmain_training_function: main\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n\
             use_cpu: false\n";
        let config = taken(text);
        assert_eq!((config.zero, config.reshard, config.ranks), (3, Reshard::Never, Some(8)));
        assert!(config.checkpoint_activations && config.dtype == DType::BF16);
        let axes = "parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 2\n  \
             parallelism_config_tp_size: 1\n  parallelism_config_cp_size: 2\n  parallelism_config_cp_comm_strategy: alltoall\n";
        let config = taken(&format!("{text}{axes}"));
        assert_eq!(
            crate::Mesh::parse(&config.mesh, 8).unwrap().to_string(),
            "dp_replicate=2,dp_shard=2,cp=2"
        );
        assert_eq!(config.cp_form, Form::Ring);
        assert_eq!(taken(&axes.replace("alltoall", "allgather")).cp_form, Form::AllGather);
        let ddp =
            taken("distributed_type: MULTI_GPU\nmixed_precision: 'no'\nnum_machines: 2\nnum_processes: 4\n");
        assert_eq!((ddp.zero, ddp.dtype, ddp.ranks), (0, DType::F32, None));
        let deepspeed = taken(
            "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: none\n  \
             gradient_accumulation_steps: 4\nmixed_precision: fp16\n",
        );
        assert_eq!((deepspeed.zero, deepspeed.accumulation, deepspeed.dtype), (2, Some(4), DType::F16));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(said("distributed_type: MEGATRON_LM").contains("/distributed_type is MEGATRON_LM"));
        assert!(
            said("distributed_type: FSDP\nmixed_precisions: bf16").contains("did you mean mixed_precision?")
        );
        assert!(said("distributed_type: FSDP\nmixed_precision: fp8").contains("f32, bf16, f16"));
        let fsdp = |line: &str| said(&format!("fsdp_config:\n  fsdp_version: 2\n  {line}"));
        assert!(
            fsdp("fsdp_offload_params: true")
                .contains("has no counterpart here: all state is in host memory")
        );
        assert!(fsdp("fsdp_sharding_strategy: HYBRID_SHARD").contains("dp_replicate and dp_shard"));
        let axes = |line: &str| said(&format!("parallelism_config:\n  parallelism_config_{line}"));
        assert!(axes("sp_size: 2").contains("write parallelism_config_cp_size: 2"));
        assert!(axes("tp_size: two").contains("two is no number of ranks"));
        assert!(axes("pp_size: 2").contains("no key of Accelerate's"));
        let file = "deepspeed_config:\n  deepspeed_config_file: ds.json\ndistributed_type: DEEPSPEED";
        assert!(said(file).contains("name it with --deepspeed"));
    }
}
