//! One attempt: with a wish given, channels are laid one after the other through the GPUs, each leg taking the
//! channel's speed off the links it passes, and the best set of channels met is kept.
//!
//! The walk is an odometer over legs. A wheel holds the choices of one leg and which of them is in force; turning the
//! last wheel takes back its choice and takes the next one that the ledger can pay for, and a wheel without choices
//! left is removed. All wheels share one list of choices, and nothing is allocated once the lists have grown. A step
//! is one leg taken; the attempt ends when its steps are used up, or when nothing better can be found.

use super::Pattern;
use super::ceiling::is_hopeless;
use super::host::Host;
use super::itinerary::{Exit, Leg, itinerary};
use super::ledger::{Hops, Ledger, Taken};
use super::nets::PortOrder;
use super::order::{Here, Orders};
use super::passes::Layout;
use super::wishes::Wish;

/// Steps for a first guess in the order of the GPUs' numbers, where channels begin at a port.
const STEPS_GUESS: u64 = 1 << 10;

/// In which order the GPUs of a channel follow each other.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// Best first.
    Best,
    /// By index.
    Index,
    /// As in the channel before.
    Repeat,
}

/// A choice of one leg: a GPU, a port, or both where a channel begins at a port.
#[derive(Clone, Copy)]
struct Choice {
    gpu: u16,
    port: u16,
    manner: Manner,
}

/// The choices of one leg, as a span of the shared list that begins at `from` and ends where the next wheel's begins.
struct Wheel {
    leg: usize,
    channel: usize,
    from: usize,
    next: usize,
    force: Force,
}

/// What the choice in force holds.
#[derive(Clone, Copy)]
enum Force {
    /// None is in force.
    Idle,
    /// One that pays for no hop.
    Free,
    /// One that pays for a hop.
    Paid(Taken),
}

/// How far an attempt may still go.
struct Steps {
    /// Of the attempt.
    own: u64,
    /// Of the first guess, while that is followed; it does not count against the attempt's own.
    guess: Option<u64>,
    /// Of the whole search.
    all: u64,
}

impl Steps {
    fn spend(&mut self) -> bool {
        let purse = self.guess.as_mut().unwrap_or(&mut self.own);
        if *purse == 0 || self.all == 0 {
            return false;
        }
        *purse -= 1;
        self.all -= 1;
        true
    }
}

/// What became of an attempt.
pub(super) struct Outcome {
    /// Steps left of its own; `None` if as many channels as wanted were found, and nothing can be better.
    pub left: Option<u64>,
    /// Steps taken.
    pub steps: u64,
}

/// Lays channels; made once for a search, and used for all its attempts.
pub(super) struct Packer<'a, 'g> {
    host: &'a Host<'g>,
    hops: Hops,
    orders: Orders,
    ledger: Ledger,
    wish: Wish,
    /// The legs of a channel, each with the number of GPUs passed before it.
    legs: Vec<(Leg, usize)>,
    wheels: Vec<Wheel>,
    choices: Vec<Choice>,
    steps: Steps,
    optimum: bool,
    /// Complete channels.
    channels: usize,
    /// GPUs of each channel, a row each.
    seats: Vec<u16>,
    /// GPUs that each channel passes, a row each.
    passed: Vec<bool>,
    /// Ports at both ends of each channel.
    ends: Vec<[u16; 2]>,
    manners: Vec<Manner>,
}

impl<'a, 'g> Packer<'a, 'g> {
    /// For wishes of as many channels as this one.
    pub fn new(host: &'a Host<'g>, wish: Wish) -> Self {
        let (n, channels) = (host.gpus.len(), wish.max_channels);
        Packer {
            host,
            hops: Hops::new(host),
            orders: Orders::new(host),
            ledger: Ledger::new(host),
            wish,
            legs: Vec::new(),
            wheels: Vec::new(),
            choices: Vec::new(),
            steps: Steps { own: 0, guess: None, all: 0 },
            optimum: false,
            channels: 0,
            seats: vec![0; channels * n],
            passed: vec![false; channels * n],
            ends: vec![[0; 2]; channels],
            manners: vec![Manner::Best; channels],
        }
    }

