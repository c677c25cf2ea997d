//! Which algorithm performs a call: the one that the cost model finds fastest, unless one is asked for by name.
//!
//! Candidates are all algorithms that perform the call in the order of reduction that is wanted. Each is simulated
//! once for a *class* of calls (sizes within a quarter of an octave, one element type), in place and out of place, and
//! the one that takes least over both is chosen: whether a call is in place is each rank's own business, and all must
//! choose alike. They do, since every rank chooses by itself from what all ranks know; a rank that does not is found
//! out by its first message (see [`crate::exec::stamp`]).

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::Rule;
use crate::cost::hosts::{HostFabric, Machines};
use crate::cost::{Calibration, Options, estimate};
use crate::number::DataType;
use crate::schedule::{self, Algorithm, Alias, Collective, Counts, Reduction, Shape};

/// Bytes of a piece where long messages are pipelined.
const PIECE: u64 = 256 << 10;
/// The most instructions that are simulated for a candidate, some 50 ms. One that takes more is not considered, as
/// long as there is another.
const WEIGHED: usize = 200_000;

/// Chooses algorithms: the settings.
#[derive(Debug, Clone, Default)]
pub struct Chooser {
    /// What `ND_ALGO` asks for; the first rule that is about a call holds for it.
    pub asked: Vec<Asked>,
    /// Whether the reproducible order is kept.
    pub reduction: Reduction,
    /// What links cost; typical ones if nothing was measured.
    pub costs: Option<Arc<Calibration>>,
}

/// A [`Rule`] whose collective is known and whose algorithms exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// About which collective; about all.
    pub collective: Option<Collective>,
    /// The rule.
    pub rule: Rule,
}

impl Asked {
    /// These algorithms for all calls, in this order of preference.
    pub fn by_name(names: &[&str]) -> Asked {
        let names = names.iter().map(|&n| n.to_owned()).collect();
        Asked { collective: None, rule: Rule { names, ..Rule::default() } }
    }
}

/// An algorithm, and why.
#[derive(Clone)]
pub struct Choice {
    /// Which.
    pub algorithm: &'static dyn Algorithm,
    /// A sentence.
    pub why: String,
    /// What each candidate was predicted to take for a call of this class, µs, the chosen one first; none where nothing
    /// was compared.
    pub predicted: Vec<(&'static str, f64)>,
}

/// A setting that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What was asked for.
    pub value: String,
    /// Why not.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

/// Elements of a piece where long messages are pipelined.
pub fn piece(data_type: DataType) -> u64 {
    PIECE / data_type.size() as u64
}

/// Calls that are done alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Class {
    collective: Collective,
    count: u64,
    root: u32,
    data_type: DataType,
}

/// Chooses algorithms for one communicator, and remembers the choices.
#[derive(Debug)]
pub struct Tuner {
    chooser: Chooser,
    machines: Machines,
    weighed: HashMap<Class, Arc<[Weighed]>>,
}

/// A candidate, and what it takes out of place and in place, µs.
#[derive(Debug, Clone)]
struct Weighed {
    algorithm: &'static str,
    us: [f64; 2],
}

impl Tuner {
    /// For the machines under a communicator.
    pub fn new(chooser: Chooser, machines: Machines) -> Tuner {
        Tuner { chooser, machines, weighed: HashMap::new() }
    }

    /// What choices depend on.
    pub fn machines(&self) -> &Machines {
        &self.machines
    }

    /// Chooses by these costs from now on.
    pub fn set_costs(&mut self, costs: Arc<Calibration>) {
        self.machines.costs = costs;
        self.weighed.clear();
    }

