//! Who has joined: the protocol's state, pure.

/// What a rank says when it joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Its number.
    pub rank: usize,
    /// How many ranks it expects.
    pub world_size: usize,
    /// Its host, for messages.
    pub host: String,
    /// Its process, for messages.
    pub pid: u32,
    /// How long it will wait from now on, ms.
    pub patience_ms: u64,
    /// What the others get to know, or why this rank cannot take part.
    pub card: Result<Vec<u8>, Failure>,
}

/// Why the start has failed, for every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What happened.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

/// Who has joined. The first to join says how many there are, unless it is known before.
#[derive(Debug, Default)]
pub struct Roll {
    world_size: Option<usize>,
    present: Vec<Option<Hello>>,
    joined: usize,
}

impl Roll {
    /// Nobody has joined; `world_size` if it is known.
    pub fn new(world_size: Option<usize>) -> Roll {
        Roll { world_size, present: vec![None; world_size.unwrap_or(0)], joined: 0 }
    }

    /// A rank joins.
    ///
    /// # Errors
    /// The number is taken, out of range, the world sizes differ, or the rank says that it cannot take part: the start has
    /// failed for all.
    pub fn admit(&mut self, hello: Hello) -> Result<(), Failure> {
        let size = *self.world_size.get_or_insert(hello.world_size);
        if hello.world_size != size {
            let other = self.present.iter().flatten().next();
            let other = other.map_or(format!("the others expect {size}"), |o| {
                format!("rank {} ({}) expects {size}", o.rank, place(o))
            });
            return fail(
                format!(
                    "rank {} ({}) expects {} ranks, {other}",
                    hello.rank,
                    place(&hello),
                    hello.world_size
                ),
                "start all ranks with the same WORLD_SIZE, and one job at a time on one MASTER_PORT",
            );
        }
        if self.present.len() < size {
            self.present.resize(size, None);
        }
        let Some(seat) = self.present.get_mut(hello.rank) else {
            return fail(
                format!("rank {} ({}) is not below the world size {size}", hello.rank, place(&hello)),
                "ranks count from 0",
            );
        };
        if let Some(first) = seat {
            return fail(
                format!(
                    "two processes say that they are rank {}: {}, and {}",
                    hello.rank,
                    place(first),
                    place(&hello)
                ),
                "give every process a RANK of its own, and run one job at a time on one MASTER_PORT",
            );
        }
        if let Err(Failure { problem, remedy }) = &hello.card {
            return fail(format!("rank {} ({}) {CANNOT}: {problem}", hello.rank, place(&hello)), remedy);
        }
        *seat = Some(hello);
        self.joined += 1;
        Ok(())
    }

    /// A rank that had joined went away before all were there.
    pub fn left(&self, rank: usize) -> Failure {
        Failure {
            problem: format!(
                "rank {rank} ({}) joined and went away before all ranks were there",
                self.who(rank)
            ),
            remedy: "look at what it printed".into(),
        }
    }

    /// The program of a rank that had joined aborted the start.
    pub fn aborted(&self, rank: usize) -> Failure {
        Failure {
            problem: format!("rank {rank} ({}) aborted the start", self.who(rank)),
            remedy: "start again".into(),
        }
    }

    fn who(&self, rank: usize) -> String {
        self.present.get(rank).and_then(Option::as_ref).map_or("unknown".into(), place)
    }

    /// Time is up. `idle` is said of this process where it has not run for a while before.
    pub fn overdue(&self, within: &str, refused: &[String], idle: Option<&str>) -> Failure {
        let size = self.world_size.unwrap_or(0);
        let missing: Vec<usize> = (0..size).filter(|r| self.present[*r].is_none()).collect();
        let mut problem = match missing.len() {
            0 if size > 0 => format!("ranks that had joined waited no longer than {within}"),
            0 => format!("nobody joined within {within}"),
            1 => format!("rank {} of {size} did not join within {within}", ranges(&missing)),
            _ => format!("ranks {} of {size} did not join within {within}", ranges(&missing)),
        };
        if !refused.is_empty() {
            problem += &format!(" (refused meanwhile: {})", refused.join("; "));
        }
        if let Some(idle) = idle {
            return Failure {
                problem: format!("{problem}; but {idle}"),
                remedy: "look at who stopped it, or allow more time with ND_START_TIMEOUT".into(),
            };
        }
        Failure {
            problem,
            remedy: "look at what they printed, or allow more time with ND_START_TIMEOUT".into(),
        }
    }

    /// How many have joined; for tests.
    #[cfg(test)]
    pub fn joined(&self) -> usize {
        self.joined
    }

