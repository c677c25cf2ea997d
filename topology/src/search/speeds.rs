//! The candidate speeds of one channel, GB/s, fastest first.
//!
//! NCCL 2.30.7 `graph/search.cc`: separate lists for one host and for several, and for compute capability below 9.0,
//! 9.x and 10.0 on.

const INTRA: &[f64] = &[40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0];
const INTER: &[f64] = &[
    48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12,
];
const INTRA_SM90: &[f64] = &[60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0];
const INTER_SM90: &[f64] =
    &[48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24, 0.12];
const INTRA_SM100: &[f64] = &[90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0];
const INTER_SM100: &[f64] = &[
    96.0, 86.0, 80.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2,
    0.24, 0.12,
];

/// The list for the lowest compute capability among the GPUs.
pub(super) fn candidates(sm: i32, several_hosts: bool) -> &'static [f64] {
    match (sm, several_hosts) {
        (100.., false) => INTRA_SM100,
        (100.., true) => INTER_SM100,
        (90..=99, false) => INTRA_SM90,
        (90..=99, true) => INTER_SM90,
        (_, false) => INTRA,
        (_, true) => INTER,
    }
}
