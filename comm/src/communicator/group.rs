//! Several calls at once.
//!
//! ```
//! # use nd_comm::prelude::*;
//! # fn exchange(comm: &Communicator) -> Result<()> {
//! let peer = comm.rank() ^ 1;
//! let (ours, mut theirs) = ([comm.rank() as u32; 4], [0u32; 4]);
//! // One by one, both ranks would wait for the other to receive.
//! comm.group(|g| {
//!     g.send(&ours, peer)?;
//!     g.recv(&mut theirs, peer)
//! })?;
//! assert_eq!(theirs, [peer as u32; 4]);
//! # Ok(()) }
//! # let ranks = Communicator::local(2)?;
//! # std::thread::scope(|s| for c in &ranks { s.spawn(|| exchange(c).unwrap()); });
//! # Ok::<(), Error>(())
//! ```
#![allow(unsafe_code)] // hands borrowed buffers to the engine

use std::marker::PhantomData;

use super::Communicator;
use super::arguments::Arguments;
use crate::error::Result;
use crate::exec::engine::Call;
use crate::number::{Element, ReduceOp};

/// Calls for which a group has room from the start.
const USUAL: usize = 8;

/// Collects calls; see [`Communicator::group`].
pub struct Group<'b> {
    arguments: Arguments,
    calls: Vec<Call>,
    buffers: PhantomData<&'b mut [u8]>,
}

impl Communicator {
    /// Performs the calls that `collect` makes on the group, all at the same time, and returns when all are done.
    /// Ranks make the same collective calls in the same order, in groups or one by one: a group of two matches two single
    /// calls. Sends and receives match in their order for each pair of ranks, and may also concern the rank itself. If `collect` fails, nothing is performed.
    pub fn group<'b, R>(&self, collect: impl FnOnce(&mut Group<'b>) -> Result<R>) -> Result<R> {
        let calls = Vec::with_capacity(USUAL);
        let mut group = Group { arguments: self.arguments(), calls, buffers: PhantomData };
        let result = collect(&mut group)?;
        // SAFETY: the buffers are borrowed for longer than this call, exclusively where they are written, and were
        // checked.
        unsafe { self.perform(&group.calls)? };
        Ok(result)
    }
}

impl<'b> Group<'b> {
    /// See [`Communicator::all_reduce`].
    pub fn all_reduce<T: Element>(&mut self, buffer: &'b mut [T], op: ReduceOp) -> Result<()> {
        self.calls.push(self.arguments.all_reduce(buffer.into(), op)?);
        Ok(())
    }

    /// See [`Communicator::all_reduce_into`].
    pub fn all_reduce_into<T: Element>(
        &mut self,
        send: &'b [T],
        recv: &'b mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        self.calls.push(self.arguments.all_reduce_into(send.into(), recv.into(), op)?);
        Ok(())
    }

    /// See [`Communicator::reduce_scatter`].
    pub fn reduce_scatter<T: Element>(
        &mut self,
        send: &'b [T],
        recv: &'b mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        self.calls.push(self.arguments.reduce_scatter(send.into(), recv.into(), op)?);
        Ok(())
    }

    /// See [`Communicator::reduce_scatter_in_place`].
    pub fn reduce_scatter_in_place<T: Element>(&mut self, buffer: &'b mut [T], op: ReduceOp) -> Result<()> {
        self.calls.push(self.arguments.reduce_scatter_in_place(buffer.into(), op)?);
        Ok(())
    }

    /// See [`Communicator::reduce_scatter_v`].
    pub fn reduce_scatter_v<T: Element>(
        &mut self,
        send: &'b [T],
        recv: &'b mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        self.calls.push(self.arguments.reduce_scatter_v(send.into(), recv.into(), counts, op)?);
        Ok(())
    }

    /// See [`Communicator::all_gather`].
    pub fn all_gather<T: Element>(&mut self, send: &'b [T], recv: &'b mut [T]) -> Result<()> {
        self.calls.push(self.arguments.all_gather(send.into(), recv.into())?);
        Ok(())
    }

    /// See [`Communicator::all_gather_in_place`].
    pub fn all_gather_in_place<T: Element>(&mut self, buffer: &'b mut [T]) -> Result<()> {
        self.calls.push(self.arguments.all_gather_in_place(buffer.into())?);
        Ok(())
    }

