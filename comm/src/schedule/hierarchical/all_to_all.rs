//! All-to-all along rails: what a host's ranks have for a rank of another host is gathered by one of them and sent
//! there in one message.
//!
//! It is gathered by the rank of the same local index (modulo how many there are), so every rank of a host sends over
//! an interface of its own. As many bytes cross as without, in a fraction of the messages; inside the host that sends
//! they are moved once more.

use super::super::buffers::split_start;
use super::super::lane::Lane;
use super::super::{Alias, Program, Space, Span};
use super::columns::Place;
use super::pipeline::{self, Piece};

struct Blocks<'a> {
    place: &'a Place<'a>,
    len: u64,
    pieces: usize,
    /// Elements before the slots of the scratch: the input, put aside.
    aside: u64,
}

impl Blocks<'_> {
    fn elements(&self, piece: Piece) -> u64 {
        split_start(self.len, self.pieces, piece.number + 1)
            - split_start(self.len, self.pieces, piece.number)
    }

    /// A piece of the block for, or from, a rank.
    fn block(&self, space: Space, rank: u32, piece: Piece) -> Span {
        let start = u64::from(rank) * self.len + split_start(self.len, self.pieces, piece.number);
        Span::new(space, start, self.elements(piece))
    }

    /// The input of this rank for another.
    fn input(&self, rank: u32, piece: Piece) -> Span {
        self.block(if self.aside > 0 { Space::Scratch } else { Space::Input }, rank, piece)
    }

    /// The other hosts, with the distance `d` of each: those after this one in their order, or those before it.
    fn hosts(&self, after: bool) -> impl Iterator<Item = &[u32]> {
        let (n, place) = (self.place.hosts.len(), self.place);
        (1..n).map(move |d| &place.hosts[(place.host + if after { d } else { n - d }) % n][..])
    }

    /// The ranks of other hosts for which local index `index` gathers.
    fn served(&self, index: usize) -> impl Iterator<Item = u32> {
        let locals = self.place.locals.len();
        self.hosts(true).flat_map(move |host| host.iter().skip(index).step_by(locals).copied())
    }

    /// Whether the blocks from a host's ranks come in one message; else each in its own. All in one where blocks are
    /// short.
    fn together(&self) -> bool {
        self.pieces == 1
    }

    /// Where all blocks from a host's ranks lie in the output, if that is one stretch.
    fn stretch(&self, host: &[u32], piece: Piece) -> Option<Span> {
        let consecutive = host.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let first = self.block(Space::Output, host[0], piece);
        consecutive.then(|| Span { len: first.len * host.len() as u64, ..first })
    }
}

pub(super) fn all_to_all(place: &Place<'_>) -> Program {
    let (shape, n, locals) = (place.shape, place.shape.world_size(), place.locals.len());
    let len = shape.counts.part(0);
    let in_place = shape.alias == Alias::InPlace;
    let (_, most) = place.most();
    let pieces = pipeline::pieces(len.saturating_mul(most as u64), shape.piece, 4 * n);
    // In place, a block arrives where another may still wait to be read: the input is put aside.
    let blocks = Blocks { place, len, pieces, aside: if in_place { n as u64 * len } else { 0 } };
    let longest = split_start(len, pieces, 1);
    let packed_len = (blocks.served(place.index).count() * locals) as u64 * longest;
    // What is to be scattered over the output is received into the scratch behind what is packed.
    let slot = packed_len + if blocks.together() { n as u64 * len } else { 0 };
    // What this rank gathers for the k-th rank that it serves, from some of the local ranks.
    let packed = |k: usize, piece: Piece, from: std::ops::Range<usize>| {
        let one = blocks.elements(piece);
        let first = blocks.aside + piece.slot as u64 * slot + (k * locals + from.start) as u64 * one;
        Span::scratch(first, from.len() as u64 * one)
    };
    let give = |lane: &mut Lane<'_>, piece: Piece| {
        if in_place {
            for rank in (0..n as u32).filter(|&rank| rank != place.rank) {
                lane.copy(blocks.block(Space::Input, rank, piece), blocks.input(rank, piece));
            }
        } else {
            lane.copy(blocks.input(place.rank, piece), blocks.block(Space::Output, place.rank, piece));
        }
        for index in (1..locals).map(|d| (place.index + d) % locals) {
            let local = place.locals[index];
            lane.send(local, blocks.input(local, piece));
            blocks.served(index).for_each(|to| lane.send(local, blocks.input(to, piece)));
        }
    };
    let gather = |lane: &mut Lane<'_>, piece: Piece| {
        for (local, _) in place.others_back() {
            lane.recv(local, blocks.block(Space::Output, local, piece));
        }
        for (k, to) in blocks.served(place.index).enumerate() {
            for (i, &local) in place.locals.iter().enumerate() {
                let at = packed(k, piece, i..i + 1);
                match local == place.rank {
                    true => lane.copy(blocks.input(to, piece), at),
                    false => lane.recv(local, at),
                }
            }
            match blocks.together() {
                true => lane.send(to, packed(k, piece, 0..locals)),
                false => (0..locals).for_each(|i| lane.send(to, packed(k, piece, i..i + 1))),
            }
        }
    };
    let await_hosts = |lane: &mut Lane<'_>, piece: Piece| {
        let mut aside = blocks.aside + packed_len;
        for host in blocks.hosts(false) {
            let from = host[place.index % host.len()];
            if !blocks.together() {
                host.iter().for_each(|&source| lane.recv(from, blocks.block(Space::Output, source, piece)));
            } else if let Some(stretch) = blocks.stretch(host, piece) {
                lane.recv(from, stretch);
            } else {
                lane.recv(from, Span::scratch(aside, host.len() as u64 * len));
                for &source in host {
                    lane.copy(Span::scratch(aside, len), blocks.block(Space::Output, source, piece));
                    aside += len;
                }
            }
        }
    };
    pipeline::run(place, pieces, 3, 3, |lane, stage, piece| match stage {
        0 => give(lane, piece),
        1 => gather(lane, piece),
        _ => await_hosts(lane, piece),
    })
}
