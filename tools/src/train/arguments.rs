//! The command line, from the table of settings.

use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command};
use nd_training::train::{Config, KEYS, Key, SHARDED_DDP};

use super::checkpoints::Task;
use super::error::Error;
use super::{files, plot};
use crate::say;

const EXAMPLES: &str = "\
Examples:
  nd-train
      a small Llama on a text of its own, 2 ranks; writes nd-train.jsonl and nd-train.png
  nd-train --data book.txt --mesh dp_shard=2,tp=2 --steps 300 --plot loss.png
      four ranks: weights sharded over two, matrices divided over two
  nd-train --init smollm2.gguf --data book.txt --dtype bf16 --checkpoint-activations --save mine
      a published model with its tokenizer; the folder that is written is one that --init takes
  nd-train --config train.toml lr=3e-4 mesh=dp_replicate=2,dp_shard=4
      settings from a file, two of them replaced
  nd-train --data book.txt --deepspeed ds_config.json
      batch, precision, optimizer and stage as DeepSpeed has them; --sharded-ddp is FairScale's word for two of the stages
  nd-train --config train.toml --checkpoint state --checkpoint-every 500 --resume auto
      the state of training every 500 steps; whatever ends it, the same command goes on from the last, on any mesh
  nd-train verify state
  nd-train export state --to mine --dtype bf16
      whether all that was written is whole, and the model of the last as a folder for --init
  nd-run -n 4 --nnodes 2 --node-rank 0 --rdzv node0:29500 -- nd-train --config train.toml
      under a launcher (ours, torchrun, mpirun, srun) it starts nothing and takes its rank

A configuration file is TOML with one line for each flag, such as seq-len = 256; a name that ends in .json is taken for
DeepSpeed's, one in .yaml or .yml for Accelerate's or Axolotl's. Stronger ones win: flags, KEY=VALUE, the file of
--deepspeed, that of --config, what is in brackets here.

Exit code: 0 after the last step, 1 if a rank failed, a loss was no number, a checkpoint could not be written or, of verify,
is not whole, 2 for settings that cannot be.";

/// What nd-train does when it is told nothing.
const ALONE: &str = "\
steps = 300
lr = 3e-3
schedule = \"cosine\"
order = \"shuffled\"
eval-data = \"made\"
metrics = \"nd-train.jsonl\"
plot = \"nd-train.png\"
";

/// And the part of its steps that warm up, and how often it looks at the other text; both give way to what is said.
const WARMUP: u64 = 15;
const EVAL_EVERY: u64 = 50;
/// Not said yet.
const OPEN: u64 = u64::MAX;

/// The flags for files of settings, the one that prints, and the name of what stands alone.
const FILE: &str = "config";
const DEEPSPEED: &str = "deepspeed";
const PRINT: &str = "print-config";
const PAIRS: &str = "pairs";
/// What else the program does, with its arguments.
const VERIFY: &str = "verify";
const EXPORT: &str = "export";
const FROM: &str = "from";
const TO: &str = "to";
const DTYPE: &str = "dtype";

/// What to do.
pub enum Asked {
    /// Train.
    Train(Box<Config>),
    /// Something with checkpoints.
    Checkpoints(Task),
}

/// From the command line. What is wrong, or help, has been printed when there is nothing to run.
pub fn read() -> Result<Asked, ExitCode> {
    let matches = command().try_get_matches().map_err(|e| {
        let _ = e.print();
        ExitCode::from(e.exit_code() as u8)
    })?;
    let told = |e: Error| {
        say::error(&e);
        ExitCode::from(e.code())
    };
    if let Some(task) = task(&matches).map_err(told)? {
        return Ok(Asked::Checkpoints(task));
    }
    let config = taken(&matches).map_err(told)?;
    if matches.get_flag(PRINT) {
        print!("{}", config.to_toml());
        return Err(ExitCode::SUCCESS);
    }
    Ok(Asked::Train(Box::new(config)))
}

