//! What a collective costs, before it is performed: its programs run in simulated time.
//!
//! The model takes the very programs that the executors run, so it knows nothing of algorithms, and a new one needs no
//! formula. Messages are transfers that share the links on their way fairly; sending, taking and combining take the
//! rank's time; lanes go on beside each other.
//!
//! | file | what |
//! |---|---|
//! | [`fabric`] | what the model has to know of the machines |
//! | [`cluster`] | machines from a topology |
//! | [`hosts`] | machines under a communicator |
//! | [`calibration`] | what their links were measured to cost |
//! | `flow` | transfers that share resources |
//! | `program` | programs, made ready for the model |
//! | `machine` | runs them, event by event |
//! | `quotient` | ranks that do the same at the same time are simulated once |
//! | [`load`] | how busy the links are, and when |

pub mod calibration;
pub mod cluster;
pub mod fabric;
mod flow;
pub mod hosts;
pub mod load;
mod machine;
mod program;
mod quotient;
#[cfg(test)]
mod tests;

pub use calibration::Calibration;
pub use fabric::Fabric;
pub use load::{Load, Timeline};

use crate::number::DataType;
use crate::schedule::{Algorithm, Shape};
use machine::Machine;
use program::{Compiler, Lane};
use quotient::Quotient;

/// What a collective is predicted to take.
#[derive(Debug, Clone)]
pub struct Estimate {
    /// From the first rank's start to the last one's end, µs.
    pub us: f64,
    /// The resources that were used, the busiest first.
    pub loads: Vec<Load>,
    /// How many ranks were simulated, those that do the same being one.
    pub ranks: usize,
    /// How many of their instructions.
    pub instructions: usize,
    /// How busy each kind of link was over time, if asked for.
    pub timeline: Option<Timeline>,
}

/// Why there is no estimate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unpredictable {
    /// The programs are longer than what may be simulated.
    #[error("some {instructions} instructions or more to simulate; the limit is {limit}")]
    TooLong {
        /// Counted so far.
        instructions: usize,
        /// The limit.
        limit: usize,
    },
    /// A program waits for ever: a fault of the algorithm, which the verifier should have found.
    #[error("its program waits for ever")]
    Stuck,
}

/// How to predict.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The most instructions that are simulated.
    pub limit: usize,
    /// Whether every rank is simulated, even where it does what another one does.
    pub every_rank: bool,
    /// How many steps of a timeline to make; 0: none.
    pub steps: usize,
}

impl Default for Options {
    /// Up to 3 million instructions (a few seconds, some 500 MB), symmetry used, no timeline.
    fn default() -> Options {
        Options { limit: 3_000_000, every_rank: false, steps: 0 }
    }
}

/// Predicts what `algorithm` takes for a call that it supports.
///
/// # Errors
/// When that is too much to simulate.
pub fn estimate(
    algorithm: &dyn Algorithm,
    shape: &Shape,
    data_type: DataType,
    fabric: &dyn Fabric,
    options: Options,
) -> Result<Estimate, Unpredictable> {
    let run = |quotient| simulate(algorithm, shape, data_type, fabric, options, &quotient);
    for pieces in PIECES.into_iter().filter(|_| !options.every_rank) {
        let width = data_type.size() as u64;
        let quotient = Quotient::of(fabric, algorithm, shape, width, options.limit, pieces);
        if let Some(estimate) = run(quotient)? {
            return Ok(estimate);
        }
        // With more pieces the programs are not what they are with few: look at more.
    }
    run(Quotient::none(shape.world_size()))?.ok_or(Unpredictable::Stuck)
}

/// Pieces of what a rank handles by which ranks are told apart: few, that is quick, up to all that there are.
const PIECES: [u64; 3] = [4, 64, u64::MAX];

/// Ranks whose programs are made to see how long those of all will be.
const SAMPLES: usize = 9;

/// About how many instructions the programs of these ranks have together, by a few from among them: making all programs
/// of a large world, to find that they are too many, takes long. 0 for few ranks.
fn expected(algorithm: &dyn Algorithm, shape: &Shape, ranks: &[usize]) -> usize {
    if ranks.len() < SAMPLES * SAMPLES {
        return 0;
    }
    // Not the first, which is often the root of all.
    let samples = (0..SAMPLES).map(|i| ranks[(2 * i + 1) * ranks.len() / (2 * SAMPLES)]);
    let length = |rank| algorithm.program(shape, rank).lanes.iter().map(Vec::len).sum::<usize>();
    samples.map(length).sum::<usize>() / SAMPLES * ranks.len()
}

/// Nothing where the programs do not fit the quotient.
fn simulate(
    algorithm: &dyn Algorithm,
    shape: &Shape,
    data_type: DataType,
    fabric: &dyn Fabric,
    options: Options,
    quotient: &Quotient,
) -> Result<Option<Estimate>, Unpredictable> {
    let ranks = quotient.representatives().len();
    if ranks > options.limit / quotient::SHORTEST && !options.every_rank {
        let instructions = ranks * quotient::SHORTEST;
        return Err(Unpredictable::TooLong { instructions, limit: options.limit });
    }
    let representatives = quotient.representatives();
    let expected = expected(algorithm, shape, &representatives);
    if expected > options.limit && !options.every_rank {
        return Err(Unpredictable::TooLong { instructions: expected, limit: options.limit });
    }
    let mut compiler = Compiler::new(fabric, quotient, shape, data_type);
    let mut code: Vec<Vec<Lane>> = Vec::new();
    let mut instructions = 0;
    for &rank in &representatives {
        let program = algorithm.program(shape, rank);
        instructions += program.lanes.iter().map(Vec::len).sum::<usize>();
        if instructions > options.limit {
            return Err(Unpredictable::TooLong { instructions, limit: options.limit });
        }
        match compiler.lanes(&program, rank) {
            Some(lanes) => code.push(lanes),
            None => return Ok(None),
        }
    }
    let (channels, flows) = (compiler.channels(), std::mem::take(&mut compiler.flows));
    let run = |flows, watch: &mut dyn FnMut(f64, &mut flow::Flows)| {
        let mut machine = Machine::new(flows, &compiler.paths, &compiler.works, &code, channels);
        machine.run(watch).map(|us| (us, machine.flows))
    };
    let again = (options.steps > 0).then(|| flows.clone());
    let Some((us, mut flows)) = run(flows, &mut |_, _| {}) else {
        return if quotient.is_none() { Err(Unpredictable::Stuck) } else { Ok(None) };
    };
    let timeline = match again {
        Some(flows) => {
            let mut recorder = load::Recorder::new(&compiler.named, fabric, us, options.steps);
            run(flows, &mut |until, flows| recorder.record(until, flows));
            Some(recorder.finish())
        }
        None => None,
    };
    let loads = load::loads(&mut flows, &compiler.named, fabric, us);
    Ok(Some(Estimate { us, loads, ranks: representatives.len(), instructions, timeline }))
}
