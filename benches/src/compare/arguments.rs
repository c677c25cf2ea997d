//! The command line.

use std::path::PathBuf;

use clap::Parser;

use super::case::{Buffers, Case, Collective, Transport};
use super::error::Error;
use super::peers::Peer;
use super::sizes::Sizes;
use super::targets;

const EXAMPLES: &str = "\
Examples:
  make compare
      sets up the peers and runs this with its defaults, in about twenty minutes on two cores
  make compare PEERS=impi,openmpi4 COLL=allreduce TRANSPORT=shm RANKS=2 SIZES=4,1K,256K,16M PAIRS=7
      one case, two peers
  make targets
      every case and size that has a target, and with it every row of the table of targets, in about an hour and a half
  make targets PEERS=impi,openmpi4 COLL=allreduce RANKS=8
      some of them
  make compare PEERS=self
      ours with itself: what the machine's noise is

Exit code: 0 when something was compared and every result was right, 1 otherwise, 2 for a wrong command line, 130
after ctrl-C, which keeps what has been measured.";

/// The sizes of a case unless --sizes says otherwise; with `net` up to NET_LARGEST.
const SIZES: &str = "4,64,1K,16K,256K,4M,64M";
const NET_LARGEST: u64 = 4 << 20;

/// Measures ours and its peers in turn on this machine.
#[derive(Debug, Clone, Parser)]
#[command(name = "compare", version, after_help = EXAMPLES, max_term_width = 110)]
pub struct Arguments {
    /// With whom
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME,...",
        default_value = "openmpi,openmpi4,mpich,mpich4,impi,oneccl,gloo"
    )]
    pub peers: Vec<Peer>,
    /// The cases and sizes that have targets, all or those that the following options name
    #[arg(long)]
    pub targets: bool,
    /// Which collectives [default: allreduce]
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub coll: Option<Vec<Collective>>,
    /// How ranks reach each other; net: hosts that are network namespaces [default: shm,tcp and, for root, net]
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub transport: Option<Vec<Transport>>,
    /// How many ranks [default: 2,4; with net the largest of them]
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub ranks: Option<Vec<u32>>,
    /// Which memory our calls are given [default: registered]
    #[arg(long, value_delimiter = ',', value_name = "KIND,...")]
    pub buffers: Option<Vec<Buffers>>,
    /// Sizes, such as 4,1K,64M [default: 4,64,1K,16K,256K,4M,64M; with net up to 4M]
    #[arg(long, value_name = "SIZE,...")]
    pub sizes: Option<Sizes>,
    /// How often ours and each peer are measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pairs: u32,
    /// Hosts, with net
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub hosts: u32,
    /// What each host's link carries, Mbit/s, with net
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub mbit: u32,
    /// Calls of each size before those that are timed
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub warmup: u32,
    /// Timed calls of each size [default: as many as take 0.1 s, from 5 to 5000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: Option<u32>,
    /// Seconds after which a program that has not ended is killed with all it started
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub deadline: u64,
    /// Where the peers are, as scripts/setup-compare lays them out
    #[arg(long, value_name = "FOLDER", default_value = "target/compare/peers")]
    pub home: PathBuf,
    /// Where RESULTS.md, results.json, compare.svg and compare.png go
    #[arg(long, value_name = "FOLDER", default_value = "target/compare")]
    pub out: PathBuf,
    /// nd-bench; nd-run lies beside it [default: beside this program]
    #[arg(long, value_name = "FILE")]
    pub ours: Option<PathBuf>,
}

impl Arguments {
    /// Whether no case is left out.
    pub fn whole(&self) -> bool {
        self.coll.is_none() && self.transport.is_none() && self.ranks.is_none() && self.buffers.is_none()
    }

    /// Each case with its sizes, as `--targets` or as the other options say.
    pub fn cases(&self, root: bool) -> Result<Vec<(Case, Sizes)>, Error> {
        let cases = if self.targets { self.aimed_at() } else { self.named(root)? };
        match cases.is_empty() {
            true => Err(Error::Usage(
                "no target is of such a case; leave out --targets, or some of --coll, --transport, --ranks, \
                 --buffers and --sizes"
                    .into(),
            )),
            false => Ok(cases),
        }
    }

