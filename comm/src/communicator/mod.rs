//! A group of ranks that make the same calls.
//!
//! | file | what |
//! |---|---|
//! | [`abort`] | the end, from any thread |
//! | `arguments` | checks arguments; nothing is sent before all is well |
//! | `open` | rendezvous, links, settings |
//! | `calls` | the blocking calls |
//! | `start` | the asynchronous calls |
//! | [`group`] | several calls at once |
//! | [`pending`] | what asynchronous calls give back |
//! | `split` | smaller groups |
//! | `shrink` | those who are left after a failure |
//! | `grow` | more ranks |
//! | `summary` | what is logged of a world that has come to be |
//! | `worker` | who performs calls, one after the other |

pub mod abort;
mod arguments;
mod calls;
pub mod group;
mod grow;
mod open;
pub mod pending;
mod shrink;
mod split;
mod start;
mod summary;
mod worker;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use nd_transport::{Abilities, Endpoint, Forked, OnStop, Region};

use crate::buffer::Buffer;
use crate::choose::Chooser;
use crate::config::Config;
use crate::cost::Calibration;
use crate::cost::hosts::Machines;
use crate::error::{Error, Result};
use crate::exec::engine::{Call, Engine};
use crate::exec::stamp::Within;
use crate::number::{DataType, Element, ReduceOp};
use crate::recorder::Recorder;
use crate::schedule::{Alias, Collective, Counts, Layout};
use arguments::Arguments;
use worker::Worker;

/// A group of ranks that make the same calls in the same order.
///
/// # Threads
/// Calls from several threads of one rank are performed one after the other, in the order in which they come; then
/// every rank's threads must come in the same order, so give each thread a communicator of its own
/// ([`Communicator::split`]). Ranks whose threads come in different orders get [`Error::Mismatch`] where the calls
/// differ; where they are alike, they are matched in the order in which they come, whoever makes them.
///
/// One thread that calls on several communicators does so in the same order as its peers on other ranks. Where two ranks
/// are each in a call that the other has not yet come to, both calls fail when their time is up; the error says where
/// each rank is, and `nd-topo diagnose`, given the recorders' files, that the orders differ.
///
/// # Time
/// Cloning gives another handle to the same communicator, and so does [`Communicator::with_timeout`], which may wait for a
/// longer or shorter time. When the time for a call is up on any rank, the call fails on all with [`Error::Timeout`], which
/// says everywhere the same: who has entered the call, who has not, and what those did last.
///
/// # Leaving
/// Dropping the last handle ends what was started and is not done, and tells peers that still wait for this rank. It never
/// panics, and mostly takes microseconds. It takes longer only while peers over TCP do not take what was sent to them, at
/// most as long as a start or a call may take, whichever is less ([`Config::start_timeout`](crate::config::Config::start_timeout),
/// [`Config::timeout`](crate::config::Config)); 2 s at most if a call has failed or was aborted or ended before, and up to
/// 10 s more where a peer that is a thread of this process is just then storing into a buffer of such a call.
///
/// # Forks
/// In the child of a fork every call fails with [`Error::Forked`]; the parent goes on.
#[derive(Clone)]
pub struct Communicator {
    shared: Arc<Shared>,
    /// How long calls by this handle may wait.
    timeout: Duration,
}

struct Shared {
    rank: usize,
    world_size: usize,
    layout: Arc<Layout>,
    region: Arc<Region>,
    forked: Forked,
    chooser: Chooser,
    config: Arc<Config>,
    /// The secret of this group's connections, from which those of its parts are derived.
    secret: nd_transport::secure::Secret,
    recorder: Arc<Recorder>,
    worker: Worker,
    /// Aborts it when the handle of its settings is asked to.
    handle: OnceLock<OnStop>,
    /// Whether this communicator was shrunk; held meanwhile.
    shrunk: Mutex<bool>,
}

/// Which algorithm a call takes, and which links.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// Why it was chosen, in a sentence.
    pub why: String,
    /// What each candidate was predicted to take, µs, the chosen one first; empty where nothing was
    /// compared.
    pub predicted: Vec<(&'static str, f64)>,
    /// The names of the transports to the other ranks, each once.
    pub transports: Vec<&'static str>,
    /// For each other rank, how it is reached and why.
    pub links: Vec<String>,
}

impl Communicator {
    fn assemble(
        endpoint: Endpoint,
        inbox: nd_transport::Window,
        inboxes: &[u64],
        secret: nd_transport::secure::Secret,
        chooser: Chooser,
        config: Arc<Config>,
        recorder: Recorder,
    ) -> Communicator {
        let (rank, world_size) = (endpoint.rank(), endpoint.world_size());
        tracing::debug!("rank {rank} of {world_size} of communicator {}", recorder.communicator());
        let (region, timeout) = (endpoint.region().clone(), config.timeout);
        let recorder = Arc::new(recorder);
        let engine = Engine::new(endpoint, inbox, inboxes, chooser.clone(), recorder.clone());
        let shared = Shared {
            rank,
            world_size,
            layout: engine.layout().clone(),
            region,
            forked: Forked::here(),
            chooser,
            config,
            secret,
            recorder,
            worker: Worker::new(rank, engine),
            handle: OnceLock::new(),
            shrunk: Mutex::new(false),
        };
        Communicator { shared: Arc::new(shared), timeout }
    }

