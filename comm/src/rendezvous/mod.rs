//! How ranks find each other, and prove that they belong together.
//!
//! One process listens: rank 0 at the launcher's address, or whoever created the [`UniqueId`]. Every rank connects,
//! proves that it knows the secret (Noise, `nd_transport::secure`), and says who it is; when all are there, each
//! gets the cards of all, and the communicator's own random secret. Whatever goes wrong is told to everyone who has
//! come.
//!
//! | module | what |
//! |---|---|
//! | [`address`](Address) | where to meet |
//! | [`id`](UniqueId) | an invitation |
//! | `roll` | who has joined: duplicates, missing ranks, differing sizes — *pure* |
//! | `wire` | the messages — *pure* |
//! | `root`, `member`, `stream` | the sockets around it |
//!
//! The table goes out as a star, one message a rank, n² cards in all. Measured on two busy cores: 64 threads meet in
//! 35–46 ms; of 64 (512) processes the last to come waits 25 (80) ms. Beyond a few thousand ranks a tree is needed.

mod address;
mod id;
mod member;
mod roll;
mod root;
mod stream;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use nd_transport::secure::Secret;

pub use address::Address;
pub use id::{ID_MAX, UniqueId};
pub(crate) use roll::CANNOT;
pub use roll::ranges;
pub use wire::CARD_MAX;

use crate::config::{Auth, Config};
use crate::launch::{Launch, Launcher};
use crate::{Error, Result};
use roll::{Failure, Hello};
use root::Root;
use stream::Listener;

/// Bound into every handshake of a start, so that no other kind of connection can be taken for one.
const CONTEXT: &[u8] = b"nd rendezvous 1";

/// Where no secret is asked for (loopback, Unix names of one user, `ND_AUTH=none`), this stands for it, so that
/// there is one protocol. Everyone knows it.
const WELL_KNOWN: [u8; 32] = *b"nd: no secret, everyone may join";

/// How long a port that is in use may take to become free.
const BUSY: Duration = Duration::from_millis(1500);

/// By what ranks meet.
#[derive(Debug, Clone)]
pub enum Meeting {
    /// By invitation.
    Invited(UniqueId),
    /// Rank 0 listens at this address.
    At {
        /// Where.
        address: Address,
        /// Whether the launcher says that all ranks are on this host: then they can meet on loopback, without a
        /// secret, whatever the address.
        one_host: bool,
        /// Whether the host gets its name only while ranks start, as a pod does: then ranks wait for the name as long
        /// as for rank 0.
        late_name: bool,
    },
}

impl Meeting {
    /// Whether all ranks are on one host, by what the launcher or the address says.
    pub fn on_loopback(&self) -> bool {
        match self {
            Meeting::Invited(_) => false,
            Meeting::At { address, one_host, .. } => *one_host || address.is_literal_loopback(),
        }
    }
}

impl From<&UniqueId> for Meeting {
    fn from(id: &UniqueId) -> Meeting {
        Meeting::Invited(id.clone())
    }
}

impl From<&Launch> for Meeting {
    fn from(launch: &Launch) -> Meeting {
        Meeting::At {
            address: launch.rendezvous.clone(),
            one_host: launch.on_one_host(),
            // In a pod, also where nd-run started the ranks there.
            late_name: [launch.launcher].iter().chain(&launch.also).any(|l| *l == Launcher::Kubernetes),
        }
    }
}

/// What every rank knows after the start.
#[derive(Debug, Clone)]
pub struct Joined {
    /// The cards of all ranks, in order.
    pub cards: Vec<Vec<u8>>,
    /// Random, of this communicator alone.
    pub secret: Secret,
    /// By which address this rank reached the meeting place; none: by loopback or a Unix name.
    pub local_address: Option<IpAddr>,
}

/// Meets the other ranks and exchanges cards (at most [`CARD_MAX`] bytes each).
///
/// # Errors
/// [`Error::Rendezvous`], on every rank that came: ranks missing at the deadline, two with one number, different
/// world sizes, another version, a wrong secret, a port in use, a name that does not resolve, a rank that went away.
pub fn join(
    meeting: impl Into<Meeting>,
    rank: usize,
    world_size: usize,
    card: &[u8],
    config: &Config,
    deadline: Instant,
) -> Result<Joined> {
    join_with(meeting, rank, world_size, &mut |_| Ok(card.to_vec()), config, deadline)
}

