//! Adds up gradients over ranks, bucket by bucket, while the next ones are computed.

use std::ops::Range;
use std::sync::Arc;

use candle_core::DType;
use half::{bf16, f16};
use nd_comm::prelude::{Buffer, ReduceOp};

use super::buckets::Bucket;
use super::layout::Layout;
use super::number::{Number, add};
use super::values::Values;
use crate::error::Result;
use crate::group::{Group, Pending};

/// Adds up gradients, in whatever type.
pub trait Reduce: Send {
    /// Takes a unit's complete gradients of a micro-batch; units come in the order of the buckets. Of a step's `last`
    /// micro-batch everything is reduced, of the others what is due.
    fn submit(&mut self, unit: usize, values: &Values, last: bool) -> Result<()>;

    /// Waits until all that was submitted is in the gradients.
    fn drain(&mut self) -> Result<()>;

    /// The gradients of each unit's shard; empty until there are any.
    fn gradients(&mut self) -> &mut [Vec<f32>];

    /// Makes room for the gradients of units that have none: zeros.
    fn make_room(&mut self);

    /// Lets go of all gradients.
    fn clear(&mut self);

    /// Lets go of memory that is not in use.
    fn trim(&mut self);

    /// Bytes of the gradients, and of buckets.
    fn bytes(&self) -> (usize, usize);
}

/// Over whom gradients are added up.
pub struct Over {
    /// Each keeps its part of the sum; none if this rank keeps all.
    pub shard: Option<Group>,
    /// All have the same part.
    pub replicate: Option<Group>,
    /// Whether `replicate` adds up in every micro-batch.
    pub each: bool,
}

/// A [`Reduce`] in a type.
pub fn reduce(dtype: DType, over: Over, layouts: Arc<[Layout]>, buckets: Vec<Bucket>) -> Box<dyn Reduce> {
    match dtype {
        DType::BF16 => Box::new(Reducer::<bf16>::new(over, layouts, buckets)),
        DType::F16 => Box::new(Reducer::<f16>::new(over, layouts, buckets)),
        _ => Box::new(Reducer::<f32>::new(over, layouts, buckets)),
    }
}

/// A bucket goes through two calls at most, one behind the other: its reduce-scatter runs beside the all-reduce of the
/// bucket before it. Which calls are made, and in which order, depends on nothing but the order of submissions.
struct Reducer<T: Number> {
    over: Over,
    layouts: Arc<[Layout]>,
    buckets: Vec<Bucket>,
    /// By unit, the buckets that it lies in.
    of_unit: Vec<Range<usize>>,
    gradients: Vec<Vec<f32>>,
    /// A bucket that waits for the gradients of more units.
    open: Option<Buffer<T>>,
    scattering: Option<Scattering<T>>,
    replicating: Option<Replicating<T>>,
    spare: Vec<Buffer<T>>,
    /// Bytes of buckets on their way.
    flying: usize,
}

struct Scattering<T: Number> {
    bucket: usize,
    last: bool,
    /// The sum comes to this rank's part.
    pending: Pending<Buffer<T>>,
    rank: usize,
}

struct Replicating<T: Number> {
    bucket: usize,
    /// What comes is added to the gradients; otherwise it takes their place.
    adds: bool,
    pending: Pending<Buffer<T>>,
}

impl<T: Number> Reducer<T> {
    fn new(over: Over, layouts: Arc<[Layout]>, buckets: Vec<Bucket>) -> Reducer<T> {
        let of_unit = (0..layouts.len()).map(|unit| {
            let has = |bucket: &Bucket| bucket.spans.iter().any(|span| span.unit == unit);
            let first = buckets.iter().position(has).unwrap_or(0);
            first..buckets.iter().rposition(has).map_or(first, |last| last + 1)
        });
        let (of_unit, gradients) = (of_unit.collect(), vec![Vec::new(); layouts.len()]);
        let (open, scattering, replicating, spare) = (None, None, None, Vec::new());
        Reducer {
            over,
            layouts,
            buckets,
            of_unit,
            gradients,
            open,
            scattering,
            replicating,
            spare,
            flying: 0,
        }
    }

    fn buffer(&mut self, group: &Group, len: usize) -> Result<Buffer<T>> {
        let fits = self.spare.iter().position(|spare| spare.len() == len);
        let buffer = match fits {
            Some(i) => self.spare.swap_remove(i),
            None => {
                self.spare.clear();
                group.alloc(len)?
            }
        };
        self.flying += buffer.len() * size_of::<T>();
        Ok(buffer)
    }

    fn done(&mut self, buffer: Buffer<T>) {
        self.flying -= buffer.len() * size_of::<T>();
        self.spare.push(buffer);
    }

    /// Whether the gradients of `unit` complete a bucket.
    fn completes(&self, bucket: usize, unit: usize) -> bool {
        self.buckets[bucket].spans.last().is_some_and(|span| span.unit == unit)
    }

    /// Copies a unit's gradients to the parts of all ranks in a bucket.
    fn write(&self, unit: usize, values: &Values, bucket: usize, to: &mut [T]) -> Result<()> {
        let (layout, bucket) = (&self.layouts[unit], &self.buckets[bucket]);
        for (rank, to) in to.chunks_mut(bucket.len).enumerate() {
            let start = rank * layout.shard();
            for span in bucket.spans.iter().filter(|span| span.unit == unit) {
                let range = start + span.range.start..start + span.range.end;
                values.write(layout, range, &mut to[span.at..][..span.range.len()])?;
            }
        }
        Ok(())
    }

