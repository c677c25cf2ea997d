//! The flight recorder: every communicator keeps its last calls, and writes them to a file when it fails; and traces of
//! all calls, for those who ask.
//!
//! | file | what |
//! |---|---|
//! | `clock` | time, as cheaply as the processor can tell |
//! | `ring` | the last calls, in memory that is allocated once |
//! | `identity` | which job and communicator they belong to |
//! | [`mod@file`] | what is written, and how it is read — *pure* |
//! | [`standstill`] | what the error of a call whose time was up says, as a file has it — *pure* |
//! | `save` | writes a file whole or not at all |
//! | `trace` | all calls, as a Chrome trace |
//! | [`diagnose`](diagnose()) | who is to blame, by the files of many ranks — *pure* |
//!
//! # Whether a failure leaves a file behind
//! It does, in the system's temporary folder, and a warning names it. PyTorch began with a recorder that had to be switched
//! on, and ended with one that writes by default when a collective times out: the run that hangs after three days is seldom
//! the one for which somebody had set a variable. A file has some 60 KB and only its user can read it;
//! `ND_RECORDER_DIR=none` writes none, and so do ranks that are threads of one process, which sees the errors of all of
//! them, unless a folder is named. A program that does not fail leaves nothing.
//!
//! # What a file does not hold
//! Contents of buffers, the environment, settings, addresses, secrets.

mod clock;
mod diagnose;
pub mod file;
mod identity;
mod ring;
#[cfg(test)]
mod ring_tests;
mod save;
pub mod standstill;
#[cfg(test)]
mod tests;
mod trace;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use diagnose::{Diagnosis, Finding, Verdict, diagnose};
pub use file::{Dump, FILE_MAX};
pub use identity::Peer;
pub use trace::Pattern;

use crate::error::Error;
use crate::exec::engine;
use crate::exec::run::Segment;
use crate::schedule::{Collective, Counts};
use clock::{Clock, Ticks};
use file::{Call, Current, FORMAT, Failure, Outcome, VERSION};
pub(crate) use identity::Identity;
use ring::{Entry, New, Ring};
use trace::Track;

/// Names of files begin with this.
pub const PREFIX: &str = "nd-recorder.";

/// Calls of at most so many elements are short: when they were entered is only looked up if they wait.
const SHORT: u64 = 1024;
/// In larger worlds a file names only the ranks that the failure is about.
const NAMED: usize = 4096;

/// What is recorded, and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `ND_RECORDER_CALLS`: how many calls are kept; 0: none.
    pub calls: usize,
    /// `ND_RECORDER_DIR`.
    pub folder: Folder,
    /// `ND_TRACE`.
    pub trace: Option<Pattern>,
}

/// Where files go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Folder {
    /// The system's temporary folder.
    Temporary,
    /// Nothing is written on failure.
    Nowhere,
    /// Here; it is made if it is not there.
    At(PathBuf),
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { calls: 256, folder: Folder::Temporary, trace: None }
    }
}

impl Settings {
    /// For ranks that are threads of one process: nothing is written unless a folder is named.
    pub(crate) fn of_threads(&self) -> Settings {
        match self.folder {
            Folder::Temporary => Settings { folder: Folder::Nowhere, ..self.clone() },
            _ => self.clone(),
        }
    }
}

impl Folder {
    /// The path, if anything is written.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Folder::Temporary => Some(std::env::temp_dir()),
            Folder::Nowhere => None,
            Folder::At(path) => Some(path.clone()),
        }
    }
}

/// Of one communicator on one rank. Whoever performs calls records them; anyone may look meanwhile.
#[derive(Debug)]
pub(crate) struct Recorder {
    identity: Identity,
    settings: Settings,
    clock: Clock,
    /// None: nothing is recorded.
    ring: Option<Ring>,
    track: Option<Track>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number in the ring of the call that the following is about.
    number: u64,
    awaited: Vec<usize>,
    heard: Vec<usize>,
    looked_at: Ticks,
    failure: Option<Failure>,
    failed_at: Ticks,
}

impl Recorder {
    pub fn new(identity: Identity, settings: &Settings) -> Recorder {
        let track = settings.trace.as_ref().and_then(|pattern| Track::open(pattern, &identity));
        let recorded = settings.calls > 0 || track.is_some();
        Recorder {
            clock: if track.is_some() { Clock::of_system() } else { Clock::new() },
            ring: recorded.then(|| Ring::new(settings.calls)),
            settings: settings.clone(),
            state: Mutex::default(),
            identity,
            track,
        }
    }