/// As [`join`], for a card that depends on the address by which this rank reached the meeting place (none: loopback
/// or a Unix name): `card` is called once, when that is known. Its error is told to the other ranks.
pub fn join_with(
    meeting: impl Into<Meeting>,
    rank: usize,
    world_size: usize,
    card: &mut dyn FnMut(Option<IpAddr>) -> Result<Vec<u8>>,
    config: &Config,
    deadline: Instant,
) -> Result<Joined> {
    check(rank, world_size)?;
    if world_size == 1 {
        return Ok(Joined { cards: vec![card(None)?], secret: Secret::random(), local_address: None });
    }
    let mut own = None;
    let mut make = |local: Option<IpAddr>| {
        let card = card(local).and_then(|card| match card.len() {
            ..=CARD_MAX => Ok(card),
            len => Err(Error::InvalidArgument {
                rank,
                call: "join",
                problem: format!("a card of {len} bytes is above {CARD_MAX}"),
                remedy: "shorten it".into(),
            }),
        });
        hello(rank, world_size, card.map_err(|e| Failure::from(&*own.insert(e))))
    };
    let met = meet(meeting.into(), rank, &mut make, config, deadline);
    match own {
        Some(e) => Err(e),
        None => met.map_err(|Failure { problem, remedy }| Error::Rendezvous {
            who: format!("rank {rank} of {world_size}"),
            problem,
            remedy,
        }),
    }
}

/// Has the other ranks hear, as far as they come within some seconds, that this one cannot take part, and why.
pub fn decline(meeting: impl Into<Meeting>, rank: usize, world_size: usize, why: &Error, config: &Config) {
    if check(rank, world_size).is_ok() && world_size > 1 {
        let mut make = |_: Option<IpAddr>| hello(rank, world_size, Err(why.into()));
        // Ranks of a group that grows know each other, and wait for this one in their next call.
        let patience = config.start_timeout().min(config.timeout) / 2;
        let deadline = Instant::now() + patience.min(member::TELLING_WHY);
        // Whatever comes of it: this rank's own error is the one to report.
        let _ = meet(meeting.into(), rank, &mut make, config, deadline);
    }
}

fn check(rank: usize, world_size: usize) -> Result<()> {
    let invalid = |problem: String, remedy: &str| {
        Err(Error::InvalidArgument { rank, call: "join", problem, remedy: remedy.into() })
    };
    if world_size == 0 || world_size > wire::WORLD_MAX {
        return invalid(
            format!("world size {world_size} is not from 1 to {}", wire::WORLD_MAX),
            "correct it",
        );
    }
    if rank >= world_size {
        return invalid(
            format!("rank {rank} is not below the world size {world_size}"),
            "ranks count from 0",
        );
    }
    Ok(())
}

fn hello(rank: usize, world_size: usize, card: Result<Vec<u8>, Failure>) -> Hello {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Hello { rank, world_size, host, pid: std::process::id(), patience_ms: 0, card }
}

/// In the words of whoever tells it of another rank.
impl From<&Error> for Failure {
    fn from(e: &Error) -> Failure {
        let problem = match e {
            // Whose it is, is said before.
            Error::Transport { source, .. } => source.to_string(),
            other => other.to_string(),
        };
        Failure { problem, remedy: "put that right there, and start again".into() }
    }
}

/// Meets the others; an error is for this rank to report.
fn meet(
    meeting: Meeting,
    rank: usize,
    make: &mut member::MakeHello<'_>,
    config: &Config,
    deadline: Instant,
) -> Result<Joined, Failure> {
    let patience = deadline.saturating_duration_since(Instant::now());
    let stop = &config.transport.stop;
    let waits = member::Waits { deadline, patience, name: member::UNRESOLVED };
    match meeting {
        Meeting::Invited(id) => member::join(id.addresses(), id.secret(), make, waits, stop),
        Meeting::At { address, one_host, late_name } => {
            let waits = if late_name { member::Waits { name: patience, ..waits } } else { waits };
            let address = config.rendezvous.clone().unwrap_or(address);
            let (address, secret) = entry(address, one_host, config)?;
            let secret = of_job(secret, &config.job);
            match rank {
                0 => lead(&address, &secret, make, config, deadline),
                _ => member::join(&[address], &secret, make, waits, stop),
            }
        }
    }
}

/// The address to use, and what ranks must know there.
fn entry(address: Address, one_host: bool, config: &Config) -> Result<(Address, Secret), Failure> {
    let open = Secret::from_bytes(WELL_KNOWN);
    if let Some(secret) = &config.secret {
        return Ok((address, secret.clone()));
    }
    if config.auth == Auth::None || address.is_literal_loopback() {
        return Ok((address, open));
    }
    match &address {
        Address::Tcp { port, .. } if one_host => Ok((Address::tcp("127.0.0.1", *port), open)),
        _ if address.resolve().is_ok_and(|all| all.iter().all(|a| a.ip().is_loopback())) => Ok((address, open)),
        _ => Err(Failure {
            problem: format!("no secret is set, and {address} is not loopback"),
            remedy: "set ND_SECRET or ND_SECRET_FILE to the same on all ranks (`openssl rand -hex 32` makes one), or \
                     ND_AUTH=none if everyone who reaches this port may join"
                .into(),
        }),
    }
}

