#![no_main]

use libfuzzer_sys::fuzz_target;

// The file alone: the commands would take minutes to build.
#[path = "../../src/bench/hosts_file.rs"]
mod hosts_file;

fuzz_target!(|text: &str| {
    if let Ok(hosts) = hosts_file::parse(text, "hosts", 2) {
        let lines: Vec<String> = hosts.iter().map(|h| format!("{} slots={}", h.name, h.slots)).collect();
        assert_eq!(hosts_file::parse(&lines.join("\n"), "hosts", 1), Ok(hosts));
    }
});
