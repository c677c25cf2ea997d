//! One call of a collective on a case's buffers.

use std::ops::{Deref, DerefMut};

use nd_comm::prelude::{Buffer, Communicator, ReduceOp, Result};
use nd_comm::schedule::Collective;

use super::picture::Case;
use super::sample::Sample;

/// Where a buffer lies.
pub enum Memory<T: Sample> {
    /// Peers reach it without a copy.
    Registered(Buffer<T>),
    /// Any memory.
    Plain(Vec<T>),
}

impl<T: Sample> Memory<T> {
    /// `len` elements.
    pub fn new(comm: &Communicator, registered: bool, len: usize) -> Result<Memory<T>> {
        Ok(match registered {
            true => Memory::Registered(comm.alloc(len)?),
            false => Memory::Plain(vec![T::default(); len]),
        })
    }
}

impl<T: Sample> Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Memory::Registered(buffer) => buffer,
            Memory::Plain(vec) => vec,
        }
    }
}

impl<T: Sample> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Memory::Registered(buffer) => buffer,
            Memory::Plain(vec) => vec,
        }
    }
}

/// Performs the call. In place, `recv` is the buffer.
pub fn perform<T: Sample>(
    comm: &Communicator,
    case: &Case,
    op: Option<ReduceOp>,
    send: &[T],
    recv: &mut [T],
) -> Result<()> {
    let (c, all) = (case.count, case.count * case.ranks);
    let (root, here) = (case.root, case.rank == case.root);
    let op = op.unwrap_or(ReduceOp::Sum);
    if case.in_place {
        return match case.collective {
            Collective::AllReduce => comm.all_reduce(&mut recv[..c], op),
            Collective::ReduceScatter => comm.reduce_scatter_in_place(&mut recv[..all], op),
            Collective::AllGather => comm.all_gather_in_place(&mut recv[..all]),
            Collective::Broadcast => comm.broadcast(&mut recv[..c], root),
            Collective::Reduce => comm.reduce_in_place(&mut recv[..c], op, root),
            Collective::Gather => comm.gather_in_place(&mut recv[..if here { all } else { c }], root),
            Collective::Scatter => comm.scatter_in_place(&mut recv[..if here { all } else { c }], root),
            Collective::AllToAll => comm.all_to_all_in_place(&mut recv[..all]),
            Collective::SendRecv | Collective::Barrier => comm.barrier(),
        };
    }
    match case.collective {
        Collective::AllReduce => comm.all_reduce_into(&send[..c], &mut recv[..c], op),
        Collective::ReduceScatter => comm.reduce_scatter(&send[..all], &mut recv[..c], op),
        Collective::AllGather => comm.all_gather(&send[..c], &mut recv[..all]),
        // The call has one buffer: whoever wants two has to copy.
        Collective::Broadcast => {
            if here {
                recv[..c].copy_from_slice(&send[..c]);
            }
            comm.broadcast(&mut recv[..c], root)
        }
        Collective::Reduce => comm.reduce(&send[..c], &mut recv[..c], op, root),
        Collective::Gather => comm.gather(&send[..c], &mut recv[..all], root),
        Collective::Scatter => comm.scatter(&send[..all], &mut recv[..c], root),
        Collective::AllToAll => comm.all_to_all(&send[..all], &mut recv[..all]),
        // nccl-tests' ring: to the next rank, from the one before.
        Collective::SendRecv => comm.group(|g| {
            g.send(&send[..c], (case.rank + 1) % case.ranks)?;
            g.recv(&mut recv[..c], (case.rank + case.ranks - 1) % case.ranks)
        }),
        Collective::Barrier => comm.barrier(),
    }
}
