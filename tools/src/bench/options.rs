//! What is asked for, with everything checked that can be without a communicator.

use std::path::PathBuf;

use nd_comm::config::nearest;
use nd_comm::number::{DataType, ReduceOp};
use nd_comm::schedule;

use super::arguments::{Arguments, Kind, Transport};
use super::collective::Bench;
use super::error::Error;
use super::fault::Fault;
use super::plot;
use super::size::{self, Step};

/// Which rank's time is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Average {
    Rank0,
    Mean,
    Min,
    Max,
}

/// Which roots are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Roots {
    One(usize),
    All,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Options {
    pub collectives: Vec<Bench>,
    pub first: u64,
    pub last: u64,
    pub step: Step,
    /// None: as many as take a certain time.
    pub iterations: Option<u32>,
    pub warmup: u32,
    /// 0: for ever.
    pub cycles: u32,
    /// How many checks; 0: none.
    pub check: u32,
    pub ops: Vec<ReduceOp>,
    pub types: Vec<DataType>,
    pub roots: Roots,
    pub average: Average,
    pub per_iteration: bool,
    pub json: Option<PathBuf>,
    pub ranks: Option<usize>,
    pub transport: Option<Transport>,
    /// None: chosen by size and links.
    pub algorithm: Option<String>,
    pub registered: bool,
    pub threads: bool,
    /// Where to start ranks, and the remote shell.
    pub hosts: Option<(PathBuf, String)>,
    pub plot: Option<PathBuf>,
    pub calibrate: Option<PathBuf>,
    pub explain: bool,
    /// What goes wrong on purpose; nothing is measured then.
    pub faults: Vec<Fault>,
}

impl Options {
    /// The sizes, ascending.
    pub fn sizes(&self) -> Vec<u64> {
        size::series(self.first, self.last, self.step)
    }
}

/// From the command line.
pub fn check(a: Arguments) -> Result<Options, Error> {
    let (first, last, step) = sizes(&a)?;
    let types = types(&a.datatype)?;
    let ops = ops(&a.op, &types)?;
    let roots = match a.root {
        -1 => Roots::All,
        root => Roots::One(usize::try_from(root).map_err(|_| {
            Error::Usage(format!("-r {root}: no such rank; write a rank from 0, or -1 for all of them"))
        })?),
    };
    if let Some(ranks) = a.ranks.filter(|n| !(1..=1024).contains(n)) {
        return wrong(format!("--ranks {ranks}: from 1 to 1024 ranks can be started on one host"));
    }
    if a.threads && matches!(a.transport, Some(Transport::Shm | Transport::Tcp | Transport::Verbs)) {
        return wrong(
            "--threads reaches ranks through their common memory (local); leave out --threads or --transport"
                .into(),
        );
    }
    if a.plot.is_some() && a.plot == a.json {
        return wrong("--plot and --json name the same file; give each its own".into());
    }
    if let Some(path) = &a.plot {
        plot::format(path)?;
    }
    Ok(Options {
        collectives: a.collective,
        first,
        last,
        step,
        iterations: a.iters,
        warmup: a.warmup,
        cycles: a.cycles,
        check: a.check,
        ops,
        types,
        roots,
        average: [Average::Rank0, Average::Mean, Average::Min, Average::Max][usize::from(a.average)],
        per_iteration: a.per_iteration,
        json: a.json,
        ranks: a.ranks,
        transport: a.transport,
        algorithm: a.algo.map(algorithm).transpose()?.flatten(),
        registered: a.buffers == Kind::Registered,
        threads: a.threads || a.transport == Some(Transport::Local),
        hosts: a.hosts.map(|file| (file, a.rsh)),
        plot: a.plot,
        calibrate: a.calibrate,
        explain: a.explain,
        faults: a.fault,
    })
}

fn wrong<T>(text: String) -> Result<T, Error> {
    Err(Error::Usage(text))
}

fn sizes(a: &Arguments) -> Result<(u64, u64, Step), Error> {
    const FIRST: u64 = 8;
    const LAST: u64 = 64 << 20;
    let (first, last) = match (a.minbytes, a.maxbytes) {
        (Some(first), Some(last)) => (first, last),
        (Some(first), None) => (first, first.max(LAST)),
        (None, Some(last)) => (last.min(FIRST), last),
        (None, None) => (FIRST, LAST),
    };
    if first > last {
        let (b, e) = (size::show(first), size::show(last));
        return wrong(format!("-b {b} is larger than -e {e}; exchange them, or raise -e"));
    }
    let step = match (a.stepbytes, a.stepfactor) {
        (Some(0), _) if first < last => {
            return wrong(format!("-i 0 never gets to -e {}; write at least 1", size::show(last)));
        }
        (Some(bytes), _) => Step::Bytes(bytes.max(1)),
        (None, Some(0 | 1)) if first < last => {
            return wrong(format!(
                "-f {}: sizes would not grow; write at least 2, or -i BYTES",
                a.stepfactor.unwrap_or(1)
            ));
        }
        (None, factor) => Step::Factor(factor.unwrap_or(2).max(2)),
    };
    Ok((first, last, step))
}

