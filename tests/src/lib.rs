//! Helpers for the tests that cross crates, processes and hosts; the tests themselves lie in `tests/tests/`.
//!
//! | module | what |
//! |---|---|
//! | [`worlds`] | ranks as threads of one process, over every transport, real or broken on purpose |
//! | [`calls`] | every call, to be made with given counts |
//! | [`hosts`] | namespaces as hosts |
//! | [`models`] | a published model |
//! | [`machines`] | virtual machines with RDMA |
//! | [`mock`] | RDMA devices that fail when told to |
//! | [`collectives`] | every collective once, for ranks that have been through something |
//! | [`oracle`] | the reproducible order of reduction, in a few lines |
//! | [`jobs`] | jobs of such processes, to be killed or stopped |
//! | [`processes`] | ranks as processes, and what the system says of them |
//! | [`torture`] | ranks that die, stop, abort or go astray at random moments |
//! | [`allocator`] | how much memory something takes |
//! | [`sample`] | element types, with values to test them on |

pub mod allocator;
pub mod calls;
pub mod collectives;
pub mod hosts;
pub mod jobs;
pub mod machines;
pub mod mock;
pub mod models;
pub mod oracle;
pub mod processes;
pub mod sample;
pub mod torture;
pub mod worlds;

/// What a test may need that a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// To be root and to have `ip`, `tc`, `unshare` and `nsenter`, for hosts made of namespaces.
    Root,
    /// `ndvm`, which boots small virtual machines, and what it needs.
    VirtualMachine,
    /// Open MPI's or MPICH's `mpirun`.
    Mpi,
    /// `nd-bench` and `nd-run` beside the program under test: built with all of the workspace, or by
    /// `cargo build -p nd-tools` with the same profile.
    Tools,
    /// The published model that `scripts/setup test` fetches.
    Model,
}

/// Says in one line that a test is skipped, on standard error and in the file that `SKIPPED_TESTS` names.
pub fn skip(test: &str, need: Need) {
    let need = match need {
        Need::Root => "root",
        Need::VirtualMachine => "ndvm",
        Need::Mpi => "mpirun",
        Need::Tools => "nd-bench",
        Need::Model => "smollm2",
    };
    let line = format!("skipped {test}: needs {need}\n");
    eprint!("{line}");
    if let Some(path) = std::env::var_os("SKIPPED_TESTS") {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut f| f.write_all(line.as_bytes()));
    }
}

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