    /// The algorithm for a call.
    pub fn choose(&mut self, shape: &Shape, data_type: DataType) -> Result<Choice, Problem> {
        if shape.collective == Collective::SendRecv {
            return Ok(only(&schedule::direct::Direct, "one message"));
        }
        let bytes = bytes(shape, data_type);
        let mut excluded: &[String] = &[];
        for asked in &self.chooser.asked {
            let rule = &asked.rule;
            if asked.collective.is_some_and(|c| c != shape.collective) || !rule.sizes.contains(&bytes) {
                continue;
            }
            if rule.exclude {
                excluded = &rule.names;
                break;
            }
            match first_of(&rule.names, shape) {
                Some(choice) => return Ok(choice),
                None if asked.collective.is_some() => return Err(cannot(&rule.names, shape)),
                // Asked for in general: what cannot be done that way is done by default.
                None => {}
            }
        }
        let wanted = |a: &&'static dyn Algorithm| {
            a.supports(shape)
                && (self.chooser.reduction == Reduction::Fast || a.reproducible(shape))
                && !excluded.iter().any(|name| name == a.name())
        };
        let candidates: Vec<_> = schedule::algorithms().iter().copied().filter(wanted).collect();
        match candidates[..] {
            [] => Err(Problem {
                value: format!("^{}", excluded.join(",")),
                problem: format!("nothing is left to perform {} by", shape.collective.function()),
                remedy: "exclude fewer algorithms".into(),
            }),
            [algorithm] => Ok(only(algorithm, "the only algorithm for this call")),
            [first, ..] if shape.world_size() == 1 => Ok(only(first, "one rank")),
            _ if !every_rank_knows(shape) => match candidates.iter().find(|a| a.name() == "direct") {
                Some(direct) => {
                    Ok(only(*direct, "not every rank knows the lengths that a choice would depend on"))
                }
                None => {
                    Ok(only(candidates[0], "not every rank knows the lengths that a choice would depend on"))
                }
            },
            _ => {
                let class = class(shape, data_type);
                let predicted = match self.weighed.get(&class) {
                    Some(known) => known.clone(),
                    None => {
                        let weighed = weigh(&self.machines, &candidates, &class, shape);
                        self.weighed.entry(class).or_insert(weighed).clone()
                    }
                };
                Ok(fastest(&candidates, &predicted, shape.alias))
            }
        }
    }
}

/// What the candidates take for a class of calls, the fastest first. Where all are too long to be simulated, none.
fn weigh(
    machines: &Machines,
    candidates: &[&'static dyn Algorithm],
    class: &Class,
    shape: &Shape,
) -> Arc<[Weighed]> {
    let shapes = [Alias::None, Alias::InPlace].map(|alias| Shape {
        counts: Counts::Equal(class.count),
        alias,
        ..shape.clone()
    });
    let fabric = HostFabric::new(machines, &shapes[0], class.data_type.size() as u64);
    let options = Options { limit: WEIGHED, ..Options::default() };
    let weighed = |a: &&'static dyn Algorithm| {
        let us = |shape| estimate(*a, shape, class.data_type, &fabric, options).ok().map(|e| e.us);
        Some(Weighed { algorithm: a.name(), us: [us(&shapes[0])?, us(&shapes[1])?] })
    };
    let mut all: Vec<_> = candidates.iter().filter_map(weighed).collect();
    // Stable: of equals the one that is listed first.
    all.sort_by(|a, b| (a.us[0] + a.us[1]).total_cmp(&(b.us[0] + b.us[1])));
    all.into()
}

fn fastest(candidates: &[&'static dyn Algorithm], weighed: &[Weighed], alias: Alias) -> Choice {
    let in_place = usize::from(alias == Alias::InPlace);
    let predicted: Vec<_> = weighed.iter().map(|w| (w.algorithm, w.us[in_place])).collect();
    let Some(&(name, us)) = predicted.first() else {
        let direct = candidates.iter().find(|a| a.name() == "direct").unwrap_or(&candidates[0]);
        return only(*direct, "with so many ranks every candidate takes too long to simulate");
    };
    let algorithm = *candidates.iter().find(|a| a.name() == name).unwrap_or(&candidates[0]);
    let why = match predicted.get(1) {
        Some((next, more)) => {
            format!("predicted {}, {next} {} ({:.1} times)", micros(us), micros(*more), more / us.max(1e-3))
        }
        None => format!("predicted {}", micros(us)),
    };
    Choice { algorithm, why, predicted }
}

fn micros(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 1e3 => format!("{:.2} ms", us / 1e3),
        us => format!("{us:.1} µs"),
    }
}

fn only(algorithm: &'static dyn Algorithm, why: &str) -> Choice {
    Choice { algorithm, why: why.into(), predicted: Vec::new() }
}

