//! How pairs of ranks come to be joined: inside the session of their connection they tell each other how their queue pairs
//! are reached, the one that has connected tries the way, and the other looks at what came.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Fabric, Pair, State, address, bytes_of_mtu};
use crate::tcp::{Rider, Talk};
use crate::verbs::adapter::{PROBE, Trial};
use crate::verbs::hello::{self, Hello, Said};
use crate::verbs::post::Target;
use crate::verbs::queue::{Fault, Queue};
use crate::verbs::sys::{QueuePair, Route};
use crate::{Error, Result};

/// How long a probe may take before the way counts as closed.
const PROBING: Duration = Duration::from_secs(3);
/// How long it is looked for without a pause.
const PROBE_SPIN: Duration = Duration::from_millis(1);
const PROBE_TICK: Duration = Duration::from_micros(200);

/// This rank's end, before it is joined with the other.
struct Begun {
    // Ends before the place where the peer may write by it.
    queue_pair: QueuePair,
    hello: Hello,
    trial: Trial,
}

impl Fabric {
    /// Makes this rank's end.
    fn begin(&self, pair: &Pair) -> Result<Begun, String> {
        // Of an attempt before.
        self.end(&mut self.inbox(), pair, "they connect anew");
        pair.early().take();
        pair.flushed.store(0, Ordering::Release);
        let adapter = self.adapters[pair.rail.adapter].as_ref().map_err(String::clone)?;
        let device = adapter.device.context();
        let (name, port) = (device.name(), pair.rail.port);
        let at = |e: std::io::Error| format!("port {name}:{port} cannot be used: {e}");
        let state = device.port(port).map_err(at)?;
        if !state.active {
            return Err(format!(
                "port {name}:{port} is down; `nd-topo show` lists all ports and their states"
            ));
        }
        let gid = device.gid(port, pair.rail.gid_index.into()).map_err(at)?;
        adapter.reserve(&self.region).map_err(|e| e.to_string())?;
        let queue_pair = adapter.pair().map_err(|e| format!("{name} makes no more queue pairs: {e}"))?;
        // Told of one before that had this number.
        self.inbox().strays.retain(|stray| *stray != (pair.rail.adapter, queue_pair.number()));
        let trial = adapter.trial();
        let hello = Hello {
            number: queue_pair.number(),
            first: rand::random::<u32>() & 0xff_ffff,
            lid: state.lid,
            mtu: state.mtu as u8,
            gid,
            probe: trial.target(),
            ethernet: state.ethernet,
        };
        Ok(Begun { queue_pair, hello, trial })
    }

    /// Joins it with the other end. Gives the place of its probe, and the bytes of a packet.
    fn join(&self, pair: &Pair, begun: Begun, theirs: &Hello) -> Result<(Trial, u32), String> {
        let Begun { queue_pair, hello: ours, trial } = begun;
        let adapter = self.adapters[pair.rail.adapter].as_ref().map_err(String::clone)?;
        if ours.ethernet != theirs.ethernet {
            return Err(format!(
                "of the ports {} one is InfiniBand and the other is Ethernet; ND_IB_HCA chooses others",
                pair.rail.name
            ));
        }
        let mtu = ours.mtu.min(theirs.mtu);
        if ours.mtu != theirs.mtu {
            let [here, there] = [ours.mtu, theirs.mtu].map(bytes_of_mtu);
            tracing::debug!(
                "rank {}: packets to rank {} have {} bytes: this port would take {here}, the other {there}",
                self.me,
                pair.peer,
                here.min(there)
            );
        }
        let route = Route {
            port: pair.rail.port,
            gid_index: pair.rail.gid_index,
            ethernet: ours.ethernet,
            mtu: mtu.into(),
            gid: theirs.gid,
            lid: theirs.lid,
            number: theirs.number,
            first_theirs: theirs.first,
            first_ours: ours.first,
        };
        queue_pair.connect(&route, &self.care).map_err(|e| {
            let (name, there) = (&pair.rail.name, address(&theirs.gid));
            format!(
                "no way by RDMA from port {name} at {there}: {e}; ND_IB_HCA and ND_IB_GID_INDEX choose others"
            )
        })?;
        let queue = Queue::new(queue_pair, adapter.clone(), self.region.clone());
        let number = queue.pair().number();
        let mut inbox = self.inbox();
        *pair.state() = State::Joining(Box::new(queue));
        let pair = self.by_rank[&pair.peer].clone();
        let route = (pair.rail.adapter, number);
        inbox.routes.insert(route, pair.clone());
        if inbox.strays.contains(&route) {
            self.given_up(&mut inbox, &pair);
        }
        Ok((trial, bytes_of_mtu(mtu)))
    }

