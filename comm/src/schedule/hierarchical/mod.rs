//! Inside the hosts and across them: compositions in which every element crosses from one host to another as seldom
//! as can be, and each local rank uses a network interface of its own.
//!
//! A buffer is cut into *columns*; on every host each column has a *handler*, and the handlers of one column are a
//! *rail*. Same local indices are usually on the same switch.
//!
//! | collective | inside | across, along each rail | inside |
//! |---|---|---|---|
//! | all-reduce | reduce-scatter | all-reduce | all-gather |
//! | reduce-scatter | reduce-scatter | reduce-scatter | |
//! | all-gather | | all-gather | all-gather |
//! | broadcast | scatter, on the root's host | chain or tree | all-gather |
//! | reduce | reduce-scatter | reduce-scatter, gather to the root's host | gather |
//! | all-to-all | all-to-all of what is for each rail | all-to-all | |
//!
//! What happens across is [`Across`]. Everything is pipelined in pieces. With every way across
//! but the ring the reductions keep the canonical order, for every layout.
//!
//! | file | what |
//! |---|---|
//! | `columns` | who handles what, whatever the sizes of the hosts |
//! | `pipeline` | the order of stages and pieces |
//! | `across` | the algorithms along a rail |
//! | `reduce`, `parts`, `broadcast`, `all_to_all` | the compositions |

mod across;
mod all_to_all;
mod broadcast;
mod columns;
mod parts;
mod pipeline;
mod reduce;

use super::{Algorithm, Collective, Counts, Program, Shape};
pub use across::Across;
use columns::Place;

/// The hierarchy, with one way across the hosts.
pub struct Hierarchical(pub Across);

impl Algorithm for Hierarchical {
    fn name(&self) -> &'static str {
        match self.0 {
            Across::Direct => "hierarchical",
            Across::Halving => "hierarchical-halving",
            Across::Doubling => "hierarchical-doubling",
            Across::Tree => "hierarchical-tree",
            Across::Ring => "hierarchical-ring",
        }
    }

    /// Several hosts; on one it would be `direct`.
    fn supports(&self, shape: &Shape) -> bool {
        use Collective::*;
        let hosts = shape.layout.hosts().len();
        let performs = match self.0 {
            Across::Direct => match shape.collective {
                AllReduce | ReduceScatter | AllGather | Broadcast | Reduce => true,
                // What others send to others is known only where all send the same.
                AllToAll => matches!(shape.counts, Counts::Equal(_)),
                _ => false,
            },
            Across::Halving => shape.collective == AllReduce && hosts.is_power_of_two(),
            Across::Doubling => shape.collective == AllReduce,
            Across::Tree => shape.collective == Broadcast,
            Across::Ring => matches!(shape.collective, AllReduce | ReduceScatter | AllGather),
        };
        performs && hosts > 1 && shape.counts_fit()
    }

    fn reproducible(&self, shape: &Shape) -> bool {
        !(shape.collective.reduces() && self.0 == Across::Ring)
    }

    fn cyclic(&self, shape: &Shape) -> bool {
        let turns = matches!(self.0, Across::Direct | Across::Ring);
        turns && !shape.collective.has_root() && shape.layout.uniform().is_some() && self.even(shape)
    }

    fn program(&self, shape: &Shape, rank: usize) -> Program {
        let place = Place::new(shape, rank);
        match shape.collective {
            Collective::AllReduce => reduce::all_reduce(&place, self.0),
            Collective::Reduce => reduce::reduce(&place),
            Collective::ReduceScatter => parts::reduce_scatter(&place, self.0),
            Collective::AllGather => parts::all_gather(&place, self.0),
            Collective::Broadcast => broadcast::broadcast(&place, self.0),
            _ => all_to_all::all_to_all(&place),
        }
    }
}

impl Hierarchical {
    /// Whether every host has the same to do.
    fn even(&self, shape: &Shape) -> bool {
        match (&shape.counts, shape.collective) {
            (Counts::Equal(_), Collective::AllReduce) => reduce::no_block_is_empty(&Place::new(shape, 0)),
            (Counts::Equal(_), _) => true,
            _ => false,
        }
    }
}
