//! `ND_DEBUG`: which events of which parts are shown. Events go through `tracing`; a program that has a subscriber of its
//! own decides itself, the commands here follow this.

use std::fmt;

use tracing::level_filters::LevelFilter;

use super::values::{Bad, bad};

/// A level for all, and levels for parts, by the names of modules: `info,nd_transport=debug`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logging {
    /// For all other parts.
    pub level: LevelFilter,
    /// Parts, such as `nd_comm::rendezvous`, and their levels.
    pub parts: Vec<(String, LevelFilter)>,
}

impl Default for Logging {
    fn default() -> Logging {
        Logging { level: LevelFilter::INFO, parts: Vec::new() }
    }
}

impl Logging {
    /// The same for all parts.
    pub fn at(level: LevelFilter) -> Logging {
        Logging { level, parts: Vec::new() }
    }

    pub(super) fn parse(text: &str) -> Result<Logging, Bad> {
        let mut logging = Logging::default();
        for piece in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            match piece.split_once('=') {
                None => logging.level = level(piece)?,
                Some((part, of_part)) => {
                    let part = part.trim();
                    let plain = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
                    if part.is_empty() || !part.chars().all(plain) {
                        return bad(format!("{part:?} is no part"), "write a module, such as nd_comm=debug");
                    }
                    logging.parts.push((part.to_owned(), level(of_part.trim())?));
                }
            }
        }
        Ok(logging)
    }
}

/// Our levels, and NCCL's (`VERSION` and `ABORT` are its quietest two).
fn level(text: &str) -> Result<LevelFilter, Bad> {
    match text.to_ascii_lowercase().as_str() {
        "off" | "none" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" | "version" | "abort" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => bad(
            format!("no such level as {text:?}"),
            "write off, error, warn, info, debug or trace, for parts nd_transport=debug",
        ),
    }
}

impl fmt::Display for Logging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.level)?;
        self.parts.iter().try_for_each(|(part, level)| write!(f, ",{part}={level}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_and_levels_of_parts() {
        let both = Logging::parse("warn, nd_transport::tcp=trace,nd_comm=DEBUG").unwrap();
        assert_eq!(both.level, LevelFilter::WARN);
        assert_eq!(both.to_string(), "warn,nd_transport::tcp=trace,nd_comm=debug");
        assert_eq!(Logging::parse(&both.to_string()), Ok(both));
        assert_eq!(Logging::parse("nd_comm=off").unwrap().level, Logging::default().level);
        for wrong in ["loud", "=debug", "nd comm=debug", "nd_comm=", "nd_comm=loud"] {
            assert!(Logging::parse(wrong).is_err(), "{wrong}");
        }
    }
}
