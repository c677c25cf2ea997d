//! The ring of the last calls: who reads while a call is put in sees whole entries, of the calls that were put in.

#[path = "../../../comm/src/recorder/ring.rs"]
#[allow(dead_code)] // the recorder uses the rest
mod ring;

mod clock {
    pub type Ticks = u64;
}

use loom::sync::Arc;
use loom::thread;

use self::ring::{New, Ring};
use crate::all_orders;
use crate::exec::stamp::Stamp;

fn push(ring: &Ring, number: u32) {
    let stamp = Stamp { sequence: number, count: number.into(), root: number, ..Stamp::default() };
    ring.push(
        New { stamp: &stamp, peer: number, sends: number.is_multiple_of(2), bytes: number.into() },
        number.into(),
    );
}

#[test]
fn who_reads_meanwhile_sees_whole_entries() {
    all_orders(2, || {
        let ring = Arc::new(Ring::new(1));
        push(&ring, 1);
        let writer = thread::spawn({
            let ring = ring.clone();
            move || push(&ring, 2)
        });
        let (newest, entries) = (ring.newest(), ring.entries());
        assert!(newest <= 2 && entries.len() <= 1);
        for e in entries {
            let n = e.stamp.sequence;
            assert!([1, 2].contains(&n));
            let all = (e.number, e.stamp.count, e.stamp.root, e.peer, e.sends, e.bytes, e.entered);
            assert_eq!(all, (n.into(), n.into(), n, n, n % 2 == 0, n.into(), n.into()));
        }
        writer.join().expect("no panic");
        assert_eq!(ring.entries().len(), 1);
    });
}
