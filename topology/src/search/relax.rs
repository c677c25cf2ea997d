//! The order in which wishes are given up until channels fit, and the second pass that tries for more.
//!
//! First pass, at each speed: equal channels → different channels → a simpler tree → worse paths between GPUs → worse
//! paths to NICs → channels that cross NICs; then the next lower speed, until that would be less than half of what was
//! found. Second pass: with the channels found, every higher speed. (NCCL 2.30 `ncclTopoCompute`.) Where NCCL would
//! end with nothing, a simpler tree and then fewer channels are tried before the token channel.

use std::collections::HashMap;

use super::dfs::{Attempt, Candidate};
use super::{Channel, ChannelGraph, Pattern, Settings, View, speeds};
use crate::graph::NodeId;
use crate::path::PathClass;

/// Steps of one attempt with equal channels.
const STEPS_SAME: u64 = 1 << 8;
/// Steps of one attempt with different channels.
const STEPS: u64 = 1 << 14;
/// Steps of all attempts together.
const STEPS_ALL: i64 = 1 << 19;

pub(super) struct Relaxation<'a, 'g> {
    view: &'a View<'g>,
    speeds: &'static [f64],
    wish: Pattern,
    cross_nic: u32,
    at: usize,
    now: Candidate,
    best: Candidate,
    best_type_intra: PathClass,
    worst_type_intra: PathClass,
    best_type_inter: PathClass,
    worst_type_inter: PathClass,
    purse: i64,
    steps: u64,
    /// Steps of the first pass after which nothing more is tried, found or not.
    limit: u64,
    /// The classes of paths stay as they are.
    fixed_classes: bool,
    /// What each attempt left of its steps: one that differs only in a class that no path has goes as before.
    known: HashMap<Key, Left>,
    classes_intra: Vec<PathClass>,
    classes_inter: Vec<PathClass>,
}

/// Steps for channels that cross NICs freely, once those that do not are found.
const STEPS_CROSSING: u64 = 1 << 17;

/// What the last attempt left of its steps: `None` if it met the optimum.
type Left = Option<u64>;

/// All that an attempt depends on: speeds, the worst classes of path it meets, and the shape.
type Key = ([u64; 2], [Option<PathClass>; 2], (Pattern, u32, bool, usize));

impl<'a, 'g> Relaxation<'a, 'g> {
    pub fn new(view: &'a View<'g>, pattern: Pattern, settings: &Settings) -> Self {
        let crossing = matches!(pattern, Pattern::Ring | Pattern::BalancedTree | Pattern::SplitTree);
        let cross_nic = if view.nets.len() > 1 && crossing { settings.cross_nic } else { 0 };
        let pattern = if view.gpus.len() == 1 && pattern != Pattern::Ring { Pattern::Tree } else { pattern };
        let (best_type_intra, mut worst_type_intra) = view.extremes(&view.gpus, PathClass::Loc);
        let (best_type_inter, worst_type_inter) = view.extremes(&view.nets, PathClass::Pix);
        if !view.nets.is_empty() {
            worst_type_intra = worst_type_inter;
        }
        let mut min_channels = settings.min_channels;
        if pattern == Pattern::Ring && settings.max_channels >= 2 && min_channels == 1 && view.split_nvlink()
        {
            // Two islands of NVLink: trees need two channels to use both, and rings go along.
            min_channels = 2;
        }
        let speeds = speeds::candidates(view.sm, !view.nets.is_empty());
        let now = Candidate {
            pattern,
            speed_intra: 0.0,
            speed_inter: 0.0,
            type_intra: best_type_intra,
            type_inter: best_type_inter,
            cross_nic: u32::from(cross_nic == 1),
            same_channels: true,
            min_channels,
            max_channels: settings.max_channels.min(64),
            hops: 0,
            latency_inter: 0.0,
            gpus: Vec::new(),
            nets: Vec::new(),
            channels: 0,
        };
        let best = now.clone();
        Relaxation {
            view,
            speeds,
            wish: pattern,
            cross_nic,
            at: 0,
            now,
            best,
            best_type_intra,
            worst_type_intra,
            best_type_inter,
            worst_type_inter,
            purse: STEPS_ALL,
            steps: 0,
            limit: STEPS_ALL as u64,
            fixed_classes: false,
            known: HashMap::new(),
            classes_intra: view.classes(&view.gpus),
            classes_inter: view.classes(&view.nets),
        }
    }

