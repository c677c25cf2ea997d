//! A rank's side of all its links: how they are made, and how it waits.

use std::hint::spin_loop;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::bell::{self, Bell, BellSocket};
use crate::cores::{self, CoreSet};
use crate::host::{host_name, process_start};
use crate::local::LocalLink;
use crate::mapped::Mapped;
use crate::parley::{self, Number, Parley};
use crate::region::{Neighbours, SLEEP};
use crate::secure::Secret;
use crate::shm::{self, Arena, Limit, ShmLink};
use crate::tcp::TcpCard;
use crate::tcp::{self, Tcp};
use crate::{
    Card, Choice, Config, Error, HostId, Link, OnStop, Region, Result, Stop, Transport, Window, sys,
};

/// How long a wait spins before it sleeps.
const SPIN: Duration = Duration::from_micros(200);
/// How much of that it spins without letting others run, when every rank of the machine has a core of its own: within
/// this time an answer comes from a rank that is running: by memory, and by way of the kernel.
const SPIN_ALONE: Duration = Duration::from_micros(10);
const SPIN_ALONE_TCP: Duration = Duration::from_micros(50);
/// How often a long wait looks at the world: lost peers, reported failures.
const TICK: Duration = Duration::from_millis(100);
/// Longer timeouts are cut to a century, which every clock can hold.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Polls between two looks at the clock.
const POLLS: u32 = 64;
/// The same where others wait for the core.
const FEW_POLLS: u32 = 4;
/// The same where a poll makes system calls, each of which costs more than the look.
const ONE_POLL: u32 = 1;

/// What a look at a condition found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It holds.
    Done,
    /// Not yet, but something moved.
    Moved,
    /// Nothing moved.
    Idle,
}

/// A rank that peers can be told of: it listens, and has no links yet.
#[derive(Debug)]
pub struct Opening {
    config: Config,
    card: Card,
    shm: shm::Listening,
    tcp: tcp::Listening,
}

/// This rank's side of all its links.
#[derive(Debug)]
pub struct Endpoint {
    rank: usize,
    ways: Vec<Way>,
    links: Vec<Option<Arc<dyn Link>>>,
    region: Arc<Region>,
    sleep: u64,
    _header: Option<Window>,
    tcp: Option<Tcp>,
    bell_socket: Option<BellSocket>,
    /// With what the names of this rank's sockets begin.
    name: Vec<u8>,
    cards: Vec<Card>,
    delays: bool,
    spin: Duration,
    spin_alone: Duration,
    polls: u32,
    /// Its `stop` ends what this endpoint waits for.
    config: Config,
    /// Wakes this rank where it sleeps when that is asked.
    _woken: OnStop,
}

/// How a rank is reached.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    Own,
    Local(Arc<LocalLink>),
    Shm(Arc<ShmLink>),
    Tcp(Arc<dyn Link>),
}

impl Way {
    /// Whether a word there can be used to wake the rank; by TCP none is.
    fn has_word(&self, at: u64) -> bool {
        let mapped = match self {
            Way::Own | Way::Tcp(_) => return true,
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
    pub tcp: Option<Tcp>,
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
        let Opening { config, card, shm, tcp } = self;
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
        let shares = |r: usize| r == rank || (config.transport != Choice::Tcp && same_host(r));
        let locals: Vec<_> = (0..cards.len()).filter(|&r| shares(r)).map(|r| (r, &cards[r].shm)).collect();
        if config.cross_memory {
            sys::allow_cross_memory();
        }
        let bell_socket = bell_socket(locals.len(), cards.len(), &card, SLEEP)?;
        let gone = |rank: usize, surely: bool| {
            let (host, cause) = (cards.get(rank)?.host_name.clone(), gone(&cards[rank], surely)?);
            Some(Error::PeerLost { rank, host, cause })
        };
        let limit = Limit { deadline, stop: &config.stop, gone: &gone };
        let arena = Arena::join(&shm, rank, &locals, limit)?;
        // From here on it is the endpoint that may be stopped.
        let config = Config { stop: Stop::default(), ..config };
        let place = |r: usize| locals.iter().position(|l| l.0 == r);
        let me = place(rank).expect("a rank shares memory with itself");
        let region = arena.region(me);
        let processes = locals.iter().map(|l| (cards[l.0].pid, cards[l.0].process_start)).collect();
        let neighbours = Neighbours { processes, me };
        let far: Vec<_> = (0..cards.len()).filter(|&r| place(r).is_none()).collect();
        let tcp = (!far.is_empty())
            .then(|| Tcp::start(tcp, rank, &cards, &far, secret, region.clone(), &config))
            .transpose()?;
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
            (None, Some(tcp)) => Way::Tcp(tcp.link(peer)),
            (None, None) => unreachable!("there is tcp where a rank is far"),
        };
        let ways = (0..cards.len()).map(way).collect();
        Ok(Endpoint::assemble(Parts {
            rank,
            ways,
            region,
            sleep: SLEEP,
            header: None,
            tcp,
            bell_socket,
            name: card.shm.name,
            cards,
            crowded,
            config,
        }))
    }
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

/// A part of an endpoint's ranks that is about to become a group of its own; see [`Endpoint::derive`].
#[derive(Debug)]
pub struct Deriving {
    header: Window,
    tcp: Option<tcp::Listening>,
    card: DerivedCard,
}

/// What the members of a derived group tell each other.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DerivedCard {
    sleep: u64,
    tcp: Option<TcpCard>,
}