/// What ranks of the job of that name must know, of all who know `secret`.
fn of_job(secret: Secret, job: &str) -> Secret {
    if job.is_empty() { secret } else { secret.derive(&[b"nd job ", job.as_bytes()].concat()) }
}

/// Rank 0: listens and gathers.
fn lead(
    address: &Address,
    secret: &Secret,
    make: &mut member::MakeHello<'_>,
    config: &Config,
    deadline: Instant,
) -> Result<Joined, Failure> {
    let (listener, local_address) = match listen(address, config, deadline) {
        Ok(listening) => listening,
        Err(Listening::Failed(failure)) => return Err(failure),
        Err(Listening::Busy(failure)) => {
            // Perhaps by another rank 0 of this very job: then it can tell both, and everyone else.
            let (soon, at) =
                (deadline.min(Instant::now() + Duration::from_secs(2)), std::slice::from_ref(address));
            let waits = member::Waits { deadline: soon, patience: Duration::ZERO, name: member::UNRESOLVED };
            let joined = member::join(at, secret, make, waits, &config.transport.stop);
            let two = |told: &Failure| {
                told.problem.starts_with("two processes") || told.problem.contains("expects")
            };
            return Err(joined.err().filter(two).unwrap_or(failure));
        }
    };
    let own = make(local_address);
    let outcome = match Root::new(listener, secret.clone()) {
        Ok(root) => {
            let stop = root.stop();
            let _ends = config.transport.stop.on_ask(move || stop.ask());
            root.run(Some(own), Some(deadline))
        }
        Err(e) => {
            Err(Failure { problem: format!("cannot make a socket: {e}"), remedy: "check `ulimit -n`".into() })
        }
    };
    outcome.map(|(cards, secret)| Joined { cards, secret, local_address })
}

enum Listening {
    Busy(Failure),
    Failed(Failure),
}

/// Listens at `address`: on loopback only if it is loopback, else on all addresses of its family (behind a service
/// address or a NAT, the address itself is not this host's).
fn listen(
    address: &Address,
    config: &Config,
    deadline: Instant,
) -> Result<(Listener, Option<IpAddr>), Listening> {
    let started = Instant::now();
    let stop = &config.transport.stop;
    loop {
        if stop.asked() {
            return Err(Listening::Failed(member::given_up()));
        }
        let error = match address {
            Address::Unix(name) => match Listener::unix(name) {
                Ok(listener) => return Ok((listener, None)),
                Err(e) => e,
            },
            Address::Tcp { .. } => match address.resolve() {
                Ok(found) => match listen_tcp(address, &found, config) {
                    Ok(listening) => return Ok(listening),
                    Err(e) => e,
                },
                Err(e) if started.elapsed() >= member::UNRESOLVED || Instant::now() >= deadline => {
                    return Err(Listening::Failed(member::unresolved(e)));
                }
                Err(_) => {
                    stop.sleep(Duration::from_millis(250));
                    continue;
                }
            },
        };
        let busy = error.kind() == io::ErrorKind::AddrInUse;
        if busy && started.elapsed() < BUSY && Instant::now() < deadline {
            stop.sleep(Duration::from_millis(20));
            continue;
        }
        let failure = Failure {
            problem: format!("rank 0 cannot listen at {address}: {error}"),
            remedy: match address {
                Address::Tcp { port, .. } if busy => format!(
                    "set MASTER_PORT to another port on all ranks, or end what uses this one (`ss -ltnp sport = :{port}` shows it)"
                ),
                _ => "set MASTER_ADDR to an address of the host of rank 0".into(),
            },
        };
        return Err(if busy { Listening::Busy(failure) } else { Listening::Failed(failure) });
    }
}

fn listen_tcp(
    address: &Address,
    found: &[SocketAddr],
    config: &Config,
) -> io::Result<(Listener, Option<IpAddr>)> {
    // A name that means loopback here (Debian gives the host's own name 127.0.1.1) may mean more elsewhere.
    let only_loopback = |ip: IpAddr| {
        ip.is_loopback()
            && (address.is_literal_loopback() || (config.secret.is_none() && config.auth == Auth::Secret))
    };
    let mut error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for at in found {
        let (ip, port) = (at.ip(), at.port());
        let bind = match at {
            _ if only_loopback(ip) => *at,
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, port).into(),
        };
        match Listener::tcp(bind) {
            Ok(listener) => {
                let ours = !ip.is_loopback() && std::net::UdpSocket::bind((ip, 0)).is_ok();
                return Ok((listener, ours.then_some(ip)));
            }
            Err(e) => error = e,
        }
    }
    Err(error)
}

fn seconds(d: Duration) -> String {
    crate::error::seconds(d).replace(".0 s", " s")
}
