//! The asynchronous calls: they take buffers ([`Owned`]: a `Vec`, a boxed slice, a
//! [`Buffer`](crate::buffer::Buffer)) and give them back when waited for.
//!
//! Started calls are performed in their order, each when the one before is done, and before any later blocking call.
//! So two ranks that each start a receive and then send wait for each other: put exchanges into a
//! [`group`](Communicator::group). An error that is found at once gives
//! the buffers back too.
#![allow(unsafe_code)] // hands owned buffers to the worker

use super::Communicator;
use super::pending::Started;
use crate::buffer::Owned;
use crate::number::{Element, ReduceOp};

impl Communicator {
    /// Starts [`Communicator::all_reduce`].
    pub fn all_reduce_start<T: Element, B: Owned<T>>(&self, mut buffer: B, op: ReduceOp) -> Started<B> {
        let call = self.arguments().all_reduce(buffer.elements_mut().into(), op);
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, buffer) }
    }

    /// Starts [`Communicator::all_reduce_into`].
    pub fn all_reduce_into_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        mut recv: R,
        op: ReduceOp,
    ) -> Started<(S, R)> {
        let call = self.arguments().all_reduce_into(send.elements().into(), recv.elements_mut().into(), op);
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, (send, recv)) }
    }

    /// Starts [`Communicator::reduce_scatter`].
    pub fn reduce_scatter_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        mut recv: R,
        op: ReduceOp,
    ) -> Started<(S, R)> {
        let call = self.arguments().reduce_scatter(send.elements().into(), recv.elements_mut().into(), op);
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, (send, recv)) }
    }

    /// Starts [`Communicator::reduce_scatter_in_place`].
    pub fn reduce_scatter_in_place_start<T: Element, B: Owned<T>>(
        &self,
        mut buffer: B,
        op: ReduceOp,
    ) -> Started<B> {
        let call = self.arguments().reduce_scatter_in_place(buffer.elements_mut().into(), op);
        // SAFETY: the call is about this buffer alone.
        unsafe { self.start(call, buffer) }
    }

    /// Starts [`Communicator::reduce_scatter_v`].
    pub fn reduce_scatter_v_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        mut recv: R,
        counts: &[usize],
        op: ReduceOp,
    ) -> Started<(S, R)> {
        let call =
            self.arguments().reduce_scatter_v(send.elements().into(), recv.elements_mut().into(), counts, op);
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, (send, recv)) }
    }

    /// Starts [`Communicator::all_gather`].
    pub fn all_gather_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        mut recv: R,
    ) -> Started<(S, R)> {
        let call = self.arguments().all_gather(send.elements().into(), recv.elements_mut().into());
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, (send, recv)) }
    }

    /// Starts [`Communicator::all_gather_in_place`].
    pub fn all_gather_in_place_start<T: Element, B: Owned<T>>(&self, mut buffer: B) -> Started<B> {
        let call = self.arguments().all_gather_in_place(buffer.elements_mut().into());
        // SAFETY: the call is about this buffer alone.
        unsafe { self.start(call, buffer) }
    }

    /// Starts [`Communicator::all_gather_v`].
    pub fn all_gather_v_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        mut recv: R,
        counts: &[usize],
    ) -> Started<(S, R)> {
        let call = self.arguments().all_gather_v(send.elements().into(), recv.elements_mut().into(), counts);
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, (send, recv)) }
    }

    /// Starts [`Communicator::broadcast`].
    pub fn broadcast_start<T: Element, B: Owned<T>>(&self, mut buffer: B, root: usize) -> Started<B> {
        let call = self.arguments().broadcast(buffer.elements_mut().into(), root);
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, buffer) }
    }

    /// Starts [`Communicator::reduce`].
    pub fn reduce_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        mut recv: R,
        op: ReduceOp,
        root: usize,
    ) -> Started<(S, R)> {
        let call = self.arguments().reduce(send.elements().into(), recv.elements_mut().into(), op, root);
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, (send, recv)) }
    }

    /// Starts [`Communicator::gather`].
    pub fn gather_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        mut recv: R,
        root: usize,
    ) -> Started<(S, R)> {
        let call = self.arguments().gather(send.elements().into(), recv.elements_mut().into(), root);
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, (send, recv)) }
    }

    /// Starts [`Communicator::gather_v`].
    pub fn gather_v_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        mut recv: R,
        counts: &[usize],
        root: usize,
    ) -> Started<(S, R)> {
        let call =
            self.arguments().gather_v(send.elements().into(), recv.elements_mut().into(), counts, root);
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, (send, recv)) }
    }

    /// Starts [`Communicator::scatter`].
    pub fn scatter_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        mut recv: R,
        root: usize,
    ) -> Started<(S, R)> {
        let call = self.arguments().scatter(send.elements().into(), recv.elements_mut().into(), root);
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, (send, recv)) }
    }

    /// Starts [`Communicator::scatter_v`].
    pub fn scatter_v_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        counts: &[usize],
        mut recv: R,
        root: usize,
    ) -> Started<(S, R)> {
        let call =
            self.arguments().scatter_v(send.elements().into(), counts, recv.elements_mut().into(), root);
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, (send, recv)) }
    }

    /// Starts [`Communicator::all_to_all`].
    pub fn all_to_all_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        mut recv: R,
    ) -> Started<(S, R)> {
        let call = self.arguments().all_to_all(send.elements().into(), recv.elements_mut().into());
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, (send, recv)) }
    }

    /// Starts [`Communicator::all_to_all_v`].
    pub fn all_to_all_v_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        send_counts: &[usize],
        mut recv: R,
        recv_counts: &[usize],
    ) -> Started<(S, R)> {
        let call = self.arguments().all_to_all_v(
            send.elements().into(),
            send_counts,
            recv.elements_mut().into(),
            recv_counts,
        );
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, (send, recv)) }
    }

    /// Starts [`Communicator::send`].
    pub fn send_start<T: Element, B: Owned<T>>(&self, buffer: B, to: usize) -> Started<B> {
        let call = self.arguments().send(buffer.elements().into(), to);
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, buffer) }
    }

    /// Starts [`Communicator::recv`].
    pub fn recv_start<T: Element, B: Owned<T>>(&self, mut buffer: B, from: usize) -> Started<B> {
        let call = self.arguments().recv(buffer.elements_mut().into(), from);
        // SAFETY: the call is about these buffers alone.
        unsafe { self.start(call, buffer) }
    }

    /// Starts [`Communicator::barrier`].
    pub fn barrier_start(&self) -> Started<()> {
        // SAFETY: there are no buffers.
        unsafe { self.start(Ok(self.arguments().barrier()), ()) }
    }
}
