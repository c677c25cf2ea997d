//! How pairs of ranks come to be joined: inside the session of their connection they tell each other how their queue pairs
//! are reached, and the one that has connected tries the way.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Fabric, Pair, State, address, bytes_of_mtu};
use crate::tcp::{Rider, Talk};
use crate::verbs::adapter::PROBE;
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

impl Fabric {
    /// Makes this rank's end.
    fn begin(&self, pair: &Pair) -> Result<(QueuePair, Hello), String> {
        // Of an attempt before.
        self.end(&mut self.inbox(), pair, "they connect anew");
        pair.flushed.store(0, Ordering::Release);
        let adapter = self.adapters[pair.rail.adapter].as_ref().map_err(String::clone)?;
        let device = adapter.device.context();
        let (name, port) = (device.name(), pair.rail.port);
        let at = |e: std::io::Error| format!("port {name}:{port} cannot be used: {e}");
        let state = device.port(port).map_err(at)?;
        if !state.active {
            return Err(format!("port {name}:{port} is down"));
        }
        let gid = device.gid(port, pair.rail.gid_index.into()).map_err(at)?;
        let queue_pair = adapter.pair().map_err(|e| format!("{name} makes no more queue pairs: {e}"))?;
        let hello = Hello {
            number: queue_pair.number(),
            first: rand::random::<u32>() & 0xff_ffff,
            lid: state.lid,
            mtu: state.mtu as u8,
            gid,
            probe: adapter.probe_target(),
            ethernet: state.ethernet,
        };
        Ok((queue_pair, hello))
    }

    /// Joins it with the other end.
    fn join(
        &self,
        pair: &Pair,
        (queue_pair, ours): (QueuePair, Hello),
        theirs: &Hello,
    ) -> Result<u32, String> {
        let adapter = self.adapters[pair.rail.adapter].as_ref().map_err(String::clone)?;
        if ours.ethernet != theirs.ethernet {
            return Err("one of the two ports is InfiniBand and the other is Ethernet".into());
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
            format!("no way by RDMA from port {} to {}: {e}", pair.rail.name, address(&theirs.gid))
        })?;
        let queue = Queue::new(queue_pair, adapter.clone(), self.region.clone());
        let number = queue.pair().number();
        let mut inbox = self.inbox();
        *pair.state() = State::Joining(Box::new(queue));
        let pair = self.by_rank[&pair.peer].clone();
        inbox.routes.insert((pair.rail.adapter, number), pair);
        Ok(bytes_of_mtu(mtu))
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
                State::Over(cause) => return Err(cause.clone()),
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

    /// The way is open.
    fn open(&self, pair: &Pair, theirs: &Hello) {
        let mut state = pair.state();
        *state = match std::mem::replace(&mut *state, State::Plain) {
            State::Joining(queue) => State::Joined(queue),
            other => other,
        };
        let _ = pair.path.set(format!("verbs {} -> {}", pair.rail.name, address(&theirs.gid)));
    }

    /// The payload goes by TCP, or it is an error.
    fn plain(&self, pair: &Pair, why: &str) -> Result<()> {
        self.end(&mut self.inbox(), pair, why);
        let (me, peer, host) = (self.me, pair.peer, &pair.host);
        if self.strict {
            let why = format!("ND_TRANSPORT=verbs, but {why}; use auto for TCP instead");
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

impl Rider for Fabric {
    fn rides(&self, peer: usize) -> bool {
        self.by_rank.contains_key(&peer)
    }

    fn carries(&self, peer: usize) -> bool {
        self.is_joined(peer)
    }

    fn initiate(&self, peer: usize, talk: &mut dyn Talk) -> Result<()> {
        let pair = self.known(peer)?;
        let begun = self.begin(pair);
        let said: Said = begun.as_ref().map(|(_, hello)| *hello).map_err(String::clone);
        talk.send(&hello::encode(&said))?;
        let answer = hello::decode(&talk.receive(hello::LONGEST)?);
        let (begun, theirs) = match (begun, answer) {
            (Ok(begun), Ok(theirs)) => (begun, theirs),
            (Err(why), _) => return self.plain(pair, &why),
            (_, Err(why)) => return self.plain(pair, &format!("rank {peer} says: {why}")),
        };
        let target = Target { address: theirs.probe.0, key: theirs.probe.1 };
        let tried = self.join(pair, begun, &theirs).and_then(|mtu| self.probe(pair, target, mtu));
        match tried {
            Ok(()) => {
                self.open(pair, &theirs);
                talk.send(GO)
            }
            Err(why) => {
                talk.send(why.as_bytes())?;
                self.plain(pair, &why)
            }
        }
    }

    fn stir(&self) {
        self.stirred.store(true, Ordering::Release);
    }

    fn respond(&self, peer: usize, talk: &mut dyn Talk) -> Result<()> {
        let pair = self.known(peer)?;
        let offer = hello::decode(&talk.receive(hello::LONGEST)?);
        let answered = offer.map_err(|why| format!("rank {peer} says: {why}")).and_then(|theirs| {
            let begun = self.begin(pair)?;
            let ours = begun.1;
            self.join(pair, begun, &theirs)?;
            Ok((ours, theirs))
        });
        let said: Said = answered.as_ref().map(|(ours, _)| *ours).map_err(String::clone);
        talk.send(&hello::encode(&said))?;
        let theirs = match answered {
            Ok((_, theirs)) => theirs,
            Err(why) => return self.plain(pair, &why),
        };
        let verdict = talk.receive(hello::LONGEST)?;
        if verdict != GO {
            let why = String::from_utf8_lossy(&verdict).into_owned();
            return self.plain(pair, &format!("rank {peer} says: {why}"));
        }
        self.open(pair, &theirs);
        Ok(())
    }
}