fn command() -> Command {
    let default = Config::default();
    let flag = |key: &'static Key| {
        let shown = match (key.get)(&default) {
            value if value.is_empty() => key.about.to_owned(),
            value => format!("{} [{value}]", key.about),
        };
        let flag =
            Arg::new(key.name).long(key.name).value_name(key.value).help(shown).help_heading(key.heading);
        match key.value {
            "BOOL" => flag.num_args(0..=1).default_missing_value("true"),
            _ => flag.num_args(1).allow_hyphen_values(true),
        }
    };
    let file = Arg::new(FILE).long(FILE).value_name("FILE").help("Take settings from this file");
    let deepspeed = Arg::new(DEEPSPEED)
        .long(DEEPSPEED)
        .value_name("FILE")
        .help("Take settings from this file of DeepSpeed's (JSON)");
    let sharded = Arg::new(SHARDED_DDP)
        .long(SHARDED_DDP)
        .value_name("simple|zero_dp_2|zero_dp_3")
        .num_args(0..=1)
        .default_missing_value("simple")
        .help("FairScale's words: the first two are --zero 2, the third is --zero 3");
    let print =
        Arg::new(PRINT).long(PRINT).action(ArgAction::SetTrue).help("Print all settings as TOML, and end");
    let pairs =
        Arg::new(PAIRS).value_name("KEY=VALUE").num_args(0..).help("Settings, by the names of the flags");
    let path =
        |name: &'static str, about: &'static str| Arg::new(name).value_name("DIR").required(true).help(about);
    let verify = Command::new(VERIFY)
        .about(
            "Looks at every byte of a checkpoint, or of all in a folder; exit code 0 only if all are whole",
        )
        .arg(path(FROM, "A checkpoint, or a folder of checkpoints"));
    let export = Command::new(EXPORT)
        .about("Writes the model of a checkpoint as Hugging Face lays it out, with its tokenizer")
        .arg(path(FROM, "A checkpoint, or a folder of checkpoints, of which the last whole one is taken"))
        .arg(path(TO, "The folder to write; --init takes it").long(TO))
        .arg(
            Arg::new(DTYPE)
                .long(DTYPE)
                .value_name("f32|bf16|f16")
                .default_value("f32")
                .help("Write it in this"),
        );
    Command::new("nd-train")
        .subcommands([verify, export])
        .disable_help_subcommand(true)
        .version(env!("CARGO_PKG_VERSION"))
        .about("Trains a Llama on a text with FSDP, HSDP, tensor and context parallelism, alone or together.")
        .after_help(EXAMPLES)
        .max_term_width(110)
        .args_override_self(true)
        .arg(pairs)
        .args([file, deepspeed, sharded, print])
        .args(KEYS.iter().map(flag))
}

/// What is asked besides training.
fn task(matches: &ArgMatches) -> Result<Option<Task>, Error> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(None) };
    let text = |name: &str| matches.get_one::<String>(name).map_or("", String::as_str);
    let from = text(FROM).into();
    if name == VERIFY {
        return Ok(Some(Task::Verify(from)));
    }
    let mut config = Config::default();
    config.set("save-dtype", text(DTYPE)).map_err(|e| Error::Usage(format!("--{DTYPE}: {e}")))?;
    Ok(Some(Task::Export { from, to: text(TO).into(), config: Box::new(config) }))
}

