//! A rank's side of all its links: how they are made, and how it waits.
//!
//! | file | what |
//! |---|---|
//! | `derived` | some of the ranks as a group of their own |
//! | `waiting` | spinning, then sleeping, until something holds |

mod derived;
mod waiting;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::bell::{Bell, BellSocket};
use crate::cores::{self, CoreSet};
use crate::host::{host_name, process_is_stopped, process_start};
use crate::local::LocalLink;
use crate::mapped::Mapped;
use crate::parley::{self, Number, Parley};
use crate::region::{Neighbours, SLEEP};
use crate::secure::Secret;
use crate::shm::{self, Arena, Limit, ShmLink};
use crate::tcp::{self, Tcp};
use crate::verbs::{self, Equipment, Fabric, Group, Ports, Verbs};
use crate::{
    Card, Choice, Config, DmaBuf, DmaBufRegistration, Error, HostId, Link, OnStop, Region, Result, Stop,
    Transport, Window, sys,
};

pub use derived::{DerivedCard, Deriving};
use waiting::Patience;
pub use waiting::Step;

/// A rank that peers can be told of: it listens, and has no links yet.
#[derive(Debug)]
pub struct Opening {
    config: Config,
    card: Card,
    shm: shm::Listening,
    tcp: tcp::Listening,
    ports: Ports,
}

/// This rank's side of all its links.
#[derive(Debug)]
pub struct Endpoint {
    rank: usize,
    ways: Vec<Way>,
    links: Vec<Option<Arc<dyn Link>>>,
    region: Arc<Region>,
    sleep: u64,
    header: Option<Window>,
    first: Option<Window>,
    /// Ends before the connections that it leans on.
    verbs: Option<Verbs>,
    tcp: Option<Arc<Tcp>>,
    ports: Ports,
    bell_socket: Option<BellSocket>,
    /// With what the names of this rank's sockets begin.
    name: Vec<u8>,
    cards: Vec<Card>,
    delays: bool,
    patience: Patience,
    /// Its `stop` ends what this endpoint waits for.
    config: Config,
    /// Wakes this rank where it sleeps when that is asked.
    _woken: OnStop,
}

/// What goes to and fro between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that the peer's system has ever acknowledged and that have ever come from it; wraps.
    pub carried: u64,
    /// How long an acknowledgement takes.
    pub round_trip: Duration,
    /// Something was sent that is not acknowledged, and it may only be slow.
    pub under_way: bool,
}

/// How a rank is reached.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    Own,
    Local(Arc<LocalLink>),
    Shm(Arc<ShmLink>),
    /// By a connection, and perhaps by verbs beside it.
    Far(Arc<dyn Link>),
}

impl Way {
    /// Whether a word there can be used to wake the rank; from afar none is.
    fn has_word(&self, at: u64) -> bool {
        let mapped = match self {
            Way::Own | Way::Far(_) => return true,
            Way::Local(link) => &link.mapped,
            Way::Shm(link) => &link.mapped,
        };
        at.is_multiple_of(8) && mapped.map(at, 8).is_some()
    }
}

/// What an endpoint is made of.
pub(crate) struct Parts {
    pub rank: usize,
    pub ways: Vec<Way>,
    pub region: Arc<Region>,
    pub sleep: u64,
    pub header: Option<Window>,
    pub first: Option<Window>,
    pub verbs: Option<Verbs>,
    pub tcp: Option<Arc<Tcp>>,
    pub ports: Ports,
    pub bell_socket: Option<BellSocket>,
    pub name: Vec<u8>,
    pub cards: Vec<Card>,
    /// Whether the ranks that share this one's cores outnumber them.
    pub crowded: bool,
    pub config: Config,
}

