//! The blocking calls.
//!
//! All of them: every rank of the communicator makes the same call in the same order (the two ranks concerned, for
//! [`Communicator::send`] and [`Communicator::recv`]). Lengths are in elements; a length of 0 is allowed and still
//! takes its turn. Wrong arguments are [`Error::InvalidArgument`](crate::Error::InvalidArgument) and leave the
//! communicator usable; after any other error it is not.
#![allow(unsafe_code)] // hands borrowed buffers to the engine

use super::Communicator;
use crate::error::Result;
use crate::exec::stamp::Within;
use crate::number::{Element, ReduceOp};

impl Communicator {
    /// Every rank's `buffer` becomes the reduction of all.
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.arguments().all_reduce(buffer.into(), op)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// Every rank's `recv` becomes the reduction of all `send`s, of the same length.
    pub fn all_reduce_into<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.arguments().all_reduce_into(send.into(), recv.into(), op)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// Rank r's `recv` becomes the r-th of `world_size` equal parts of the reduction of all `send`s.
    pub fn reduce_scatter<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.arguments().reduce_scatter(send.into(), recv.into(), op)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// The r-th of `world_size` equal parts of rank r's `buffer` becomes that part of the reduction of all; the other
    /// parts are undefined afterwards.
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.arguments().reduce_scatter_in_place(buffer.into(), op)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// As [`Communicator::reduce_scatter`], with parts of `counts[r]` elements, the same `counts` on every rank.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        let call = self.arguments().reduce_scatter_v(send.into(), recv.into(), counts, op)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// Every rank's `recv` becomes all `send`s, of the same length, one after the other.
    pub fn all_gather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        let call = self.arguments().all_gather(send.into(), recv.into())?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// The r-th of `world_size` equal parts of every rank's `buffer` becomes that of rank r.
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let call = self.arguments().all_gather_in_place(buffer.into())?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// As [`Communicator::all_gather`], with parts of `counts[r]` elements, the same `counts` on every rank.
    pub fn all_gather_v<T: Element>(&self, send: &[T], recv: &mut [T], counts: &[usize]) -> Result<()> {
        let call = self.arguments().all_gather_v(send.into(), recv.into(), counts)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// As [`Communicator::all_gather`], or all_gather_v where there are `counts`; part of something else.
    pub(super) fn gather_within<T: Element>(
        &self,
        within: Within,
        send: &[T],
        recv: &mut [T],
        counts: Option<&[usize]>,
    ) -> Result<()> {
        let arguments = self.arguments();
        let mut call = match counts {
            None => arguments.all_gather(send.into(), recv.into())?,
            Some(counts) => arguments.all_gather_v(send.into(), recv.into(), counts)?,
        };
        call.within = within;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// Every rank's `buffer` becomes the root's.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let call = self.arguments().broadcast(buffer.into(), root)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// The root's `recv` becomes the reduction of all `send`s; the other ranks' is not used and may be empty.
    pub fn reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp, root: usize) -> Result<()> {
        let call = self.arguments().reduce(send.into(), recv.into(), op, root)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// The root's `buffer` becomes the reduction of all; the other ranks' stay as they are.
    pub fn reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp, root: usize) -> Result<()> {
        let call = self.arguments().reduce_in_place(buffer.into(), op, root)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// The root's `recv` becomes all `send`s, one after the other; the other ranks' is not used and may be empty.
    pub fn gather<T: Element>(&self, send: &[T], recv: &mut [T], root: usize) -> Result<()> {
        let call = self.arguments().gather(send.into(), recv.into(), root)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// As [`Communicator::gather`]: on the root `buffer` holds all parts, its own in its place; on the others it is the part
    /// they give.
    pub fn gather_in_place<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let call = self.arguments().gather_in_place(buffer.into(), root)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// As [`Communicator::gather`], with parts of `counts[r]` elements; only the root's `counts` are used.
    pub fn gather_v<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<()> {
        let call = self.arguments().gather_v(send.into(), recv.into(), counts, root)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// Rank r's `recv` becomes the r-th of `world_size` equal parts of the root's `send`; the other ranks' is not used and
    /// may be empty.
    pub fn scatter<T: Element>(&self, send: &[T], recv: &mut [T], root: usize) -> Result<()> {
        let call = self.arguments().scatter(send.into(), recv.into(), root)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// As [`Communicator::scatter`]: on the root `buffer` holds all parts and its own stays; on the others it is the part they
    /// get.
    pub fn scatter_in_place<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let call = self.arguments().scatter_in_place(buffer.into(), root)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// As [`Communicator::scatter`], with parts of `counts[r]` elements; only the root's `counts` are used.
    pub fn scatter_v<T: Element>(
        &self,
        send: &[T],
        counts: &[usize],
        recv: &mut [T],
        root: usize,
    ) -> Result<()> {
        let call = self.arguments().scatter_v(send.into(), counts, recv.into(), root)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// The q-th of `world_size` equal parts of rank r's `recv` becomes the r-th part of rank q's `send`.
    pub fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        let call = self.arguments().all_to_all(send.into(), recv.into())?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// As [`Communicator::all_to_all`], with one buffer.
    pub fn all_to_all_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let call = self.arguments().all_to_all_in_place(buffer.into())?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// As [`Communicator::all_to_all`], with parts of `send_counts[q]` elements for rank q and `recv_counts[q]` from it.
    pub fn all_to_all_v<T: Element>(
        &self,
        send: &[T],
        send_counts: &[usize],
        recv: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        let call = self.arguments().all_to_all_v(send.into(), send_counts, recv.into(), recv_counts)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// Sends `buffer` to rank `to`, which receives as many elements.
    pub fn send<T: Element>(&self, buffer: &[T], to: usize) -> Result<()> {
        let call = self.arguments().send(buffer.into(), to)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// Receives `buffer.len()` elements from rank `from`.
    pub fn recv<T: Element>(&self, buffer: &mut [T], from: usize) -> Result<()> {
        let call = self.arguments().recv(buffer.into(), from)?;
        // SAFETY: the buffers are borrowed until this returns, and were checked.
        unsafe { self.perform(&[call]) }
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: there are no buffers.
        unsafe { self.perform(&[self.arguments().barrier()]) }
    }
}
