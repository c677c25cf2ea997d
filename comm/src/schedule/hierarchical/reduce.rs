//! All-reduce and reduce: reduce-scatter inside the hosts, along the rails, and back.

use std::cell::OnceCell;
use std::ops::Range;

use super::super::buffers::split_start;
use super::super::lane::{Lane, from};
use super::super::{Alias, Program, Space, Span, Term};
use super::across::{Across, Rail};
use super::columns::{Place, span};
use super::pipeline::{self, Piece};
use crate::fold::Fold;

/// A message along a rail is at least this fraction of the pieces that the shape asks for: with many hosts pieces
/// grow, so that messages do not become small.
const SMALLEST: u64 = 8;

/// One buffer of the whole length, cut into columns, these into pieces, these into a block for each host.
struct Buffer<'a> {
    place: &'a Place<'a>,
    len: u64,
    pieces: usize,
}

impl<'a> Buffer<'a> {
    /// `each`: instructions for one column of a piece.
    fn new(place: &'a Place<'a>, each: usize) -> Buffer<'a> {
        let len = place.shape.counts.part(0);
        let columns = &place.columns;
        let longest = (0..columns.count()).map(|c| columns.range(c, len)).map(|r| r.end - r.start).max();
        let ((most, locals), hosts) = (place.most(), place.hosts.len() as u64);
        let each = each * most + 2 * locals;
        let piece = place.shape.piece.max((place.shape.piece / SMALLEST).saturating_mul(hosts));
        Buffer { place, len, pieces: pipeline::pieces(longest.unwrap_or(0), piece, each) }
    }

    /// A piece of a column.
    fn piece(&self, column: usize, piece: Piece) -> Range<u64> {
        let whole = self.place.columns.range(column, self.len);
        let at = |piece| whole.start + split_start(whole.end - whole.start, self.pieces, piece);
        at(piece.number)..at(piece.number + 1)
    }

    /// Elements of a column's longest piece.
    fn longest(&self, column: usize) -> u64 {
        let whole = self.place.columns.range(column, self.len);
        split_start(whole.end - whole.start, self.pieces, 1)
    }

    /// Where in the scratch a column's memory for a piece begins, when each column has `times` its longest piece.
    fn scratch(&self, column: usize, piece: Piece, times: u64) -> u64 {
        let own = self.place.own();
        let elements = |columns: Range<usize>| columns.map(|c| self.longest(c)).sum::<u64>();
        times * (piece.slot as u64 * elements(own.clone()) + elements(own.start..column))
    }

    /// The first stage: sends every local rank the input for its columns.
    fn scatter(&self, lane: &mut Lane<'_>, piece: Piece) {
        for (local, columns) in self.place.others() {
            columns.for_each(|c| lane.send(local, span(Space::Input, self.piece(c, piece))));
        }
    }

    /// The sum over this host of a column of the own ones, in the scratch from `start` on.
    fn sum(&self, lane: &mut Lane<'_>, column: usize, piece: Piece, start: u64) {
        let (locals, own) = (self.place.locals, span(Space::Input, self.piece(column, piece)));
        if locals.len() > 1 {
            let term = |&r: &u32| if r == self.place.rank { Term::Own(own) } else { from(r) };
            let (terms, fold) = (locals.iter().map(term).collect(), Fold::balanced(locals.len()));
            lane.reduce(Span::scratch(start, own.len), terms, fold, false);
        }
    }
}

/// Blocks of `whole`, one for each of `hosts`.
fn blocks(whole: Span, hosts: usize) -> impl Fn(Range<usize>) -> Span {
    move |blocks| {
        let at = |block| split_start(whole.len, hosts, block);
        whole.slice(&(at(blocks.start)..at(blocks.end)))
    }
}

/// The canonical order over the hosts, made when it is first needed: only some ways across need it.
pub(super) fn canonical(hosts: usize) -> impl Fn() -> Fold {
    let fold = OnceCell::new();
    move || fold.get_or_init(|| Fold::canonical(&vec![1; hosts])).clone()
}

fn all_reduce_buffer<'a>(place: &'a Place<'a>, across: Across) -> Buffer<'a> {
    let hosts = place.hosts.len();
    let each = match across {
        Across::Direct | Across::Tree => 2 * hosts,
        _ => 2 * across.all_reduce_steps(hosts),
    };
    Buffer::new(place, each)
}

/// Whether in every piece of every column each host has a block, so that each sends the same messages.
pub(super) fn no_block_is_empty(place: &Place<'_>) -> bool {
    let hosts = place.hosts.len();
    let buffer = all_reduce_buffer(place, Across::Direct);
    // The last of the pieces and blocks are the shortest.
    let last = |column: usize| {
        let whole = place.columns.range(column, buffer.len);
        let len = whole.end - whole.start;
        let piece = len - split_start(len, buffer.pieces, buffer.pieces - 1);
        piece - split_start(piece, hosts, hosts - 1)
    };
    buffer.len == 0 || (0..place.columns.count()).all(|column| last(column) > 0)
}