impl Opening {
    /// What the other ranks need to reach this one.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Links this rank to all others, whose cards came by an authenticated way together with `secret`, which all
    /// ranks of the job share. All ranks call this.
    pub fn connect(
        self,
        rank: usize,
        cards: Vec<Card>,
        secret: &Secret,
        deadline: Instant,
    ) -> Result<Endpoint> {
        let Opening { config, card, shm, tcp, ports } = self;
        let same_host = |r: usize| cards[r].host == card.host;
        let crowded = cores::crowded(&cards, rank);
        if let (Choice::Shm, Some(far)) = (config.transport, (0..cards.len()).find(|&r| !same_host(r))) {
            let (there, here) = (&cards[far], &card);
            let why = format!(
                "ND_TRANSPORT=shm, but it is on another host ({}, {:?}; this is {}, {:?}); use auto",
                there.host_name, there.host, here.host_name, here.host
            );
            return Err(Error::Unreachable { from: rank, to: far, why });
        }
        let shares = |r: usize| r == rank || (shares_memory(config.transport) && same_host(r));
        let locals: Vec<_> = (0..cards.len()).filter(|&r| shares(r)).map(|r| (r, &cards[r].shm)).collect();
        if config.cross_memory {
            sys::allow_cross_memory();
        }
        let bell_socket = bell_socket(locals.len(), cards.len(), &card, SLEEP)?;
        let gone = |rank: usize, surely: bool| {
            let (host, cause) = (cards.get(rank)?.host_name.clone(), gone(&cards[rank], surely)?);
            Some(Error::PeerLost { rank, host, cause })
        };
        let who = |rank: usize| who_is(rank, cards.get(rank));
        let limit = Limit { deadline, stop: &config.stop, gone: &gone, who: &who };
        let arena = Arena::join(&shm, rank, &locals, limit)?;
        // From here on it is the endpoint that may be stopped.
        let config = Config { stop: Stop::default(), ..config };
        let place = |r: usize| locals.iter().position(|l| l.0 == r);
        let me = place(rank).expect("a rank shares memory with itself");
        let region = arena.region(me);
        let processes = locals.iter().map(|l| (cards[l.0].pid, cards[l.0].process_start)).collect();
        let neighbours = Neighbours { processes, me };
        let far: Vec<_> = (0..cards.len()).filter(|&r| place(r).is_none()).collect();
        // Whoever is the first to connect finds it, and this rank's devices know of it.
        let first = (config.exposed > 0).then(|| region.alloc(config.exposed, true)).transpose()?;
        let (tcp, verbs) = match far.is_empty() {
            true => (None, None),
            false => {
                let group = Group { rank, cards: &cards, far: &far, region: &region, config: &config };
                let fabric = ports.fabric(group, Equipment::default(), &[])?;
                join_far(tcp, group, fabric, secret)?
            }
        };
        let way = |peer: usize| match (place(peer), &tcp) {
            _ if peer == rank => Way::Own,
            (Some(place), _) => Way::Shm(Arc::new(ShmLink {
                peer,
                pid: cards[peer].pid,
                cross_memory: config.cross_memory,
                mapped: Mapped {
                    region: arena.peer(place, neighbours.clone()),
                    sleep: SLEEP,
                    bell: Bell::new(bell_name(&cards[peer], SLEEP)),
                },
                probed: OnceLock::new(),
            })),
            (None, Some(tcp)) => Way::Far(far_link(tcp, &verbs, peer)),
            (None, None) => unreachable!("there is tcp where a rank is far"),
        };
        let ways = (0..cards.len()).map(way).collect();
        Ok(Endpoint::assemble(Parts {
            rank,
            ways,
            region,
            sleep: SLEEP,
            header: None,
            first,
            verbs,
            tcp,
            ports,
            bell_socket,
            name: card.shm.name,
            cards,
            crowded,
            config,
        }))
    }
}

/// Whether ranks of one host reach each other by their memory.
fn shares_memory(choice: Choice) -> bool {
    matches!(choice, Choice::Auto | Choice::Shm)
}

