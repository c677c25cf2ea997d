//! How a communicator comes to be: rendezvous, links, settings.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nd_transport::secure::Secret;
use nd_transport::{Card, Endpoint, Opening};
use serde::{Deserialize, Serialize};

use super::grow::Lineage;
use super::{Communicator, summary};
use crate::choose::{Asked, Chooser};
use crate::config::{Config, Environment, Rule};
use crate::cost::{Calibration, calibration};
use crate::error::{Error, Result};
use crate::exec::layout;
use crate::launch::Launch;
use crate::recorder::{self, Folder, Identity, Peer, Recorder};
use crate::rendezvous::{Joined, Meeting, UniqueId, decline, join_with};
use crate::schedule::{self, Collective, Layout};

impl Communicator {
    /// The most ranks that one process can have as threads of its own: what each pair of them takes grows with their square.
    pub const LOCAL_RANKS: usize = 4096;

    /// The world that a launcher started this process in: `nd-run`, torchrun, mpirun, srun, an indexed Kubernetes
    /// Job. Settings come from the environment.
    ///
    /// # Errors
    /// When no launcher's variables are there or they contradict each other, and as for [`Communicator::new`].
    pub fn from_env() -> Result<Communicator> {
        let launch = Launch::from_env()?;
        let config = Config::from_env().inspect_err(|e| Communicator::decline(&launch, e))?;
        Communicator::from_launch(&launch, &config)
    }

    /// Has the other ranks of a start hear at once that this one cannot take part, and why, instead of waiting for it: for
    /// errors that keep a program from calling [`Communicator::from_launch`], which tells its own. Takes some seconds if
    /// the others do not come. The secret and such are taken from the environment, as far as it can be used.
    pub fn decline(launch: &Launch, why: &Error) {
        let (config, _) = Config::salvaged(&Environment::of_process());
        decline(launch, launch.rank, launch.world_size, why, &config);
    }

    /// As [`Communicator::from_env`], with the launcher's word and the settings given.
    pub fn from_launch(launch: &Launch, config: &Config) -> Result<Communicator> {
        Communicator::open(Meeting::from(launch), launch.rank, launch.world_size, config, None)
    }

    /// Rank `rank` of `world_size`, all of whom were given the same `id`; also a new rank of a communicator that
    /// [grows](Communicator::grow).
    ///
    /// # Errors
    /// When not all ranks come before the start's deadline, two come with one number, versions or secrets differ, or
    /// a rank cannot be reached or take part; the error names the ranks.
    pub fn new(id: &UniqueId, rank: usize, world_size: usize, config: &Config) -> Result<Communicator> {
        Communicator::open(Meeting::from(id), rank, world_size, config, None)
    }

    /// `n` ranks as threads of this process, at most [`Communicator::LOCAL_RANKS`]: one communicator for each, in the order of their
    /// ranks.
    pub fn local(n: usize) -> Result<Vec<Communicator>> {
        Communicator::local_with(n, &Config::default())
    }

    /// As [`Communicator::local`], with settings.
    pub fn local_with(n: usize, config: &Config) -> Result<Vec<Communicator>> {
        if !(1..=Communicator::LOCAL_RANKS).contains(&n) {
            return Err(Error::Rendezvous {
                who: "Communicator::local".into(),
                problem: format!("a world of {n} ranks"),
                remedy: format!("give 1 to {}", Communicator::LOCAL_RANKS),
            });
        }
        let chooser = chooser(config)?;
        let secret = Secret::random();
        let config = Arc::new(config.clone());
        nd_transport::local::group(n, &config.transport)
            .map_err(|source| Error::Transport { rank: 0, source })?
            .into_iter()
            .map(|endpoint| {
                let peer = |rank| Peer {
                    rank,
                    world_rank: rank,
                    host: nd_transport::host_name(),
                    pid: std::process::id(),
                };
                let identity = Identity::world(endpoint.rank(), (0..n).map(peer).collect(), &secret);
                let recorder = Recorder::new(identity, &config.recorder.of_threads());
                let (secret, chooser) = (secret.clone(), chooser.clone());
                Communicator::on_with(endpoint, secret, chooser, config.clone(), recorder)?.heeding(&config)
            })
            .collect()
    }

