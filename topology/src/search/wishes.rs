//! What an attempt may ask for, and the order in which wishes are given up until channels fit.
//!
//! The wishes are the digits of an odometer. Each attempt that does not end the search moves it by one: the first
//! digit that can still be loosened is, and those before it return to their best. So at each speed: equal channels →
//! different channels, then a simpler tree, then worse paths between GPUs, then worse paths to ports, then channels
//! that cross ports; and only then the next lower speed. The order is NCCL's.

use super::host::Host;
use super::passes::Layout;
use super::{Pattern, Settings, speeds};
use crate::graph::NodeId;
use crate::path::PathClass;

/// The most channels of a search (NCCL: MAXCHANNELS).
const MAX_CHANNELS: usize = 64;
/// A lower speed is not tried when it is less than this part of what was found.
const WORTH_TRYING: f64 = 0.49;

/// What one attempt asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wish {
    pub pattern: Pattern,
    pub speed_intra: f64,
    pub speed_inter: f64,
    pub type_intra: PathClass,
    pub type_inter: PathClass,
    pub cross_nic: u32,
    pub same_channels: bool,
    pub min_channels: usize,
    pub max_channels: usize,
}

/// The digits, fastest first.
#[derive(Clone, Copy, PartialEq)]
enum Digit {
    Sameness,
    Shape,
    GpuPaths,
    PortPaths,
    Crossing,
    Speed,
}

const DIGITS: [Digit; 6] =
    [Digit::Sameness, Digit::Shape, Digit::GpuPaths, Digit::PortPaths, Digit::Crossing, Digit::Speed];

/// The odometer.
#[derive(Clone)]
pub(super) struct Wishes {
    pub now: Wish,
    /// The shape asked for; a simpler one may be tried at times.
    pub shape: Pattern,
    /// The setting.
    pub cross_nic: u32,
    /// The classes of paths stay as they are.
    pub fixed_classes: bool,
    speeds: &'static [f64],
    /// Which speed is asked for.
    at: usize,
    best_intra: PathClass,
    best_inter: PathClass,
    worst_intra: PathClass,
    worst_inter: PathClass,
    several_hosts: bool,
    sm: i32,
    amd: bool,
}

impl Wishes {
    pub fn new(host: &Host<'_>, pattern: Pattern, settings: &Settings) -> Wishes {
        let several_hosts = !host.nets.is_empty();
        let crossing = matches!(pattern, Pattern::Ring | Pattern::BalancedTree | Pattern::SplitTree);
        let cross_nic = if host.nets.len() > 1 && crossing { settings.cross_nic } else { 0 };
        let shape = if host.gpus.len() == 1 && pattern != Pattern::Ring { Pattern::Tree } else { pattern };
        let (best_intra, worst_intra) = extremes(host, &host.gpus, PathClass::Loc);
        let (best_inter, worst_inter) = extremes(host, &host.nets, PathClass::Pix);
        let mut min_channels = settings.min_channels;
        if shape == Pattern::Ring && settings.max_channels >= 2 && min_channels == 1 && has_two_islands(host)
        {
            // Trees need two channels to use the NVLinks of both islands, and rings go along.
            min_channels = 2;
        }
        let now = Wish {
            pattern: shape,
            speed_intra: 0.0,
            speed_inter: 0.0,
            type_intra: best_intra,
            type_inter: best_inter,
            cross_nic: u32::from(cross_nic == 1),
            same_channels: true,
            min_channels,
            max_channels: settings.max_channels.min(MAX_CHANNELS),
        };
        Wishes {
            now,
            shape,
            cross_nic,
            fixed_classes: false,
            speeds: speeds::candidates(host.sm, several_hosts),
            at: 0,
            best_intra,
            best_inter,
            worst_intra,
            worst_inter,
            several_hosts,
            sm: host.sm,
            amd: host.amd,
        }
    }

    /// Every wish again, but for these two.
    pub fn restart(&mut self, shape: Pattern, min_channels: usize) {
        if shape == Pattern::Tree {
            // A tree of this shape leaves by the port it came in by.
            self.cross_nic = 0;
        }
        self.shape = shape;
        DIGITS.into_iter().for_each(|d| self.tighten(d));
        self.now.min_channels = min_channels;
    }

    /// No worse paths between GPUs than these, and none better asked for.
    pub fn fix_classes(&mut self, intra: PathClass) {
        self.fixed_classes = true;
        self.best_intra = intra;
        self.now.type_intra = intra;
    }

    /// The fastest speed at which the host could carry the fewest channels wanted.
    pub fn fastest(&mut self, host: &Host<'_>) {
        let n = host.gpus.len() as f64;
        // The last GPU of a chain does not send: its share is there for the others.
        let chain = host.gpus.len() > 1 && self.shape != Pattern::Ring;
        let total = if chain { host.total_bandwidth * (n / (n - 1.0)) } else { host.total_bandwidth };
        let channels = self.now.min_channels as f64;
        self.ask(|s| s <= host.max_bandwidth && s * channels <= total);
    }

