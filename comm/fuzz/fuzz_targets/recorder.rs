#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_comm::recorder::{Dump, diagnose};

// Several files, one after the other, separated by a line of their own.
fuzz_target!(|text: &str| {
    let dumps: Vec<Dump> = text.split("\n---\n").filter_map(|file| Dump::parse(file.as_bytes()).ok()).collect();
    for diagnosis in diagnose(&dumps) {
        assert!(!diagnosis.findings.is_empty());
    }
});