pub(super) fn all_reduce(place: &Place<'_>, across: Across) -> Program {
    let (hosts, alone) = (place.hosts.len(), place.locals.len() == 1);
    let buffer = all_reduce_buffer(place, across);
    let steps = across.all_reduce_steps(hosts);
    let fold = canonical(hosts);
    // Doubling needs memory beside the value, twice, see there.
    let times = if across == Across::Doubling { 3 } else { 1 };
    // With two hosts of one rank each would wait for the other to read the input before it stores the result.
    let aside = across == Across::Doubling && hosts == 2 && place.shape.alias == Alias::InPlace;
    let outer = |lane: &mut Lane<'_>, step: usize, column: usize, piece: Piece| {
        let range = buffer.piece(column, piece);
        let (input, output) = (span(Space::Input, range.clone()), span(Space::Output, range));
        let start = buffer.scratch(column, piece, times);
        let scratch = Span::scratch(start, input.len);
        let value = if alone && !aside { input } else { scratch };
        if step == 0 {
            buffer.sum(lane, column, piece, start);
            if alone && aside {
                lane.copy(input, scratch);
            }
        }
        let work =
            if across == Across::Doubling { Span::scratch(start + input.len, input.len) } else { scratch };
        let rail = Rail {
            hosts,
            at: place.host,
            rank: &|host| place.handler(host, column),
            value: &blocks(value, hosts),
            work: &blocks(work, hosts),
            out: &blocks(output, hosts),
            own: blocks(output, hosts)(place.host..place.host + 1),
            fold: &fold,
        };
        across.all_reduce(lane, step, &rail);
    };
    let held = if across == Across::Doubling { steps } else { across.phase(hosts) };
    pipeline::run(place, buffer.pieces, steps + 2, held, |lane, stage, piece| {
        let output = |column| span(Space::Output, buffer.piece(column, piece));
        if stage == 0 {
            buffer.scatter(lane, piece);
        } else if stage <= steps {
            place.own().for_each(|column| outer(lane, stage - 1, column, piece));
        }
        if stage == steps {
            place.others().for_each(|(to, _)| place.own().for_each(|column| lane.send(to, output(column))));
        }
        if stage == steps + 1 {
            for (local, columns) in place.others_back() {
                columns.for_each(|column| lane.recv(local, output(column)));
            }
        }
    })
}

/// The handlers of every host reduce one block each and give it to those on the root's host, these to the root: so
/// no host sends more than the buffer once, and the root's receives it less than twice.
pub(super) fn reduce(place: &Place<'_>) -> Program {
    let (hosts, alone) = (place.hosts.len(), place.locals.len() == 1);
    let buffer = Buffer::new(place, 2 * hosts);
    let root = place.shape.root;
    let root_host = place.shape.layout.host_of(root as usize);
    let (is_root, with_root) = (place.rank == root, place.host == root_host);
    let fold = canonical(hosts);
    // Sums, and beside them what is gathered.
    let times = 2;
    let whole = |column: usize, piece: Piece| {
        let range = buffer.piece(column, piece);
        let start = buffer.scratch(column, piece, times) + (range.end - range.start);
        if is_root { span(Space::Output, range) } else { Span::scratch(start, range.end - range.start) }
    };
    let across = |lane: &mut Lane<'_>, step: usize, column: usize, piece: Piece| {
        let input = span(Space::Input, buffer.piece(column, piece));
        let start = buffer.scratch(column, piece, times);
        if step == 0 {
            buffer.sum(lane, column, piece, start);
        }
        let scratch = Span::scratch(start, input.len);
        let gathered = blocks(whole(column, piece), hosts);
        let own = gathered(place.host..place.host + 1);
        let rail = Rail {
            hosts,
            at: place.host,
            rank: &|host| place.handler(host, column),
            value: &blocks(if alone { input } else { scratch }, hosts),
            work: &blocks(scratch, hosts),
            out: &gathered,
            own,
            fold: &fold,
        };
        Across::Direct.reduce_scatter(lane, step, &rail);
        if step == 1 && !with_root {
            lane.send(place.handler(root_host, column), own);
        }
    };
    let gather = |lane: &mut Lane<'_>, column: usize, piece: Piece| {
        let whole = whole(column, piece);
        for host in place.hosts_from_next().filter(|&host| host != place.host) {
            lane.recv(place.handler(host, column), blocks(whole, hosts)(host..host + 1));
        }
        if !is_root {
            lane.send(root, whole);
        }
    };
    pipeline::run(place, buffer.pieces, 5, 4, |lane, stage, piece| match stage {
        0 => buffer.scatter(lane, piece),
        1 | 2 => place.own().for_each(|column| across(lane, stage - 1, column, piece)),
        3 if with_root => place.own().for_each(|column| gather(lane, column, piece)),
        4 if is_root => {
            for (local, columns) in place.others_back() {
                columns.for_each(|c| lane.recv(local, span(Space::Output, buffer.piece(c, piece))));
            }
        }
        _ => {}
    })
}
