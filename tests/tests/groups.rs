//! Groups of a communicator's ranks come and go without a trace in the memory that they shared with it.

use std::sync::Barrier;

use nd_comm::choose::Chooser;
use nd_tests::worlds::{Kind, each, world};

#[test]
fn who_leaves_late_writes_into_nobodys_new_memory() {
    for kind in [Kind::Local, Kind::Shm, Kind::Tcp] {
        let gate = Barrier::new(2);
        each(&world(&kind, 2, &Chooser::default()), |comm| {
            let group = comm.split(0, 0).expect("a group");
            group.barrier().expect("a barrier");
            if comm.rank() == 0 {
                drop(group);
                // Pages wherever there is room: where the group's inbox was, if that is free.
                let pages: Vec<_> = (0..1024).map(|_| comm.alloc::<u8>(4096).expect("memory")).collect();
                gate.wait();
                gate.wait();
                assert!(pages.iter().all(|page| page.iter().all(|byte| *byte == 0)), "{kind:?}");
            } else {
                gate.wait();
                drop(group);
                gate.wait();
            }
        });
    }
}