    /// See [`Communicator::all_gather_v`].
    pub fn all_gather_v<T: Element>(
        &mut self,
        send: &'b [T],
        recv: &'b mut [T],
        counts: &[usize],
    ) -> Result<()> {
        self.calls.push(self.arguments.all_gather_v(send.into(), recv.into(), counts)?);
        Ok(())
    }

    /// See [`Communicator::broadcast`].
    pub fn broadcast<T: Element>(&mut self, buffer: &'b mut [T], root: usize) -> Result<()> {
        self.calls.push(self.arguments.broadcast(buffer.into(), root)?);
        Ok(())
    }

    /// See [`Communicator::reduce`].
    pub fn reduce<T: Element>(
        &mut self,
        send: &'b [T],
        recv: &'b mut [T],
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        self.calls.push(self.arguments.reduce(send.into(), recv.into(), op, root)?);
        Ok(())
    }

    /// See [`Communicator::reduce_in_place`].
    pub fn reduce_in_place<T: Element>(
        &mut self,
        buffer: &'b mut [T],
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        self.calls.push(self.arguments.reduce_in_place(buffer.into(), op, root)?);
        Ok(())
    }

    /// See [`Communicator::gather`].
    pub fn gather<T: Element>(&mut self, send: &'b [T], recv: &'b mut [T], root: usize) -> Result<()> {
        self.calls.push(self.arguments.gather(send.into(), recv.into(), root)?);
        Ok(())
    }

    /// See [`Communicator::gather_in_place`].
    pub fn gather_in_place<T: Element>(&mut self, buffer: &'b mut [T], root: usize) -> Result<()> {
        self.calls.push(self.arguments.gather_in_place(buffer.into(), root)?);
        Ok(())
    }

    /// See [`Communicator::gather_v`].
    pub fn gather_v<T: Element>(
        &mut self,
        send: &'b [T],
        recv: &'b mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<()> {
        self.calls.push(self.arguments.gather_v(send.into(), recv.into(), counts, root)?);
        Ok(())
    }

    /// See [`Communicator::scatter`].
    pub fn scatter<T: Element>(&mut self, send: &'b [T], recv: &'b mut [T], root: usize) -> Result<()> {
        self.calls.push(self.arguments.scatter(send.into(), recv.into(), root)?);
        Ok(())
    }

    /// See [`Communicator::scatter_in_place`].
    pub fn scatter_in_place<T: Element>(&mut self, buffer: &'b mut [T], root: usize) -> Result<()> {
        self.calls.push(self.arguments.scatter_in_place(buffer.into(), root)?);
        Ok(())
    }

    /// See [`Communicator::scatter_v`].
    pub fn scatter_v<T: Element>(
        &mut self,
        send: &'b [T],
        counts: &[usize],
        recv: &'b mut [T],
        root: usize,
    ) -> Result<()> {
        self.calls.push(self.arguments.scatter_v(send.into(), counts, recv.into(), root)?);
        Ok(())
    }

    /// See [`Communicator::all_to_all`].
    pub fn all_to_all<T: Element>(&mut self, send: &'b [T], recv: &'b mut [T]) -> Result<()> {
        self.calls.push(self.arguments.all_to_all(send.into(), recv.into())?);
        Ok(())
    }

    /// See [`Communicator::all_to_all_in_place`].
    pub fn all_to_all_in_place<T: Element>(&mut self, buffer: &'b mut [T]) -> Result<()> {
        self.calls.push(self.arguments.all_to_all_in_place(buffer.into())?);
        Ok(())
    }

    /// See [`Communicator::all_to_all_v`].
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &'b [T],
        send_counts: &[usize],
        recv: &'b mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        self.calls.push(self.arguments.all_to_all_v(send.into(), send_counts, recv.into(), recv_counts)?);
        Ok(())
    }

    /// See [`Communicator::send`].
    pub fn send<T: Element>(&mut self, buffer: &'b [T], to: usize) -> Result<()> {
        self.calls.push(self.arguments.send(buffer.into(), to)?);
        Ok(())
    }

    /// See [`Communicator::recv`].
    pub fn recv<T: Element>(&mut self, buffer: &'b mut [T], from: usize) -> Result<()> {
        self.calls.push(self.arguments.recv(buffer.into(), from)?);
        Ok(())
    }
}
