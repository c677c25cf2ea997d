//! One case: warm up, time, check.

use std::time::Instant;

use nd_comm::prelude::{Communicator, ReduceOp, Result};

use super::call::{Memory, perform};
use super::options::{Average, Options};
use super::picture::{Case, fill, picture, wrong};
use super::progress::Progress;
use super::sample::{Recipe, Sample};
use super::statistics::Spread;

/// Where the user does not say how many iterations: for about so long, in seconds,
const ENOUGH: f64 = 0.1;
/// but at least and at most so many.
pub const AUTOMATIC: (u32, u32) = (5, 5000);
/// Calls that are timed to find out how many iterations that is.
const PROBES: u32 = 3;

/// What was measured, out of place or in place.
#[derive(Debug, Clone)]
pub struct Half {
    /// Of one iteration, µs.
    pub time: f64,
    /// How many were timed.
    pub iterations: u32,
    /// Wrong elements on all ranks together; none: not checked.
    pub wrong: Option<u64>,
    /// With `-I`.
    pub spread: Option<Spread>,
}

/// A rank's buffers, allocated once for the largest size.
pub struct Buffers<T: Sample> {
    pub send: Memory<T>,
    pub recv: Memory<T>,
}

/// Measures one case. All ranks do so together, and get the same result.
pub fn measure<T: Sample>(
    comm: &Communicator,
    options: &Options,
    case: &Case,
    op: Option<ReduceOp>,
    buffers: &mut Buffers<T>,
    progress: &Progress,
) -> Result<Half> {
    let Buffers { send, recv } = buffers;
    let mut call = || perform(comm, case, op, send, recv);
    for _ in 0..options.warmup {
        call()?;
    }
    let iterations = match options.iterations {
        Some(n) => n,
        None => automatic(comm, &mut call)?,
    };
    progress.phase(|| format!("{iterations} iterations"));
    let mut times = Vec::with_capacity(if options.per_iteration { iterations as usize } else { 0 });
    comm.barrier()?;
    let began = Instant::now();
    let mut last = began;
    for _ in 0..iterations {
        call()?;
        if options.per_iteration {
            let now = Instant::now();
            times.push((now - last).as_secs_f64() * 1e6);
            last = now;
        }
    }
    let own = began.elapsed().as_secs_f64() * 1e6 / f64::from(iterations.max(1));
    comm.barrier()?;
    let time = over_ranks(options.average, &gathered(comm, &[own])?);
    let spread = match options.per_iteration {
        true => Some(Spread::of(slowest(&gathered(comm, &times)?, times.len()))),
        false => None,
    };
    let wrong = match options.check {
        0 => None,
        checks => {
            progress.phase(|| "checking".into());
            let found = (0..checks)
                .map(|seed| check(comm, case, op, seed, buffers, || Ok(())))
                .sum::<Result<u64>>()?;
            Some(gathered(comm, &[found])?.iter().sum())
        }
    };
    Ok(Half { time, iterations, wrong, spread })
}

/// As many as take [`ENOUGH`] time: the same number on every rank.
fn automatic(comm: &Communicator, call: &mut impl FnMut() -> Result<()>) -> Result<u32> {
    comm.barrier()?;
    let began = Instant::now();
    for _ in 0..PROBES {
        call()?;
    }
    let own = began.elapsed().as_secs_f64() / f64::from(PROBES);
    let slowest = gathered(comm, &[own])?.into_iter().fold(1e-9, f64::max);
    Ok(((ENOUGH / slowest) as u32).clamp(AUTOMATIC.0, AUTOMATIC.1))
}

/// One call with known inputs; how many elements of this rank are wrong.
pub fn check<T: Sample>(
    comm: &Communicator,
    case: &Case,
    op: Option<ReduceOp>,
    seed: u32,
    buffers: &mut Buffers<T>,
    before_call: impl FnOnce() -> Result<()>,
) -> Result<u64> {
    let recipe = Recipe::new::<T>(op, case.ranks, seed);
    let picture = picture(case);
    fill(&recipe, &picture.send, &mut buffers.send);
    fill(&recipe, &picture.before, &mut buffers.recv);
    before_call()?;
    perform(comm, case, op, &buffers.send, &mut buffers.recv)?;
    let inputs = wrong(&recipe, &picture.send, &buffers.send);
    Ok(inputs + wrong(&recipe, &picture.after, &buffers.recv))
}

/// Every rank's `own`, one after the other.
pub fn gathered<N: Sample>(comm: &Communicator, own: &[N]) -> Result<Vec<N>> {
    let mut all = vec![N::default(); own.len() * comm.world_size()];
    comm.all_gather(own, &mut all)?;
    Ok(all)
}

fn over_ranks(average: Average, times: &[f64]) -> f64 {
    match average {
        Average::Rank0 => times.first().copied().unwrap_or(0.0),
        Average::Mean => times.iter().sum::<f64>() / times.len().max(1) as f64,
        Average::Min => times.iter().copied().fold(f64::INFINITY, f64::min),
        Average::Max => times.iter().copied().fold(0.0, f64::max),
    }
}

/// Of each iteration the time on the slowest rank.
fn slowest(all: &[f64], iterations: usize) -> Vec<f64> {
    let of = |i| all.iter().skip(i).step_by(iterations.max(1)).copied().fold(0.0, f64::max);
    (0..iterations).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_ranks_are_combined_as_asked() {
        let times = [2.0, 1.0, 6.0];
        let of = |a| over_ranks(a, &times);
        assert_eq!(
            (of(Average::Rank0), of(Average::Mean), of(Average::Min), of(Average::Max)),
            (2.0, 3.0, 1.0, 6.0)
        );
        assert_eq!(slowest(&[1.0, 5.0, 2.0, 3.0], 2), [2.0, 5.0]);
    }

    #[test]
    fn what_goes_wrong_is_seen() {
        let ranks = Communicator::local(2).unwrap();
        let found: Vec<u64> = std::thread::scope(|s| {
            let check_one = |comm: &Communicator| {
                let case = Case {
                    collective: nd_comm::schedule::Collective::AllReduce,
                    in_place: false,
                    ranks: 2,
                    rank: comm.rank(),
                    root: 0,
                    count: 100,
                };
                let recipe = Recipe::new::<f32>(Some(ReduceOp::Sum), 2, 0);
                let picture = picture(&case);
                let (mut send, mut recv) = (vec![0f32; 200], vec![0f32; 200]);
                fill(&recipe, &picture.send, &mut send);
                fill(&recipe, &picture.before, &mut recv);
                // One rank's input differs in three elements from what the others think.
                if comm.rank() == 1 {
                    send[10..13].iter_mut().for_each(|x| *x += 1.0);
                }
                perform(comm, &case, Some(ReduceOp::Sum), &send, &mut recv).unwrap();
                wrong(&recipe, &picture.after, &recv)
            };
            let threads: Vec<_> = ranks.iter().map(|c| s.spawn(move || check_one(c))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(found, [3, 3]);
    }
}
