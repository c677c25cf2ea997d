//! Queue pairs: how work requests are done. All of it happens inside the calls of the ranks that post and poll.
#![allow(unsafe_code)] // copies between addresses that ranks have registered

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use libibverbs_sys::bindings::*;

use crate::faults::Action;
use crate::world::{Done, Id, World, world};

/// How long a packet that is not answered is tried at most.
pub const PATIENCE: Duration = Duration::from_millis(200);
/// How often what is slow moves on by itself.
const TICK: Duration = Duration::from_millis(1);
/// Bytes that may be sent inline.
pub const INLINE: u32 = 256;

/// A queue pair.
#[derive(Debug)]
pub struct Pair {
    /// Its device.
    pub context: Id,
    /// Its protection domain.
    pub domain: Id,
    /// Its number.
    pub number: u32,
    /// Where its sends are completed.
    pub send_queue: Id,
    /// Where its receives are.
    pub receive_queue: Id,
    /// Its receive requests.
    pub receives: Id,
    /// Work requests that it has room for.
    pub room: u64,
    /// Bytes that may be sent inline.
    pub inline: u32,
    /// How far it was brought.
    pub state: ibv_qp_state,
    /// Its port.
    pub port: u8,
    /// What peers may do.
    pub access: u32,
    /// The number of the other one.
    pub peer: u32,
    /// How long it tries.
    pub patience: Duration,
    /// It tries for ever where there is no receive request.
    pub for_ever: bool,
    /// Work requests posted and, as was told by completions, ended.
    pub posted: u64,
    /// See above.
    pub retired: u64,
    /// Those that have not arrived.
    pub works: VecDeque<Work>,
}

/// A work request.
#[derive(Debug, Clone)]
pub struct Work {
    /// The caller's number.
    pub id: u64,
    /// Which of the pair's it is, from 1.
    pub place: u64,
    /// What it does.
    pub opcode: ibv_wr_opcode,
    /// Its completion is told.
    pub signaled: bool,
    /// The bytes, where they were sent inline.
    pub inline: Option<Vec<u8>>,
    /// Where they are otherwise.
    pub source: Option<ibv_sge>,
    /// Where a write goes, and the key.
    pub target: (u64, u32),
    /// What it meets, once that was asked.
    pub met: Option<Vec<Action>>,
    /// When it is given up.
    pub until: Option<Instant>,
    /// How often it was put off.
    pub put_off: u32,
}

/// What became of a work request.
enum Outcome {
    Arrived,
    Failed(ibv_wc_status),
    /// Nobody answers.
    Lost,
    /// The receiver is not ready.
    Later,
    /// It is slow.
    Late,
    Silence,
}

impl World {
    /// Does what can be done of a queue pair's work requests.
    pub fn advance(&mut self, id: Id) {
        self.stuck.remove(&id);
        loop {
            let Some(pair) = self.pairs.get_mut(&id) else { return };
            let Some(work) = pair.works.front().cloned() else { return };
            if pair.state == IBV_QPS_ERR {
                self.complete(id, IBV_WC_WR_FLUSH_ERR);
                continue;
            }
            match self.deliver(id, work) {
                Outcome::Arrived => self.complete(id, IBV_WC_SUCCESS),
                Outcome::Failed(status) => {
                    self.complete(id, status);
                    self.fail(id);
                }
                Outcome::Lost => {
                    let Some(pair) = self.pairs.get_mut(&id) else { return };
                    let until = Instant::now() + pair.patience;
                    let Some(work) = pair.works.front_mut() else { return };
                    if Instant::now() >= *work.until.get_or_insert(until) {
                        self.complete(id, IBV_WC_RETRY_EXC_ERR);
                        self.fail(id);
                    } else {
                        self.stuck.insert(id);
                        return;
                    }
                }
                Outcome::Later => {
                    self.stuck.insert(id);
                    return;
                }
                Outcome::Late => {
                    self.stuck.insert(id);
                    self.tick();
                    return;
                }
                Outcome::Silence => return,
            }
        }
    }