    /// Writes the longest packet to the peer and waits until it is there.
    fn probe(&self, pair: &Pair, target: Target, len: u32) -> Result<(), String> {
        let broken = |fault| match fault {
            Fault::Broken(why) | Fault::Protocol(why) | Fault::Outside(why) => why,
            Fault::Here(e) => e.to_string(),
        };
        if let State::Joining(queue) = &mut *pair.state() {
            queue.probe(target, len.min(PROBE as u32)).map_err(broken)?;
        }
        let began = Instant::now();
        loop {
            self.collect(&mut self.inbox());
            match &*pair.state() {
                State::Joining(queue) if queue.probed => return Ok(()),
                State::Joining(_) => {}
                State::Closed(cause) => return Err(cause.clone()),
                _ => return Err("they connected otherwise meanwhile".into()),
            }
            let waited = began.elapsed();
            if waited > PROBING {
                let name = &pair.rail.name;
                return Err(format!(
                    "a packet of {len} bytes from {name} was not answered within {PROBING:?}: RoCE needs UDP port 4791, and \
                     all between must take packets of this size"
                ));
            }
            if waited > PROBE_SPIN {
                std::thread::sleep(PROBE_TICK);
            }
        }
    }

    /// The way is open; an error is what has closed it since.
    fn open(&self, pair: &Pair, theirs: &Hello) -> Result<()> {
        let mut state = pair.state();
        let (now, closed) = match std::mem::replace(&mut *state, State::Plain) {
            State::Joining(queue) => (State::Joined(queue), None),
            State::Closed(cause) => {
                let error = pair.early().take().unwrap_or_else(|| pair.lost(&cause));
                (State::Over(cause), Some(error))
            }
            other => (other, Some(pair.lost("they connected otherwise meanwhile"))),
        };
        *state = now;
        drop(state);
        if let Some(error) = closed {
            return Err(error);
        }
        let _ = pair.path.set(format!("verbs {} -> {}", pair.rail.name, address(&theirs.gid)));
        Ok(())
    }

    /// The payload goes by TCP, or it is an error.
    fn plain(&self, pair: &Pair, why: &str) -> Result<()> {
        self.end(&mut self.inbox(), pair, why);
        let (me, peer, host) = (self.me, pair.peer, &pair.host);
        if self.strict {
            let why = format!("ND_TRANSPORT=verbs, but {why}; use auto for TCP instead");
            if let state @ State::Closed(_) = &mut *pair.state() {
                *state = State::Over(why.clone());
            }
            return Err(Error::Unreachable { from: me, to: peer, why });
        }
        *pair.state() = State::Plain;
        pair.flushed.store(0, Ordering::Release);
        let first = !self.warned.swap(true, Ordering::AcqRel);
        let text = format!("rank {me}: TCP is used with rank {peer} on {host}, not verbs: {why}");
        if first {
            tracing::warn!("{text}")
        } else {
            tracing::debug!("{text}")
        }
        Ok(())
    }

    fn known(&self, peer: usize) -> Result<&Arc<Pair>> {
        let why = || Error::Refused { who: format!("rank {peer}"), why: "it is not reached by verbs".into() };
        self.by_rank.get(&peer).ok_or_else(why)
    }
}

const GO: &[u8] = b"go";

impl Fabric {
    /// The attempt of that number is over, and failed: nothing of it stays behind. A later one is left alone.
    fn undo(&self, pair: &Pair, attempt: u64, why: &str) {
        if pair.attempts.load(Ordering::Acquire) == attempt {
            self.end(&mut self.inbox(), pair, why);
            *pair.state() = State::Apart;
        }
    }

    /// Undoes the attempt that has just been made if the session failed meanwhile.
    fn concluded(&self, pair: &Pair, attempt: u64, done: Result<()>) -> Result<u64> {
        match done {
            Ok(()) => Ok(attempt),
            Err(e) => {
                if !matches!(e, Error::Unreachable { .. }) {
                    self.undo(pair, attempt, &e.to_string());
                }
                Err(e)
            }
        }
    }

