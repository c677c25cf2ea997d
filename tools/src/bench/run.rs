//! What one rank does: every collective, type, operation, root and size.

use nd_comm::number::{DataType, F8E4M3, F8E5M2, ReduceOp};
use nd_comm::prelude::Communicator;
use nd_comm::schedule::Collective;
use nd_topology::providers::memory;

use super::call::Memory;
use super::collective::Bench;
use super::error::Error;
use super::fault::{self, Strikes};
use super::measure::{Buffers, check, gathered, measure};
use super::options::{Options, Roots};
use super::picture::{Case, MARGIN};
use super::progress::Progress;
use super::report::{Report, Row};
use super::sample::Sample;
use super::{calibrate, host, picture, sample};

/// Measures all that is asked for; the number of wrong elements, which is the same on every rank.
pub fn rank(comm: &Communicator, options: &Options, how: &str) -> Result<u64, Error> {
    let devices = host::devices(comm)?;
    check_memory(comm, options)?;
    if let Roots::One(root) = options.roots
        && root >= comm.world_size()
    {
        return Err(super::start::no_such_root(root, comm.world_size()));
    }
    let costs = match &options.calibrate {
        Some(path) => {
            let costs = calibrate::calibrate(comm, path)?;
            comm.set_costs(costs.clone())?;
            Some(calibrate::summary(&costs, path))
        }
        None => None,
    };
    if !options.faults.is_empty() {
        return faulty(comm, options, how);
    }
    let mut report = match comm.rank() {
        0 => Some(Report::new(options, comm.world_size(), how, devices, costs)?),
        _ => None,
    };
    let wrong = all(comm, options, report.as_mut(), None)?;
    if let Some(report) = report {
        report.finish()?;
    }
    Ok(wrong)
}

/// Calls all that is asked for, again and again, until something fails; whether that is told as it must be.
fn faulty(comm: &Communicator, options: &Options, how: &str) -> Result<u64, Error> {
    let faults = &options.faults;
    fault::check(faults, comm.world_size(), options.threads)?;
    if comm.rank() == 0 {
        let timeout = comm.timeout().as_secs_f64();
        faults.iter().try_for_each(|fault| fault::print(&format!("# {fault}\n")))?;
        fault::print(&format!("# {how}; a call may wait {timeout} s (ND_TIMEOUT)\n"))?;
    }
    let (strikes, met) = Strikes::begin(comm, faults)?;
    let failed = match met {
        Err(e) => e.into(),
        Ok(()) => loop {
            match all(comm, options, None, Some(&strikes)) {
                Ok(0) => {}
                Ok(wrong) => return Ok(wrong),
                Err(e) => break e,
            }
        },
    };
    let Error::Comm(failed) = failed else { return Err(failed) };
    let right = strikes.tell(comm.rank(), faults, &failed)?;
    if right { Ok(0) } else { Err(Error::Told(1)) }
}

/// Every collective that is asked for, once; the number of wrong elements.
fn all(
    comm: &Communicator,
    options: &Options,
    mut report: Option<&mut Report>,
    strikes: Option<&Strikes>,
) -> Result<u64, Error> {
    let mut wrong = 0;
    for bench in &options.collectives {
        if let Some(report) = &mut report {
            report.begin(*bench)?;
        }
        let types = if bench.0 == Collective::Barrier { &[DataType::U8][..] } else { &options.types };
        for data_type in types {
            let mut task =
                Task { comm, options, bench: *bench, report: report.as_deref_mut(), strikes, wrong: 0 };
            match data_type {
                DataType::I8 => task.run::<i8>(),
                DataType::U8 => task.run::<u8>(),
                DataType::I16 => task.run::<i16>(),
                DataType::U16 => task.run::<u16>(),
                DataType::I32 => task.run::<i32>(),
                DataType::U32 => task.run::<u32>(),
                DataType::I64 => task.run::<i64>(),
                DataType::U64 => task.run::<u64>(),
                DataType::F16 => task.run::<half::f16>(),
                DataType::BF16 => task.run::<half::bf16>(),
                DataType::F32 => task.run::<f32>(),
                DataType::F64 => task.run::<f64>(),
                DataType::F8E4M3 => task.run::<F8E4M3>(),
                DataType::F8E5M2 => task.run::<F8E5M2>(),
            }?;
            wrong += task.wrong;
        }
        if let Some(report) = &mut report {
            report.end(*bench)?;
        }
    }
    Ok(wrong)
}

/// One collective with one type.
struct Task<'a> {
    comm: &'a Communicator,
    options: &'a Options,
    bench: Bench,
    report: Option<&'a mut Report>,
    /// Nothing is measured.
    strikes: Option<&'a Strikes>,
    wrong: u64,
}