impl Deriving {
    /// What the other members need.
    pub fn card(&self) -> &DerivedCard {
        &self.card
    }

    /// Makes the endpoint of the group of `members`, in that order, this rank among them; `cards` are theirs, `secret` is
    /// the group's own.
    pub fn connect(
        self,
        parent: &Endpoint,
        members: &[usize],
        cards: &[DerivedCard],
        secret: &Secret,
    ) -> Result<Endpoint> {
        let Deriving { header, tcp, card } = self;
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
            (0..members.len()).filter(|&r| matches!(parent.ways[members[r]], Way::Tcp(_))).collect();
        let bell_socket = match full.get(rank) {
            Some(mine) => bell_socket(members.len() - far.len(), members.len(), mine, card.sleep)?,
            None => None,
        };
        let tcp = match (tcp, far.is_empty()) {
            (Some(tcp), false) => {
                Some(Tcp::start(tcp, rank, &full, &far, secret, parent.region.clone(), &config)?)
            }
            _ => None,
        };
        let way = |(peer, &member): (usize, &usize)| match (&parent.ways[member], &tcp) {
            (Way::Own, _) => Way::Own,
            (Way::Local(link), _) => Way::Local(Arc::new(link.derive(rank, peer, cards[peer].sleep))),
            (Way::Shm(link), _) => {
                let bell = Bell::new(bell_name(&full[peer], cards[peer].sleep));
                Way::Shm(Arc::new(link.derive(peer, cards[peer].sleep, bell)))
            }
            (Way::Tcp(_), Some(tcp)) => Way::Tcp(tcp.link(peer)),
            (Way::Tcp(_), None) => unreachable!("a group with far members listens"),
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
            tcp,
            bell_socket,
            name: parent.name.clone(),
            crowded,
            cards: full,
            config,
        }))
    }
}

