//! Checks the arguments of calls, and makes [`Call`]s of them. Nothing is sent before all is well.

use crate::error::{Error, Result};
use crate::exec::engine::Call;
use crate::exec::stamp::Within;
use crate::number::{DataType, Element, ReduceOp};
use crate::schedule::{Alias, Collective, Counts};

/// Where a buffer is; its owner keeps it valid while the call goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Raw<T> {
    ptr: *mut T,
    len: usize,
}

impl<T> From<&[T]> for Raw<T> {
    fn from(s: &[T]) -> Raw<T> {
        Raw { ptr: s.as_ptr().cast_mut(), len: s.len() }
    }
}

impl<T> From<&mut [T]> for Raw<T> {
    fn from(s: &mut [T]) -> Raw<T> {
        Raw { ptr: s.as_mut_ptr(), len: s.len() }
    }
}

impl<T> Raw<T> {
    fn range(&self) -> std::ops::Range<usize> {
        let start = self.ptr as usize;
        start..start + self.len * size_of::<T>()
    }
}

/// Checks the arguments that one rank gives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments {
    pub rank: usize,
    pub world_size: usize,
}

/// Where input and output are.
enum Place<T> {
    Apart(Raw<T>, Raw<T>),
    InPlace(Raw<T>),
}

impl Arguments {
    fn invalid<X>(&self, call: &'static str, problem: String, remedy: impl Into<String>) -> Result<X> {
        Err(Error::InvalidArgument { rank: self.rank, call, problem, remedy: remedy.into() })
    }

    #[inline]
    fn expect(&self, call: &'static str, what: &str, got: usize, expected: usize, why: &str) -> Result<()> {
        if got == expected {
            return Ok(());
        }
        self.invalid(call, format!("the {what} has {got} elements"), format!("it needs {expected} ({why})"))
    }

    #[inline]
    fn part(&self, call: &'static str, len: usize, instead: &str) -> Result<u64> {
        let n = self.world_size;
        if len.is_multiple_of(n) {
            return Ok((len / n) as u64);
        }
        self.invalid(
            call,
            format!("{len} elements cannot be divided among {n} ranks"),
            format!("pad to {} elements{instead}", len.next_multiple_of(n)),
        )
    }

    #[inline]
    fn root(&self, call: &'static str, root: usize) -> Result<u32> {
        if root < self.world_size {
            return Ok(root as u32);
        }
        self.invalid(call, format!("root {root}"), format!("ranks are 0 to {}", self.world_size - 1))
    }

    #[inline]
    fn op<T: Element>(&self, call: &'static str, op: ReduceOp) -> Result<()> {
        if op.supports(T::DATA_TYPE) {
            return Ok(());
        }
        self.invalid(
            call,
            format!("{} of {}", op.name(), T::DATA_TYPE.name()),
            "bitwise operations are for integers; use sum, prod, min, max or avg",
        )
    }

    fn counts(&self, call: &'static str, what: &str, counts: &[usize], len: usize) -> Result<()> {
        self.expect(call, what, counts.len(), self.world_size, "one for each rank")?;
        let sum = counts.iter().try_fold(0usize, |sum, c| sum.checked_add(*c));
        match sum {
            Some(sum) if sum == len => Ok(()),
            Some(sum) => self.invalid(
                call,
                format!("the {what} add up to {sum}"),
                format!("the buffer they describe has {len} elements"),
            ),
            None => {
                self.invalid(call, format!("the {what} add up to more than {}", usize::MAX), "lower them")
            }
        }
    }

    #[inline]
    fn call<T: Element>(
        &self,
        collective: Collective,
        counts: Counts,
        root: u32,
        op: Option<ReduceOp>,
        place: Place<T>,
    ) -> Result<Call> {
        let (alias, input, output) = match place {
            Place::Apart(send, recv) => {
                let (s, r) = (send.range(), recv.range());
                if !s.is_empty() && !r.is_empty() && s.start < r.end && r.start < s.end {
                    return self.invalid(
                        collective.function(),
                        format!("send buffer {s:x?} and receive buffer {r:x?} overlap"),
                        "use two buffers, or the call's in-place form",
                    );
                }
                (Alias::None, send.ptr, recv.ptr)
            }
            Place::InPlace(buffer) => (Alias::InPlace, buffer.ptr, buffer.ptr),
        };
        let data_type = T::DATA_TYPE;
        Ok(Call {
            collective,
            within: Within::Program,
            counts,
            root,
            alias,
            data_type,
            op,
            input: input.cast(),
            output: output.cast(),
        })
    }

