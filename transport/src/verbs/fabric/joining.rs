//! How pairs of ranks come to be joined: inside the session of their connection they tell each other how their queue pairs
//! are reached, the one that has connected tries each rail, and the other looks at what came. They go on with those that
//! both find open.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Fabric, Pair, Rail, State, address, bytes_of_mtu, summary};
use crate::tcp::{Rider, Talk};
use crate::verbs::adapter::{PROBE, Trial};
use crate::verbs::hello::{self, Hello, Said};
use crate::verbs::post::Target;
use crate::verbs::queue::{Fault, Lane, Queue};
use crate::verbs::sys::{QueuePair, Route};
use crate::voice::{self, Topic};
use crate::{Error, Result};

/// How long a probe may take before the way counts as closed.
const PROBING: Duration = Duration::from_secs(3);
/// How long it is looked for without a pause.
const PROBE_SPIN: Duration = Duration::from_millis(1);
const PROBE_TICK: Duration = Duration::from_micros(200);

/// This rank's end of a rail, before it is joined with the other.
struct Begun {
    // Ends before the place where the peer may write by it.
    queue_pair: QueuePair,
    hello: Hello,
    trial: Trial,
}

/// A rail that is being tried.
struct Tried {
    theirs: Hello,
    /// Where the peer writes its probe.
    trial: Trial,
    /// Bytes of a packet.
    mtu: u32,
}

