//! What one world goes through: drawn from a seed. Pure.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::draw::Draw;

/// What happens to one rank, or to a cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The process gets SIGKILL.
    Kill,
    /// The process gets SIGSTOP.
    Stop,
    /// The program aborts the communicator, from another thread.
    Abort,
    /// The program ends in another thread, in the middle of whatever goes on.
    Exit,
    /// The program drops the communicator between calls.
    Leave,
    /// The program calls something else.
    Mismatch,
    /// The program makes no more calls, so that what is sent to it stays where it is.
    Deaf,
    /// The second host's interface goes down.
    Cable,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 8] = [
        Fault::Kill,
        Fault::Stop,
        Fault::Abort,
        Fault::Exit,
        Fault::Leave,
        Fault::Mismatch,
        Fault::Deaf,
        Fault::Cable,
    ];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Stop => "stop",
            Fault::Abort => "abort",
            Fault::Exit => "exit",
            Fault::Leave => "leave",
            Fault::Mismatch => "mismatch",
            Fault::Deaf => "deaf",
            Fault::Cable => "cable",
        }
    }

    /// Whether somebody tells the other ranks: the kernel, or the rank itself. Otherwise they learn by their deadline.
    pub fn is_told(self) -> bool {
        !matches!(self, Fault::Stop | Fault::Deaf | Fault::Cable)
    }

    /// Whether the rank goes on and has to clean up as the others do.
    pub fn leaves_the_rank(self) -> bool {
        !matches!(self, Fault::Kill | Fault::Stop | Fault::Exit)
    }
}

/// How ranks are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Joined {
    /// By shared memory.
    Shm,
    /// By TCP over loopback.
    Tcp,
    /// By shared memory on each of two hosts, and TCP between them.
    Mix,
}

impl Joined {
    /// All of them.
    pub const ALL: [Joined; 3] = [Joined::Shm, Joined::Tcp, Joined::Mix];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Joined::Shm => "shm",
            Joined::Tcp => "tcp",
            Joined::Mix => "mix",
        }
    }
}

fn by_name<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str, text: &str) -> Result<T, String> {
    let names: Vec<_> = all.iter().map(|&one| name(one)).collect();
    let found = all.iter().copied().find(|&one| name(one) == text);
    found.ok_or_else(|| format!("{text}: no such thing; use one of {}", names.join(", ")))
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        by_name(&Fault::ALL, Fault::name, text)
    }
}

impl FromStr for Joined {
    type Err = String;

    fn from_str(text: &str) -> Result<Joined, String> {
        by_name(&Joined::ALL, Joined::name, text)
    }
}

/// One world and its fault.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Repeats it.
    pub seed: u64,
    /// What happens.
    pub fault: Fault,
    /// How the ranks are joined.
    pub joined: Joined,
    /// How many there are, 2 to 8.
    pub ranks: usize,
    /// To whom it happens; for a cable, the first rank beyond it.
    pub victim: usize,
    /// Whether it happens during the start.
    pub at_start: bool,
    /// How long after the ranks were started, or after all are ready.
    pub after: Duration,
    /// How long a call may wait.
    pub timeout: Duration,
    /// Whether plain buffers are read by cross-memory attach.
    pub attach: bool,
    /// Whether what goes by TCP is encrypted.
    pub encrypt: bool,
}

/// One case in so many happens during the start.
const AT_START: usize = 20;
/// The start of a few ranks takes some 100 ms.
const START: Duration = Duration::from_millis(120);
/// Most calls take less than this; some cases end before the first call is through.
const CALLS: Duration = Duration::from_millis(250);

impl Case {
    /// By its seed, for this fault and these links.
    pub fn draw(seed: u64, fault: Fault, joined: Joined) -> Case {
        let mut draw = Draw::new(seed, &[1]);
        let ranks: usize = draw.of(&[2, 2, 3, 3, 4, 4, 5, 6, 8]);
        let victim = if fault == Fault::Cable { ranks.div_ceil(2) } else { draw.below(ranks) };
        // Others wait for the start's deadline.
        let at_start = draw.below(AT_START) == 0 && matches!(fault, Fault::Kill | Fault::Exit | Fault::Abort);
        // As often in the first millisecond as in the first ten.
        let share = draw.share().powi(3);
        Case {
            seed,
            fault,
            joined,
            ranks,
            victim,
            at_start,
            after: if at_start { START } else { CALLS }.mul_f64(share),
            timeout: if fault.is_told() { Duration::from_secs(20) } else { Duration::from_millis(1500) },
            attach: draw.below(2) == 0,
            encrypt: draw.below(4) == 0,
        }
    }

