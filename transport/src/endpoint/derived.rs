//! Some of an endpoint's ranks as a group of their own.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Endpoint, Parts, Way, bell_name, bell_socket, far_link, join_far};
use crate::bell::Bell;
use crate::cores;
use crate::secure::Secret;
use crate::tcp::{self, TcpCard};
use crate::verbs::{Equipment, Group};
use crate::{Card, Config, Error, Result, Stop, Window};

/// A part of an endpoint's ranks that is about to become a group of its own; see [`Endpoint::derive`].
#[derive(Debug)]
pub struct Deriving {
    header: Window,
    tcp: Option<tcp::Listening>,
    equipment: Equipment,
    card: DerivedCard,
}

/// What the members of a derived group tell each other.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DerivedCard {
    sleep: u64,
    tcp: Option<TcpCard>,
    /// Why it cannot use its RDMA devices for the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unable: Option<String>,
}

impl Deriving {
    /// What the other members need.
    pub fn card(&self) -> &DerivedCard {
        &self.card
    }

    /// Makes the endpoint of the group of `members`, in that order, this rank among them; `cards` are theirs, `secret` is
    /// the group's own.
    ///
    /// # Errors
    /// [`Error::Unreachable`], on all members, where verbs were asked for and one of them cannot use them.
    pub fn connect(
        self,
        parent: &Endpoint,
        members: &[usize],
        cards: &[DerivedCard],
        secret: &Secret,
    ) -> Result<Endpoint> {
        let Deriving { header, tcp, equipment, card } = self;
        let config = Config { stop: Stop::default(), ..parent.config.clone() };
        let rank = members.iter().position(|&m| m == parent.rank).expect("a rank derives groups of its own");
        let with_tcp = |(&m, derived): (&usize, &DerivedCard)| {
            let card = parent.cards.get(m)?.clone();
            Some(Card { tcp: derived.tcp.clone().unwrap_or(card.tcp), ..card })
        };
        let full: Vec<Card> = members.iter().zip(cards).filter_map(with_tcp).collect();
        for (peer, (&member, derived)) in members.iter().zip(cards).enumerate() {
            let what = || format!("its card: a sleep word at {:#x}, which is not there", derived.sleep);
            if !parent.ways[member].has_word(derived.sleep) {
                return Err(Error::Protocol { rank: peer, what: what() });
            }
        }
        let far: Vec<_> =
            (0..members.len()).filter(|&r| matches!(parent.ways[members[r]], Way::Far(_))).collect();
        let unable: Vec<_> = full.iter().zip(cards).map(|(_, derived)| derived.unable.clone()).collect();
        let bell_socket = match full.get(rank) {
            Some(mine) => bell_socket(members.len() - far.len(), members.len(), mine, card.sleep)?,
            None => None,
        };
        let (tcp, verbs) = match (tcp, far.is_empty()) {
            (Some(tcp), false) => {
                let (cards, far, region) = (&full[..], &far[..], &parent.region);
                let group = Group { rank, cards, far, region, config: &config };
                let fabric = parent.ports.fabric(group, equipment, &unable)?;
                join_far(tcp, group, fabric, secret)?
            }
            _ => (None, None),
        };
        let way = |(peer, &member): (usize, &usize)| match (&parent.ways[member], &tcp) {
            (Way::Own, _) => Way::Own,
            (Way::Local(link), _) => Way::Local(Arc::new(link.derive(rank, peer, cards[peer].sleep))),
            (Way::Shm(link), _) => {
                let bell = Bell::new(bell_name(&full[peer], cards[peer].sleep));
                Way::Shm(Arc::new(link.derive(peer, cards[peer].sleep, bell)))
            }
            (Way::Far(_), Some(tcp)) => Way::Far(far_link(tcp, &verbs, peer)),
            (Way::Far(_), None) => unreachable!("a group with far members listens"),
        };
        let crowded = match &full[..] {
            [] => members.len() > cores::available(),
            full => cores::crowded(full, rank),
        };
        Ok(Endpoint::assemble(Parts {
            rank,
            ways: members.iter().enumerate().map(way).collect(),
            region: parent.region.clone(),
            sleep: card.sleep,
            header: Some(header),
            first: None,
            verbs,
            tcp,
            ports: parent.ports.clone(),
            bell_socket,
            name: parent.name.clone(),
            crowded,
            cards: full,
            config,
        }))
    }
}

impl Endpoint {
    /// Begins a group of some or all of `members`, this rank among them. It shares this endpoint's memory, so that what
    /// is registered here is registered there, and nothing else: threads may use both at once. What peers are to put into
    /// is there already: whether RDMA devices can be used with all of it is found out here, and told by the card.
    pub fn derive(&self, members: &[usize]) -> Result<Deriving> {
        let header = self.region.alloc(1, true)?;
        let far: Vec<_> =
            (0..members.len()).filter(|&r| matches!(self.ways[members[r]], Way::Far(_))).collect();
        let (tcp, tcp_card) = match far.is_empty() {
            false => Some(tcp::Listening::open(&self.config)?).unzip(),
            true => (None, None),
        };
        let cards: Vec<Card> = members.iter().filter_map(|&m| self.cards.get(m).cloned()).collect();
        let equipment = match members.iter().position(|&m| m == self.rank) {
            Some(rank) if !far.is_empty() => {
                let (cards, far, region) = (&cards[..], &far[..], &self.region);
                self.ports.equipment(Group { rank, cards, far, region, config: &self.config })
            }
            _ => Equipment::default(),
        };
        let unable = equipment.reserve(&self.region).err();
        let card = DerivedCard { sleep: header.offset(), tcp: tcp_card, unable };
        Ok(Deriving { header, tcp, equipment, card })
    }
}
