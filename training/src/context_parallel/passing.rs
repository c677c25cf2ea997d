//! Keys and values on their way to the ranks that need them, and their gradients on the way back.
//!
//! A part is the keys and values of one rank, one after the other. What is on its way belongs to the call that carries
//! it, so each rank works on a copy, in the type that is computed in: together with what leaves and what comes, three
//! parts.

use candle_core::WithDType;

use super::Form;
use crate::error::Result;
use crate::group::{Group, Pending};
use crate::kernel::Scalar;

/// A part that leaves, and one that comes.
type Passing<T> = Pending<(Vec<T>, Vec<T>)>;

/// Calls `work` with each rank's part in turn, this rank's own first, while the next is on its way.
pub(super) fn visit<T: Scalar>(
    group: &Group,
    form: Form,
    own: Vec<T>,
    mut work: impl FnMut(usize, &[T::Real]),
) -> Result<()> {
    let (rank, size) = (group.rank(), group.size());
    match form {
        _ if size == 1 => work(rank, &T::widen(&own)),
        Form::AllGather => gathered(group, own, work)?,
        Form::Ring => {
            let (mut held, mut spare) = (own, zeros::<T>(0));
            for step in 0..size - 1 {
                let part = T::widen(&held).into_owned();
                spare.resize(held.len(), T::from_f64(0.0));
                let passing = group.shift_start(held, spare)?;
                work(before(rank, step, size), &part);
                (spare, held) = passing.wait()?;
            }
            drop(spare);
            work(before(rank, size - 1, size), &T::widen(&held));
        }
    }
    Ok(())
}

/// The same, where `work` adds to the gradient of each part. Gives the gradient of this rank's own, from all ranks.
pub(super) fn visit_and_return<T: Scalar>(
    group: &Group,
    form: Form,
    own: Vec<T>,
    mut work: impl FnMut(usize, &[T::Real], &mut [T::Real]),
) -> Result<Vec<T::Real>> {
    let (rank, size, len) = (group.rank(), group.size(), own.len());
    if size == 1 {
        let mut gradient = zeros(len);
        work(rank, &T::widen(&own), &mut gradient);
        return Ok(gradient);
    }
    match form {
        Form::AllGather => {
            let mut gradients = zeros(len * size);
            gathered(group, own, |source, part| work(source, part, &mut gradients[source * len..][..len]))?;
            let mut gradient = zeros(len);
            group.reduce_scatter(&gradients, &mut gradient)?;
            Ok(gradient)
        }
        Form::Ring => {
            let (mut held, mut spare) = (own, zeros::<T>(len));
            // The gradient of the part that was worked on last, on its way after it.
            let mut following: Option<Passing<T::Real>> = None;
            for step in 0..size {
                let source = before(rank, step, size);
                let mut gradient = zeros(len);
                if step + 1 < size {
                    let part = T::widen(&held).into_owned();
                    let passing = group.shift_start(held, spare)?;
                    work(source, &part, &mut gradient);
                    (spare, held) = passing.wait()?;
                } else {
                    spare = Vec::new();
                    work(source, &T::widen(&held), &mut gradient);
                    held = Vec::new();
                }
                following = Some(match following.take() {
                    None => group.shift_start(gradient, zeros::<T::Real>(len))?,
                    Some(passing) => {
                        let (left, come) = passing.wait()?;
                        gradient.iter_mut().zip(&come).for_each(|(sum, &x)| *sum += x);
                        drop(come);
                        group.shift_start(gradient, left)?
                    }
                });
            }
            match following {
                Some(passing) => Ok(passing.wait()?.1),
                None => Ok(Vec::new()),
            }
        }
    }
}

/// Calls `work` with this rank's part while the others' come, and then with those, in the order of a ring.
fn gathered<T: Scalar>(group: &Group, own: Vec<T>, mut work: impl FnMut(usize, &[T::Real])) -> Result<()> {
    let (rank, size, len) = (group.rank(), group.size(), own.len());
    let part = T::widen(&own).into_owned();
    let coming = group.all_gather_start(own, zeros::<T>(len * size))?;
    work(rank, &part);
    drop(part);
    let (_, all) = coming.wait()?;
    for step in 1..size {
        let source = before(rank, step, size);
        work(source, &T::widen(&all[source * len..][..len]));
    }
    Ok(())
}

/// Whose part a rank holds after so many steps.
fn before(rank: usize, step: usize, size: usize) -> usize {
    (rank + size - step) % size
}

fn zeros<T: WithDType>(len: usize) -> Vec<T> {
    vec![T::from_f64(0.0); len]
}