    /// How many there will be, once somebody has said so.
    pub fn world_size(&self) -> Option<usize> {
        self.world_size
    }

    /// Whether all are there.
    pub fn complete(&self) -> bool {
        self.world_size == Some(self.joined)
    }

    /// The cards of all ranks, in order; none: not all are there.
    pub fn into_cards(self) -> Option<Vec<Vec<u8>>> {
        self.present.into_iter().map(|hello| hello?.card.ok()).collect()
    }
}

/// What is said of a rank that tells the others why it does not join.
pub const CANNOT: &str = "cannot take part in the start";

/// `3, 5-7`.
pub fn ranges(sorted: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &n in sorted {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => parts.push((n, n)),
        }
    }
    let parts: Vec<String> =
        parts.into_iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    parts.join(", ")
}

/// Where a rank is, for messages.
pub fn place(hello: &Hello) -> String {
    format!("host {}, pid {}", hello.host, hello.pid)
}

fn fail<T>(problem: String, remedy: &str) -> Result<T, Failure> {
    Err(Failure { problem, remedy: remedy.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello(rank: usize, world_size: usize) -> Hello {
        let (host, card) = (format!("host{rank}"), Ok(vec![rank as u8]));
        Hello { rank, world_size, host, pid: 100 + rank as u32, patience_ms: 1, card }
    }

    #[test]
    fn duplicates_are_both_named() {
        let mut roll = Roll::new(None);
        roll.admit(hello(1, 3)).unwrap();
        let other = Hello { host: "b".into(), pid: 7, ..hello(1, 3) };
        let problem = roll.admit(other).unwrap_err().problem;
        assert_eq!(problem, "two processes say that they are rank 1: host host1, pid 101, and host b, pid 7");
    }

    #[test]
    fn who_cannot_take_part_is_named_with_the_reason() {
        let mut roll = Roll::new(Some(3));
        let why = Failure { problem: "no port".into(), remedy: "plug it in".into() };
        let failure = roll.admit(Hello { card: Err(why), ..hello(2, 3) }).unwrap_err();
        assert_eq!(failure.problem, "rank 2 (host host2, pid 102) cannot take part in the start: no port");
        assert_eq!((failure.remedy.as_str(), roll.joined()), ("plug it in", 0));
    }

    #[test]
    fn sizes_that_differ_are_named() {
        let mut roll = Roll::new(None);
        roll.admit(hello(1, 3)).unwrap();
        let problem = roll.admit(hello(2, 4)).unwrap_err().problem;
        assert_eq!(
            problem,
            "rank 2 (host host2, pid 102) expects 4 ranks, rank 1 (host host1, pid 101) expects 3"
        );
        let problem = Roll::new(Some(2)).admit(hello(5, 2)).unwrap_err().problem;
        assert!(problem.contains("rank 5") && problem.contains("world size 2"), "{problem}");
    }

    #[test]
    fn the_missing_are_listed() {
        let mut roll = Roll::new(Some(8));
        for rank in [0, 1, 2, 4] {
            roll.admit(hello(rank, 8)).unwrap();
        }
        assert_eq!(roll.overdue("60 s", &[], None).problem, "ranks 3, 5-7 of 8 did not join within 60 s");
        let late = roll.overdue("60 s", &[], Some("rank 0 did not run for 70 s")).problem;
        assert!(late.ends_with("did not join within 60 s; but rank 0 did not run for 70 s"), "{late}");
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[4]), "4");
    }

    proptest! {
        /// In whatever order ranks join, cards come out by rank; until the last one, not all are there.
        #[test]
        fn any_order(order in Just((0..40usize).collect::<Vec<_>>()).prop_shuffle()) {
            let mut roll = Roll::new(None);
            for (n, rank) in order.iter().enumerate() {
                prop_assert!(!roll.complete());
                prop_assert_eq!(roll.joined(), n);
                prop_assert!(roll.admit(hello(*rank, 40)).is_ok());
            }
            prop_assert!(roll.complete());
            let cards = roll.into_cards().unwrap();
            prop_assert!(cards.iter().enumerate().all(|(r, c)| c == &[r as u8]));
        }

        /// Whatever is said, the roll neither panics nor counts wrongly.
        #[test]
        fn any_words(words in proptest::collection::vec((0..6usize, 0..5usize), 0..12)) {
            let mut roll = Roll::new(None);
            for (rank, size) in words {
                let before = roll.joined();
                let admitted = roll.admit(hello(rank, size)).is_ok();
                prop_assert_eq!(roll.joined(), before + usize::from(admitted));
                prop_assert!(roll.joined() <= roll.world_size().unwrap_or(0));
                let _ = roll.overdue("1 s", &[], None);
            }
        }
    }
}