    /// On a new endpoint, all of whose ranks do this at the same time, so that their first windows have the same
    /// place. The recorder writes nothing by itself.
    pub fn on(
        endpoint: Endpoint,
        secret: Secret,
        chooser: Chooser,
        timeout: Duration,
    ) -> Result<Communicator> {
        let rank = endpoint.rank();
        let peer = |r| match r == rank {
            true => Peer { rank: r, world_rank: r, host: nd_transport::host_name(), pid: std::process::id() },
            false => Peer { rank: r, world_rank: r, host: String::new(), pid: 0 },
        };
        let identity = Identity::world(rank, (0..endpoint.world_size()).map(peer).collect(), &secret);
        let settings = recorder::Settings { folder: Folder::Nowhere, ..recorder::Settings::default() };
        let recorder = Recorder::new(identity, &settings);
        let transport = endpoint.config().clone();
        let config = Arc::new(Config::of(transport, timeout, settings));
        Communicator::on_with(endpoint, secret, chooser, config, recorder)
    }

    fn on_with(
        mut endpoint: Endpoint,
        secret: Secret,
        chooser: Chooser,
        config: Arc<Config>,
        recorder: Recorder,
    ) -> Result<Communicator> {
        let rank = endpoint.rank();
        let len = layout::inbox_len(endpoint.world_size());
        let inbox = match endpoint.take_first().filter(|first| first.len() >= len) {
            Some(first) => first,
            None => endpoint.region().alloc(len, true).map_err(|source| Error::Transport { rank, source })?,
        };
        let inboxes = vec![inbox.offset(); endpoint.world_size()];
        Ok(Communicator::assemble(endpoint, inbox, &inboxes, secret, chooser, config, recorder))
    }

    /// Is aborted by the handle of these settings.
    fn heeding(self, config: &Config) -> Result<Communicator> {
        let (stop, aborting) = (&config.transport.stop, self.shared.worker.aborting().clone());
        if stop.asked() {
            return Err(ended(self.rank()));
        }
        let _ = self.shared.handle.set(stop.on_ask(move || aborting.abort()));
        Ok(self)
    }

    /// `lineage` is of the communicator that grows, on its ranks.
    pub(super) fn open(
        meeting: Meeting,
        rank: usize,
        world_size: usize,
        config: &Config,
        lineage: Option<&Lineage>,
    ) -> Result<Communicator> {
        let _going = config.transport.stop.begin();
        let opened = Communicator::try_open(meeting, rank, world_size, config, lineage);
        let stopped = config.transport.stop.asked() && opened.is_err();
        if stopped { Err(ended(rank)) } else { opened }
    }

