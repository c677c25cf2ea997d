//! The calls of a world, drawn from its seed, and what must come of each.

use std::fmt;

use nd_comm::Result;
use nd_comm::buffer::Owned;
use nd_comm::communicator::Communicator;
use nd_comm::number::{Element, ReduceOp};
use nd_comm::schedule::Collective;

use super::draw::Draw;

/// Bytes of the longer side of a call, at least and at most.
const BYTES: (f64, f64) = (4.0, (8 << 20) as f64);

/// What is called.
const CALLED: [Collective; 10] = [
    Collective::AllReduce,
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
    Collective::SendRecv,
];

/// One call of a world.
#[derive(Debug, Clone)]
pub struct Drawn {
    seed: u64,
    number: u64,
    collective: Collective,
    root: usize,
    /// Elements of a part, or of the buffer where there are no parts.
    count: usize,
    /// f32; else i64.
    float: bool,
    in_place: bool,
}

/// What differs between ranks: where its buffers are, and whether it waits in the call.
#[derive(Debug, Clone, Copy)]
struct Own {
    registered: bool,
    started: bool,
}

/// How a call went that gave no error.
#[derive(Debug, PartialEq, Eq)]
pub enum Went {
    /// Every element is right.
    Right,
    /// The first that is not, in words.
    Wrong(String),
}

impl Drawn {
    /// The call with this number, among so many ranks.
    pub fn new(seed: u64, number: u64, ranks: usize) -> Drawn {
        let mut draw = Draw::new(seed, &[2, number]);
        let collective = draw.of(&CALLED);
        let float = draw.below(2) == 0;
        let bytes = BYTES.0 * (BYTES.1 / BYTES.0).powf(draw.share());
        let parts = match collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::SendRecv => 1,
            _ => ranks,
        };
        let count = (bytes as usize / if float { 4 } else { 8 } / parts).max(1);
        let root = draw.below(ranks);
        Drawn { seed, number, collective, root, count, float, in_place: draw.below(2) == 0 }
    }

    /// Whether it concerns two ranks at a time: these cannot know that one of them calls something else with others.
    pub fn is_between_two(&self) -> bool {
        self.collective == Collective::SendRecv
    }

    /// The same, but not quite: what another rank would call by mistake.
    pub fn mistaken(&self) -> Drawn {
        let collective = match self.collective {
            Collective::AllReduce => Collective::AllGather,
            _ => Collective::AllReduce,
        };
        Drawn { collective, count: self.count + 1, ..self.clone() }
    }

    /// Performs it on this rank, and looks at every element of what came.
    pub fn perform(&self, comm: &Communicator) -> Result<Went> {
        let mut draw = Draw::new(self.seed, &[3, self.number, comm.rank() as u64]);
        let own = Own { registered: draw.below(2) == 0, started: draw.below(4) == 0 };
        match self.float {
            true => self.with::<f32>(comm, own),
            false => self.with::<i64>(comm, own),
        }
    }

    fn with<T: Known>(&self, comm: &Communicator, own: Own) -> Result<Went> {
        match own.registered {
            true => self.on(comm, own.started, |len| comm.alloc::<T>(len)),
            false => self.on(comm, own.started, |len| Ok(vec![T::from(0); len])),
        }
    }

    /// What rank `rank` gives, at `i`: small, so that sums are exact in any order.
    fn given(&self, rank: usize, i: usize) -> u16 {
        let mixed = (rank as u64 * 31 + self.number * 17 + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 58) as u16
    }

    fn sum<T: Known>(&self, ranks: usize, i: usize) -> T {
        T::from((0..ranks).map(|rank| self.given(rank, i)).sum())
    }

    fn on<T: Known, B: Owned<T>>(
        &self,
        comm: &Communicator,
        started: bool,
        make: impl Fn(usize) -> Result<B>,
    ) -> Result<Went> {
        let (me, n, c, root) = (comm.rank(), comm.world_size(), self.count, self.root);
        let here = me == root;
        let filled = |len: usize| -> Result<B> {
            let mut buffer = make(len)?;
            for (i, x) in buffer.elements_mut().iter_mut().enumerate() {
                *x = T::from(self.given(me, i));
            }
            Ok(buffer)
        };
        let of = |rank: usize, i: usize| T::from(self.given(rank, i));
        let op = ReduceOp::Sum;
        match self.collective {
            Collective::AllReduce if self.in_place => {
                let mut buffer = filled(c)?;
                if started {
                    buffer = comm.all_reduce_start(buffer, op)?.wait()?;
                } else {
                    comm.all_reduce(buffer.elements_mut(), op)?;
                }
                Ok(look(buffer.elements(), |i| self.sum(n, i)))
            }
            Collective::AllReduce => {
                let (send, mut recv) = (filled(c)?, make(c)?);
                if started {
                    recv = comm.all_reduce_into_start(send, recv, op)?.wait()?.1;
                } else {
                    comm.all_reduce_into(send.elements(), recv.elements_mut(), op)?;
                }
                Ok(look(recv.elements(), |i| self.sum(n, i)))
            }
            Collective::ReduceScatter => {
                let (send, mut recv) = (filled(c * n)?, make(c)?);
                if started {
                    recv = comm.reduce_scatter_start(send, recv, op)?.wait()?.1;
                } else {
                    comm.reduce_scatter(send.elements(), recv.elements_mut(), op)?;
                }
                Ok(look(recv.elements(), |i| self.sum(n, me * c + i)))
            }
            Collective::AllGather => {
                let (send, mut recv) = (filled(c)?, make(c * n)?);
                if started {
                    recv = comm.all_gather_start(send, recv)?.wait()?.1;
                } else {
                    comm.all_gather(send.elements(), recv.elements_mut())?;
                }
                Ok(look(recv.elements(), |i| of(i / c, i % c)))
            }
            Collective::Broadcast => {
                let mut buffer = filled(c)?;
                if started {
                    buffer = comm.broadcast_start(buffer, root)?.wait()?;
                } else {
                    comm.broadcast(buffer.elements_mut(), root)?;
                }
                Ok(look(buffer.elements(), |i| of(root, i)))
            }
            Collective::Reduce => {
                let (send, mut recv) = (filled(c)?, make(if here { c } else { 0 })?);
                if started {
                    recv = comm.reduce_start(send, recv, op, root)?.wait()?.1;
                } else {
                    comm.reduce(send.elements(), recv.elements_mut(), op, root)?;
                }
                Ok(look(recv.elements(), |i| self.sum(n, i)))
            }
            Collective::Gather => {
                let (send, mut recv) = (filled(c)?, make(if here { c * n } else { 0 })?);
                if started {
                    recv = comm.gather_start(send, recv, root)?.wait()?.1;
                } else {
                    comm.gather(send.elements(), recv.elements_mut(), root)?;
                }
                Ok(look(recv.elements(), |i| of(i / c, i % c)))
            }
            Collective::Scatter => {
                let (send, mut recv) = (filled(if here { c * n } else { 0 })?, make(c)?);
                if started {
                    recv = comm.scatter_start(send, recv, root)?.wait()?.1;
                } else {
                    comm.scatter(send.elements(), recv.elements_mut(), root)?;
                }
                Ok(look(recv.elements(), |i| of(root, me * c + i)))
            }
            Collective::AllToAll => {
                let (send, mut recv) = (filled(c * n)?, make(c * n)?);
                if started {
                    recv = comm.all_to_all_start(send, recv)?.wait()?.1;
                } else {
                    comm.all_to_all(send.elements(), recv.elements_mut())?;
                }
                Ok(look(recv.elements(), |i| of(i / c, me * c + i % c)))
            }
            // A ring: to the next rank, from the one before.
            Collective::SendRecv => {
                let (send, mut recv) = (filled(c)?, make(c)?);
                let (next, before) = ((me + 1) % n, (me + n - 1) % n);
                comm.group(|g| {
                    g.send(send.elements(), next)?;
                    g.recv(recv.elements_mut(), before)
                })?;
                Ok(look(recv.elements(), |i| of(before, i)))
            }
            Collective::Barrier => comm.barrier().map(|()| Went::Right),
        }
    }
}

