//! Every call, with counts, types and operations to choose: for tests of what ranks do that disagree or do not come.

use nd_comm::Result;
use nd_comm::communicator::Communicator;
use nd_comm::number::ReduceOp;

/// Makes a call with so many elements for each part that it has.
pub type Make = fn(&Communicator, usize) -> Result<()>;

/// The root of calls that spread what it has.
pub const SOURCE: usize = 1;
/// The root of calls that collect.
pub const SINK: usize = 0;

/// A call.
#[derive(Debug, Clone, Copy)]
pub struct Named {
    /// Its name as errors show it, with an opening parenthesis.
    pub shown: &'static str,
    /// How it is made.
    pub make: Make,
    /// Whether it ends nowhere before all have come, if there is something to move.
    pub needs_all: bool,
}

const fn named(shown: &'static str, needs_all: bool, make: Make) -> Named {
    Named { shown, make, needs_all }
}

/// Every collective, its v-variants among them.
pub const COLLECTIVES: [Named; 14] = [
    named("all_reduce(", true, |c, n| c.all_reduce(&mut vec![1f32; n], ReduceOp::Sum)),
    named("reduce_scatter(", true, |c, n| {
        c.reduce_scatter(&vec![1f32; n * c.world_size()], &mut vec![0f32; n], ReduceOp::Sum)
    }),
    named("reduce_scatter_v(", true, |c, n| {
        let counts = rising(c, n);
        let mut own = vec![0f32; counts[c.rank()]];
        c.reduce_scatter_v(&vec![1f32; counts.iter().sum()], &mut own, &counts, ReduceOp::Sum)
    }),
    named("all_gather(", true, |c, n| c.all_gather(&vec![1f32; n], &mut vec![0f32; n * c.world_size()])),
    named("all_gather_v(", true, |c, n| {
        let counts = rising(c, n);
        c.all_gather_v(&vec![1f32; counts[c.rank()]], &mut vec![0f32; counts.iter().sum()], &counts)
    }),
    named("broadcast(", false, |c, n| c.broadcast(&mut vec![1f32; n], SOURCE)),
    named("reduce(", false, |c, n| c.reduce(&vec![1f32; n], &mut vec![0f32; n], ReduceOp::Sum, SINK)),
    named("gather(", false, |c, n| c.gather(&vec![1f32; n], &mut vec![0f32; n * c.world_size()], SINK)),
    named("gather_v(", false, |c, n| {
        let counts = rising(c, n);
        c.gather_v(&vec![1f32; counts[c.rank()]], &mut vec![0f32; counts.iter().sum()], &counts, SINK)
    }),
    named("scatter(", false, |c, n| c.scatter(&vec![1f32; n * c.world_size()], &mut vec![0f32; n], SOURCE)),
    named("scatter_v(", false, |c, n| {
        let counts = rising(c, n);
        let mut own = vec![0f32; counts[c.rank()]];
        c.scatter_v(&vec![1f32; counts.iter().sum()], &counts, &mut own, SOURCE)
    }),
    named("all_to_all(", true, |c, n| {
        let len = n * c.world_size();
        c.all_to_all(&vec![1f32; len], &mut vec![0f32; len])
    }),
    named("all_to_all_v(", true, |c, n| {
        let counts = vec![n; c.world_size()];
        let len = n * c.world_size();
        c.all_to_all_v(&vec![1f32; len], &counts, &mut vec![0f32; len], &counts)
    }),
    named("barrier(", true, |c, _| c.barrier()),
];

/// The same calls in other forms: in place, out of place, in groups, started.
pub const FORMS: [Named; 10] = [
    named("all_reduce(", true, |c, n| c.all_reduce_into(&vec![1f32; n], &mut vec![0f32; n], ReduceOp::Sum)),
    named("all_gather(", true, |c, n| c.all_gather_in_place(&mut vec![1f32; n * c.world_size()])),
    named("all_to_all(", true, |c, n| c.all_to_all_in_place(&mut vec![1f32; n * c.world_size()])),
    named("all_reduce(", true, |c, n| {
        let (mut one, mut two) = (vec![1f32; n], vec![1f32; n]);
        c.group(|g| {
            g.all_reduce(&mut one, ReduceOp::Sum)?;
            g.all_reduce(&mut two, ReduceOp::Sum)
        })
    }),
    named("all_reduce(", true, |c, n| {
        c.all_reduce_start(vec![1f32; n], ReduceOp::Sum)?.wait().map(drop).map_err(Into::into)
    }),
    named("barrier(", true, |c, _| Ok(c.barrier_start()?.wait()?)),
    named("all_gather(", true, |c, n| {
        let all = vec![0f32; n * c.world_size()];
        c.all_gather_start(vec![1f32; n], all)?.wait().map(drop).map_err(Into::into)
    }),
    named("all_gather(", true, |c, n| {
        let all = vec![1f32; n * c.world_size()];
        c.all_gather_in_place_start(all)?.wait().map(drop).map_err(Into::into)
    }),
    named("reduce_scatter(", true, |c, n| {
        let all = vec![1f32; n * c.world_size()];
        c.reduce_scatter_in_place_start(all, ReduceOp::Sum)?.wait().map(drop).map_err(Into::into)
    }),
    named("all_reduce(", true, |c, n| {
        let mut buffer = c.alloc::<f32>(n)?;
        buffer.fill(1.0);
        c.all_reduce(&mut buffer, ReduceOp::Sum)
    }),
];

fn rising(comm: &Communicator, n: usize) -> Vec<usize> {
    (0..comm.world_size()).map(|rank| n + rank).collect()
}
