//! Reduce-scatter and all-gather: the parts are the ranks', so a host's columns are its ranks' parts, or stretches
//! of them where hosts are uneven.

use std::ops::Range;

use super::super::buffers::{Parts, split_start};
use super::super::lane::{Lane, from};
use super::super::{Counts, Program, Space, Span, Term};
use super::across::{Across, Rail};
use super::columns::{Place, span};
use super::pipeline::{self, Piece};
use super::reduce::canonical;
use crate::fold::Fold;

/// Everybody's parts, cut into cells (the share of each column in its owner's part), these into pieces.
struct Cells<'a> {
    place: &'a Place<'a>,
    /// None where all parts are equal.
    parts: Option<Parts>,
    pieces: usize,
}

impl<'a> Cells<'a> {
    fn new(place: &'a Place<'a>, across: Across) -> Cells<'a> {
        let shape = place.shape;
        let (parts, longest) = match &shape.counts {
            Counts::Equal(len) => (None, *len),
            counts => {
                (Some(Parts::of(shape)), (0..shape.world_size()).map(|r| counts.part(r)).max().unwrap_or(0))
            }
        };
        let (most, locals) = place.most();
        let cells = place.hosts.len() * most;
        let each = if across == Across::Ring { 3 * cells } else { 2 * cells } + cells * locals;
        Cells { place, parts, pieces: pipeline::pieces(longest, shape.piece, each) }
    }

    /// A piece of a cell in the buffer of all parts.
    fn piece(&self, host: usize, column: usize, piece: usize) -> Range<u64> {
        let owner = self.place.handler(host, column) as usize;
        let part = match &self.parts {
            Some(parts) => parts.span(Space::Input, owner),
            None => {
                let len = self.place.shape.counts.part(0);
                Span::input(owner as u64 * len, len)
            }
        };
        let cell = self.place.columns.range_in_part(column, self.place.hosts[host].len(), part.len);
        let at = |piece| part.start + cell.start + split_start(cell.end - cell.start, self.pieces, piece);
        at(piece)..at(piece + 1)
    }

    /// A piece of an own cell in the buffer of the own part alone.
    fn own(&self, space: Space, column: usize, piece: Piece) -> Span {
        let first = self.piece(self.place.host, self.place.own().start, 0).start;
        let range = self.piece(self.place.host, column, piece.number);
        span(space, range.start - first..range.end - first)
    }
}

pub(super) fn reduce_scatter(place: &Place<'_>, across: Across) -> Program {
    let cells = Cells::new(place, across);
    let (hosts, locals, own) = (place.hosts.len(), place.locals, place.own());
    let inner = Fold::balanced(locals.len());
    let fold = canonical(hosts);
    // Where the sums of each host's cells lie in a slot of the scratch; the first pieces are the longest.
    let mut starts = vec![0];
    for cell in 0..hosts * own.len() {
        let longest = cells.piece(cell / own.len(), own.start + cell % own.len(), 0);
        starts.push(starts[cell] + longest.end - longest.start);
    }
    let input = |host, column, piece: Piece| span(Space::Input, cells.piece(host, column, piece.number));
    let scratch = |host: usize, column: usize, piece: Piece| {
        let start = starts[host * own.len() + column - own.start];
        let slot = piece.slot as u64 * starts[starts.len() - 1];
        Span::scratch(slot + start, input(host, column, piece).len)
    };
    let sums = |lane: &mut Lane<'_>, piece: Piece| {
        for (host, column) in place.hosts_from_next().flat_map(|h| own.clone().map(move |c| (h, c))) {
            let mine = input(host, column, piece);
            let term = |&r: &u32| if r == place.rank { Term::Own(mine) } else { from(r) };
            lane.reduce(
                scratch(host, column, piece),
                locals.iter().map(term).collect(),
                inner.clone(),
                false,
            );
        }
    };
    let phase = across.phase(hosts);
    pipeline::run(place, cells.pieces, phase + 1, phase, |lane, stage, piece| {
        let Some(step) = stage.checked_sub(1) else {
            for host in place.hosts_from_next() {
                for (local, columns) in place.others() {
                    columns.for_each(|column| lane.send(local, input(host, column, piece)));
                }
            }
            return;
        };
        if step == 0 && locals.len() > 1 {
            sums(lane, piece);
        }
        for column in own.clone() {
            let work = |hosts: Range<usize>| scratch(hosts.start, column, piece);
            let raw = |hosts: Range<usize>| input(hosts.start, column, piece);
            let rail = Rail {
                hosts,
                at: place.host,
                rank: &|host| place.handler(host, column),
                value: if locals.len() > 1 { &work } else { &raw },
                work: &work,
                out: &raw,
                own: cells.own(Space::Output, column, piece),
                fold: &fold,
            };
            across.reduce_scatter(lane, step, &rail);
        }
    })
}

pub(super) fn all_gather(place: &Place<'_>, across: Across) -> Program {
    let cells = Cells::new(place, across);
    let (hosts, own) = (place.hosts.len(), place.own());
    let phase = across.phase(hosts);
    pipeline::run(place, cells.pieces, phase + 1, 1, |lane, stage, piece| {
        let output = |host, column| span(Space::Output, cells.piece(host, column, piece.number));
        // What other local ranks passed on in the stage before.
        if let Some(before) = stage.checked_sub(1) {
            for (local, columns) in place.others_back() {
                for host in across.gathered(before, hosts, place.host) {
                    columns.clone().for_each(|column| lane.recv(local, output(host, column)));
                }
            }
        }
        if stage == phase {
            return;
        }
        for column in own.clone() {
            let out = |hosts: Range<usize>| output(hosts.start, column);
            let rail = Rail {
                hosts,
                at: place.host,
                rank: &|host| place.handler(host, column),
                value: &out,
                work: &out,
                out: &out,
                own: cells.own(Space::Input, column, piece),
                fold: &Fold::identity,
            };
            across.all_gather(lane, stage, &rail);
        }
        for host in across.gathered(stage, hosts, place.host) {
            for column in own.clone() {
                let src = match stage {
                    0 => cells.own(Space::Input, column, piece),
                    _ => output(host, column),
                };
                place.others().for_each(|(to, _)| lane.send(to, src));
                if stage == 0 {
                    lane.copy(src, output(host, column));
                }
            }
        }
    })
}