    /// For a part of these ranks; none: this rank has no color.
    pub fn part(&self, color: Option<u64>, members: &[usize]) -> Option<Recorder> {
        self.identity.part(color, members).map(|identity| Recorder::new(identity, &self.settings))
    }

    /// The communicator's name.
    pub fn communicator(&self) -> &str {
        &self.identity.communicator
    }

    /// For those of these ranks who go on after a failure, this one among them.
    pub fn rest(&self, members: &[usize]) -> Option<Recorder> {
        self.identity.rest(members).map(|identity| Recorder::new(identity, &self.settings))
    }

    /// Calls begin, all at the same time.
    #[inline]
    pub fn enter(&self, calls: &[engine::Call], segments: &[Segment]) {
        let Some(ring) = &self.ring else { return };
        if let ([call], [segment]) = (calls, segments) {
            let late = segment.stamp.count <= SHORT && self.track.is_none();
            ring.push(entry(call, segment), if late { 0 } else { self.clock.ticks() });
        } else {
            self.enter_all(ring, calls, segments);
        }
    }

    #[cold]
    fn enter_all(&self, ring: &Ring, calls: &[engine::Call], segments: &[Segment]) {
        let now = self.clock.ticks();
        calls.iter().zip(segments).for_each(|(call, segment)| ring.push(entry(call, segment), now));
    }

    /// The call could not go on for now.
    #[inline]
    pub fn idle(&self) {
        if let Some(ring) = &self.ring {
            ring.waits(|| self.clock.ticks());
        }
    }

    /// The call waits for these, and has heard of those.
    pub fn waits(&self, awaited: &[usize], heard: Vec<usize>) {
        let Some(ring) = &self.ring else { return };
        if let Some(track) = &self.track {
            track.flush();
        }
        let mut state = self.state();
        state.number = ring.newest();
        state.awaited.clear();
        state.awaited.extend_from_slice(awaited);
        state.heard = heard;
        state.looked_at = self.clock.ticks();
    }

    /// The last `count` calls are done.
    #[inline]
    pub fn done(&self, count: usize) {
        let Some(ring) = &self.ring else { return };
        ring.done(count, self.clock.ticks());
        if let Some(track) = &self.track {
            self.trace(track, ring, count, Outcome::Done);
        }
    }

    #[cold]
    fn trace(&self, track: &Track, ring: &Ring, count: usize, outcome: Outcome) {
        let ns = self.clock.scale();
        let until = ns(self.clock.ticks());
        let world_size = self.identity.peers.len();
        for entry in ring.last(count) {
            let call = Call::of_entry(&entry, world_size, outcome == Outcome::Failed, &ns);
            track.call(&call, self.clock.began_unix_ns(), call.done_ns.unwrap_or(until));
        }
    }

    /// No call works any more: writes what is known, if it is to be written. Never fails; what cannot be done is a warning.
    pub fn failed(&self, error: &Error) {
        let Some(ring) = &self.ring else { return };
        {
            let mut state = self.state();
            if state.failure.is_some() {
                return;
            }
            state.failure = Some(Failure::of(error));
            // Before the peers were told, which takes time.
            let known = state.number == ring.newest() && state.looked_at > 0;
            state.failed_at = if known { state.looked_at } else { self.clock.ticks() };
        }
        if let Some(track) = &self.track {
            let unfinished = ring.entries().iter().rev().take_while(|e| e.done == 0).count();
            self.trace(track, ring, unfinished, Outcome::Failed);
        }
        let Some(folder) = self.settings.folder.path().filter(|_| self.settings.calls > 0) else { return };
        let private = self.settings.folder == Folder::Temporary;
        let path = folder.join(self.identity.file_name());
        let rank = self.identity.rank;
        let made = if private { Ok(()) } else { std::fs::create_dir_all(&folder) };
        match made.and_then(|()| self.save(&path, !private)) {
            // Whoever found out by itself has said so; and whoever aborts knows.
            Ok(())
                if matches!(
                    error,
                    Error::PeerFailed { .. }
                        | Error::Aborted { .. }
                        | Error::Timeout { told_by: Some(_), .. }
                ) =>
            {
                tracing::debug!("rank {rank}: its last calls are in {}", path.display());
            }
            Ok(()) => tracing::warn!(
                "rank {rank}: its last calls are in {}; `nd-topo diagnose {}` reads those of all ranks and names the culprit",
                path.display(),
                folder.display()
            ),
            Err(e) => tracing::warn!(
                "rank {rank}: its last calls could not be written to {}: {e}; set ND_RECORDER_DIR to a folder with room, \
                 or to none",
                path.display()
            ),
        }
    }

