//! Measures what links cost, for the cost model to choose by: `--calibrate FILE`.
//!
//! Ranks are paired inside their hosts, then across hosts, and every pair measures at the same time, so that what the
//! pairs share counts. Times are the middle of a few batches; how many iterations a batch has, and where the sizes
//! end, all ranks decide together.

use std::path::Path;
use std::time::Instant;

use nd_comm::cost::Calibration;
use nd_comm::cost::calibration::{Between, LinkCost, Points};
use nd_comm::prelude::{Buffer, Communicator, ReduceOp, Result};

use super::error::Error;
use super::size;

/// Sizes of messages, bytes.
const SIZES: [u64; 14] = [
    8,
    64,
    512,
    2 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    16 << 20,
    32 << 20,
    64 << 20,
];
/// Batches of which the middle one counts.
const BATCHES: usize = 5;
/// Seconds that a batch should take.
const BATCH: f64 = 0.006;
const MOST_ITERATIONS: u32 = 2000;
/// Where one iteration takes longer than so many seconds, larger sizes are left to extrapolation.
const SLOW: f64 = 0.08;
/// The length of a message that is all effort.
const SHORT: u64 = 8;

/// Measures, and on rank 0 writes the file; gives what is known from then on, the same on every rank.
pub fn calibrate(comm: &Communicator, path: &Path) -> std::result::Result<Calibration, Error> {
    let mut known = Calibration::default();
    if comm.rank() == 0
        && let Some(before) = read(path)?
    {
        known = before;
    }
    let mut measured = Calibration::default();
    for between in [Between::Ranks, Between::Hosts] {
        if let Some(link) = kind(comm, between)? {
            measured.link.push(link);
        }
    }
    if measured.link.is_empty() {
        return Err(Error::Usage("--calibrate measures links: it needs at least two ranks".into()));
    }
    if comm.rank() == 0 {
        // Somebody else may have measured other kinds meanwhile.
        known = read(path)?.unwrap_or(known);
    }
    known.update(measured);
    if comm.rank() == 0 {
        let text = format!(
            "# What links cost: written by nd-bench --calibrate, used with ND_CALIBRATION.\n\n{}",
            known.to_toml()
        );
        write(path, &text).map_err(|source| Error::File {
            path: path.into(),
            option: "--calibrate",
            source,
        })?;
    }
    Ok(agreed(comm, &known)?)
}

/// What the file says already, if there is one.
fn read(path: &Path) -> std::result::Result<Option<Calibration>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => Calibration::parse(&text).map(Some).map_err(|e| {
            Error::Usage(format!(
                "--calibrate {}: the file is there and is no calibration ({e}); name another, or remove it",
                path.display()
            ))
        }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { path: path.into(), option: "--calibrate", source }),
    }
}

/// The whole file or the old one, whatever happens.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut next = path.as_os_str().to_owned();
    next.push(format!(".{}", std::process::id()));
    let next = Path::new(&next);
    std::fs::write(next, text).and_then(|()| std::fs::rename(next, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(next);
    })
}

/// Rank 0's word.
fn agreed(comm: &Communicator, own: &Calibration) -> Result<Calibration> {
    let mut text = own.to_toml().into_bytes();
    let mut len = [text.len() as u64];
    comm.broadcast(&mut len, 0)?;
    text.resize(len[0] as usize, 0);
    comm.broadcast(&mut text, 0)?;
    let text = String::from_utf8_lossy(&text);
    Ok(Calibration::parse(&text).expect("what a calibration writes it reads"))
}

/// Pairs of ranks that measure a kind of link, those of one host or of neighbouring ones.
fn pairs(hosts: &[Vec<u32>], between: Between) -> Vec<[usize; 2]> {
    let both = |a: &u32, b: &u32| [*a as usize, *b as usize];
    match between {
        Between::Ranks => hosts.iter().flat_map(|h| h.chunks_exact(2).map(|p| both(&p[0], &p[1]))).collect(),
        Between::Hosts => {
            let hosts = hosts.chunks_exact(2);
            hosts.flat_map(|h| h[0].iter().zip(&h[1]).map(|(a, b)| both(a, b))).collect()
        }
    }
}

