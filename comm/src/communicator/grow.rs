//! More ranks.

use nd_transport::secure::Secret;
use sha2::{Digest, Sha256};

use super::Communicator;
use crate::error::{Error, Result};
use crate::exec::stamp::Within;
use crate::rendezvous::{Meeting, UniqueId};

impl Communicator {
    /// A communicator of these ranks, which keep their numbers, and of new ones, which follow: `world_size` in all. All
    /// ranks call this, with the same `id`; each new one calls [`Communicator::new`] with that `id`, its number (from
    /// this communicator's size on) and the same `world_size`. As all of them meet anew, hosts and links may be
    /// others than before.
    ///
    /// ```no_run
    /// # use nd_comm::prelude::*;
    /// # fn publish(_: &str) {}
    /// # fn main() -> Result<()> {
    /// # let comm = Communicator::local(1)?.remove(0);
    /// let mut text = [0u8; 256];
    /// let made; // lives until all have joined
    /// if comm.rank() == 0 {
    ///     made = UniqueId::create(&Config::from_env()?)?;
    ///     publish(&made.to_secret_string()); // to the two new ranks, in a way that only they can read
    ///     text[..made.to_bytes().len()].copy_from_slice(&made.to_bytes());
    /// }
    /// comm.broadcast(&mut text, 0)?;
    /// let comm = comm.grow(&UniqueId::from_bytes(&text)?, comm.world_size() + 2)?;
    /// # Ok(()) }
    /// ```
    ///
    /// This communicator stays as it is, whether or not that succeeds: until it is dropped, both can be used. Memory of
    /// its [`alloc`](Communicator::alloc) is plain memory to the new one.
    ///
    /// # Errors
    /// [`Error::Membership`] on all ranks when they give different ids or sizes, or no larger size; nothing else was
    /// done then. As for [`Communicator::new`] when new ranks do not come in time (the missing are named) or too many
    /// do; an id serves for one attempt. When somebody who knows the `id` pretends to be one of these ranks.
    pub fn grow(&self, id: &UniqueId, world_size: usize) -> Result<Communicator> {
        let rank = self.rank();
        let failed = |problem: String, remedy: &str| Error::Membership {
            rank,
            call: "grow",
            problem,
            remedy: remedy.into(),
        };
        let hash = Sha256::digest(id.to_bytes());
        let short = u64::from_le_bytes(std::array::from_fn(|i| hash[i]));
        let mut all = vec![0u64; 2 * self.world_size()];
        self.gather_within(Within::Grow, &[short, world_size as u64], &mut all, None)?;
        for (peer, other) in all.chunks_exact(2).enumerate() {
            if other[1] != all[1] {
                return Err(failed(
                    format!("rank {peer} gives {} as the new size, rank 0 gives {}", other[1], all[1]),
                    "give the same on all ranks",
                ));
            }
            if other[0] != all[0] {
                return Err(failed(
                    format!("rank {peer} gives another id than rank 0"),
                    "make one id, on one rank, and broadcast it to the others",
                ));
            }
        }
        if world_size <= self.world_size() {
            return Err(failed(
                format!("the new size {world_size} is not above the present one, {}", self.world_size()),
                "give the number of all ranks, these and the new ones",
            ));
        }
        let lineage = Lineage {
            secret: self.shared.secret.derive(&[b"nd grow ", &hash[..]].concat()),
            ranks: self.world_size(),
        };
        Communicator::open(Meeting::from(id), rank, world_size, &self.shared.config, Some(&lineage))
    }
}

/// What the ranks of a communicator that grows know and new ones do not.
pub(super) struct Lineage {
    secret: Secret,
    ranks: usize,
}

impl Lineage {
    /// That this is that rank.
    pub fn proof(&self, rank: usize) -> String {
        self.secret.derive(&(rank as u64).to_le_bytes()).reveal_hex()
    }

    /// Whether those who have the old ranks' numbers are the old ranks, by their proofs in order.
    pub fn check<'p>(&self, proofs: impl Iterator<Item = Option<&'p str>>) -> Result<()> {
        for (rank, proof) in proofs.take(self.ranks).enumerate() {
            let proven = proof.and_then(Secret::from_hex);
            if proven != Some(self.secret.derive(&(rank as u64).to_le_bytes())) {
                return Err(Error::Rendezvous {
                    who: "grow".into(),
                    problem: format!(
                        "whoever joined as rank {rank} is not rank {rank} of the communicator that grows"
                    ),
                    remedy: format!(
                        "start new ranks with numbers from {} on, and give the id to nobody else",
                        self.ranks
                    ),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_rank_and_one_group() {
        let lineage = |secret| Lineage { secret, ranks: 2 };
        let ours = lineage(Secret::from_bytes([1; 32]));
        let proofs = [0, 1].map(|rank| ours.proof(rank));
        let check = |lineage: &Lineage, proofs: [Option<&str>; 3]| lineage.check(proofs.into_iter());
        assert!(check(&ours, [Some(&proofs[0]), Some(&proofs[1]), None]).is_ok());
        let other = lineage(Secret::from_bytes([2; 32]));
        for wrong in [[Some(&proofs[1][..]), Some(&proofs[0])], [Some(&proofs[0]), None]] {
            let [a, b] = wrong;
            assert!(check(&ours, [a, b, None]).is_err());
        }
        let told = check(&other, [Some(&proofs[0]), Some(&proofs[1]), None]).expect_err("another group");
        assert!(told.to_string().contains("joined as rank 0 is not rank 0"), "{told}");
    }
}