impl Endpoint {
    /// Listens.
    pub fn open(config: &Config) -> Result<Opening> {
        let shm = shm::Listening::open()?;
        let (tcp, tcp_card) = tcp::Listening::open(config)?;
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
        };
        Ok(Opening { config: config.clone(), card, shm, tcp })
    }

    /// Begins a group of some or all of `members`, this rank among them. It shares this endpoint's memory, so that what
    /// is registered here is registered there, and nothing else: threads may use both at once.
    pub fn derive(&self, members: &[usize]) -> Result<Deriving> {
        let header = self.region.alloc(1, true)?;
        let far = members.iter().any(|&m| matches!(self.ways[m], Way::Tcp(_)));
        let (tcp, tcp_card) = match far {
            true => Some(tcp::Listening::open(&self.config)?).unzip(),
            false => (None, None),
        };
        let card = DerivedCard { sleep: header.offset(), tcp: tcp_card };
        Ok(Deriving { header, tcp, card })
    }

    pub(crate) fn assemble(parts: Parts) -> Endpoint {
        let Parts { rank, ways, region, sleep, header, tcp, bell_socket, name, cards, crowded, config } =
            parts;
        let link = |way: &Way| match way {
            Way::Own => None,
            Way::Local(link) => Some(link.clone() as Arc<dyn Link>),
            Way::Shm(link) => Some(link.clone() as Arc<dyn Link>),
            Way::Tcp(link) => Some(link.clone()),
        };
        let (asleep, waker) = (region.clone(), tcp.as_ref().map(Tcp::waker));
        let woken = config.stop.on_ask(move || {
            Bell::default().ring(asleep.word(sleep));
            if let Some(wake) = &waker {
                wake();
            }
        });
        Endpoint {
            rank,
            links: ways.iter().map(link).collect(),
            polls: match (&tcp, crowded) {
                (Some(_), _) => ONE_POLL,
                (None, true) => FEW_POLLS,
                (None, false) => POLLS,
            },
            spin_alone: match (&tcp, crowded) {
                (_, true) => Duration::ZERO,
                (Some(_), false) => SPIN_ALONE_TCP,
                (None, false) => SPIN_ALONE,
            },
            delays: ways.iter().any(|w| matches!(w, Way::Local(l) if l.abilities().is_empty())),
            ways,
            region,
            sleep,
            _header: header,
            tcp,
            bell_socket,
            name,
            cards,
            spin: config.spin.unwrap_or(SPIN),
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
            Choice::Auto | Choice::Shm => Transport::Shm,
        };
        [inside, Transport::Tcp].map(Transport::name)
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
            moved |= tcp.progress()?;
        }
        Ok(moved)
    }

    /// Sees what was put on its way, as far as that needs this rank.
    fn flush(&self) {
        if let Some(tcp) = &self.tcp {
            tcp.flush();
        }
    }

    /// Ends what this rank waits for here: [`Endpoint::wait`] calls its `tick` at once, and nobody connects any more in
    /// order to put something.
    pub fn stop(&self) -> &Stop {
        &self.config.stop
    }

    /// Something has failed: leaving does not wait until the peers have what was sent to them, beyond a moment.
    pub fn give_up(&self) {
        if let Some(tcp) = &self.tcp {
            tcp.give_up();
        }
    }

    /// All memory that was put may be reused from here on: what was not flushed is not sent any more, and the peers that it
    /// was for lose this rank.
    pub fn let_go(&self) {
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
            Way::Tcp(_) => self.tcp.as_ref().and_then(|tcp| tcp.lost(peer)),
        }?;
        let host = self.cards.get(peer).map_or_else(host_name, |card| card.host_name.clone());
        Some(Error::PeerLost { rank: peer, host, cause })
    }

    /// Why a peer certainly is no more, or has no endpoint any more: its own system says so. One that is merely silent may
    /// live.
    pub fn ended(&self, peer: usize) -> Option<String> {
        let gone = |card: &Card| process_start(card.pid) != Some(card.process_start);
        let process = self.cards.get(peer).filter(|card| card.host == self.cards[self.rank].host);
        match &self.ways[peer] {
            Way::Own => None,
            Way::Local(link) => link.lost().then(|| "lost on purpose".to_string()),
            Way::Shm(_) | Way::Tcp(_) if process.is_some_and(gone) => {
                process.map(|card| format!("its process {} is gone", card.pid))
            }
            Way::Shm(_) => None,
            Way::Tcp(_) => self.tcp.as_ref().and_then(|tcp| tcp.ended(peer)),
        }
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
            Way::Tcp(_) => calls.clone().map(Number::Port),
        };
        let numbers: Vec<_> = self.ways.iter().enumerate().map(number).collect();
        let near = numbers.iter().any(|number| matches!(number, Some(Number::Name(_))));
        let name = near.then(|| meeting_name(&self.name, self.sleep));
        Parley::open(parley::Parts { rank: self.rank, name, numbers, calls, secret: secret.clone() })
    }

    /// Waits until `look` says done; false when `timeout` passed first. In between, everything that can move moves.
    /// `tick` is called now and then during long waits, and at once, one time, when [`Endpoint::stop`] was asked; its
    /// error ends the wait.
    ///
    /// Spins for a while, then sleeps until a peer signals.
    pub fn wait<E: From<Error>>(
        &self,
        timeout: Duration,
        mut look: impl FnMut() -> Result<Step, E>,
        mut tick: impl FnMut() -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut idle = 0;
        // The clock is read only once a wait has become long.
        let mut deadline = None;
        let mut since = None;
        let mut next_tick = None;
        let stop = &self.config.stop;
        let mut stopped = false;
        loop {
            let moved = self.progress()?;
            match look()? {
                Step::Done => {
                    self.flush();
                    return Ok(true);
                }
                Step::Moved => (idle, since) = (0, None),
                Step::Idle if moved => (idle, since) = (0, None),
                Step::Idle => idle += 1,
            }
            if idle % self.polls != 0 || idle == 0 {
                spin_loop();
                continue;
            }
            let now = Instant::now();
            let deadline = *deadline.get_or_insert(now + timeout.min(LONGEST));
            if now >= deadline {
                return Ok(false);
            }
            let tick_at = *next_tick.get_or_insert(now + TICK);
            if now >= tick_at || (stop.asked() && !stopped) {
                stopped = stop.asked();
                tick()?;
                next_tick = Some(now + TICK);
            }
            let spun = now.duration_since(*since.get_or_insert(now));
            if spun >= self.spin {
                let mut found = Ok(Step::Idle);
                self.sleep((deadline - now).min(TICK), || {
                    found = look();
                    !matches!(found, Ok(Step::Idle)) || (stop.asked() && !stopped)
                })?;
                match found? {
                    Step::Done => {
                        self.flush();
                        return Ok(true);
                    }
                    Step::Moved => (idle, since) = (0, None),
                    Step::Idle => {}
                }
            } else if spun >= self.spin_alone {
                std::thread::yield_now();
            }
        }
    }

    /// Sleeps until a peer signals, unless `ready` turns out to hold.
    fn sleep(&self, timeout: Duration, ready: impl FnOnce() -> bool) -> Result<()> {
        // Delayed puts of the local transport only move when this thread moves them.
        let timeout = if self.delays { timeout.min(Duration::from_micros(100)) } else { timeout };
        let word = self.region.word(self.sleep);
        match &self.tcp {
            None => {
                bell::sleep(word, timeout, ready);
                Ok(())
            }
            Some(tcp) => {
                let mut slept = Ok(());
                bell::sleep_in_poll(word, ready, || {
                    slept = tcp.park(self.bell_socket.as_ref().map(AsFd::as_fd), timeout)
                });
                slept
            }
        }
    }
}
