//! The ranks along an axis of the mesh, and what they send each other.

mod first;
mod kept;
mod ledger;
mod pending;

use nd_comm::buffer::Owned;
use nd_comm::prelude::{Buffer, Communicator, Element, ReduceOp};

use kept::Kept;
use ledger::Open;
pub use ledger::{Entry, Kind, Ledger, Times};
pub use pending::Pending;

use crate::error::{Error, Result};
use crate::mesh::{Axis, Mesh};

/// The ranks along one axis, or several folded into one. A group of one rank sends nothing. Cheap to clone.
#[derive(Clone)]
pub struct Group {
    name: &'static str,
    comm: Communicator,
    ledger: Ledger,
    kept: Kept,
    /// For calls that take whole buffers.
    whole: Kept,
}

impl Group {
    /// All ranks of a communicator, as a group called `name`.
    pub fn new(name: &'static str, comm: Communicator, ledger: Ledger) -> Group {
        Group { name, comm, ledger, kept: Kept::default(), whole: Kept::default() }
    }

    /// `tp`, `cp`, `fsdp`, `dp_replicate`, `loss`, `world`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// This rank within the group.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// How many ranks it has.
    pub fn size(&self) -> usize {
        self.comm.world_size()
    }

    /// What is underneath.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// `len` elements that the ranks of this group's host reach without a copy.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        Ok(self.comm.alloc(len)?)
    }

    /// Calls `f` with `len` elements, of any content, that the ranks of this group's host reach without a copy, and that
    /// are kept for the next time.
    ///
    /// # Errors
    /// Those of `f`, and of [`Group::alloc`].
    pub fn registered<T: Element, R>(&self, len: usize, f: impl FnOnce(&mut [T]) -> Result<R>) -> Result<R> {
        self.kept.with(&self.comm, len, f)
    }

    /// The reduction of all ranks' buffers, in every rank's buffer.
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        self.blocking::<T>(Kind::AllReduce, buffer.len(), |comm| comm.all_reduce(buffer, op))
    }

    /// All ranks' `send`, one after the other, in every rank's `recv`.
    pub fn all_gather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.blocking::<T>(Kind::AllGather, recv.len(), |comm| comm.all_gather(send, recv))
    }

    /// This rank's part of the sum of all ranks' `send`, in `recv`.
    pub fn reduce_scatter<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        let call = |comm: &Communicator| comm.reduce_scatter(send, recv, ReduceOp::Sum);
        self.blocking::<T>(Kind::ReduceScatter, send.len(), call)
    }

    /// The `i`-th part of `send` goes to rank `i`, whose part for this rank comes to the same place of `recv`.
    pub fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.blocking::<T>(Kind::AllToAll, send.len(), |comm| comm.all_to_all(send, recv))
    }

    /// What rank `root` of the group has, at all.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        self.blocking::<T>(Kind::Broadcast, buffer.len(), |comm| comm.broadcast(buffer, root))
    }

    /// Starts [`Group::all_reduce`].
    pub fn all_reduce_start<T: Element, B: Owned<T>>(&self, buffer: B, op: ReduceOp) -> Result<Pending<B>> {
        let open = self.open::<T>(Kind::AllReduce, buffer.elements().len());
        Ok(Pending::new(self.comm.all_reduce_start(buffer, op)?, open))
    }

    /// Starts [`Group::all_reduce`] of a copy of `elements`, in memory that [`Group::give_back`] takes for the next time.
    pub(crate) fn all_reduce_copy_start<T: Element>(
        &self,
        elements: &[T],
        op: ReduceOp,
    ) -> Result<Pending<Buffer<T>>> {
        let mut buffer = self.whole.exactly::<T>(&self.comm, elements.len())?;
        buffer.copy_from_slice(elements);
        self.all_reduce_start(buffer, op)
    }

    /// Keeps the memory of [`Group::all_reduce_copy_start`].
    pub(crate) fn give_back<T: Element>(&self, buffer: Buffer<T>) {
        self.whole.put(buffer);
    }

    /// Starts [`Group::all_gather`].
    pub fn all_gather_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        recv: R,
    ) -> Result<Pending<(S, R)>> {
        let open = self.open::<T>(Kind::AllGather, recv.elements().len());
        Ok(Pending::new(self.comm.all_gather_start(send, recv)?, open))
    }

    /// Starts [`Group::reduce_scatter`].
    pub fn reduce_scatter_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        recv: R,
    ) -> Result<Pending<(S, R)>> {
        let open = self.open::<T>(Kind::ReduceScatter, send.elements().len());
        Ok(Pending::new(self.comm.reduce_scatter_start(send, recv, ReduceOp::Sum)?, open))
    }

    /// Starts to gather all ranks' parts of `buffer` in place: each has its own there.
    pub fn all_gather_in_place_start<T: Element, B: Owned<T>>(&self, buffer: B) -> Result<Pending<B>> {
        let open = self.open::<T>(Kind::AllGather, buffer.elements().len());
        Ok(Pending::new(self.comm.all_gather_in_place_start(buffer)?, open))
    }

    /// Starts [`Group::reduce_scatter`] in place: this rank's part of the sum comes to its own part of `buffer`.
    pub fn reduce_scatter_in_place_start<T: Element, B: Owned<T>>(&self, buffer: B) -> Result<Pending<B>> {
        let open = self.open::<T>(Kind::ReduceScatter, buffer.elements().len());
        Ok(Pending::new(self.comm.reduce_scatter_in_place_start(buffer, ReduceOp::Sum)?, open))
    }

    /// Starts to pass `send` to the next rank and to take `recv`, of the same length, from the one before, round the
    /// ring.
    pub fn shift_start<T: Element, S: Owned<T>, R: Owned<T>>(
        &self,
        send: S,
        recv: R,
    ) -> Result<Pending<(S, R)>> {
        let (rank, size) = (self.rank(), self.size());
        let (mut to, mut from) = (vec![0; size], vec![0; size]);
        to[(rank + 1) % size] = send.elements().len();
        from[(rank + size - 1) % size] = recv.elements().len();
        let open = self.open::<T>(Kind::Shift, send.elements().len());
        Ok(Pending::new(self.comm.all_to_all_v_start(send, &to, recv, &from)?, open))
    }

    fn blocking<T>(
        &self,
        kind: Kind,
        len: usize,
        call: impl FnOnce(&Communicator) -> nd_comm::Result<()>,
    ) -> Result<()> {
        let open = self.open::<T>(kind, len);
        call(&self.comm)?;
        if let Some(open) = open {
            open.close_blocking();
        }
        Ok(())
    }

    /// Writes a call down that begins now, unless it sends nothing.
    fn open<T>(&self, kind: Kind, len: usize) -> Option<Open> {
        let bytes = (len * size_of::<T>()) as u64;
        (self.size() > 1).then(|| self.ledger.open(self.name, kind, bytes, self.size()))
    }
}

