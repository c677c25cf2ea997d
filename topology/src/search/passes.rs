//! The whole search for one shape: a pass from the fastest speed down, and a second one that asks for more with the
//! channels found; then a look at free crossing of ports. Where NCCL would end with nothing, a simpler tree and then
//! fewer channels are tried before the token channel.
//!
//! Steps are bounded three times: those of one attempt, those of a pass (NCCL's purse, which gets back what an
//! attempt leaves), and those of the whole search, which no attempt can overdraw.

use std::collections::HashMap;

use super::host::Host;
use super::nets::PortOrder;
use super::packer::Packer;
use super::wishes::{Wish, Wishes};
use super::{Channel, ChannelGraph, Pattern, Settings};
use crate::graph::NodeId;
use crate::path::PathClass;

/// Steps of one attempt with equal channels.
const STEPS_SAME: u64 = 1 << 8;
/// Steps of one attempt with different channels.
const STEPS: u64 = 1 << 14;
/// Steps of a pass.
const STEPS_PASS: i64 = 1 << 19;
/// Steps for channels that cross ports freely, once those that do not are found.
const STEPS_CROSSING: u64 = 1 << 17;
/// Steps that the first pass leaves for the second.
const STEPS_SECOND: u64 = 1 << 14;

/// Channels that were laid, and under which wish.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub wish: Wish,
    pub channels: usize,
    /// Links of all channels together.
    pub hops: i64,
    /// GPUs of each channel, a row each.
    pub seats: Vec<u16>,
    /// Ports at both ends of each channel.
    pub ends: Vec<[u16; 2]>,
}

impl Layout {
    fn none(wish: &Wish) -> Layout {
        Layout { wish: *wish, channels: 0, hops: 0, seats: Vec::new(), ends: Vec::new() }
    }

    /// Whether that many channels under a wish are better: more bandwidth, with 15 % against crossing ports, then
    /// fewer hops (NCCL's measure).
    pub fn is_beaten_by(&self, wish: &Wish, channels: usize, hops: i64) -> bool {
        if channels < wish.min_channels {
            return false;
        }
        let handicap = 1.0 - (f64::from(self.wish.cross_nic) - f64::from(wish.cross_nic)) * 0.15;
        let new = channels as f64 * wish.speed_intra;
        let old = self.channels as f64 * self.wish.speed_intra * handicap;
        if new != old {
            return new > old;
        }
        self.wish.pattern == wish.pattern && self.wish.cross_nic == wish.cross_nic && hops < self.hops
    }

    /// Few fast channels become twice as many of half the speed: more thread blocks move the same data.
    fn duplicate(&mut self, sm: i32) {
        let (have, speed) = (self.channels, self.wish.speed_intra);
        let enough = sm > 80 && speed < 50.0 && have > 4;
        if have == 0 || speed < 25.0 || enough {
            return;
        }
        let want = (have * 2).min(self.wish.max_channels);
        let row = self.seats.len() / have;
        self.seats.extend_from_within(..(want - have) * row);
        self.ends.extend_from_within(..want - have);
        let factor = want.div_ceil(have) as f64;
        self.wish.speed_intra /= factor;
        self.wish.speed_inter /= factor;
        self.channels = want;
    }
}

/// All that an attempt's outcome depends on: speeds, the worst classes of path it meets, and the shape.
type Key = ([u64; 2], [Option<PathClass>; 2], (Pattern, u32, bool, usize));

/// What all passes share.
struct Tools<'a, 'g> {
    host: &'a Host<'g>,
    packer: Packer<'a, 'g>,
    ports: HashMap<PathClass, PortOrder>,
    classes_intra: Vec<PathClass>,
    classes_inter: Vec<PathClass>,
    /// Steps left of the whole search.
    left: u64,
}

/// Searches for one shape in at most `steps` steps.
pub(super) fn search(host: &Host<'_>, pattern: Pattern, settings: &Settings, steps: u64) -> ChannelGraph {
    let wishes = Wishes::new(host, pattern, settings);
    let mut tools = Tools {
        host,
        packer: Packer::new(host, wishes.now),
        ports: HashMap::new(),
        classes_intra: classes(host, &host.gpus),
        classes_inter: classes(host, &host.nets),
        left: steps,
    };
    let mut pass = Pass::new(wishes);
    pass.down(&mut tools, steps.min(STEPS_PASS as u64));
    pass.best.duplicate(host.sm);
    pass.up(&mut tools);
    pass.cross_freely(&mut tools, settings);
    finish(host, &pass.best, steps - tools.left)
}