/// Measures one kind of link; nothing where there is none.
fn kind(comm: &Communicator, between: Between) -> Result<Option<LinkCost>> {
    let machines = comm.machines();
    let hosts = machines.layout.hosts();
    let pairs = pairs(hosts, between);
    if pairs.is_empty() {
        return Ok(None);
    }
    let mine = pairs.iter().position(|p| p.contains(&comm.rank()));
    let pair = comm.split_optional(mine.map(|m| m as u64), 0)?;
    let most = (SIZES[SIZES.len() - 1] / 4) as usize;
    let buffers = match &pair {
        Some(pair) => Some([pair.alloc::<f32>(2 * most)?, pair.alloc::<f32>(2 * most)?]),
        None => None,
    };
    let mut meter =
        Meter { comm, pair: pair.as_ref(), alone: between == Between::Ranks || mine == Some(0), buffers };
    let expected = machines.transports[usize::from(between == Between::Hosts)];
    let [rank, peer] = pairs[0];
    let one_way = meter.curve(Probe::PingPong)?;
    let exchange = meter.curve(Probe::Exchange)?;
    let reduce = meter.curve(Probe::Reduce)?;
    let gap_us = meter.time(Probe::Stream, SHORT)?;
    let pull = comm.maps(peer);
    // RDMA that turned out to be closed: what was measured is TCP.
    let otherwise = pair.as_ref().is_some_and(|pair| pair.transport(1 - pair.rank()) != Some(expected));
    let transport = match told(comm, rank, f64::from(u8::from(otherwise)))? > 0.0 {
        true => "tcp",
        false => expected,
    };
    let host_gbps = (between == Between::Hosts).then(|| {
        let of_host = hosts[0].len().min(hosts[1].len()) as f64;
        // By the largest size: what links let through at once after a pause has passed by then.
        let (bytes, us) = exchange[exchange.len() - 1];
        (of_host * bytes as f64 / (us - exchange[0].1).max(1e-3) / 1000.0).max(1e-3)
    });
    let link = LinkCost {
        transport: transport.to_owned(),
        between,
        ranks_per_core: machines.cores.ranks_per_core(),
        pull: told(comm, rank, f64::from(u8::from(pull)))? > 0.0,
        gap_us,
        one_way,
        exchange,
        reduce,
        host_gbps,
    };
    Ok(Some(link))
}

/// What `rank` knows.
fn told(comm: &Communicator, rank: usize, value: f64) -> Result<f64> {
    let mut value = [value];
    comm.broadcast(&mut value, rank)?;
    Ok(value[0])
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Probe {
    /// There and back, by the first pair alone where hosts are crossed; half of it counts.
    PingPong,
    /// Both ranks of every pair send and receive: an all-gather in place.
    Exchange,
    /// Reduce-scatter of every pair, for the bytes of a part.
    Reduce,
    /// From the first rank of every pair to the second, one message after the other.
    Stream,
}

struct Meter<'a> {
    comm: &'a Communicator,
    pair: Option<&'a Communicator>,
    /// Whether this pair measures what one message takes: across hosts only the first does, since all share the way.
    alone: bool,
    buffers: Option<[Buffer<f32>; 2]>,
}