    /// The cases that have targets, without those that the command line leaves out.
    fn aimed_at(&self) -> Vec<(Case, Sizes)> {
        fn wanted<T: PartialEq>(those: &Option<Vec<T>>, one: T) -> bool {
            those.as_ref().is_none_or(|those| those.contains(&one))
        }
        let mut cases = targets::cases();
        cases.retain(|(case, _)| {
            wanted(&self.coll, case.collective)
                && wanted(&self.transport, case.transport)
                && wanted(&self.ranks, case.ranks as u32)
                && wanted(&self.buffers, case.buffers)
        });
        if let Some(Sizes(sizes)) = &self.sizes {
            cases.iter_mut().for_each(|(_, aimed)| aimed.0.retain(|size| sizes.contains(size)));
            cases.retain(|(_, aimed)| !aimed.0.is_empty());
        }
        cases
    }

    /// A case of `net` needs as many ranks on each host; only root has it by default.
    fn named(&self, root: bool) -> Result<Vec<(Case, Sizes)>, Error> {
        let default_sizes = || SIZES.parse::<Sizes>().map_err(Error::Usage);
        let ranks = self.ranks.clone().unwrap_or_else(|| vec![2, 4]);
        let transports = self.transport.clone().unwrap_or_else(|| match root {
            true => vec![Transport::Shm, Transport::Tcp, Transport::Net],
            false => vec![Transport::Shm, Transport::Tcp],
        });
        let collectives = self.coll.clone().unwrap_or_else(|| vec![Collective::AllReduce]);
        let kinds = self.buffers.clone().unwrap_or_else(|| vec![Buffers::Registered]);
        let mut cases = Vec::new();
        for collective in collectives {
            for &transport in &transports {
                for &ranks in &ranks {
                    let net = transport == Transport::Net;
                    // Many cases take long: several numbers of ranks in namespaces only for those who ask.
                    if net && self.ranks.is_none() && ranks != 4 {
                        continue;
                    }
                    if net && ranks % self.hosts != 0 {
                        return Err(Error::Usage(format!(
                            "{ranks} ranks on {} hosts: every host needs as many; use a multiple of --hosts",
                            self.hosts
                        )));
                    }
                    let sizes = match &self.sizes {
                        Some(sizes) => sizes.clone(),
                        None if net => {
                            Sizes(default_sizes()?.0.into_iter().filter(|s| *s <= NET_LARGEST).collect())
                        }
                        None => default_sizes()?,
                    };
                    let (ranks, hosts) = (ranks as usize, self.hosts as usize);
                    for &buffers in &kinds {
                        let case = Case { collective, transport, ranks, buffers, hosts, mbit: self.mbit };
                        cases.push((case, sizes.clone()));
                    }
                }
            }
        }
        Ok(cases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(line: &str, root: bool) -> Result<Vec<String>, String> {
        let words = std::iter::once("compare").chain(line.split_whitespace());
        let arguments = Arguments::try_parse_from(words).map_err(|e| e.to_string())?;
        let cases = arguments.cases(root).map_err(|e| e.to_string())?;
        Ok(cases.iter().map(|(case, sizes)| format!("{case}: {}", sizes.0.len())).collect())
    }

    #[test]
    fn defaults() {
        let shown = cases("", true).unwrap();
        assert_eq!(
            shown,
            [
                "allreduce, shm, 2 ranks: 7",
                "allreduce, shm, 4 ranks: 7",
                "allreduce, tcp, 2 ranks: 7",
                "allreduce, tcp, 4 ranks: 7",
                "allreduce, 2 hosts at 1000 Mbit/s, 4 ranks: 6"
            ]
        );
        assert_eq!(cases("", false).unwrap(), shown[..4]);
    }

    #[test]
    fn narrowed() {
        let shown =
            cases("--coll allgather,sendrecv --transport net --ranks 2,6 --sizes 4K --mbit 100", true);
        assert_eq!(shown.unwrap()[3], "sendrecv, 2 hosts at 100 Mbit/s, 6 ranks: 1");
        let shown =
            cases("--ranks 2 --transport shm --buffers registered,plain --sizes 4K,8K", false).unwrap();
        assert_eq!(shown, ["allreduce, shm, 2 ranks: 2", "allreduce, shm, 2 ranks, plain slices: 2"]);
        let shown = cases("--targets --coll allreduce --ranks 8 --sizes 64M,4M,64", false).unwrap();
        assert_eq!(shown, ["allreduce, shm, 8 ranks: 3", "allreduce, tcp, 8 ranks: 2"]);
        for (line, part) in [
            ("--transport net --ranks 3", "multiple of --hosts"),
            ("--ranks 1", "1 is not in 2..=256"),
            ("--peers nccl", "possible values"),
            ("--sizes 6", "multiple of 4"),
            ("--pairs 0", "1..=1000"),
            ("--targets --ranks 7", "no target is of such a case"),
        ] {
            let e = cases(line, true).unwrap_err();
            assert!(e.contains(part), "{line}: {e}");
        }
    }
}