    /// What is slow moves on although nobody looks: all ranks may be asleep.
    fn tick(&mut self) {
        if std::mem::replace(&mut self.ticking, true) {
            return;
        }
        let tick = || loop {
            std::thread::sleep(TICK);
            let mut world = world();
            world.advance_stuck();
            let late = |action: &Action| matches!(action, Action::Late(_));
            let is_late = |work: &Work| work.met.as_ref().is_some_and(|met| met.iter().any(late));
            let mut stuck = world.stuck.iter().filter_map(|id| world.pairs.get(id)?.works.front());
            if !stuck.any(is_late) {
                world.ticking = false;
                return;
            }
        };
        let named = std::thread::Builder::new().name("mock-slow".into());
        self.ticking = named.spawn(tick).is_ok();
    }

    /// What waits for something is tried again.
    pub fn advance_stuck(&mut self) {
        for id in Vec::from_iter(self.stuck.clone()) {
            self.advance(id);
        }
    }

    /// The queue pair works no more; what it was to do is flushed.
    pub fn fail(&mut self, id: Id) {
        if let Some(pair) = self.pairs.get_mut(&id) {
            pair.state = IBV_QPS_ERR;
            self.stuck.insert(id);
        }
    }

    /// The first work request has ended.
    fn complete(&mut self, id: Id, status: ibv_wc_status) {
        let Some(pair) = self.pairs.get_mut(&id) else { return };
        let Some(work) = pair.works.pop_front() else { return };
        if work.signaled || status != IBV_WC_SUCCESS {
            let opcode = if work.opcode == IBV_WR_SEND { IBV_WC_SEND } else { IBV_WC_RDMA_WRITE };
            let (number, queue) = (pair.number, pair.send_queue);
            self.push(
                queue,
                Done { pair: id, retires: work.place, id: work.id, status, opcode, len: 0, number },
            );
        }
    }

    /// Whether packets leave and reach a queue pair's port.
    fn is_up(&self, pair: &Pair) -> bool {
        self.contexts
            .get(&pair.context)
            .is_some_and(|context| !self.down.contains(&(context.device, pair.port)))
    }

