//! Broadcast: the root gives each local rank its columns, these go from host to host along the rails, and each host
//! gathers them.
//!
//! Along a chain no host sends the buffer more than once; along a binomial tree it takes log2 rounds.

use super::super::buffers::split_start;
use super::super::lane::Lane;
use super::super::{Program, Space};
use super::across::Across;
use super::columns::{Place, span};
use super::pipeline;

/// Whom a host gets the data from and whom it passes them on to.
struct Spread {
    parent: Option<usize>,
    children: Vec<usize>,
}

impl Spread {
    /// For the host `place.host`, from `root` on.
    fn new(place: &Place<'_>, root: usize, across: Across) -> Spread {
        let hosts = place.hosts.len();
        let distance = (place.host + hosts - root) % hosts;
        let host = |distance: usize| (root + distance) % hosts;
        if across != Across::Tree {
            let parent = distance.checked_sub(1).map(host);
            let next = distance + 1;
            return Spread { parent, children: (next..hosts).take(1).map(host).collect() };
        }
        // In round k those nearer than 2^k serve those as far again.
        let round = |distance: usize| distance.checked_ilog2().map_or(0, |k| k + 1);
        let children = (round(distance)..usize::BITS).map(|k| distance + (1 << k)).take_while(|&d| d < hosts);
        let parent = distance.checked_ilog2().map(|k| host(distance - (1 << k)));
        Spread { parent, children: children.map(host).collect() }
    }
}

pub(super) fn broadcast(place: &Place<'_>, across: Across) -> Program {
    let (shape, columns) = (place.shape, &place.columns);
    let len = shape.counts.part(0);
    let root = shape.root;
    let root_host = shape.layout.host_of(root as usize);
    let spread = Spread::new(place, root_host, across);
    let is_root = place.rank == root;
    let (most, locals) = place.most();
    let each = most * (2 + locals) + 2 * locals;
    let longest = (0..columns.count()).map(|c| columns.range(c, len)).map(|r| r.end - r.start).max();
    let pieces = pipeline::pieces(longest.unwrap_or(0), shape.piece, each);
    let piece_of = |space, column, piece: usize| {
        let whole = columns.range(column, len);
        let at = |piece| whole.start + split_start(whole.end - whole.start, pieces, piece);
        span(space, at(piece)..at(piece + 1))
    };
    let source = if is_root { Space::Input } else { Space::Output };
    let pass_on = |lane: &mut Lane<'_>, piece: usize| {
        for column in place.own() {
            let data = piece_of(source, column, piece);
            match spread.parent {
                Some(parent) => lane.recv(place.handler(parent, column), data),
                None if !is_root => lane.recv(root, data),
                None => {}
            }
            spread.children.iter().for_each(|&host| lane.send(place.handler(host, column), data));
        }
    };
    let give_locals = |lane: &mut Lane<'_>, piece: usize| {
        for column in place.own() {
            let data = piece_of(source, column, piece);
            let needy = place.others().map(|(local, _)| local).filter(|&local| local != root);
            needy.for_each(|local| lane.send(local, data));
        }
    };
    pipeline::run(place, pieces, 2, 1, |lane, stage, piece| match (stage, is_root) {
        (0, true) => {
            for (local, columns) in place.others() {
                columns.for_each(|column| lane.send(local, piece_of(source, column, piece.number)));
            }
            pass_on(lane, piece.number);
        }
        (0, false) => {
            pass_on(lane, piece.number);
            give_locals(lane, piece.number);
        }
        (_, true) => {
            give_locals(lane, piece.number);
            for column in 0..columns.count() {
                let [from, to] = [Space::Input, Space::Output].map(|s| piece_of(s, column, piece.number));
                lane.copy(from, to);
            }
        }
        (_, false) => {
            for (local, columns) in place.others_back() {
                columns.for_each(|c| lane.recv(local, piece_of(Space::Output, c, piece.number)));
            }
        }
    })
}