/// Joins a rank with those that share no memory with it, over what there is for verbs.
fn join_far(
    listening: tcp::Listening,
    Group { rank, cards, far, region, config }: Group<'_>,
    fabric: Option<Arc<Fabric>>,
    secret: &Secret,
) -> Result<(Option<Arc<Tcp>>, Option<Verbs>)> {
    let rider = verbs::rider(&fabric);
    let tcp = Tcp::start(listening, rank, cards, far, secret, (region.clone(), rider), config)?;
    let tcp = Arc::new(tcp);
    let start = |fabric| Verbs::new(fabric, tcp.clone(), config.start_timeout);
    let verbs = fabric.map(start).transpose()?;
    Ok((Some(tcp), verbs))
}

fn far_link(tcp: &Tcp, verbs: &Option<Verbs>, peer: usize) -> Arc<dyn Link> {
    verbs.as_ref().and_then(|verbs| verbs.link(peer)).unwrap_or_else(|| tcp.link(peer))
}

/// A rank of this host that is waited for, as people look for it.
fn who_is(rank: usize, card: Option<&Card>) -> String {
    let Some(card) = card else { return format!("rank {rank}") };
    let stopped = if process_is_stopped(card.pid) { ", stopped" } else { "" };
    format!("rank {rank} ({}, pid {}{stopped})", card.host_name, card.pid)
}

/// What is seen of a process of this host that is gone, or that somebody surely saw to be.
fn gone(card: &Card, surely: bool) -> Option<String> {
    let gone = surely || process_start(card.pid) != Some(card.process_start);
    gone.then(|| format!("its process {} is gone", card.pid))
}

/// The name of the socket that wakes a rank's endpoint that has its sleep word there.
fn bell_name(card: &Card, sleep: u64) -> Vec<u8> {
    [&card.shm.name[..], format!("-bell-{sleep:x}").as_bytes()].concat()
}

/// The name at which the owner of an endpoint that has its sleep word there is talked to.
fn meeting_name(owner: &[u8], sleep: u64) -> Vec<u8> {
    [owner, format!("-meet-{sleep:x}").as_bytes()].concat()
}

/// Needed only by a rank that has both mapped memory and sockets to wait for.
fn bell_socket(local: usize, all: usize, card: &Card, sleep: u64) -> Result<Option<BellSocket>> {
    (1 < local && local < all).then(|| BellSocket::bind(&bell_name(card, sleep))).transpose()
}

impl Endpoint {
    /// Listens.
    pub fn open(config: &Config) -> Result<Opening> {
        let shm = shm::Listening::open()?;
        let (tcp, tcp_card) = tcp::Listening::open(config)?;
        let ports = Ports::open(config)?;
        let pid = std::process::id();
        let card = Card {
            host: HostId::here(config.host_id.as_deref()),
            network: HostId::network(),
            host_name: host_name(),
            cores: CoreSet::here(),
            pid,
            process_start: process_start(pid).unwrap_or_default(),
            shm: shm.card.clone(),
            tcp: tcp_card,
            verbs: ports.offer.clone(),
        };
        Ok(Opening { config: config.clone(), card, shm, tcp, ports })
    }