    fn deliver(&mut self, id: Id, work: Work) -> Outcome {
        let write = matches!(work.opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM);
        let met = match work.met {
            Some(met) => met,
            None => {
                let met = self.meet_pair(id, if write { "write" } else { "send" }).unwrap_or_default();
                if let Some(work) = self.pairs.get_mut(&id).and_then(|pair| pair.works.front_mut()) {
                    work.met = Some(met.clone());
                }
                met
            }
        };
        for action in &met {
            match *action {
                Action::Status(status) => return Outcome::Failed(status),
                Action::Lost => return Outcome::Lost,
                Action::Late(times) if work.put_off < times => {
                    if let Some(work) = self.pairs.get_mut(&id).and_then(|pair| pair.works.front_mut()) {
                        work.put_off += 1;
                    }
                    return Outcome::Late;
                }
                Action::Silence => return Outcome::Silence,
                _ => {}
            }
        }
        let Some(pair) = self.pairs.get(&id) else { return Outcome::Lost };
        // It may have met its end just now.
        if pair.state == IBV_QPS_ERR {
            return Outcome::Failed(IBV_WC_WR_FLUSH_ERR);
        }
        let (context, domain, number, for_ever) = (pair.context, pair.domain, pair.number, pair.for_ever);
        let mut bytes = match (&work.inline, work.source) {
            (Some(bytes), _) => bytes.clone(),
            (None, None) => Vec::new(),
            (None, Some(sge)) => {
                let Some(at) = self.reach(domain, sge.lkey, sge.addr, sge.length.into(), 0) else {
                    return Outcome::Failed(IBV_WC_LOC_PROT_ERR);
                };
                // SAFETY: registered, so the rank keeps it mapped; it does not write there until this is complete.
                let sent = unsafe { std::slice::from_raw_parts(at as *const u8, sge.length as usize) };
                sent.to_vec()
            }
        };
        let up = self.is_up(pair);
        let peer = self.numbers.get(&pair.peer).and_then(|peer| Some((*peer, self.pairs.get(peer)?)));
        let ready = |peer: &Pair| matches!(peer.state, IBV_QPS_RTR | IBV_QPS_RTS) && peer.peer == number;
        let Some((peer_id, peer)) = peer.filter(|(_, peer)| up && ready(peer) && self.is_up(peer)) else {
            return Outcome::Lost;
        };
        if met.contains(&Action::Garble)
            && let Some(first) = bytes.first_mut()
        {
            *first ^= 0xff;
        }
        if write {
            let (at, key) = work.target;
            let allowed = peer.access & IBV_ACCESS_REMOTE_WRITE != 0;
            let to = self.reach(peer.domain, key, at, bytes.len() as u64, IBV_ACCESS_REMOTE_WRITE);
            let Some(to) = to.filter(|_| allowed || bytes.is_empty()) else {
                let context = peer.context;
                self.fail(peer_id);
                self.tell(context, IBV_EVENT_QP_ACCESS_ERR, peer_id);
                return Outcome::Failed(IBV_WC_REM_ACCESS_ERR);
            };
            // SAFETY: registered for this, so its rank keeps it mapped and expects it to be written.
            unsafe { std::ptr::copy(bytes.as_ptr(), to as *mut u8, bytes.len()) };
            self.writes += 1;
            *self.carried.entry(self.name(context)).or_default() += bytes.len() as u64;
            return Outcome::Arrived;
        }
        let receive_queue = peer.receive_queue;
        if !self.receive(peer_id, &bytes) {
            return if for_ever { Outcome::Later } else { Outcome::Failed(IBV_WC_RNR_RETRY_EXC_ERR) };
        }
        self.sends += 1;
        if met.contains(&Action::Endless)
            && let Some(queue) = self.queues.get_mut(&receive_queue)
        {
            queue.endless = Some((peer_id, bytes));
        }
        Outcome::Arrived
    }

    /// A message arrives; false where no receive request waits for it.
    pub fn receive(&mut self, id: Id, bytes: &[u8]) -> bool {
        let Some(pair) = self.pairs.get(&id) else { return false };
        let (number, queue) = (pair.number, pair.receive_queue);
        let Some(receives) = self.receives.get_mut(&pair.receives) else { return false };
        let Some((request, sge)) = receives.posted.pop_front() else { return false };
        let (domain, len) = (receives.domain, bytes.len() as u32);
        let fits = len <= sge.length;
        let to = self.reach(domain, sge.lkey, sge.addr, len.into(), IBV_ACCESS_LOCAL_WRITE).filter(|_| fits);
        let status = match to {
            Some(to) => {
                // SAFETY: registered and posted for this.
                unsafe { std::ptr::copy(bytes.as_ptr(), to as *mut u8, bytes.len()) };
                IBV_WC_SUCCESS
            }
            None if !fits => IBV_WC_LOC_LEN_ERR,
            None => IBV_WC_LOC_PROT_ERR,
        };
        self.push(
            queue,
            Done { pair: id, retires: 0, id: request, status, opcode: IBV_WC_RECV, len, number },
        );
        true
    }

    /// What comes again and again comes once more, as far as there is room.
    pub fn repeat(&mut self, queue: Id, most: usize) {
        for _ in 0..most {
            let Some(queue) = self.queues.get(&queue).filter(|queue| queue.done.len() < most) else { return };
            let Some((pair, bytes)) = queue.endless.clone() else { return };
            if !self.receive(pair, &bytes) {
                return;
            }
        }
    }
}