impl Fabric {
    /// Makes this rank's end of a rail.
    fn begin(&self, rail: &Rail) -> Result<Begun, String> {
        let adapter = self.adapters[rail.adapter].as_ref().map_err(String::clone)?;
        let device = adapter.device.context();
        let (name, port) = (device.name(), rail.port);
        let at = |e: std::io::Error| format!("port {name}:{port} cannot be used: {e}");
        let state = device.port(port).map_err(at)?;
        if !state.active {
            return Err(format!(
                "port {name}:{port} is down; `nd-topo show` lists all ports and their states"
            ));
        }
        let gid = device.gid(port, rail.gid_index.into()).map_err(at)?;
        adapter.reserve(&self.region).map_err(|e| e.to_string())?;
        let queue_pair = adapter.pair().map_err(|e| format!("{name} makes no more queue pairs: {e}"))?;
        // Told of one before that had this number.
        self.inbox().strays.retain(|stray| *stray != (rail.adapter, queue_pair.number()));
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

    /// Joins it with the other end.
    fn join(&self, pair: &Pair, index: usize, begun: Begun, theirs: Hello) -> Result<(Lane, Tried), String> {
        let (rail, Begun { queue_pair, hello: ours, trial }) = (&pair.rails[index], begun);
        let adapter = self.adapters[rail.adapter].as_ref().map_err(String::clone)?;
        if ours.ethernet != theirs.ethernet {
            return Err(format!(
                "of the ports {} one is InfiniBand and the other is Ethernet; ND_IB_HCA chooses others",
                rail.name
            ));
        }
        let mtu = ours.mtu.min(theirs.mtu);
        if ours.mtu != theirs.mtu {
            let [here, there] = [ours.mtu, theirs.mtu].map(bytes_of_mtu);
            tracing::debug!(
                "rank {}: packets to rank {} have {} bytes: port {} would take {here}, the other {there}",
                self.me,
                pair.peer,
                here.min(there),
                rail.ports[0]
            );
        }
        let route = Route {
            port: rail.port,
            gid_index: rail.gid_index,
            ethernet: ours.ethernet,
            mtu: mtu.into(),
            gid: theirs.gid,
            lid: theirs.lid,
            number: theirs.number,
            first_theirs: theirs.first,
            first_ours: ours.first,
        };
        queue_pair.connect(&route, &self.care).map_err(|e| {
            let (name, there) = (&rail.name, address(&theirs.gid));
            format!(
                "no way by RDMA from port {name} at {there}: {e}; ND_IB_HCA and ND_IB_GID_INDEX choose others"
            )
        })?;
        let lane = Lane::new(index, rail.name.clone(), rail.adapter, queue_pair, adapter.clone());
        Ok((lane, Tried { theirs, trial, mtu: bytes_of_mtu(mtu) }))
    }

    /// Of the rails that are not out of the question, joins both ends. What is given and comes back is by rail.
    fn join_all(&self, pair: &Pair, ends: Vec<Result<(Begun, Hello), String>>) -> Vec<Result<Tried, String>> {
        let (mut lanes, mut tried) = (Vec::new(), Vec::new());
        for (index, end) in ends.into_iter().enumerate() {
            let joined = end.and_then(|(begun, theirs)| self.join(pair, index, begun, theirs));
            tried.push(joined.map(|(lane, tried)| {
                lanes.push(lane);
                tried
            }));
        }
        if lanes.is_empty() {
            return tried;
        }
        let routes: Vec<_> = lanes.iter().map(|lane| lane.at).collect();
        let mut inbox = self.inbox();
        *pair.state() = State::Joining(Box::new(Queue::new(lanes, self.region.clone())));
        let pair = self.by_rank[&pair.peer].clone();
        for route in routes {
            inbox.routes.insert(route, pair.clone());
            if inbox.strays.contains(&route) {
                self.given_up(&mut inbox, &pair, route);
            }
        }
        tried
    }

    /// Writes the longest packet to the peer on every rail, and waits until they are there; what came of it, by rail.
    fn probe_all(&self, pair: &Pair, tried: &[Result<Tried, String>]) -> Vec<Said<()>> {
        let probe = |(index, tried): (usize, &Result<Tried, String>)| {
            let tried = tried.as_ref().map_err(String::clone)?;
            let target = Target { address: tried.theirs.probe.0, key: tried.theirs.probe.1 };
            match &mut *pair.state() {
                State::Joining(queue) => {
                    queue.probe(index, target, tried.mtu.min(PROBE as u32)).map_err(|fault| why(&fault))
                }
                _ => Ok(()),
            }
        };
        let mut said: Vec<Said<()>> = tried.iter().enumerate().map(probe).collect();
        let began = Instant::now();
        loop {
            // What has come by then is taken, however long this rank had no core in between.
            let waited = began.elapsed();
            self.collect(&mut self.inbox());
            let mut waits = false;
            match &*pair.state() {
                State::Joining(queue) => {
                    for lane in queue.lanes() {
                        let said = &mut said[lane.index];
                        match &lane.closed {
                            Some(fault) if said.is_ok() => *said = Err(why(fault)),
                            None if said.is_ok() && !lane.probed && waited > PROBING => {
                                *said = Err(format!(
                                    "a packet of {} bytes from {} was not answered within {PROBING:?}: RoCE needs UDP port \
                                     4791, and all between must take packets of this size",
                                    tried[lane.index].as_ref().map_or(0, |tried| tried.mtu),
                                    lane.name
                                ));
                            }
                            None => waits |= said.is_ok() && !lane.probed,
                            Some(_) => {}
                        }
                    }
                }
                State::Closed(cause) => {
                    said.iter_mut().filter(|s| s.is_ok()).for_each(|s| *s = Err(cause.clone()))
                }
                _ => {
                    let other = || Err("they connected otherwise meanwhile".into());
                    said.iter_mut().filter(|s| s.is_ok()).for_each(|s| *s = other());
                }
            }
            if !waits {
                return said;
            }
            if waited > PROBE_SPIN {
                std::thread::sleep(PROBE_TICK);
            }
        }
    }

    /// The rails of these indices are open; an error is what has closed one since.
    fn open(&self, pair: &Pair, open: &[usize]) -> Result<()> {
        let mut inbox = self.inbox();
        let mut state = pair.state();
        let mut queue = match std::mem::replace(&mut *state, State::Plain) {
            State::Joining(queue) => queue,
            State::Closed(cause) => {
                *state = State::Over(cause.clone());
                return Err(pair.lost(&cause));
            }
            other => {
                *state = other;
                return Err(pair.lost("they connected otherwise meanwhile"));
            }
        };
        let routes: Vec<_> = queue.lanes().iter().map(|lane| (lane.at, lane.index)).collect();
        let closed = open.iter().find_map(|index| {
            let route = routes.iter().find(|(_, of)| of == index)?.0;
            queue.lane(route)?.closed.take()
        });
        queue.keep(open);
        // A peer that has found it open may have sent something already.
        let fault = closed.or_else(|| queue.receive_kept().err());
        let gone = |index: &usize| fault.is_some() || !open.contains(index);
        for (route, _) in routes.iter().filter(|(_, index)| gone(index)) {
            inbox.routes.remove(route);
        }
        if let Some(fault) = fault {
            let (cause, error) = self.told(pair, fault);
            *state = State::Over(cause);
            return Err(error);
        }
        let waits = queue.waits();
        *state = State::Joined(queue);
        drop((state, inbox));
        if waits {
            self.set_waiting(pair, true);
        }
        Ok(())
    }

    /// Says by what the two are joined, and what is left out, with the reason.
    fn note(&self, pair: &Pair, said: &[Said<()>], theirs: &[Option<Hello>]) {
        let open: Vec<usize> = (0..said.len()).filter(|&index| said[index].is_ok()).collect();
        let rails: Vec<&Rail> = open.iter().map(|&index| &pair.rails[index]).collect();
        let addresses: Vec<String> = open.iter().filter_map(|&i| Some(address(&theirs[i]?.gid))).collect();
        let _ = pair.path.set(format!("verbs {} -> {}", summary(&rails), addresses.join(", ")));
        if open.len() < said.len() {
            let text = format_args!(
                "rank {}: {} of {} rails are used with rank {} on {}: {}",
                self.me,
                open.len(),
                said.len(),
                pair.peer,
                pair.host,
                reasons(said)
            );
            voice::warn(&self.region, Topic::Rails, text);
        }
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
        let text = format_args!("rank {me}: TCP is used with rank {peer} on {host}, not verbs: {why}");
        voice::warn(&self.region, Topic::NoVerbs, text);
        Ok(())
    }

    fn known(&self, peer: usize) -> Result<&Arc<Pair>> {
        let why = || Error::Refused { who: format!("rank {peer}"), why: "it is not reached by verbs".into() };
        self.by_rank.get(&peer).ok_or_else(why)
    }
}

/// What has closed a rail that was tried.
fn why(fault: &Fault) -> String {
    match fault {
        Fault::Broken(why) | Fault::Protocol(why) | Fault::Outside(why) => why.clone(),
        Fault::Here(e) => e.to_string(),
    }
}

/// Why rails are not open, each reason once.
fn reasons<T>(said: &[Said<T>]) -> String {
    let mut reasons: Vec<&str> = Vec::new();
    for why in said.iter().filter_map(|said| said.as_ref().err()) {
        if !reasons.contains(&why.as_str()) {
            reasons.push(why);
        }
    }
    reasons.join("; ")
}

/// Of what this rank and the peer say of each rail: both, or why not; this rank's own reason first.
fn both<A, B>(ours: Vec<Said<A>>, theirs: Vec<Said<B>>, peer: usize) -> Vec<Said<(A, B)>> {
    let said = |why: String| format!("rank {peer} says: {why}");
    let both = |(ours, theirs): (Said<A>, Said<B>)| ours.and_then(|ours| Ok((ours, theirs.map_err(said)?)));
    ours.into_iter().zip(theirs).map(both).collect()
}

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

