//! Everything in one hop, or two: every rank exchanges with every other at once.
//!
//! `oneshot` all-reduces in one hop (everybody sends everything to everybody): the least latency, n-1 times the
//! data. `direct` all-reduces in two (reduce-scatter, then all-gather) and does all other collectives in one.
//! All reductions are one fold in the canonical order, so they are reproducible for every layout.

use super::buffers::Parts;
use super::lane::{Lane, from, others, others_back, parts_of, rotates};
use super::{Algorithm, Alias, Collective, Counts, Program, Shape, Space, Span, Term};

/// All-reduce in one hop.
pub struct OneShot;

/// Everything in one hop; all-reduce in two.
pub struct Direct;

impl Algorithm for OneShot {
    fn name(&self) -> &'static str {
        "oneshot"
    }

    fn supports(&self, shape: &Shape) -> bool {
        shape.collective == Collective::AllReduce && shape.counts_fit()
    }

    fn reproducible(&self, _: &Shape) -> bool {
        true
    }

    fn cyclic(&self, shape: &Shape) -> bool {
        shape.layout.uniform().is_some()
    }

    fn program(&self, shape: &Shape, rank: usize) -> Program {
        let mut lane = Lane::new(shape, rank);
        let n = shape.world_size();
        let len = shape.counts.part(0);
        if n == 1 {
            lane.alone();
            return lane.finish();
        }
        // In place, everybody would wait for everybody else to consume its input before it can store the result:
        // send a copy instead.
        let mut input = Span::input(0, len);
        if shape.alias == Alias::InPlace {
            lane.copy(input, Span::scratch(0, len));
            input = Span::scratch(0, len);
        }
        for to in others(rank, n) {
            lane.send(to, input);
        }
        fold_all(&mut lane, shape, rank, input, Span::output(0, len));
        lane.finish()
    }
}

impl Algorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn supports(&self, shape: &Shape) -> bool {
        shape.counts_fit()
    }

    fn reproducible(&self, _: &Shape) -> bool {
        true
    }

    fn cyclic(&self, shape: &Shape) -> bool {
        rotates(shape, |_| 1)
    }

    fn program(&self, shape: &Shape, rank: usize) -> Program {
        let mut lane = Lane::new(shape, rank);
        if shape.world_size() == 1 {
            lane.alone();
            return lane.finish();
        }
        let input = Span::input(0, shape.input_len(rank));
        let output = Span::output(0, shape.output_len(rank));
        match shape.collective {
            Collective::AllReduce => {
                let parts = parts_of(shape);
                let own = parts.span(Space::Output, rank);
                reduce_scatter(&mut lane, shape, rank, &parts, own);
                all_gather(&mut lane, shape, rank, &parts, own);
            }
            Collective::ReduceScatter => reduce_scatter(&mut lane, shape, rank, &parts_of(shape), output),
            Collective::AllGather => all_gather(&mut lane, shape, rank, &parts_of(shape), input),
            Collective::AllToAll => all_to_all(&mut lane, shape, rank),
            Collective::Barrier => barrier(&mut lane, shape, rank),
            _ if rank == shape.root as usize => at_root(&mut lane, shape, rank, input, output),
            Collective::Broadcast | Collective::Scatter => lane.recv(shape.root, output),
            Collective::Reduce | Collective::Gather | Collective::SendRecv => lane.send(shape.root, input),
        }
        lane.finish()
    }
}

/// The root's side of broadcast, reduce, gather and scatter.
fn at_root(lane: &mut Lane<'_>, shape: &Shape, rank: usize, input: Span, output: Span) {
    let n = shape.world_size();
    match shape.collective {
        Collective::Broadcast => {
            others(rank, n).for_each(|to| lane.send(to, input));
            lane.copy(input, output);
        }
        Collective::Scatter => {
            let parts = Parts::of(shape);
            others(rank, n).for_each(|to| lane.send(to, parts.span(Space::Input, to as usize)));
            lane.copy(parts.span(Space::Input, rank), output);
        }
        Collective::Gather => {
            let parts = Parts::of(shape);
            lane.copy(input, parts.span(Space::Output, rank));
            others(rank, n).for_each(|from| lane.recv(from, parts.span(Space::Output, from as usize)));
        }
        _ => fold_all(lane, shape, rank, input, output),
    }
}

/// Combines everybody's message with `own` in the canonical order.
fn fold_all(lane: &mut Lane<'_>, shape: &Shape, rank: usize, own: Span, dst: Span) {
    let (fold, order) = shape.layout.canonical();
    let term = |r| if r as usize == rank { Term::Own(own) } else { from(r) };
    lane.reduce(dst, order.into_iter().map(term).collect(), fold, true);
}

/// Sends each rank its part of the input and reduces the own part into `dst`.
fn reduce_scatter(lane: &mut Lane<'_>, shape: &Shape, rank: usize, parts: &Parts, dst: Span) {
    for to in others(rank, shape.world_size()) {
        lane.send(to, parts.span(Space::Input, to as usize));
    }
    fold_all(lane, shape, rank, parts.span(Space::Input, rank), dst);
}

/// Sends `own` to everybody and puts everybody's part where it belongs.
fn all_gather(lane: &mut Lane<'_>, shape: &Shape, rank: usize, parts: &Parts, own: Span) {
    let n = shape.world_size();
    others(rank, n).for_each(|to| lane.send(to, own));
    lane.copy(own, parts.span(Space::Output, rank));
    others_back(rank, n).for_each(|from| lane.recv(from, parts.span(Space::Output, from as usize)));
}

/// In place, a message would arrive exactly where the answer to it is still waiting to be read, on both sides: the
/// outgoing data is copied aside first.
fn all_to_all(lane: &mut Lane<'_>, shape: &Shape, rank: usize) {
    let n = shape.world_size();
    let (send, recv) = match &shape.counts {
        Counts::Pairwise { send, recv } => {
            (Parts::from_lengths(send.iter().copied()), Parts::from_lengths(recv.iter().copied()))
        }
        _ => (Parts::of(shape), Parts::of(shape)),
    };
    let mut space = Space::Input;
    if shape.alias == Alias::InPlace {
        lane.copy(send.spans(Space::Input, 0..n), send.spans(Space::Scratch, 0..n));
        space = Space::Scratch;
    }
    others(rank, n).for_each(|to| lane.send(to, send.span(space, to as usize)));
    let (own, stays) = (send.span(Space::Input, rank), recv.span(Space::Output, rank));
    if shape.place(rank, own) != shape.place(rank, stays) {
        lane.copy(send.span(space, rank), stays);
    }
    others_back(rank, n).for_each(|from| lane.recv(from, recv.span(Space::Output, from as usize)));
}

/// Dissemination barrier (Hensgen, Finkel, Manber 1988): after round k a rank has heard, directly or not, from the
/// 2^(k+1) ranks up to itself. Messages are one element (run it with `u8`) of scratch whose value does not matter:
/// element 0 is sent, round k arrives in element 1 + k.
fn barrier(lane: &mut Lane<'_>, shape: &Shape, rank: usize) {
    let n = shape.world_size();
    let rounds = (0..).map_while(|k| (1usize << k < n).then_some((k as u64, 1usize << k)));
    for (k, distance) in rounds {
        lane.send(((rank + distance) % n) as u32, Span::scratch(0, 1));
        lane.recv(((rank + n - distance) % n) as u32, Span::scratch(1 + k, 1));
    }
}
