//! The side that connects.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nd_transport::secure::{self, Secret, Session};
use nd_transport::{OnStop, Stop};

use super::address::Address;
use super::roll::{Failure, Hello};
use super::stream::Stream;
use super::wire::{self, ABORTED, CARD_MAX, Verdict};
use super::{CONTEXT, Joined};

/// How long the outcome may take to arrive after the deadline: the root's clock and ours started at different times.
const GRACE: Duration = Duration::from_secs(3);
/// How long saying that the start was aborted may take.
const PARTING: Duration = Duration::from_millis(50);
/// How often in a row a connection may end without an answer before that counts as one.
const SILENT_ENDS: usize = 8;
/// How long, and for what part of this rank's patience, that may be the root's way of making room, when very many
/// ranks or strangers arrive at once.
const STORM: Duration = Duration::from_secs(5);
const STORM_PART: u32 = 2;
/// How `nd_transport::secure` words an end without an answer: the root was just ending, or made room for others.
const CLOSED: &str = "closed the connection";
/// How long a name may fail to resolve, unless more is said: a cluster's name server learns of new hosts late.
pub const UNRESOLVED: Duration = Duration::from_secs(10);

/// How long a rank waits for the root.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// Until when at most.
    pub deadline: Instant,
    /// How long that was when the start began.
    pub patience: Duration,
    /// How long the root's name may fail to resolve.
    pub name: Duration,
}

/// How long a rank that cannot take part tries to say so, and to whoever else it may concern.
pub const TELLING_WHY: Duration = Duration::from_secs(5);

/// The kernel takes so many bytes of a new connection at once: who gives up meanwhile can still say so.
const NEVER_WAITS: usize = 8 << 10;

/// Makes the hello, once it is known by which address this rank reached the root.
pub type MakeHello<'a> = dyn FnMut(Option<IpAddr>) -> Hello + 'a;

/// Joins at the first of `addresses` that answers.
pub fn join(
    addresses: &[Address],
    secret: &Secret,
    make: &mut MakeHello<'_>,
    waits: Waits,
    stop: &Stop,
) -> Result<Joined, Failure> {
    let mut session = connect(addresses, secret, waits, stop)?;
    let ends_all = ends(session.get_ref(), stop);
    let local_address = session.get_ref().local_ip().filter(|ip| !ip.is_loopback());
    let mut hello = make(local_address);
    let world_size = hello.world_size;
    let deadline = match hello.card {
        Ok(_) => waits.deadline,
        Err(_) => waits.deadline.min(Instant::now() + TELLING_WHY),
    };
    hello.patience_ms = deadline.saturating_duration_since(Instant::now()).as_millis() as u64;
    session.get_ref().set_deadline(deadline + GRACE);
    let most = world_size.saturating_mul(CARD_MAX + 4).saturating_add(64 << 10);
    let at = list(addresses);
    let hello = wire::encode_hello(&hello);
    let ends_all = (hello.len() > NEVER_WAITS).then_some(ends_all);
    let stream = session.get_ref().clone();
    let _ends = stop.on_ask(move || stream.deafen());
    let mut answer = session.send(&hello).map(|()| Vec::new());
    drop(ends_all);
    if answer.is_ok() {
        answer = session.receive(most);
        if answer.is_err() && stop.asked() {
            session.get_ref().set_deadline(Instant::now() + PARTING);
            // Who does not hear it sees this rank leave.
            let _ = session.send(ABORTED);
        }
    }
    let failure = |problem, remedy: &str| Err(Failure { problem, remedy: remedy.into() });
    match answer.map(|a| wire::decode_verdict(&a)) {
        Ok(Some(Verdict::Complete { secret, cards })) if cards.len() == world_size => {
            Ok(Joined { cards, secret: Secret::from_bytes(secret), local_address })
        }
        Ok(Some(Verdict::Failed(failure))) => Err(failure),
        Ok(_) => {
            failure(format!("the answer from {at} is malformed"), "run the same build of nd on all ranks")
        }
        Err(_) if stop.asked() => Err(given_up()),
        Err(e) => failure(
            format!(
                "joined at {at}, but the process that gathers the ranks there went away or fell silent ({e})"
            ),
            "look at what rank 0 printed",
        ),
    }
}

