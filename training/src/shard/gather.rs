//! Brings a unit's weights together.

use std::sync::Arc;

use candle_core::DType;
use half::{bf16, f16};
use nd_comm::prelude::Buffer;

use super::layout::UnitLayout;
use super::number::Number;
use super::weights::Weights;
use crate::error::Result;
use crate::group::{Group, Pending};

/// Gathers one unit's weights at a time, in whatever type they are computed with.
pub trait Gather: Send {
    /// Weights of these shapes without memory, and whether they are frozen.
    fn empty(&self, shapes: Vec<(Vec<usize>, bool)>) -> Result<Weights>;

    /// Starts to gather a unit, from its masters or from the part of its weights that was kept. At most one unit is on
    /// its way.
    fn start(&mut self, unit: usize, masters: Masters<'_>) -> Result<()>;

    /// Waits for a unit, which is started if need be, and fills its weights. With `part`, a part of them is kept that the
    /// next gathering starts from.
    fn finish(&mut self, unit: usize, masters: Masters<'_>, weights: &mut Weights, part: bool) -> Result<()>;

    /// Lets go of memory that is not in use.
    fn trim(&mut self);

    /// Bytes of what is on its way and of parts that are kept.
    fn bytes(&self) -> usize;
}

/// This rank's shards of a unit's parameters.
#[derive(Clone, Copy)]
pub struct Masters<'a> {
    /// Of those that are trained.
    pub trained: &'a [f32],
    /// Of those that are frozen.
    pub frozen: &'a [f32],
}

/// Among whom weights are gathered.
pub struct Among {
    /// Those that share the masters; none if this rank has all.
    pub all: Option<Group>,
    /// Those that gather weights again from the parts that they kept.
    pub near: Option<Group>,
    /// Whether memory stays at hand from one unit to the next.
    pub keep_buffers: bool,
}

/// A [`Gather`] for weights of a type.
pub fn gather(compute: DType, among: Among, layouts: Arc<[UnitLayout]>) -> Box<dyn Gather> {
    match compute {
        DType::BF16 => Box::new(Gatherer::<bf16>::new(among, layouts)),
        DType::F16 => Box::new(Gatherer::<f16>::new(among, layouts)),
        _ => Box::new(Gatherer::<f32>::new(among, layouts)),
    }
}

struct Gatherer<T: Number> {
    among: Among,
    layouts: Arc<[UnitLayout]>,
    /// By unit, what this rank kept.
    parts: Vec<Option<Vec<T>>>,
    flight: Option<Flight<T>>,
    /// Memory of the last gathering.
    spare: Option<Buffer<T>>,
}

struct Flight<T: Number> {
    unit: usize,
    pending: Pending<Buffer<T>>,
    bytes: usize,
}

impl<T: Number> Gatherer<T> {
    fn new(among: Among, layouts: Arc<[UnitLayout]>) -> Gatherer<T> {
        let parts = layouts.iter().map(|_| None).collect();
        Gatherer { among, layouts, parts, flight: None, spare: None }
    }
}

impl<T: Number> Gather for Gatherer<T> {
    fn empty(&self, shapes: Vec<(Vec<usize>, bool)>) -> Result<Weights> {
        Weights::empty::<T>(shapes)
    }

    fn start(&mut self, unit: usize, masters: Masters<'_>) -> Result<()> {
        let Some(all) = self.among.all.clone() else { return Ok(()) };
        let whole = self.layouts[unit].padded();
        if whole == 0 || self.flight.as_ref().is_some_and(|flight| flight.unit == unit) {
            return Ok(());
        }
        let mut buffer = match self.spare.take() {
            Some(spare) if spare.len() == whole => spare,
            _ => all.alloc(whole)?,
        };
        let group = match (self.parts[unit].take(), self.among.near.clone()) {
            (Some(part), Some(near)) => {
                buffer[near.rank() * part.len()..][..part.len()].copy_from_slice(&part);
                near
            }
            _ => {
                let len = masters.trained.len() + masters.frozen.len();
                let own = &mut buffer[all.rank() * len..][..len];
                let (trained, frozen) = own.split_at_mut(masters.trained.len());
                T::narrow(masters.trained, trained);
                T::narrow(masters.frozen, frozen);
                all
            }
        };
        let bytes = size_of_val(&*buffer);
        self.flight = Some(Flight { unit, pending: group.all_gather_in_place_start(buffer)?, bytes });
        Ok(())
    }

    fn finish(&mut self, unit: usize, masters: Masters<'_>, weights: &mut Weights, part: bool) -> Result<()> {
        self.start(unit, masters)?;
        let layout = &self.layouts[unit];
        let Some(flight) = self.flight.take_if(|flight| flight.unit == unit) else {
            // One rank has all: its shards are the vectors.
            return weights.fill(|i, to: &mut [T]| {
                let (trained, frozen) = (layout.trained.parameter(i), layout.frozen.parameter(i));
                match frozen.is_empty() {
                    true => T::narrow(&masters.trained[trained], to),
                    false => T::narrow(&masters.frozen[frozen], to),
                }
            });
        };
        let whole = flight.pending.wait()?;
        weights.fill(|i, to: &mut [T]| {
            layout.gathered(i, |from, at| to[at].copy_from_slice(&whole[from]));
        })?;
        if let (true, Some(near)) = (part, &self.among.near) {
            let len = whole.len() / near.size();
            self.parts[unit] = Some(whole[near.rank() * len..][..len].to_vec());
        }
        self.spare = self.among.keep_buffers.then_some(whole);
        Ok(())
    }

    fn trim(&mut self) {
        self.spare = None;
    }

    fn bytes(&self) -> usize {
        let spare = self.spare.as_ref().map_or(0, |spare| spare.len());
        let parts: usize = self.parts.iter().flatten().map(Vec::len).sum();
        (spare + parts) * size_of::<T>() + self.flight.as_ref().map_or(0, |flight| flight.bytes)
    }
}