/// The groups of one rank.
#[derive(Clone)]
pub struct Groups {
    job: Communicator,
    mesh: Mesh,
    rank: usize,
    ledger: Ledger,
    world: Group,
    loss: Group,
    dp_replicate: Group,
    fsdp: Group,
    cp: Group,
    tp: Group,
}

impl Groups {
    /// Splits a communicator along the axes of a mesh. `order[r]` is the place in the mesh of the communicator's rank
    /// `r`, the same on all ranks (see [`crate::mesh`]); all ranks call this.
    ///
    /// # Errors
    /// [`Error::Mesh`] when mesh, order and communicator are not of one size.
    pub fn new(comm: &Communicator, mesh: Mesh, order: &[usize]) -> Result<Groups> {
        let world = comm.world_size();
        let mut places = order.to_vec();
        places.sort_unstable();
        if mesh.world() != world || !places.iter().copied().eq(0..world) {
            return Err(Error::Mesh(format!(
                "the mesh {mesh} has {} places, {} of them are given, and there are {world} ranks",
                mesh.world(),
                order.len()
            )));
        }
        let rank = order[comm.rank()];
        let ledger = Ledger::default();
        let group = |name, axes: &[Axis]| {
            let color = mesh.group(rank, axes)[0] as u64;
            Ok::<_, Error>(Group::new(name, comm.split(color, rank as i64)?, ledger.clone()))
        };
        use Axis::{Cp, DpReplicate, DpShard, Tp};
        Ok(Groups {
            job: comm.clone(),
            mesh,
            rank,
            world: group("world", &Axis::ALL)?,
            loss: group("loss", &[DpReplicate, DpShard, Cp])?,
            dp_replicate: group("dp_replicate", &[DpReplicate])?,
            fsdp: group("fsdp", &[DpShard, Cp])?,
            cp: group("cp", &[Cp])?,
            tp: group("tp", &[Tp])?,
            ledger,
        })
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// This rank's place in the mesh.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// What all these groups have sent.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// An error that names the rank that failed first, by its number in the communicator that the groups were made of, where
    /// `error` only says what a group noticed of it. All ranks call this that fail, and none uses the groups afterwards; the
    /// others are waited for, as long as a call may take and 10 s at most.
    pub fn first(&self, error: Error) -> Error {
        first::first(&self.job, error)
    }

    /// All ranks, in the mesh's order.
    pub fn world(&self) -> &Group {
        &self.world
    }

    /// The ranks whose losses add up: all axes but tp.
    pub fn loss(&self) -> &Group {
        &self.loss
    }

    /// Copies of this rank's shard.
    pub fn dp_replicate(&self) -> &Group {
        &self.dp_replicate
    }

    /// The ranks over which the state is sharded: dp_shard and cp folded, as cp's ranks hold the same weights.
    pub fn fsdp(&self) -> &Group {
        &self.fsdp
    }

    /// Parts of the sequence.
    pub fn cp(&self) -> &Group {
        &self.cp
    }

    /// Parts of the matrices.
    pub fn tp(&self) -> &Group {
        &self.tp
    }
}
