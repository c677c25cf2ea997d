//! A `libibverbs.so.1` for tests: RDMA devices that are nothing but memory of this process, and that fail when told to.
//!
//! A test puts this library under the name `libibverbs.so.1` into a folder, and starts a process with that folder in
//! `LD_LIBRARY_PATH` (`nd_tests::mock` does so). Ranks are threads of that process. Keys, bounds, states, room of queues and
//! the order in which objects end are checked as a device and its driver check them; what no program may do is noted. A packet that finds nobody is tried again for [a while](pair::PATIENCE), then its work request
//! completes with status 12.
//!
//! | variable | |
//! |---|---|
//! | [`ROOT`] | a folder that looks like `/sys`, which says what devices there are; see [`device`] |
//! | [`FAULTS`] | what fails, and when; see [`faults`] |
//! | [`REPORT`] | a file: what was sent, left and misused is written to it when the process ends; see [`world::World::report`] |
//!
//! | module | what |
//! |---|---|
//! | [`device`] | devices, ports and addresses |
//! | [`faults`] | which call or packet meets what |
//! | [`world`] | all objects, as the library's caller made them |
//! | [`pair`] | queue pairs: how work requests are done |
//! | [`exports`] | the functions of the library |

pub mod device;
pub mod exports;
pub mod faults;
pub mod pair;
pub mod world;

/// The folder that describes the devices.
pub const ROOT: &str = "MOCK_IBVERBS_ROOT";
/// What is to fail.
pub const FAULTS: &str = "MOCK_IBVERBS_FAULTS";
/// Where it is written what was left.
pub const REPORT: &str = "MOCK_IBVERBS_REPORT";