    pub fn all_reduce<T: Element>(&self, buffer: Raw<T>, op: ReduceOp) -> Result<Call> {
        self.op::<T>("all_reduce", op)?;
        let counts = Counts::Equal(buffer.len as u64);
        self.call(Collective::AllReduce, counts, 0, Some(op), Place::InPlace(buffer))
    }

    pub fn all_reduce_into<T: Element>(&self, send: Raw<T>, recv: Raw<T>, op: ReduceOp) -> Result<Call> {
        self.op::<T>("all_reduce_into", op)?;
        self.expect("all_reduce_into", "receive buffer", recv.len, send.len, "as the send buffer")?;
        let counts = Counts::Equal(send.len as u64);
        self.call(Collective::AllReduce, counts, 0, Some(op), Place::Apart(send, recv))
    }

    pub fn reduce_scatter<T: Element>(&self, send: Raw<T>, recv: Raw<T>, op: ReduceOp) -> Result<Call> {
        const CALL: &str = "reduce_scatter";
        self.op::<T>(CALL, op)?;
        let part = self.part(CALL, send.len, ", or use reduce_scatter_v")?;
        self.expect(CALL, "receive buffer", recv.len, part as usize, "a rank's part of the send buffer")?;
        self.call(Collective::ReduceScatter, Counts::Equal(part), 0, Some(op), Place::Apart(send, recv))
    }