/// Whether the shape is the same on every rank, but for what is in place.
fn every_rank_knows(shape: &Shape) -> bool {
    match shape.counts {
        Counts::Equal(_) => true,
        Counts::PerRank(_) => matches!(shape.collective, Collective::ReduceScatter | Collective::AllGather),
        Counts::Pairwise { .. } => false,
    }
}

/// Rounds the count down to three binary digits, so that sizes within a quarter of an octave are one class. Parts of
/// different lengths count as equal ones.
fn class(shape: &Shape, data_type: DataType) -> Class {
    let n = shape.world_size();
    let count = match &shape.counts {
        Counts::Equal(count) => *count,
        counts => counts.start(n) / n as u64,
    };
    let shift = count.max(1).ilog2().saturating_sub(2);
    let root = if shape.collective.has_root() { shape.root } else { 0 };
    Class { collective: shape.collective, count: count >> shift << shift, root, data_type }
}

/// Asking by name implies [`Reduction::Fast`] where the algorithm needs it.
fn first_of(names: &[String], shape: &Shape) -> Option<Choice> {
    let algorithm = names.iter().filter_map(|n| schedule::by_name(n)).find(|a| a.supports(shape))?;
    let fast = !algorithm.reproducible(shape);
    let order = if fast { "; its order of reduction is not the reproducible one" } else { "" };
    Some(only(algorithm, &format!("asked for by name{order}")))
}

fn cannot(names: &[String], shape: &Shape) -> Problem {
    let can: Vec<_> = schedule::algorithms().iter().filter(|a| a.supports(shape)).map(|a| a.name()).collect();
    Problem {
        value: names.join(","),
        problem: format!(
            "no such algorithm performs this {} among {} ranks",
            shape.collective.function(),
            shape.world_size()
        ),
        remedy: format!("use one of {}", can.join(", ")),
    }
}

