#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_topology::formats;

fuzz_target!(|text: &str| {
    if let Ok(system) = formats::nccl_xml::read(text) {
        // What is read can be written, and read again as the same.
        let written = formats::nccl_xml::write(&system);
        let again = formats::nccl_xml::read(&written).expect("our own file is read");
        assert_eq!(formats::nccl_xml::write(&again), written);
    }
});
