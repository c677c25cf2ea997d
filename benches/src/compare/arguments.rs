//! The command line.

use std::path::PathBuf;

use clap::Parser;

use super::case::{Case, Collective, Transport};
use super::error::Error;
use super::peers::Peer;
use super::sizes::Sizes;

const EXAMPLES: &str = "\
Examples:
  make compare
      sets up the peers and runs this with its defaults, in about twenty minutes on two cores
  make compare PEERS=impi,openmpi4 COLL=allreduce TRANSPORT=shm RANKS=2 SIZES=4,1K,256K,16M PAIRS=7
      one case, two peers
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
    /// Which collectives
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", default_value = "allreduce")]
    pub coll: Vec<Collective>,
    /// How ranks reach each other; net: hosts that are network namespaces [default: shm,tcp and, for root, net]
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub transport: Option<Vec<Transport>>,
    /// How many ranks [default: 2,4; with net the largest of them]
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub ranks: Option<Vec<u32>>,
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
    /// Each case with its sizes. A case of `net` needs as many ranks on each host; only root has it by default.
    pub fn cases(&self, root: bool) -> Result<Vec<(Case, Sizes)>, Error> {
        let default_sizes = || SIZES.parse::<Sizes>().map_err(Error::Usage);
        let ranks = self.ranks.clone().unwrap_or_else(|| vec![2, 4]);
        let transports = self.transport.clone().unwrap_or_else(|| match root {
            true => vec![Transport::Shm, Transport::Tcp, Transport::Net],
            false => vec![Transport::Shm, Transport::Tcp],
        });
        let mut cases = Vec::new();
        for &collective in &self.coll {
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
                    cases.push((Case { collective, transport, ranks, hosts, mbit: self.mbit }, sizes));
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
        for (line, part) in [
            ("--transport net --ranks 3", "multiple of --hosts"),
            ("--ranks 1", "1 is not in 2..=256"),
            ("--peers nccl", "possible values"),
            ("--sizes 6", "multiple of 4"),
            ("--pairs 0", "1..=1000"),
        ] {
            let e = cases(line, true).unwrap_err();
            assert!(e.contains(part), "{line}: {e}");
        }
    }
}
