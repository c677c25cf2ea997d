//! Which algorithm performs a call.
//!
//! By size and links, with a few thresholds measured on shared memory and loopback; what is asked for by name
//! (`ND_ALGO`) wins. Reductions keep the reproducible order unless told otherwise.

use crate::number::DataType;
use crate::schedule::{self, Algorithm, Collective, Reduction, Shape};

/// Up to this many bytes every rank sends everything to every other, if they are few.
const ONE_SHOT_UP_TO: u64 = 8 << 10;
/// More ranks than this exchange small messages in rounds instead of all with all.
const FEW_RANKS: usize = 8;
/// Bytes of a piece where long messages are pipelined.
const PIECE: u64 = 256 << 10;

/// Chooses algorithms for one communicator.
#[derive(Debug, Clone, Default)]
pub struct Chooser {
    /// What `ND_ALGO` asks for: for a collective, or for all; the first that can perform the call is taken.
    pub asked: Vec<(Option<Collective>, Vec<String>)>,
    /// Whether the reproducible order is kept.
    pub reduction: Reduction,
}

/// An algorithm, and why.
#[derive(Clone)]
pub struct Choice {
    /// Which.
    pub algorithm: &'static dyn Algorithm,
    /// A sentence.
    pub why: String,
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

impl Chooser {
    /// The algorithm for a call.
    pub fn choose(&self, shape: &Shape, data_type: DataType) -> Result<Choice, Problem> {
        let single = shape.collective == Collective::SendRecv;
        for (collective, names) in self.asked.iter().filter(|_| !single) {
            if collective.is_none_or(|c| c == shape.collective) {
                match self.first_of(names, shape) {
                    Some(choice) => return Ok(choice),
                    None if collective.is_some() => return Err(cannot(names, shape)),
                    // Asked for in general: what cannot be done that way is done by default.
                    None => {}
                }
            }
        }
        let bytes = bytes(shape, data_type);
        let n = shape.world_size();
        if shape.collective == Collective::SendRecv {
            let algorithm: &'static dyn Algorithm = &schedule::direct::Direct;
            return Ok(Choice { algorithm, why: "one message".into() });
        }
        let (name, why) = match shape.collective {
            Collective::AllReduce if bytes <= ONE_SHOT_UP_TO && n <= FEW_RANKS => {
                ("oneshot", format!("{bytes} B among {n} ranks: one message to each, one hop"))
            }
            Collective::AllReduce if bytes <= ONE_SHOT_UP_TO => {
                ("doubling", format!("{bytes} B among {n} ranks: few messages in log2({n}) rounds"))
            }
            Collective::AllReduce => {
                ("direct", format!("{bytes} B: every rank reduces its part, then all gather; fewest bytes"))
            }
            Collective::Broadcast | Collective::Reduce if n > 2 => {
                ("tree", format!("{bytes} B: along a binary tree, in pieces"))
            }
            Collective::AllGather if bytes <= ONE_SHOT_UP_TO && n > FEW_RANKS => {
                ("bruck", format!("{bytes} B among {n} ranks: log2({n}) rounds"))
            }
            _ => ("direct", "one message between each two ranks concerned".to_string()),
        };
        let usable = |name: &str| schedule::by_name(name).filter(|a| self.usable(*a, shape));
        let algorithm = usable(name).or_else(|| usable("direct"));
        let Some(algorithm) = algorithm else {
            return Err(Problem {
                value: "auto".into(),
                problem: format!("no algorithm performs {}", shape.collective.function()),
                remedy: "report this".into(),
            });
        };
        Ok(Choice { algorithm, why })
    }

    fn usable(&self, algorithm: &dyn Algorithm, shape: &Shape) -> bool {
        algorithm.supports(shape) && (self.reduction == Reduction::Fast || algorithm.reproducible(shape))
    }

    /// Asking by name implies [`Reduction::Fast`] where the algorithm needs it.
    fn first_of(&self, names: &[String], shape: &Shape) -> Option<Choice> {
        let algorithm = names.iter().filter_map(|n| schedule::by_name(n)).find(|a| a.supports(shape))?;
        let fast = !algorithm.reproducible(shape);
        let order = if fast { "; its order of reduction is not the reproducible one" } else { "" };
        Some(Choice { algorithm, why: format!("asked for by name{order}") })
    }
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
    let elements = (0..n).map(|r| shape.input_len(r).max(shape.output_len(r))).max().unwrap_or(0);
    elements * data_type.size() as u64
}