impl Task<'_> {
    fn run<T: Sample>(&mut self) -> Result<(), Error> {
        let (comm, options, bench) = (self.comm, self.options, self.bench);
        let ops: Vec<Option<ReduceOp>> = match bench.0.reduces() {
            true => options.ops.iter().filter(|op| op.supports(T::DATA_TYPE)).map(|op| Some(*op)).collect(),
            false => vec![None],
        };
        let roots = match options.roots {
            _ if !bench.0.has_root() => 0..1,
            Roots::One(root) => root..root + 1,
            Roots::All => 0..comm.world_size(),
        };
        let longest = bench.lengths(options.last, size_of::<T>(), comm.world_size());
        let room = longest.send.max(longest.recv) + MARGIN;
        let mut buffers = Buffers::<T> {
            send: Memory::new(comm, options.registered, room)?,
            recv: Memory::new(comm, options.registered, room)?,
        };
        for op in ops {
            for root in roots.clone() {
                self.touch(op, &mut buffers);
                let mut cycle = 0;
                while cycle < options.cycles || (options.cycles == 0 && self.strikes.is_none()) {
                    for bytes in self.sizes() {
                        self.row(bytes, op, root, &mut buffers)?;
                    }
                    cycle += 1;
                }
            }
        }
        Ok(())
    }

    fn sizes(&self) -> Vec<u64> {
        if self.bench.0 == Collective::Barrier { vec![0] } else { self.options.sizes() }
    }

    /// Numbers that no later sum turns into something slow, on pages that are there.
    fn touch<T: Sample>(&self, op: Option<ReduceOp>, buffers: &mut Buffers<T>) {
        let recipe = sample::Recipe::new::<T>(op, self.comm.world_size(), 0);
        let own = picture::Content::Input { rank: self.comm.rank(), start: 0 };
        for buffer in [&mut buffers.send, &mut buffers.recv] {
            let len = buffer.len();
            picture::fill(&recipe, &vec![(len, own)], buffer);
        }
    }

    fn row<T: Sample>(
        &mut self,
        bytes: u64,
        op: Option<ReduceOp>,
        root: usize,
        buffers: &mut Buffers<T>,
    ) -> Result<(), Error> {
        let (comm, options, bench) = (self.comm, self.options, self.bench);
        let lengths = bench.lengths(bytes, size_of::<T>(), comm.world_size());
        let size = (lengths.send.max(lengths.recv) * size_of::<T>()) as u64;
        let silent = Progress::none();
        let progress = self.report.as_ref().map_or(&silent, |r| r.progress());
        progress.size(bench, size);
        let case = |in_place| Case {
            collective: bench.0,
            in_place,
            ranks: comm.world_size(),
            rank: comm.rank(),
            root,
            count: lengths.count,
        };
        if let Some(strikes) = self.strikes {
            for in_place in [false, true].into_iter().take(1 + usize::from(bench.in_place())) {
                let strike = || strikes.before_call(comm);
                self.wrong += check(comm, &case(in_place), op, 0, buffers, strike)?;
            }
            return Ok(());
        }
        let apart = measure(comm, options, &case(false), op, buffers, progress)?;
        let in_place = match bench.in_place() {
            true => Some(measure(comm, options, &case(true), op, buffers, progress)?),
            false => None,
        };
        self.wrong +=
            [Some(&apart), in_place.as_ref()].into_iter().flatten().filter_map(|h| h.wrong).sum::<u64>();
        if let Some(report) = &mut self.report {
            let explanation = comm.explain(bench.0, lengths.count as u64, T::DATA_TYPE, op)?;
            report.row(Row {
                bench,
                size,
                count: lengths.count,
                data_type: (bench.0 != Collective::Barrier).then_some(T::DATA_TYPE),
                op,
                root: bench.0.has_root().then_some(root),
                apart,
                in_place,
                explanation,
            })?;
        }
        Ok(())
    }
}

/// Refuses what would only be found out by the kernel's out-of-memory killer.
fn check_memory(comm: &Communicator, options: &Options) -> Result<(), Error> {
    let Some(available) = memory::available() else { return Ok(()) };
    // Asked on one host at one moment, so that all ranks come to one answer; the least of all hosts counts.
    let available = gathered(comm, &[available])?.into_iter().min().unwrap_or(0);
    let here = comm.host_ranks().len() as u64;
    let here = gathered(comm, &[here])?.into_iter().max().unwrap_or(1);
    let needed = options.last.saturating_mul(2).saturating_mul(here);
    if needed <= available {
        return Ok(());
    }
    let show = super::size::show;
    Err(Error::Usage(format!(
        "-e {}: {here} ranks of one host with two buffers each need {}, the host has {} free; lower -e or --ranks",
        show(options.last),
        show(needed),
        show(available),
    )))
}
