//! Proves, for given shapes, that a schedule does what its collective promises.
//!
//! [`verify`] runs the programs of all ranks on symbols instead of numbers. It finds results that are wrong,
//! incomplete or combined in another order than promised, reads of what was never or already overwritten, writes
//! over what is being read, deadlocks, and messages that do not fit. Pure, and as fast for 2^40 elements as for
//! few: the cost grows with instructions and pieces only.

mod check;
mod fault;
mod machine;
mod symbol;
#[cfg(test)]
mod tests;

pub use fault::{At, Blocked, Fault};

use super::buffers::Parts;
use super::{Algorithm, Collective, Counts, Program, Shape, Space, Span};
use machine::Machine;
use symbol::{Id, Run};

/// What a schedule costs, counted while it was verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages of all ranks.
    pub messages: u64,
    /// Elements that each rank sends.
    pub sent: Vec<u64>,
    /// How many of all elements are sent in the accumulator type.
    pub wide: u64,
    /// Messages in the longest chain in which each is sent after the one before has been received.
    pub chain: u64,
}

/// Verifies the programs that `algorithm` writes for `shapes`, one for each rank. They are of one call, so they may
/// differ in aliasing and in what only some ranks need to know.
pub fn verify(algorithm: &dyn Algorithm, shapes: &[Shape]) -> Result<Report, Fault> {
    if !shapes.iter().all(|shape| algorithm.supports(shape)) {
        return Err(Fault::Unsupported(algorithm.name()));
    }
    let programs: Vec<_> = shapes.iter().enumerate().map(|(r, shape)| algorithm.program(shape, r)).collect();
    verify_programs(shapes, &programs, shapes.iter().all(|shape| algorithm.reproducible(shape)))
}

/// Verifies programs, one for each rank; `reproducible`: whether reductions must follow the canonical order.
pub fn verify_programs(shapes: &[Shape], programs: &[Program], reproducible: bool) -> Result<Report, Fault> {
    let ranks = shapes.first().map_or(0, Shape::world_size);
    if ranks == 0 || shapes.len() != ranks || programs.len() != ranks {
        return Err(Fault::Ranks { ranks, shapes: shapes.len(), programs: programs.len() });
    }
    for (rank, (program, shape)) in programs.iter().zip(shapes).enumerate() {
        check::check(program, shape, rank)?;
    }
    let mut machine = Machine::new(shapes, programs);
    let report = machine.run()?;
    for rank in 0..shapes.len() {
        if shapes[rank].collective == Collective::Barrier {
            if let Some(missing) = machine.not_heard(rank) {
                return Err(Fault::NotEntered { rank, missing });
            }
        } else {
            result(&mut machine, shapes, rank, reproducible)?;
        }
    }
    Ok(report)
}

/// Checks that the output of `rank` is what was promised.
fn result(machine: &mut Machine<'_>, shapes: &[Shape], rank: usize, reproducible: bool) -> Result<(), Fault> {
    let shape = &shapes[rank];
    let any_order = shape.collective.reduces() && !reproducible;
    let mut start = 0;
    for (len, id, base) in promised(machine, shapes, rank) {
        let wrong = |machine: &Machine<'_>, element: u64, found: String| {
            let order = if any_order { " in any order" } else { "" };
            let expected = format!("{}@{}{order}", machine.symbols.show(id), base + element - start);
            Fault::Result { rank, element, found, expected }
        };
        let found = machine.load(rank, Span::output(start, len));
        let found = found.map_err(|element| wrong(machine, element, "unwritten".to_owned()))?;
        let mut at = 0;
        for Run { len, id: is, base: first } in found {
            let order = if any_order { machine.symbols.is_any_reduction(is, shapes.len()) } else { is == id };
            if !order || first != (base + at) as i64 {
                return Err(wrong(machine, start + at, format!("{}@{first}", machine.symbols.show(is))));
            }
            at += len;
        }
        start += len;
    }
    Ok(())
}

/// The output of `rank`, in consecutive stretches: length, expression, and where its leaves start.
fn promised(machine: &mut Machine<'_>, shapes: &[Shape], rank: usize) -> Vec<(u64, Id, u64)> {
    let shape = &shapes[rank];
    let len = shape.output_len(rank);
    if len == 0 {
        return Vec::new();
    }
    let mut input = |r: usize| machine.symbols.input(r as u32);
    let root = shape.root as usize;
    match shape.collective {
        Collective::AllReduce | Collective::Reduce => vec![(len, reduction(machine, shape), 0)],
        Collective::ReduceScatter => vec![(len, reduction(machine, shape), shape.counts.start(rank))],
        Collective::Broadcast => vec![(len, input(root), 0)],
        Collective::Scatter => vec![(len, input(root), shapes[root].counts.start(rank))],
        Collective::AllGather | Collective::Gather => (0..shapes.len())
            .map(|r| (shape.counts.part(r), input(r), 0))
            .filter(|(len, ..)| *len > 0)
            .collect(),
        Collective::AllToAll => {
            let block = |r: usize| match (&shape.counts, &shapes[r].counts) {
                (Counts::Pairwise { recv, .. }, Counts::Pairwise { send, .. }) => {
                    let sent = Parts::from_lengths(send.iter().copied()).span(Space::Input, rank);
                    (recv[r], input(r), sent.start)
                }
                (counts, _) => (counts.part(r), input(r), counts.start(rank)),
            };
            (0..shapes.len()).map(block).filter(|(len, ..)| *len > 0).collect()
        }
        Collective::SendRecv | Collective::Barrier => Vec::new(),
    }
}

/// The canonical reduction of all inputs, finished and rounded.
fn reduction(machine: &mut Machine<'_>, shape: &Shape) -> Id {
    let (fold, order) = shape.layout.canonical();
    let inputs =
        order.into_iter().map(|r| vec![Run { len: 1, id: machine.symbols.input(r), base: 0 }]).collect();
    let whole = machine.symbols.fold(&fold, inputs)[0].id;
    let finished = machine.symbols.finish(whole);
    machine.symbols.round(finished)
}
