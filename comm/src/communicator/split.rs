//! Smaller groups of a communicator's ranks.

use std::sync::Arc;

use nd_transport::{Abilities, DerivedCard, Link};
use serde::{Deserialize, Serialize};

use super::Communicator;
use crate::error::{Error, Result};
use crate::exec::layout;
use crate::exec::stamp::Within;

/// Bytes that a rank's card may have.
const CARD_MAX: u64 = 64 << 10;

/// What the members of a new group tell each other.
#[derive(Serialize, Deserialize)]
pub(super) struct MemberCard {
    pub card: DerivedCard,
    pub inbox: u64,
}

impl Communicator {
    /// Ranks that give the same `color` become a group of their own, numbered by rising `key`, equal keys by rising
    /// rank. All ranks call this. The group shares this communicator's registered memory, and nothing else: both
    /// may be used at the same time by different threads.
    pub fn split(&self, color: u64, key: i64) -> Result<Communicator> {
        let group = self.split_optional(Some(color), key)?;
        Ok(group.expect("a rank with a color is in a group"))
    }

    /// As [`Communicator::split`]; ranks without a color join no group.
    pub fn split_optional(&self, color: Option<u64>, key: i64) -> Result<Option<Communicator>> {
        let mut all = vec![0u64; 3 * self.world_size()];
        let mine = [u64::from(color.is_some()), color.unwrap_or(0), key as u64];
        self.gather_within(Within::Split, &mine, &mut all, None)?;
        let mut members: Vec<(i64, usize)> = all
            .chunks_exact(3)
            .enumerate()
            .filter(|(_, c)| color.is_some_and(|color| c[0] == 1 && c[1] == color))
            .map(|(rank, c)| (c[2] as i64, rank))
            .collect();
        members.sort_unstable();
        let members: Vec<usize> = members.into_iter().map(|m| m.1).collect();

        let recorder = self.shared.recorder.part(color, &members);
        let rank = self.rank();
        let failed = |source| Error::Transport { rank, source };
        let begun = match members.is_empty() {
            true => None,
            false => {
                let inbox =
                    self.shared.region.alloc(layout::inbox_len(members.len()), true).map_err(failed)?;
                let deriving = self
                    .shared
                    .worker
                    .with_engine(|engine| engine.endpoint().derive(&members))
                    .map_err(failed)?;
                Some((inbox, deriving))
            }
        };
        let mine = begun
            .as_ref()
            .map(|(inbox, deriving)| MemberCard { card: deriving.card().clone(), inbox: inbox.offset() });
        let mut cards = self.exchange(&mine)?;
        let (Some((inbox, deriving)), Some(recorder)) = (begun, recorder) else { return Ok(None) };
        let wrong = |rank, what: String| {
            failed(nd_transport::Error::Protocol { rank, what: format!("its card: {what}") })
        };
        let mut card_of =
            |&m: &usize| cards[m].take().ok_or_else(|| wrong(m, "none, although it has a color".into()));
        let cards = members.iter().map(&mut card_of).collect::<Result<Vec<MemberCard>>>()?;
        let derived: Vec<DerivedCard> = cards.iter().map(|c| c.card.clone()).collect();
        let inboxes: Vec<u64> = cards.iter().map(|c| c.inbox).collect();
        let secret = self.shared.secret.derive(format!("split {all:?}").as_bytes());
        let endpoint = self
            .shared
            .worker
            .with_engine(|engine| deriving.connect(engine.endpoint(), &members, &derived, &secret))
            .map_err(failed)?;
        let len = layout::inbox_len(members.len());
        for (peer, &at) in inboxes.iter().enumerate() {
            let maps = |link: &Arc<dyn Link>| link.abilities().contains(Abilities::MAP);
            let link = endpoint.link(peer).filter(|link| maps(link));
            if link.is_some_and(|link| !at.is_multiple_of(layout::LINE) || link.map(at, len).is_none()) {
                return Err(wrong(members[peer], format!("an inbox at {at:#x}, which is not there")));
            }
        }
        let chooser = self.shared.chooser.clone();
        let config = self.shared.config.clone();
        let part = Communicator::assemble(endpoint, inbox, &inboxes, secret, chooser, config, recorder);
        Ok(Some(part.with_timeout(self.timeout)))
    }

    /// Every rank's value, by rank.
    fn exchange<V: Serialize + for<'d> Deserialize<'d>>(&self, mine: &V) -> Result<Vec<V>> {
        let bytes = serde_json::to_vec(mine).expect("cards are plain data");
        let mut lens = vec![0u64; self.world_size()];
        self.gather_within(Within::Split, &[bytes.len() as u64], &mut lens, None)?;
        if let Some(peer) = lens.iter().position(|&len| len > CARD_MAX) {
            let what = format!("its card has {} bytes, {CARD_MAX} are possible", lens[peer]);
            let source = nd_transport::Error::Protocol { rank: peer, what };
            return Err(Error::Transport { rank: self.rank(), source });
        }
        let counts: Vec<usize> = lens.iter().map(|&l| l as usize).collect();
        let mut all = vec![0u8; counts.iter().sum()];
        self.gather_within(Within::Split, &bytes, &mut all, Some(&counts))?;
        let mut rest = &all[..];
        counts
            .iter()
            .enumerate()
            .map(|(peer, &count)| {
                let (bytes, after) = rest.split_at(count);
                rest = after;
                serde_json::from_slice(bytes).map_err(|e| Error::Transport {
                    rank: self.rank(),
                    source: nd_transport::Error::Protocol { rank: peer, what: format!("its card: {e}") },
                })
            })
            .collect()
    }
}