    fn try_open(
        meeting: Meeting,
        rank: usize,
        world_size: usize,
        config: &Config,
        lineage: Option<&Lineage>,
    ) -> Result<Communicator> {
        warn_once(&config.warnings);
        let failed = |source| Error::Transport { rank, source };
        let transport = nd_transport::Config {
            ranks: world_size,
            exposed: layout::inbox_len(world_size),
            ..config.transport.clone()
        };
        // What this rank cannot do is found out before any other rank waits for it, and told to those that come.
        let able = chooser(config).and_then(|chooser| match Endpoint::open(&transport) {
            Ok(_) => Ok(chooser),
            Err(e) => Err(failed(e)),
        });
        let chooser = able.inspect_err(|e| decline(meeting.clone(), rank, world_size, e, config))?;
        let deadline = Instant::now() + config.start_timeout().min(LONGEST);
        let on_loopback = meeting.on_loopback();
        let mut opening: Option<Opening> = None;
        let mut card = |local: Option<IpAddr>| {
            let transport = nd_transport::Config {
                local_address: local,
                // Whoever asks for an interface wants it.
                loopback_only: on_loopback && config.transport.interfaces.is_empty(),
                // A call may have to connect first.
                start_timeout: config.start_timeout().min(config.timeout).min(LONGEST),
                ..transport.clone()
            };
            let opened = Endpoint::open(&transport).map_err(failed)?;
            let joining = Joining {
                card: opened.card().clone(),
                settings: Settings::of(config, rank),
                proof: lineage.map(|lineage| lineage.proof(rank)),
            };
            opening = Some(opened);
            Ok(serde_json::to_vec(&joining).expect("cards are plain data"))
        };
        let Joined { cards, secret, .. } = join_with(meeting, rank, world_size, &mut card, config, deadline)?;
        let cards = cards
            .iter()
            .enumerate()
            .map(|(peer, card)| {
                serde_json::from_slice(card).map_err(|e| {
                    failed(nd_transport::Error::Protocol { rank: peer, what: format!("its card: {e}") })
                })
            })
            .collect::<Result<Vec<Joining>>>()?;
        if let Some(lineage) = lineage {
            lineage.check(cards.iter().map(|joining| joining.proof.as_deref()))?;
        }
        let chooser = Chooser { costs: agreed(&cards, rank)?.or(chooser.costs), ..chooser };
        let cards: Vec<Card> = cards.into_iter().map(|joining| joining.card).collect();
        let peer = |(rank, card): (usize, &Card)| Peer {
            rank,
            world_rank: rank,
            host: card.host_name.clone(),
            pid: card.pid,
        };
        let identity = Identity::world(rank, cards.iter().enumerate().map(peer).collect(), &secret);
        let recorder = Recorder::new(identity, &config.recorder);
        let opening = opening.expect("whoever joined has given a card");
        let endpoint = opening.connect(rank, cards, &secret, deadline).map_err(|e| match e {
            nd_transport::Error::Aborted { rank: culprit, who } => Error::Aborted { rank, culprit, who },
            e => failed(e),
        })?;
        summary::log(&endpoint, &Layout::new(&endpoint.hosts()), config);
        Communicator::on_with(endpoint, secret, chooser, Arc::new(config.clone()), recorder)?.heeding(config)
    }
}

/// Says in one process what was said in none of its starts before.
fn warn_once(warnings: &[String]) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    for warning in warnings {
        if said.insert(warning.clone()) {
            tracing::warn!("{warning}");
        }
    }
}

/// The error of a start that this rank's program ended.
fn ended(rank: usize) -> Error {
    let who = format!("rank {rank} ({}, pid {})", nd_transport::host_name(), std::process::id());
    Error::Aborted { rank, culprit: rank, who }
}

/// Longer timeouts are cut to a century, which every clock can hold.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What a rank tells the others when it joins.
#[derive(Serialize, Deserialize)]
struct Joining {
    card: Card,
    settings: Settings,
    /// That it is a rank of the communicator that grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    proof: Option<String>,
}

/// What must be the same everywhere: what choices of algorithms depend on, and what is encrypted.
#[derive(Serialize, Deserialize)]
struct Settings {
    algorithms: String,
    reduction: String,
    transport: String,
    encrypt: String,
    /// What links cost, from rank 0 alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    calibration: Option<String>,
}

impl Settings {
    fn of(config: &Config, rank: usize) -> Settings {
        let calibration = config.calibration.as_ref().filter(|_| rank == 0).map(|c| c.to_toml());
        Settings {
            algorithms: config.value("ND_ALGO"),
            reduction: config.value("ND_REDUCTION"),
            transport: config.value("ND_TRANSPORT"),
            encrypt: config.value("ND_ENCRYPT"),
            calibration,
        }
    }
}

