//! Every collective once, for ranks that have been through something.

use nd_comm::prelude::*;

/// Every collective that there is, with the right results, short and long.
///
/// # Errors
/// That of the call that fails.
///
/// # Panics
/// When a result is wrong.
pub fn all_collectives(comm: &Communicator) -> Result<()> {
    let (me, n) = (comm.rank() as u64, comm.world_size() as u64);
    let sum = n * (n + 1) / 2;
    for len in [1usize, 5000] {
        let mine = vec![me + 1; len];
        let mut x = mine.clone();
        comm.all_reduce(&mut x, ReduceOp::Sum)?;
        assert!(x.iter().all(|&x| x == sum), "all_reduce");
        let mut all = vec![0; len * n as usize];
        comm.all_gather(&mine, &mut all)?;
        assert!(all.chunks(len).zip(1..).all(|(part, r)| part.iter().all(|&x| x == r)), "all_gather");
        let mut part = vec![0; len];
        comm.reduce_scatter(&all, &mut part, ReduceOp::Sum)?;
        assert!(part.iter().all(|&x| x == n * (me + 1)), "reduce_scatter");
        let mut back = vec![0; len * n as usize];
        comm.all_to_all(&all, &mut back)?;
        assert!(back.iter().all(|&x| x == me + 1), "all_to_all");
        for root in 0..n as usize {
            let mut x = mine.clone();
            comm.broadcast(&mut x, root)?;
            assert!(x.iter().all(|&x| x == root as u64 + 1), "broadcast");
            let mut x = vec![0; len];
            comm.reduce(&mine, &mut x, ReduceOp::Sum, root)?;
            assert!(comm.rank() != root || x.iter().all(|&x| x == sum), "reduce");
            let mut gathered = vec![0; if comm.rank() == root { len * n as usize } else { 0 }];
            comm.gather(&mine, &mut gathered, root)?;
            assert!(comm.rank() != root || gathered == all, "gather");
            let mut part = vec![0; len];
            comm.scatter(&gathered, &mut part, root)?;
            assert_eq!(part, mine, "scatter");
        }
        if n > 1 {
            let (to, from) = ((me + 1) % n, (me + n - 1) % n);
            let mut got = vec![0; len];
            comm.group(|g| {
                g.send(&mine, to as usize)?;
                g.recv(&mut got, from as usize)
            })?;
            assert!(got.iter().all(|&x| x == from + 1), "send and recv");
        }
    }
    comm.barrier()
}