    pub(crate) fn assemble(parts: Parts) -> Endpoint {
        let Parts { rank, ways, region, sleep, header, first, verbs, tcp, ports, .. } = parts;
        let Parts { bell_socket, name, cards, crowded, config, .. } = parts;
        let link = |way: &Way| match way {
            Way::Own => None,
            Way::Local(link) => Some(link.clone() as Arc<dyn Link>),
            Way::Shm(link) => Some(link.clone() as Arc<dyn Link>),
            Way::Far(link) => Some(link.clone()),
        };
        let (asleep, waker) = (region.clone(), tcp.as_ref().map(|tcp| tcp.waker()));
        let woken = config.stop.on_ask(move || {
            Bell::default().ring(asleep.word(sleep));
            if let Some(wake) = &waker {
                wake();
            }
        });
        Endpoint {
            rank,
            links: ways.iter().map(link).collect(),
            patience: Patience::new(tcp.is_some(), verbs.is_some(), crowded, config.spin),
            delays: ways.iter().any(|w| matches!(w, Way::Local(l) if l.abilities().is_empty())),
            ways,
            region,
            sleep,
            header,
            first,
            verbs,
            tcp,
            ports,
            bell_socket,
            name,
            cards,
            _woken: woken,
            config,
        }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.links.len()
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Memory that peers can reach.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The memory by which peers that map it wake this rank, where it has some of its own. It must be theirs until they
    /// have written the last, so whoever ends the use of this endpoint sees to it.
    pub fn take_header(&mut self) -> Option<Window> {
        self.header.take()
    }

    /// The window that its settings asked for ([`Config::exposed`]); it has the same offset on all ranks that asked alike.
    pub fn take_first(&mut self) -> Option<Window> {
        self.first.take()
    }

    /// Lets the RDMA devices of this endpoint, and of those derived from it, read and write memory of another device, such as
    /// a GPU, without a copy through host memory. As long as the registration is there, [`Link::put`] takes parts that lie
    /// in its [addresses](DmaBufRegistration::addresses), and [`Link::land`] grants them, on links that have
    /// [`Abilities::DMA_BUF`](crate::Abilities::DMA_BUF); the processor touches none of it. What a signal says is there has
    /// been written by the RDMA device: that the memory's own device sees it may take a flush, by that device's rules.
    ///
    /// # Errors
    /// [`Error::DmaBuf`] where no link goes by verbs, the library or the driver has no support, or offset, length and
    /// address fit no export.
    pub fn register_dma_buf(&self, buf: DmaBuf) -> Result<DmaBufRegistration> {
        buf.check()?;
        let ways = self.links.iter().flatten().map(|link| link.transport()).collect::<BTreeSet<_>>();
        match &self.verbs {
            Some(verbs) if ways.contains(&Transport::Verbs) && verbs.has_device() => {
                verbs.register(&self.ports.exports, buf)
            }
            _ => {
                let ways = ways.into_iter().map(Transport::name).collect::<Vec<_>>().join(" and ");
                let ways =
                    if ways.is_empty() { "there are none".into() } else { format!("they go by {ways}") };
                Err(Error::DmaBuf {
                    what: format!("registering a dma-buf of {} bytes", buf.len),
                    why: format!("no link of rank {} goes by verbs ({ways}), the only ones that take it", self.rank),
                    remedy: "use ND_TRANSPORT=auto or verbs where RDMA devices join the ranks (`nd-topo paths` says which), or \
                             copy through host memory"
                        .into(),
                })
            }
        }
    }

    /// The link to a peer; none to itself.
    pub fn link(&self, peer: usize) -> Option<&Arc<dyn Link>> {
        self.links[peer].as_ref()
    }

    /// The names of the transports between ranks of one host and between hosts; the same on every rank.
    pub fn transports(&self) -> [&'static str; 2] {
        let local = self.ways.iter().any(|w| matches!(w, Way::Local(_)));
        let inside = match self.config.transport {
            _ if local => Transport::Local,
            Choice::Tcp => Transport::Tcp,
            Choice::Verbs => Transport::Verbs,
            Choice::Auto | Choice::Shm => Transport::Shm,
        };
        let across = match verbs::joins_all(&self.cards) {
            true => Transport::Verbs,
            false => Transport::Tcp,
        };
        [inside, across].map(Transport::name)
    }

    /// A number that ranks share if and only if they share the cores of one machine, in whatever containers.
    pub fn machine(&self, rank: usize) -> usize {
        let Some(card) = self.cards.get(rank) else { return 0 };
        self.cards.iter().position(|c| c.network.same_kernel(&card.network)).unwrap_or(rank)
    }

    /// How many cores the ranks of a rank's machine may use together.
    pub fn cores(&self, rank: usize) -> usize {
        let Some(card) = self.cards.get(rank) else { return cores::available() };
        cores::together(self.cards.iter().filter(|c| c.network.same_kernel(&card.network)))
    }

    /// The rank as a person looks for it: "rank 3 (host a, pid 17)".
    pub fn who(&self, rank: usize) -> String {
        match self.cards.get(rank) {
            Some(card) => format!("rank {rank} ({}, pid {})", card.host_name, card.pid),
            // A thread of this process.
            None => format!("rank {rank} ({}, pid {})", host_name(), std::process::id()),
        }
    }

    /// Which ranks share a host with whom: a number for each rank, equal for ranks of one host.
    pub fn hosts(&self) -> Vec<usize> {
        let first = |card: &Card| self.cards.iter().position(|c| c.host == card.host).unwrap_or_default();
        if self.cards.is_empty() {
            vec![0; self.world_size()]
        } else {
            self.cards.iter().map(first).collect()
        }
    }

    /// Moves whatever can move without waiting; whether something did.
    #[inline]
    pub fn progress(&self) -> Result<bool> {
        let mut moved = false;
        if self.delays {
            for way in &self.ways {
                if let Way::Local(link) = way {
                    moved |= link.tick();
                }
            }
        }
        if let Some(tcp) = &self.tcp {
            // What a device is to send does not wait for a look at the connections.
            if let Some(verbs) = &self.verbs {
                moved |= verbs.flush();
            }
            let read = tcp.progress();
            // Whatever happened to connections: what came by verbs before is taken.
            if let Some(verbs) = &self.verbs {
                moved |= verbs.progress()?;
            }
            moved |= read?;
        }
        Ok(moved)
    }

    /// Sees what was put on its way, as far as that needs this rank.
    fn flush(&self) {
        if let Some(verbs) = &self.verbs {
            verbs.flush();
        }
        if let Some(tcp) = &self.tcp {
            tcp.flush();
        }
    }

    /// Ends what this rank waits for here: [`Endpoint::wait`] calls its `tick` at once.
    pub fn stop(&self) -> &Stop {
        &self.config.stop
    }

    /// Something has failed: leaving does not wait until the peers have what was sent to them, beyond a moment. From here on
    /// only windows are put to, not memory that a peer has granted ([`Link::land`]).
    pub fn give_up(&self) {
        if let Some(verbs) = &self.verbs {
            verbs.give_up();
        }
        if let Some(tcp) = &self.tcp {
            tcp.give_up();
        }
    }

    /// All memory that was put may be reused from here on: what was not flushed is not sent any more, and the peers that it
    /// was for lose this rank.
    pub fn let_go(&self) {
        if let Some(verbs) = &self.verbs {
            verbs.let_go();
        }
        if let Some(tcp) = &self.tcp {
            tcp.let_go();
        }
    }

    /// Why a peer cannot be expected to do anything any more.
    pub fn lost(&self, peer: usize) -> Option<Error> {
        let cause = match &self.ways[peer] {
            Way::Own => None,
            Way::Local(link) => link.lost().then(|| "lost on purpose".to_string()),
            Way::Shm(_) => gone(&self.cards[peer], false),
            Way::Far(_) => match &self.verbs {
                Some(verbs) if verbs.rides(peer) => verbs.lost(peer),
                _ => self.tcp.as_ref().and_then(|tcp| tcp.lost(peer)),
            },
        }?;
        Some(self.peer_lost(peer, cause))
    }

    /// That a peer is no more, if its own system says so; see [`Endpoint::ended`].
    pub fn death(&self, peer: usize) -> Option<Error> {
        self.ended(peer).map(|cause| self.peer_lost(peer, cause))
    }

    fn peer_lost(&self, peer: usize, cause: String) -> Error {
        let host = self.cards.get(peer).map_or_else(host_name, |card| card.host_name.clone());
        Error::PeerLost { rank: peer, host, cause }
    }

    /// Why a peer certainly is no more, or has no endpoint any more: its own system says so. One that is merely silent may
    /// live.
    pub fn ended(&self, peer: usize) -> Option<String> {
        let gone = |card: &Card| process_start(card.pid) != Some(card.process_start);
        let process = self.cards.get(peer).filter(|card| card.host == self.cards[self.rank].host);
        match &self.ways[peer] {
            Way::Own => None,
            Way::Local(link) => link.lost().then(|| "lost on purpose".to_string()),
            Way::Shm(_) | Way::Far(_) if process.is_some_and(gone) => {
                process.map(|card| format!("its process {} is gone", card.pid))
            }
            Way::Shm(_) => None,
            Way::Far(_) => match &self.verbs {
                Some(verbs) if verbs.rides(peer) => verbs.ended(peer),
                _ => self.tcp.as_ref().and_then(|tcp| tcp.ended(peer)),
            },
        }
    }

    /// Whether nothing shows that what a peer sends comes here, some time after it was last sent something: the network
    /// may be cut, or the two have never met. One that merely does nothing is not meant.
    pub fn unheard(&self, peer: usize) -> bool {
        matches!(&self.ways[peer], Way::Far(_))
            && !self.verbs.as_ref().is_some_and(|verbs| verbs.joined(peer))
            && self.tcp.as_ref().is_some_and(|tcp| tcp.unheard(peer))
    }

    /// Whether the network to a peer seems not to work: its system has acknowledged nothing for a while, in which what is merely
    /// slow or lost once would have arrived. One whose process does nothing is not meant.
    pub fn cut_off(&self, peer: usize) -> bool {
        matches!(&self.ways[peer], Way::Far(_))
            && !self.verbs.as_ref().is_some_and(|verbs| verbs.joined(peer))
            && self.tcp.as_ref().is_some_and(|tcp| tcp.cut_off(peer))
    }

    /// What goes to and fro between this rank and a peer, where the system of this host tells.
    pub fn traffic(&self, peer: usize) -> Option<Traffic> {
        let rides = self.verbs.as_ref().is_some_and(|verbs| verbs.joined(peer));
        let far = matches!(&self.ways[peer], Way::Far(_)) && !rides;
        self.tcp.as_ref().filter(|_| far)?.traffic(peer)
    }

    /// For how long nothing of what was put to a peer could be sent, although it waits; zero where nothing waits.
    pub fn stuck(&self, peer: usize) -> Duration {
        let tcp = self.tcp.as_ref().filter(|_| matches!(&self.ways[peer], Way::Far(_)));
        tcp.map_or(Duration::ZERO, |tcp| tcp.stuck(peer))
    }

    /// Short messages between these ranks, for when the links have failed; `secret` is that of the links. A peer hears
    /// them once it opens its own.
    ///
    /// # Errors
    /// When no socket or thread can be had, or there is one already.
    pub fn parley(&self, secret: &Secret) -> Result<Parley> {
        let calls = self.tcp.as_ref().map(|tcp| Arc::new(tcp.calls()));
        let number = |(peer, way): (usize, &Way)| match way {
            Way::Own => None,
            Way::Local(link) => Some(Number::Name(meeting_name(&link.name, link.mapped.sleep))),
            Way::Shm(link) => Some(Number::Name(meeting_name(&self.cards[peer].shm.name, link.mapped.sleep))),
            Way::Far(_) => calls.clone().map(Number::Port),
        };
        let numbers: Vec<_> = self.ways.iter().enumerate().map(number).collect();
        let near = numbers.iter().any(|number| matches!(number, Some(Number::Name(_))));
        let name = near.then(|| meeting_name(&self.name, self.sleep));
        Parley::open(parley::Parts { rank: self.rank, name, numbers, calls, secret: secret.clone() })
    }
}