fn types(text: &str) -> Result<Vec<DataType>, Error> {
    if text.eq_ignore_ascii_case("all") {
        return Ok(DataType::ALL.to_vec());
    }
    text.split(',')
        .map(|t| t.trim().parse().map_err(|e| Error::Usage(format!("-d {text}: {e}, or all"))))
        .collect()
}

/// The factor of a `mulsum` without one: not 1, which would show nothing.
const FACTOR: f64 = 2.0;

fn ops(text: &str, types: &[DataType]) -> Result<Vec<ReduceOp>, Error> {
    let known =
        |op: ReduceOp| if matches!(op, ReduceOp::PreMulSum(_)) { ReduceOp::PreMulSum(FACTOR) } else { op };
    if text.eq_ignore_ascii_case("all") {
        return Ok(ReduceOp::ALL.map(known).to_vec());
    }
    let one = |name: &str| -> Result<ReduceOp, Error> {
        let op: ReduceOp =
            name.trim().parse().map_err(|e| Error::Usage(format!("-o {text}: {e}, or all")))?;
        let op = if name.trim().eq_ignore_ascii_case("mulsum") { known(op) } else { op };
        if let ReduceOp::PreMulSum(factor) = op {
            let exact = factor > 0.0 && factor.log2().fract() == 0.0 && (0.125..=8.0).contains(&factor);
            if !exact {
                return wrong(format!(
                    "-o {name}: results would be rounded and could not be checked exactly; use a power of two from 0.125 to 8"
                ));
            }
        }
        if !types.iter().any(|t| op.supports(*t)) {
            let names: Vec<_> = types.iter().map(|t| t.name()).collect();
            return wrong(format!(
                "-o {op}: works on bits, not on {}; use -d with an integer type",
                names.join(", ")
            ));
        }
        Ok(op)
    };
    text.split(',').map(one).collect()
}

fn algorithm(text: String) -> Result<Option<String>, Error> {
    if text.eq_ignore_ascii_case("auto") {
        return Ok(None);
    }
    let lower = text.to_ascii_lowercase();
    let names: Vec<_> = schedule::algorithms().iter().map(|a| a.name()).collect();
    if let Some(name) = lower.split(',').find(|name| !names.contains(name)) {
        let hint =
            nearest(name, names.iter().copied()).map_or(String::new(), |n| format!("; did you mean {n}?"));
        return wrong(format!(
            "--algo {text}: no algorithm is called '{name}'{hint} (there are {}, and auto)",
            names.join(", ")
        ));
    }
    Ok(Some(lower))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn options(line: &str) -> Result<Options, String> {
        let words = std::iter::once("nd-bench").chain(line.split_whitespace());
        let arguments = Arguments::try_parse_from(words).map_err(|e| e.to_string())?;
        check(arguments).map_err(|e| e.to_string())
    }

    #[test]
    fn sizes_default_sensibly() {
        let of = |line: &str| options(line).map(|o| (o.first, o.last, o.step)).unwrap();
        assert_eq!(of("allreduce"), (8, 64 << 20, Step::Factor(2)));
        assert_eq!(of("allreduce -b 1G"), (1 << 30, 1 << 30, Step::Factor(2)));
        assert_eq!(of("allreduce -e 4"), (4, 4, Step::Factor(2)));
        assert_eq!(of("allreduce -b 0 -e 1K -i 256"), (0, 1024, Step::Bytes(256)));
        assert_eq!(of("all --minbytes 8 --maxbytes 128M --stepfactor 4"), (8, 128 << 20, Step::Factor(4)));
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_remedy() {
        for (line, part) in [
            ("allreduce -b 2M -e 1M", "-b 2 MiB is larger than -e 1 MiB"),
            ("alreduce", "did you mean allreduce?"),
            ("allreduce -d flaot", "unknown element type 'flaot'"),
            ("allreduce -o plus", "unknown operation 'plus'"),
            ("allreduce -o band", "use -d with an integer type"),
            ("allreduce -o mulsum:0.3", "power of two"),
            ("allreduce -r -2", "-1 for all"),
            ("allreduce -f 1", "at least 2"),
            ("allreduce -i 0", "at least 1"),
            ("allreduce --ranks 0", "from 1 to 1024"),
            ("allreduce --threads --transport tcp", "leave out --threads"),
            ("allreduce --algo rign", "did you mean ring?"),
            ("allreduce --plot x.gif", ".svg"),
            ("allreduce -b 1Q", "not a size"),
            ("allreduce --fault kil:2@3s", "did you mean kill?"),
            ("allreduce --fault kill:2 --hosts x", "cannot be used with"),
        ] {
            let e = options(line).unwrap_err();
            assert!(e.contains(part), "{line}: {e}");
        }
    }

    #[test]
    fn all_and_lists() {
        let o = options("all -d all -o all -r -1").unwrap();
        assert_eq!((o.collectives.len(), o.types.len(), o.ops.len(), o.roots), (10, 14, 9, Roots::All));
        let o = options("allreduce,broadcast -d half,f32 -o sum,mulsum,mulsum:0.5 --algo auto").unwrap();
        assert_eq!((o.collectives.len(), o.types.len(), o.algorithm), (2, 2, None));
        assert_eq!(o.ops, [ReduceOp::Sum, ReduceOp::PreMulSum(2.0), ReduceOp::PreMulSum(0.5)]);
    }
}
