#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_comm::cost::Calibration;

// Rank 0 sends it to all others.
fuzz_target!(|text: &str| {
    if let Ok(read) = Calibration::parse(text) {
        assert!(Calibration::parse(&read.to_toml()).is_ok());
    }
});
