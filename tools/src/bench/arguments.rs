//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgAction, Parser, ValueEnum};

use super::collective::{ALL, Bench};
use super::fault::Fault;
use super::options::{Options, check};
use super::size;
use crate::say;

const EXAMPLES: &str = "\
Examples:
  nd-bench allreduce
      one process per core, 8 B to 64 MiB, over the fastest transport there is
  nd-bench allreduce -b 8 -e 1G -f 2 --ranks 4 --transport tcp --plot allreduce.png
      what TCP gives, as a table and as a picture
  nd-bench all --ranks 4 -b 0 -e 1M -f 8 -d all -o all
      every collective, every type, every operation, every element checked
  nd-bench alltoall --threads --explain
      ranks as threads of one process, and why each size was done as it was
  nd-bench allreduce --ranks 4 --fault kill:2@3s
      what the others say, and how soon, when rank 2 is killed three seconds after the first call
  nd-run -n 4 -- nd-bench allreduce        (or mpirun, torchrun, srun)
      under a launcher it starts nothing and takes its rank

Size, count, algbw and busbw mean what they mean in nccl-tests: size is in bytes of the larger side (for allgather
everything received, for reducescatter and alltoall everything sent), GB/s is 1e9 bytes a second.

Exit code: 0 if every element on every rank was right, 1 if not or if a rank failed, 2 for a wrong command line.";

/// Measures collectives: nccl-tests' table, with every element checked.
#[derive(Debug, Parser)]
#[command(name = "nd-bench", version, after_help = EXAMPLES, max_term_width = 110)]
pub struct Arguments {
    /// allreduce, allgather, reducescatter, broadcast, reduce, gather, scatter, alltoall, sendrecv, barrier, or all
    #[arg(value_name = "COLLECTIVE", value_parser = collectives)]
    pub collective: Collectives,
    /// Smallest size, such as 8, 4K, 64M, 1G [default: 8]
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = size::parse)]
    pub minbytes: Option<u64>,
    /// Largest size [default: 64M, or -b if that is larger]
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = size::parse)]
    pub maxbytes: Option<u64>,
    /// Go from size to size by adding this many bytes
    #[arg(short = 'i', long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "stepfactor")]
    pub stepbytes: Option<u64>,
    /// Go from size to size by multiplying by this [default: 2, without -i]
    #[arg(short = 'f', long, value_name = "FACTOR")]
    pub stepfactor: Option<u64>,
    /// Iterations of each size [default: as many as take 0.1 s, from 5 to 5000]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iters: Option<u32>,
    /// Iterations before those that are timed
    #[arg(short = 'w', long, visible_alias = "warmup_iters", value_name = "N", default_value_t = 1)]
    pub warmup: u32,
    /// How often to go through all sizes; 0: for ever
    #[arg(short = 'N', long, visible_alias = "run_cycles", value_name = "N", default_value_t = 1)]
    pub cycles: u32,
    /// How often to check each size, every element on every rank; 0: not at all
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1)]
    pub check: u32,
    /// sum, prod, min, max, avg, mulsum, mulsum:FACTOR, band, bor, bxor; several with commas, or all
    #[arg(short = 'o', long, value_name = "OP", default_value = "sum")]
    pub op: String,
    /// float, half, bfloat16, double, int8 ... uint64, f8e4m3, f8e5m2; several with commas, or all
    #[arg(short = 'd', long, value_name = "TYPE", default_value = "float")]
    pub datatype: String,
    /// Root of broadcast, reduce, gather and scatter; -1: each rank in turn
    #[arg(short = 'r', long, value_name = "RANK", default_value_t = 0, allow_negative_numbers = true)]
    pub root: i64,
    /// Which time to show: 0 that of rank 0, 1 the mean over ranks, 2 the least, 3 the greatest
    #[arg(short = 'a', long, value_name = "0..3", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub average: u8,
    /// Time every iteration by itself and show least, greatest, 99th percentile and variation
    #[arg(short = 'I', long, action = ArgAction::SetTrue)]
    pub per_iteration: bool,
    /// Write everything to this file, in nccl-tests' format
    #[arg(short = 'J', long, visible_alias = "output_file", value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Ranks to start on this host, each on cores of its own where there are enough (`nd-run -n N -- nd-bench …` leaves
    /// them free) [default: one for each core, at least 2]
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// How ranks reach each other [default: auto, or what ND_TRANSPORT says]
    #[arg(long, value_name = "NAME")]
    pub transport: Option<Transport>,
    /// Algorithm, by name [default: auto, or what ND_ALGO says]
    #[arg(long, value_name = "NAME")]
    pub algo: Option<String>,
    /// Memory that peers reach without a copy, or any
    #[arg(long, value_name = "KIND", default_value = "registered")]
    pub buffers: Kind,
    /// Ranks are threads of this process
    #[arg(long)]
    pub threads: bool,
    /// Draw bandwidth against size
    #[arg(long, value_name = "FILE.svg|.png")]
    pub plot: Option<PathBuf>,
    /// Start ranks on these hosts, one `NAME [slots=N]` a line (without slots: --ranks, else 1), each reached by
    /// --rsh; this program and nd-run must be at the same place there
    #[arg(long, value_name = "FILE", conflicts_with = "threads")]
    pub hosts: Option<PathBuf>,
    /// The remote shell for --hosts; takes HOST COMMAND and passes its standard input on
    #[arg(long, value_name = "COMMAND", default_value = "ssh -o BatchMode=yes", requires = "hosts")]
    pub rsh: String,
    /// First measure what links cost, a few seconds, and write it to this file (kinds of link that it knows already
    /// and that are not there are kept); algorithms are then chosen by it, here and wherever ND_CALIBRATION names it
    #[arg(long, value_name = "FILE")]
    pub calibrate: Option<PathBuf>,
    /// Instead of measuring, call until something goes wrong on purpose, and tell what every other rank says of it and how
    /// soon: kill:2@3s (rank 2 gets SIGKILL three seconds after the first call), stop (SIGSTOP), exit, abort (the
    /// communicator) or mismatch (it calls something else); several with commas. Calls then wait 5 s at most, unless
    /// ND_TIMEOUT says otherwise. Exit code 0: all of them named the rank (under a launcher each rank tells its own part)
    #[arg(long, value_name = "KIND:RANK[@TIME]", value_delimiter = ',', conflicts_with_all = ["hosts", "calibrate", "plot", "json"])]
    pub fault: Vec<Fault>,
    /// Say why each size was done as it was, what every candidate was predicted to take, and how each rank is reached
    #[arg(long)]
    pub explain: bool,
}

/// The collectives, one after the other.
pub type Collectives = Vec<Bench>;

/// How ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// The fastest there is.
    Auto,
    /// Threads of one process; implies --threads.
    Local,
    /// Shared memory.
    Shm,
    /// TCP.
    Tcp,
    /// InfiniBand or RoCE.
    Verbs,
}

/// Which memory buffers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Registered,
    Plain,
}

/// From the command line. What is wrong, or help, has been printed when there is nothing to run.
pub fn read() -> Result<Options, ExitCode> {
    let arguments = Arguments::try_parse().map_err(|e| {
        let _ = e.print();
        ExitCode::from(e.exit_code() as u8)
    })?;
    check(arguments).map_err(|e| {
        say::error(&e);
        ExitCode::from(e.code())
    })
}

fn collectives(text: &str) -> Result<Collectives, String> {
    if text.eq_ignore_ascii_case("all") {
        Ok(ALL.to_vec())
    } else {
        text.split(',').map(str::parse).collect()
    }
}