    /// A handle to the same communicator whose calls may wait for so long: blocking ones, groups, and started ones from
    /// when they begin, which is when those that were started before are done. The others' handles stay as they are. The
    /// parts that [`Communicator::split`] makes of the handle take its time over.
    ///
    /// The first rank whose time is up ends the call for all.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use nd_comm::prelude::*;
    /// # let ranks = Communicator::local(1)?;
    /// # let comm = &ranks[0];
    /// comm.with_timeout(Duration::from_secs(5)).barrier()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn with_timeout(&self, timeout: Duration) -> Communicator {
        Communicator { shared: self.shared.clone(), timeout }
    }

    /// As if so many collective calls had been made.
    #[cfg(test)]
    pub(crate) fn renumber(&self, calls: u64) {
        self.shared.worker.with_engine(|engine| engine.renumber(calls));
    }

    /// How long calls by this handle may wait: `ND_TIMEOUT`, unless [`Communicator::with_timeout`] says otherwise.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.shared.world_size
    }

    /// The ranks that share this rank's host, this one included, ascending.
    pub fn host_ranks(&self) -> &[u32] {
        let layout = &self.shared.layout;
        &layout.hosts()[layout.host_of(self.rank())]
    }

    /// Which ranks share a host with whom.
    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// `len` zeroed elements of memory that ranks of this host reach without a copy. From 2 MiB on it lies on huge pages
    /// where the system has them (Linux 6.1 on), and is there at once instead of page by page as it is touched.
    ///
    /// # Errors
    /// When the address space for registered memory is used up.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        if self.shared.forked.since() {
            return Err(Error::Forked { rank: self.rank() });
        }
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let window = self
            .shared
            .region
            .alloc(bytes, false)
            .map_err(|source| Error::Transport { rank: self.rank(), source })?;
        window.back_by_huge_pages(bytes);
        Ok(Buffer::new(window, len))
    }

    /// Which algorithm a call with buffers of `count` elements takes (per rank's part where the collective has
    /// parts), and why.
    pub fn explain(
        &self,
        collective: Collective,
        count: u64,
        data_type: DataType,
        op: Option<ReduceOp>,
    ) -> Result<Explanation> {
        let call = Call {
            collective,
            within: Within::Program,
            counts: Counts::Equal(count),
            root: 0,
            alias: Alias::None,
            data_type,
            op,
            input: std::ptr::null(),
            output: std::ptr::null_mut(),
        };
        self.shared.worker.with_engine(|engine| {
            let choice = engine.plans().choose(&call)?;
            let links: Vec<_> =
                (0..self.world_size()).filter_map(|peer| engine.endpoint().link(peer)).collect();
            let mut transports: Vec<_> = links.iter().map(|l| l.transport().name()).collect();
            transports.sort_unstable();
            transports.dedup();
            let links = links.iter().map(|l| format!("rank {}: {}", l.peer(), l.describe())).collect();
            Ok(Explanation {
                algorithm: choice.algorithm.name(),
                why: choice.why,
                predicted: choice.predicted,
                transports,
                links,
            })
        })
    }

    /// What choices of algorithms depend on: the same on every rank.
    pub fn machines(&self) -> Machines {
        self.shared.worker.with_engine(|engine| engine.plans().tuner().machines().clone())
    }

    /// Whether `peer` reads registered memory of this rank where it lies.
    pub fn maps(&self, peer: usize) -> bool {
        let maps = |engine: &mut Engine| {
            engine.endpoint().link(peer).is_some_and(|l| l.abilities().contains(Abilities::MAP))
        };
        self.shared.worker.with_engine(maps)
    }

    /// The name of the transport to `peer`, as it turned out; none to this rank itself.
    pub fn transport(&self, peer: usize) -> Option<&'static str> {
        self.shared.worker.with_engine(|engine| engine.endpoint().link(peer).map(|l| l.transport().name()))
    }

    /// Chooses algorithms by these costs from now on. All ranks do this with the same costs, between the same calls.
    ///
    /// # Errors
    /// In a process that was forked from the one that made the communicator.
    pub fn set_costs(&self, costs: Calibration) -> Result<()> {
        if self.shared.forked.since() {
            return Err(Error::Forked { rank: self.rank() });
        }
        self.shared.worker.with_engine(|engine| engine.plans().set_costs(Arc::new(costs)));
        Ok(())
    }

    /// Writes the last calls of this rank to a file, whole or not at all, as JSON that `nd-topo diagnose` reads beside those
    /// of the other ranks: for programs that want to know why a call takes so long, from any thread. On failure it is
    /// written by itself: see [`recorder`](crate::recorder).
    ///
    /// # Errors
    /// When the recorder is switched off (`ND_RECORDER_CALLS=0`) or the file cannot be written.
    pub fn dump_recorder(&self, path: impl AsRef<std::path::Path>) -> Result<()> {
        let (rank, path) = (self.rank(), path.as_ref());
        if !self.shared.recorder.keeps() {
            return Err(Error::InvalidArgument {
                rank,
                call: "dump_recorder",
                problem: "ND_RECORDER_CALLS is 0, so nothing was recorded".into(),
                remedy: "set it to the number of calls to keep, such as 256".into(),
            });
        }
        let what = format!("writing {}", path.display());
        let failed = |source| Error::Transport { rank, source: nd_transport::Error::System { what, source } };
        self.shared.recorder.save(path, true).map_err(failed)
    }

    fn arguments(&self) -> Arguments {
        Arguments { rank: self.rank(), world_size: self.world_size() }
    }

    /// Performs calls, after those that were started before.
    ///
    /// # Safety
    /// As for [`Engine::perform`].
    #[allow(unsafe_code)] // passes the promise on
    #[inline]
    unsafe fn perform(&self, calls: &[Call]) -> Result<()> {
        if self.shared.forked.since() {
            return Err(Error::Forked { rank: self.rank() });
        }
        // SAFETY: the caller's promise.
        unsafe { self.shared.worker.perform(calls, self.timeout) }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("world_size", &self.world_size())
            .finish()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.forked.since() {
            // The connections and counters are the parent's; leave them as they are.
            self.worker.forget();
        }
    }
}
