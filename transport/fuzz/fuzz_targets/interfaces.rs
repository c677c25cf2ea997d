#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_transport::Family;
use nd_transport::tcp::address::{Filter, Interface, Kind, Local, advertise};

// ND_SOCKET_IFNAME as NCCL writes it, beside interfaces of all kinds.
fuzz_target!(|text: &str| {
    let interface = |(index, (name, address, kind)): (usize, (&str, &str, Kind))| Interface {
        name: name.into(),
        index: index as u32,
        addresses: vec![Local { address: address.parse().expect("an address"), prefix: 24 }],
        up: true,
        kind,
        speed: None,
    };
    let all = [
        ("lo", "127.0.0.1", Kind::Loopback),
        ("eth0", "10.0.0.1", Kind::Physical),
        ("eth0.7", "fe80::1", Kind::Physical),
        ("docker0", "172.17.0.1", Kind::Virtual),
    ];
    let interfaces: Vec<_> = all.into_iter().enumerate().map(interface).collect();
    let filter = Filter::parse(text);
    let _ = advertise(&interfaces, &filter, Family::Any, None);
});