    /// Why the way is closed that the peer says is: what this rank's device tells of it comes first.
    fn cause(&self, pair: &Pair, verdict: &[u8]) -> String {
        let said = format!("rank {} says: {}", pair.peer, String::from_utf8_lossy(verdict));
        let mut inbox = self.inbox();
        self.hear(&mut inbox);
        self.collect(&mut inbox);
        drop(inbox);
        match &*pair.state() {
            State::Closed(own) => format!("{own}; {said}"),
            _ => said,
        }
    }

    /// The way is to be found open by this rank, and what came by it right by the other.
    fn call(&self, pair: &Pair, talk: &mut dyn Talk) -> Result<()> {
        let peer = pair.peer;
        let begun = self.begin(pair);
        let said: Said = begun.as_ref().map(|begun| begun.hello).map_err(String::clone);
        talk.send(&hello::encode(&said))?;
        let answer = hello::decode(&talk.receive(hello::LONGEST)?);
        let (begun, theirs) = match (begun, answer) {
            (Ok(begun), Ok(theirs)) => (begun, theirs),
            (Err(why), _) => return self.plain(pair, &why),
            (_, Err(why)) => return self.plain(pair, &format!("rank {peer} says: {why}")),
        };
        let target = Target { address: theirs.probe.0, key: theirs.probe.1 };
        // Nobody writes to this rank's.
        let tried = self.join(pair, begun, &theirs).and_then(|(_, mtu)| self.probe(pair, target, mtu));
        if let Err(why) = tried {
            talk.send(why.as_bytes())?;
            return self.plain(pair, &why);
        }
        talk.send(GO)?;
        let verdict = talk.receive(hello::LONGEST)?;
        if verdict != GO {
            return self.plain(pair, &self.cause(pair, &verdict));
        }
        // The other one counts on it by now.
        if let Err(error) = self.open(pair, &theirs) {
            self.inbox().errors.push(error);
        }
        Ok(())
    }

    fn answer(&self, pair: &Pair, talk: &mut dyn Talk) -> Result<()> {
        let peer = pair.peer;
        let offer = hello::decode(&talk.receive(hello::LONGEST)?);
        let answered = offer.map_err(|why| format!("rank {peer} says: {why}")).and_then(|theirs| {
            let begun = self.begin(pair)?;
            let ours = begun.hello;
            let (trial, mtu) = self.join(pair, begun, &theirs)?;
            Ok((ours, theirs, trial, mtu))
        });
        let said: Said = answered.as_ref().map(|(ours, ..)| *ours).map_err(String::clone);
        talk.send(&hello::encode(&said))?;
        let (theirs, trial, mtu) = match answered {
            Ok((_, theirs, trial, mtu)) => (theirs, trial, mtu),
            Err(why) => return self.plain(pair, &why),
        };
        let verdict = talk.receive(hello::LONGEST)?;
        if verdict != GO {
            return self.plain(pair, &self.cause(pair, &verdict));
        }
        let wrong = trial.wrong(mtu as usize).map(|at| {
            format!(
                "byte {at} of a packet of {mtu} bytes came to rank {} wrong, on port {}: its device wrote to other memory \
                 or other bytes; see the kernel's log of both hosts",
                self.me, pair.rail.name
            )
        });
        let opened = match wrong {
            None => self.open(pair, &theirs).map_err(|e| e.to_string()),
            Some(why) => Err(why),
        };
        match opened {
            Ok(()) => talk.send(GO),
            Err(why) => {
                talk.send(why.as_bytes())?;
                self.plain(pair, &why)
            }
        }
    }
}

impl Rider for Fabric {
    fn rides(&self, peer: usize) -> bool {
        self.by_rank.contains_key(&peer)
    }

    fn carries(&self, peer: usize) -> bool {
        self.is_joined(peer)
    }

    fn initiate(&self, peer: usize, talk: &mut dyn Talk) -> Result<u64> {
        let pair = self.known(peer)?;
        let attempt = pair.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let done = self.call(pair, talk);
        self.concluded(pair, attempt, done)
    }

    fn respond(&self, peer: usize, talk: &mut dyn Talk) -> Result<u64> {
        let pair = self.known(peer)?;
        let attempt = pair.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let done = self.answer(pair, talk);
        self.concluded(pair, attempt, done)
    }

    fn retreat(&self, peer: usize, attempt: u64) {
        if let Ok(pair) = self.known(peer) {
            self.undo(pair, attempt, "they lost each other while they connected");
        }
    }

    fn stir(&self) {
        self.stirred.store(true, Ordering::Release);
    }
}