/// A pass over the wishes.
struct Pass {
    wishes: Wishes,
    best: Layout,
    /// NCCL's purse.
    purse: i64,
    steps: u64,
    /// What each attempt left of its steps (`None`: it met the optimum): one that differs only in a class that no
    /// path has goes as before.
    known: HashMap<Key, Option<u64>>,
}

impl Pass {
    fn new(wishes: Wishes) -> Pass {
        let best = Layout::none(&wishes.now);
        Pass { wishes, best, purse: STEPS_PASS, steps: 0, known: HashMap::new() }
    }

    /// From the fastest speed down. NCCL goes on past its purse while nothing is found, and may still end with
    /// nothing. Here half of `all` is kept for what can still be given up then: first the shape of the tree, then the
    /// number of channels.
    fn down(&mut self, tools: &mut Tools<'_, '_>, all: u64) {
        let simpler = !tools.host.nets.is_empty() && self.wishes.shape == Pattern::BalancedTree;
        let fewer = self.wishes.now.min_channels > 1;
        self.descend(tools, if simpler || fewer { all / 2 } else { all });
        if self.best.channels == 0 && simpler {
            self.restart(Pattern::Tree, self.wishes.now.min_channels);
            self.descend(tools, if fewer { all / 4 * 3 } else { all });
        }
        if self.best.channels == 0 && fewer {
            self.restart(self.wishes.shape, 1);
            self.descend(tools, all);
        }
    }

    fn restart(&mut self, shape: Pattern, min_channels: usize) {
        self.wishes.restart(shape, min_channels);
        self.best = Layout::none(&self.wishes.now);
        self.purse = STEPS_PASS;
        self.known.clear();
    }

    /// One attempt after the other, until one is good enough, no wish is left, or `limit` steps are taken in all.
    fn descend(&mut self, tools: &mut Tools<'_, '_>, limit: u64) {
        self.wishes.fastest(tools.host);
        loop {
            let left = self.attempt(tools, STEPS_SECOND);
            let carried = self.best.channels as f64 * self.best.wish.speed_inter;
            if left.is_none() || carried >= tools.host.total_bandwidth || self.steps >= limit {
                return;
            }
            let (purse, found) = (&mut self.purse, self.best.channels > 0);
            let give_up = || {
                *purse += left.unwrap_or(0) as i64;
                *purse < 0 && found
            };
            if !self.wishes.give_way(&self.best, give_up) {
                return;
            }
        }
    }

    /// Tries the present wish, leaving `keep` steps of the whole search untouched.
    fn attempt(&mut self, tools: &mut Tools<'_, '_>, keep: u64) -> Option<u64> {
        let wish = self.wishes.now;
        let budget = if wish.same_channels { STEPS_SAME } else { STEPS };
        self.purse -= budget as i64;
        let key = tools.key(&wish);
        if let Some(&left) = self.known.get(&key) {
            return left;
        }
        let host = tools.host;
        let ports = tools.ports.entry(wish.type_inter).or_insert_with(|| host.port_order(wish.type_inter));
        let all = tools.left.saturating_sub(keep);
        let outcome = tools.packer.run(&wish, ports, &mut self.best, budget, all);
        tools.left -= outcome.steps;
        self.steps += outcome.steps;
        self.known.insert(key, outcome.left);
        outcome.left
    }

    /// Asks for more speed, with no fewer channels than were found.
    fn up(&mut self, tools: &mut Tools<'_, '_>) {
        self.wishes.now = Wish { min_channels: self.best.channels, ..self.best.wish };
        self.wishes.no_faster_than(self.best.wish.speed_inter);
        self.known.clear();
        let mut left = None;
        // With steps used up there is no point in trying harder still.
        while left != Some(0) {
            let now = &self.wishes.now;
            let ring = self.wishes.shape == Pattern::Ring;
            let tree =
                now.speed_intra == self.best.wish.speed_intra && now.speed_intra < now.speed_inter * 2.0;
            if !(ring || tree) || !self.wishes.faster(ring) {
                return;
            }
            left = self.attempt(tools, 0);
        }
    }