/// Bytes of the larger side of a call.
fn bytes(shape: &Shape, data_type: DataType) -> u64 {
    let n = shape.world_size();
    let elements = match (&shape.counts, shape.collective) {
        (Counts::Equal(count), Collective::AllReduce | Collective::Reduce | Collective::Broadcast) => *count,
        (Counts::Equal(count), _) => count * n as u64,
        (counts, _) => counts.start(n),
    };
    elements * data_type.size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::calibration::{Between, LinkCost};
    use crate::cost::hosts::Cores;
    use crate::schedule::Layout;

    fn tuner(hosts: &[usize], chooser: Chooser) -> Tuner {
        let layout = Arc::new(Layout::new(hosts));
        let cores = Cores::of(&layout, |rank| (layout.host_of(rank), 2));
        let costs = Arc::new(Calibration::typical().clone());
        Tuner::new(chooser, Machines { layout, transports: ["shm", "tcp"], cores, costs })
    }

    fn shape(t: &Tuner, collective: Collective, count: u64) -> Shape {
        let layout = t.machines.layout.clone();
        let counts = Counts::Equal(count);
        Shape { collective, counts, root: 0, alias: Alias::None, layout, piece: piece(DataType::F32) }
    }

    fn chosen(t: &mut Tuner, collective: Collective, count: u64) -> String {
        let shape = shape(t, collective, count);
        t.choose(&shape, DataType::F32).unwrap().algorithm.name().to_owned()
    }

    #[test]
    fn the_fastest_candidate_is_chosen_once_for_a_class() {
        let mut t = tuner(&[0, 0], Chooser::default());
        assert_eq!(chosen(&mut t, Collective::AllReduce, 1), "oneshot");
        assert_eq!(chosen(&mut t, Collective::AllReduce, 1 << 24), "direct");
        let classes = t.weighed.len();
        assert_eq!(chosen(&mut t, Collective::AllReduce, (1 << 24) + 12345), "direct");
        assert_eq!(t.weighed.len(), classes);
        let choice = t.choose(&shape(&t, Collective::AllReduce, 1 << 24), DataType::F32).unwrap();
        assert_eq!(choice.predicted[0].0, "direct");
        assert!(choice.predicted.len() >= 4, "{:?}", choice.predicted);
        assert!(choice.predicted.iter().all(|(name, _)| *name != "ring"), "not reproducible");
        let mut fast = tuner(&[0, 0], Chooser { reduction: Reduction::Fast, ..Chooser::default() });
        let choice = fast.choose(&shape(&t, Collective::AllReduce, 1 << 24), DataType::F32).unwrap();
        assert!(choice.predicted.iter().any(|(name, _)| *name == "ring"));
    }

    #[test]
    fn hosts_are_crossed_once() {
        let mut t = tuner(&[0, 0, 1, 1], Chooser::default());
        let name = chosen(&mut t, Collective::AllReduce, 1 << 22);
        assert!(name.starts_with("hierarchical") || name == "halving", "{name}");
    }

    #[test]
    fn what_was_measured_of_verbs_decides_and_before_that_what_is_known_of_tcp() {
        let of = |transport: &str, points: [(u64, f64); 2]| LinkCost {
            transport: transport.into(),
            between: Between::Hosts,
            ranks_per_core: 1.0,
            pull: false,
            gap_us: 0.1,
            one_way: points.to_vec(),
            exchange: points.to_vec(),
            reduce: points.to_vec(),
            host_gbps: None,
        };
        let predicted = |link: &[LinkCost], across| {
            let layout = Arc::new(Layout::new(&[0, 1, 2, 3]));
            let cores = Cores::of(&layout, |rank| (rank, 2));
            let costs = Arc::new(Calibration { link: link.to_vec() });
            let mut t = Tuner::new(
                Chooser::default(),
                Machines { layout, transports: ["shm", across], cores, costs },
            );
            t.choose(&shape(&t, Collective::AllReduce, 1 << 18), DataType::F32).unwrap().predicted
        };
        // One whose messages take long whatever their length, and one where only bytes count.
        let tcp = [of("tcp", [(8, 5e3), (1 << 26, 5e3)])];
        let by_tcp = predicted(&tcp, "tcp");
        assert_eq!(predicted(&tcp, "verbs"), by_tcp);
        let [tcp] = tcp;
        let by_verbs = predicted(&[tcp, of("verbs", [(8, 0.1), (1 << 26, 1e7)])], "verbs");
        assert!(by_tcp[0].1 > 5e3 && by_verbs[0].0 != by_tcp[0].0, "{by_tcp:?} {by_verbs:?}");
        assert_eq!(predicted(&[of("verbs", [(8, 5e3), (1 << 26, 5e3)])], "verbs"), by_tcp);
    }

    #[test]
    fn rules_hold_in_their_order_for_their_sizes() {
        let rule = |collective, names: &[&str], sizes, exclude| {
            let names = names.iter().map(|n| (*n).to_owned()).collect();
            Asked { collective, rule: Rule { collective: None, names, sizes, exclude } }
        };
        let asked = vec![
            rule(Some(Collective::AllReduce), &["ring"], 0..=4096, false),
            rule(None, &["direct", "oneshot"], 0..=u64::MAX, true),
        ];
        let mut t = tuner(&[0; 4], Chooser { asked, ..Chooser::default() });
        assert_eq!(chosen(&mut t, Collective::AllReduce, 1024), "ring");
        let other = chosen(&mut t, Collective::AllReduce, 1025);
        assert!(!["ring", "direct", "oneshot"].contains(&&*other), "{other}");
        let asked = vec![rule(Some(Collective::Broadcast), &["bruck"], 0..=u64::MAX, false)];
        let mut t = tuner(&[0; 4], Chooser { asked, ..Chooser::default() });
        let shape = shape(&t, Collective::Broadcast, 10);
        assert!(t.choose(&shape, DataType::F32).err().unwrap().remedy.contains("tree"));
    }

    #[test]
    fn what_only_the_root_knows_decides_nothing() {
        let mut t = tuner(&[0; 4], Chooser::default());
        let mut gather = shape(&t, Collective::Gather, 1);
        for counts in [[1, 2, 3, 4], [0, 0, 3, 0]] {
            gather.counts = Counts::PerRank(counts.to_vec().into());
            assert_eq!(t.choose(&gather, DataType::F32).unwrap().algorithm.name(), "direct");
        }
    }
}