    /// Tries `wish` in at most `budget` steps (and `all` with those of first guesses), and replaces `best` by
    /// what beats it.
    pub fn run(
        &mut self,
        wish: &Wish,
        ports: &PortOrder,
        best: &mut Layout,
        budget: u64,
        all: u64,
    ) -> Outcome {
        self.wish = *wish;
        self.ledger.reset(wish);
        if is_hopeless(self.host, &self.hops, &self.ledger, wish, best) {
            return Outcome { left: Some(budget), steps: 0 };
        }
        self.legs = itinerary(wish.pattern, self.host.gpus.len(), !self.host.nets.is_empty());
        self.wheels.clear();
        self.choices.clear();
        self.passed.fill(false);
        self.steps = Steps { own: budget, guess: None, all };
        (self.optimum, self.channels) = (false, 0);
        self.add_wheel(0, ports);
        while let Some(leg) = self.turn() {
            if !self.steps.spend() {
                if self.steps.all == 0 {
                    break;
                }
                match self.steps.guess {
                    Some(_) => self.rewind(),
                    None => self.keep_only_guesses(),
                }
                continue;
            }
            if leg + 1 < self.legs.len() {
                self.add_wheel(leg + 1, ports);
                continue;
            }
            self.channels += 1;
            if best.is_beaten_by(&self.wish, self.channels, self.ledger.hops) {
                self.keep(best);
                if self.channels == self.wish.max_channels {
                    self.optimum = true;
                    self.keep_only_guesses();
                    continue;
                }
            }
            if self.channels < self.wish.max_channels {
                self.add_wheel(0, ports);
            }
        }
        let left = match self.steps.all {
            _ if self.optimum => None,
            0 => Some(0),
            _ => Some(self.steps.own),
        };
        Outcome { left, steps: all - self.steps.all }
    }

    /// Takes the next choice of the last wheel that has one that can be paid; its leg, or `None` when no wheel is
    /// left.
    fn turn(&mut self) -> Option<usize> {
        while !self.wheels.is_empty() {
            self.take_back();
            let last = self.wheels.len() - 1;
            let Wheel { leg, channel, from, next, .. } = self.wheels[last];
            let Some(&choice) = self.choices.get(next) else {
                self.choices.truncate(from);
                self.wheels.pop();
                continue;
            };
            self.wheels[last].next += 1;
            let force = self.take(leg, channel, choice);
            self.wheels[last].force = force;
            if !matches!(force, Force::Idle) {
                return Some(leg);
            }
        }
        None
    }

    fn seat(&self, channel: usize, position: usize) -> usize {
        usize::from(self.seats[channel * self.host.gpus.len() + position])
    }

    fn sit(&mut self, channel: usize, position: usize, gpu: u16) {
        let row = channel * self.host.gpus.len();
        self.seats[row + position] = gpu;
        self.passed[row + usize::from(gpu)] = true;
    }

    /// Puts a choice in force, if its hop can be paid.
    fn take(&mut self, leg: usize, channel: usize, choice: Choice) -> Force {
        let gpus = self.host.gpus.len();
        let port = gpus + usize::from(choice.port);
        let (leg, position) = self.legs[leg];
        let here = if position > 0 { self.seat(channel, position - 1) } else { 0 };
        let gpu = usize::from(choice.gpu);
        let hop = match leg {
            Leg::Begin if self.host.nets.is_empty() => None,
            Leg::Begin => Some((port, gpu, false)),
            Leg::Visit(_) => Some((here, gpu, false)),
            Leg::Send(exit) => Some((here, port, matches!(exit, Exit::HalfFree | Exit::HalfSame))),
            Leg::Close => Some((here, self.seat(channel, 0), false)),
            Leg::End => None,
        };
        let force = match hop {
            None => Force::Free,
            Some((from, to, half)) => match self.ledger.take(&self.hops, self.hops.number(from, to), half) {
                Some(taken) => Force::Paid(taken),
                None => return Force::Idle,
            },
        };
        match leg {
            Leg::Begin => {
                self.manners[channel] = choice.manner;
                if !self.host.nets.is_empty() {
                    self.ends[channel][0] = choice.port;
                    self.ledger.charge_port(usize::from(choice.port), 1);
                    if choice.manner == Manner::Index {
                        self.steps.guess = Some(STEPS_GUESS);
                    }
                }
                self.sit(channel, 0, choice.gpu);
            }
            Leg::Visit(_) => self.sit(channel, position, choice.gpu),
            Leg::Send(_) => self.ends[channel][1] = choice.port,
            Leg::Close | Leg::End => {}
        }
        force
    }

    /// Takes back the choice in force on the last wheel.
    fn take_back(&mut self) {
        let Some(wheel) = self.wheels.last_mut() else { return };
        let (leg, channel) = (wheel.leg, wheel.channel);
        match std::mem::replace(&mut wheel.force, Force::Idle) {
            Force::Idle => return,
            Force::Free => {}
            Force::Paid(taken) => self.ledger.give_back(&self.hops, taken),
        }
        let row = channel * self.host.gpus.len();
        match self.legs[leg] {
            (Leg::Begin, _) => {
                let seat = self.seat(channel, 0);
                self.passed[row + seat] = false;
                if !self.host.nets.is_empty() {
                    self.ledger.charge_port(usize::from(self.ends[channel][0]), -1);
                    if channel == 0 {
                        self.steps.guess = None;
                    }
                }
            }
            (Leg::Visit(_), position) => {
                let seat = self.seat(channel, position);
                self.passed[row + seat] = false;
            }
            (Leg::Send(_), _) => {}
            (Leg::Close | Leg::End, _) => self.channels = channel,
        }
    }