    /// Writes what is known now.
    pub fn save(&self, path: &Path, open: bool) -> std::io::Result<()> {
        save::save(path, &self.dump().to_json()?, open)
    }

    /// Whether anything is kept that could be written.
    pub fn keeps(&self) -> bool {
        self.settings.calls > 0
    }

    /// What is known now.
    pub fn dump(&self) -> Dump {
        let state = self.state();
        let ns = self.clock.scale();
        let now = self.clock.ticks();
        let entries = self.ring.as_ref().map(Ring::entries).unwrap_or_default();
        let world_size = self.identity.peers.len();
        let failed = state.failure.is_some();
        let call = |e: &Entry| Call::of_entry(e, world_size, failed, &ns);
        let unfinished = entries.iter().rev().take_while(|e| e.done == 0).last();
        let current = unfinished.map(|entry| {
            let call = call(entry);
            let until = ns(if failed { state.failed_at } else { now });
            // A short call that has not looked at its peers yet.
            let entered = if call.entered_ns == 0 { until } else { call.entered_ns };
            let known = state.number >= entry.number;
            let ranks = |ranks: &[usize]| if known { ranks.to_vec() } else { Vec::new() };
            Current {
                lasted_ns: until.saturating_sub(entered),
                awaited: ranks(&state.awaited),
                heard: ranks(&state.heard),
                call: Call { entered_ns: entered, ..call },
            }
        });
        let newest = self.ring.as_ref().map_or(0, Ring::newest);
        let own = self.identity.own();
        Dump {
            format: FORMAT.into(),
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").into(),
            job: self.identity.job.clone(),
            communicator: self.identity.communicator.clone(),
            rank: own.rank,
            world_size,
            world_rank: own.world_rank,
            host: own.host.clone(),
            pid: own.pid,
            made_unix_ns: self.clock.began_unix_ns(),
            written_ns: ns(now),
            forgotten: newest.saturating_sub(entries.len() as u64),
            calls: entries.iter().map(call).collect(),
            ranks: self.named(&state, current.as_ref()),
            failure: state.failure.clone(),
            current,
        }
    }

    fn named(&self, state: &State, current: Option<&Current>) -> Vec<Peer> {
        let peers = &self.identity.peers;
        if peers.len() <= NAMED {
            return peers.to_vec();
        }
        let failure = state.failure.as_ref();
        let sides = failure.iter().flat_map(|f| f.sides.iter().map(|s| s.rank).chain(f.peer));
        let standstill = failure.iter().filter_map(|f| f.standstill.as_ref());
        let told = standstill.flat_map(|s| s.missing.iter().map(|m| m.rank).chain(s.entered.iter().copied()));
        let current = current.iter().flat_map(|c| c.awaited.iter().chain(&c.heard).copied());
        let ranks: BTreeSet<usize> =
            sides.chain(current).chain(told).chain([self.identity.rank]).take(NAMED).collect();
        ranks.into_iter().filter_map(|rank| peers.get(rank).cloned()).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[inline]
fn entry<'s>(call: &engine::Call, segment: &'s Segment) -> New<'s> {
    New {
        stamp: &segment.stamp,
        peer: call.root,
        sends: call.output.is_null(),
        bytes: if let Counts::Equal(_) = call.counts { 0 } else { bytes(call) },
    }
}

/// Of all parts that this rank knows of.
#[cold]
fn bytes(call: &engine::Call) -> u64 {
    let elements = match &call.counts {
        Counts::Equal(count) => *count,
        Counts::PerRank(counts) => counts.iter().sum(),
        Counts::Pairwise { send, .. } => send.iter().sum(),
    };
    let size = if call.collective == Collective::Barrier { 0 } else { call.data_type.size() as u64 };
    elements.saturating_mul(size)
}
