#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use nd_topology::model::Numa;
use nd_topology::rdma::{
    Asked, Library, Offer, Place, Verdict, Wishes, between, choose_gid, choose_ports, gid_table,
};
use nd_topology::{System, rdma};

// A tree of files, one a line: path, colon, content, as `grep -r '' .` prints one.
fuzz_target!(|text: &str| {
    let files: BTreeMap<String, String> =
        text.lines().filter_map(|l| l.split_once(':')).map(|(p, t)| (p.to_owned(), t.to_owned())).collect();
    let system =
        System { numas: vec![Numa::default()], rdma: rdma::parse::devices(&files), ..System::default() };
    for device in &system.rdma {
        for port in &device.ports {
            gid_table(port);
            let _ = choose_gid(&device.name, port, None);
            let _ = choose_gid(&device.name, port, Some(1));
        }
    }
    let choice = choose_ports(&system, Place::Numa(0), &Wishes::default()).expect("nothing is asked for");
    let offer = Offer::new(Asked::Auto, 1, Library::Present, &choice);
    match between(&offer, &offer, false) {
        Verdict::Verbs(rails) => assert!(!rails.is_empty()),
        Verdict::No(why) => assert!(offer.ports.is_empty(), "a host reaches one like it: {why:?}"),
    }
});