    /// The result goes to this rank's own part of `buffer`.
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: Raw<T>, op: ReduceOp) -> Result<Call> {
        self.op::<T>("reduce_scatter_in_place", op)?;
        let part = self.part("reduce_scatter_in_place", buffer.len, ", or use reduce_scatter_v")?;
        let buffer = Place::InPlace(buffer);
        let mut call = self.call(Collective::ReduceScatter, Counts::Equal(part), 0, Some(op), buffer)?;
        call.output = call.output.wrapping_add(self.own_offset::<T>(&call.counts));
        Ok(call)
    }

    pub fn reduce_scatter_v<T: Element>(
        &self,
        send: Raw<T>,
        recv: Raw<T>,
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<Call> {
        const CALL: &str = "reduce_scatter_v";
        self.op::<T>(CALL, op)?;
        self.counts(CALL, "counts", counts, send.len)?;
        self.expect(CALL, "receive buffer", recv.len, counts[self.rank], "counts[rank]")?;
        self.call(Collective::ReduceScatter, per_rank(counts), 0, Some(op), Place::Apart(send, recv))
    }

    pub fn all_gather<T: Element>(&self, send: Raw<T>, recv: Raw<T>) -> Result<Call> {
        let all = send.len * self.world_size;
        self.expect("all_gather", "receive buffer", recv.len, all, "every rank's send buffer")?;
        let counts = Counts::Equal(send.len as u64);
        self.call(Collective::AllGather, counts, 0, None, Place::Apart(send, recv))
    }

    /// This rank's own part of `buffer` is what it sends.
    pub fn all_gather_in_place<T: Element>(&self, buffer: Raw<T>) -> Result<Call> {
        let part = self.part("all_gather_in_place", buffer.len, ", or use all_gather_v")?;
        let mut call =
            self.call(Collective::AllGather, Counts::Equal(part), 0, None, Place::InPlace(buffer))?;
        call.input = call.input.wrapping_add(self.own_offset::<T>(&call.counts));
        Ok(call)
    }

    pub fn all_gather_v<T: Element>(&self, send: Raw<T>, recv: Raw<T>, counts: &[usize]) -> Result<Call> {
        const CALL: &str = "all_gather_v";
        self.counts(CALL, "counts", counts, recv.len)?;
        self.expect(CALL, "send buffer", send.len, counts[self.rank], "counts[rank]")?;
        self.call(Collective::AllGather, per_rank(counts), 0, None, Place::Apart(send, recv))
    }

    pub fn broadcast<T: Element>(&self, buffer: Raw<T>, root: usize) -> Result<Call> {
        let root = self.root("broadcast", root)?;
        let counts = Counts::Equal(buffer.len as u64);
        self.call(Collective::Broadcast, counts, root, None, Place::InPlace(buffer))
    }

    pub fn reduce<T: Element>(&self, send: Raw<T>, recv: Raw<T>, op: ReduceOp, root: usize) -> Result<Call> {
        self.op::<T>("reduce", op)?;
        let root = self.root("reduce", root)?;
        let recv = match self.rank == root as usize {
            true => recv,
            false => Raw { len: 0, ..recv },
        };
        if self.rank == root as usize {
            self.expect("reduce", "receive buffer", recv.len, send.len, "as the send buffer")?;
        }
        let counts = Counts::Equal(send.len as u64);
        self.call(Collective::Reduce, counts, root, Some(op), Place::Apart(send, recv))
    }

    /// The result goes to `buffer` of the root; the others' stay as they are.
    pub fn reduce_in_place<T: Element>(&self, buffer: Raw<T>, op: ReduceOp, root: usize) -> Result<Call> {
        self.op::<T>("reduce_in_place", op)?;
        let root = self.root("reduce_in_place", root)?;
        let counts = Counts::Equal(buffer.len as u64);
        self.call(Collective::Reduce, counts, root, Some(op), Place::InPlace(buffer))
    }

    pub fn gather<T: Element>(&self, send: Raw<T>, recv: Raw<T>, root: usize) -> Result<Call> {
        let root = self.root("gather", root)?;
        let all = send.len * self.world_size;
        let recv = self.at_root("gather", "receive buffer", recv, all, root)?;
        let counts = Counts::Equal(send.len as u64);
        self.call(Collective::Gather, counts, root, None, Place::Apart(send, recv))
    }

    /// On the root `buffer` holds all parts, its own in its place; on the others it is the part they send.
    pub fn gather_in_place<T: Element>(&self, buffer: Raw<T>, root: usize) -> Result<Call> {
        self.rooted_in_place("gather_in_place", Collective::Gather, buffer, root)
    }

    pub fn gather_v<T: Element>(
        &self,
        send: Raw<T>,
        recv: Raw<T>,
        counts: &[usize],
        root: usize,
    ) -> Result<Call> {
        const CALL: &str = "gather_v";
        let root = self.root(CALL, root)?;
        let recv = self.root_counts(CALL, (&send, "send buffer"), recv, counts, root)?;
        let counts = self.known(counts, send.len, root);
        self.call(Collective::Gather, counts, root, None, Place::Apart(send, recv))
    }

    pub fn scatter<T: Element>(&self, send: Raw<T>, recv: Raw<T>, root: usize) -> Result<Call> {
        let root = self.root("scatter", root)?;
        let all = recv.len * self.world_size;
        let send = self.at_root("scatter", "send buffer", send, all, root)?;
        let counts = Counts::Equal(recv.len as u64);
        self.call(Collective::Scatter, counts, root, None, Place::Apart(send, recv))
    }

    /// On the root `buffer` holds all parts, its own stays in its place; on the others it is the part they get.
    pub fn scatter_in_place<T: Element>(&self, buffer: Raw<T>, root: usize) -> Result<Call> {
        self.rooted_in_place("scatter_in_place", Collective::Scatter, buffer, root)
    }

    pub fn scatter_v<T: Element>(
        &self,
        send: Raw<T>,
        counts: &[usize],
        recv: Raw<T>,
        root: usize,
    ) -> Result<Call> {
        const CALL: &str = "scatter_v";
        let root = self.root(CALL, root)?;
        let send = self.root_counts(CALL, (&recv, "receive buffer"), send, counts, root)?;
        let counts = self.known(counts, recv.len, root);
        self.call(Collective::Scatter, counts, root, None, Place::Apart(send, recv))
    }

    pub fn all_to_all<T: Element>(&self, send: Raw<T>, recv: Raw<T>) -> Result<Call> {
        let part = self.part("all_to_all", send.len, ", or use all_to_all_v")?;
        self.expect("all_to_all", "receive buffer", recv.len, send.len, "as the send buffer")?;
        self.call(Collective::AllToAll, Counts::Equal(part), 0, None, Place::Apart(send, recv))
    }

    pub fn all_to_all_in_place<T: Element>(&self, buffer: Raw<T>) -> Result<Call> {
        let part = self.part("all_to_all_in_place", buffer.len, ", or use all_to_all_v")?;
        self.call(Collective::AllToAll, Counts::Equal(part), 0, None, Place::InPlace(buffer))
    }

    pub fn all_to_all_v<T: Element>(
        &self,
        send: Raw<T>,
        send_counts: &[usize],
        recv: Raw<T>,
        recv_counts: &[usize],
    ) -> Result<Call> {
        const CALL: &str = "all_to_all_v";
        self.counts(CALL, "send counts", send_counts, send.len)?;
        self.counts(CALL, "receive counts", recv_counts, recv.len)?;
        let (mine, back) = (send_counts[self.rank], recv_counts[self.rank]);
        self.expect(CALL, "part received from itself", back, mine, "as the part sent to itself")?;
        let counts = Counts::Pairwise { send: wide(send_counts), recv: wide(recv_counts) };
        self.call(Collective::AllToAll, counts, 0, None, Place::Apart(send, recv))
    }

    pub fn send<T: Element>(&self, buffer: Raw<T>, to: usize) -> Result<Call> {
        self.single("send", buffer, to, true)
    }

    pub fn recv<T: Element>(&self, buffer: Raw<T>, from: usize) -> Result<Call> {
        self.single("recv", buffer, from, false)
    }

    fn single<T: Element>(
        &self,
        call: &'static str,
        buffer: Raw<T>,
        peer: usize,
        sends: bool,
    ) -> Result<Call> {
        if peer >= self.world_size {
            return self.invalid(
                call,
                format!("rank {peer}"),
                format!("ranks are 0 to {}", self.world_size - 1),
            );
        }
        let null = std::ptr::null_mut::<u8>();
        let ptr = buffer.ptr.cast::<u8>();
        Ok(Call {
            collective: Collective::SendRecv,
            within: Within::Program,
            counts: Counts::Equal(buffer.len as u64),
            root: peer as u32,
            alias: Alias::None,
            data_type: T::DATA_TYPE,
            op: None,
            input: if sends { ptr } else { null },
            output: if sends { null } else { ptr },
        })
    }

    pub fn barrier(&self) -> Call {
        Call {
            collective: Collective::Barrier,
            within: Within::Program,
            counts: Counts::Equal(0),
            root: 0,
            alias: Alias::None,
            data_type: DataType::U8,
            op: None,
            input: std::ptr::null(),
            output: std::ptr::null_mut(),
        }
    }

    /// The buffer that only the root uses: of the right length there, of no length elsewhere.
    fn at_root<T>(
        &self,
        call: &'static str,
        what: &str,
        buffer: Raw<T>,
        len: usize,
        root: u32,
    ) -> Result<Raw<T>> {
        if self.rank != root as usize {
            return Ok(Raw { len: 0, ..buffer });
        }
        self.expect(call, what, buffer.len, len, "every rank's part")?;
        Ok(buffer)
    }

    fn rooted_in_place<T: Element>(
        &self,
        name: &'static str,
        collective: Collective,
        buffer: Raw<T>,
        root: usize,
    ) -> Result<Call> {
        let root = self.root(name, root)?;
        let here = self.rank == root as usize;
        let part =
            if here { self.part(name, buffer.len, ", or use the v-variant")? } else { buffer.len as u64 };
        let counts = Counts::Equal(part);
        if !here {
            // The other side is not used: one buffer, not in place.
            let none = Raw { len: 0, ..buffer };
            let place = match collective {
                Collective::Gather => Place::Apart(buffer, none),
                _ => Place::Apart(none, buffer),
            };
            return self.call(collective, counts, root, None, place);
        }
        let mut call = self.call(collective, counts, root, None, Place::InPlace(buffer))?;
        let own = self.own_offset::<T>(&call.counts);
        match collective {
            Collective::Gather => call.input = call.input.wrapping_add(own),
            _ => call.output = call.output.wrapping_add(own),
        }
        Ok(call)
    }

    fn root_counts<T>(
        &self,
        call: &'static str,
        own: (&Raw<T>, &str),
        all: Raw<T>,
        counts: &[usize],
        root: u32,
    ) -> Result<Raw<T>> {
        if self.rank != root as usize {
            return Ok(Raw { len: 0, ..all });
        }
        self.counts(call, "counts", counts, all.len)?;
        self.expect(call, own.1, own.0.len, counts[self.rank], "counts[rank]")?;
        Ok(all)
    }

    /// All counts on the root, its own alone on another rank.
    fn known(&self, counts: &[usize], own: usize, root: u32) -> Counts {
        if self.rank == root as usize {
            return per_rank(counts);
        }
        let own_only = |r| if r == self.rank { own as u64 } else { 0 };
        Counts::PerRank((0..self.world_size).map(own_only).collect())
    }

    fn own_offset<T>(&self, counts: &Counts) -> usize {
        counts.start(self.rank) as usize * size_of::<T>()
    }
}

fn per_rank(counts: &[usize]) -> Counts {
    Counts::PerRank(wide(counts))
}

fn wide(counts: &[usize]) -> std::sync::Arc<[u64]> {
    counts.iter().map(|&c| c as u64).collect()
}