/// Whoever waits for an answer gets none once `stop` is asked.
fn ends(stream: &Stream, stop: &Stop) -> OnStop {
    let stream = stream.clone();
    stop.on_ask(move || stream.shut())
}

fn connect(
    addresses: &[Address],
    secret: &Secret,
    Waits { deadline, patience, name }: Waits,
    stop: &Stop,
) -> Result<Session<Stream>, Failure> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(2);
    let mut silent = 0;
    let mut last = String::new();
    loop {
        for target in targets(addresses, started + name, &mut last)? {
            let now = Instant::now();
            if now >= deadline && !last.is_empty() {
                break;
            }
            let limit = deadline.min(now + Duration::from_secs(10));
            if stop.asked() {
                return Err(given_up());
            }
            let stream = match target.connect(limit, stop) {
                Ok(stream) => stream,
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(Failure {
                        problem: format!("{target}: {e}"),
                        remedy: "run all ranks as one user".into(),
                    });
                }
                Err(e) => {
                    last = format!("{target}: {e}");
                    continue;
                }
            };
            let _ends = ends(&stream, stop);
            match secure::initiate(stream, secret, CONTEXT) {
                Ok(session) => return Ok(session),
                Err(nd_transport::Error::Refused { why, .. }) if !why.starts_with(CLOSED) => {
                    return Err(Failure {
                        problem: format!("no understanding with {target}: {why}"),
                        remedy: "use one build of nd and one ND_SECRET for all ranks, and a MASTER_PORT that nothing else uses".into(),
                    });
                }
                Err(e) => {
                    silent += 1;
                    last = format!("{target}: connected, but {e}");
                    if silent >= SILENT_ENDS && started.elapsed() >= STORM.max(patience / STORM_PART) {
                        return Err(Failure {
                            problem: format!("{last}, {silent} times in a row"),
                            remedy: "check that all ranks have the same ND_SECRET, and that nothing else uses MASTER_PORT".into(),
                        });
                    }
                }
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure {
                problem: format!(
                    "nobody answered at {} within {} (last: {last})",
                    list(addresses),
                    super::seconds(patience)
                ),
                remedy: "start rank 0 there, and check MASTER_ADDR, MASTER_PORT and firewalls".into(),
            });
        }
        // Jitter, so that many ranks do not come in step.
        stop.sleep(pause.mul_f64(0.75 + 0.5 * rand::random::<f64>()).min(left));
        pause = (pause * 3 / 2).min(Duration::from_millis(250));
    }
}

/// What is said of a start that its program ended; nobody hears it but this rank.
pub fn given_up() -> Failure {
    Failure { problem: "its program aborted the start".into(), remedy: "start again".into() }
}

/// A place to connect to.
enum Target {
    Tcp(SocketAddr),
    Unix(String),
}

impl Target {
    fn connect(&self, deadline: Instant, stop: &Stop) -> io::Result<Stream> {
        match self {
            Target::Tcp(address) => Stream::tcp(*address, deadline, stop),
            Target::Unix(name) => Stream::unix(name, deadline),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Tcp(address) => address.fmt(f),
            Target::Unix(name) => write!(f, "unix:@{name}"),
        }
    }
}

/// Names that do not resolve are passed over until `resolved`, and are an error from then on.
fn targets(addresses: &[Address], resolved: Instant, last: &mut String) -> Result<Vec<Target>, Failure> {
    let mut targets = Vec::new();
    for address in addresses {
        match address {
            Address::Unix(name) => targets.push(Target::Unix(name.clone())),
            Address::Tcp { .. } => match address.resolve() {
                Ok(found) => targets.extend(found.into_iter().map(Target::Tcp)),
                Err(e) if Instant::now() >= resolved => return Err(unresolved(e)),
                Err(e) => *last = e,
            },
        }
    }
    Ok(targets)
}

/// What to say about a name without an address.
pub fn unresolved(e: String) -> Failure {
    Failure { problem: e, remedy: "correct MASTER_ADDR, or write an address instead of a name".into() }
}

fn list(addresses: &[Address]) -> String {
    addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(" or ")
}