impl Meter<'_> {
    fn curve(&mut self, probe: Probe) -> Result<Points> {
        let mut points = Points::new();
        for bytes in SIZES {
            let us = self.time(probe, bytes)?;
            points.push((bytes, us));
            if us > SLOW * 1e6 {
                break;
            }
        }
        // More bytes never take less time: what seems so is noise in the smaller size.
        for i in (1..points.len()).rev() {
            points[i - 1].1 = points[i - 1].1.min(points[i].1);
        }
        Ok(points)
    }

    /// µs of one iteration, the same on every rank.
    fn time(&mut self, probe: Probe, bytes: u64) -> Result<f64> {
        let first = self.batch(probe, bytes, 1)?.max(1e-7);
        let estimate = self.batch(probe, bytes, ((BATCH / 4.0 / first) as u32).clamp(1, 50))?.max(1e-8);
        let iterations = ((BATCH / estimate) as u32).clamp(1, MOST_ITERATIONS);
        let mut times = Vec::with_capacity(BATCHES);
        for _ in 0..BATCHES {
            times.push(self.batch(probe, bytes, iterations)?);
        }
        times.sort_by(f64::total_cmp);
        let us = times[BATCHES / 2] * 1e6;
        Ok(if probe == Probe::PingPong { us / 2.0 } else { us })
    }

    /// Seconds of one iteration, of the slowest rank that takes part; all ranks call this.
    fn batch(&mut self, probe: Probe, bytes: u64, iterations: u32) -> Result<f64> {
        self.comm.barrier()?;
        let took_part = match (self.pair, &mut self.buffers) {
            (Some(pair), Some(buffers)) if self.alone || probe != Probe::PingPong => {
                let began = Instant::now();
                for _ in 0..iterations {
                    perform(pair, probe, (bytes / 4) as usize, buffers)?;
                }
                began.elapsed().as_secs_f64() / f64::from(iterations)
            }
            _ => 0.0,
        };
        let mut slowest = [took_part];
        self.comm.all_reduce(&mut slowest, ReduceOp::Max)?;
        Ok(slowest[0])
    }
}

/// One iteration, on one rank of a pair.
fn perform(pair: &Communicator, probe: Probe, len: usize, buffers: &mut [Buffer<f32>; 2]) -> Result<()> {
    let peer = 1 - pair.rank();
    let [send, recv] = buffers;
    match probe {
        Probe::PingPong if pair.rank() == 0 => {
            pair.send(&send[..len], peer)?;
            pair.recv(&mut recv[..len], peer)
        }
        Probe::PingPong => {
            pair.recv(&mut recv[..len], peer)?;
            pair.send(&send[..len], peer)
        }
        Probe::Stream if pair.rank() == 0 => pair.send(&send[..len], peer),
        Probe::Stream => pair.recv(&mut recv[..len], peer),
        Probe::Exchange => pair.all_gather_in_place(&mut recv[..2 * len]),
        Probe::Reduce => pair.reduce_scatter(&send[..2 * len], &mut recv[..len], ReduceOp::Sum),
    }
}

/// Lines about what was found.
pub fn summary(costs: &Calibration, path: &Path) -> String {
    let mut out =
        format!("# calibration: {} (use it with ND_CALIBRATION={})\n", path.display(), path.display());
    for link in &costs.link {
        let largest = |points: &Points| {
            let (bytes, us) = points[points.len() - 1];
            format!("{:.2} GB/s at {}", bytes as f64 / us / 1000.0, size::show(bytes))
        };
        let crowded = match link.ranks_per_core {
            1.0 => String::new(),
            ranks => format!(", {ranks:.1} ranks a core"),
        };
        out += &format!(
            "#   {} between {}{crowded}: {:.2} µs, one way {}, both ways {}\n",
            link.transport,
            link.between.name(),
            link.one_way[0].1,
            largest(&link.one_way),
            largest(&link.exchange)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_paired_inside_and_across_hosts() {
        let hosts = vec![vec![0, 2, 4], vec![1, 3], vec![5]];
        assert_eq!(pairs(&hosts, Between::Ranks), [[0, 2], [1, 3]]);
        assert_eq!(pairs(&hosts, Between::Hosts), [[0, 1], [2, 3]]);
        assert!(pairs(&[vec![0], vec![]], Between::Hosts).is_empty());
    }

    #[test]
    fn threads_are_measured_and_the_file_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("costs.toml");
        let ranks = Communicator::local(2).unwrap();
        let known: Vec<Calibration> = std::thread::scope(|s| {
            let threads: Vec<_> = ranks.iter().map(|c| s.spawn(|| calibrate(c, &path).unwrap())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(known[0], known[1]);
        let link = &known[0].link[0];
        assert_eq!((known[0].link.len(), &*link.transport, link.between), (1, "local", Between::Ranks));
        assert!(link.one_way.iter().all(|p| p.1 > 0.0) && link.pull, "{link:?}");
        let written = Calibration::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(written, known[0]);
        std::fs::write(&path, "[[hosts]]").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("costs.toml") && error.contains("no calibration"), "{error}");
    }
}