fn taken(matches: &ArgMatches) -> Result<Config, Error> {
    let mut config = Config::default();
    let [file, deepspeed] = [FILE, DEEPSPEED].map(|name| matches.get_one::<String>(name).map(Path::new));
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let mut pairs: Vec<&str> =
        matches.get_many::<String>(PAIRS).into_iter().flatten().map(String::as_str).collect();
    let mut flags = Vec::new();
    let keys = KEYS.iter().map(|key| (key.name, (key.value == "BOOL").then_some("true")));
    // Before --zero, which says it more plainly.
    for (name, when_alone) in std::iter::once((SHARDED_DDP, Some("simple"))).chain(keys) {
        match (text(name), when_alone) {
            // `--prefetch lr=1`: the flag stands alone.
            (Some(pair), Some(value)) if pair.contains('=') => {
                flags.push((name, value));
                pairs.push(pair);
            }
            (Some(value), _) => flags.push((name, value)),
            (None, _) => {}
        }
    }
    let named = |name: &str| flags.iter().any(|(flag, _)| *flag == name);
    let alone = file.is_none() && deepspeed.is_none() && !named("data") && !named("init");
    if alone {
        config.read_toml(ALONE)?;
        (config.warmup, config.eval_every) = (OPEN, OPEN);
    }
    if let Some(file) = file {
        config.read_file(file)?;
    }
    if let Some(file) = deepspeed {
        config.read_deepspeed(file)?;
    }
    for pair in pairs {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(Error::Usage(format!(
                "{pair} is not KEY=VALUE; write such as lr=3e-4, or --lr 3e-4"
            )));
        };
        config.set(name, value)?;
    }
    for (name, value) in flags {
        config.set(name, value).map_err(|e| Error::Usage(format!("--{e}")))?;
    }
    if config.warmup == OPEN && alone {
        config.warmup = config.steps / WARMUP;
    }
    if config.eval_every == OPEN && alone {
        config.eval_every = config.eval_data.as_ref().map_or(0, |_| EVAL_EVERY);
    }
    if let Some(path) = &config.plot {
        plot::format(path)?;
    }
    config.check()?;
    files::apart(&config, [file, deepspeed])?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(arguments: &str) -> Result<Config, Error> {
        let words = std::iter::once("nd-train").chain(arguments.split_whitespace());
        taken(&command().try_get_matches_from(words).unwrap())
    }

    #[test]
    fn the_command_is_well_formed_and_told_nothing_does_something() {
        command().debug_assert();
        let alone = config("").unwrap();
        assert_eq!((alone.ranks, alone.mesh.as_str(), alone.steps), (None, "dp_shard=-1", 300));
        assert_eq!((alone.warmup, alone.eval_every), (20, 50));
        assert_eq!(config("--steps 1").unwrap().warmup, 0);
        assert_eq!(config("--steps 30 warmup=5").unwrap().warmup, 5);
        assert_eq!(config("--steps 30 warmup_steps=5").unwrap().warmup, 5);
        let without = config("eval-data=").unwrap();
        assert_eq!((without.eval_data, without.eval_every), (None, 0));
        assert_eq!(config("--data x").unwrap().steps, Config::default().steps);
        assert!(config("--data x").unwrap().metrics.is_none());
    }

    /// What nobody has said gives way to what is said, in whatever combination.
    #[test]
    fn defaults_are_no_orders() {
        for (arguments, ranks) in [
            ("", 2),
            ("--ranks 4", 4),
            ("--ranks 1", 1),
            ("--ranks 3", 3),
            ("--mesh tp=2", 2),
            ("--mesh dp_shard=2,tp=2", 4),
            ("--mesh dp_shard=-1,tp=2 --ranks 4", 4),
            ("--batch 6", 2),
            ("--batch 12 --ranks 3 --accumulation 2", 3),
            ("eval_data=", 2),
        ] {
            let config = config(arguments).unwrap();
            assert_eq!(super::super::start::ranks(&config).unwrap(), ranks, "{arguments}");
            nd_training::train::Trainer::check(&config, ranks, ranks).unwrap();
        }
    }

    #[test]
    fn flags_win_over_pairs_and_pairs_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.toml");
        std::fs::write(&path, "lr = 1e-1\nsteps = 7\nseed = 3\n").unwrap();
        let read = config(&format!("--config {} steps=8 lr=0.2 --lr 0.3", path.display())).unwrap();
        assert_eq!((read.lr, read.steps, read.seed, read.ranks), (0.3, 8, 3, None));
    }

    #[test]
    fn the_switches_that_people_know() {
        let folder = tempfile::tempdir().unwrap();
        let (toml, json) = (folder.path().join("train.toml"), folder.path().join("ds"));
        std::fs::write(&toml, "lr = 1e-1\nsteps = 7\n").unwrap();
        std::fs::write(&json, r#"{"gradient_clipping": 0.5, "zero_optimization": {"stage": 1}}"#).unwrap();
        let both = format!("--config {} --deepspeed {}", toml.display(), json.display());
        let read = config(&both).unwrap();
        assert_eq!((read.lr, read.steps, read.clip, read.zero), (0.1, 7, 0.5, 1));
        assert_eq!(config(&format!("{both} --sharded-ddp clip=2")).unwrap().zero, 2);
        assert_eq!(config("--data x --sharded-ddp zero_dp_3").unwrap().zero, 3);
        assert_eq!(config("--data x --sharded-ddp zero_dp_3 --zero 1").unwrap().zero, 1);
        let error = config(&format!("--deepspeed {} --metrics {}", json.display(), json.display()));
        assert!(error.unwrap_err().to_string().contains("would write over"));
    }

    #[test]
    fn flags_without_a_value_are_true() {
        let read =
            config("--data x --checkpoint-activations --prefetch false --sequence-parallel lr=2 seed=4")
                .unwrap();
        assert!(read.checkpoint_activations && !read.prefetch && read.sequence_parallel);
        assert_eq!((read.lr, read.seed), (2.0, 4));
        assert_eq!(config("--data x --mesh dp_shard=-1,tp=2").unwrap().mesh, "dp_shard=-1,tp=2");
    }

    #[test]
    fn mistakes_name_the_flag() {
        let said = |arguments: &str| config(arguments).unwrap_err().to_string();
        assert!(said("--lr fast").starts_with("--lr=fast: is no number"));
        assert!(said("lr=fast").starts_with("lr=fast: is no number"));
        assert!(said("fast").contains("KEY=VALUE"));
        assert!(said("--plot loss.pdf").contains(".png"));
        assert!(said("step=3").contains("did you mean steps"));
    }
}
