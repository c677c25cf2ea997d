#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_comm::config::{Config, Environment};
use nd_comm::launch::Launch;

/// Variables whose values have a form of their own.
const NAMES: [&str; 16] = [
    "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST",
    "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT", "RANK",
    "WORLD_SIZE", "ND_ALGO", "ND_PORT_RANGE", "ND_TIMEOUT",
];

// A line for each variable.
fuzz_target!(|text: &str| {
    let environment: Environment = NAMES.into_iter().zip(text.lines()).collect();
    let _ = Launch::from_environment(&environment);
    let _ = Config::from_environment(&environment);
});
