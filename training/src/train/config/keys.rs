//! The table of keys.

use super::Config;
use super::values::{self, Show};

/// One key: a flag of `nd-train` with two dashes in front, and a key of its TOML file.
pub struct Key {
    /// Its name, in words joined by dashes.
    pub name: &'static str,
    /// What a value looks like.
    pub value: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// Under which heading it is listed.
    pub heading: &'static str,
    pub(super) set: fn(&mut Config, &str) -> Result<(), String>,
    /// Its value, as it would be written; empty for none.
    pub get: fn(&Config) -> String,
}

macro_rules! keys {
    ($($heading:literal { $($name:literal $value:literal $($field:ident).+: $parse:ident, $about:literal;)* })*) => {
        /// Every key, in the order of the help.
        pub const KEYS: &[Key] = &[$($(Key {
            name: $name,
            value: $value,
            about: $about,
            heading: $heading,
            set: |config, text| {
                config.$($field).+ = values::$parse(text)?;
                Ok(())
            },
            get: |config| config.$($field).+.show(),
        }),*),*];
    };
}

keys! {
    "Model" {
        "init" "DIR|FILE" init: path,
            "Take config.json, and the safetensors if there are any, from this folder (Hugging Face's layout of a Llama), or all from this GGUF file";
        "hidden" "N" hidden: positive, "Without --init: width of the residual stream";
        "layers" "N" layers: positive, "Without --init: transformer blocks";
        "heads" "N" heads: positive, "Without --init: attention heads";
        "kv-heads" "N" kv_heads: positive, "Without --init: heads of keys and values";
        "ffn" "N" ffn: positive, "Without --init: width of the feed-forward part";
        "dropout" "P" dropout: part, "Drop this part of the activations after attention and feed-forward";
        "freeze" "PATTERN,..." freeze: names,
            "Leave these parameters as they are, by their names in the safetensors; * stands for anything";
    }
    "Data" {
        "data" "FILE|DIR" data: path,
            "Train on this text, or on the lines of a .jsonl, or on all files of a folder that end in .txt, .md or .jsonl; without it on a text that the program makes";
        "data-field" "NAME" documents.field: text, "The field of a line of JSONL that has the text";
        "document-end" "TEXT" documents.end: end,
            "What is put after each line's text, and after each file's of a folder; \\n is a new line, and a tokenizer's mark such as <|endoftext|> is known";
        "data-cache" "DIR" data_cache: path,
            "Where tokens that a tokenizer has made are kept for other runs; without it in nd/tokens of your cache folder";
        "tokenizer" "bytes|FILE" tokenizer: tokenizer,
            "Bytes as tokens, or a tokenizer.json, or a GGUF file; without it the one that --init has, else bytes";
        "order" "sequential|shuffled" order: order,
            "Step t takes the next sequences of seq-len + 1 tokens from the text in order, or in an order shuffled anew in each epoch";
        "seq-len" "N" seq_len: positive, "Tokens of a sequence that have a successor to predict";
        "micro-batch" "N" micro_batch: some, "Sequences of a rank in one forward and backward pass; 4 if nothing is said";
        "accumulation" "N" accumulation: some, "Micro-batches of a step; 1 if nothing is said";
        "batch" "N" batch: some,
            "Sequences of a step: micro-batch × accumulation × dp_replicate × dp_shard; any two of the three give the third";
        "eval-data" "FILE|DIR" eval_data: path, "Measure the loss on this text too; `made` is one that the program makes";
        "eval-every" "STEPS" eval_every: count, "How often; 0: after the last step";
    }
    "Optimizer" {
        "steps" "N" steps: steps, "Steps";
        "lr" "RATE" lr: amount, "The highest learning rate";
        "schedule" "constant|cosine|linear" schedule: decay, "How it goes on after warm-up";
        "warmup" "STEPS" warmup: count, "Steps in which it rises from lr/warmup to lr";
        "lr-scaling" "none|linear|sqrt" lr_scaling: scaling, "Multiply lr by batch/reference-batch, or its square root";
        "reference-batch" "N" reference_batch: positive, "The batch for which lr was found";
        "clip" "NORM" clip: amount, "Scale gradients so that their global norm is at most this; 0: do not";
        "weight-decay" "RATE" adamw.weight_decay: amount, "Decoupled decay, of matrices only";
        "betas" "B1,B2" adamw.betas: betas, "AdamW's";
        "eps" "EPS" adamw.eps: amount, "AdamW's";
    }
    "Parallelism" {
        "mesh" "AXIS=SIZE,..." mesh: mesh,
            "Ranks along dp_replicate, dp_shard, cp and tp, whose product is the number of ranks; -1: what is left";
        "zero" "0|1|2|3" zero: zero,
            "What is sharded over dp_shard (and cp): nothing (DDP), optimizer, gradients too, weights too (FSDP)";
        "reshard" "always|never|N" reshard: reshard,
            "With zero=3: let weights go after the forward pass, keep them, or keep them sharded over N ranks";
        "sequence-parallel" "BOOL" sequence_parallel: flag, "Divide activations between blocks along the sequence over tp";
        "kv-replicas" "N" kv_replicas: positive,
            "On how many ranks of tp each head of keys and values is, where tp is more than there are heads";
        "cp-form" "ring|all-gather" cp_form: form, "How ranks of cp see each other's keys and values";
        "cp-balance" "zigzag|contiguous" cp_balance: balance, "How sequences are dealt out to the ranks of cp";
        "ranks" "N" ranks: some, "Ranks to start on this host; under a launcher none are started";
    }
    "Memory and speed" {
        "threads" "N" threads: some, "Threads that each rank computes with; by default its part of the host's cores";
        "dtype" "f32|bf16|f16" dtype: dtype, "Compute in this; masters and optimizer are f32; f16 has a dynamic loss scale";
        "reduce-dtype" "f32|bf16|f16" reduce_dtype: dtype, "Add gradients up over ranks in this";
        "checkpoint-activations" "BOOL" checkpoint_activations: flag,
            "Keep the input of each block only, and compute the rest again in the backward pass";
        "reduce-each-micro-batch" "BOOL" reduce_each_micro_batch: flag,
            "Reduce at every micro-batch what could wait for the last: gradients of DDP and ZeRO-1, sums over dp_replicate";
        "prefetch" "BOOL" prefetch: flag, "Gather the weights of the next block while one computes";
        "bucket-bytes" "SIZE" bucket_bytes: size, "With zero 0 to 2: how large the pieces are in which gradients are reduced";
    }
    "Checkpoints" {
        "checkpoint" "DIR" checkpoint: path,
            "Write the state of training into this folder, which all ranks see, after the last step and every --checkpoint-every";
        "checkpoint-every" "STEPS" checkpoint_every: count, "How often; 0: after the last step";
        "checkpoint-async" "BOOL" checkpoint_async: flag,
            "Write checkpoints from a copy of the state while training goes on; the last one, and one after another, are waited for";
        "keep" "N" keep: positive, "How many checkpoints stay: older ones are removed when a new one is whole";
        "resume" "DIR|auto" resume: path,
            "Go on from this checkpoint, or from the last whole one of this folder, on this or another mesh; `auto`: from the last of --checkpoint, or from the beginning if it has none";
    }
    "Run" {
        "seed" "N" seed: count, "Decides weights, order and dropout";
        "metrics" "FILE.jsonl" metrics: path, "Write one row of JSON a step: step, loss, grad_norm, lr, tokens_per_s";
        "plot" "FILE.svg|.png" plot: path, "Draw the loss";
        "save" "DIR" save: path,
            "Write the model into this folder after the last step, as Hugging Face lays it out; --init takes it again";
        "save-dtype" "f32|bf16|f16" save_dtype: dtype, "Write it in this";
    }
}