    pub fn run(mut self, settings: &Settings) -> ChannelGraph {
        let all = STEPS_ALL as u64;
        let simpler = !self.view.nets.is_empty() && self.wish == Pattern::BalancedTree;
        let fewer = self.now.min_channels > 1;
        // NCCL goes on past its purse while nothing is found, and may still end with nothing. Here half of it is kept
        // for what can still be given up then: first the shape of the tree, then the number of channels.
        self.limit = if simpler || fewer { all / 2 } else { all };
        self.first_pass();
        if self.best.channels == 0 && simpler {
            self.restart(Pattern::Tree, self.now.min_channels);
            self.limit = if fewer { all / 4 * 3 } else { all };
            self.first_pass();
        }
        if self.best.channels == 0 && fewer {
            self.restart(self.wish, 1);
            self.limit = all;
            self.first_pass();
        }
        self.duplicate();
        self.speed_up();
        self.cross_freely(settings);
        self.finish()
    }

    /// From the fastest speed down.
    fn first_pass(&mut self) {
        let n = self.view.gpus.len() as f64;
        let mut total = self.view.total_bandwidth;
        if self.view.gpus.len() > 1 && self.wish != Pattern::Ring {
            // The last GPU of a chain does not send: its share is there for the others.
            total *= n / (n - 1.0);
        }
        let fits = |s: f64| s <= self.view.max_bandwidth && s * self.now.min_channels as f64 <= total;
        let last = self.speeds.len() - 1;
        self.at = self.speeds.iter().position(|&s| fits(s)).unwrap_or(last);
        self.set_speed();
        loop {
            let left = self.attempt();
            if self.is_optimal(left) || !self.relax(left) {
                break;
            }
        }
    }

    /// Begins again, with nothing relaxed.
    fn restart(&mut self, wish: Pattern, min_channels: usize) {
        if wish == Pattern::Tree {
            // A tree of this shape leaves by the NIC it came in by.
            self.cross_nic = 0;
        }
        self.wish = wish;
        self.known.clear();
        self.purse = STEPS_ALL;
        self.now.pattern = wish;
        self.now.cross_nic = u32::from(self.cross_nic == 1);
        self.now.same_channels = true;
        self.now.min_channels = min_channels;
        (self.now.type_intra, self.now.type_inter) = (self.best_type_intra, self.best_type_inter);
        self.best = self.now.clone();
    }

    /// With the choice left to us, NCCL tries channels on one NIC and channels that swap NICs in pairs, never the
    /// free crossing of `cross_nic` 1. That is tried here too, with the best classes of path only; it wins by NCCL's
    /// own measure, when it moves 15 % more.
    fn cross_freely(&mut self, settings: &Settings) {
        let crossing = matches!(self.wish, Pattern::Ring | Pattern::BalancedTree);
        if self.cross_nic != 2 || !crossing || self.best.channels == 0 {
            return;
        }
        let mut other = Relaxation::new(self.view, self.wish, &Settings { cross_nic: 1, ..*settings });
        other.fixed_classes = true;
        other.now.type_intra = self.best.type_intra;
        other.best_type_intra = self.best.type_intra;
        other.limit = STEPS_CROSSING;
        other.first_pass();
        other.duplicate();
        other.speed_up();
        self.steps += other.steps;
        if other.best.channels > 0 && other.best.beats(&self.best) {
            self.best = other.best;
        }
    }

    fn set_speed(&mut self) {
        self.now.speed_intra = self.speeds[self.at];
        self.now.speed_inter = self.speeds[self.at];
    }

