//! All-to-all with one message for each two hosts: what a host's ranks have for another host's is gathered by one of
//! them, sent to one of the others, and handed out there.
//!
//! The host d places after a host is served by its local index d - 1 (modulo the number of its ranks), on both
//! sides. As many bytes cross as without, in fewer messages; inside the hosts they are moved twice more.

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

    /// The local index that serves the host at a distance, among `locals`.
    fn server(distance: usize, locals: usize) -> usize {
        (distance - 1) % locals
    }

    /// The hosts that this rank serves: distance and host; those after this one, or before it.
    fn served(&self, after: bool) -> impl Iterator<Item = (usize, usize)> + '_ {
        let (n, place) = (self.place.hosts.len(), self.place);
        let mine = move |distance: &usize| Blocks::server(*distance, place.locals.len()) == place.index;
        let host = move |d: usize| (place.host + if after { d } else { n - d }) % n;
        (1..n).filter(mine).map(move |distance| (distance, host(distance)))
    }

    /// Where what is exchanged with the served hosts lies in the scratch: for each, and the end.
    fn starts(&self, after: bool, first: u64) -> Vec<u64> {
        let longest = split_start(self.len, self.pieces, 1);
        let mut starts = vec![first];
        for (_, host) in self.served(after) {
            let pairs = (self.place.locals.len() * self.place.hosts[host].len()) as u64;
            starts.push(starts[starts.len() - 1] + pairs * longest);
        }
        starts
    }
}

pub(super) fn all_to_all(place: &Place<'_>) -> Program {
    let (shape, n) = (place.shape, place.shape.world_size());
    let len = shape.counts.part(0);
    let in_place = shape.alias == Alias::InPlace;
    let (_, most) = place.most();
    // In place, a block arrives where another may still wait to be read, on both sides: the input is put aside.
    let pieces = pipeline::pieces(len.saturating_mul((most * most) as u64), shape.piece, 4 * n);
    let blocks = Blocks { place, len, pieces, aside: if in_place { n as u64 * len } else { 0 } };
    let out = blocks.starts(true, 0);
    let both = blocks.starts(false, out[out.len() - 1]);
    let slot = both[both.len() - 1];
    // What this rank exchanges with the k-th host that it serves: for each rank of the receivers, from each sender.
    let packed = |starts: &[u64], k: usize, piece: Piece, pairs: std::ops::Range<usize>| {
        let (one, first) = (blocks.elements(piece), blocks.aside + piece.slot as u64 * slot + starts[k]);
        Span::scratch(first + pairs.start as u64 * one, pairs.len() as u64 * one)
    };
    let locals = place.locals.len();
    let gather = |lane: &mut Lane<'_>, piece: Piece| {
        for (k, (distance, host)) in blocks.served(true).enumerate() {
            let theirs = &place.hosts[host];
            for (i, &local) in place.locals.iter().enumerate() {
                for (j, &to) in theirs.iter().enumerate() {
                    let at = packed(&out, k, piece, j * locals + i..j * locals + i + 1);
                    match local == place.rank {
                        true => lane.copy(blocks.input(to, piece), at),
                        false => lane.recv(local, at),
                    }
                }
            }
            let to = theirs[Blocks::server(distance, theirs.len())];
            lane.send(to, packed(&out, k, piece, 0..locals * theirs.len()));
        }
    };
    let hand_out = |lane: &mut Lane<'_>, piece: Piece| {
        for (k, (distance, host)) in blocks.served(false).enumerate() {
            let theirs = &place.hosts[host];
            let from = theirs[Blocks::server(distance, theirs.len())];
            lane.recv(from, packed(&both, k, piece, 0..locals * theirs.len()));
            for (j, &local) in place.locals.iter().enumerate() {
                for (i, &source) in theirs.iter().enumerate() {
                    let at = packed(&both, k, piece, j * theirs.len() + i..j * theirs.len() + i + 1);
                    match local == place.rank {
                        true => lane.copy(at, blocks.block(Space::Output, source, piece)),
                        false => lane.send(local, at),
                    }
                }
            }
        }
    };
    // The other local ranks' servers, by distance.
    let foreign = |distance: usize| {
        let server = place.locals[Blocks::server(distance, locals)];
        (server != place.rank).then_some(server)
    };
    let hosts = place.hosts.len();
    pipeline::run(place, pieces, 4, 4, |lane, stage, piece| match stage {
        0 => {
            if in_place {
                for rank in (0..n as u32).filter(|&rank| rank != place.rank) {
                    lane.copy(blocks.block(Space::Input, rank, piece), blocks.input(rank, piece));
                }
            }
            place.others().for_each(|(to, _)| lane.send(to, blocks.input(to, piece)));
            if !in_place {
                lane.copy(blocks.input(place.rank, piece), blocks.block(Space::Output, place.rank, piece));
            }
            for (distance, server) in (1..hosts).filter_map(|d| Some((d, foreign(d)?))) {
                for &to in &place.hosts[(place.host + distance) % hosts] {
                    lane.send(server, blocks.input(to, piece));
                }
            }
        }
        1 => {
            for (local, _) in place.others_back() {
                lane.recv(local, blocks.block(Space::Output, local, piece));
            }
            gather(lane, piece);
        }
        2 => hand_out(lane, piece),
        _ => {
            for (distance, server) in (1..hosts).filter_map(|d| Some((d, foreign(d)?))) {
                for &source in &place.hosts[(place.host + hosts - distance) % hosts] {
                    lane.recv(server, blocks.block(Space::Output, source, piece));
                }
            }
        }
    })
}