    /// The fastest speed that is no faster than `limit`, GB/s.
    pub fn no_faster_than(&mut self, limit: f64) {
        self.ask(|s| s <= limit);
    }

    fn ask(&mut self, fits: impl Fn(f64) -> bool) {
        self.at = self.speeds.iter().position(|&s| fits(s)).unwrap_or(self.speeds.len() - 1);
        self.now.speed_intra = self.speeds[self.at];
        self.now.speed_inter = self.speeds[self.at];
    }

    /// Asks for the next higher speed between GPUs, and to ports too where `both` says so. False at the top.
    pub fn faster(&mut self, both: bool) -> bool {
        let Some(at) = self.at.checked_sub(1) else { return false };
        self.at = at;
        self.now.speed_intra = self.speeds[at];
        if both {
            self.now.speed_inter = self.speeds[at];
        }
        true
    }

    /// Moves on to the next wish; false when there is none worth trying. Once equal and different channels have
    /// both been tried, `give_up` may end the search.
    pub fn give_way(&mut self, best: &Layout, give_up: impl FnOnce() -> bool) -> bool {
        if self.loosen(Digit::Sameness, best) {
            return true;
        }
        self.tighten(Digit::Sameness);
        if give_up() {
            return false;
        }
        for digit in DIGITS.into_iter().skip(1) {
            if self.loosen(digit, best) {
                return true;
            }
            self.tighten(digit);
        }
        false
    }

    fn loosen(&mut self, digit: Digit, best: &Layout) -> bool {
        let found = best.channels > 0;
        let now = &mut self.now;
        match digit {
            Digit::Sameness => {
                let amd_across = self.amd && now.type_intra == PathClass::Sys;
                std::mem::take(&mut now.same_channels) && !amd_across
            }
            Digit::Shape => {
                let simpler = self.sm >= 90 && now.pattern == Pattern::BalancedTree;
                if simpler {
                    now.pattern = Pattern::Tree;
                }
                simpler
            }
            Digit::GpuPaths => {
                let worst = if self.several_hosts { now.type_inter } else { self.worst_intra };
                let may = !self.fixed_classes
                    && now.type_intra < worst
                    && (!found || now.type_intra < best.wish.type_intra);
                may && worsen(&mut now.type_intra)
            }
            Digit::PortPaths => {
                let class = now.type_inter;
                let may = self.several_hosts
                    && !self.fixed_classes
                    && class < self.worst_inter
                    && (!found || class < best.wish.type_inter || class < PathClass::Pxn);
                may && worsen(&mut now.type_inter)
            }
            Digit::Crossing => {
                let may = self.cross_nic == 2
                    && now.cross_nic == 0
                    && matches!(self.shape, Pattern::Ring | Pattern::BalancedTree);
                if may {
                    now.cross_nic = 2;
                }
                may
            }
            Digit::Speed => match self.speeds.get(self.at + 1) {
                Some(next) if !found || next / best.wish.speed_inter > WORTH_TRYING => {
                    self.at += 1;
                    (now.speed_intra, now.speed_inter) = (*next, *next);
                    true
                }
                _ => false,
            },
        }
    }

    fn tighten(&mut self, digit: Digit) {
        match digit {
            Digit::Sameness => self.now.same_channels = true,
            Digit::Shape => self.now.pattern = self.shape,
            Digit::GpuPaths => self.now.type_intra = self.best_intra,
            Digit::PortPaths => self.now.type_inter = self.best_inter,
            Digit::Crossing => self.now.cross_nic = u32::from(self.cross_nic == 1),
            Digit::Speed => {}
        }
    }
}

/// The next worse class; NODE is PHB to the search. False when there is none.
fn worsen(class: &mut PathClass) -> bool {
    let worse = PathClass::ALL.into_iter().find(|&c| c > *class && c != PathClass::Node);
    *class = worse.unwrap_or(PathClass::Dis);
    *class < PathClass::Dis
}

/// The best and worst class from any GPU to any of `ends`, itself left out; `none` and SYS without any.
fn extremes(host: &Host<'_>, ends: &[NodeId], none: PathClass) -> (PathClass, PathClass) {
    let pairs = host.gpus.iter().flat_map(|&g| ends.iter().map(move |&e| (g, e)));
    let classes = pairs.filter(|(g, e)| g != e).map(|(g, e)| host.paths.between(g, e).class);
    let (best, worst) = (classes.clone().min(), classes.max());
    (best.unwrap_or(none), worst.unwrap_or(PathClass::Sys))
}

/// GPUs form exactly two islands of NVLink.
fn has_two_islands(host: &Host<'_>) -> bool {
    let n = host.gpus.len();
    let linked = |a: usize, b: usize| host.paths.between(host.gpus[a], host.gpus[b]).class == PathClass::Nvl;
    let mut placed = vec![false; n];
    let mut islands = 0;
    for g in 0..n {
        if placed[g] {
            continue;
        }
        let members: Vec<usize> = (0..n).filter(|&p| p == g || linked(g, p)).collect();
        members.iter().for_each(|&p| placed[p] = true);
        islands += usize::from(members.len() > 1);
    }
    islands == 2
}