fn look<T: Known>(found: &[T], right: impl Fn(usize) -> T) -> Went {
    match found.iter().enumerate().find(|(i, x)| **x != right(*i)) {
        None => Went::Right,
        Some((i, x)) => {
            Went::Wrong(format!("element {i} of {} is {x:?} instead of {:?}", found.len(), right(i)))
        }
    }
}

/// Types whose values here are exact.
pub trait Known: Element + From<u16> + PartialEq + fmt::Debug {}
impl Known for f32 {}
impl Known for i64 {}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drawn { number, collective, root, count, float, .. } = self;
        let element = if *float { "f32" } else { "i64" };
        write!(f, "{} {number}: {count} × {element}, root {root}", collective.function())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::worlds::each;

    #[test]
    fn every_call_is_right_where_nothing_fails() {
        let ranks = Communicator::local(3).unwrap();
        let seen = each(&ranks, |comm| {
            let called = |number| {
                let call = Drawn::new(5, number, 3);
                assert_eq!(call.perform(comm).unwrap(), Went::Right, "{call}");
                call.collective
            };
            (0..120).map(called).collect::<HashSet<_>>()
        });
        assert_eq!(seen[0].len(), 9);
    }

    #[test]
    fn what_is_wrong_is_seen() {
        let went = look(&[1i64, 2, 4], |i| i as i64 + 1);
        assert_eq!(went, Went::Wrong("element 2 of 3 is 4 instead of 3".into()));
        let call = Drawn::new(5, 0, 3);
        assert!(call.mistaken().collective != call.collective);
    }
}
