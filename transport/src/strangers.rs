//! What is said of strangers: a line for each source now and then, with a count, however many knock. Pure.

use std::time::{Duration, Instant};

/// At most one line about a source in this time.
pub const EVERY: Duration = Duration::from_secs(10);
/// At most so many sources have a line of their own in this time.
pub const SOURCES: usize = 16;

/// Who was refused lately.
#[derive(Debug, Default)]
pub struct Strangers {
    sources: Vec<Source>,
    /// Refused without a line, from sources beyond those.
    others: u64,
}

#[derive(Debug)]
struct Source {
    name: String,
    said: Instant,
    quiet: u64,
}

impl Strangers {
    /// Somebody from `source` was refused. Gives how many more were since the last line about it if a line is due.
    pub fn refused(&mut self, source: &str, now: Instant) -> Option<u64> {
        let due = |said: Instant| now.saturating_duration_since(said) >= EVERY;
        if let Some(known) = self.sources.iter_mut().find(|s| s.name == source) {
            if !due(known.said) {
                known.quiet += 1;
                return None;
            }
            known.said = now;
            return Some(std::mem::take(&mut known.quiet));
        }
        if self.sources.len() == SOURCES {
            match self.sources.iter().position(|s| due(s.said)) {
                Some(old) => self.others += self.sources.swap_remove(old).quiet,
                None => {
                    self.others += 1;
                    return None;
                }
            }
        }
        self.sources.push(Source { name: source.into(), said: now, quiet: 0 });
        Some(0)
    }

    /// The last word: who was refused without a line so far, and how often.
    pub fn rest(&mut self) -> Vec<(String, u64)> {
        let named = self.sources.drain(..).map(|s| (s.name, s.quiet));
        let others = ("other sources".to_owned(), std::mem::take(&mut self.others));
        named.chain([others]).filter(|(_, quiet)| *quiet > 0).collect()
    }
}

/// How a line says what [`Strangers::refused`] counted.
pub fn more(quiet: u64) -> String {
    if quiet == 0 { String::new() } else { format!(" ({quiet} more from there since the last such line)") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_source_and_every_one_is_counted() {
        let (mut strangers, start) = (Strangers::default(), Instant::now());
        assert_eq!(strangers.refused("a", start), Some(0));
        for _ in 0..1000 {
            assert_eq!(strangers.refused("a", start), None);
        }
        assert_eq!(strangers.refused("b", start), Some(0));
        assert_eq!(strangers.refused("a", start + EVERY), Some(1000));
        assert_eq!(strangers.refused("a", start + EVERY), None);
        assert_eq!(strangers.rest(), [("a".to_owned(), 1)]);
        assert_eq!(strangers.rest(), []);
    }

    #[test]
    fn many_sources_cost_as_much_as_few() {
        let (mut strangers, start) = (Strangers::default(), Instant::now());
        let lines = (0..10_000).filter_map(|i| strangers.refused(&i.to_string(), start)).count();
        assert_eq!((lines, strangers.sources.len()), (SOURCES, SOURCES));
        assert_eq!(strangers.refused("late", start + EVERY), Some(0));
        assert_eq!(strangers.rest(), [("other sources".to_owned(), 10_000 - SOURCES as u64)]);
    }
}