    /// On which of two hosts a rank is.
    pub fn host(&self, rank: usize) -> usize {
        usize::from(self.joined == Joined::Mix && rank >= self.ranks.div_ceil(2))
    }

    /// Whether an error of this rank that names these ranks names the right one.
    pub fn is_right(&self, rank: usize, named: &[usize]) -> bool {
        match self.fault {
            Fault::Cable => named.iter().any(|&other| self.host(other) != self.host(rank)),
            _ => named.contains(&self.victim),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { seed, fault, joined, ranks, victim, at_start, after, .. } = self;
        let moment = if *at_start { "after the start began" } else { "after all were ready" };
        write!(f, "seed {seed}: {} of rank {victim} of {ranks} over {}", fault.name(), joined.name())?;
        write!(f, ", {:.1} ms {moment}", after.as_secs_f64() * 1e3)?;
        f.write_str(if self.attach { ", cross-memory attach" } else { "" })?;
        f.write_str(if self.encrypt { ", encrypted" } else { "" })
    }
}

/// The ranks that a text names: `rank 3`, `ranks 1, 2 and 5-7`.
pub fn named(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("rank") {
        let rest = &text[at + 4..];
        let list = rest.strip_prefix("s ").or_else(|| rest.strip_prefix(' '));
        let Some(mut list) = list.map(|list| list.trim_start_matches('[')) else { continue };
        let many = rest.starts_with('s');
        loop {
            let digits = list.len() - list.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let Ok(first) = list[..digits].parse::<usize>() else { break };
            list = &list[digits..];
            let range = list.strip_prefix('-').and_then(|after| {
                let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                Some((after[..digits].parse::<usize>().ok()?, &after[digits..]))
            });
            let last = range.map_or(first, |(last, after)| {
                list = after;
                last
            });
            found.extend(first..=last.min(first + 64));
            let next = list.strip_prefix(", ").or_else(|| list.strip_prefix(" and "));
            match next.filter(|_| many) {
                Some(next) => list = next,
                None => break,
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_found_in_errors() {
        for (text, ranks) in [
            ("rank 0: rank 12 (a, pid 7) aborted", &[0, 12][..]),
            ("ranks 3, 5-7 of 8 did not join", &[3, 5, 6, 7]),
            ("ranks 1 and 2 waited; prank 9x", &[1, 2, 9]),
            ("joining of ranks [1, 2] to", &[1, 2]),
            ("no ranks at all, rank x", &[]),
        ] {
            assert_eq!(named(text), ranks, "{text}");
        }
    }

    #[test]
    fn cases_are_as_their_kind_says() {
        for seed in 0..2000 {
            let fault = Fault::ALL[seed as usize % Fault::ALL.len()];
            let case = Case::draw(seed, fault, Joined::Mix);
            assert_eq!(case, Case::draw(seed, fault, Joined::Mix));
            assert!((2..=8).contains(&case.ranks) && case.victim < case.ranks);
            assert!(case.after < START.max(CALLS));
            if fault == Fault::Cable {
                assert_ne!(case.host(case.victim), case.host(0));
                assert!(case.is_right(0, &[0, case.victim]) && !case.is_right(case.victim, &[case.victim]));
            } else {
                assert!(case.is_right(0, &[case.victim]) && !case.is_right(0, &[case.victim + 1]));
            }
        }
        assert_eq!("deaf".parse(), Ok(Fault::Deaf));
        assert!("quake".parse::<Fault>().unwrap_err().contains("kill, stop"));
        assert!("udp".parse::<Joined>().unwrap_err().contains("shm, tcp, mix"));
    }
}
