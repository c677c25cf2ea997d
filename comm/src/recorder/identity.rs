//! Which job and communicator calls belong to, and whose they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nd_transport::secure::Secret;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A rank of a communicator, as people look for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its number in this communicator.
    pub rank: usize,
    /// Its number in the job's first communicator.
    pub world_rank: usize,
    /// Its host's name; empty: not known.
    pub host: String,
    /// Its process; 0: not known.
    pub pid: u32,
}

/// Names a communicator of a job, the same on all its ranks.
#[derive(Debug)]
pub(crate) struct Identity {
    pub job: String,
    pub communicator: String,
    pub rank: usize,
    pub peers: Arc<[Peer]>,
    splits: AtomicU32,
}

/// The first communicator of a job.
const WORLD: &str = "world";
/// Characters of a communicator's name: split after split it would outgrow what a file's name may have.
const NAME_MAX: usize = 80;

impl Identity {
    /// Of a job's first communicator. `secret` is the communicator's own, random: what is shown of it is the beginning of a
    /// hash that nothing else uses, to tell the jobs apart that had the same process numbers.
    pub fn world(rank: usize, peers: Vec<Peer>, secret: &Secret) -> Identity {
        let mut hash = Sha256::new();
        hash.update(b"nd job name\0");
        hash.update(secret.as_bytes());
        let tag: String = hash.finalize()[..4].iter().map(|b| format!("{b:02x}")).collect();
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let job = match peers.first() {
            Some(first) if !first.host.is_empty() => {
                let host: String = first.host.chars().map(plain).take(64).collect();
                format!("{host}-{}-{tag}", first.pid)
            }
            _ => format!("job-{tag}"),
        };
        Identity { job, communicator: WORLD.into(), rank, peers: peers.into(), splits: AtomicU32::new(0) }
    }

    /// Of those of these ranks who go on after a failure.
    pub fn rest(&self, members: &[usize]) -> Option<Identity> {
        self.of(format!("{}-s{}", self.communicator, members.len()), members)
    }

    /// Of a part of these ranks. Every rank calls this for every split, with a color or without: so the parts are counted
    /// alike everywhere.
    pub fn part(&self, color: Option<u64>, members: &[usize]) -> Option<Identity> {
        let number = self.splits.fetch_add(1, Ordering::Relaxed) + 1;
        self.of(format!("{}-{number}c{}", self.communicator, color?), members)
    }

    fn of(&self, mut communicator: String, members: &[usize]) -> Option<Identity> {
        if communicator.len() > NAME_MAX {
            let hash = Sha256::digest(communicator.as_bytes());
            let hash: String = hash[..6].iter().map(|b| format!("{b:02x}")).collect();
            communicator = format!("{}_{hash}", &communicator[..NAME_MAX - 13]);
        }
        let me = &self.peers.get(self.rank)?;
        let peers: Vec<Peer> = members
            .iter()
            .enumerate()
            .filter_map(|(rank, &member)| Some(Peer { rank, ..self.peers.get(member)?.clone() }))
            .collect();
        let rank = peers.iter().position(|p| p.world_rank == me.world_rank)?;
        let splits = AtomicU32::new(0);
        Some(Identity { job: self.job.clone(), communicator, rank, peers: peers.into(), splits })
    }

    /// This rank.
    pub fn own(&self) -> &Peer {
        &self.peers[self.rank]
    }

    /// `nd-recorder.<job>.<communicator>.rank<R>.json`.
    pub fn file_name(&self) -> String {
        format!("{}{}.{}.rank{}.json", super::PREFIX, self.job, self.communicator, self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(rank: usize, secret: &Secret) -> Identity {
        let peer = |r| Peer { rank: r, world_rank: r, host: "node 1.x/y".into(), pid: 70 + r as u32 };
        Identity::world(rank, (0..6).map(peer).collect(), secret)
    }

    #[test]
    fn names_agree_between_ranks_and_show_no_secret() {
        let secret = Secret::random();
        let (a, b) = (world(0, &secret), world(5, &secret));
        assert_eq!(a.job, b.job);
        assert!(a.job.starts_with("node_1_x_y-70-"), "{}", a.job);
        assert!(!secret.reveal_hex().contains(&a.job[a.job.len() - 8..]));
        assert_ne!(a.job, world(0, &Secret::random()).job);
        assert!(a.part(None, &[]).is_none());
        assert!(b.part(Some(9), &[5, 1]).is_some());
        let (a, b) = (a.part(Some(1), &[4, 0]).unwrap(), b.part(Some(1), &[1, 5]).unwrap());
        assert_eq!((&a.communicator[..], a.rank, a.own().pid), ("world-2c1", 1, 70));
        assert_eq!((&b.communicator[..], b.rank, b.own().world_rank), ("world-2c1", 1, 5));
        assert_eq!(b.file_name(), format!("nd-recorder.{}.world-2c1.rank1.json", b.job));
    }

    #[test]
    fn names_stay_short() {
        let mut part = world(0, &Secret::random());
        for _ in 0..100 {
            part = part.part(Some(u64::MAX), &[0, 1]).unwrap();
            assert!(part.communicator.len() <= NAME_MAX && part.file_name().len() < 220);
        }
    }
}
