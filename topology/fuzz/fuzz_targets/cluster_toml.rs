#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_topology::{Cluster, Error};

fuzz_target!(|text: &str| {
    let _ = Cluster::from_toml(text, &mut |_| Err(Error::Invalid("no files".into())));
});
