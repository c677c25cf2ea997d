#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nd_comm::fuzzing::rendezvous(bytes));