/// Checks that all ranks have the settings of rank 0, and gives what that one knows of the links' costs.
fn agreed(ranks: &[Joining], rank: usize) -> Result<Option<Arc<Calibration>>> {
    let Some(first) = ranks.first().map(|r| &r.settings) else { return Ok(None) };
    for (peer, Joining { card, settings, .. }) in ranks.iter().enumerate() {
        let all = [
            ("ND_ALGO", &settings.algorithms, &first.algorithms),
            ("ND_REDUCTION", &settings.reduction, &first.reduction),
            ("ND_TRANSPORT", &settings.transport, &first.transport),
            ("ND_ENCRYPT", &settings.encrypt, &first.encrypt),
        ];
        if let Some((name, theirs, ours)) = all.into_iter().find(|(_, theirs, ours)| theirs != ours) {
            let shown =
                |value: &str| if value.is_empty() { "nothing".to_owned() } else { format!("{value:?}") };
            return Err(Error::Rendezvous {
                who: format!("rank {rank}"),
                problem: format!(
                    "{name} is {} on rank {peer} ({}, pid {}) and {} on rank 0",
                    shown(theirs),
                    card.host_name,
                    card.pid,
                    shown(ours)
                ),
                remedy: "give all ranks the same settings".into(),
            });
        }
    }
    let Some(text) = &first.calibration else { return Ok(None) };
    let invalid = |e: calibration::Invalid| Error::Rendezvous {
        who: format!("rank {rank}"),
        problem: format!("the calibration that rank 0 sent cannot be read: {e}"),
        remedy: "run the same version of this program on all ranks".into(),
    };
    Calibration::parse(text).map(|c| Some(Arc::new(c))).map_err(invalid)
}

/// Algorithms that NCCL has and that have no counterpart here, so that its users' settings are no errors.
const NCCL_ONLY: [&str; 6] = ["collnet", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"];

/// Checks the names that `ND_ALGO` gives.
fn chooser(config: &Config) -> Result<Chooser> {
    let invalid = |value: &str, problem: String, remedy: String| Error::Config {
        setting: "ND_ALGO".into(),
        value: value.into(),
        problem,
        remedy,
    };
    let collective = |name: &String| {
        let plain = |s: &str| s.replace(['_', '-'], "").to_lowercase();
        (1..=u8::MAX)
            .map_while(|code| Collective::try_from(code).ok())
            .find(|c| plain(c.function()) == plain(name))
            .ok_or_else(|| {
                invalid(name, "no such collective".into(), "use allreduce, allgather, broadcast, …".into())
            })
    };
    let known: Vec<_> = schedule::algorithms().iter().map(|a| a.name()).collect();
    let mut asked = Vec::new();
    for rule in &config.algorithms {
        let (foreign, names): (Vec<&String>, Vec<&String>) =
            rule.names.iter().partition(|a| NCCL_ONLY.contains(&a.as_str()));
        if !foreign.is_empty() {
            tracing::warn!("ND_ALGO: there is no {foreign:?} here, as NCCL has; passed over");
        }
        if let Some(unknown) = names.iter().find(|a| !known.contains(&a.as_str()) && a.as_str() != "auto") {
            let nearest = crate::config::nearest(unknown, known.iter().copied());
            let hint = nearest.map(|n| format!("did you mean {n}? ")).unwrap_or_default();
            return Err(invalid(
                unknown,
                "no such algorithm".into(),
                format!("{hint}use auto or one of {}", known.join(", ")),
            ));
        }
        let names: Vec<String> = names.into_iter().filter(|a| a.as_str() != "auto").cloned().collect();
        if !names.is_empty() {
            let collective = rule.collective.as_ref().map(collective).transpose()?;
            asked.push(Asked { collective, rule: Rule { names, ..rule.clone() } });
        }
    }
    Ok(Chooser { asked, reduction: config.reduction, costs: config.calibration.clone() })
}
