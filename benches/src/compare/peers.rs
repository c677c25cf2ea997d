//! Who is compared with.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;

use super::case::Collective;

/// A library that a user might pick instead, as `scripts/setup-compare` installs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum Peer {
    /// Open MPI 5, Python's package.
    OpenMpi,
    /// Open MPI 4, Debian's package.
    OpenMpi4,
    /// MPICH 5, Python's package.
    Mpich,
    /// MPICH 4, Debian's package.
    Mpich4,
    /// Intel MPI, Python's package.
    Impi,
    /// oneCCL on processors, Python's package.
    OneCcl,
    /// Gloo in torch; TCP only.
    Gloo,
    /// Ours again: the noise of the machine.
    #[value(name = "self")]
    #[serde(rename = "self")]
    Ours,
}

impl Peer {
    /// Its name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Peer::OpenMpi => "openmpi",
            Peer::OpenMpi4 => "openmpi4",
            Peer::Mpich => "mpich",
            Peer::Mpich4 => "mpich4",
            Peer::Impi => "impi",
            Peer::OneCcl => "oneccl",
            Peer::Gloo => "gloo",
            Peer::Ours => "self",
        }
    }

    /// Its folder.
    pub fn place(self, home: &Path) -> PathBuf {
        home.join(self.name())
    }

    /// Why it cannot be compared with; none: it can.
    pub fn missing(self, home: &Path) -> Option<String> {
        if self == Peer::Ours {
            return None;
        }
        let place = self.place(home);
        if let Ok(reason) = std::fs::read_to_string(place.join("left-out")) {
            return Some(reason.trim().to_owned());
        }
        let needed = if self == Peer::Gloo { "python" } else { "bench" };
        let there = place.join(needed).is_file();
        (!there).then(|| format!("it is not set up; run scripts/setup-compare {}", self.name()))
    }

    /// Whether it works in place where ours is measured both ways: then ours in place is what it is compared with.
    pub fn in_place(self, collective: Collective) -> bool {
        match collective {
            Collective::Broadcast => self != Peer::Ours,
            Collective::AllReduce | Collective::Reduce => self == Peer::Gloo,
            _ => false,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for peer in Peer::value_variants() {
            assert_eq!(peer.to_possible_value().unwrap().get_name(), peer.name());
            assert_eq!(serde_json::to_value(peer).unwrap(), peer.name());
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        let home = tempfile::tempdir().unwrap();
        let place = Peer::Mpich.place(home.path());
        std::fs::create_dir_all(&place).unwrap();
        assert!(Peer::Mpich.missing(home.path()).unwrap().contains("setup-compare mpich"));
        std::fs::write(place.join("bench"), "").unwrap();
        assert_eq!(Peer::Mpich.missing(home.path()), None);
        std::fs::write(place.join("left-out"), "no network\n").unwrap();
        assert_eq!(Peer::Mpich.missing(home.path()).as_deref(), Some("no network"));
        assert_eq!(Peer::Ours.missing(home.path()), None);
    }
}