    /// Takes everything back but the wheel on which the first channel begins.
    fn rewind(&mut self) {
        while self.wheels.len() > 1 {
            self.take_back();
            if let Some(wheel) = self.wheels.pop() {
                self.choices.truncate(wheel.from);
            }
        }
        self.take_back();
    }

    /// With as many channels found as were wanted, or the attempt's own steps used up, only the first guesses from the
    /// other ports are still tried, as NCCL does: they have steps of their own, and may find something better.
    fn keep_only_guesses(&mut self) {
        self.rewind();
        let Some(first) = self.wheels.first().map(|w| w.next) else { return };
        let guesses = self.choices.split_off(first);
        if !self.host.nets.is_empty() {
            self.choices.extend(guesses.into_iter().filter(|c| c.manner == Manner::Index));
        }
    }

    fn keep(&self, best: &mut Layout) {
        let n = self.host.gpus.len();
        best.wish = self.wish;
        best.channels = self.channels;
        best.hops = self.ledger.hops;
        best.seats.clear();
        best.seats.extend_from_slice(&self.seats[..self.channels * n]);
        best.ends.clear();
        best.ends.extend_from_slice(&self.ends[..self.channels]);
    }

    /// The wheel of a leg, with all its choices in the order in which they are tried.
    fn add_wheel(&mut self, leg: usize, ports: &PortOrder) {
        let from = self.choices.len();
        let c = self.channels;
        let (kind, position) = self.legs[leg];
        match kind {
            Leg::Begin if self.host.nets.is_empty() => self.begin_at_gpus(c),
            Leg::Begin => self.begin_at_ports(c, ports),
            Leg::Visit(aim) => match self.manners[c] {
                Manner::Index => self.choose_gpu(position as u16),
                Manner::Repeat => self.choose_gpu(self.seat(c - 1, position) as u16),
                Manner::Best => {
                    let row = c * self.host.gpus.len();
                    let choices = &mut self.choices;
                    let here = Here {
                        gpu: usize::from(self.seats[row + position - 1]),
                        aim,
                        port: usize::from(self.ends[c][0]),
                        pattern: self.wish.pattern,
                    };
                    let passed = &self.passed[row..row + self.host.gpus.len()];
                    self.orders.after(here, passed, &self.ledger, |gpu| {
                        choices.push(Choice { gpu, port: 0, manner: Manner::Best })
                    });
                }
            },
            Leg::Send(exit) => self.leave(c, exit, &ports.from[self.seat(c, position - 1)]),
            Leg::Close | Leg::End => self.choose_gpu(0),
        }
        self.wheels.push(Wheel { leg, channel: c, from, next: from, force: Force::Idle });
    }

    fn choose_gpu(&mut self, gpu: u16) {
        self.choices.push(Choice { gpu, port: 0, manner: Manner::Best });
    }

    fn begin_at_gpus(&mut self, c: usize) {
        let again = if c == 0 { (0, Manner::Index) } else { (self.seat(c - 1, 0) as u16, Manner::Repeat) };
        self.choices.push(Choice { gpu: again.0, port: 0, manner: again.1 });
        if !self.wish.same_channels || c == 0 {
            (0..self.host.gpus.len() as u16).for_each(|g| self.choose_gpu(g));
        }
    }

    fn begin_at_ports(&mut self, c: usize, ports: &PortOrder) {
        let any = &ports.any;
        let swaps = self.wish.pattern == Pattern::Ring && self.wish.cross_nic == 2;
        for i in 0..any.len() {
            let port = any[(c + i) % any.len()];
            if !self.ledger.port_is_free(usize::from(port)) {
                continue;
            }
            // Of two channels that swap ports, the second begins where the first ended.
            if swaps && c % 2 == 1 && port != self.ends[c - 1][1] {
                continue;
            }
            if c > 0 && self.wish.same_channels {
                let gpu = self.seat(c - 1, 0) as u16;
                self.choices.push(Choice { gpu, port, manner: Manner::Repeat });
                continue;
            }
            if c == 0 && self.host.graph.nvswitch.is_none() {
                self.choices.push(Choice { gpu: 0, port, manner: Manner::Index });
            }
            let doors = self.orders.doors(usize::from(port), self.wish.speed_inter.trunc(), c);
            self.choices.extend(doors.map(|gpu| Choice { gpu, port, manner: Manner::Best }));
        }
    }

    fn leave(&mut self, c: usize, exit: Exit, order: &[u16]) {
        let start = self.ends[c][0];
        let wire = |port: u16| self.host.wires[usize::from(port)];
        let swaps = self.wish.pattern == Pattern::Ring && self.wish.cross_nic == 2;
        for &port in order {
            let allowed = match exit {
                Exit::Return if port != start => false,
                Exit::HalfSame if port != self.ends[c][1] => false,
                _ if swaps && c % 2 == 1 => port == self.ends[c - 1][0],
                _ if swaps => true,
                _ => self.wish.cross_nic != 0 || wire(port) == wire(start),
            };
            if allowed {
                self.choices.push(Choice { gpu: 0, port, manner: Manner::Best });
            }
        }
    }
}