    /// With the choice left to us, NCCL tries channels on one port and channels that swap ports in pairs, never the
    /// free crossing of `cross_nic` 1. That is tried here too, with the best classes of path only; it wins by NCCL's
    /// own measure, when it moves 15 % more.
    fn cross_freely(&mut self, tools: &mut Tools<'_, '_>, settings: &Settings) {
        let shape = self.wishes.shape;
        let crossing = matches!(shape, Pattern::Ring | Pattern::BalancedTree);
        if self.wishes.cross_nic != 2 || !crossing || self.best.channels == 0 {
            return;
        }
        let mut wishes = Wishes::new(tools.host, shape, &Settings { cross_nic: 1, ..*settings });
        wishes.fix_classes(self.best.wish.type_intra);
        let mut other = Pass::new(wishes);
        other.descend(tools, STEPS_CROSSING);
        other.best.duplicate(tools.host.sm);
        other.up(tools);
        let best = &other.best;
        if best.channels > 0 && self.best.is_beaten_by(&best.wish, best.channels, best.hops) {
            self.best = other.best;
        }
    }
}

impl Tools<'_, '_> {
    fn key(&self, wish: &Wish) -> Key {
        let met = |classes: &[PathClass], limit| classes.iter().copied().filter(|&c| c <= limit).max();
        (
            [wish.speed_intra.to_bits(), wish.speed_inter.to_bits()],
            [met(&self.classes_intra, wish.type_intra), met(&self.classes_inter, wish.type_inter)],
            (wish.pattern, wish.cross_nic, wish.same_channels, wish.min_channels),
        )
    }
}

/// The classes of the paths from GPUs to `ends` and back.
fn classes(host: &Host<'_>, ends: &[NodeId]) -> Vec<PathClass> {
    let pairs = host.gpus.iter().flat_map(|&g| ends.iter().map(move |&e| (g, e)));
    let both = pairs.flat_map(|(g, e)| [host.paths.between(g, e), host.paths.between(e, g)]);
    let mut all: Vec<PathClass> = both.map(|p| p.class).collect();
    all.sort();
    all.dedup();
    all
}

/// What was found in the words of the public interface; the token channel when that is nothing.
fn finish(host: &Host<'_>, best: &Layout, steps: u64) -> ChannelGraph {
    let wish = &best.wish;
    let several = !host.nets.is_empty();
    let gpu = |g: usize| host.graph.gpu_number(host.gpus[g]).unwrap_or(g as i32);
    let port = |n: usize| host.graph.port_number(host.nets[n]).unwrap_or(n as i32);
    if best.channels == 0 {
        return ChannelGraph {
            speed_intra: 0.1,
            speed_inter: 0.1,
            type_intra: PathClass::Sys,
            type_inter: PathClass::Sys,
            cross_nic: wish.cross_nic,
            same_channels: true,
            channels: vec![Channel {
                gpus: (0..host.gpus.len()).map(gpu).collect(),
                nets: several.then(|| [port(0); 2]),
            }],
            steps,
            ..ChannelGraph::none(wish.pattern)
        };
    }
    let rows = best.seats.chunks(host.gpus.len()).zip(&best.ends);
    let channel = |(seats, ends): (&[u16], &[u16; 2])| Channel {
        gpus: seats.iter().map(|&g| gpu(usize::from(g))).collect(),
        nets: several.then(|| ends.map(|n| port(usize::from(n)))),
    };
    ChannelGraph {
        pattern: wish.pattern,
        speed_intra: wish.speed_intra,
        speed_inter: wish.speed_inter,
        type_intra: wish.type_intra,
        type_inter: wish.type_inter,
        cross_nic: wish.cross_nic,
        same_channels: wish.same_channels,
        latency_inter: match best.ends.last() {
            Some(&[port, _]) if several => host.net(usize::from(port)).latency,
            _ => 0.0,
        },
        channels: rows.map(channel).collect(),
        hops: best.hops,
        steps,
    }
}
