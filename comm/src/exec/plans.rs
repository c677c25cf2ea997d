//! How the calls of a communicator are performed: chosen once, kept, and found at once when calls repeat.

use std::collections::HashMap;
use std::sync::Arc;

use super::engine::Call;
use super::plan::Plan;
use super::run::Segment;
use crate::choose::{Choice, Tuner};
use crate::cost::Calibration;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::number::{DataType, ReduceOp};
use crate::schedule::{
    Alias, Collective, Counts, Instruction, Layout, MAX_LANES, Program, Shape, Space, Span, algorithms,
};

/// Plans that are kept; a program that makes more different calls than this plans them anew.
const KEPT_PLANS: usize = 4096;

/// What a plan is made for; the layout does not change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    collective: Collective,
    counts: Counts,
    root: u32,
    alias: Alias,
    data_type: DataType,
    op: u8,
    /// Whether a call of [`Collective::SendRecv`] sends.
    sends: bool,
}

impl Key {
    fn of(call: &Call) -> Key {
        Key {
            collective: call.collective,
            counts: call.counts.clone(),
            root: call.root,
            alias: call.alias,
            data_type: call.data_type,
            op: call.op.map_or(0, ReduceOp::code),
            sends: call.output.is_null(),
        }
    }

    fn is_of(&self, call: &Call) -> bool {
        self.collective == call.collective
            && self.counts == call.counts
            && self.root == call.root
            && self.alias == call.alias
            && self.data_type == call.data_type
            && self.op == call.op.map_or(0, ReduceOp::code)
            && self.sends == call.output.is_null()
    }
}

/// The plans of one rank.
pub struct Plans {
    rank: usize,
    layout: Arc<Layout>,
    tuner: Tuner,
    kept: HashMap<Key, Arc<Plan>>,
    /// Those of the calls before, in their order: programs repeat their calls.
    last: Vec<(Key, Arc<Plan>)>,
}

impl Plans {
    /// None yet.
    pub fn new(rank: usize, layout: Arc<Layout>, tuner: Tuner) -> Plans {
        Plans { rank, layout, tuner, kept: HashMap::new(), last: Vec::new() }
    }

    /// Who shares a host with whom.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Whether `segments` are the calls before, and `calls` the same once more, on the same buffers and with nothing to do
    /// beforehand: then all that differs is their numbers.
    #[inline]
    pub fn repeat(&self, calls: &[Call], segments: &[Segment]) -> bool {
        let same = |(call, (segment, (key, plan))): (&Call, (&Segment, &(Key, Arc<Plan>)))| {
            let prepares = matches!(call.op, Some(ReduceOp::PreMulSum(_)))
                || (call.collective == Collective::SendRecv && call.root as usize == self.rank);
            !prepares
                && segment.memory[..2] == [call.input.cast_mut(), call.output]
                && Arc::ptr_eq(plan, &segment.plan)
                && key.is_of(call)
        };
        calls.len() == segments.len()
            && calls.len() == self.last.len()
            && calls.iter().zip(segments.iter().zip(&self.last)).all(same)
    }

    /// So many calls are made now, one by one.
    pub fn begin(&mut self, calls: usize) {
        self.last.truncate(calls);
    }

    /// The plan of the `index`-th call of a group.
    pub fn of(&mut self, call: &Call, index: usize) -> Result<Arc<Plan>> {
        if let Some((key, plan)) = self.last.get(index)
            && key.is_of(call)
        {
            return Ok(plan.clone());
        }
        let key = Key::of(call);
        let plan = match self.kept.get(&key) {
            Some(plan) => plan.clone(),
            None => {
                let plan = Arc::new(self.new_plan(call)?);
                if self.kept.len() >= KEPT_PLANS {
                    self.kept.clear();
                }
                self.kept.insert(key.clone(), plan.clone());
                plan
            }
        };
        let found = (key, plan.clone());
        match self.last.get_mut(index) {
            Some(last) => *last = found,
            None => self.last.push(found),
        }
        Ok(plan)
    }

    fn new_plan(&mut self, call: &Call) -> Result<Plan> {
        let (rank, shape) = (self.rank, self.shape(call));
        let (program, algorithm) = if call.collective == Collective::SendRecv {
            let (peer, count) = (call.root, call.counts.part(0));
            let instruction = match call.output.is_null() {
                true => {
                    Instruction::Send { to: peer, src: Span { space: Space::Input, start: 0, len: count } }
                }
                false => {
                    Instruction::Recv { from: peer, dst: Span { space: Space::Output, start: 0, len: count } }
                }
            };
            // What a rank sends to itself is copied beforehand.
            let lane = if count > 0 && peer as usize != rank { vec![instruction] } else { Vec::new() };
            (Program { lanes: vec![lane], ..Program::default() }, 0)
        } else {
            let Choice { algorithm, .. } = self.choose(call)?;
            let number = algorithms().iter().position(|a| a.name() == algorithm.name());
            (algorithm.program(&shape, rank), number.map_or(0, |n| n as u8 + 1))
        };
        debug_assert!(program.lanes.len() <= MAX_LANES);
        let kernel = match call.op {
            // The inputs are multiplied beforehand.
            Some(ReduceOp::PreMulSum(_)) => Some(ReduceOp::Sum),
            op => op,
        };
        let invalid = |e: crate::kernel::Unsupported| Error::InvalidArgument {
            rank,
            call: call.collective.function(),
            problem: e.to_string(),
            remedy: "use an integer type, or sum, prod, min, max or avg".into(),
        };
        let world_size = shape.world_size();
        let kernel =
            kernel.map(|op| Kernel::new(call.data_type, op, world_size)).transpose().map_err(invalid)?;
        Ok(Plan::new(&program, &shape, rank, call.data_type, kernel, algorithm))
    }

    fn shape(&self, call: &Call) -> Shape {
        Shape {
            collective: call.collective,
            counts: call.counts.clone(),
            root: call.root,
            alias: call.alias,
            layout: self.layout.clone(),
            piece: crate::choose::piece(call.data_type),
        }
    }

    /// Who chooses algorithms.
    pub fn tuner(&self) -> &Tuner {
        &self.tuner
    }

    /// Chooses by these costs from now on.
    pub fn set_costs(&mut self, costs: Arc<Calibration>) {
        self.tuner.set_costs(costs);
        self.kept.clear();
        self.last.clear();
    }

    /// Which algorithm performs a call, and why.
    pub fn choose(&mut self, call: &Call) -> Result<Choice> {
        self.tuner.choose(&self.shape(call), call.data_type).map_err(|problem| Error::Config {
            setting: "ND_ALGO".into(),
            value: problem.value,
            problem: problem.problem,
            remedy: problem.remedy,
        })
    }
}