    /// Starts a bucket's first call, once those before it have been moved on.
    fn start(&mut self, bucket: usize, send: Buffer<T>, last: bool) -> Result<()> {
        self.advance()?;
        match self.over.shard.clone() {
            Some(shard) => {
                let pending = shard.reduce_scatter_in_place_start(send)?;
                self.scattering = Some(Scattering { bucket, last, pending, rank: shard.rank() });
                Ok(())
            }
            None => self.replicate(bucket, send, true),
        }
    }

    fn replicate(&mut self, bucket: usize, buffer: Buffer<T>, adds: bool) -> Result<()> {
        let Some(group) = &self.over.replicate else { return Ok(()) };
        let pending = group.all_reduce_start(buffer, ReduceOp::Sum)?;
        self.replicating = Some(Replicating { bucket, adds, pending });
        Ok(())
    }

    /// Starts to add up the sums of a step over `replicate`.
    fn replicate_sums(&mut self, bucket: usize) -> Result<()> {
        let Some(group) = self.over.replicate.clone() else { return Ok(()) };
        let mut buffer = self.buffer(&group, self.buckets[bucket].len)?;
        for span in &self.buckets[bucket].spans {
            let to = &mut buffer[span.at..][..span.range.len()];
            T::narrow(&self.gradients[span.unit][span.range.clone()], to);
        }
        self.replicate(bucket, buffer, false)
    }

    /// Waits for the calls that go on and starts what follows them.
    fn advance(&mut self) -> Result<()> {
        if let Some(Replicating { bucket, adds, pending }) = self.replicating.take() {
            let buffer = pending.wait()?;
            self.take(bucket, &buffer, adds);
            self.done(buffer);
        }
        let Some(Scattering { bucket, last, pending, rank }) = self.scattering.take() else { return Ok(()) };
        let all = pending.wait()?;
        let len = self.buckets[bucket].len;
        let sums = &all[rank * len..][..len];
        match self.over.replicate.clone() {
            Some(group) if self.over.each => {
                let mut part = self.buffer(&group, len)?;
                part.copy_from_slice(sums);
                self.done(all);
                self.replicate(bucket, part, true)
            }
            _ => {
                self.take(bucket, sums, true);
                self.done(all);
                if last { self.replicate_sums(bucket) } else { Ok(()) }
            }
        }
    }

    /// Adds a bucket's sums to the gradients, or puts them in their place.
    fn take(&mut self, bucket: usize, from: &[T], adds: bool) {
        for span in &self.buckets[bucket].spans {
            let gradients = room(&mut self.gradients[span.unit], self.layouts[span.unit].shard());
            let to = &mut gradients[span.range.clone()];
            T::widen(&from[span.at..][..span.range.len()], |i, values| match adds {
                true => add(&mut to[i..], values),
                false => to[i..i + values.len()].copy_from_slice(values),
            });
        }
    }
}

impl<T: Number> Reduce for Reducer<T> {
    fn submit(&mut self, unit: usize, values: &Values, last: bool) -> Result<()> {
        let (whole, group) = match (&self.over.shard, &self.over.replicate) {
            (Some(group), _) => (false, Some(group.clone())),
            (None, group) => (true, group.clone()),
        };
        if whole && (!self.over.each || group.is_none()) {
            values
                .add_to(&self.layouts[unit], room(&mut self.gradients[unit], self.layouts[unit].shard()))?;
        }
        let Some(group) = group else { return Ok(()) };
        for bucket in self.of_unit[unit].clone() {
            if whole && !self.over.each {
                if last && self.completes(bucket, unit) {
                    self.advance()?;
                    self.replicate_sums(bucket)?;
                }
                continue;
            }
            let len = self.buckets[bucket].len * self.layouts[unit].ranks();
            let mut send = match self.open.take() {
                Some(open) => open,
                None => {
                    if self.completes(bucket, unit) {
                        // It starts at once: the memory of those before it will do.
                        self.advance()?;
                    }
                    self.buffer(&group, len)?
                }
            };
            self.write(unit, values, bucket, &mut send)?;
            match self.completes(bucket, unit) {
                true => self.start(bucket, send, last)?,
                false => self.open = Some(send),
            }
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        self.advance()?;
        self.advance()
    }

    fn gradients(&mut self) -> &mut [Vec<f32>] {
        &mut self.gradients
    }

    fn make_room(&mut self) {
        for (gradients, layout) in self.gradients.iter_mut().zip(&*self.layouts) {
            room(gradients, layout.shard());
        }
    }

    fn clear(&mut self) {
        self.gradients.iter_mut().for_each(|gradients| *gradients = Vec::new());
    }

    fn trim(&mut self) {
        self.spare.clear();
    }

    fn bytes(&self) -> (usize, usize) {
        let gradients: usize = self.gradients.iter().map(Vec::len).sum();
        let spare: usize = self.spare.iter().map(|buffer| buffer.len()).sum();
        (gradients * size_of::<f32>(), self.flying + spare * size_of::<T>())
    }
}

/// A vector's elements, which are `len` zeros if there were none.
fn room(values: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if values.is_empty() {
        *values = vec![0.0; len];
    }
    values
}
