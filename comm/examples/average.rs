//! Averages a vector over all ranks: `nd-run -n 4 -- average`.

use nd_comm::prelude::*;

fn main() -> Result<()> {
    // nd-run, torchrun, mpirun, srun and indexed Kubernetes Jobs say which rank this is.
    let comm = Communicator::from_env()?;

    // Any slice will do; ranks of the same host reach memory from `alloc` without a copy.
    let mut gradients = comm.alloc::<f32>(1 << 20)?;
    gradients.fill(comm.rank() as f32);
    comm.all_reduce(&mut gradients, ReduceOp::Avg)?;

    // An asynchronous call takes its buffer and gives it back.
    let pending = comm.all_reduce_start(gradients, ReduceOp::Max)?;
    // … other work …
    let gradients = pending.wait()?;

    // A smaller group: ranks of the same color, numbered by key.
    let pair = comm.split(comm.rank() as u64 / 2, 0)?;
    pair.barrier()?;

    if comm.rank() == 0 {
        println!("the mean of ranks 0 to {} is {}", comm.world_size() - 1, gradients[0]);
    }
    Ok(())
}