    /// Of rails that the peer says are closed, what this rank's device tells comes first.
    fn explain(&self, pair: &Pair, said: &mut [Said<()>]) {
        let mut inbox = self.inbox();
        self.hear(&mut inbox);
        self.collect(&mut inbox);
        drop(inbox);
        if let State::Joining(queue) = &*pair.state() {
            for lane in queue.lanes() {
                if let (Some(own), Err(said)) = (&lane.closed, &mut said[lane.index]) {
                    *said = format!("{}; {said}", why(own));
                }
            }
        }
    }

    /// Of an attempt before, nothing is left.
    fn clear(&self, pair: &Pair) {
        self.end(&mut self.inbox(), pair, "they connect anew");
        pair.flushed.store(0, Ordering::Release);
    }

    /// The rails are to be found open by this rank, and what came by them right by the other.
    fn call(&self, pair: &Pair, talk: &mut dyn Talk) -> Result<()> {
        let (peer, rails) = (pair.peer, pair.rails.len());
        self.clear(pair);
        let begun: Vec<_> = pair.rails.iter().map(|rail| self.begin(rail)).collect();
        let hello =
            |begun: &Result<Begun, String>| begun.as_ref().map(|begun| begun.hello).map_err(String::clone);
        talk.send(&hello::encode::<Hello>(&begun.iter().map(hello).collect::<Vec<_>>()))?;
        let answer = hello::decode::<Hello>(&talk.receive(hello::LONGEST)?, rails);
        let ends = both(begun, answer, peer);
        if ends.iter().all(Result::is_err) {
            return self.plain(pair, &reasons(&ends));
        }
        // Nobody writes to this rank's places for probes.
        let tried = self.join_all(pair, ends);
        let said = self.probe_all(pair, &tried);
        talk.send(&hello::encode(&said))?;
        if said.iter().all(Result::is_err) {
            return self.plain(pair, &reasons(&said));
        }
        let verdicts = hello::decode::<()>(&talk.receive(hello::LONGEST)?, rails);
        let mut said: Vec<Said<()>> =
            both(said, verdicts, peer).into_iter().map(|said| said.map(drop)).collect();
        if said.iter().any(Result::is_err) {
            self.explain(pair, &mut said);
        }
        let open = open_of(&said);
        if open.is_empty() {
            return self.plain(pair, &reasons(&said));
        }
        let theirs: Vec<_> =
            tried.iter().map(|tried| tried.as_ref().ok().map(|tried| tried.theirs)).collect();
        // The other one counts on them by now.
        match self.open(pair, &open) {
            Ok(()) => self.note(pair, &said, &theirs),
            Err(error) => self.inbox().errors.push(error),
        }
        Ok(())
    }

