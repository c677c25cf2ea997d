//! The ring by itself; the model checker in `nd-tests` looks at what readers see meanwhile.

use super::ring::{Entry, New, Ring};
use crate::exec::stamp::Stamp;

fn entry(sequence: u32) -> Entry {
    let stamp = Stamp { sequence, collective: 1, count: sequence.into(), root: sequence, ..Stamp::default() };
    Entry { number: 0, stamp, peer: sequence, sends: true, bytes: sequence.into(), entered: 0, done: 0 }
}

fn push(ring: &Ring, entry: Entry) {
    let Entry { stamp, peer, sends, bytes, entered, .. } = entry;
    ring.push(New { stamp: &stamp, peer, sends, bytes }, entered);
}

#[test]
fn the_last_are_kept_in_order() {
    for len in [1, 3, 4] {
        let ring = Ring::new(len);
        assert_eq!(ring.entries(), []);
        for i in 1..=10 {
            push(&ring, entry(i));
            ring.waits(|| 7);
            ring.waits(|| 8);
            ring.done(1, 100 + u64::from(i));
        }
        let kept: Vec<u32> = ring.entries().iter().map(|e| e.stamp.sequence).collect();
        assert_eq!(kept, (11 - len as u32..=10).collect::<Vec<_>>());
        let last = *ring.entries().last().unwrap();
        assert_eq!(last, Entry { number: 10, entered: 7, done: 110, ..entry(10) });
    }
}

#[test]
fn a_group_is_done_as_a_whole() {
    let ring = Ring::new(4);
    (1..=6).for_each(|i| push(&ring, entry(i)));
    ring.done(3, 9);
    assert_eq!(ring.entries().iter().map(|e| e.done).collect::<Vec<_>>(), [0, 9, 9, 9]);
    assert_eq!(ring.last(2).map(|e| e.number).collect::<Vec<_>>(), [5, 6]);
    ring.done(100, 10);
    assert_eq!(ring.last(100).count(), 4);
    assert!(ring.entries().iter().all(|e| e.done == 10));
}

#[test]
fn who_reads_meanwhile_sees_whole_entries() {
    let ring = Ring::new(8);
    std::thread::scope(|s| {
        s.spawn(|| (1..=200_000).for_each(|i| push(&ring, entry(i))));
        while ring.newest() < 200_000 {
            for e in ring.entries() {
                let n = e.stamp.sequence;
                assert_eq!((e.number, e.stamp.count, e.stamp.root, e.peer), (n.into(), n.into(), n, n));
            }
        }
    });
}