    fn attempt(&mut self) -> Left {
        let budget = if self.now.same_channels { STEPS_SAME } else { STEPS };
        self.purse -= budget as i64;
        let key = self.key();
        if let Some(&left) = self.known.get(&key) {
            return left;
        }
        let attempt = Attempt::new(self.view, self.now.clone(), self.best.clone(), budget);
        let (best, left, steps) = attempt.run();
        self.best = best;
        self.steps += steps;
        self.known.insert(key, left);
        left
    }

    fn key(&self) -> Key {
        let used = |classes: &[PathClass], limit| classes.iter().copied().filter(|&c| c <= limit).max();
        let now = &self.now;
        (
            [now.speed_intra.to_bits(), now.speed_inter.to_bits()],
            [used(&self.classes_intra, now.type_intra), used(&self.classes_inter, now.type_inter)],
            (now.pattern, now.cross_nic, now.same_channels, now.min_channels),
        )
    }

    fn is_optimal(&self, left: Left) -> bool {
        left.is_none() || self.best.channels as f64 * self.best.speed_inter >= self.view.total_bandwidth
    }

    /// Gives up the next wish. False when there is none left worth giving up.
    fn relax(&mut self, left: Left) -> bool {
        if self.steps >= self.limit {
            return false;
        }
        let amd_across = self.view.amd && self.now.type_intra == PathClass::Sys;
        if self.now.same_channels && !amd_across {
            self.now.same_channels = false;
            return true;
        }
        self.now.same_channels = true;

        match left {
            Some(left) => self.purse += left as i64,
            None => self.purse = STEPS_ALL,
        }
        let found = self.best.channels > 0;
        if self.purse < 0 && found {
            return false;
        }
        if self.view.sm >= 90 && self.now.pattern == Pattern::BalancedTree {
            self.now.pattern = Pattern::Tree;
            return true;
        }
        self.now.pattern = self.wish;

        let several = !self.view.nets.is_empty();
        let worst = if several { self.now.type_inter } else { self.worst_type_intra };
        if !self.fixed_classes
            && self.now.type_intra < worst
            && (!found || self.now.type_intra < self.best.type_intra)
        {
            self.now.type_intra = next_class(self.now.type_intra);
            if self.now.type_intra < PathClass::Dis {
                return true;
            }
        }
        self.now.type_intra = self.best_type_intra;

        let inter = self.now.type_inter;
        if several
            && !self.fixed_classes
            && inter < self.worst_type_inter
            && (!found || inter < self.best.type_inter || inter < PathClass::Pxn)
        {
            self.now.type_inter = next_class(inter);
            if self.now.type_inter < PathClass::Dis {
                return true;
            }
        }
        self.now.type_inter = self.best_type_inter;

        let may_cross = matches!(self.wish, Pattern::Ring | Pattern::BalancedTree);
        if self.cross_nic == 2 && self.now.cross_nic == 0 && may_cross {
            self.now.cross_nic = 2;
            return true;
        }
        self.now.cross_nic = u32::from(self.cross_nic == 1);

        match self.speeds.get(self.at + 1) {
            Some(next) if !found || next / self.best.speed_inter > 0.49 => {
                self.at += 1;
                self.set_speed();
                true
            }
            _ => false,
        }
    }

    /// Few fast channels become twice as many of half the speed: more thread blocks move the same data.
    fn duplicate(&mut self) {
        let best = &mut self.best;
        let have = best.channels;
        let fast = best.speed_intra >= 25.0;
        let enough = self.view.sm > 80 && best.speed_intra < 50.0 && have > 4;
        if have == 0 || !fast || enough {
            return;
        }
        let want = (have * 2).min(best.max_channels);
        for i in 0..want - have {
            best.gpus.push(best.gpus[i].clone());
            best.nets.push(best.nets[i]);
        }
        let factor = want.div_ceil(have) as f64;
        best.speed_intra /= factor;
        best.speed_inter /= factor;
        best.channels = want;
    }