    fn answer(&self, pair: &Pair, talk: &mut dyn Talk) -> Result<()> {
        let (peer, rails) = (pair.peer, pair.rails.len());
        let offers = hello::decode::<Hello>(&talk.receive(hello::LONGEST)?, rails);
        self.clear(pair);
        let end = |(rail, offer): (&Rail, Said)| {
            let theirs = offer.map_err(|why| format!("rank {peer} says: {why}"))?;
            Ok((self.begin(rail)?, theirs))
        };
        let ends: Vec<Result<(Begun, Hello), String>> = pair.rails.iter().zip(offers).map(end).collect();
        let ours: Vec<Option<Hello>> = ends.iter().map(|end| Some(end.as_ref().ok()?.0.hello)).collect();
        let tried = self.join_all(pair, ends);
        let said = |(tried, ours): (&Result<Tried, String>, Option<Hello>)| match tried {
            Ok(_) => ours.ok_or_else(String::new),
            Err(why) => Err(why.clone()),
        };
        talk.send(&hello::encode::<Hello>(&tried.iter().zip(ours).map(said).collect::<Vec<_>>()))?;
        if tried.iter().all(Result::is_err) {
            return self.plain(pair, &reasons(&tried));
        }
        let verdicts = hello::decode::<()>(&talk.receive(hello::LONGEST)?, rails);
        let any_open = verdicts.iter().any(Result::is_ok);
        let theirs: Vec<_> =
            tried.iter().map(|tried| tried.as_ref().ok().map(|tried| tried.theirs)).collect();
        let came: Vec<_> =
            tried.iter().enumerate().map(|(index, tried)| self.look(pair, index, tried)).collect();
        // What the peer says of a rail comes before what is missing there.
        let mut said: Vec<Said<()>> = verdicts
            .into_iter()
            .zip(came)
            .zip(&tried)
            .map(|((verdict, came), tried)| {
                tried.as_ref().map_err(String::clone)?;
                verdict.map_err(|why| format!("rank {peer} says: {why}"))?;
                came
            })
            .collect();
        if said.iter().any(Result::is_err) {
            self.explain(pair, &mut said);
        }
        // Who has found none open waits for no word.
        if !any_open {
            return self.plain(pair, &reasons(&said));
        }
        let mut open = open_of(&said);
        if !open.is_empty()
            && let Err(error) = self.open(pair, &open)
        {
            open.clear();
            said.iter_mut().filter(|said| said.is_ok()).for_each(|said| *said = Err(error.to_string()));
        }
        talk.send(&hello::encode(&said))?;
        if open.is_empty() {
            return self.plain(pair, &reasons(&said));
        }
        self.note(pair, &said, &theirs);
        Ok(())
    }

    /// What came on a rail that the peer has tried.
    fn look(&self, pair: &Pair, index: usize, tried: &Result<Tried, String>) -> Said<()> {
        let tried = tried.as_ref().map_err(String::clone)?;
        let mtu = tried.mtu;
        match tried.trial.wrong(mtu as usize) {
            None => Ok(()),
            Some(at) => Err(format!(
                "byte {at} of a packet of {mtu} bytes came to rank {} wrong, on port {}: its device wrote to other memory or \
                 other bytes; see the kernel's log of both hosts",
                self.me, pair.rails[index].name
            )),
        }
    }
}

/// The rails that are open.
fn open_of(said: &[Said<()>]) -> Vec<usize> {
    (0..said.len()).filter(|&index| said[index].is_ok()).collect()
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