    fn speed_up(&mut self) {
        self.now = self.best.clone();
        let last = self.speeds.len() - 1;
        self.at = self.speeds.iter().position(|&s| s <= self.best.speed_inter).unwrap_or(last);
        self.set_speed();
        self.now.min_channels = self.best.channels;
        self.known.clear();
        let mut left: Left = None;
        // With steps used up there is no point in trying harder still.
        while left != Some(0) && self.at > 0 {
            if self.wish == Pattern::Ring {
                self.at -= 1;
                self.set_speed();
            } else if self.now.speed_intra == self.best.speed_intra
                && self.now.speed_intra < self.now.speed_inter * 2.0
            {
                self.at -= 1;
                self.now.speed_intra = self.speeds[self.at];
            } else {
                break;
            }
            left = self.attempt();
        }
    }

    fn finish(self) -> ChannelGraph {
        let view = self.view;
        let best = self.best;
        if best.channels == 0 {
            return ChannelGraph {
                pattern: best.pattern,
                speed_intra: 0.1,
                speed_inter: 0.1,
                type_intra: PathClass::Sys,
                type_inter: PathClass::Sys,
                cross_nic: best.cross_nic,
                same_channels: true,
                latency_inter: 0.0,
                channels: vec![Channel {
                    gpus: (0..view.gpus.len()).map(|g| view.dev(g)).collect(),
                    nets: (!view.nets.is_empty()).then(|| [view.net(0).dev; 2]),
                }],
                hops: 0,
                steps: self.steps,
            };
        }
        let channel = |c: usize| Channel {
            gpus: best.gpus[c].iter().map(|&g| view.dev(g)).collect(),
            nets: (!view.nets.is_empty()).then(|| best.nets[c].map(|n| view.net(n).dev)),
        };
        ChannelGraph {
            pattern: best.pattern,
            speed_intra: best.speed_intra,
            speed_inter: best.speed_inter,
            type_intra: best.type_intra,
            type_inter: best.type_inter,
            cross_nic: best.cross_nic,
            same_channels: best.same_channels,
            latency_inter: best.latency_inter,
            channels: (0..best.channels).map(channel).collect(),
            hops: best.hops,
            steps: self.steps,
        }
    }
}

/// The next worse class that the search knows: NODE is PHB to it.
fn next_class(class: PathClass) -> PathClass {
    let mut rest = PathClass::ALL.into_iter().filter(|&c| c > class && c != PathClass::Node);
    rest.next().unwrap_or(PathClass::Dis)
}

impl View<'_> {
    /// The best and worst class from any GPU to any of `ends`, itself left out.
    fn extremes(&self, ends: &[NodeId], none: PathClass) -> (PathClass, PathClass) {
        let classes: Vec<PathClass> = self
            .gpus
            .iter()
            .flat_map(|&g| {
                ends.iter().filter(move |&&e| e != g).map(move |&e| self.paths.between(g, e).class)
            })
            .collect();
        let best = classes.iter().min().copied().unwrap_or(none);
        let worst = classes.iter().max().copied().unwrap_or(PathClass::Sys);
        (best, worst)
    }

    /// The classes of the paths from GPUs to `ends` and back.
    fn classes(&self, ends: &[NodeId]) -> Vec<PathClass> {
        let pairs = self.gpus.iter().flat_map(|&g| ends.iter().map(move |&e| (g, e)));
        let class = |(a, b)| self.paths.between(a, b).class;
        let mut all: Vec<PathClass> = pairs.flat_map(|(g, e)| [class((g, e)), class((e, g))]).collect();
        all.sort();
        all.dedup();
        all
    }

    /// GPUs form exactly two islands of NVLink.
    fn split_nvlink(&self) -> bool {
        let n = self.gpus.len();
        let mut count = 0;
        let mut done = vec![false; n];
        for g in 0..n {
            if done[g] {
                continue;
            }
            let mut members = 0;
            for (p, done) in done.iter_mut().enumerate() {
                let class = self.paths.between(self.gpus[g], self.gpus[p]).class;
                if class == PathClass::Nvl || p == g {
                    *done = true;
                    members += 1;
                }
            }
            if members > 1 {
                count += 1;
            }
        }
        count == 2
    }
}
